"""The GPU's own record, split into calls by the stamps around them."""

from __future__ import annotations

import random

from assay.timing.cuda.timers import GpuActivity, split_calls

BEGIN, END = "assay_begin", "assay_end"


def record(*names_and_durations: tuple[str, int], gap_ns: int = 100) -> list[GpuActivity]:
    """Return activities one after another, with a gap between."""
    found, now = [], 1000
    for name, duration in names_and_durations:
        found.append(GpuActivity(name, now, duration))
        now += duration + gap_ns
    return found


def test_a_call_is_what_lies_between_its_stamps() -> None:
    calls = split_calls(record(("fill", 999), (BEGIN, 10), ("softmax", 2000), (END, 10), ("copy", 500)))
    assert [(call.busy_us, call.span_us, call.names) for call in calls] == [(2.0, 2.0, ("softmax",))]


def test_several_kernels_are_added_up_and_their_gaps_are_in_the_span_alone() -> None:
    (call,) = split_calls(record((BEGIN, 10), ("a", 1000), ("b", 3000), (END, 10)))
    assert (call.busy_us, call.span_us, call.names) == (4.0, 4.1, ("a", "b"))


def test_kernels_side_by_side_are_busy_for_longer_than_they_span() -> None:
    (call,) = split_calls(
        [GpuActivity(BEGIN, 0, 1), GpuActivity("a", 10, 1000), GpuActivity("b", 500, 1000), GpuActivity(END, 2000, 1)]
    )
    assert (call.busy_us, call.span_us) == (2.0, 1.49)


def test_a_kernel_that_outlasts_the_one_after_it_ends_the_span() -> None:
    (call,) = split_calls(
        [GpuActivity(BEGIN, 0, 1), GpuActivity("a", 10, 5000), GpuActivity("b", 20, 10), GpuActivity(END, 6000, 1)]
    )
    assert call.span_us == 5.0


def test_activities_may_come_in_any_order() -> None:
    activities = record(*[part for n in range(5) for part in ((BEGIN, 1), (f"kernel {n}", 1000 + n), (END, 1))])
    random.Random(7).shuffle(activities)
    assert [call.names for call in split_calls(activities)] == [(f"kernel {n}",) for n in range(5)]


def test_a_call_that_did_nothing_is_no_call() -> None:
    assert split_calls(record((BEGIN, 1), (END, 1), (BEGIN, 1), ("a", 5), (END, 1))) == split_calls(
        record((BEGIN, 1), (END, 1), (BEGIN, 1), ("a", 5), (END, 1), (BEGIN, 1))
    )


def test_a_call_without_its_end_is_left_out() -> None:
    assert split_calls(record((BEGIN, 1), ("a", 1000))) == []
    assert split_calls([]) == []
