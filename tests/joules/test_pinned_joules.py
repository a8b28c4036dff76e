"""A made-up recording gives the numbers it gave, to the fifth digit, and its joules are those that were spent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.joules.pinned import CALL_S, IDLE_W, KEPT, OPEN_S, STEP_S, WINDOWS, WORK, numbers, power_w
from tests.pinning import differences


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return numbers()


def test_every_number_is_what_it_was(found: dict[str, Any]) -> None:
    assert differences(found, KEPT) == {}


def spent_j(start_s: float, end_s: float) -> float:
    """Return what was truly spent between two moments."""
    t = np.arange(0.0, 10.0, STEP_S)
    return float(power_w()[(t >= start_s - 1e-9) & (t < end_s - 1e-9)].sum()) * STEP_S


@pytest.mark.parametrize("sensors", ["all", "counter", "instant", "average"])
def test_the_joules_of_windows_are_those_that_were_spent(found: dict[str, Any], sensors: str) -> None:
    told = 0
    for start_s, end_s in WINDOWS:
        window = found[f"{start_s} to {end_s} s by {sensors}"]
        if window["joules"] is not None:
            off = window["systematic_j"] or 0.0
            assert window["joules"]["low"] - off <= spent_j(start_s, end_s) <= window["joules"]["high"] + off
            told += 1
    assert told >= 2


@pytest.mark.parametrize("sensors", ["all", "counter", "instant", "average"])
def test_the_joules_of_calls_are_those_that_were_spent(found: dict[str, Any], sensors: str) -> None:
    calls = found[f"per call by {sensors}"]
    (start_s, before), (again_s, after) = WORK
    first_s = start_s + np.ceil((OPEN_S - start_s) / CALL_S - 1e-9) * CALL_S
    true_j = spent_j(first_s, start_s + before * CALL_S) + spent_j(again_s, again_s + after * CALL_S)
    assert calls["joules"] == pytest.approx(true_j / calls["calls"], abs=calls["error_j"] + calls["systematic_j"])
    assert calls["idle_w"] is None or calls["idle_w"] == pytest.approx(IDLE_W, rel=0.05)
