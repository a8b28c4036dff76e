"""What stands between the stamps of a batch: every call, and often enough a reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.timing.cuda.device import SLOT_COUNT
from assay.timing.cuda.timers import MAX_BATCH_CALLS, slot_layout, trimmed_mean


@given(st.integers(1, MAX_BATCH_CALLS))
def test_all_calls_have_a_place_and_all_places_a_slot(calls: int) -> None:
    places = slot_layout(calls)
    assert places.count("call") == calls
    assert len(places) <= SLOT_COUNT


@given(st.integers(1, MAX_BATCH_CALLS))
def test_a_batch_begins_with_a_reference_and_has_both_kinds(calls: int) -> None:
    places = slot_layout(calls)
    assert places[0] != "call"
    assert {"spin", "wide"} <= set(places)
    assert abs(places.count("spin") - places.count("wide")) <= 1


@given(st.integers(1, MAX_BATCH_CALLS))
def test_references_are_spread_over_the_batch(calls: int) -> None:
    runs = "".join("c" if place == "call" else "r" for place in slot_layout(calls)).split("r")
    assert max(map(len, runs)) <= 2


def test_a_disturbed_call_does_not_move_the_trimmed_mean() -> None:
    assert trimmed_mean(np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0])) == 1.0


def test_of_few_values_none_is_left_out() -> None:
    assert trimmed_mean(np.array([1.0, 2.0, 6.0])) == pytest.approx(3.0)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40))
def test_the_trimmed_mean_lies_among_the_values(values: list[float]) -> None:
    found = trimmed_mean(np.array(values))
    assert min(values) * (1 - 1e-9) <= found <= max(values) * (1 + 1e-9)
