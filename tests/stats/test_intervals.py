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

from assay.stats.intervals import autocorrelation, effective_size, mean_interval, median_interval, restarts_interval
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
