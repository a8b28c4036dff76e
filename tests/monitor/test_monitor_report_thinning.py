"""Lines for drawing: however many readings there are, few points, and none of the extremes lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from assay.monitor.report import MAX_SEGMENTS, DownsampledLine


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=6000))
def test_the_lowest_and_the_highest_reading_are_always_drawn_and_in_order(values: list[float]) -> None:
    thinned = DownsampledLine()
    for x, y in enumerate(values):
        thinned.add(float(x), y)
    points = thinned.points
    assert len(points) <= 4 * MAX_SEGMENTS + 2
    assert min(y for _, y in points) == min(values)
    assert max(y for _, y in points) == max(values)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert set(points) <= {(float(x), y) for x, y in enumerate(values)}


def test_a_million_readings_are_as_few_points_as_a_thousand() -> None:
    thinned = DownsampledLine()
    for number in range(200_000):
        thinned.add(float(number), float(number % 1000))
    points = thinned.points
    assert MAX_SEGMENTS <= len(points) <= 4 * MAX_SEGMENTS + 2
    assert points[0][0] == 0.0
    assert points[-1][0] >= 199_000.0


def test_few_readings_are_drawn_as_they_are() -> None:
    thinned = DownsampledLine()
    for number in range(10):
        thinned.add(float(number), float(-number))
    assert thinned.points == [(float(number), float(-number)) for number in range(10)]
