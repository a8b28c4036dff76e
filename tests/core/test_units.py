"""Quantities as people write and read them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.core.format import MAX_DURATION_S, parse_duration_s, parse_fraction, unit_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5.0),
        ("5s", 5.0),
        (" 5 s ", 5.0),
        ("0.5", 0.5),
        (".5s", 0.5),
        ("500ms", 0.5),
        ("500 MS", 0.5),
        ("250us", 250e-6),
        ("250µs", 250e-6),
        ("250μs", 250e-6),
        ("10ns", 10e-9),
        ("2m", 120.0),
        ("2min", 120.0),
        ("1.5h", 5400.0),
        ("1d", 86400.0),
        ("1e2", 100.0),
        ("1e-3s", 1e-3),
    ],
)
def test_a_duration_is_read_in_the_unit_it_is_written_in(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "five", "-5", "5 parsecs", "5s5", "nan", "inf", "1e", "5,5", "--5", "5 s s"])
def test_what_is_not_a_duration_is_bad_input_that_shows_how_to_write_one(text: str) -> None:
    with pytest.raises(BadInput, match=r"is not a duration; write seconds, or 500ms, 90s, 5m, 2h\.$"):
        parse_duration_s(text)


def test_a_duration_of_zero_is_refused_unless_it_means_something() -> None:
    with pytest.raises(BadInput, match="longer than zero"):
        parse_duration_s("0ms")
    assert parse_duration_s("0", zero_ok=True) == 0.0


@pytest.mark.parametrize("text", ["31d", "1e9", "1e400", "721h"])
def test_a_duration_of_more_than_thirty_days_cannot_be_meant(text: str) -> None:
    with pytest.raises(BadInput, match="thirty days"):
        parse_duration_s(text)


def test_thirty_days_are_still_a_duration() -> None:
    assert parse_duration_s("30d") == MAX_DURATION_S


@given(st.floats(min_value=1e-6, max_value=1e6), st.sampled_from(["us", "ms", "s"]))
def test_whatever_number_is_written_comes_back_in_seconds(number: float, unit: str) -> None:
    scale = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    assert parse_duration_s(f"{number!r}{unit}") == pytest.approx(number * scale)


@given(st.text())
def test_any_text_is_a_duration_or_bad_input_and_nothing_else(text: str) -> None:
    with contextlib.suppress(BadInput):
        assert 0 < parse_duration_s(text) <= MAX_DURATION_S


@pytest.mark.parametrize(("text", "value"), [("1%", 0.01), ("1 %", 0.01), (" 0.01 ", 0.01), ("99.9%", 0.999)])
def test_a_precision_is_a_percentage_or_a_fraction(text: str, value: float) -> None:
    assert parse_fraction(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "0%", "1", "100%", "-1%", "150%", "nan", "inf"])
def test_a_precision_out_of_range_says_what_the_range_is(text: str) -> None:
    with pytest.raises(BadInput, match=r"between 0 and 1, or 0% and 100%"):
        parse_fraction(text)


@pytest.mark.parametrize("text", ["", "%", "one", "1%%", "1 percent"])
def test_what_is_not_a_percentage_is_bad_input_that_shows_how_to_write_one(text: str) -> None:
    with pytest.raises(BadInput, match=r"write 1% or 0\.01"):
        parse_fraction(text)


@pytest.mark.parametrize(
    ("quantity", "unit"),
    [
        ("call_us", "µs"),
        ("max_rss_mib", "MiB"),
        ("cpu_user_s", "s"),
        ("energy_per_token_j", "J"),
        ("throughput_GFLOPS", "GFLOP/s"),
        ("busy_percent", "%"),
        ("loss", ""),
        ("s", ""),
        ("tokens_per_joule", ""),
    ],
)
def test_a_quantity_carries_its_unit_at_the_end_of_its_name(quantity: str, unit: str) -> None:
    assert unit_of(quantity) == unit


def test_a_percentage_without_its_sign_is_shown_with_it() -> None:
    with pytest.raises(BadInput, match=r"for 70 percent write 70% or 0\.7"):
        parse_fraction("70")
    for text in ("500%", "100%", "500"):
        with pytest.raises(BadInput, match=r"100%\.$"):
            parse_fraction(text)
