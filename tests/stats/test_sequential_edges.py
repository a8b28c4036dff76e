"""Looks, intervals at them, and pairs compared, at their edges: equal to a limit, on one side of it and the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

from assay.stats import intervals, sequential
from assay.stats.numerics import LongRunVariance, cosine_count
from assay.stats.sequential import InterimLook, PairedComparison
from assay.stats.shape import TwoLevels

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Samples = NDArray[np.float64]


def always(value: object) -> Callable[..., object]:
    """Return a function that says the same of everything."""
    return lambda *_, **__: value


def stretch_of(look: InterimLook, confidence: float = 0.95) -> float:
    """Return how far a look stretches: it may spend its share of three fifths of the error."""
    freedom = cosine_count(look.n)
    beyond = stats.t.isf((1 - confidence) * 0.6 * look.share / 2, freedom)
    return float(beyond / stats.t.ppf((1 + confidence) / 2, freedom))


def test_a_look_at_exactly_a_hundred_is_a_large_one() -> None:
    plan = sequential.plan_looks(50, 200, 2.0)
    assert [look.n for look in plan] == [50, 100, 200]
    assert [look.early for look in plan] == [True, True, False]
    assert plan[0].share == pytest.approx(0.3)
    assert plan[1].share + plan[2].share == pytest.approx(0.7)
    assert (
        [look.share for look in sequential.plan_looks(99, 99)]
        == [look.share for look in sequential.plan_looks(100, 100)]
        == [1.0]
    )


def test_small_looks_stretch_alike_and_so_do_large_ones_and_each_part_of_the_error_is_spent() -> None:
    plan = sequential.plan_looks(20, 400, 1.5)
    small, large = [look for look in plan if look.n < 100], [look for look in plan if look.n >= 100]
    assert [look.n for look in small] == [20, 30, 45, 68]
    for part in (small, large):
        stretches = [stretch_of(look) for look in part]
        assert stretches == pytest.approx([stretches[0]] * len(part), rel=1e-9)
    assert stretch_of(small[0]) > stretch_of(large[0]) > 1
    two = sequential.plan_looks(1000, 4000, 4.0)
    assert stretch_of(two[0]) < 1.3
    assert stretch_of(two[0]) == pytest.approx(stretch_of(two[1]), rel=1e-9)


def test_looks_end_with_the_last_also_where_it_is_a_power_of_the_growth() -> None:
    assert [look.n for look in sequential.plan_looks(16, 128, 2.0)] == [16, 32, 64, 128]
    assert [look.n for look in sequential.plan_looks(100, 101, 3.0)] == [100, 101]
    assert [look.n for look in sequential.plan_looks(100, 100)] == [100]
    assert sequential.plan_looks(100, 100) == (InterimLook(100, 1.0, early=False),)


def test_so_far_reaches_an_interval_of_samples_that_do_not_resemble_each_other() -> None:
    """Of 16 samples, 2.776445 (t with 4 degrees of freedom) / 4 standard errors; half of that as a share of them."""
    steps = np.arange(16.0)
    assert sequential._half_width_of_unrelated(steps, 0.95, "median") == pytest.approx(15 * 0.3470556, rel=1e-6)
    squares = steps**2  # 12.705834 of 15 steps: 144 + 0.705834 * 25, against 56.5 in the middle
    assert sequential._half_width_of_unrelated(squares, 0.95, "median") == pytest.approx(105.145855, rel=1e-6)
    assert sequential._half_width_of_unrelated(-squares, 0.95, "median") == pytest.approx(105.145855, rel=1e-6)
    assert sequential._half_width_of_unrelated(np.tile([-1.0, 1.0], 8), 0.95, "mean") == pytest.approx(
        0.6941112 * math.sqrt(16 / 15), rel=1e-6
    )
    assert sequential._half_width_of_unrelated(np.array([0.0, 1, 2, 3, 4, 9]), 0.999, "median") == 6.5


@pytest.mark.parametrize(("fixed", "half"), [((-12.5, 8.5), 20.0), ((6.5, 37.5), 30.0), ((7.0, 8.0), 5.205834)])
@pytest.mark.parametrize("confidence", [0.95, 0.9])
def test_a_small_look_reaches_as_far_to_both_sides_as_to_the_wider(
    fixed: tuple[float, float], half: float, confidence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequential, "order_interval", always(fixed))
    look = InterimLook(16, 0.5)
    if half < 6:
        half *= float(stats.t.ppf((1 + confidence) / 2, 4) / stats.t.ppf(0.975, 4))
    reach = half * stretch_of(look, confidence)
    found = sequential.interval_at_look(np.arange(20.0), look, confidence)
    assert found == pytest.approx((7.5 - reach, 7.5 + reach), rel=1e-4)


def test_a_look_at_a_hundred_keeps_its_sides_apart_and_one_at_99_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "wanders", always(False))
    monkeypatch.setattr(sequential, "order_interval", always((30.0, 90.0)))
    look = InterimLook(100, 0.25)
    stretch = stretch_of(look)
    assert sequential.interval_at_look(np.arange(100.0), look) == pytest.approx(
        (49.5 - 19.5 * stretch, 49.5 + 40.5 * stretch)
    )
    stretch = stretch_of(InterimLook(99, 0.25))
    found = sequential.interval_at_look(np.arange(100.0), InterimLook(99, 0.25))
    assert found == pytest.approx((49.0 - 41.0 * stretch, 49.0 + 41.0 * stretch))


def test_the_interval_of_a_median_holds_all_that_parts_had_where_the_samples_wander(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples, look = np.arange(100.0), InterimLook(100, 0.25)
    monkeypatch.setattr(sequential, "wanders", always(False))
    monkeypatch.setattr(sequential, "order_interval", always((40.0, 60.0)))
    monkeypatch.setattr(sequential, "mean_interval", always((39.5, 69.5)))
    still = sequential.interval_at_look(samples, look)
    assert still is not None
    monkeypatch.setattr(sequential, "wanders", always(True))
    for lowest, highest in ((0.0, 50.0), (45.0, 99.0), (0.0, 99.0)):
        monkeypatch.setattr(sequential, "range_of_medians", always((lowest, highest)))
        assert sequential.interval_at_look(samples, look) == (min(lowest, still[0]), max(highest, still[1]))
    stretch = stretch_of(look)
    assert sequential.interval_at_look(samples, look, estimand="mean") == pytest.approx(
        (49.5 - 10 * stretch, 49.5 + 20 * stretch)
    )


def test_known_exactly_as_well_as_asked_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "interval_at_look", always((14.0, 18.0)))
    monkeypatch.setattr(sequential, "is_unsettled", always(False))
    sixteen, look = np.full(8, 16.0), InterimLook(8, 1.0)
    assert sequential.decide_to_stop(sixteen, look, 0.125) == "enough"
    assert sequential.decide_to_stop(-sixteen, look, 0.125) == "enough"
    assert sequential.decide_to_stop(sixteen, look, 0.1249) == "more"
    assert sequential.decide_to_stop(np.append(sixteen, np.zeros(20)), look, 0.125) == "enough"


def test_what_may_still_move_is_enough_at_the_last_look_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "interval_at_look", always((15.0, 17.0)))
    samples = np.full(8, 16.0)
    for moves, early, said in (
        (True, True, "more"),
        (True, False, "enough"),
        (False, True, "enough"),
        (False, False, "enough"),
    ):
        monkeypatch.setattr(sequential, "is_unsettled", always(moves))
        assert sequential.decide_to_stop(samples, InterimLook(8, 1.0, early), 0.5) == said
    monkeypatch.setattr(sequential, "interval_at_look", always(None))
    assert sequential.decide_to_stop(samples, InterimLook(8, 1.0), 0.5) == "more"


def test_signs_that_are_often_none_are_held_against_their_own_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four samples are the median: the signs -1, 0, 0 and 1 have the variance 1/2."""
    monkeypatch.setattr(intervals, "long_run_variance", always(LongRunVariance(3.0, 7)))
    assert intervals._sign_long_run(np.tile([1.0, 5.0, 5.0, 9.0], 4)) == LongRunVariance(6.0, 7)
    assert intervals.effective_size(np.tile([1.0, 5.0, 5.0, 9.0], 4)) == pytest.approx(16 / 6)
    assert intervals._sign_long_run(np.full(4000, 5.0)) == LongRunVariance(1.0, 100)


