"""Thresholds among sizes, levels of series and order statistics, on numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

from assay.stats import changepoint, crossover
from assay.stats.changepoint import RHO, LevelState, NoisePrior
from assay.stats.crossover import (
    SpeedupBound,
    ThresholdDecision,
    bound_speedup,
    decide_threshold,
    isotonic_regression,
    next_look,
    next_size,
)
from assay.stats.numerics import median, quantiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.stats.crossover import SizeState

    Samples = NDArray[np.float64]


def test_processes_vary_by_what_their_pairs_do_not_explain() -> None:
    two = [np.array([0.0, 2.0]), np.array([4.0, 6.0])]  # means 1 and 5; each mean has the variance 2 / 2
    assert crossover.variance_between_processes([two]) == pytest.approx(8.0 - 1.0)
    three = [np.array([1.0]), np.array([1.0]), np.array([4.0])]  # of one pair each: the variance 3
    assert crossover.variance_between_processes([three]) == pytest.approx(3.0)
    assert crossover.variance_between_processes([two, three]) == pytest.approx((7.0 + 2 * 3.0) / 3)
    mixed = [np.array([0.0, 2.0]), np.array([3.0]), np.array([])]  # means 1 and 3
    assert crossover.variance_between_processes([mixed]) == pytest.approx(2.0 - 1.0)
    uneven = [np.array([0.0, 6.0, 0.0]), np.array([8.0, 8.0])]  # means 2 and 8; variances 12 / 3 and 0
    assert crossover.variance_between_processes([uneven]) == pytest.approx(18.0 - 2.0)
    skewed = [np.array([0.0, 6.0]), np.full(2, 10.0), np.full(2, 20.0)]  # means 3, 10 and 20; variances 9, 0 and 0
    assert crossover.variance_between_processes([skewed]) == pytest.approx(73.0 - 3.0)


def test_processes_do_not_vary_where_one_measured_or_their_pairs_explain_it() -> None:
    alike = [np.array([0.0, 4.0]), np.array([1.0, 3.0])]
    assert crossover.variance_between_processes([]) == crossover.variance_between_processes([alike]) == 0.0
    assert crossover.variance_between_processes([[np.array([0.0, 4.0])], [np.array([])]]) == 0.0
    three = [np.array([1.0]), np.array([1.0]), np.array([4.0])]
    assert crossover.variance_between_processes([[np.array([9.0])], three]) == pytest.approx(3.0)


def ends(n: int, weight: float, error: float) -> tuple[float, float]:
    """Return how far the bounds reach below and above, by the look's weight of 14 in all."""
    return float(stats.t.isf(0.02 * weight / 14, n - 1)) * error, float(stats.t.isf(0.05 * weight / 14, n - 1)) * error


def told(found: SpeedupBound | None) -> tuple[int, float, float, float]:
    assert found is not None
    return found.pairs, found.mean, found.low, found.high


def test_the_bounds_of_a_size_are_students_t_at_the_last_look_that_its_pairs_reach() -> None:
    four = np.array([0.0, 2.0, 0.0, 2.0])  # variance 4/3, of the mean 1/3
    below, above = ends(4, 1.0, math.sqrt(1 / 3))
    assert told(bound_speedup([four], 1.2)) == pytest.approx((4, 1.0, 1 - below, 1 + above))
    more = np.append(four, [50.0, 60.0, 70.0])
    assert told(bound_speedup([more], 1.2)) == pytest.approx((7, 1.0, 1 - below, 1 + above))
    assert told(bound_speedup([four[:1], four[1:]], 1.2)) == pytest.approx((4, 1.0, 1 - below, 1 + above))
    below, above = ends(4, 1.0, math.sqrt(1 / 3 + 3.0))
    assert told(bound_speedup([four], 1.2, between=3.0)) == pytest.approx((4, 1.0, 1 - below, 1 + above))
    below, above = ends(4, 1.0, math.sqrt(1 / 3 + 1.5))
    assert told(bound_speedup([four[:2], four[2:]], 1.2, between=3.0)) == pytest.approx((4, 1.0, 1 - below, 1 + above))


