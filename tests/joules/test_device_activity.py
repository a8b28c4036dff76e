"""What a device did, as knots on the clock."""

from __future__ import annotations

import numpy as np
import pytest

from assay.joules.readings import CallBoundary, build_activity

KNOTS = [
    CallBoundary(1_000_000_000, 0),
    CallBoundary(2_000_000_000, 10),
    CallBoundary(2_500_000_000, 10),
    CallBoundary(3_500_000_000, 30),
]


def test_progress_is_counted_in_calls_and_stands_still_in_rests() -> None:
    course = build_activity(KNOTS, 0)
    at = np.array([0.0, 1.0, 1.5, 2.0, 2.3, 2.5, 3.0, 9.0])
    assert course.progress(at) == pytest.approx([0, 0, 5, 10, 10, 10, 20, 30])


def test_before_the_first_call_and_after_the_last_the_device_rests() -> None:
    course = build_activity(KNOTS, 0)
    at = np.array([0.0, 1.0, 2.0, 2.5, 3.5, 4.5])
    assert course.rested_s(at) - course.rested_s(at)[0] == pytest.approx([0, 1, 1, 1.5, 1.5, 2.5])
    assert course.is_busy(np.array([0.5, 1.5, 2.2, 3.0, 4.0])).tolist() == [False, True, False, True, False]
    assert course.busy_s(1.0, 3.5) == pytest.approx(2.0)


def test_a_course_without_a_call_is_empty() -> None:
    assert build_activity([], 0).is_empty
    assert build_activity([CallBoundary(0, 0), CallBoundary(5, 0)], 0).is_empty
    assert build_activity(KNOTS, 0).first_at_or_after(2.1) == 2.5
    assert build_activity(KNOTS, 0).first_at_or_after(3.6) is None
