"""Series that wander, steps of series and races at their limits, with numbers found by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import special

from assay.stats import changepoint, selection, shape
from assay.stats import changepoint as stepping
from assay.stats.changepoint import DOWN, UP, LevelState, NoisePrior, ShiftSearch
from assay.stats.selection import NoiseStats, RoundFit
from tests.stats.pinned import noise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

FAST = np.array([1.0, -1.0, -1.0, 1.0])
NAN, INF = math.nan, math.inf


def with_powers(monkeypatch: pytest.MonkeyPatch, powers: Samples, *, first: int = 1) -> list[Samples]:
    """Let every series have these powers of its cosines; return the series that they are asked of."""
    asked: list[Samples] = []
    coefficients = np.concatenate([1e3 * np.ones(first), np.sqrt(powers), 1e3 * np.ones(9)])

    def cosine_transform(values: Samples) -> Samples:
        asked.append(values)
        return coefficients

    monkeypatch.setattr(shape, "cosine_transform", cosine_transform)
    return asked


@pytest.mark.parametrize("slowest", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])
def test_a_series_wanders_where_so_many_of_its_slowest_cosines_are_stronger_than_once_in_five_hundred(
    monkeypatch: pytest.MonkeyPatch, slowest: int
) -> None:
    n, count = (64, 12) if slowest <= 6 else (2025, 128)
    samples = np.arange(n) % 7 + 0.001 * np.arange(n)
    limit = float(special.fdtri(slowest, count - slowest, 0.998))
    for straight in (True, False):
        for share, wanders in ((1.001, True), (0.999, False)):
            powers = np.ones(count)
            powers[:slowest] = share * limit
            with_powers(monkeypatch, powers, first=1 if straight else 2)
            assert shape.wanders(samples, straight=straight) is wanders


def test_a_ratio_of_powers_at_the_limit_does_not_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "_alarming", lambda _slower, _faster: 4.0)
    with_powers(monkeypatch, np.array([4.0, *np.ones(11)]))
    assert not shape.wanders(np.arange(64.0) % 7)


def test_more_than_half_of_the_cosines_are_never_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    with_powers(monkeypatch, np.repeat([1e6, 1.0], [8, 4]))
    assert not shape.wanders(np.arange(64.0) % 7)


@pytest.mark.parametrize(("lengths", "wanders"), [((4, 5, 4, 5, 4, 6, 4), False), ((8, 5, 4, 5, 4, 6), True)])
def test_a_random_walk_of_n_samples_has_neighbours_that_differ_by_less_than_a_share_of_14_in_n(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...], wanders: bool
) -> None:
    monkeypatch.setattr(shape, "normal_scores", lambda samples: samples)
    with_powers(monkeypatch, np.ones(12))
    blocks = [np.full(length, (-1.0) ** place) for place, length in enumerate(lengths)]
    samples = np.concatenate([part for block in blocks for part in (block, np.zeros(4))])
    samples = np.concatenate([samples, np.zeros(64 - len(samples))])  # of 32 that are not 0, 25 or 26 have a like one
    assert (samples.sum(), np.abs(samples).sum()) == (0.0, 32.0)
    assert shape.wanders(samples) is wanders


def test_a_drift_that_does_not_count_is_taken_out_and_the_middle_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "normal_scores", lambda samples: samples)
    asked = with_powers(monkeypatch, np.ones(12))
    even = np.tile(FAST, 16)
    line = np.arange(64.0)
    shape.wanders(line + even, straight=False)
    shape.wanders(line + even)
    assert asked[0] == pytest.approx(even)
    assert asked[1] == pytest.approx(line - 31.5 + even)


def test_no_series_wanders_that_is_shorter_than_64_or_stands_still() -> None:
    assert not shape.wanders(np.arange(63.0))
    assert shape.wanders(np.arange(64.0))
    assert not shape.wanders(np.ones(64))


def test_samples_have_the_normal_scores_of_their_ranks_and_equal_ones_share_one() -> None:
    assert shape.normal_scores(np.array([3.0, 1.0, 2.0])) == pytest.approx(special.ndtri([5 / 6, 1 / 6, 0.5]))
    tied = shape.normal_scores(np.array([7.0, 5.0, 9.0, 5.0]))
    assert tied == pytest.approx(special.ndtri([0.625, 0.25, 0.875, 0.25]))


def test_twice_as_many_cosines_are_read_as_tell_the_variance() -> None:
    assert [shape.wander_cosine_count(n) for n in (8, 28, 40, 64, 2025, 4096)] == [6, 7, 9, 12, 128, 204]


def test_a_window_has_8_to_64_parts_of_sixteen_samples_and_one_at_its_end() -> None:
    def with_burst(n: int, begin: int, end: int) -> tuple[float, float]:
        samples = np.zeros(n)
        samples[begin:end] = 1.0
        return shape.range_of_medians(samples)

    assert shape.range_of_medians(np.array([4.0, 1.0, 3.0])) == (1.0, 4.0)
    assert shape.range_of_medians(np.repeat(np.arange(10.0), 16)) == (0.0, 9.0)
    assert with_burst(144, 16, 25) == (0.0, 1.0)
    assert with_burst(128, 16, 24) == (0.0, 0.5)
    assert with_burst(135, 126, 135) == (0.0, 1.0)
    assert with_burst(2000, 31, 47) == (0.0, 1.0)
    assert with_burst(2000, 31, 46) == (0.0, 0.0)
    assert with_burst(64, 8, 12) == (0.0, 0.5)
    assert with_burst(64, 8, 13) == (0.0, 1.0)


def test_the_means_of_a_windows_eighths_lie_so_far_apart() -> None:
    assert shape.range_of_means(np.arange(16.0)) == 14.0
    assert shape.range_of_means(np.array([4.0, 1.0, 3.0])) == 3.0
    assert shape.range_of_means(np.array([0.0, 0.0, 3.0] + [0.0] * 21)) == 1.0


def worth(*beyond: float, vague: Sequence[int] = ()) -> bool:
    """Return whether a step may have begun with the first of these runs, of which some are not known well."""
    there = np.array([[*beyond, *(20 - len(beyond)) * [NAN]]])
    unknown = np.isin(np.arange(20), vague)[None, :]
    (found,) = stepping._worth_following(there, unknown).tolist()
    return bool(found)


def test_a_step_is_followed_where_four_runs_or_more_are_beyond_two_and_a_half_errors() -> None:
    assert not worth(1.25, 1.25, 1.25, 1.25)
    assert worth(1.26, 1.26, 1.26, 1.26)
    assert not worth(3.0, 3.0, 3.0)
    assert worth(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)  # 7 / √7
    assert not worth(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    assert not worth(NAN, 9.0, 9.0, 9.0, 9.0)


def test_each_run_counts_for_no_less_than_minus_two_and_no_more_than_four() -> None:
    assert not worth(100.0, 0.0, 0.0, 0.0)
    assert worth(100.0, 1.1, 0.0, 0.0)
    assert worth(4.0, 3.4, -3.0, 0.0)
    assert not worth(4.0, 3.4, -2.0, -0.5)


def test_a_run_far_on_the_wrong_side_is_a_spike_and_one_that_is_not_known_well_speaks_for_a_step() -> None:
    assert worth(2.0, 2.0, -4.1, 2.0)
    assert not worth(2.0, 2.0, -4.0, 2.0)
    assert worth(-5.0, -5.0, -5.0, 3.0)
    assert worth(0.0, 0.0, 0.0, 0.0, vague=[1, 2])
    assert not worth(0.0, 0.0, 0.0, 0.0, vague=[1])
    assert not worth(0.0, 0.0, 0.0, vague=[0, 1, 2, 3, 4, 5])


def begun(*rows: int) -> stepping._ShiftCandidates:
    places = np.arange(len(rows))
    return stepping._ShiftCandidates(np.array(rows), places, LevelState(*6 * (places.astype(np.float64),)))


def test_three_thousand_steps_are_followed_together_and_never_parts_of_one_series() -> None:
    def sizes(*rows: int) -> list[list[int]]:
        return [[int(row) for row in np.unique(part.row)] for part in stepping._split_candidates(begun(*rows))]

    assert sizes(*3000 * [1], 2, 3) == [[1], [2, 3]]
    assert sizes(*2999 * [1], 2, 3) == [[1, 2], [3]]
    assert sizes(*2998 * [1], 2, 3) == [[1, 2, 3]]
    assert sizes(*3000 * [0], *3000 * [4], *3001 * [2], 7) == [[0], [2], [4], [7]]
    assert sizes() == []
    (part,) = stepping._split_candidates(begun(3, 1, 3, 0))
    assert (part.row.tolist(), part.first.tolist()) == ([0, 1, 3, 3], [3, 1, 0, 2])
    assert part.state.plain.tolist() == [3.0, 1.0, 0.0, 2.0]


def test_series_too_short_for_a_step_have_no_evidence() -> None:
    for runs in (20, 30, 33):
        found = ShiftSearch(np.zeros((2, runs)), directions=(UP, DOWN)).evidence
        assert sorted(found) == [DOWN, UP]
        for each in found.values():
            assert each.log_odds.tolist() == 2 * [runs * [-INF]]
            assert each.first.tolist() == 2 * [runs * [-1]]
            assert each.size.tolist() == each.error.tolist() == 2 * [runs * [0.0]]


@cache
def looked() -> ShiftSearch:
    """Look at three series of one kind on two hosts, with a step up, down and none, and one of another on one host."""
    runs = np.arange(60)
    logs = 0.02 * noise(240, 70).reshape(4, 60)
    logs[0] += 0.1 * (runs >= 30)
    logs[1] -= 0.08 * (runs >= 40)
    logs[2] += 0.56 * (runs >= 35) + 0.3 * (runs % 17 == 5)
    logs[3, 46:] = NAN
    hosts = np.stack([runs // 7 % 2, runs // 7 % 2, 0 * runs, runs // 7 % 2]).astype(np.int64)
    return ShiftSearch(logs + 0.05 * hosts, hosts, np.array([4, 4, 1, 4]), directions=(UP, DOWN))


@pytest.mark.parametrize(
    ("way", "row", "where", "best", "sums"),
    [
        (UP, 0, (27, 49, 30, 842), (31.965735332458, 0.10687642053580, 0.0064685540793907),
         (578.75591914671, 2.7896438876853, 0.25668103802177)),
        (UP, 1, (18, 39, 34, 569), (0.69753421058513, 0.033608528165117, 0.0095366395141596),
         (-59.704515286289, 0.45644713478125, 0.27112876415116)),
        (UP, 2, (27, 54, 35, 911), (101.69404990538, 0.56388500940071, 0.0071616058374029),
         (1471.2471762342, 12.521214613485, 0.27988271657842)),
        (DOWN, 0, (21, 51, 48, 846), (-3.0128591566949, -0.039932894103967, 0.014950600973813),
         (-84.660467928351, -0.70459852609769, 0.34394862479993)),
        (DOWN, 1, (27, 59, 40, 970), (22.626170972131, -0.081440900050479, 0.0070635191127493),
         (297.5907238074, -1.610996747376, 0.28998454083719)),
    ],
)  # fmt: skip
def test_steps_of_made_up_series_have_the_evidence_size_and_error_that_they_had(
    way: stepping.Direction,
    row: int,
    where: tuple[int, ...],
    best: tuple[float, ...],
    sums: tuple[float, ...],
) -> None:
    found = looked().evidence[way]
    odds, told = found.log_odds[row], np.isfinite(found.log_odds[row])
    at = int(odds.argmax())
    assert (told.sum(), at, found.first[row, at], found.first[row].sum()) == where
    assert (odds[at], found.size[row, at], found.error[row, at]) == pytest.approx(best, rel=1e-9)
    assert (odds[told].sum(), found.size[row].sum(), found.error[row].sum()) == pytest.approx(sums, rel=1e-9)


def test_a_series_that_never_seems_to_step_has_no_evidence() -> None:
    found = looked().evidence
    assert np.isinf(found[UP].log_odds[3]).all()
    assert np.isinf(found[DOWN].log_odds[2:]).all()


def test_a_step_may_have_begun_three_to_nineteen_runs_before_the_last() -> None:
    firsts, likely = looked().beginnings(2, UP, 54)
    assert firsts.tolist() == list(range(35, 52))
    assert likely[:3] == pytest.approx([0.999385, 0.000614, 0.000001], abs=1e-6)
    firsts, likely = looked().beginnings(0, UP, 38)
    assert firsts.tolist() == [30, 31, 32, 33, 34, 35]
    assert likely[:3] == pytest.approx([0.997842, 0.002143, 0.000015], abs=1e-6)
    assert looked().beginnings(1, DOWN, 43)[1][-2:] == pytest.approx([0.002851, 0.997141], abs=1e-6)


def test_a_steps_size_and_error_are_over_all_sizes_as_likely_as_they_are() -> None:
    full = np.ones((1, 1, 2))
    known = LevelState(
        np.array([[[[0.1], [0.3]]]]), 0.5 * full[..., None, None], 4 * full, 0.08 * full, 1.5 * full, 38.5 * full
    )
    for offset in (1000.0, -1000.0):
        size, error = stepping._estimate_size(
            known, NoisePrior.nothing(1, 1, 2), offset + np.array([[[0.0, math.log(3)]]])
        )
        assert (size.tolist(), error.tolist()) == (pytest.approx([0.25]), pytest.approx([math.sqrt(0.0175)]))
    size, _ = stepping._estimate_size(known, NoisePrior.nothing(1, 1, 2), np.array([[[0.0, 1000.0]]]))
    assert size.tolist() == pytest.approx([0.3])


def test_the_chance_of_evidence_grows_with_the_runs_beyond_the_first_34() -> None:
    assert changepoint.false_alarm_probability(5.9, 100) == pytest.approx(0.0396)
    assert changepoint.false_alarm_probability(5.9 + math.log(2) / 0.8, 100) == pytest.approx(0.0199)
    assert changepoint.false_alarm_probability(5.9, 50) == pytest.approx(
        0.0101997462815
    )  # 17 looks of 67: 1 - 0.98 ^ (34 / 67)
    assert changepoint.false_alarm_probability(5.9, 34) == pytest.approx(0.00060288, rel=1e-4)
    assert changepoint.false_alarm_probability(5.9, 35) == pytest.approx(0.00120540, rel=1e-4)
    assert changepoint.false_alarm_probability(5.9, 10) == changepoint.false_alarm_probability(5.9, 34)
    assert changepoint.false_alarm_probability(-99.0, 34) == pytest.approx(0.5616805343471)
    assert changepoint.false_alarm_probability(-99.0, 1000) == 1.0


def test_series_of_different_lengths_are_filled_up() -> None:
    assert changepoint.pad_rows([], 0.0).shape == (0, 0)
    found = changepoint.pad_rows([np.array([1.0, 2.0]), np.zeros(0), np.array([3.0])], 7.0)
    assert found.tolist() == [[1.0, 2.0], [7.0, 7.0], [3.0, 7.0]]


def test_a_step_began_within_the_fewest_runs_that_hold_95_of_100() -> None:
    firsts = np.array([10, 11, 12, 13])
    assert changepoint._credible_runs(firsts, np.array([0.04, 0.5, 0.43, 0.03])) == (10, 12)
    assert changepoint._credible_runs(firsts, np.array([0.03, 0.0, 0.0, 0.97])) == (13, 13)
    assert changepoint._credible_runs(firsts, np.array([0.5, 0.0, 0.0, 0.5])) == (10, 13)
    assert changepoint._credible_runs(firsts, np.array([0.02, 0.5, 0.46, 0.02])) == (11, 12)


def ramp(at: int, runs: int) -> Samples:
    """Return a series that rises by a ten-thousandth from run to run, and by a half at one of them."""
    return 1e-4 * np.arange(runs) + 0.5 * (np.arange(runs) >= at)


def test_a_step_is_left_by_the_last_ten_runs_beside_the_thirty_before_it() -> None:
    ((early,), (late,)) = changepoint.find_level_shifts([ramp(30, 63), ramp(60, 93)])
    assert (early.first, early.first_low, early.first_high, early.detected_at, early.direction) == (30, 30, 30, 33, UP)
    assert early.left == pytest.approx(0.5 + 1e-4 * (57.5 - 14.5))
    assert (late.first, late.detected_at) == (60, 63)
    assert late.left == pytest.approx(0.5 + 1e-4 * (87.5 - 44.5))
    ((alone,),) = changepoint.find_level_shifts([ramp(60, 93)])
    assert alone.size == pytest.approx(0.50276635, rel=1e-6)
    assert (alone.low, alone.high) == pytest.approx((0.50152008, 0.50401262), rel=1e-6)
    assert alone.evidence == pytest.approx(182.705733, rel=1e-6)
    assert alone.significant


def asked_chances(monkeypatch: pytest.MonkeyPatch, answer: float = 0.01) -> list[tuple[float, int]]:
    """Let every chance be the same; return of how much evidence and how many runs it is asked."""
    asked: list[tuple[float, int]] = []

    def chance(evidence: float, runs: int) -> float:
        asked.append((evidence, runs))
        return answer

    monkeypatch.setattr(changepoint, "false_alarm_probability", chance)
    return asked


def test_what_follows_a_step_is_looked_at_where_it_has_34_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_chances(monkeypatch)
    changepoint.find_level_shifts([ramp(40, 73)])
    assert [runs for _, runs in asked] == [73]
    asked.clear()
    changepoint.find_level_shifts([ramp(40, 74)])
    assert [runs for _, runs in asked] == [74, 34]
    asked.clear()
    changepoint.find_level_shifts([ramp(99, 34), ramp(99, 33)])
    assert [runs for _, runs in asked] == [34]


def test_a_series_without_a_step_counts_by_its_most_evidence_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_chances(monkeypatch)
    up = 0.02 * noise(60, 70) + 0.02 * (np.arange(60) >= 40)
    for series in (up, -up):
        changepoint.find_level_shifts([series])
        ways = ShiftSearch(series[None], directions=(UP, DOWN)).evidence
        assert asked.pop()[0] == max(float(ways[UP].log_odds.max()), float(ways[DOWN].log_odds.max()))


def test_steps_there_and_back_are_placed_in_the_whole_series() -> None:
    runs = np.arange(90)
    there = 0.01 * noise(90, 82) + 0.1 * ((runs >= 35) & (runs < 69))
    first, second = changepoint.find_level_shifts([there])[0]
    assert (first.direction, first.first, first.detected_at) == (UP, 35, 38)
    assert (second.direction, second.first, second.first_low, second.first_high) == (DOWN, 69, 69, 69)
    assert second.detected_at in {71, 72}
    assert abs(first.left) < 0.01
    assert second.left == pytest.approx(-0.096, abs=0.001)


def test_looks_grow_by_fifteen_in_a_hundred_and_share_the_error() -> None:
    def look(rounds: int) -> tuple[int, float]:
        planned, share = selection._last_look(rounds)
        return planned, round(1 / share, 6)

    assert [look(rounds) for rounds in (1, 2, 3, 4, 5)] == [(2, 6.0), (2, 6.0), (3, 8.4), (4, 11.2), (5, 14.4)]
    assert [look(rounds) for rounds in (14, 15, 16, 17, 18)] == [
        (14, 61.2),
        (14, 61.2),
        (16, 68.4),
        (16, 68.4),
        (18, 76.0),
    ]


def test_a_race_begins_with_everybody_and_a_hundredths_tolerance() -> None:
    race = selection.Race.start(3)
    assert (race.n_candidates, race.tolerance, race.confidence, race.contenders) == (3, 0.01, 0.95, (0, 1, 2))
    assert (race.decided, race.failed, race.rows, race.effects.tolist(), race.noise) == (
        False, frozenset(), (), [], NoiseStats()
    )  # fmt: skip
    assert selection.Race.start(0).decided
    assert not selection.Race.start(1).decided
    after = selection.Race.start(1).after({0: 3.0})
    assert (after.decided, after.contenders, after.logs.tolist()) == (True, (0,), [[math.log(3.0)]])


class Look:
    """A look at contenders that have these centres, each of a variance of 1/32 unless it is given."""

    def __init__(self, centres: Sequence[float], rounds: int = 3, *, variance: Sequence[float] | None = None) -> None:
        self.centres, self.variance = np.array(centres), np.array(variance or len(centres) * [1 / 32])
        self.effects = np.array([0.125, -0.125, *np.zeros(rounds - 2)])
        levels = self.effects[:, None] + self.centres
        self.logs = levels.copy()
        self.by_spikes = 0.0
        self.errors = [1.0, 2.0]
        self.allowed: list[float] = []
        self.slow: list[tuple[int, int, float]] = []

    def _fit_race(self, race: selection.Race, columns: NDArray[np.int_]) -> RoundFit:
        count = len(columns)
        noise = tuple(NoiseStats(1.0 + place, 2.0, 3, 4) for place in range(count))
        return RoundFit(self.centres, self.variance, np.full(count, 9.0), self.effects, noise, 1.0)

    def _critical_t(self, allowed: Samples, freedom: Samples) -> Samples:
        self.allowed.append(float(allowed))
        return np.full(len(freedom), self.errors[len(self.allowed) - 1])

    def _binomial_beyond(self, k: int, n: int, p: float) -> float:
        self.slow.append((k, n, round(p, 6)))
        return self.by_spikes

    def race(self, monkeypatch: pytest.MonkeyPatch, tolerance: float = 0.01) -> selection.Race:
        self.allowed.clear()
        self.slow.clear()
        for name in ("_fit_race", "_critical_t", "_binomial_beyond"):
            monkeypatch.setattr(selection, name.replace("_binomial", "binomial"), getattr(self, name))
        race = replace(selection.Race.start(len(self.centres), tolerance), rows=tuple(self.logs))
        return selection._eliminate_slower(race)


def test_a_contender_leaves_beyond_as_many_errors_as_losing_the_best_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Look([0.0, 0.5, 0.1]).race(monkeypatch).contenders == (0, 1, 2)
    beyond = Look([0.0, 0.5 + 2**-10, 0.1])
    left = beyond.race(monkeypatch)
    assert left.contenders == (0, 2)
    assert left.noise == NoiseStats(2.0, 2.0, 3, 4)
    per_bound = 0.05 / 8.4 / 2  # the third round is the second look; two bounds
    assert beyond.allowed == pytest.approx([per_bound, 0.05 * per_bound])
    only = Look([0.0, 0.5 + 2**-10])
    only.by_spikes = 0.05 * (1 - 0.95) / 8.4 * (1 + 1e-9)
    assert only.race(monkeypatch).contenders == (0, 1)
    only.by_spikes = 0.05 * (1 - 0.95) / 8.4 * (1 - 1e-9)
    found = only.race(monkeypatch)
    assert (found.contenders, found.decided) == ((0,), True)


def test_rounds_are_slow_where_a_contender_is_beyond_half_of_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Look([0.0, 0.5, 0.25])
    look.logs[:, 1] = look.effects + np.array([0.25, 0.2501, 0.26])
    look.logs[:, 2] = look.effects + 0.5
    look.race(monkeypatch)
    assert look.slow == [(-1, 3, round(10 / 22, 6)), (1, 3, round(10 / 22, 6)), (2, 3, round(10 / 22, 6))]


def test_the_leader_has_the_lowest_centre_and_error_together(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Look([0.0, 0.125, 1.0], variance=[1 / 4, 1 / 64, 1 / 64])
    look.logs[:, 0] = look.effects
    assert look.race(monkeypatch).contenders == (0, 1)
    assert [count for count, *_ in look.slow] == [-1, -1, 2]


def test_a_race_is_decided_where_nobody_may_be_faster_by_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    def decided(errors: float, *, rounds: int = 3, by_spikes: float = 0.0, centres: Sequence[float] = (0, 0)) -> bool:
        look = Look(centres, rounds)
        look.errors, look.by_spikes = [errors, 100.0], by_spikes
        return look.race(monkeypatch).decided

    at_tolerance = 4 * math.log1p(0.01)  # errors of a quarter
    assert not decided(at_tolerance)
    assert decided(at_tolerance * (1 - 1e-9))
    assert not decided(at_tolerance * (1 - 1e-9), rounds=2)
    assert decided(2.0, by_spikes=1.0, centres=(0.0, 0.5))
    assert not decided(1.99, by_spikes=1.0, centres=(0.0, 0.5))
    assert decided(1.99, centres=(0.0, 0.5))
    assert not decided(at_tolerance, centres=(0, 0, 5))


def test_five_contenders_tell_for_good_what_a_round_added(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Look(5 * [0.0]).race(monkeypatch).effects.tolist() == [0.125, -0.125, 0.0]
    assert Look(4 * [0.0]).race(monkeypatch).effects.tolist() == []


def test_the_best_may_be_lost_or_hidden_by_spikes_in_half_of_its_rounds() -> None:
    def not_lost(rounds: int, placed: int = 2) -> float:
        nothing = np.zeros(2)
        field = selection._ContenderEstimates(nothing, nothing, nothing, NoiseStats(), rounds)  # one spike in ten
        return selection._probability_not_lost(selection.Race.start(2), field, placed)

    assert not_lost(3, placed=1) == 1.0
    kept = 1 - 0.05 * 0.05
    assert not_lost(1) == pytest.approx(0.9 * kept)
    assert not_lost(2) == pytest.approx(0.99 * kept)  # both
    assert not_lost(3) == pytest.approx(0.972 * kept)  # two or three: 0.028
    assert not_lost(4) == pytest.approx(0.9963 * kept)  # three or four: 0.0037


@cache
def raced(rounds: int) -> selection.Race:
    """Return a race of six after some rounds, of which one fails in the ninth."""
    race = selection.Race.start(6)
    for number in range(1, rounds + 1):
        drawn = [0.0, 0.012, 0.03, 0.05, 0.09, 0.5] + 0.015 * noise(6, 200 + number)
        drawn += 0.3 * (noise(6, 300 + number) > 2)
        race = race.after({c: 50 * math.exp(drawn[c]) for c in race.contenders if (c, number) != (3, 9)})
    return race


@pytest.mark.parametrize(
    ("rounds", "contenders", "sure", "places"),
    [
        (2, (0, 1, 2, 3, 4, 5), (0.6226471255165289, 0.011257902594370445),
         [(1, 0.012993279376375, -0.095422179059302, 0.1344025470297, 2), (2, 0.020159198574981, -0.089563240859195,
          0.14310497680179, 2), (3, 0.031018577349119, -0.077235617040847, 0.15197262320652, 2)]),
        (3, (0, 1, 2, 3, 4), (0.7714170021524235, 0.004968770002347444),
         [(1, 0.012544133925563, -0.061453865708689, 0.09237637414726, 3), (2, 0.02544388431368, -0.048833025115542,
          0.10552109949366, 3)]),
        (6, (0, 1, 2, 3), (0.9772308765135829, 0.0003848093822465823),
         [(1, 0.022922624440112, -0.026444071119409, 0.074792587206138, 6), (2, 0.031212897011619, -0.018615566645476,
          0.083571333333899, 6), (3, 0.043974677554916, -0.0072898014322883, 0.097886501970445, 6),
          (4, 0.088107617743111, 0.016680669534647, 0.16455266955407, 5), (5, 0.66306912937076, 0.53284486001563,
          0.80435672337892, 3)]),
        (14, (0, 1, 2), (0.9955049999837252, 6.949249557856688e-05),
         [(1, 0.018005101062281, -0.013444685325381, 0.0504574557288, 14), (2, 0.031218744891976, -8.1851397043729e-05,
          0.063499148707659, 14), (4, 0.086007918932263, 0.023507403408161, 0.15232503063121, 5),
          (5, 0.65985993919843, 0.54264151339464, 0.78598526866624, 3)]),
    ],
)  # fmt: skip
def test_a_made_up_race_stands_as_it_stood(
    rounds: int,
    contenders: tuple[int, ...],
    sure: tuple[float, float],
    places: list[tuple[int, float, float, float, int]],
) -> None:
    race = raced(rounds)
    standing = race.standing()
    assert (race.contenders, race.decided, standing.winner) == (contenders, False, 0)
    assert (standing.probability, standing.expected_regret) == pytest.approx(sure, rel=1e-9)
    assert standing.ranking[0] == selection.CandidateRank(0, 0.0, 0.0, 0.0, rounds)
    for place, expected in zip(standing.ranking[1:], places, strict=False):
        assert (place.candidate, place.behind, place.low, place.high, place.rounds) == pytest.approx(expected, rel=1e-9)
    assert race.failed == (frozenset({3}) if rounds > 9 else frozenset())
    if rounds > 9:
        assert standing.ranking[-1] == selection.CandidateRank(3, None, None, None, 8)


@pytest.mark.parametrize(("answer", "stands"), [(0.05, True), (0.051, False)])
def test_a_step_stands_up_to_one_false_one_in_twenty(
    monkeypatch: pytest.MonkeyPatch, answer: float, stands: bool
) -> None:
    asked_chances(monkeypatch, answer)
    assert [step.significant for step in changepoint.find_level_shifts([ramp(40, 60)])[0]] == [stands]


def test_series_on_as_many_hosts_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], list[int]]] = []

    class Recorded(ShiftSearch):
        def __init__(
            self, logs: Samples, hosts: NDArray[np.int64], kinds: NDArray[np.int64], *, directions: object
        ) -> None:
            asked.append((hosts.sum(axis=1).tolist(), kinds.tolist()))
            super().__init__(logs, hosts, kinds, directions=(UP, DOWN))

    monkeypatch.setattr(changepoint, "ShiftSearch", Recorded)
    one, two = np.zeros(34, dtype=np.int64), (np.arange(36) >= 30).astype(np.int64)
    changepoint.find_level_shifts(
        [np.zeros(34), np.zeros(36), np.zeros(35)], [one, two, np.zeros(35, dtype=np.int64)], [5, 6, 7]
    )
    assert asked == [([0, 0], [5, 7]), ([6], [6])]


class Told(ShiftSearch):
    """A series of twenty runs with evidence for a step up at some of them."""

    def __init__(self, odds: dict[int, float], first: int) -> None:
        found = stepping._empty_evidence((1, 20))
        for run, value in odds.items():
            found.log_odds[0, run] = value
        found.first[:] = first
        self.evidence = {UP: found, DOWN: stepping._empty_evidence((1, 20))}

    def beginnings(self, row: int, way: stepping.Direction, run: int) -> tuple[NDArray[np.int64], Samples]:
        """Return that it began with one of two runs, as likely."""
        return np.array([10, 11]), np.array([0.5, 0.5])


def test_a_step_is_told_by_more_than_the_alarm_and_from_the_first_run_on() -> None:
    assert changepoint._first_shift(Told({14: 5.9}, 12), 0, np.zeros(20)) is None
    assert changepoint._first_shift(Told({}, 12), 0, np.zeros(20)) is None
    step = changepoint._first_shift(Told({0: 6.0}, 12), 0, np.zeros(20))
    assert step is not None
    assert (step.detected_at, step.evidence) == (0, 6.0)
    step = changepoint._first_shift(Told({4: 5.91, 6: 8.0, 9: 7.0}, 12), 0, np.zeros(20))
    assert step is not None
    assert (step.detected_at, step.evidence) == (4, 8.0)


@pytest.mark.parametrize(("first", "low", "high"), [(12, 10, 12), (8, 8, 11), (10, 10, 11)])
def test_the_first_run_of_a_step_lies_within_those_it_may_have_begun_with(first: int, low: int, high: int) -> None:
    step = changepoint._first_shift(Told({14: 6.0}, first), 0, np.zeros(20))
    assert step is not None
    assert (step.first, step.first_low, step.first_high) == (first, low, high)


def standing_of(
    monkeypatch: pytest.MonkeyPatch, centres: Sequence[float], variance: Sequence[float]
) -> tuple[selection.RaceStanding, list[int]]:
    """Return how a race with such a field stands, where half of the draws are at the limit, and how many are drawn."""
    drawn: list[int] = []

    def draws(centre: Samples, variance: Samples, freedom: Samples) -> Samples:
        drawn.append(len(centre))
        return np.array([0.75 * math.log1p(0.01), 1.0])

    count = len(centres)
    field = selection._ContenderEstimates(np.array(centres), np.array(variance), np.full(count, 9.0), NoiseStats(), 3)
    monkeypatch.setattr(selection, "_estimate_contenders", lambda _race, _rounds: field)
    monkeypatch.setattr(selection, "_sample_regret", draws)
    race = selection.Race.start(count).after(dict.fromkeys(range(count), 1.0))
    return race.standing(), drawn


def test_whoever_is_ten_errors_behind_is_still_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    standing, drawn = standing_of(monkeypatch, [0.0, 2.5, 2.5 + 2**-10], 3 * [1 / 32])
    assert drawn == [2]
    assert standing.probability == pytest.approx(0.5 * 0.972 * 0.9975)


def test_the_winner_has_the_lowest_centre_and_error_and_the_others_stand_by_their_centres(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standing, _ = standing_of(monkeypatch, [0.0, 0.125, 0.75, 0.7], [1 / 4, 1 / 64, 1 / 64, 1 / 4])
    assert [place.candidate for place in standing.ranking] == [1, 0, 3, 2]


def test_times_are_positive_numbers_and_one_that_is_left_decides() -> None:
    race = selection.Race.start(4).after({0: 0.5, 1: 0.0, 2: math.inf, 3: 2.0})
    assert (race.contenders, sorted(race.failed), race.decided) == ((0, 3), [1, 2], False)
    assert race.after({0: 0.5}).decided


def test_the_slower_of_two_contenders_leaves() -> None:
    race = selection.Race.start(2)
    for number in range(8):
        race = race.after({c: (1.0 + 9.0 * c) * (1 + 1e-3 * (-1) ** number) for c in race.contenders})
    assert (race.contenders, race.decided) == ((0,), True)


def test_a_single_one_that_is_left_decides_after_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    by_spikes = 0.05 * float(selection._allowed_error(raced(3), 1))  # before a race has its steps replaced
    found = Look([0.0, 5.0], 2).race(monkeypatch)
    assert (found.contenders, found.decided) == ((0,), True)
    look = Look([0.0, 5.0])
    look.by_spikes = by_spikes
    assert look.race(monkeypatch).contenders == (0,)


def test_where_all_contenders_fail_one_that_left_is_placed_beside_them() -> None:
    race = selection.Race.start(3)
    for number in range(5):
        times = {0: 1.0, 1: 1.001, 2: 10.0}
        race = race.after({c: times[c] + 1e-4 * number for c in race.contenders})
    assert race.contenders == (0, 1)
    standing = race.after({}).standing()
    assert (standing.winner, standing.ranking[0].rounds) == (2, 3)
