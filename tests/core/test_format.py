"""Numbers and lists as reports, messages and terminals write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.format import (
    BYTE_SCALES,
    RATE_SCALES,
    change_cell,
    format_bytes,
    format_change,
    format_count,
    format_duration,
    format_joules,
    format_list,
    format_percent,
    format_range,
    format_ratio,
    format_scaled,
    format_significant,
    format_time,
    format_value,
    percent_cell,
    ratio_cell,
    typeset_minus,
)
from assay.stats.blocks import BlockRatio

Bounds = tuple[float, ...]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234.5, "1234"), (12.3456, "12.35"), (0.00012345, "0.0001234"), (-2.5, "−2.500"), (98765.4, "98765")],
)
def test_a_number_is_written_with_four_digits_that_mean_something(value: float, text: str) -> None:
    assert format_significant(value) == text


@pytest.mark.parametrize(
    ("microseconds", "text"), [(999.97, "1.000 ms"), (999.9, "999.9 µs"), (999_970.0, "1.000 s"), (1.5e6, "1.500 s")]
)
def test_a_time_that_rounds_up_to_a_thousand_takes_the_next_unit(microseconds: float, text: str) -> None:
    assert format_time(microseconds) == text


@pytest.mark.parametrize(("value", "text"), [(0.99999, "1.000"), (9.99996, "10.00"), (999.96, "1000")])
def test_rounding_up_to_the_next_power_of_ten_adds_no_digit(value: float, text: str) -> None:
    assert format_significant(value) == text


@given(st.floats(min_value=1e-9, max_value=1e12) | st.floats(min_value=-1e12, max_value=-1e-9), st.integers(1, 8))
def test_a_written_number_is_near_the_number_and_has_no_exponent(value: float, digits: int) -> None:
    text = format_significant(value, digits)
    assert "e" not in text
    assert float(text.replace("−", "-")) == pytest.approx(value, rel=0.5 * 10.0 ** (1 - digits) * 1.001)


def test_what_is_not_finite_is_written_as_such() -> None:
    assert [format_significant(value) for value in (math.inf, -math.inf, math.nan)] == ["inf", "−inf", "nan"]


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0.0, "0 µs"),
        (0.5, "500.0 ns"),
        (12.34, "12.34 µs"),
        (1234.0, "1.234 ms"),
        (2.5e6, "2.500 s"),
        (-1500, "−1.500 ms"),
    ],
)
def test_a_time_is_written_in_the_unit_that_reads_best(microseconds: float, text: str) -> None:
    assert format_time(microseconds) == text


def test_a_time_that_is_not_finite_is_still_written() -> None:
    assert format_time(math.inf) == "inf µs"
    assert format_time(math.nan) == "nan µs"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (2.34, "2.3 s"),
        (42.4, "42 s"),
        (59.7, "1 min 0 s"),
        (185.0, "3 min 5 s"),
        (3599.7, "1 h 0 min"),
        (7800.0, "2 h 10 min"),
    ],
)
def test_a_span_is_written_in_two_units_at_most(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((806.9,), "806.9 µs"),
        ((806.9, 799.5, 855.3), "806.9 µs (799.5–855.3)"),
        ((1234.0, 980.0, 1500.0), "1.234 ms (0.9800–1.500)"),
        ((5.0, 5.0, 5.0), "5.000 µs (5.000)"),
        ((-2.5, -4.0, 1.0), "−2.500 µs (−4.000 to 1.000)"),
        ((0.0,), "0 µs"),
        ((math.inf,), "inf µs"),
    ],
)
def test_bounds_of_a_time_are_in_the_unit_of_its_value(bounds: Bounds, text: str) -> None:
    assert format_time(*bounds) == text


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((1.93,), "1.93×"),
        ((1.93, 1.71, 2.18), "1.93× (1.71–2.18)"),
        ((1.0, 0.9375, 1.0625), "1.000× (0.938–1.062)"),
        ((1.0, 0.9375, 1.1875), "1.00× (0.94–1.19)"),
        ((0.25, 0.24, 0.26), "0.25× (0.24–0.26)"),
        ((0.0123, 0.01, 0.015), "0.012× (0.010–0.015)"),
        ((2.0, 0.125, 12.5), "2.00× (0.12–12.50)"),
        ((2.0, 0.125, 13.0), "2.00× (inconclusive)"),
        ((2.0, 0.0, 3.0), "2.00× (inconclusive)"),
    ],
)
def test_a_ratio_near_one_has_a_third_decimal_and_wide_bounds_are_inconclusive(bounds: Bounds, text: str) -> None:
    assert format_ratio(*bounds) == text


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((0.812, 0.78, 0.85), "81 % (78–85)"),
        ((1.0,), "100 %"),
        ((0.24, 0.236, 0.243), "24 % (23.6–24.3)"),
        ((0.25, 0.25, 0.25), "25 % (25)"),
        ((12.5,), "1250 %"),
        ((0.01,), "1 %"),
        ((0.0041,), "0.41 %"),
        ((0.005, 0.0, 0.01), "0.5 % (0–1)"),
        ((0.00001,), "<0.01 %"),
        ((0.0,), "0 %"),
        ((-0.02, -0.03, 0.01), "−2 % (−3 to 1)"),
        ((0.5, 0.001, 0.99), "50 % (inconclusive)"),
    ],
)
def test_a_share_has_two_digits_and_no_zeros_at_its_end(bounds: Bounds, text: str) -> None:
    assert format_percent(*bounds) == text


def test_a_share_that_was_asked_for_keeps_a_third_digit() -> None:
    assert [format_percent(share, digits=3) for share in (0.0625, 0.125, 0.01)] == ["6.25 %", "12.5 %", "1 %"]


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((1.049,), "+4.9 %"),
        ((0.997, 0.98, 1.01), "−0.3 % (−2.0 to +1.0)"),
        ((1.0,), "0.0 %"),
        ((0.9999,), "0.0 %"),
        ((3.5, 3.0, 4.0), "+250 % (+200 to +300)"),
        ((1.5, 0.1, 20.0), "+50.0 % (inconclusive)"),
    ],
)
def test_a_change_has_a_sign_unless_it_is_zero(bounds: Bounds, text: str) -> None:
    assert format_change(*bounds) == text


def test_an_energy_is_written_in_the_unit_that_reads_best() -> None:
    joules = (0.0, 3e-10, 1.2e-7, 0.01234, 0.9999999, 662.0, 2.5e6, 4e9)
    texts = ["0 J", "300.0 pJ", "120.0 nJ", "12.34 mJ", "1.000 J", "662.0 J", "2.500 MJ", "4000 MJ"]
    assert [format_joules(one) for one in joules] == texts
    assert format_joules(1.2e-6, 1.1e-6, 1.3e-6, digits=3) == "1.20 µJ (1.10–1.30)"


def test_bytes_have_binary_units_and_traffic_decimal_ones() -> None:
    assert [format_bytes(size) for size in (2**20, 2**30, 1.5 * 2**30)] == ["1.0 MiB", "1.0 GiB", "1.5 GiB"]
    assert [format_scaled(size, BYTE_SCALES) for size in (0.0, 512.0, 1.5e9)] == ["0 B", "512.0 B", "1.500 GB"]


def test_a_rate_has_a_prefix() -> None:
    assert format_scaled(166_000, RATE_SCALES, 163_000, 170_000, 3) == "166 k (163–170)"
    assert format_scaled(12.5, RATE_SCALES, digits=3) == "12.5"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1500.0, "us", "1.500 ms"),
        (1.5, "ms", "1.500 ms"),
        (3.0, "", "3"),
        (3.25, "", "3.250"),
        (3.0, "GB/s", "3.000 GB/s"),
        (3.0, "×", "3.000×"),
    ],
)
def test_a_value_is_written_with_its_unit(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_bounds_of_any_value_stand_behind_its_unit() -> None:
    assert format_value(3.0, "GB/s", 2.5, 3.5) == "3.000 GB/s (2.500–3.500)"
    assert format_value(1.5, "ms", 1.25, 1.75) == "1.500 ms (1.250–1.750)"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        ("1", "1", "1"),
        ("1", "2", "1–2"),
        ("−1", "2", "−1 to 2"),
        ("+1", "+2", "+1 to +2"),
        ("1.2 ms", "1.4 ms", "1.2–1.4 ms"),
        ("900 µs", "1.4 ms", "900 µs–1.4 ms"),
    ],
)
def test_a_range_names_a_common_unit_once(low: str, high: str, text: str) -> None:
    assert format_range(low, high) == text


def test_a_count_agrees_with_its_noun() -> None:
    assert [format_count(n, "GPU") for n in (0, 1, 10_000)] == ["0 GPUs", "1 GPU", "10,000 GPUs"]


def test_a_list_is_joined_by_a_word_and_cut_where_it_is_long() -> None:
    assert [format_list("abc"[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert format_list("abcde", most=3) == "a, b, c and 2 more"
    assert format_list("abc", most=3, word="or") == "a, b or c"


def test_cells_of_what_was_not_measured_are_empty() -> None:
    assert [write(None) for write in (ratio_cell, change_cell, percent_cell)] == [None, None, None]
    half = BlockRatio(0.5, 0.25, 0.75, 8)
    assert (ratio_cell(half), change_cell(half), percent_cell(half)) == (
        "0.50× (0.25–0.75)",
        "−50.0 % (−75.0 to −25.0)",
        "50 % (25–75)",
    )


def test_a_minus_is_set_for_print() -> None:
    assert typeset_minus("-1.5") == "−1.5"
