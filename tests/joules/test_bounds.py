"""How often stated bounds hold, for random loads of known joules: in small; ``benchmarks/joules.py`` counts in full."""

from __future__ import annotations

import pytest

from tests.joules.trials import LENGTHS, LOADS, SENSORS, call_trial, model_of, window_trial

SEEDS = range(2)


@pytest.mark.full
@pytest.mark.parametrize("sensor", SENSORS)
def test_bounds_of_calls_hold_and_are_narrow(sensor: str) -> None:
    lengths = [length for length in LENGTHS if length != "10 µs"]
    outcomes = [call_trial(sensor, model_of(sensor), length, 70 + seed) for length in lengths for seed in SEEDS]
    assert sum(outcome.holds for outcome in outcomes) >= 0.9 * len(outcomes)
    assert max(outcome.width for outcome in outcomes) <= 0.1
    assert max(abs(outcome.ratio - 1) for outcome in outcomes) <= 0.05


def test_a_call_of_ten_microseconds_is_told_to_a_percent() -> None:
    outcome = call_trial("Hopper", model_of("Hopper"), "10 µs", 5)
    assert outcome.ratio == pytest.approx(1.0, abs=0.01)
    assert outcome.holds


@pytest.mark.full
@pytest.mark.parametrize("sensor", SENSORS)
def test_bounds_of_windows_hold_and_are_narrow(sensor: str) -> None:
    outcomes = [window_trial(sensor, model_of(sensor), load, 90, (1.0, 3.0)) for load in LOADS]
    assert sum(outcome.holds for outcome in outcomes) >= len(outcomes) - 1
    assert max(outcome.width for outcome in outcomes) <= 0.1
