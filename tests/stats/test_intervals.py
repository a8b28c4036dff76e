"""How sure the intervals are, found out by simulation with known truths.

With a true coverage of 95 %, 400 repeats give a binomial standard deviation of √(0.95 × 0.05 / 400) ≈ 1.1 %. The
bounds of 90 % and 99 % lie more than 3.6 of them away, so that only an interval that is wrong falls outside; the
seeds are fixed, so that none does by chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.stats.intervals import (
    ONE_PROCESS_METHOD,
    RESAMPLES,
    autocorrelation,
    draw_indices,
    draws_interval,
    effective_size,
    estimate_median,
    explain_no_process_interval,
    mean_interval,
    median_interval,
    medians_of_draws,
    repeats_interval,
    restarts_interval,
    summarize_samples,
)
from tests.stats.chances import at_least
from tests.stats.noise_families import FAMILIES, Family, related
from tests.stats.simulations import fixed_intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

REPEATS = 400
N = 300


def times_us(seed: int, rho: float = 0.0, repeats: int = REPEATS, n: int = N) -> Samples:
    """Return rows of lognormal times whose true median is 100 µs."""
    return 100.0 * np.exp(0.2 * related(np.random.default_rng(seed), rho, repeats, n))


def coverage(intervals: list[tuple[float, float]], truth: float) -> float:
    return float(np.mean([low <= truth <= high for low, high in intervals]))


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_the_interval_covers_the_true_median_as_often_as_it_says(rho: float) -> None:
    intervals = [interval for row in times_us(1, rho) if (interval := median_interval(row)) is not None]
    assert len(intervals) == REPEATS
    assert 0.90 <= coverage(intervals, 100.0) <= 0.99


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [100, N])
def test_the_interval_covers_the_windows_median_in_every_family_or_is_refused_on_two_levels(
    family: Family, n: int
) -> None:
    counts = fixed_intervals(family, n, REPEATS, seed=20).counts
    given = REPEATS - counts["refused"]
    if family == "two levels":
        assert counts["missed"] <= 0.1 * REPEATS
    else:
        assert given >= 0.98 * REPEATS
        assert 0.90 <= counts["covered"] / given <= 0.99


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_the_interval_of_the_mean_covers_it_as_often_as_it_says(rho: float) -> None:
    rows = related(np.random.default_rng(9), rho, REPEATS, N)
    assert 0.90 <= coverage([i for row in rows if (i := mean_interval(row)) is not None], 0.0) <= 0.99


def test_too_few_values_have_no_interval_of_their_mean() -> None:
    assert mean_interval(np.arange(5.0)) is None
    assert mean_interval(np.full(6, 2.0)) == (2.0, 2.0)


def test_a_straight_drift_does_not_widen_the_interval_of_the_mean_but_a_slow_wander_does() -> None:
    noise, time = related(np.random.default_rng(10), 0.0, 1, N)[0], np.linspace(-1, 1, N)
    flat, drifting, wandering = (mean_interval(noise + add) for add in (0 * time, 5 * time, 5 * time**2))
    assert flat is not None
    assert drifting == pytest.approx(flat, abs=1e-6)
    assert wandering is not None
    assert wandering[1] - wandering[0] > 3 * (flat[1] - flat[0])


def test_taking_related_samples_for_independent_ones_would_have_covered_too_seldom() -> None:
    """The control: the same samples shuffled, which hides from the interval that they are related."""
    rng = np.random.default_rng(2)
    intervals = [i for row in times_us(1, 0.6) if (i := median_interval(rng.permutation(row))) is not None]
    assert coverage(intervals, 100.0) < 0.85


def test_a_lower_confidence_gives_a_narrower_interval_that_covers_less_often() -> None:
    rows = times_us(3)
    wide, narrow = ([median_interval(row, confidence) for row in rows] for confidence in (0.95, 0.5))
    for outer, inner in zip(wide, narrow, strict=True):
        assert outer is not None
        assert inner is not None
        assert outer[0] <= inner[0] <= inner[1] <= outer[1]
    # √(0.5 × 0.5 / 400) = 2.5 %: four of them to each side.
    assert 0.4 <= coverage([i for i in narrow if i is not None], 100.0) <= 0.6


@pytest.mark.parametrize("restarts", [2, 5])
def test_the_interval_over_restarts_covers_the_typical_process(restarts: int) -> None:
    """Each process has a median of its own, 5 % around the typical one, and noise of its own around that."""
    rng = np.random.default_rng(4)
    typical_us, intervals = 100.0, []
    for _ in range(REPEATS):
        own = typical_us * np.exp(0.05 * rng.standard_normal(restarts))
        medians = [float(np.median(m * np.exp(0.1 * rng.standard_normal(50)))) for m in own]
        centre, low, high, _ = restarts_interval(medians)
        assert low <= centre <= high
        intervals.append((low, high))
    assert 0.90 <= coverage(intervals, typical_us) <= 0.99


def test_restarts_of_positive_times_are_averaged_on_logarithms_and_others_as_they_are() -> None:
    centre, low, high, how = restarts_interval([50.0, 200.0])
    assert centre == pytest.approx(100.0)
    assert 0 < low < centre < high
    assert how == "geometric mean of the medians of 2 processes, Student's t on their logarithms"
    centre, low, high, how = restarts_interval([-50.0, 0.0, 50.0])
    assert centre == pytest.approx(0.0)
    assert low == pytest.approx(-high)
    assert how == "mean of the medians of 3 processes, Student's t"


def test_restarts_that_agree_exactly_leave_no_doubt() -> None:
    centre, low, high, _ = restarts_interval([3.5] * 4)
    assert [centre, low, high] == pytest.approx([3.5] * 3)


def test_independent_samples_are_worth_about_their_number() -> None:
    worth = [effective_size(row) for row in times_us(5, repeats=50)]
    assert np.mean(worth) > 0.8 * N  # never more than their number, and so a little less on average
    assert max(worth) <= N


def test_related_samples_are_worth_much_less() -> None:
    """In theory, for signs, 1 / (1 + 4 / π Σ asin ρ^k): a third of them at 0.6, a fourteenth at 0.9."""
    for rho, share in ((0.6, 1 / 3), (0.9, 1 / 14)):
        worth = np.mean([effective_size(row) for row in times_us(6, rho, repeats=50, n=1000)])
        assert share * 1000 / 2 <= worth <= share * 1000 * 2


def test_one_enormous_sample_does_not_hide_that_the_others_are_related() -> None:
    row = times_us(7, 0.9, repeats=1)[0]
    calm = effective_size(row)
    row[N // 2] = 1e9
    assert effective_size(row) == pytest.approx(calm, rel=0.25)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=60))
def test_samples_are_worth_between_one_and_their_number_and_the_interval_lies_among_them(values: list[float]) -> None:
    samples = np.array(values)
    assert 1 <= effective_size(samples) <= len(values)
    interval = median_interval(samples)
    if interval is not None:
        in_order = [samples.min(), interval[0], np.median(samples), interval[1], samples.max()]
        assert in_order == pytest.approx(sorted(in_order), rel=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.floats(1e-3, 1e3))
def test_another_unit_of_time_gives_the_same_interval_in_that_unit(seed: int, scale: float) -> None:
    samples = times_us(seed, repeats=1, n=50)[0]
    here, there = median_interval(samples), median_interval(samples * scale)
    assert here is not None
    assert there == pytest.approx((here[0] * scale, here[1] * scale))


@pytest.mark.parametrize("value", [0.1, 3.3, 12.7, 5.0, 0.0])
def test_a_constant_series_has_an_interval_of_one_point_and_no_autocorrelation(value: float) -> None:
    samples = np.full(N, value)
    assert median_interval(samples) == (value, value)
    assert effective_size(samples) == N
    assert autocorrelation(samples) is None


def test_too_few_samples_have_no_interval() -> None:
    for n in range(1, 6):
        assert median_interval(np.arange(float(n))) is None
    assert median_interval(np.array([3.0, 1.0, 6.0, 2.0, 5.0, 4.0, 3.5])) is not None


def test_many_samples_that_all_resemble_each_other_are_too_few() -> None:
    there_and_back = np.abs(np.linspace(-1.0, 1.0, N))
    assert effective_size(there_and_back) < 6
    assert median_interval(there_and_back) is None


def test_a_straight_drift_has_an_interval_around_the_middle_of_the_window() -> None:
    interval = median_interval(np.linspace(1.0, 2.0, N))
    assert interval is not None
    assert interval[0] < 1.5 < interval[1]


def test_the_autocorrelation_is_that_of_neighbours_so_far_apart() -> None:
    row = related(np.random.default_rng(8), 0.6, 1, 20_000)[0]
    assert autocorrelation(row) == pytest.approx(0.6, abs=0.05)
    assert autocorrelation(row, 2) == pytest.approx(0.36, abs=0.05)
    assert autocorrelation(np.array([1.0, -1.0] * 50)) == pytest.approx(-0.99)


def test_the_autocorrelation_of_too_few_samples_is_not_known() -> None:
    assert autocorrelation(np.array([1.0, 2.0])) is None
    assert autocorrelation(np.array([1.0, 2.0, 4.0])) is not None
    assert autocorrelation(np.array([1.0, 2.0, 4.0]), lag=2) is None


def test_a_rare_second_level_leaves_the_median_its_interval() -> None:
    draw = np.random.default_rng(5)
    covered = 0
    for _ in range(100):
        rare = np.repeat(draw.random(50) < 0.1, 20)
        samples = 1 + 0.03 * draw.standard_normal(1000) + 0.1 * rare
        if rare.mean() >= 0.2:
            covered += 1
            continue
        interval = median_interval(samples)
        assert interval is not None
        many = 1 + 0.03 * draw.standard_normal(100_000) + 0.1 * draw.choice(rare, 100_000)
        covered += bool(interval[0] <= np.median(many) <= interval[1])
    assert covered >= 90


def test_two_levels_of_equal_weight_are_refused() -> None:
    draw = np.random.default_rng(6)
    half = np.repeat(np.arange(50) % 2 == 0, 20)
    assert median_interval(1 + 0.03 * draw.standard_normal(1000) + 0.1 * half) is None


def noisy(seed: int, centre: float = 100.0, n: int = 200) -> Samples:
    return centre * np.exp(0.02 * np.random.default_rng(seed).standard_normal(n))


def test_one_process_speaks_for_itself_only() -> None:
    samples = noisy(1)
    found = estimate_median([samples], "µs")
    assert found.scope == "process"
    assert found.value == np.median(samples)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert (found.unit, found.n, found.confidence) == ("µs", 200, 0.95)
    assert found.method == "median, order statistics at the effective sample size, widened where the samples wander"


def test_samples_that_are_each_a_process_speak_for_the_run() -> None:
    assert estimate_median([noisy(1)], "µs", scope_of_one="run").scope == "run"


def test_several_restarts_speak_for_the_run() -> None:
    restarts = [noisy(seed, centre) for seed, centre in enumerate((95.0, 100.0, 105.0))]
    found = estimate_median(restarts, "µs")
    assert found.scope == "run"
    assert found.n == 600
    assert found.low is not None
    assert found.high is not None
    assert found.low < 95.0 < found.value < 105.0 < found.high
    assert "3 processes" in found.method


def test_more_samples_within_the_same_few_processes_do_not_narrow_the_interval_of_a_run() -> None:
    few, many = ([noisy(seed, 90.0 + 10 * seed, n) for seed in range(3)] for n in (200, 20_000))
    narrow, wide = (estimate_median(restarts, "µs").relative_half_width for restarts in (few, many))
    assert narrow == pytest.approx(wide, rel=0.1)


def test_too_few_samples_give_a_value_and_say_why_there_is_no_interval() -> None:
    found = estimate_median([np.array([1.0, 2.0, 9.0])], "µs")
    assert (found.value, found.low, found.high, found.n) == (2.0, None, None, 3)
    assert found.method == f"{ONE_PROCESS_METHOD}; no interval: too few effective samples"


def test_a_clock_on_two_levels_has_no_interval_and_the_estimate_names_the_levels() -> None:
    found = estimate_median([np.concatenate([noisy(seed, 100.0 + 10 * (seed % 2), 50) for seed in range(6)])], "µs")
    assert (found.low, found.high) == (None, None)
    assert "; no interval: two levels, " in found.method
    assert found.method.endswith("% of the time)")


def test_restarts_of_one_sample_each_still_have_an_interval() -> None:
    found = estimate_median([np.array([x]) for x in (1.0, 2.0, 4.0)], "s")
    assert found.value == pytest.approx(2.0)
    assert found.low is not None


def test_a_summary_describes_the_samples_of_all_restarts() -> None:
    restarts = [np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0])]
    found = summarize_samples("timed", 1, "call_us", "µs", restarts)
    assert (found.role, found.subject, found.quantity, found.n) == ("timed", 1, "call_us", 5)
    assert (found.minimum, found.maximum, found.mean) == (1.0, 5.0, 3.0)
    assert found.quartiles == (2.0, 3.0, 4.0)
    assert found.cv == pytest.approx(np.sqrt(2.5) / 3)
    assert found.estimate.unit == "µs"
    assert found.estimate.n == 5


def test_one_sample_has_neither_spread_nor_autocorrelation() -> None:
    found = summarize_samples("timed", 0, "call_us", "µs", [np.array([7.0])], scope_of_one="run")
    assert (found.cv, found.autocorrelation) == (None, None)
    assert found.quartiles == (7.0, 7.0, 7.0)
    assert (found.estimate.scope, found.estimate.low) == ("run", None)


def test_a_constant_series_has_no_spread_and_an_interval_of_one_point() -> None:
    found = summarize_samples("timed", 0, "call_us", "µs", [np.full(50, 0.1)])
    assert found.cv == pytest.approx(0.0, abs=1e-12)
    assert found.autocorrelation is None
    assert (found.estimate.low, found.estimate.value, found.estimate.high) == (0.1, 0.1, 0.1)


def test_samples_around_zero_have_no_relative_spread() -> None:
    assert summarize_samples("timed", 0, "drift_us", "µs", [np.array([-1.0, 1.0])]).cv is None


def test_the_autocorrelation_is_that_within_processes_not_across_them() -> None:
    """Two processes on very different levels: pooled they would look related, each alone is not."""
    restarts = [noisy(seed, centre) for seed, centre in enumerate((100.0, 1000.0))]
    found = summarize_samples("timed", 0, "call_us", "µs", restarts)
    assert found.autocorrelation == pytest.approx(0.0, abs=0.15)


@given(n=st.integers(1, 60), seed=st.integers(0, 5))
def test_the_first_draw_is_all_samples_as_they_came(n: int, seed: int) -> None:
    samples = np.random.default_rng(seed).normal(100.0, 1.0, n)
    chosen = draw_indices(samples, seed)
    assert chosen.shape == (RESAMPLES + 1, n)
    assert (chosen[0] == np.arange(n)).all()
    assert ((chosen >= 0) & (chosen < n)).all()
    assert medians_of_draws(samples, chosen)[0] == np.median(samples)
    assert (chosen == draw_indices(samples, seed)).all(), "the same whenever it is looked at"


@pytest.mark.full
@pytest.mark.parametrize("n", [8, 10, 30])
def test_a_ratio_of_two_medians_lies_within_as_often_as_is_said(n: int) -> None:
    chance = np.random.default_rng(n)
    hits = tries = 0
    for seed in range(200):
        one, other = (np.exp(chance.normal(0.0, 0.05, n)) for _ in range(2))
        if explain_no_process_interval(one) or explain_no_process_interval(other):
            continue
        ends = draws_interval(
            medians_of_draws(one, draw_indices(one, 2 * seed))
            / medians_of_draws(other, draw_indices(other, 2 * seed + 1))
        )
        assert ends is not None
        tries += 1
        hits += ends[0] <= 1.0 <= ends[1]
    assert tries > 60
    assert hits >= at_least(0.95, tries)


def test_samples_that_resemble_their_neighbours_are_drawn_in_runs_and_widen_the_interval() -> None:
    chance = np.random.default_rng(1)
    slow = np.repeat(chance.normal(100.0, 1.0, 20), 10)
    mixed = chance.permutation(slow)
    widths = []
    for samples in (slow, mixed):
        ends = draws_interval(medians_of_draws(samples, draw_indices(samples, 0)))
        assert ends is not None
        widths.append(ends[1] - ends[0])
    assert widths[0] > 1.5 * widths[1]


def test_what_is_drawn_together_cancels_together() -> None:
    chance = np.random.default_rng(2)
    shared = chance.normal(0.0, 5.0, 30)
    full, compute = 110.0 + shared, 100.0 + shared
    chosen = draw_indices(full, 0)
    ends = draws_interval(medians_of_draws(full, chosen) - medians_of_draws(compute, chosen))
    assert ends == pytest.approx((10.0, 10.0))


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (np.ones(1), "1 sample of one process are too few"),
        (np.ones(5), "5 samples"),
        (np.tile(np.repeat([1.0, 2.0], 50), 6) * np.linspace(1, 1.01, 600), "two levels"),
    ],
)
def test_too_little_is_refused_with_the_reason(
    samples: np.ndarray[tuple[int], np.dtype[np.float64]], said: str
) -> None:
    assert said in (explain_no_process_interval(samples) or "")


def test_enough_is_not_refused() -> None:
    assert explain_no_process_interval(np.random.default_rng(0).normal(100.0, 1.0, 10)) is None


def test_a_draw_without_a_number_leaves_no_interval() -> None:
    assert draws_interval(np.array([1.0, 2.0, np.inf])) is None


def test_repeats_are_averaged_as_ratios_where_all_are_positive_and_as_they_are_otherwise() -> None:
    centre, low, high = repeats_interval(np.array([1.0, 4.0]))
    assert centre == pytest.approx(2.0)
    assert low < 1.0
    assert high > 4.0
    centre, low, high = repeats_interval(np.array([-1.0, 1.0, 3.0]))
    assert centre == pytest.approx(1.0)
    assert (low + high) / 2 == pytest.approx(1.0)
