from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.page import StripRow
from assay.reports.scales import Axis, bin_counts, decimate, finite, shade_scale, strip_axis, thin_samples

numbers = st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=1, max_size=60)


@given(numbers, st.integers(min_value=2, max_value=20))
@settings(deadline=None)
def test_thinning_keeps_both_extremes_and_invents_nothing(values: list[float], most: int) -> None:
    thinned = thin_samples(np.array(values), most)
    assert len(thinned) == min(most, len(values))
    assert set(thinned) <= set(values)
    assert (thinned[0], thinned[-1]) == (min(values), max(values))


@given(numbers, st.integers(min_value=3, max_value=30))
@settings(deadline=None)
def test_a_decimated_line_keeps_its_ends_its_low_and_its_high(values: list[float], most: int) -> None:
    y = np.array(values)
    kept = decimate(np.arange(len(y), dtype=np.float64), y, most)
    assert {0, len(y) - 1} <= set(kept.tolist())
    assert (y[kept].min(), y[kept].max()) == (y.min(), y.max())


@given(numbers, numbers)
@settings(deadline=None)
def test_an_axis_holds_every_estimate_and_nearly_all_samples(one: list[float], other: list[float]) -> None:
    strips = [
        StripRow(label="a", samples=tuple(one), value=one[0], low=min(one), high=max(one)),
        StripRow(label="b", samples=tuple(other)),
    ]
    axis = strip_axis(strips)
    assert axis.low < min(one)
    assert axis.high > max(one)
    assert axis.low < float(np.median(other)) < axis.high


def test_an_axis_of_positive_samples_does_not_begin_below_zero() -> None:
    assert strip_axis([StripRow(label="a", samples=(404.0, 410.0, 23_000.0), value=410.0)]).low == 0.0
    assert strip_axis([StripRow(label="a", samples=(-1.0, 410.0, 23_000.0), value=410.0)]).low < -1.0
    assert strip_axis([StripRow(label="a", samples=(404.0, 405.0), value=404.5)]).low > 400.0


def test_strays_do_not_squeeze_the_rest() -> None:
    samples = (*(1 + i / 1000 for i in range(300)), 50.0)
    assert strip_axis([StripRow(label="a", samples=samples)]).high < 2


def test_a_vast_interval_does_not_squeeze_the_samples() -> None:
    strips = [
        StripRow(label="a", samples=(0.47, 1.3), value=0.79, low=1e-3, high=603.0),
        StripRow(label="b", samples=(1.2, 1.4), value=1.3, low=0.9, high=1.9),
    ]
    axis = strip_axis(strips, centre=1.0)
    assert axis.log
    assert axis.low < 0.47
    assert 1.9 < axis.high < 100
    first, last = axis.position(np.array([0.47, 1.4])).tolist()
    assert last - first > 0.15
    whole = strip_axis([StripRow(label="a", samples=(1.0, 1.02), value=1.01, low=0.99, high=1.03)])
    assert not whole.log
    assert whole.low < 0.99
    assert whole.high > 1.03


@given(st.floats(0.001, 1.0), st.floats(1.0, 1000.0), st.floats(0.0, 1.0))
@settings(deadline=None)
def test_a_place_on_an_axis_is_that_of_its_value(low: float, high: float, position: float) -> None:
    for axis in (Axis(low, high + 0.1), Axis(low, high + 0.1, log=True)):
        assert np.isclose(axis.position(np.array([axis.at(position)]))[0], position, atol=1e-6)


def test_a_huge_ratio_does_not_take_the_colour_from_the_others_nor_does_a_tiny_one_get_all() -> None:
    huge = shade_scale(np.array([1.08, 33.0, 0.97]), 1.0, ratios=True)
    assert huge.strength(33.0) == huge.strength(2.0) == 1.0
    assert huge.strength(0.5) == -1.0
    assert np.isclose(huge.strength(1.5), -huge.strength(1 / 1.5))
    assert 0.05 < huge.strength(1.08) < 0.2
    assert shade_scale(np.array([1.01]), 1.0, ratios=True).strength(1.01) < 0.2
    assert np.isnan(huge.strength(float("nan")))


def test_differences_around_a_centre_are_coloured_by_how_far_they_are() -> None:
    plain = shade_scale(np.array([-4.0, 1.0]), 0.0, ratios=False)
    assert (plain.strength(-4.0), plain.strength(2.0), plain.strength(0.0)) == (-1.0, 0.5, 0.0)
    assert shade_scale(np.array([]), 20.0, ratios=False).strength(21.0) == 0.5


def test_strips_decades_apart_share_a_logarithmic_axis() -> None:
    near, far = StripRow(label="a", samples=(1e-6, 2e-6)), StripRow(label="b", samples=(1e-2, 2e-2))
    assert strip_axis([near, far]).log
    assert not strip_axis([near, near]).log
    assert not strip_axis([StripRow(label="a", samples=(-1e-6,)), far]).log


def test_an_axis_of_nothing_is_still_an_axis() -> None:
    assert strip_axis([StripRow(label="a", samples=())]) == Axis(0.0, 1.0)


def test_values_beyond_the_axis_count_in_the_outermost_bins() -> None:
    assert bin_counts(np.array([-5.0, 0.1, 9.0]), Axis(0.0, 1.0), 4).tolist() == [2, 0, 0, 1]


def test_what_cannot_be_drawn_is_left_out() -> None:
    assert finite([1.0, None, float("nan"), float("inf")]).tolist() == [1.0]
