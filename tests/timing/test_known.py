"""What is assumed of a GPU until it is known: complete for every method and cache, and less sure of itself."""

from __future__ import annotations

import pytest

from assay.timing.cuda.device import ASSUMED_CALIBRATION, REFERENCE_NS, TIMER_ERROR_US, TimerCalibration


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_what_is_assumed_is_complete(cache: str) -> None:
    assert {f"spin {cache}", f"wide {cache}"} <= set(ASSUMED_CALIBRATION.reference_us)
    assert {f"graph {cache}", f"queue {cache}"} <= set(ASSUMED_CALIBRATION.boundary_us)


def test_a_reference_takes_at_least_as_long_as_it_spins() -> None:
    assert all(us >= REFERENCE_NS / 1000 for us in ASSUMED_CALIBRATION.reference_us.values())


def test_what_is_assumed_is_less_sure_than_what_is_known() -> None:
    assert all(ASSUMED_CALIBRATION.error_us[method] > error_us for method, error_us in TIMER_ERROR_US.items())


def test_what_is_known_survives_the_way_through_a_file() -> None:
    assert TimerCalibration.model_validate_json(ASSUMED_CALIBRATION.model_dump_json()) == ASSUMED_CALIBRATION
