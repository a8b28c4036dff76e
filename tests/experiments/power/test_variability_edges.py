"""What is concluded of fleets at the edges of what decides it: places, outliers, advice and correlations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy import special

from assay.experiments.power.variability.analysis import (
    CorrelatedPair,
    FleetLayout,
    GpuOutlier,
    GpuRecommendation,
    LocationEffect,
    PeerDifference,
    PeerReferences,
    TimeGain,
    correlate_pairs,
    find_outliers,
    peer_references,
    recommend_gpu,
)
from assay.experiments.power.variability.fleet import (
    MEASURES,
    TIME_MEASURE,
    FleetKind,
    GpuFleet,
    GpuNumbers,
    LocatedGpu,
    group_fleets,
)
from assay.stats.correlation import PartialCorrelation
from assay.stats.outliers import estimate_scale, outlier_p_values
from tests.experiments.power.simulated_fleets import Setting, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAT = next(measure for measure in MEASURES if measure.name == "temperature")
NOBODY = np.array([], dtype=np.intp)


def fleet(*places: tuple[str, str | None, int]) -> GpuFleet:
    """Return a fleet of GPUs at these hosts, racks and slots."""
    gpus = tuple(LocatedGpu(f"U{n}", host, rack, slot, f"cuda:{slot}") for n, (host, rack, slot) in enumerate(places))
    return GpuFleet(FleetKind("sgemm", (), "M", "call_us", "simulated"), gpus, NOBODY, NOBODY, NOBODY, ())


def hosts_of(*sizes: int, rack: str | None = None) -> GpuFleet:
    return fleet(*((f"h{host}", rack, slot) for host, size in enumerate(sizes) for slot in range(size)))


def layout(of: GpuFleet, margin: float = 0.0) -> FleetLayout:
    return FleetLayout(of, TIME_MEASURE, margin, of.host, of.rack, of.slot)


def numbers(
    values: Sequence[float], error: float | Sequence[float] = 0.01, *, freedom: float = 8.0, unit: Any = "runs",
    measure: Any = TIME_MEASURE,
) -> GpuNumbers:  # fmt: skip
    n = len(values)
    errors = np.broadcast_to(np.array(error, dtype=np.float64), n).copy()
    return GpuNumbers(measure, np.array(values, dtype=np.float64), errors, np.full(n, freedom), unit)


def half_width(left: Sequence[float], units: int, fitted: int) -> float:
    """Return the half of an effect's interval: Student's t with 0.37 degrees a value, a median costs 1.2533."""
    scale = estimate_scale(np.array(left), fitted=fitted, least=1e-4)
    freedom = max(1.0, 0.37 * (len(left) - fitted))
    return float(special.stdtrit(freedom, 0.975)) * 1.2533 * scale / math.sqrt(units)


def shapes(effects: Sequence[LocationEffect]) -> list[tuple[str, int, float]]:
    return [(effect.name, effect.members, round(effect.value, 9)) for effect in effects]


def test_a_host_needs_three_gpus_and_another_host_to_be_unlike() -> None:
    assert layout(hosts_of(3, 2)).hosts(np.zeros(5)) == ()
    assert layout(hosts_of(6)).hosts(np.zeros(6)) == ()
    inner = [-0.01, 0.0, 0.02, -0.03, 0.0, 0.04]
    values = np.array(inner) + np.repeat([0.25, -0.5], 3)
    effects = layout(hosts_of(3, 3)).hosts(values)
    assert shapes(effects) == [("h0", 3, 0.25), ("h1", 3, -0.5)]
    half = half_width(inner, 3, fitted=2)
    assert [effect.high - effect.value for effect in effects] == pytest.approx([half, half])
    assert [effect.value - effect.low for effect in effects] == pytest.approx([half, half])
    # The two GPUs of a third host count for nothing.
    more = layout(hosts_of(3, 3, 2)).hosts(np.array([*values, 5.0, 9.0]))
    assert shapes(more) == shapes(effects)
    assert more[0].high == pytest.approx(effects[0].high)
    assert [effect.word for effect in effects] == ["slow", "fast"]


def test_a_place_is_unlike_others_where_its_interval_and_its_chance_say_so() -> None:
    inner = [-0.01, 0.0, 0.02, -0.03, 0.0, 0.04]

    def judged(value: float, margin: float) -> LocationEffect:
        values = np.array(inner) + np.repeat([value, -value], 3)
        return layout(hosts_of(3, 3), margin).hosts(values)[0]

    far = judged(4.0, 0.0)
    assert far.verdict == "yes"
    assert far.chance == pytest.approx(2 * 2 * float(special.stdtr(1.48, -4 / error_of(inner))))
    assert judged(-4.0, 0.0).verdict == "yes"
    assert judged(4.0, far.low).verdict == "unsure"
    assert judged(4.0, math.nextafter(far.low, 0)).verdict == "yes"
    assert judged(4.0, far.high).verdict == "no"
    assert judged(4.0, math.nextafter(far.high, 0)).verdict == "unsure"
    assert judged(-4.0, far.high + 1e-9).verdict == "no"
    # Each by itself would be called unlike the others; of two, one is so by chance in 6 % of cases.
    perhaps = judged(-float(special.stdtrit(1.48, 0.015)) * error_of(inner), 0.0)
    assert perhaps.low > 0
    assert perhaps.chance == pytest.approx(0.06)
    assert perhaps.verdict == "unsure"
    sure = judged(-float(special.stdtrit(1.48, 0.012)) * error_of(inner), 0.0)
    assert sure.chance == pytest.approx(0.048)
    assert sure.verdict == "yes"


def error_of(inner: Sequence[float]) -> float:
    return 1.2533 * estimate_scale(np.array(inner), fitted=2, least=1e-4) / math.sqrt(3)


def test_a_slot_is_held_against_its_own_host() -> None:
    """Three hosts of two GPUs, the second of each slower by 0.2, 0.3 and 0.5."""
    levels = np.repeat([0.0, 7.0, -3.0], 2)
    values = levels + np.array([0.0, 0.2, 0.0, 0.3, 0.0, 0.5])
    effects = layout(hosts_of(2, 2, 2)).slots(values)
    assert shapes(effects) == [("0", 3, -0.15), ("1", 3, 0.15)]
    left = [0.05, -0.05, 0.0, 0.0, -0.1, 0.1]
    half = half_width(left, 3, fitted=4)
    assert effects[1].high == pytest.approx(0.15 + half)
    # A host of one GPU has none to be held against; a slot that two hosts have is not judged.
    more = layout(hosts_of(3, 3, 2, 1)).slots(np.array([0.0, 0.2, 0.0, 0.0, 0.3, 0.0, 0.0, 0.5, 9.0]))
    assert [effect.name for effect in more] == ["0", "1"]
    assert [effect.members for effect in more] == [3, 3]


def test_slots_need_three_hosts_and_a_second_slot() -> None:
    double = fleet(*((host, None, slot) for host in ("a", "b") for slot in (0, 0, 1, 1)))
    assert layout(double).slots(np.arange(8.0)) == ()
    alike = fleet(*((host, None, 0) for host in ("a", "b", "c") for _ in range(2)))
    assert layout(alike).slots(np.arange(6.0)) == ()
    assert len(layout(hosts_of(2, 2, 2)).slots(np.arange(6.0))) == 2
    assert layout(hosts_of(2, 2, 1)).slots(np.arange(5.0)) == ()


def test_a_rack_is_judged_by_its_hosts_and_by_its_gpus_where_it_has_one_host() -> None:
    two = fleet(*((f"h{n}", f"r{n // 2}", slot) for n in range(4) for slot in range(2)))
    values = np.array([0.0, 0.02, 0.1, 0.14, 1.0, 1.0, 1.3, 1.34])
    effects = layout(two).racks(values)
    assert shapes(effects) == [("r0", 4, 0.06), ("r1", 4, 1.15)]
    # The hosts' medians are 0.01, 0.12, 1 and 1.32.
    left = [0.01 - 0.06, 0.12 - 0.06, 1.0 - 1.15, 1.32 - 1.15]
    assert effects[0].high - effects[0].value == pytest.approx(half_width(left, 2, fitted=2))
    one = fleet(*((f"h{n}", f"r{n}", slot) for n in range(2) for slot in range(4)))
    effects = layout(one).racks(values)
    assert shapes(effects) == [("r0", 4, 0.06), ("r1", 4, 1.15)]
    left = [-0.06, -0.04, 0.04, 0.08, -0.15, -0.15, 0.15, 0.19]
    assert effects[0].high - effects[0].value == pytest.approx(half_width(left, 4, fitted=2))


def test_racks_are_judged_by_gpus_where_one_of_them_has_one_host() -> None:
    of = fleet(*((f"h{n}", f"r{n // 2}", slot) for n, size in enumerate((2, 2, 4)) for slot in range(size)))
    values = np.array([0.0, 0.02, 0.1, 0.14, 1.0, 1.0, 1.3, 1.34])
    left = [-0.06, -0.04, 0.04, 0.08, -0.15, -0.15, 0.15, 0.19]
    assert layout(of).racks(values)[1].high == pytest.approx(1.15 + half_width(left, 4, fitted=2))


def test_racks_need_three_gpus_each_and_another_rack() -> None:
    def racks(*names: str | None) -> list[tuple[str, int, float]]:
        of = fleet(*((f"h{n}", name, 0) for n, name in enumerate(names)))
        return shapes(layout(of).racks(np.arange(float(len(names)))))

    assert racks("a", "a", "a", "b", "b") == []
    assert racks("a", "a", "a", "a", "a", "a") == []
    assert racks("a", "a", "a", "b", "b", "b") == [("a", 3, 1.0), ("b", 3, 4.0)]
    assert racks("a", "a", "a", "c", None, "b", "b", "b") == [("a", 3, 1.0), ("b", 3, 6.0)]
    assert racks("a", "a", "a", None, None, None) == []


def test_a_rack_of_eight_is_the_reference_of_its_gpus_and_of_seven_the_fleet_is() -> None:
    noise = [-0.004, -0.003, -0.002, -0.001, 0.001, 0.002, 0.003, 0.004]
    of = fleet(*((f"h{n}", f"r{int(n >= 8)}", 0) for n in range(15)))
    values = np.array([*noise, *noise[:7]]) + np.repeat([1.0, 1.0005], [8, 7])
    found = peer_references(of, numbers([*values, math.nan][:15]), 0.02)
    middle, first = float(np.median(values)), float(np.median(values[:8]))
    assert found.against == ("rack r0",) * 8 + ("the fleet",) * 7
    assert found.fleet == pytest.approx(middle)
    assert found.reference == pytest.approx([first] * 8 + [middle] * 7)
    assert found.fitted == 2
    left = np.concatenate([values[:8] - first, values[8:] - middle])
    assert found.scale == pytest.approx(estimate_scale(left, fitted=2, least=1e-4))
    errors = [1.2533 * found.scale / math.sqrt(n) for n in (8, 15)]
    assert found.reference_error == pytest.approx([errors[0]] * 8 + [errors[1]] * 7)
    apart = estimate_scale(values - middle, least=1e-4)
    assert found.fleet_error == pytest.approx(1.2533 * apart / math.sqrt(15))
    assert [effect.name for effect in found.of("rack")] == ["r0", "r1"]
    assert found.of("host") == found.of("slot") == ()


def test_a_host_that_is_slow_as_a_whole_is_the_reference_of_its_gpus() -> None:
    noise = [-0.003, -0.001, 0.001, 0.003]
    values = [*noise, math.nan, *noise, *noise, *(0.5 + one for one in noise)]
    of = hosts_of(5, 4, 4, 4)
    found = peer_references(of, numbers(values), 0.02)
    assert found.against == ("the fleet",) * 4 + ("",) + ("the fleet",) * 8 + ("host h3",) * 4
    assert {effect.name: effect.verdict for effect in found.of("host")}["h3"] == "yes"
    assert found.fleet == pytest.approx(0.001)
    assert math.isnan(found.reference[4])
    assert found.reference[13:] == pytest.approx([0.5] * 4)
    assert found.reference[:4] == pytest.approx([found.fleet] * 4)
    assert found.fitted == 2
    ratio = float(found.reference_error[13] / found.reference_error[0])
    assert ratio == pytest.approx(2.0)  # of 4 instead of 16


def test_the_effect_of_a_slot_is_part_of_its_gpus_references() -> None:
    noise = [0.001, -0.002, 0.003, -0.001, 0.002, -0.003]
    values = [0.25 * (slot == 3) + noise[(3 * host + 2 * slot) % 6] for host in range(6) for slot in range(4)]
    found = peer_references(hosts_of(4, 4, 4, 4, 4, 4), numbers(values), 0.02)
    assert {effect.name: effect.verdict for effect in found.of("slot")}["3"] == "yes"
    by_slot = found.reference.reshape(6, 4)
    assert by_slot[:, 3] - by_slot[:, 0] == pytest.approx([0.25] * 6, abs=0.01)
    assert by_slot[0, :3] == pytest.approx([found.fleet] * 3)


def references(n: int, **changes: Any) -> PeerReferences:
    told: dict[str, Any] = {
        "fleet": 50.0, "fleet_error": 0.25, "reference": np.full(n, 60.0), "reference_error": np.full(n, 0.5),
        "against": ("its peers",) * n, "fitted": 1, "scale": 1.0, "effects": (), **changes,
    }  # fmt: skip
    return PeerReferences(**told)


CALM = [59.0, 59.5, 60.0, 60.5, 61.0, 59.25, 60.75, 59.75, 60.25, 60.0, 59.5, 60.5]


def hot(
    *extra: float, error: float = 0.25, calm: Sequence[float] = CALM, unit: Any = "runs", **changes: Any
) -> list[GpuOutlier]:
    values = [*calm, *extra]
    given = numbers(values, error, measure=HEAT, unit=unit)
    return list(find_outliers(given, references(len(values), **changes), 0.02))


def test_an_outlier_has_its_distance_from_its_peers_and_from_the_fleet() -> None:
    (one,) = hot(80.0)
    # One of thirteen is called: intervals cover all but a thirteenth of 5 %, with eight degrees of freedom.
    reach = float(special.stdtrit(8.0, 1 - 0.025 / 13))
    half, of_fleet = reach * math.hypot(0.25, 0.5), reach * math.hypot(0.25, 0.25)
    assert one.peers == pytest.approx((20.0, 20.0 - half, 20.0 + half))
    assert one.fleet == pytest.approx((30.0, 30.0 - of_fleet, 30.0 + of_fleet))
    assert (one.gpu, one.word, one.verdict, one.against) == (12, "hot", "yes", "its peers")
    assert one.rate < 0.05
    (cold,) = hot(40.0)
    assert (cold.word, cold.verdict) == ("cool", "yes")
    # The farthest comes first, to either side; twice as many may be called by chance.
    both = hot(75.0, 40.0)
    assert [each.gpu for each in both] == [13, 12]
    wider = float(special.stdtrit(8.0, 1 - 0.025 * 2 / 14)) * math.hypot(0.25, 0.5)
    assert both[0].peers == pytest.approx((-20.0, -20.0 - wider, -20.0 + wider))
    assert hot() == []


def test_without_a_second_measurement_a_gpu_is_known_no_better_than_its_peers_differ() -> None:
    (one,) = hot(80.0, unit=None, scale=1.5)
    half = float(special.stdtrit(12.0, 1 - 0.025 / 13)) * math.hypot(1.5, 0.5)
    assert one.peers == pytest.approx((20.0, 20.0 - half, 20.0 + half))
    (unknown,) = hot(80.0, error=math.nan, scale=1.5)
    half = float(special.stdtrit(8.0, 1 - 0.025 / 13)) * math.hypot(1.5, 0.5)
    assert unknown.peers == pytest.approx((20.0, 20.0 - half, 20.0 + half))


def test_an_outlier_is_told_beyond_what_matters_and_sure_where_its_interval_is() -> None:
    steady = [60.0] * 12
    exact: dict[str, Any] = {"calm": steady, "error": 0.0, "reference_error": np.zeros(13)}
    # A sensor tells half a degree apart; a difference counts beyond three.
    assert hot(63.0, **exact) == []
    assert hot(57.0, **exact) == []
    assert [(each.word, each.verdict) for each in hot(63.5, **exact)] == [("hot", "yes")]
    assert [(each.word, each.verdict) for each in hot(56.5, **exact)] == [("cool", "yes")]
    wide: dict[str, Any] = {"calm": steady, "error": 0.25, "reference_error": np.zeros(13)}
    assert [(each.word, each.verdict) for each in hot(63.5, **wide)] == [("hot", "unsure")]
    assert [(each.word, each.verdict) for each in hot(56.5, **wide)] == [("cool", "unsure")]


def test_a_gpu_that_is_known_less_well_than_most_is_less_of_an_outlier() -> None:
    errors = [0.25] * 9 + [0.75] * 3 + [1.5]
    given = numbers([*CALM, 80.0], errors, measure=HEAT)
    (one,) = find_outliers(given, references(13), 0.02)
    extra = np.array([max(error**2 - 0.25**2, 0.0) for error in errors])
    distances = np.array([*CALM, 80.0]) - 60.0
    chances = outlier_p_values(distances, extra, fitted=1, least=0.5)
    assert one.rate == pytest.approx(13 * float(chances[12]))
    lost = numbers([*CALM, 80.0], [0.25] * 12 + [40.0], measure=HEAT)
    assert find_outliers(lost, references(13), 0.02) == ()


def test_a_relative_outlier_is_sure_beyond_what_matters() -> None:
    near = [0.001 * n for n in range(-6, 7)]
    zero: dict[str, Any] = {"reference": np.zeros(15), "reference_error": np.full(15, 0.001), "fleet": 0.0}
    found = find_outliers(numbers([*near, 0.5, -0.4], 0.001), references(15, **zero), 0.02)
    assert [(one.word, one.verdict) for one in found] == [("slow", "yes"), ("fast", "yes")]


def slot(name: str, value: float, half: float, said: Any = "yes") -> LocationEffect:
    return LocationEffect("slot", name, TIME_MEASURE, 3, value, value - half, value + half, 0.001, said)


def advice(
    values: Sequence[float], *slots: LocationEffect, hosts: int = 1, slow: Sequence[int] = (), least: float = 0.001,
    error: float | Sequence[float] = 0.01, **changes: Any,
) -> GpuRecommendation:  # fmt: skip
    of = fleet(*((f"h{n % hosts}", None, n // hosts) for n in range(len(values))))
    return recommend_gpu(of, numbers(values, error, **changes), slots, slow, least)


def test_one_gpu_needs_no_advice_and_two_do() -> None:
    assert advice([1.0]) == GpuRecommendation("one", unit="runs")
    assert advice([1.0, math.nan]).answer == "one"
    assert advice([1.0, 2.0]).answer == "gpu"


def test_of_gpus_that_were_measured_once_the_fastest_is_told_against_the_mean() -> None:
    found = advice([0.5, 0.2, math.nan, 0.8], unit=None)
    assert (found.answer, found.best, found.confidence, found.unit) == ("unknown", (1,), None, None)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(1 - math.exp(-0.3))
    assert found.gain == TimeGain(found.gain.value, None, None)
    later = advice([math.nan, 0.5, 0.2], unit=None)
    assert later.best == (2,)


def test_what_a_gpu_gains_is_drawn_in_towards_the_rest() -> None:
    """Variance 0.01 over three GPUs, each known to 0.01: 99 parts of a hundred are true."""
    found = advice([0.0, 0.1, 0.2])
    guesses, doubt = [0.001, 0.1, 0.199], 0.01 * math.sqrt(0.99)
    apart = math.log(sum(map(math.exp, guesses)) / 3) - 0.001
    half = 2.306004 * doubt * math.sqrt((2 / 3) ** 2 + 2 / 9)
    assert found.gain is not None
    told = (found.gain.value, found.gain.low, found.gain.high)
    assert told == pytest.approx([1 - math.exp(-end) for end in (apart, apart - half, apart + half)], rel=1e-6)
    assert (found.answer, found.best) == ("gpu", (0,))
    assert found.confidence == pytest.approx(1.0, abs=0.01)
    # With one degree of freedom an interval is 12.7 errors wide; less than one degree is one.
    loose = advice([0.0, 0.1, 0.2], freedom=0.25)
    assert loose.gain is not None
    half *= 12.7062047 / 2.306004
    assert loose.gain.low == pytest.approx(1 - math.exp(half - apart), rel=1e-6)


def test_gpus_that_are_known_less_well_are_drawn_in_further() -> None:
    """Variance 0.01; mean square of the errors 0.0014; what is true varies by 0.0086."""
    errors, values = [0.01, 0.05, 0.04], [0.0, 0.1, 0.2]
    between = 0.01 - sum(error**2 for error in errors) / 3
    weights = [1 / (between + error**2) for error in errors]
    middle = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    trust = [between * w for w in weights]
    guesses = [middle + t * (v - middle) for t, v in zip(trust, values, strict=True)]
    doubts = [math.sqrt(t) * error for t, error in zip(trust, errors, strict=True)]
    of = hosts_of(3)
    given = numbers(values, errors)
    given.freedom[1:] = (20.0, 11.0)
    found = recommend_gpu(of, given, (), (), 0.001)
    assert found.gain is not None
    apart = math.log(sum(map(math.exp, guesses)) / 3) - guesses[0]
    half = 2.306004 * math.hypot(doubts[0] * 2 / 3, math.hypot(doubts[1], doubts[2]) / 3)
    told = (found.gain.value, found.gain.low, found.gain.high)
    assert told == pytest.approx([1 - math.exp(-end) for end in (apart, apart - half, apart + half)], rel=1e-6)


def test_gpus_that_scatter_less_than_they_are_known_are_taken_for_equal() -> None:
    found = advice([0.0, 0.001, 0.002], least=0.01)
    assert found.gain is not None
    # A variance of 1e-6 with errors of 0.01: a ten-thousandth of the difference to the mean is believed.
    assert found.gain.value == pytest.approx(1e-7, rel=0.01)
    assert (found.answer, len(found.best)) == ("any", 3)
    assert found.confidence == pytest.approx(1 / 3, abs=0.03)


def test_the_answer_follows_from_what_there_is_to_gain() -> None:
    values = [0.0, 0.1, 0.2]
    gain = advice(values).gain
    assert gain is not None
    assert gain.high is not None
    assert advice(values, least=gain.high).answer == "gpu"
    assert advice(values, least=math.nextafter(gain.high, 1)).answer == "any"
    assert advice(values, error=0.08).answer == "unknown"
    many = list(np.linspace(0.0, 0.3, 17))
    assert advice(many, slow=[16]).answer == "avoid"
    assert advice(many).answer == "gpu"
    assert advice(many[:16], slow=[15]).answer == "gpu"
    assert advice(many, slow=[16], least=0.5).answer == "any"


def test_the_fastest_is_among_as_few_as_carry_95_percent() -> None:
    clear, close = advice([0.0, 0.5, 0.5]), advice([0.0, 0.0, 0.5])
    assert (clear.best, clear.confidence) == ((0,), 1.0)
    assert set(close.best) == {0, 1}
    assert close.confidence == pytest.approx(0.5, abs=0.03)
    # The first of these two is the fastest in about 93 of 100 draws, and in 97.
    likely, surely = advice([0.0, 0.024, 1.0]), advice([0.0, 0.034, 1.0])
    assert (likely.best, surely.best) == ((0, 1), (0,))
    assert likely.confidence is not None
    assert 0.91 < likely.confidence < 0.95
    assert advice([0.024, 0.0, 1.0]).best == (1, 0)


def test_among_many_the_forty_best_are_drawn() -> None:
    """One GPU of which little is known may be the fastest, if it is among the forty that look best."""
    for others, drawn in ((39, True), (40, False)):
        values = [*([0.0] * others), 0.01, *([1.0] * 5)]
        errors = [*([1e-4] * others), 0.2, *([1e-4] * 5)]
        assert (others in advice(values, error=errors).best) == drawn


def test_a_slot_gains_against_a_random_one() -> None:
    slots = slot("0", 0.1, 0.01), slot("3", -0.2, 0.02), slot("2", 0.05, 0.04)
    found = advice([0.0, 0.0, 0.0], *slots)
    mean = math.log(sum(map(math.exp, (0.1, -0.2, 0.05))) / 3)
    apart = mean + 0.2
    half = math.sqrt(0.02**2 / 3 + (0.01**2 + 0.02**2 + 0.04**2) / 9)
    assert found.slot == slots[1]
    assert found.answer == "slot"
    assert found.gain is not None
    told = (found.gain.value, found.gain.low, found.gain.high)
    assert told == pytest.approx([1 - math.exp(-end) for end in (apart, apart - half, apart + half)])
    assert found.fourth == found.gain


def test_a_slot_is_advised_where_one_stands_out_and_it_surely_gains() -> None:
    values = [0.0, 0.1, 0.2]
    fast, slow = slot("1", -0.2, 0.01), slot("2", 0.2, 0.01)
    assert advice(values, fast, slow).slot == fast
    # The slow slot stands out; that is enough for the others.
    assert advice(values, slot("1", -0.2, 0.01, "unsure"), slow).answer == "slot"
    doubtful = [slot(each.name, each.value, 0.01, "unsure") for each in (fast, slow)]
    assert (advice(values, *doubtful).answer, advice(values, *doubtful).slot) == ("gpu", None)
    wide = slot("1", -0.2, 5.0), slot("2", 0.2, 5.0)
    assert advice(values, *wide).answer == "gpu"
    best = advice(values, slot("1", -0.1, 0.01), slot("2", -0.2, 0.01), slot("0", 0.2, 0.01)).slot
    assert best is not None
    assert best.name == "2"
    assert advice(values, fast, slow).fourth is None


def test_the_fourth_gpu_of_a_single_host_gains_what_it_takes_less_itself() -> None:
    values = [0.3, 0.1, 0.2, 0.0]
    found = advice(values)
    assert found.fourth is not None
    assert found.fourth == found.gain
    assert advice(values[:3]).fourth is None
    assert advice([*values[:3], math.nan]).fourth is None
    assert advice([0.3] * 4 + [0.0] * 4, hosts=2).fourth is None
    slowest = advice([0.0, 0.1, 0.2, 0.3]).fourth
    assert slowest is not None
    assert slowest.value < 0


def test_a_correlation_holds_where_its_interval_has_no_room_for_the_other_sign() -> None:
    def verdict(low: float | None, high: float | None, sign: int = 1) -> str:
        rho = PartialCorrelation(0.5, low, high, 9)
        return CorrelatedPair("claim", "x", "y", None, "GPUs", sign, rho).verdict

    assert verdict(0.25, 0.75) == verdict(-0.75, -0.25, -1) == verdict(0.01, 0.05) == "yes"
    assert verdict(0.0, 0.75) == verdict(-0.75, 0.0, -1) == verdict(-0.2, 0.12) == "unsure"
    assert verdict(-0.75, 0.1) == verdict(-0.1, 0.75, -1) == "unsure"
    assert verdict(-0.75, 0.09) == verdict(-0.75, -0.25) == verdict(0.25, 0.75, -1) == verdict(0.0, 0.05) == "no"
    assert verdict(None, 0.75) == verdict(0.25, None) == "unsure"
    assert CorrelatedPair("claim", "x", "y", None, "GPUs", 1, None).verdict == "unsure"


def test_of_two_gpus_nothing_goes_together_and_of_five_only_their_rows() -> None:
    def pairs(gpus: int, runs: int = 3) -> tuple[CorrelatedPair, ...]:
        (of,) = group_fleets(simulate(Setting(nodes=1, gpus=gpus, runs=runs), 1).all_rows).fleets
        return correlate_pairs(of)

    beside = "a GPU is slower the hotter its neighbours are"
    assert [pair.claim for pair in pairs(2, runs=4)] == [beside]
    few, many = pairs(3), pairs(6)
    assert [pair.claim for pair in few] == [
        "hotter GPUs are slower", "hotter GPUs are slower at equal power", "GPUs with a higher clock are faster",
        "GPUs that draw more are slower", "hotter GPUs have a lower clock", beside,
    ]  # fmt: skip
    assert [pair.sign for pair in few] == [1, 1, -1, 1, -1, 1]
    assert {pair.over for pair in few[:5]} == {pair.over for pair in pairs(5)[:5]} == {"rows of few GPUs"}
    assert {pair.over for pair in many[:5]} == {"GPUs"}
    assert [pair.association.n for pair in (few[0], many[0]) if pair.association] == [9, 6]
    assert [pair.association.low is None for pair in (few[0], many[0]) if pair.association] == [True, False]
    # Six rows in which a GPU is held against itself are enough, five rows are not, nor is one row of each GPU.
    assert [pair.claim for pair in pairs(3, runs=2)][5:] == [beside]
    assert [pair.claim for pair in pairs(5, runs=1)][5:] == []
    assert [pair.claim for pair in pairs(6, runs=1)][5:] == []
    (hotter,) = pairs(3, runs=2)[5:]
    assert hotter.association is not None
    assert (hotter.association.n, hotter.association.low) == (6, None)  # three of the six are spent on means


def test_a_gpu_is_held_against_itself_with_more_neighbours() -> None:
    """Each GPU is slower with more neighbours; the GPUs that have more of them are the faster ones."""
    rows = simulate(Setting(nodes=1, gpus=3, runs=4), 1).all_rows
    runs = sorted({row.run for row in rows})

    def changed(row: Any) -> Any:
        place = runs.index(row.run)
        busy = ("cuda:9 resnet50",) * (9 - 4 * row.slot + place)
        return row.model_copy(update={"neighbours": busy, "median_us": math.exp(row.slot + 0.01 * place)})

    def busy_pair(*given: Any) -> list[CorrelatedPair]:
        return [pair for pair in correlate_pairs(group_fleets(given).fleets[0]) if pair.x == "busy neighbours"]

    every = [changed(row) for row in rows]
    (pair,) = busy_pair(*every)
    assert pair.association is not None
    assert pair.association.rho > 0.9
    assert pair.association.n == 12
    # A GPU with a single row has nothing to be held against.
    (fewer,) = busy_pair(*every[:-3], *(row for row in every[-3:] if row.slot), every[0])
    assert fewer.association is not None
    assert fewer.association.rho > 0.5
    alike = [row.model_copy(update={"neighbours": ("cuda:9 resnet50",) * row.slot}) for row in rows]
    assert busy_pair(*alike) == []


def test_a_place_or_a_gpu_that_does_not_differ_has_the_lower_word() -> None:
    assert [slot("0", value, 0.0).word for value in (-0.1, 0.0, 0.1)] == ["fast", "fast", "slow"]
    apart = [PeerDifference(value, value, value) for value in (-0.1, 0.0, 0.1)]
    words = [GpuOutlier(0, HEAT, each, each, "its peers", 0.01, "yes").word for each in apart]
    assert words == ["cool", "cool", "hot"]