def test_samples_are_worth_between_one_and_all_of_them() -> None:
    assert [intervals._effective_count(12, LongRunVariance(v, 4)) for v in (0.5, 1.0, 3.0, 12.0, 50.0)] == [
        12.0,
        12.0,
        4.0,
        1.0,
        1.0,
    ]
    assert [intervals.effective_size(np.arange(float(n))) for n in (1, 5)] == [1.0, 5.0]
    assert intervals.effective_size(np.array([1.0, 2.0, 1.5, 2.5, 1.2, 2.2])) < 5.4


def test_six_samples_have_an_interval_between_order_statistics_and_five_have_none() -> None:
    samples = np.array([1.0, 2.0, 1.5, 2.5, 1.2, 2.2])
    assert intervals.order_interval(samples[:5], 0.5) is None
    assert intervals.order_interval(samples, 0.5) is not None
    assert intervals.interval_refusal(samples[:5], 0.5) == "too few samples"
    assert intervals.interval_refusal(samples, 0.5) is None
    assert intervals.mean_interval(samples[:5]) is None
    assert intervals.mean_interval(samples) is not None


def test_samples_worth_exactly_as_many_as_it_takes_have_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A confidence of 3/4 takes three: their range misses the median once in four."""
    samples = np.arange(12.0)
    monkeypatch.setattr(intervals, "_sign_long_run", always(LongRunVariance(4.0, 4)))
    assert intervals.order_interval(samples, 0.75) is not None
    assert intervals.interval_refusal(samples, 0.75) is None
    monkeypatch.setattr(intervals, "_sign_long_run", always(LongRunVariance(4.1, 4)))
    assert intervals.order_interval(samples, 0.75) is None
    assert intervals.interval_refusal(samples, 0.75) == "too few samples"
    monkeypatch.setattr(intervals, "wanders", always(True))
    assert intervals.interval_refusal(samples, 0.75) == "drift"


def test_order_statistics_are_as_far_out_as_signs_stray_and_never_beyond_the_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intervals, "t_quantile", always(2.0))
    monkeypatch.setattr(intervals, "_sign_long_run", always(LongRunVariance(1.0, 4)))
    assert intervals.order_interval(np.arange(25.0)) == pytest.approx((12 - 0.2 * 24, 12 + 0.2 * 24))
    monkeypatch.setattr(intervals, "_sign_long_run", always(LongRunVariance(4.0, 4)))
    assert intervals.order_interval(np.arange(25.0)) == pytest.approx((12 - 0.4 * 24, 12 + 0.4 * 24))
    monkeypatch.setattr(intervals, "t_quantile", always(9.0))
    assert intervals.order_interval(np.arange(25.0)) == (0.0, 24.0)


def test_a_level_of_exactly_a_quarter_of_the_time_leaves_the_median_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    for share, torn in ((0.24, False), (0.25, True), (0.5, True), (0.75, True), (0.76, False)):
        levels = TwoLevels(1.0, 2.0, share, 9)
        monkeypatch.setattr(intervals, "find_two_levels", always(levels))
        assert (intervals.find_competing_levels(np.ones(9)) is levels) is torn
        assert (intervals.order_interval(np.arange(9.0)) is None) is torn
        assert (intervals.interval_refusal(np.arange(9.0)) == "two levels") is torn
    monkeypatch.setattr(intervals, "find_two_levels", always(None))
    assert intervals.find_competing_levels(np.ones(9)) is None


def test_the_interval_of_a_window_that_wanders_holds_the_medians_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "order_interval", always((4.0, 6.0)))
    monkeypatch.setattr(intervals, "range_of_medians", always((3.0, 5.0)))
    monkeypatch.setattr(intervals, "wanders", always(True))
    assert intervals.median_interval(np.ones(9)) == (3.0, 6.0)
    monkeypatch.setattr(intervals, "range_of_medians", always((5.0, 7.0)))
    assert intervals.median_interval(np.ones(9)) == (4.0, 7.0)
    monkeypatch.setattr(intervals, "wanders", always(False))
    assert intervals.median_interval(np.ones(9)) == (4.0, 6.0)
    monkeypatch.setattr(intervals, "order_interval", always(None))
    monkeypatch.setattr(intervals, "wanders", always(True))
    assert intervals.median_interval(np.ones(9)) is None


def test_processes_are_averaged_on_logarithms_unless_one_took_nothing() -> None:
    half = float(stats.t.ppf(0.975, 2))  # logarithms 0, 0 and 3 have the standard error 1
    *numbers, how = intervals.restarts_interval([1.0, 1.0, math.e**3])
    assert numbers == pytest.approx([math.e, math.exp(1 - half), math.exp(1 + half)])
    assert how == "geometric mean of the medians of 3 processes, Student's t on their logarithms"
    *numbers, how = intervals.restarts_interval([0.0, 0.0, 3.0])
    assert numbers == pytest.approx([1.0, 1 - half, 1 + half])
    assert how == "mean of the medians of 3 processes, Student's t"


def test_neighbours_are_smoothed_by_the_median_of_five() -> None:
    assert sequential._smooth(np.array([0.0, 0.0, 100.0, 0.0, 0.0, 1.0])).tolist() == [0.0, 0.0]


def test_a_ratio_goes_with_one_side_where_it_moves_by_more_than_half_as_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "find_two_levels", always(TwoLevels(2.0, 4.0, 0.5, 1)))
    side = np.repeat([2.0, 4.0], 20)
    for moved, alone in ((1.0, False), (1.125, True), (-1.0, False), (-1.125, True), (0.0, False)):
        ratios = np.repeat([0.5, 0.5 + moved], 20)
        assert sequential.switches_alone(side, ratios) is alone
        assert sequential.switches_alone(side[::-1], ratios) is alone
    between = np.repeat([3.0, 4.0], 20)  # what is exactly between the levels is on the lower
    assert sequential.switches_alone(between, np.repeat([0.0, 2.0], 20)) is True
    for stays in (2.0, 3.0, 4.0):
        assert sequential.switches_alone(np.full(40, stays), np.repeat([0.0, 2.0], 20)) is False
    monkeypatch.setattr(sequential, "find_two_levels", always(None))
    assert sequential.switches_alone(side, np.repeat([0.0, 2.0], 20)) is False


def test_pairs_on_two_levels_are_judged_by_nearly_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "_possible_drift", always(0.0))
    logs = np.arange(41.0) / 10 + 1  # of 40 steps, 1 and 39
    found = sequential._compare_between_levels(logs, math.exp(3.0), 0.01, "it switches", "ratio switches")
    assert found == PairedComparison(
        "slower",
        math.exp(3.0),
        pytest.approx(math.exp(1.1)),  # type: ignore[arg-type]
        pytest.approx(math.exp(4.9)),  # type: ignore[arg-type]
        41,
        "it switches; on either it holds",
        "ratio switches",
    )
    monkeypatch.setattr(sequential, "_possible_drift", always(2.5))
    wider = sequential._compare_between_levels(logs, math.exp(3.0), 0.01, "it switches", "ratio switches")
    assert (wider.low, wider.high) == pytest.approx((math.exp(0.5), math.exp(5.5)))
    back = sequential._compare_between_levels(-logs, math.exp(-3.0), 0.01, "it switches", "one side switches")
    assert (back.verdict, back.caveat) == ("faster", "one side switches")
    monkeypatch.setattr(sequential, "_possible_drift", always(3.0))
    unsure = sequential._compare_between_levels(logs, math.exp(3.0), 0.01, "it switches", "ratio switches")
    assert unsure == PairedComparison("unsure", math.exp(3.0), None, None, 41, "it switches", "ratio switches")
    near = sequential._compare_between_levels(np.zeros(41), 1.0, 100.0, "it switches", "ratio switches")
    assert near.verdict == "unsure"


def test_a_ratio_may_have_moved_a_quarter_more_than_the_means_of_eighths() -> None:
    assert sequential._possible_drift(np.repeat(np.arange(8.0), 2)) == 8.75


def compared(logs: Samples, look: InterimLook, *, minimum_effect: float = 0.01, block: int = 1) -> PairedComparison:
    return sequential.compare_at_look(
        np.ones(len(logs)), np.exp(logs), look, minimum_effect=minimum_effect, block=block
    )


def test_before_the_last_look_only_more_than_a_quarter_beyond_the_minimum_effect_is_called() -> None:
    early, last = InterimLook(8, 0.5, early=True), InterimLook(8, 0.5)
    limit = math.log1p(0.25)
    ones = np.ones(8)
    for second, sign in ((np.full(8, 1.25), 1), (np.full(8, 0.8), -1)):
        at_limit = sequential.compare_at_look(ones, second, early, minimum_effect=0.0)
        assert math.log(at_limit.ratio) == pytest.approx(sign * limit)
        assert at_limit == PairedComparison(
            "unsure", at_limit.ratio, None, None, 8, "more pairs are planned", "too early"
        )
    assert compared(np.full(8, limit + 1e-9), early, minimum_effect=0.0).verdict == "slower"
    assert compared(np.full(8, -limit - 1e-9), early, minimum_effect=0.0).verdict == "faster"
    assert compared(np.full(8, math.log(1.5) - 1e-9), early, minimum_effect=0.2).caveat == "too early"
    assert compared(np.full(8, math.log(1.5) + 1e-9), early, minimum_effect=0.2).verdict == "slower"
    assert compared(np.full(8, math.log(1.2) + 1e-9), last, minimum_effect=0.2).verdict == "slower"
    assert compared(np.full(8, math.log(1.2) - 1e-9), last, minimum_effect=0.2).verdict == "same"
    assert compared(np.full(8, 0.0), early).caveat == "too early"


def test_what_is_called_early_lies_beyond_the_larger_effect_with_its_whole_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early, last, logs = InterimLook(8, 0.5, early=True), InterimLook(8, 0.5), np.full(8, math.log(1.6))
    monkeypatch.setattr(sequential, "interval_at_look", always((math.log(1.4), math.log(1.8))))
    assert compared(logs, early, minimum_effect=0.2).verdict == "unsure"
    assert compared(logs, last, minimum_effect=0.2).verdict == "slower"
    monkeypatch.setattr(sequential, "interval_at_look", always((math.log(1.51), math.log(1.8))))
    found = compared(logs, early, minimum_effect=0.2)
    assert (found.verdict, found.reason, found.caveat, found.pairs) == ("slower", None, None, 8)
    assert (found.ratio, found.low, found.high) == pytest.approx((1.6, 1.51, 1.8))
    monkeypatch.setattr(sequential, "interval_at_look", always(None))
    assert compared(logs, last).reason == compared(logs, last).caveat == "too few pairs"


def test_a_ratio_that_wanders_is_known_no_better_than_it_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "wanders", always(True))
    monkeypatch.setattr(sequential, "interval_at_look", always((0.5, 1.75)))
    for moved, low, high in ((0.25, 0.5, 1.75), (0.625, 0.375, 1.75), (1.0, 0.0, 2.0)):
        monkeypatch.setattr(sequential, "_possible_drift", always(moved))
        found = compared(np.full(8, 1.0), InterimLook(8, 0.5))
        assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
        assert found.reason == "the ratio wanders: it is known no better than it moved"
        assert found.caveat == "ratio wanders"


def test_pairs_are_those_up_to_the_look_in_whole_blocks_and_either_side_may_switch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = np.concatenate([np.full(8, 1.0), np.full(8, 3.0)])
    found = compared(logs, InterimLook(11, 0.5), block=4)
    assert (found.pairs, found.ratio) == pytest.approx((8, math.e))
    nine = sequential.compare_at_look(
        np.ones(9), np.exp([1.0] * 8 + [5.5]), InterimLook(9, 0.5)
    )  # most are equal: no outliers
    assert (nine.pairs, nine.ratio) == pytest.approx((9, math.exp(1.5)))
    for switching in (0, 1):
        asked: list[float] = []

        def alone(side: Samples, _: Samples, asked: list[float] = asked, switching: int = switching) -> bool:
            asked.append(float(side[0]))
            return len(asked) == switching + 1

        monkeypatch.setattr(sequential, "switches_alone", alone)
        found = compared(np.full(8, 1.0), InterimLook(8, 0.5))
        assert found.reason == "one of the two switches between levels by itself; on either it holds"
        assert asked == pytest.approx([0.0, 1.0][: switching + 1])
    monkeypatch.setattr(sequential, "find_two_levels", always(TwoLevels(0.0, 1.0, 0.5, 3)))
    assert compared(np.full(8, 1.0), InterimLook(8, 0.5)).caveat == "ratio switches"
