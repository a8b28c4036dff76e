"""Whether a series of runs has become slower: told soon, and seldom without cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.stats.steps import CONFIRMED_BY, HISTORY, first_steps, together

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]

NOISE, RUNS, SERIES, CHANGED = 0.03, 100, 20, 60


def stable(rho: float = 0.0, spikes: float = 0.0, seed: int = 0) -> Samples:
    """Return log times of series that do not change."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((SERIES, RUNS))
    for run in range(1, RUNS):
        noise[:, run] = rho * noise[:, run - 1] + np.sqrt(1 - rho**2) * noise[:, run]
    hit = rng.random((SERIES, RUNS)) < spikes
    return np.asarray(NOISE * noise + hit * rng.uniform(0.1, 0.4, (SERIES, RUNS)), dtype=np.float64)


@pytest.mark.parametrize(("rho", "spikes"), [(0.0, 0.0), (0.6, 0.0), (0.0, 0.05)])
def test_stable_series_seldom_give_an_alarm(rho: float, spikes: float) -> None:
    told = [step for seed in range(2) for step in first_steps(stable(rho, spikes, seed)) if step is not None]
    assert len(told) <= 3


def test_a_step_of_a_tenth_is_told_within_five_runs_with_its_size_and_first_run() -> None:
    logs = stable(seed=3)
    logs[:, CHANGED:] += np.log(1.1)
    steps = [step for step in first_steps(logs) if step is not None]
    soon = [step for step in steps if CHANGED <= step.told < CHANGED + 5]
    assert len(soon) >= 17
    assert np.median([abs(step.first - CHANGED) for step in soon]) <= 1
    assert np.mean([step.low <= np.log(1.1) <= step.high for step in soon]) > 0.8


def test_two_spikes_in_a_row_are_no_step() -> None:
    logs = stable(seed=4)
    logs[:, CHANGED : CHANGED + 2] += np.log(1.3)
    assert sum(step is not None for step in first_steps(logs)) <= 1


def test_another_host_is_no_step() -> None:
    logs, hosts = stable(seed=5), np.zeros((SERIES, RUNS), dtype=np.int64)
    hosts[:, CHANGED:] = 1
    logs[:, CHANGED:] += np.log(1.1)
    assert sum(step is not None for step in first_steps(logs, hosts)) <= 1


def test_series_may_be_short_have_gaps_or_never_move() -> None:
    gaps = stable(seed=6)[0]
    gaps[10:20] = np.nan
    rows = together([np.zeros(HISTORY + CONFIRMED_BY), gaps, np.full(RUNS, 0.5)])
    assert first_steps(rows) == [None, None, None]
