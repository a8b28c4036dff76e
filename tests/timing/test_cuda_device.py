"""What stamps of a GPU's clocks say: nanoseconds, cycles where one multiprocessor took both, and the clock between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.timing.cuda.device import (
    ASSUMED_CALIBRATION,
    CYCLE_COUNTER_BELOW_NS,
    REFERENCE_NS,
    TIMER_ERROR_US,
    StampPairs,
    TimerCalibration,
    read_stamps,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def words(*pairs: tuple[int, int], start_ns: int = 10**18, sm: tuple[int, int] = (3, 3)) -> NDArray[np.int64]:
    """Return slots as the kernels write them, from the nanoseconds and cycles of each pair."""
    rows = [
        [start_ns, 5_000, sm[0] | 7 << 32, 0, start_ns + ns, 5_000 + cycles, sm[1] | 9 << 32, 0] for ns, cycles in pairs
    ]
    return np.array(rows, dtype=np.int64)


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 2 * 10**12)), min_size=1, max_size=64))
def test_differences_are_exact_however_large_the_counters_are(pairs: list[tuple[int, int]]) -> None:
    stamps = read_stamps(words(*pairs))
    assert stamps.ns.tolist() == [float(ns) for ns, _ in pairs]
    assert stamps.cycles is not None
    assert stamps.cycles.tolist() == [float(cycles) for _, cycles in pairs]


def test_cycles_of_two_multiprocessors_are_not_compared() -> None:
    stamps = read_stamps(words((1000, 2000), sm=(3, 4)))
    assert stamps.cycles is None
    assert stamps.mhz is None
    assert stamps.us.tolist() == [1.0]


def test_what_lies_beside_the_number_of_the_multiprocessor_is_not_looked_at() -> None:
    assert read_stamps(words((1000, 2000))).cycles is not None


def test_the_clock_is_cycles_over_time_over_all_pairs() -> None:
    assert read_stamps(words((1000, 1900), (3000, 6100))).mhz == pytest.approx(2000.0)


def test_no_time_at_all_has_no_clock() -> None:
    assert read_stamps(words((0, 0))).mhz is None


def test_short_times_are_taken_from_the_finer_cycle_counter() -> None:
    # The timer steps by 32 ns: 1000 and 1032 are the same time, and the cycles know it.
    stamps = read_stamps(words((992, 2000), (1024, 2000), (1024, 2032)))
    assert stamps.us[0] == stamps.us[1]
    assert stamps.us[2] > stamps.us[1]
    assert stamps.us == pytest.approx(np.array([1.0, 1.0, 1.0]), rel=0.05)


def test_long_times_are_taken_from_the_timer() -> None:
    stamps = read_stamps(words((2 * CYCLE_COUNTER_BELOW_NS, 1), (4 * CYCLE_COUNTER_BELOW_NS, 10**6)))
    assert stamps.us.tolist() == [2 * CYCLE_COUNTER_BELOW_NS / 1000, 4 * CYCLE_COUNTER_BELOW_NS / 1000]


def test_some_of_the_pairs_can_be_taken_out() -> None:
    stamps = read_stamps(words((1000, 10), (2000, 20), (3000, 30)))
    some = stamps.select(np.array([True, False, True]))
    assert some.ns.tolist() == [1000.0, 3000.0]
    assert some.cycles is not None
    assert some.cycles.tolist() == [10.0, 30.0]
    assert StampPairs(stamps.ns, None).select(np.array([True, False, False])).cycles is None


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
