"""From samples to an estimate that says where it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.stats.intervals import ONE_PROCESS_METHOD, estimate_median, summarize_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]


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
