"""Whether a series of runs has become slower: told soon, and seldom without cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.stats.changepoint import (
    ALARM,
    DOWN,
    FALSE_DISCOVERY_RATE,
    MIN_RUNS,
    UP,
    ShiftSearch,
    false_alarm_probability,
    find_level_shifts,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from assay.stats.changepoint import LevelShift

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
    alarms = 0
    for seed in range(2):
        alarms += int((ShiftSearch(stable(rho, spikes, seed)).evidence[UP].log_odds.max(axis=1) > ALARM).sum())
    assert alarms <= 3


def every(logs: Samples, hosts: NDArray[np.int64] | None = None) -> list[LevelShift]:
    return [step for one in find_level_shifts(list(logs), None if hosts is None else list(hosts)) for step in one]


@pytest.mark.full
@pytest.mark.parametrize("way", [UP, DOWN])
def test_a_step_of_a_tenth_is_told_within_five_runs_with_its_size_and_first_run(way: int) -> None:
    logs = stable(seed=3)
    logs[:, CHANGED:] += way * np.log(1.1)
    found = every(logs)
    soon = [step for step in found if step.direction == way and CHANGED <= step.detected_at < CHANGED + 5]
    assert len(soon) >= 17
    assert all(step.significant for step in soon)
    assert np.median([abs(step.first - CHANGED) for step in soon]) <= 1
    assert np.mean([step.first_low <= CHANGED <= step.first_high for step in soon]) > 0.8
    assert np.mean([step.low <= way * np.log(1.1) <= step.high for step in soon]) > 0.8
    assert all(abs(step.left - way * np.log(1.1)) < 0.07 for step in soon)


def test_two_spikes_in_a_row_are_no_step() -> None:
    logs = stable(seed=4)
    logs[:, CHANGED : CHANGED + 2] += np.log(1.3)
    assert len(every(logs)) <= 1


def test_another_host_is_no_step() -> None:
    logs, hosts = stable(seed=5), np.zeros((SERIES, RUNS), dtype=np.int64)
    hosts[:, CHANGED:] = 1
    logs[:, CHANGED:] += np.log(1.1)
    assert len(every(logs, hosts)) <= 1


def test_series_may_be_short_of_any_length_or_never_move() -> None:
    noisy = stable(seed=6)
    rows = [np.zeros(MIN_RUNS), noisy[0], np.full(RUNS, 0.5), noisy[1][: MIN_RUNS - 1], np.zeros(0)]
    assert find_level_shifts(rows) == [[], [], [], [], []]


def test_a_quiet_series_that_steps_by_a_percent_is_told() -> None:
    logs = stable(seed=7) / 30
    logs[0, CHANGED:] += 0.01
    (step,) = find_level_shifts(list(logs))[0]
    assert abs(step.first - CHANGED) <= 1
    assert step.low < 0.01 < step.high


@pytest.mark.full
@pytest.mark.parametrize("noise", [0.0, 1e-6, 3e-4])
@pytest.mark.parametrize("size", [0.02, 0.05, 1.0, 3.0, -0.05, -0.3])
def test_steps_of_any_size_in_series_that_hardly_scatter_have_their_way_run_and_size(noise: float, size: float) -> None:
    rng = np.random.default_rng(9)
    for at in (30, 40, 45):
        logs = noise * rng.standard_normal(60)
        logs[at:] += np.log1p(size)
        (step,) = find_level_shifts([logs])[0]
        assert (step.direction, step.first, step.significant) == (UP if size > 0 else DOWN, at, True)
        assert step.low < np.log1p(size) < step.high
        assert abs(step.left - np.log1p(size)) < 0.002


def test_among_many_stable_series_hardly_any_alarm_stands() -> None:
    found = find_level_shifts([row for seed in range(6) for row in stable(rho=0.6, seed=seed)])
    assert sum(step.significant for one in found for step in one) <= 2


def test_a_step_stands_among_many_series_where_it_is_clear() -> None:
    logs = [row for seed in range(6) for row in stable(seed=seed)]
    logs[7][CHANGED:] += np.log(1.12)
    assert [step.significant for step in find_level_shifts(logs)[7]] == [True]


def test_how_series_are_parted_does_not_change_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = stable(seed=8)
    logs[:5, CHANGED:] += np.log(1.08)
    whole = every(logs)
    monkeypatch.setattr("assay.stats.changepoint.MAX_FOLLOWED_TOGETHER", 7)
    assert every(logs) == whole


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 60), st.integers(MIN_RUNS, 2000))
def test_the_chance_of_an_alarm_is_one_and_grows_with_the_runs_and_falls_with_the_evidence(
    evidence: float, runs: int
) -> None:
    here = false_alarm_probability(evidence, runs)
    assert 0 <= here <= 1
    assert here <= false_alarm_probability(evidence, runs + 1)
    assert false_alarm_probability(evidence + 1, runs) <= here


def test_an_alarm_in_a_hundred_runs_has_the_chance_that_simulations_gave_it() -> None:
    assert false_alarm_probability(ALARM, RUNS) == pytest.approx(0.0396)
    assert false_alarm_probability(ALARM, RUNS) < FALSE_DISCOVERY_RATE
