from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.reports.text import (
    describe_figure,
    display_width,
    one_line,
    origin_warning,
    visible_text,
    with_unit,
    wrap_label,
)

if TYPE_CHECKING:
    from assay.core.page import Figure


@given(st.text(max_size=60))
@settings(deadline=None)
def test_a_visible_text_has_no_control_character_but_the_newline(text: str) -> None:
    assert all(unicodedata.category(letter) != "Cc" for letter in visible_text(text).replace("\n", ""))


@given(st.text(max_size=80), st.integers(min_value=2, max_value=30))
@settings(deadline=None)
def test_wrapping_loses_nothing_but_spaces_and_keeps_within_the_width(text: str, width: int) -> None:
    lines = wrap_label(text, width).split("\n")
    assert "".join("".join(lines).split()) == "".join(one_line(text).split())
    assert all(display_width(line) <= width for line in lines)


def test_labels_are_wrapped_where_names_are_parted() -> None:
    assert wrap_label("kernels/my_softmax.py:fused", 12) == "kernels/my_\nsoftmax.py:\nfused"
    assert wrap_label("from 16 to 5.369", 14) == "from 16 to\n5.369"


def test_an_axis_names_its_unit_once() -> None:
    assert with_unit("time", "ms") == "time (ms)"
    assert with_unit("time (ms)", "ms") == "time (ms)"
    assert with_unit("count", "") == "count"


@pytest.mark.parametrize("origin", ["fake", "simulated"])
def test_only_numbers_that_nobody_measured_are_warned_about(origin: str) -> None:
    assert origin_warning("real") is None
    assert origin_warning(origin) == f"These numbers come from a {origin} source"  # type: ignore[arg-type]


def test_every_figure_can_be_told_in_one_line_that_names_it(figure: Figure) -> None:
    told = describe_figure(figure)
    assert one_line(figure.title) in told
    assert told == one_line(told)
