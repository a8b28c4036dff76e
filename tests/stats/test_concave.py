"""Curves that rise ever more slowly, and sharing out among them: never worse than every way on a grid."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.stats.concave import ConcaveCurve, allocate_total, fit_concave

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLOPES = st.lists(st.floats(0.0, 5.0), min_size=0, max_size=3)


@st.composite
def curves(draw: st.DrawFn) -> ConcaveCurve:
    """A concave curve with knots at whole numbers."""
    slopes = sorted(draw(SLOPES), reverse=True)
    steps = draw(st.lists(st.integers(1, 3), min_size=len(slopes), max_size=len(slopes)))
    start, height = draw(st.integers(1, 4)), draw(st.floats(0.5, 3.0))
    x = list(itertools.accumulate([start, *steps]))
    y = list(itertools.accumulate([height, *(slope * step for slope, step in zip(slopes, steps, strict=True))]))
    return ConcaveCurve(tuple(map(float, x)), tuple(y))


@settings(deadline=None, max_examples=60)
@given(st.lists(curves(), min_size=1, max_size=3), st.integers(0, 30))
def test_no_way_to_share_out_on_a_grid_is_better(several: list[ConcaveCurve], total: int) -> None:
    given_out = allocate_total(several, float(total))
    least = sum(curve.low for curve in several)
    if given_out is None:
        assert total < least
        return
    assert sum(given_out) <= total + 1e-9
    assert all(c.low - 1e-9 <= x <= c.x[-1] + 1e-9 for c, x in zip(several, given_out, strict=True))
    grids = [np.arange(curve.low, curve.x[-1] + 0.25, 0.5) for curve in several]
    best = max(
        sum(curve.at(x) for curve, x in zip(several, way, strict=True))
        for way in itertools.product(*grids)
        if sum(way) <= total
    )
    assert sum(c.at(x) for c, x in zip(several, given_out, strict=True)) >= best - 1e-9


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.0, 0.3))
def test_a_fit_never_falls_and_never_rises_faster_than_before(seed: int, points: int, noise: float) -> None:
    chance = np.random.default_rng(seed)
    x = np.sort(chance.choice(np.arange(100.0, 700.0, 10.0), points, replace=False))
    fit = fit_concave(x, 50 * (1 - np.exp(-x / 200)) * (1 + chance.normal(0, noise, points)))
    slopes = np.diff(fit.y) / np.diff(fit.x)
    assert (slopes >= -1e-9).all()
    assert (np.diff(slopes) <= 1e-6).all()
    assert (fit.low, fit.x[-1]) == (x[0], x[-1])


def test_between_points_of_a_bent_curve_a_fit_is_nearer_than_chords() -> None:
    def true(watts: NDArray[np.float64]) -> NDArray[np.float64]:
        return 100 * (1 - np.exp(-watts / 250))

    x = np.arange(200.0, 701.0, 100.0)
    fit, between = fit_concave(x, true(x)), np.linspace(200, 700, 101)
    chords = np.abs(np.interp(between, x, true(x)) / true(between) - 1).max()
    ours = np.abs(np.array([fit.at(watts) for watts in between]) / true(between) - 1).max()
    assert ours < chords / 4
    assert [fit.at(watts) for watts in x] == pytest.approx(true(x), rel=1e-4)


def test_a_level_part_is_not_paid_for_and_heights_are_found_again() -> None:
    curve = ConcaveCurve((1.0, 2.0, 4.0), (1.0, 3.0, 3.0))
    assert curve.top == 2.0
    assert allocate_total([curve], 10.0) == [2.0]
    assert allocate_total([curve], 0.5) is None
    assert allocate_total([curve, curve], 5.0, [1.5, 3.0]) == [2.0, 3.0]
    assert curve.reaches(2.0) == 1.5
    assert curve.reaches(0.5) == 1.0
    assert curve.reaches(3.5) is None


def test_a_fit_is_the_same_wherever_its_points_lie_and_in_whatever_unit() -> None:
    x, y = np.array([0.0, 1.0, 2.0, 3.0, 5.0, 5.0]), np.array([0.0, 4.0, 5.0, 7.0, 7.0, 8.5])
    fit = fit_concave(x, y)
    far, fine = fit_concave(x + 1e9, y), fit_concave(x * 1000, y)
    assert far.y == pytest.approx(fit.y, rel=1e-10)
    assert fine.y == pytest.approx(fit.y, rel=1e-10)
    assert far.x == tuple(1e9 + place for place in fit.x)
    assert [height / 1000 for height in fit_concave(x, y * 1000).y] == pytest.approx(fit.y, rel=1e-10, abs=1e-12)
    assert set(fit_concave(x, np.zeros(6)).y) == {0.0}
