"""Judging at the edges: what is held against what, by how much, and with how much error."""

from __future__ import annotations

import math
from types import SimpleNamespace as Made
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.results import Estimate, Series, SubjectFacts
from assay.experiments import gate, regressions
from assay.experiments.compare import pairing
from assay.experiments.contention import effects, picks
from assay.experiments.contention.layout import ContentionLayout, LayoutCell, WorkerSlot
from assay.experiments.contention.picks import PickMismatch
from assay.experiments.energy import estimates
from assay.experiments.energy.compare import PointValue
from assay.experiments.energy.estimates import describe_length_mismatch
from assay.experiments.matrix import analysis as matrix
from assay.experiments.matrix.analysis import MatrixReading
from assay.experiments.power.budget import BudgetPlan, fit_curves
from assay.experiments.power.sweep.curve import find_optimum, judge_binding
from assay.experiments.power.variability import analysis
from assay.experiments.power.variability.analysis import TimeGain
from assay.experiments.power.variability.fleet import TIME_MEASURE, GpuNumbers, time_spread
from assay.experiments.run.plan import subject_facts
from assay.experiments.scaling.analysis import judge_prediction
from assay.experiments.scaling.prediction import LinkModel, RankTraffic, predict_time
from assay.experiments.threshold import cells as threshold
from assay.stats.blocks import LimitDecision
from assay.stats.multiple_comparisons import fit_crossed
from assay.stats.ratios import Proportion
from tests.experiments.gate import revisions
from tests.experiments.power.simulated_sweeps import sweep_rows

if TYPE_CHECKING:
    from assay.experiments.contention.layout import LevelTable
    from assay.experiments.contention.options import Phase

HERE = WorkerSlot(0, "cpu:0")


def about(value: float, low: float | None = None, high: float | None = None, unit: str = "×") -> Estimate:
    return Estimate(value=value, low=low, high=high, unit=unit, scope="run", method="made", n=3)


def cell(block: int, *logs: float) -> LayoutCell:
    return LayoutCell(HERE, block, "naive", "call_us", np.exp(logs), 0.0, f"block {block}")


def test_how_far_a_pick_is_behind_is_told_by_the_parts_that_did_not_choose_the_best() -> None:
    """In the even parts 1 and 3 µs, in the odd ones 2 and 8 µs."""
    taken = {"first": np.array([1.0, 2.0] * 12), "second": np.array([3.0, 8.0] * 12)}
    series = [
        Series(
            role="r", rank=0, subject=number, restart=0, quantity="call_us", unit="µs", file=file, n=24, start_ns=0,
            end_ns=1,
        )
        for number, file in enumerate(taken)
    ]  # fmt: skip
    record: Any = Made(series=series, trial="t")
    role: Any = Made(name="r", subjects=[Made(config={"block": 1}), Made(config={"block": 2})])
    records: Any = Made(samples=lambda one: taken[one.file])
    found = picks._record_regrets(records, record, role)
    assert found is not None
    assert [each.value for each in found.by_config.values()] == pytest.approx([1.0, 4.0])


