"""Intervals of what a sensor read in several processes cover the truth, whatever the sensor's error is like."""

from __future__ import annotations

import numpy as np
import pytest

from assay.stats.metered import DEVIATIONS, Draw, typical
from assay.stats.quantiles import fewest, quantile_interval

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
        found = typical([Draw(float(v), DEVIATIONS * float(e)) for v, e in zip(values, errors, strict=True)])
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
    found = typical([Draw(1.0, 0.001), Draw(1.1, 0.1), Draw(0.999, 0.001), Draw(1.001, 0.001)])
    assert found.value == pytest.approx(1.0, abs=0.002)


def test_repeating_does_not_narrow_below_what_the_sensor_allows() -> None:
    found = typical([Draw(2.0, 0.01)] * 50)
    assert found.high is not None
    assert found.high / 2.0 - 1 == pytest.approx(0.01, rel=0.02)


def test_one_process_has_the_sensors_interval_or_none() -> None:
    assert typical([Draw(5.0)]).low is None
    found = typical([Draw(5.0, 0.02)])
    assert (found.low, found.high) == pytest.approx((4.9, 5.1))


def test_times_have_the_spread_of_their_processes_alone_and_zero_is_a_number() -> None:
    assert "sensor" not in typical([Draw(1.0), Draw(1.1)]).method
    found = typical([Draw(0.0), Draw(2.0)])
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
    assert (fewest(0.99), fewest(0.95), fewest(0.5)) == (100, 20, 2)
    assert quantile_interval(np.arange(99.0), 0.99) is None
    assert quantile_interval(np.arange(150.0), 0.99) is None, "its upper end would lie beyond the largest"
