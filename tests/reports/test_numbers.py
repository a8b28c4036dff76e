from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reports.text import format_cell, format_column, format_interval, format_matrix, format_ticks

ordinary = st.floats(min_value=1e-3, max_value=999_000).flatmap(lambda x: st.sampled_from([x, -x]))
any_float = st.floats(allow_nan=True, allow_infinity=True)
cells = st.none() | st.integers() | any_float | st.text(max_size=8)
SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def read(written: str) -> float:
    """Read a number back as a person would."""
    mantissa, _, exponent = written.replace(",", "").partition("×10")
    return float(f"{mantissa}e{exponent.translate(SUPERSCRIPTS) or 0}")


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "∞"),
        (float("-inf"), "-∞"),
        ("a text ", "a text "),
        (1048576, "1048576"),
        (0, "0"),
        (0.0, "0"),
        (2.0, "2"),
        (1.23456, "1.235"),
        (1.2, "1.20"),
        (0.5, "0.500"),
        (320.0401, "320"),
        (9.99996, "10.00".removesuffix("0")),
        (-17.256, "-17.26"),
        (12345.6, "12,346"),
        (999_999.4, "999,999"),
        (0.001, "0.00100"),
        (0.00012345, "1.234×10⁻⁴"),
        (2.5e7, "2.50×10⁷"),
    ],
)
def test_a_cell_is_written_as_expected(cell: str | float | None, written: str) -> None:
    assert format_cell(cell) == written


@given(ordinary)
@settings(deadline=None)
def test_an_ordinary_float_keeps_three_digits_and_has_no_exponent(number: float) -> None:
    written = format_cell(number)
    assert re.fullmatch(r"-?[\d,]+(\.\d+)?", written)
    assert math.isclose(read(written), number, rel_tol=6e-4)
    digits = re.sub(r"\D", "", written).lstrip("0")
    assert len(digits) >= 3 or number.is_integer()
    assert len(digits) <= 4 or abs(number) >= 9999


@given(st.floats(min_value=-1e300, max_value=1e300, allow_subnormal=False))
@settings(deadline=None)
def test_any_float_can_be_read_back_to_four_digits(number: float) -> None:
    assert math.isclose(read(format_cell(number)), number, rel_tol=6e-4)


@given(st.lists(cells, max_size=8))
@settings(deadline=None)
def test_a_column_keeps_every_cell_in_its_place(column: list[str | float | int | None]) -> None:
    written = format_column(column)
    assert len(written) == len(column)
    for cell, text in zip(column, written, strict=True):
        if not isinstance(cell, float):
            assert text == format_cell(cell)


@given(st.lists(st.floats(min_value=1.0, max_value=9.9), min_size=1, max_size=8))
@settings(deadline=None)
def test_numbers_alike_in_size_have_the_same_decimals(column: list[float]) -> None:
    assert len({len(text.partition(".")[2]) for text in format_column(column)}) == 1


def test_a_column_of_unlike_numbers_gives_each_its_own_digits() -> None:
    assert format_column([0.0123456, 1234.5, 2.0, None, 7]) == ("0.01235", "1234", "2.00", "–", "7")


def test_a_useless_last_zero_of_a_column_is_dropped() -> None:
    assert format_column([1.02, 0.97]) == ("1.02", "0.97")
    assert format_column([10.0, 20.0]) == ("10", "20")


def test_an_interval_is_written_like_its_value() -> None:
    assert format_interval(1.23456, 1.2, 1.26) == "1.235 (1.200–1.260)"
    assert format_interval(1.5, None, None) == "1.50"
    assert format_interval(None, None, None) == "–"


def test_a_matrix_has_the_same_decimals_everywhere() -> None:
    assert format_matrix([12.41, 240.1, float("nan")]) == ("12.4", "240.1", "–")
    assert format_matrix([0.0, 0.0]) == ("0", "0")
    assert format_matrix([2.5e7, 1.0]) == ("2.50×10⁷", "1.00")


def test_ticks_have_only_the_decimals_that_tell_them_apart() -> None:
    assert format_ticks([0.0, 0.25, 0.5]) == ("0.00", "0.25", "0.50")
    assert format_ticks([0, 5000, 10000]) == ("0", "5000", "10,000")
    assert format_ticks([1e6, 2.5e6]) == ("1×10⁶", "2.5×10⁶")
    assert format_ticks([]) == ()


@given(st.lists(st.floats(min_value=-1e5, max_value=1e5), max_size=6))
@settings(deadline=None)
def test_no_tick_is_ever_minus_zero(ticks: list[float]) -> None:
    assert not any(re.fullmatch(r"-0(\.0*)?", text) for text in format_ticks(ticks))