@pytest.mark.parametrize(("devices", "strict"), [(2, 0.95), (4, 1 - 0.05 / 6)])
def test_the_widest_gap_is_as_sure_as_there_are_pairs_to_choose_it_from(
    devices: int, strict: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(effects, "_device_levels", lambda _table, _phase, place, _workers: {1: float(place.device[-1])})
    monkeypatch.setattr(effects, "judge_effect", lambda *told: asked.append(told[3]))
    wanted: Any = Made(devices=[f"cpu:{number}" for number in range(devices)], workers=1, minimum_effect=0.01)
    found = effects._device_agreement({}, wanted, 0, "naive")
    assert found is not None
    assert (found.slowest, found.fastest) == (f"cpu:{devices - 1}", "cpu:0")
    assert asked == pytest.approx([strict])


def test_picks_stay_the_same_only_where_the_whole_interval_is_small() -> None:
    """Of none of 3 up to 71 % may differ, of none of 100 up to 3.6 %."""
    assert PickMismatch(Proportion(0, 3), Proportion(0, 3), Proportion(0, 3), 0).verdict == "unsure"
    assert PickMismatch(Proportion(0, 100), Proportion(0, 100), Proportion(0, 100), 0).verdict == "no"


def test_starts_that_differ_by_less_than_sampling_explains_add_nothing() -> None:
    """Means of 0 and 0.2 scatter by 0.02; samples of variance 1, two of them, by 0.5."""
    assert effects._start_variance([cell(1, -1.0, 1.0), cell(2, -0.8, 1.2)], effects._Drift()) == 0.0
    steady = effects._start_variance([cell(1, 0.0, 0.0), cell(2, 0.2, 0.2)], effects._Drift())
    assert steady == pytest.approx(0.02)


def at(at_s: float, *logs: float, place: WorkerSlot = HERE, phase: Phase = "baseline", block: int = 1) -> LayoutCell:
    return LayoutCell(place, block, phase, "call_us", np.exp(logs), at_s, f"at {at_s}")


def drift_of(*cells: LayoutCell) -> tuple[float, float, float]:
    found = effects._fit_drift(cells)
    return found.per_s, found.variance, found.middle_s


def test_times_drift_by_what_a_line_through_them_shows_beyond_their_scatter() -> None:
    nothing = (0.0, 0.0, 0.0)
    assert drift_of() == drift_of(at(1, 0.0)) == drift_of(at(1, 0.0), at(2, 1.0)) == nothing
    assert drift_of(at(5, 0.0), at(5, 1.0), at(5, 2.0)) == nothing
    # Squares of the times about their middle are 200 together.
    assert drift_of(at(10, 0.0), at(20, 0.1), at(30, 0.2)) == pytest.approx((0.01, 0.01**2 * 200 / 3, 20.0))
    # A slope of 4 / 5; residues of -0.3, 0.9, -0.9 and 0.3 leave an error of 1.8 / 2 / 5 for its square.
    rising = [at(second, log) for second, log in enumerate((0.0, 2.0, 1.0, 3.0))]
    assert drift_of(*rising) == pytest.approx((math.sqrt(0.46), 0.46 * 5 / 4, 1.5))
    falling = [at(second, log) for second, log in enumerate((3.0, 1.0, 2.0, 0.0))]
    assert drift_of(*falling) == pytest.approx((-math.sqrt(0.46), 0.46 * 5 / 4, 1.5))
    # A slope of 0.05, which is less than its error.
    assert drift_of(at(0, 0.0), at(1, 1.0), at(2, 0.1)) == pytest.approx((0.0, 0.0, 1.0))
    there = WorkerSlot(1, "cpu:1")
    two = [at(0, 0.0), at(1, 0.1), at(4, 5.0, place=there), at(5, 5.1, place=there)]
    assert drift_of(*two) == pytest.approx((0.1, 0.1**2 / 4, 2.5))
    assert drift_of(*two[:3]) == nothing


def test_starts_vary_about_the_mean_of_their_place_and_phase_without_drift_and_sampling() -> None:
    none, steady = effects._Drift(), effects._Drift(per_s=0.5, middle_s=10.0)
    there = WorkerSlot(1, "cpu:1")
    assert effects._start_variance([at(10, 1.0), at(12, 2.0)], steady) == pytest.approx(0.0)
    assert effects._start_variance([at(10, 1.0), at(12, 2.2)], steady) == pytest.approx(0.2**2 / 2)
    assert effects._start_variance([], none) == effects._start_variance([at(1, 5.0)], none) == 0.0
    grouped = [
        at(1, 0.0), at(2, 0.3), at(3, 0.6),
        at(1, 9.0, place=there), at(2, 9.2, place=there),
        at(3, 4.0, phase="naive"),
    ]  # fmt: skip
    assert effects._start_variance(grouped, none) == pytest.approx((0.18 + 0.02) / 3)
    assert effects._start_variance([at(1, -1.0, 1.0), at(2, 1.0, 3.0)], none) == pytest.approx(2.0 - 1 / 2)


def test_neighbours_count_with_the_square_of_their_shift_beyond_that_of_blocks() -> None:
    there = WorkerSlot(1, "cpu:1")
    quiet: LevelTable = {(phase, slot): {1: 0.0, 2: 0.0} for phase in ("baseline", "again") for slot in (HERE, there)}
    table: LevelTable = {**quiet, ("naive", HERE): {1: 0.3, 2: 0.5}}
    assert effects._neighbour_variance(table, "naive") == pytest.approx(0.16 - 0.02 / 2)
    table[("naive", there)] = {1: 0.1}
    assert effects._neighbour_variance(table, "naive") == pytest.approx((0.15 + 0.01) / 2)
    table[("naive", WorkerSlot(2, "cpu:9"))] = {1: 3.0}  # nobody timed it alone
    assert effects._neighbour_variance(table, "naive") == pytest.approx((0.15 + 0.01) / 2)
    assert effects._neighbour_variance({**quiet, ("naive", HERE): {1: 0.1, 2: -0.1}}, "naive") == 0.0
    assert effects._neighbour_variance(table, "isolated") == 0.0
    second, third = WorkerSlot(0, "cpu:0", 1), WorkerSlot(0, "cpu:0", 2)
    crowd: LevelTable = {**quiet, ("naive", second): {1: 0.2, 2: 0.2}}
    assert effects._neighbour_variance(crowd, "naive") == pytest.approx(0.04)
    more: LevelTable = {**crowd, ("naive", third): {1: 0.5}, ("naive", there): {1: 0.1}}
    assert effects._neighbour_variance(more, "naive") == pytest.approx((0.04 + 0.25 + 0.01) / 3)


def test_the_noise_of_a_timing_is_parted_for_every_condition_that_was_measured() -> None:
    cells = (
        at(1, 0.0, 0.2), at(2, 0.2, 0.4, phase="again"),
        at(3, 0.6, 0.8, phase="naive"), at(4, 7.0, 9.0, phase="naive", place=WorkerSlot(1, "cpu:1")),
    )  # fmt: skip
    laid = ContentionLayout(cells=cells, choices=(), phase_trials=(), missing=(), quantity="call_us")
    alone, naive = effects.noise_budgets(laid)
    assert (alone.condition, naive.condition) == ("alone", "naive")
    # Alone it takes 0.2; samples of both processes are 0, 0.2, 0.2 and 0.4, or 0.6 and 0.8.
    assert alone.total == pytest.approx((0.04 + 0.04) / 4)
    assert alone.parts == pytest.approx({"within": 0.01, "starts": 0.0, "drift": 0.0, "neighbours": 0.0, "rest": 0.01})
    assert naive.total == pytest.approx((0.16 + 0.36) / 2)
    assert naive.parts == pytest.approx({"within": 0.01, "starts": 0.0, "drift": 0.0, "neighbours": 0.25, "rest": 0.0})
    assert (alone.largest, naive.largest) == ("within", "neighbours")
    assert naive.spread("neighbours") == pytest.approx(math.exp(0.5) - 1)


def test_the_devices_that_lie_furthest_apart_on_average_are_compared() -> None:
    wanted: Any = Made(devices=("cpu:0", "cpu:1", "cpu:2", "cpu:3"), workers=2, minimum_effect=0.01)
    table: LevelTable = {
        ("naive", WorkerSlot(0, "cpu:0")): {1: 0.5, 2: 0.0},
        ("naive", WorkerSlot(0, "cpu:0", 1)): {1: -0.5, 2: 0.0},
        ("naive", WorkerSlot(0, "cpu:1")): {1: 0.5, 2: 0.5},
        ("naive", WorkerSlot(0, "cpu:1", 2)): {1: 90.0, 2: 90.0},
        ("naive", WorkerSlot(0, "cpu:2", 1)): {1: -0.2, 3: 1.0},
        ("naive", WorkerSlot(0, "cpu:3", 1)): {9: 70.0},
        ("naive", WorkerSlot(1, "cpu:2", 1)): {1: 80.0},
    }
    found = effects._device_agreement(table, wanted, 0, "naive")
    assert found is not None
    assert (found.slowest, found.fastest, found.subject, found.phase) == ("cpu:1", "cpu:2", 0, "naive")
    assert found.effect.ratio is not None
    assert found.effect.ratio.value == pytest.approx(math.exp(0.7))
    assert found.effect.ratio.blocks == 1
    assert effects._device_agreement(table, wanted, 0, "isolated") is None
    assert effects._device_agreement(table, wanted, 1, "naive") is None
    alike: LevelTable = {("naive", WorkerSlot(0, f"cpu:{n}")): {1: 0.5, 2: 0.25} for n in range(2)}
    same = effects._device_agreement(alike, wanted, 0, "naive")
    assert same is not None
    assert (same.slowest, same.fastest) == ("cpu:0", "cpu:1")


def test_levels_and_gaps_of_devices_are_means_over_workers_and_blocks() -> None:
    quiet: LevelTable = {("baseline", HERE): {1: 0.25}, ("again", HERE): {1: 0.75}, ("naive", HERE): {1: 9.0}}
    assert effects._device_levels(quiet, "baseline", HERE, 3) == {1: 0.5}
    crowd: LevelTable = {("naive", WorkerSlot(0, "cpu:0", worker)): {1: 0.75 * (worker > 1)} for worker in range(3)}
    assert effects._device_levels(crowd, "naive", HERE, 3) == {1: 0.25}
    wanted: Any = Made(devices=("cpu:0", "cpu:1", "cpu:2"), workers=1, minimum_effect=0.01)
    table: LevelTable = {
        ("naive", HERE): {1: -0.1, 2: -0.1, 3: 1.0},
        ("naive", WorkerSlot(0, "cpu:1")): {1: 0.0, 2: 0.0, 3: 0.0},
        ("naive", WorkerSlot(0, "cpu:2")): {1: 0.15, 2: 0.15, 3: 0.15},
    }
    found = effects._device_agreement(table, wanted, 0, "naive")
    assert found is not None
    assert (found.slowest, found.fastest) == ("cpu:0", "cpu:1")
    assert found.effect.ratio is not None
    assert found.effect.ratio.value == pytest.approx(math.exp(0.8 / 3))


def test_noise_is_the_distance_from_the_mean_of_all_that_was_timed_alone() -> None:
    logs = ((-0.6, 0.0, 0.6), (0.0, 0.0, 0.0), (0.3, 0.3, 0.3))
    cells = tuple(at(1, *told, block=block) for block, told in enumerate(logs))
    laid = ContentionLayout(cells=cells, choices=(), phase_trials=(), missing=(), quantity="call_us")
    (alone,) = effects.noise_budgets(laid)
    # Alone it takes 0.1. Means of 0, 0 and 0.3 scatter by 0.03, of which sampling explains a third of 0.24 / 3.
    assert alone.total == pytest.approx((0.25 + 0.01 + 0.04) / 3)
    starts = 0.03 - 0.08 / 3
    parts = {"within": 0.08, "starts": starts, "drift": 0.0, "neighbours": 0.0, "rest": 0.02 - starts}
    assert alone.parts == pytest.approx(parts)


def test_times_over_those_alone_are_held_against_every_sensor_the_closest_first() -> None:
    there, loose = WorkerSlot(1, "cpu:1"), WorkerSlot(7, "cpu:7")

    def timed(
        trial: str, log: float, slot: WorkerSlot, phase: Phase = "naive", quantity: str = "call_us"
    ) -> LayoutCell:
        return LayoutCell(slot, 1, phase, quantity, np.exp([log]), 0.0, trial)

    none = dict.fromkeys(effects.HOST_METRICS)
    rows = zip(
        (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), (3.0, 1.0, 5.0, 2.0, 6.0, 4.0), (2.0, 1.0, 3.0, 5.0, 4.0, 6.0), strict=True
    )
    seen = [
        Made(**{**none, "cpu_percent": busy, "context_switches_per_s": taken, "pressure_cpu_percent": waited}, gpus=())
        for busy, taken, waited in rows
    ]
    window = Made(start_ns=0, end_ns=0)
    records: Any = tuple(
        Made(record=Made(trial=f"t{n}", during=during, window=window, evidence=())) for n, during in enumerate(seen)
    )
    cells = [timed("b", 0.0, HERE, "baseline"), timed("b", 1.0, there, "baseline"), timed("t0", 9.0, loose)]
    cells += [timed(f"t{n}", 0.1 * (n + 1) + n % 2, there if n % 2 else HERE) for n in range(6)]
    cells += [timed("t0", 5.0, HERE, "naive", "busy_us")]
    found = effects.sensor_correlations(ContentionLayout(tuple(cells), (), records, (), "call_us"))
    words = ["CPUs busy", "time that threads waited for a CPU", "context switches"]
    assert [each.metric for each in found] == words
    # Squares of how far ranks are apart are 0, 4 and 18 together, of 35 where nothing goes with anything.
    assert [each.correlation.rho for each in found] == pytest.approx([1.0, 1 - 4 / 35, 1 - 18 / 35])


def test_of_several_gpus_the_busiest_counts_and_of_clocks_the_lowest_too() -> None:
    def gpu(**seen: float) -> Any:
        return Made(**{**dict.fromkeys(effects.GPU_METRICS), **seen})

    def metrics(*switches: int | None, end_ns: int = 3 * 10**9, during: Any = None) -> dict[str, float]:
        window = Made(start_ns=10**9, end_ns=end_ns)
        record: Any = Made(during=during, window=window, evidence=[Made(involuntary_switches=n) for n in switches])
        return effects._trial_metrics(record)

    hot, cool = gpu(power_w=300.0, sm_mhz_low=900.0, temperature_c=80.0), gpu(power_w=200.0, sm_mhz_low=800.0)
    seen = Made(**{**dict.fromkeys(effects.HOST_METRICS), "cpu_percent": 0.0, "gpus": (cool, hot, cool)})
    assert metrics(during=seen) == {
        "CPUs busy": 0.0, "GPU power": 300.0, "lowest GPU clock": 800.0, "GPU temperature": 80.0,
    }  # fmt: skip
    assert metrics(3, None, 5) == {effects.CONTEXT_SWITCHES: 4.0}
    assert metrics(3, end_ns=2 * 10**9) == {effects.CONTEXT_SWITCHES: 3.0}
    assert metrics(0, end_ns=3 * 10**9) == {effects.CONTEXT_SWITCHES: 0.0}
    assert metrics(None) == metrics() == metrics(3, end_ns=10**9) == {}


def test_a_time_is_faster_than_foreseen_only_where_all_of_its_interval_is() -> None:
    foreseen = about(1.5, 1.0, 2.0, "s")
    told = {(0.5e6, 1.5e6): "within", (0.5e6, 0.9e6): "faster", (1.5e6, 2.5e6): "within", (2.1e6, 2.5e6): "slower"}
    assert {ends: judge_prediction(foreseen, about(1e6, *ends)) for ends in told} == told


def test_the_upper_end_of_a_prediction_is_that_of_a_slow_link() -> None:
    """A message takes 0.5 s, its 1,000 bytes another; half as much again over a slow link."""
    link = LinkModel(name="slow", alpha_s=0.5, beta_bytes_per_s=1000.0, uncertainty=0.5)
    found = predict_time(about(1.0, 0.5, 2.0, "s"), RankTraffic(1, 1000), link).time_s
    assert (found.low, found.value, found.high) == (0.75, 2.0, 4.25)


def test_the_lowest_step_is_told_only_where_another_is_surely_worse() -> None:
    alike = fit_crossed(np.array([[0.0, 0.2, 0.1], [0.1, 0.0, 0.2]]))
    found = find_optimum(alike, [200.0, 300.0], smooth=False)
    assert found is not None
    assert (found.may_be, found.is_clear, found.chance) == ((0, 1), False, True)
    apart = find_optimum(fit_crossed(np.array([[0.0, 0.01, 0.0], [1.0, 1.0, 1.01]])), [200.0, 300.0], smooth=False)
    assert apart is not None
    assert (apart.may_be, apart.is_clear) == ((0,), True)


@pytest.mark.parametrize(("longest", "said"), [(1.05, "unclear"), (1.0, "does_not_bind"), (None, "does_not_bind")])
def test_a_cap_does_not_bind_only_where_calls_surely_take_no_longer(longest: float | None, said: str) -> None:
    step: Any = Made(
        setting=300.0, mean=lambda _: 200.0, power_capped=None, slowdown=about(1.0, 0.99, 1.01),
        longer_at_most=longest,
    )  # fmt: skip
    wanted: Any = Made(knob="power_limit_w", minimum_effect=0.01)
    assert judge_binding(wanted, step, step) == said


def test_a_budget_binds_by_what_its_overhead_leaves() -> None:
    nothing: Any = None

    def plan(watts: float) -> BudgetPlan:
        return BudgetPlan(watts, 100.0, (), 0.0, 950.0, nothing, None, None)

    assert [plan(watts).binds for watts in (1000.0, 1050.0, 1100.0)] == [True, False, False]


def test_a_step_that_draws_more_than_its_cap_costs_what_it_draws() -> None:
    rows = sweep_rows(0, repeats=1)
    hungry = [row.model_copy(update={"power_w": 230.0}) if row.setting == 200.0 else row for row in rows]
    lowest_w = [min(watts for watts, _ in fit_curves(told, ())[0][0].points) for told in (rows, hungry)]
    assert lowest_w == [200.0, 230.0]


@pytest.mark.parametrize(("high", "answer"), [(0.03, "unknown"), (0.02, "unknown"), (0.019, "any")])
def test_any_gpu_will_do_only_where_none_surely_gains_enough(
    high: float, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guesses = Made(best=lambda: ((0,), 0.75), gain=lambda _: TimeGain(0.01, -0.01, high))
    monkeypatch.setattr(analysis, "_ShrunkTimes", lambda *_: guesses)
    fleet: Any = Made(hosts=("h", "i"))
    told = GpuNumbers(TIME_MEASURE, np.zeros(2), np.ones(2), np.ones(2), "runs")
    assert analysis.recommend_gpu(fleet, told, (), (), 0.02).answer == answer


def test_the_slowest_and_the_fastest_are_apart_by_the_studentised_range() -> None:
    """Of two numbers with ten degrees of freedom it is 3.151 at 95 %; their common error is 0.1."""
    told = GpuNumbers(TIME_MEASURE, np.array([0.0, 1.0]), np.array([0.1, 0.1]), np.array([10.0, 10.0]), "runs")
    found = time_spread(told)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((0.6849, 1.3151), abs=0.02)


def test_an_interval_holds_for_all_gpus_that_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of ten is told of, at 99.5 %: Student's t of five degrees of freedom is 4.7733."""
    monkeypatch.setattr(analysis, "outlier_p_values", lambda distances, *_, **__: distances)
    monkeypatch.setattr(analysis, "false_discovery_rates", lambda distances: np.where(distances > 0.5, 0.01, 0.9))
    values = np.array([1.0, *[0.0] * 9])
    told = GpuNumbers(TIME_MEASURE, values, np.full(10, 0.03), np.full(10, 5.0), "runs")
    centres: Any = Made(
        reference=np.zeros(10), reference_error=np.full(10, 0.04), fleet=0.0, fleet_error=0.0, fitted=1,
        against=("its peers",) * 10, scale=0.1,
    )  # fmt: skip
    (found,) = analysis.find_outliers(told, centres, 0.01)
    # Errors of 0.03 and 0.04 are one of 0.05 together.
    assert (found.peers.low, found.peers.high) == pytest.approx((0.76134, 1.23866), abs=1e-4)


def test_a_size_rests_on_the_fewest_processes_of_its_points_unless_one_fails() -> None:
    def processes(*points: tuple[str, int]) -> int:
        judged: Any = [Made(decisive=Made(state=state), processes=count) for state, count in points]
        return threshold._count_processes(judged)

    assert processes(("clears", 5), ("open", 2), ("clears", 7)) == 2
    assert processes(("clears", 2), ("fails", 5), ("fails", 7)) == 7


def test_every_question_of_a_gate_has_its_part_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def judge(*told: Any) -> LimitDecision:
        asked.append(told[1:])
        return LimitDecision("unsure", None)

    records = revisions.World({"call_us": 1.0, "peak_mib": 1.0}).measured(revisions.options())
    monkeypatch.setattr(gate, "decide_limit", judge)
    gate.build_answers(revisions.options(minimum_effect=0.03, lower_is_better=("peak_mib",)), records)
    gate.build_answers(revisions.options(minimum_effect=0.03), records)
    assert asked == [(0.03, 2), (0.03, 2), (0.03, 1)]


def test_answers_of_another_length_are_told_of_beyond_one_in_twenty() -> None:
    def told(short: float) -> str | None:
        counts = {"requests": 20.0, "short_requests": short, "long_requests": 0.0, "answer_tokens": 100.0}
        window = Made(count=lambda *names: sum(counts[name] for name in names))
        seen: Any = Made(whole=(window,), cell=Made(output_tokens=8))
        return describe_length_mismatch(seen)

    assert told(1.0) is None
    assert told(2.0) == "answers had 5.0 tokens on average, not 8"


def test_a_number_without_one_of_the_two_ends_must_be_twice_as_far() -> None:
    bare, whole = PointValue(3.0), PointValue(3.0, 2.5, 3.5)
    assert not PointValue(1.0, 0.5, 1.75).surely_below(bare)
    assert PointValue(1.0, 0.5, 1.25).surely_below(bare)
    assert not PointValue(1.25).surely_below(whole)
    assert PointValue(1.0).surely_below(whole)
    assert PointValue(1.0, 0.5, 2.0).surely_below(whole)


def test_the_first_token_of_a_request_is_made_when_its_prompt_is_read() -> None:
    """Reading takes 10 J of 100 tokens; ten of twelve tokens are decoded at 2 J each, of 60 J in all."""

    def window(joules: float, **counts: float) -> Any:
        stage = Made(energy=about(joules, unit="J"), calls=3)
        return Made(stage=stage, process=("t", 1, 0), count=counts.__getitem__, spread=lambda _: 0.0)

    whole = window(60.0, requests=2.0, output_tokens=12.0, input_tokens=100.0)
    phases = {"prefill": (window(10.0, input_tokens=100.0),), "decode": (window(20.0, output_tokens=10.0),)}
    seen: Any = Made(windows_of=lambda _: (whole,), is_server=False, windows=phases)
    found = estimates._phases_share(seen).readings
    assert [reading.value for reading in found] == pytest.approx([0.5])


def test_one_number_of_a_single_process_leaves_a_ratio_in_doubt() -> None:
    ratio: Any = Made(error=0.1)

    def number(processes: int, *draws: float) -> Any:
        return Made(model="M", processes=processes, draws=draws)

    assert pairing._find_doubt(ratio, [number(5)], [number(5), number(1)]) == "one process"
    assert pairing._find_doubt(ratio, [number(1)], [number(5)]) == "one process"
    assert pairing._find_doubt(ratio, [number(5)], [number(1, 2.0)]) is None


@pytest.mark.parametrize(("left", "said"), [(0.4, None), (0.2, "reverted"), (0.3, None)])
def test_a_step_is_taken_back_only_where_surely_less_than_half_is_left(left: float, said: str | None) -> None:
    """The error of what is left is 0.2: an interval of 0.784 is 3.92 of it wide."""
    step: Any = Made(significant=True, low=0.6, high=1.384, left=left, direction=1, size=1.0)
    assert regressions._unjudged_status(step, (), 0.01) == said


def test_a_victim_without_isolation_is_held_against_itself_without_isolation() -> None:
    row: Any = ("victim",)
    blocks = ("a", "b")
    times = {
        ("alone", None): 1.0,
        ("again", None): 1.0,
        ("bare", None): 2.0,
        ("naive", "n"): 6.0,
        ("isolated", "n"): 1.5,
    }
    found = {
        MatrixReading(row, phase, aggressor, "median"): dict.fromkeys(blocks, value)
        for (phase, aggressor), value in times.items()
    }
    quiet = matrix.VictimBaseline(row, "median", None, None)
    one = matrix._matrix_cell(found, quiet, "n", 0.01)
    assert one.naive is not None
    assert one.isolated is not None
    assert one.reduction is not None
    assert (one.naive.value, one.isolated.value, one.reduction.value) == pytest.approx((3.0, 1.5, 2.0))


def test_the_work_of_a_call_is_that_of_all_ranks_of_one_start() -> None:
    def evidence(restart: int, rank: int, role: str = "r") -> Any:
        return Made(
            role=role, restart=restart, rank=rank, subjects=(SubjectFacts(subject=0, flop=2.0, bytes_moved=3.0),)
        )

    told = [evidence(1, 0), evidence(1, 1), evidence(2, 0), evidence(2, 1), evidence(1, 0, "other")]
    record: Any = Made(evidence=told)
    found = subject_facts([Made(evidence=()), record], "r")  # type: ignore[list-item]
    assert found is not None
    assert (found.flop, found.bytes_moved) == (4.0, 6.0)
