"""Intervals of what a sensor read in several processes cover the truth, whatever the sensor's error is like."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.stats.intervals import min_samples_for_quantile, quantile_interval
from assay.stats.sensor_intervals import (
    HALF_WIDTH_DEVIATIONS,
    ProcessReading,
    combine_processes,
    mean_spread,
    rate_spread,
    scope_of_processes,
)

TRIES = 400


def covered(processes: int, between: float, error: float, common: float, *, unequal: bool = False) -> float:
    """Return how often the interval held; ``common`` is the share of the sensor's variance that all windows have."""
    chance = np.random.default_rng(1)
    errors = np.full(processes, error)
    if unequal:
        errors[::2] /= 4
    held = 0
    for _ in range(TRIES):
        off = np.sqrt(common) * chance.normal() + np.sqrt(1 - common) * chance.normal(size=processes)
        values = np.exp(chance.normal(0, between, processes) + errors * off)
        found = combine_processes(
            [ProcessReading(float(v), HALF_WIDTH_DEVIATIONS * float(e)) for v, e in zip(values, errors, strict=True)]
        )
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.0 <= found.high
    return held / TRIES


@pytest.mark.parametrize("common", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("between", "error"), [(0.005, 0.005), (0.0002, 0.01), (0.01, 0.002)])
def test_the_interval_covers_whether_windows_share_the_sensors_error_or_not(
    between: float, error: float, common: float
) -> None:
    assert covered(3, between, error, common) > 0.92
    assert covered(6, between, error, common, unequal=True) > 0.92


def test_windows_that_the_sensor_knows_better_count_for_more_where_processes_are_alike() -> None:
    found = combine_processes(
        [
            ProcessReading(1.0, 0.001),
            ProcessReading(1.1, 0.1),
            ProcessReading(0.999, 0.001),
            ProcessReading(1.001, 0.001),
        ]
    )
    assert found.value == pytest.approx(1.0, abs=0.002)


def test_repeating_does_not_narrow_below_what_the_sensor_allows() -> None:
    found = combine_processes([ProcessReading(2.0, 0.01)] * 50)
    assert found.high is not None
    assert found.high / 2.0 - 1 == pytest.approx(0.01, rel=0.02)


def test_one_process_has_the_sensors_interval_where_no_calls_are_in_it_or_none() -> None:
    assert combine_processes([ProcessReading(5.0)]).low is None
    found = combine_processes([ProcessReading(5.0, 0.02)])
    assert (found.low, found.high) == pytest.approx((4.9, 5.1))


def test_one_process_of_calls_adds_their_spread_to_the_sensors_interval_in_squares() -> None:
    found = combine_processes([ProcessReading(2.0, 0.03, calls=20, spread=0.04)])
    assert (found.low, found.high) == pytest.approx((1.9, 2.1))
    assert found.method == (
        "one process: the spread of its calls and the sensor's statistical interval, added in squares"
    )
    alone = combine_processes([ProcessReading(2.0, 0.03, calls=1)])
    assert (alone.low, alone.high) == (None, None), "the sensor's interval alone says nothing of the workload"
    assert alone.method == "one process of one call: too little for an interval"


def test_fewer_than_three_processes_do_not_stand_for_a_run() -> None:
    assert [scope_of_processes(processes) for processes in (1, 2, 3, 5)] == ["process", "process", "run", "run"]
    two = combine_processes([ProcessReading(2.0, 0.001, 20, 0.3), ProcessReading(2.0, 0.001, 20, 0.3)])
    assert two.high is not None
    assert two.high / two.value - 1 > 0.29, "two that happen to agree are not surer than their calls"
    assert "fewer than the 3" in two.method


def test_the_spread_of_calls_is_that_of_their_time_over_what_they_made() -> None:
    """By hand: times 9 and 11 by turns, mean 10, deviations of 10 %; of four, Student's t of 3 degrees is 3.18."""
    four = np.array([9.0, 11.0, 9.0, 11.0])
    expected = 3.1824 * float(np.std([0.9, 1.1, 0.9, 1.1], ddof=1)) / 2
    assert rate_spread(np.ones(4), four) == pytest.approx(expected, rel=1e-4)
    assert rate_spread(four, four) == pytest.approx(0.0, abs=1e-12), "calls that make more in more time are alike"
    assert rate_spread(np.ones(1), np.ones(1)) is None
    assert rate_spread(np.ones(3), np.ones(4)) is None
    assert mean_spread(np.array([1.0])) is None


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=40), st.floats(0.0, 0.2), st.floats(0.1, 1e4))
def test_the_interval_is_never_narrower_than_either_of_its_parts(times: list[float], sensor: float, j: float) -> None:
    spread = rate_spread(np.ones(len(times)), np.array(times))
    assert spread is not None
    found = combine_processes([ProcessReading(j, sensor, len(times), spread)])
    assert found.low is not None
    assert found.high is not None
    half = (found.high - found.low) / 2 / j
    assert half >= max(spread, sensor) - 1e-9
    assert half <= spread + sensor + 1e-9


@pytest.mark.parametrize("calls", [4, 12, 40])
def test_three_windows_of_one_workload_agree_though_its_calls_differ(calls: int) -> None:
    """The sensor alone is sure to ±0.3 %, calls differ by 15 %: windows of the same process must not exclude it."""
    chance = np.random.default_rng(3)
    held = both = 0
    for _ in range(TRIES):
        windows = []
        for _ in range(2):
            times = chance.lognormal(0.0, 0.15, calls)
            sensor = 1 + 0.0015 * chance.normal()
            spread = rate_spread(np.ones(calls), times)
            windows.append(combine_processes([ProcessReading(float(times.mean()) * sensor, 0.003, calls, spread)]))
        truth = float(np.exp(0.15**2 / 2))
        (one, other) = [(found.low or 0.0, found.high or 0.0) for found in windows]
        held += one[0] <= truth <= one[1]
        both += one[0] <= other[1] and other[0] <= one[1]
    assert held / TRIES > 0.91
    assert both / TRIES > 0.97


def test_times_have_the_spread_of_their_processes_alone_and_zero_is_a_number() -> None:
    assert "sensor" not in combine_processes([ProcessReading(1.0), ProcessReading(1.1)]).method
    found = combine_processes([ProcessReading(0.0), ProcessReading(2.0)])
    assert found.value == 1.0
    assert found.low is not None
    assert found.low < 0


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_intervals_of_quantiles_cover_the_truth(share: float) -> None:
    chance = np.random.default_rng(2)
    truth = -np.log(1 - share)
    tries = [quantile_interval(chance.exponential(size=3000), share) for _ in range(300)]
    held = [each is not None and each[0] <= truth <= each[1] for each in tries]
    assert np.mean(held) > 0.9


def test_a_quantile_beyond_its_samples_has_no_interval() -> None:
    assert (min_samples_for_quantile(0.99), min_samples_for_quantile(0.95), min_samples_for_quantile(0.5)) == (
        100,
        20,
        2,
    )
    assert quantile_interval(np.arange(99.0), 0.99) is None
    assert quantile_interval(np.arange(150.0), 0.99) is None, "its upper end would lie beyond the largest"