@pytest.mark.parametrize(("n", "weight"), [(8, 1.0), (16, 1.5), (32, 2.0), (64, 2.5), (128, 3.0), (256, 3.0)])
def test_each_look_has_its_share_of_the_error(n: int, weight: float) -> None:
    logs = np.tile([0.0, 2.0], n // 2)
    below, above = ends(n, weight, 1 / math.sqrt(n - 1))
    assert told(bound_speedup([logs], 1.2)) == pytest.approx((n, 1.0, 1 - below, 1 + above))
    one_less = bound_speedup([logs[:-1]], 1.2)
    assert one_less is not None
    assert one_less.mean == 1.0
    assert one_less.low != pytest.approx(1 - below)


def test_between_looks_the_pairs_after_the_last_look_do_not_count_and_after_all_of_them_they_do() -> None:
    logs = np.append(np.tile([0.0, 2.0], 64), np.full(72, 9.0))
    below, above = ends(128, 3.0, 1 / math.sqrt(127))
    assert told(bound_speedup([logs], 1.2)) == pytest.approx((200, 1.0, 1 - below, 1 + above))
    below, above = ends(300, 3.0, 1 / math.sqrt(299))
    assert told(bound_speedup([np.tile([0.0, 2.0], 150)], 1.2)) == pytest.approx((300, 1.0, 1 - below, 1 + above))


def test_before_the_first_look_nothing_is_said() -> None:
    assert (
        bound_speedup([], 1.2)
        is bound_speedup([np.zeros(3)], 1.2)
        is bound_speedup([np.zeros(2), np.zeros(1)], 1.2)
        is None
    )


def test_a_size_clears_or_fails_with_all_of_its_interval_beyond_the_margin() -> None:
    def state(level: float, margin: float) -> str:
        found = bound_speedup([np.full(4, level)], margin)
        assert found is not None
        return found.state

    assert state(0.0, 1.0) == "open"  # exactly at the margin, and without scatter
    assert state(0.001, 1.0) == "clears"
    assert state(-0.001, 1.0) == "fails"
    assert state(1.0, math.e) == "open"
    assert state(0.5, math.e) == "fails"


def known(state: SizeState, pairs: int = 8, half: float = 0.1) -> SpeedupBound:
    return SpeedupBound(pairs, 0.3, 0.3 - half, 0.3 + half, state)


def sizes(letters: str) -> list[SpeedupBound | None]:
    """Return sizes that clear (c), fail (f), are open (o) or not measured (-)."""
    states: dict[str, SizeState] = {"c": "clears", "f": "fails", "o": "open"}
    return [known(states[letter]) if letter in states else None for letter in letters]


@pytest.mark.parametrize(
    ("letters", "decision", "monotone"),
    [
        ("", ThresholdDecision("unsure", 0, 0, 0, ()), True),
        ("c", ThresholdDecision("threshold", 0, 0, 0, ((0, 0),)), True),
        ("f", ThresholdDecision("disable", 1, 1, 1, ()), True),
        ("-", ThresholdDecision("unsure", 1, 0, 1, ()), True),
        ("ffcc", ThresholdDecision("threshold", 2, 2, 2, ((2, 3),)), True),
        ("f-oc", ThresholdDecision("threshold", 3, 1, 3, ((3, 3),)), True),
        ("ccfcc", ThresholdDecision("threshold", 3, 3, 3, ((0, 1), (3, 4))), False),
        ("cfocc", ThresholdDecision("threshold", 3, 2, 3, ((0, 0), (3, 4))), False),
        ("cccf", ThresholdDecision("disable", 4, 4, 4, ((0, 2),)), False),
        ("fcco", ThresholdDecision("unsure", 4, 1, 4, ((1, 2),)), False),
        ("ffo", ThresholdDecision("unsure", 3, 2, 3, ()), True),
        ("fff", ThresholdDecision("disable", 3, 3, 3, ()), True),
        ("ccc", ThresholdDecision("threshold", 0, 0, 0, ((0, 2),)), True),
        ("cocc", ThresholdDecision("threshold", 2, 0, 2, ((0, 0), (2, 3))), False),
    ],
)
def test_the_threshold_is_above_all_that_fails_and_is_open(
    letters: str, decision: ThresholdDecision, monotone: bool
) -> None:
    found = decide_threshold(sizes(letters))
    assert found == decision
    assert found.monotone is monotone


def test_the_largest_is_measured_first_until_it_is_judged_or_has_had_its_pairs() -> None:
    assert next_size([]) is None
    assert next_size(sizes("---")) == next_size(sizes("--o")) == next_size(sizes("f-o")) == 2
    for pairs, place in ((64, 2), (128, 2), (255, 2), (256, None), (300, None)):
        assert next_size([None, None, known("open", pairs)]) == place
    assert next_size([None, known("open", 20)], most=21) == 1
    assert next_size([None, known("open", 20)], most=20) is None
    assert next_size(sizes("--f")) is next_size(sizes("fcc")) is None


def test_then_comes_the_middle_of_those_that_are_not_measured() -> None:
    assert [next_size(sizes("-" * n + "c")) for n in (1, 2, 3, 4, 5)] == [0, 1, 1, 2, 2]
    assert next_size(sizes("f---c")) == 2
    assert next_size(sizes("-o--c")) == 2
    assert next_size(sizes("o-oc")) == 1
    assert next_size(sizes("-f-cc")) == 2
    assert next_size(sizes("--c-oc")) == 1
    assert next_size([*sizes("o-"), known("open", 999), *sizes("c")]) == 1


def test_then_comes_the_one_with_the_narrowest_interval_that_may_have_more_pairs() -> None:
    wide, narrow = known("open", half=0.4), known("open", half=0.1)
    clear = known("clears")
    assert next_size([wide, narrow, clear]) == 1
    assert next_size([narrow, wide, clear]) == 0
    assert next_size([wide, known("open", 256, 0.1), clear]) == 0
    assert next_size([wide, known("open", 255, 0.1), clear]) == 1
    assert next_size([known("open", 256), known("open", 256), clear]) is None
    high_up = SpeedupBound(8, 9.2, 9.0, 9.4, "open")
    assert next_size([high_up, SpeedupBound(8, 0.0, -0.3, 0.3, "open"), clear]) == 0
    assert next_size([SpeedupBound(8, 0.0, -0.3, 0.3, "open"), SpeedupBound(8, 9.2, 9.0, 9.4, "open"), clear]) == 1
    assert next_size([wide, known("open", half=0.0), clear]) == 1
    assert next_size([known("open", half=9.0), known("open", half=3.0), clear]) == 1


def test_the_last_open_size_is_measured_until_it_has_enough_pairs() -> None:
    clear, fail = known("clears"), known("fails")
    for pairs, place in ((32, 1), (63, 1), (64, None), (128, None)):
        assert next_size([fail, known("open", pairs), clear]) == place
    assert next_size([fail, known("open", 10), clear], enough=11) == 1
    assert next_size([fail, known("open", 10), clear], enough=10) is None
    assert next_size([fail, known("open", 64), known("open", 64), clear]) is not None
    assert next_size([known("open", 64), clear]) is None
    assert next_size([known("open", 64), clear, known("open", 64), clear]) == 0


def test_the_next_look_is_the_first_beyond_the_pairs() -> None:
    assert [next_look(n) for n in (0, 3, 4, 8, 127, 128, 255)] == [4, 4, 8, 16, 128, 256, 256]
    assert [next_look(n) for n in (256, 300)] == [512, 556]


def test_the_nearest_speedups_that_do_not_fall_pool_neighbours_by_their_pairs() -> None:
    assert isotonic_regression([], []).tolist() == []
    assert isotonic_regression([1.0, 1.0, 2.0], [3, 5, 1]).tolist() == [1.0, 1.0, 2.0]
    assert isotonic_regression([4.0, 1.0], [1, 3]) == pytest.approx([1.75, 1.75])
    assert isotonic_regression([1.0, 5.0, 2.0, 9.0], [7, 1, 2, 4]) == pytest.approx([1.0, 3.0, 3.0, 9.0])
    assert isotonic_regression([3.0, 5.0, 1.0], [1, 2, 3]) == pytest.approx([16 / 6] * 3)


def held(spread: list[list[float]], **others: float) -> LevelState:
    """Return what is known of one series' c and level."""
    parts = {"freedom": 4.0, "squares": 8.0, "spikes": 2.0, "plain": 18.0} | others
    each = {name: np.array([value]) for name, value in parts.items()}
    return LevelState(mean=np.array([[0.4, 3.0]]), spread=np.array([spread]), **each)


USUAL = NoisePrior(np.array([2.0]), np.array([10.0]), np.array([1.0]))
"""With four degrees of freedom and squares of 8 the variance is 3; with two spikes in 20 runs the share is 3/20."""
SPREAD = [[2.0, 0.4], [0.4, 3.0]]
"""Half of c stays: 2 / 4 + 3/4 = 1.25, with the level 0.2; their sum has 1.25 + 0.4 + 3 = 4.65."""
WIDTH = 4.65


@pytest.mark.parametrize("error", [0.7, -0.7, 0.0, 40.0, 0.05])
def test_a_run_is_a_spike_or_moves_what_is_known_as_far_as_it_is_trusted(error: float) -> None:
    value = np.array([0.2 + 3.0 + error])
    density, then = changepoint.update_state(held(SPREAD), USUAL, np.array([0.5]), np.ones((1, 2)), value)
    core = 0.85 * float(stats.t.pdf(error, 6, scale=math.sqrt(3 * WIDTH)))
    spike = 0.15 * (0.85 if error > 0 else 0.15) * math.exp(-abs(error) / 0.2) / 0.2
    assert density == pytest.approx([math.log(core + spike)])
    trust = core / (core + spike)
    gain = np.array([1.45, 3.2]) / WIDTH
    assert then.mean == pytest.approx(np.array([[0.2, 3.0] + trust * error * gain]))
    lost = trust * np.array([[1.45 * 1.45, 1.45 * 3.2], [1.45 * 3.2, 3.2 * 3.2]]) / WIDTH
    assert then.spread == pytest.approx(np.array([[[1.25, 0.2], [0.2, 3.0]] - lost]))
    assert then.freedom == pytest.approx([4 + trust])
    assert then.squares == pytest.approx([8 + trust * error**2 / WIDTH])
    assert then.spikes == pytest.approx([2 + 1 - trust])
    assert then.plain == pytest.approx([18 + trust])


def test_every_memory_is_followed_by_itself() -> None:
    one = held(SPREAD)
    two = LevelState(*(np.stack([getattr(one, each.name)] * 2, axis=1) for each in fields(LevelState)))
    usual = NoisePrior(*(np.repeat(each[:, None], 2, axis=1) for each in (USUAL.freedom, USUAL.squares, USUAL.spikes)))
    made_of = np.ones((1, 1, 2))
    made_of[..., 1] = 0.0
    rho, value = np.array([[0.5, 0.9]]), np.array([[1.3]])
    density, then = changepoint.update_state(two, usual, rho, made_of, value)
    for place in (0, 1):
        alone, after = changepoint.update_state(one, USUAL, rho[:, place], made_of[0], value[0])
        assert density[:, place] == pytest.approx(alone)
        for each in fields(LevelState):
            assert getattr(then, each.name)[:, place] == pytest.approx(getattr(after, each.name))


def test_a_run_that_was_not_there_only_lets_the_noise_forget() -> None:
    nothing = np.array([math.nan])
    density, then = changepoint.update_state(held(SPREAD), USUAL, np.array([0.5]), np.ones((1, 2)), nothing)
    assert density.tolist() == [0.0]
    assert then.mean.tolist() == [[0.2, 3.0]]
    assert then.spread == pytest.approx(np.array([[[1.25, 0.2], [0.2, 3.0]]]))
    assert [float(each[0]) for each in (then.freedom, then.squares, then.spikes, then.plain)] == [4.0, 8.0, 2.0, 18.0]


def test_what_a_run_is_not_made_of_has_no_part_in_its_error() -> None:
    nowhere = np.array([[1.0, 0.0]])
    _, then = changepoint.update_state(held(SPREAD), USUAL, np.array([0.5]), nowhere, np.array([0.2]))
    trust = float(then.freedom[0]) - 4
    assert 0 < trust < 1
    lost = trust * np.array([[1.25**2, 1.25 * 0.2], [1.25 * 0.2, 0.04]]) / 1.25
    assert then.spread == pytest.approx(np.array([[[1.25, 0.2], [0.2, 3.0]] - lost]))
    assert then.mean == pytest.approx(np.array([[0.2, 3.0]]))


def test_what_is_long_ago_is_forgotten_beyond_eighty_runs() -> None:
    before = held(SPREAD, freedom=100.0, squares=50.0)
    _, then = changepoint.update_state(before, USUAL, np.array([0.5]), np.ones((1, 2)), np.array([math.nan]))
    assert (float(then.freedom[0]), float(then.squares[0])) == pytest.approx((80.0, 40.0))
    before = held(SPREAD, freedom=80.0, squares=50.0)
    _, then = changepoint.update_state(before, USUAL, np.array([0.5]), np.ones((1, 2)), np.array([math.nan]))
    assert (float(then.freedom[0]), float(then.squares[0])) == (80.0, 50.0)


def test_noise_has_the_variance_of_all_squares_and_none_is_below_a_thousandth() -> None:
    assert held(SPREAD).variance(USUAL) == pytest.approx([3.0])
    assert held(SPREAD, squares=0.0).variance(NoisePrior.nothing(1)) == pytest.approx([1e-6])
    assert held(SPREAD, squares=8e-6).variance(NoisePrior.nothing(1)) == pytest.approx([2e-6])


def test_what_is_known_of_several_is_picked_and_joined_part_by_part() -> None:
    one, other = held(SPREAD), held(SPREAD, freedom=9.0, plain=5.0)
    both = LevelState.joined([one, other])
    assert both.freedom.tolist() == [4.0, 9.0]
    assert both.spread.shape == (2, 2, 2)
    for each in fields(LevelState):
        assert getattr(both.of([1]), each.name).tolist() == getattr(other, each.name).tolist()


def one_host(n: int) -> NDArray[np.int64]:
    return np.zeros((1, n), dtype=np.int64)


def test_the_first_runs_give_the_level_and_the_scale_and_nothing_else() -> None:
    """Around 6, 4 and 0: distances 2, 0, 1, 1 and 94, of which the middle one is 1."""
    found = changepoint.initial_state(np.array([[4.0, 6.0, 7.0, 5.0, 100.0, math.nan]]), one_host(6), 1)
    count = len(RHO)
    assert found.mean.tolist() == [[[0.0, 6.0]] * count]
    assert found.spread.tolist() == [[[[1.0, 0.0], [0.0, 25.0]]] * count]
    assert found.freedom.tolist() == [[4.0] * count]
    assert found.squares == pytest.approx(np.full((1, count), 4 * 1.4826**2))
    assert found.spikes.tolist() == [[1.5] * count]
    assert found.plain.tolist() == [[38.5] * count]


def test_a_series_that_never_moves_has_the_quietest_scale() -> None:
    found = changepoint.initial_state(np.full((1, 3), 5.0), one_host(3), 1)
    assert found.squares == pytest.approx(np.full((1, len(RHO)), 4e-6))


def test_the_first_thirty_runs_are_the_beginning() -> None:
    logs = np.append(np.repeat([0.0, 2.0], 15), np.full(30, 2.0))[None]
    assert changepoint.initial_state(logs, one_host(60), 1).mean[0, :, 1].tolist() == [1.0] * len(RHO)


def test_hosts_have_middles_of_their_own_from_four_runs_on() -> None:
    """With four on the second host all are 1 from their middle, with three those three are 10 and 12 from it."""
    logs = np.array([[0.0, 2.0, 0.0, 2.0, 10.0, 12.0, 10.0, 12.0, 0.0, 2.0]])
    names = np.array([[0, 0, 0, 0, 1, 1, 1, 1, 0, 0]])
    found = changepoint.initial_state(logs, names, 2)
    scale = 1.4826
    assert found.mean.shape == (1, len(RHO), 3)
    assert found.mean[0, 0].tolist() == [0.0, 2.0, 0.0]
    assert found.squares == pytest.approx(np.full((1, len(RHO)), 4 * scale**2))
    offset = (0.1 / scale) ** 2
    assert found.spread[0, 0] == pytest.approx(np.diag([1.0, 25.0, offset]))
    assert found.spread[0, -1] == pytest.approx(np.diag([1.0, 25.0, offset]))
    few = changepoint.initial_state(logs[:, 4:8], np.array([[1, 1, 1, 0]]), 2)  # around 11, all of them
    assert few.squares == pytest.approx(np.full((1, len(RHO)), 4 * scale**2))
    mixed = changepoint.initial_state(
        np.array([[0.0, 1.0, 10.0, 10.0, 10.0, 10.0, 4.0]]), np.array([[0, 0, 1, 1, 1, 1, 0]]), 2
    )
    # the level is 10; the first host's are 10, 9 and 6 away, the second's none
    assert mixed.squares == pytest.approx(np.full((1, len(RHO)), 4e-6))
    away = changepoint.initial_state(
        np.array([[0.0, 1.0, 4.0, 10.0, 10.0, 10.0, 10.0, 3.0]]), np.array([[0, 0, 2, 1, 1, 1, 1, 0]]), 3
    )
    # the level is 7: 7, 6, 3, 4 and four that are their host's own middle
    assert away.squares == pytest.approx(np.full((1, len(RHO)), 4 * (1.4826 * 1.5) ** 2))
    assert away.spread.shape == (1, len(RHO), 4, 4)
    offset = (0.1 / (1.4826 * 1.5)) ** 2
    assert away.spread[0, 0] == pytest.approx(np.diag([1.0, 25.0, offset, offset]))


def test_a_run_is_made_of_the_noise_the_level_and_its_hosts_offset() -> None:
    found = changepoint.design_matrix(np.array([0, 2, 1]), 3)
    assert found.tolist() == [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0]]
    assert changepoint.design_matrix(np.array([0]), 1).tolist() == [[1.0, 1.0]]


def test_a_spike_up_is_likelier_than_one_down_and_none_at_all_counts_as_down() -> None:
    found = changepoint._spike_log_density(np.array([0.4, -0.4, 0.0]))
    assert np.exp(found) == pytest.approx([4.25 * math.exp(-2), 0.75 * math.exp(-2), 0.75])


def test_the_middle_of_two_is_between_them_and_of_one_it_is_that_one() -> None:
    assert median(np.array([3.0, 1.0])) == 2.0
    assert median(np.array([7.0])) == 7.0
    assert median(np.array([9.0, 1.0, 4.0, 2.0])) == 3.0
    assert quantiles(np.array([7.0]), (0.0, 0.3, 1.0)) == (7.0, 7.0, 7.0)
    assert quantiles(np.array([8.0, 0.0]), (0.0, 0.25, 0.5, 0.75, 1.0)) == (0.0, 2.0, 4.0, 6.0, 8.0)
    assert quantiles(np.array([8.0, 0.0, 2.0]), (0.125, 0.5, 0.75)) == (0.5, 2.0, 5.0)
