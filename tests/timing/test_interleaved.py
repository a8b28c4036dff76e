"""Turns: everybody once a round, in an order that is fair and repeatable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import BadInput, TrialFailed
from assay.timing.interleaved import RoundMedians, RoundOrder, common_quantity, instrument_for
from assay.timing.sampling import SampleBatch
from assay.timing.setup import BoundCall, TimedCall
from tests.timing.faking import Known, VirtualTime, noisy, nothing

if TYPE_CHECKING:
    from assay.timing.results import TimeQuantity


def rigged(decisive: TimeQuantity = "call_us", **more: object) -> TimedCall:
    instrument = Known(VirtualTime(), noisy(1.0), primary=decisive)
    return TimedCall(BoundCall("f", nothing), instrument, decisive, "cpu", "why", **more)  # type: ignore[arg-type]


@given(st.integers(1, 8), st.integers(0, 2**32))
def test_a_round_has_everybody_once_and_the_next_one_the_other_way_round(count: int, seed: int) -> None:
    order = RoundOrder(seed)
    for _ in range(3):
        first, second = order.next(range(count)), order.next(range(count))
        assert sorted(first) == list(range(count))
        assert second == first[::-1]


@given(st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_order(seed: int) -> None:
    one, other = RoundOrder(seed), RoundOrder(seed)
    assert [one.next(range(5)) for _ in range(6)] == [other.next(range(5)) for _ in range(6)]


def test_when_somebody_leaves_the_order_is_drawn_anew() -> None:
    order = RoundOrder(0)
    order.next(range(4))
    assert sorted(order.next([0, 2, 3])) == [0, 2, 3]


def test_each_of_two_goes_first_equally_often() -> None:
    order = RoundOrder(1)
    firsts = [order.next(range(2))[0] for _ in range(200)]
    assert firsts.count(0) == 100


def test_a_turn_keeps_the_median_of_its_batch_its_cycles_and_its_clock() -> None:
    turn = RoundMedians()
    batch = SampleBatch({"busy_us": np.array([3.0, 1.0, 2.0]), "cycles": np.array([30.0, 10.0, 20.0])}, mhz=1980.0)
    assert turn.add(batch, "busy_us") == 2.0
    assert (turn.us, turn.cycles, turn.mhz) == ([2.0], [20.0], [1980.0])


def test_a_time_that_a_batch_does_not_have_is_bad_input_with_what_it_has() -> None:
    batch = SampleBatch({"span_us": np.ones(1), "cycles": np.ones(1)})
    with pytest.raises(BadInput, match=r"busy cannot be told of these calls; what can is span\."):
        RoundMedians().add(batch, "busy_us")


def test_functions_are_compared_by_the_time_that_all_are_measured_by() -> None:
    assert common_quantity([rigged("busy_us"), rigged("busy_us")]) == "busy_us"
    assert common_quantity([rigged("busy_us"), rigged("span_us")]) == "span_us"
    assert common_quantity([rigged("busy_us"), rigged("call_us")]) == "call_us"
    assert common_quantity([rigged("call_us")]) == "call_us"


def test_the_instrument_is_the_one_that_gives_the_time() -> None:
    beside = Known(VirtualTime(), noisy(2.0), primary="busy_us", method="beside")
    each = rigged("span_us", busy_instrument=beside)
    assert instrument_for(each, "span_us").method == "known"
    assert instrument_for(each, "busy_us").method == "beside"


def test_what_a_call_raises_is_blamed_on_it_by_name() -> None:
    def broken(first: int, n: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        raise ValueError("no")

    each = TimedCall(BoundCall("mine", nothing), Known(VirtualTime(), broken), "call_us", "cpu", "why")
    with pytest.raises(TrialFailed, match="mine raised ValueError: no"):
        instrument_for(each, "call_us").take()
