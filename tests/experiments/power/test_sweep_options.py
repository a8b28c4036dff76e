"""How the steps of a sweep are written and read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.experiments.power.sweep.options import MAX_STEPS, parse_numbers, parse_shares, parse_whole_numbers


@given(st.integers(1, 900), st.integers(1, 400), st.integers(0, 150), st.integers(0, 399))
def test_a_range_holds_every_step_from_its_start_and_its_stop_where_one_falls_on_it(
    start: int, step: int, count: int, beyond: int
) -> None:
    stop = start + count * step + beyond % step
    found = parse_numbers("--limits", [f"{start}:{stop}:{step}"])
    assert found == tuple(float(start + n * step) for n in range(count + 1))
    assert found[-1] <= stop < found[-1] + step


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_lists_are_read_in_any_order_and_each_once(several: list[int]) -> None:
    assert parse_whole_numbers("--sizes", list(map(str, several))) == tuple(sorted(set(several)))


@given(st.integers(1, 100))
def test_tenths_and_percent_are_the_same_shares(step: int) -> None:
    percent = parse_shares("--duty", [f"{step}%:100%:{step}%"])
    assert percent == parse_shares("--duty", [f"{step / 100:g}:1:{step / 100:g}"])
    assert all(0 < share <= 1 for share in percent)


def test_ranges_lists_and_units_may_be_mixed() -> None:
    assert parse_numbers("--limits", ["200:300:50", "450W", "250", "0.5"], units=("W",)) == (0.5, 200, 250, 300, 450)
    assert parse_shares("--duty", ["10:30:10%"]) == (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["200:700"], "write START:STOP:STEP"),
        (["700:200:50"], "runs backwards"),
        (["200:700:0"], "larger than zero"),
        (["1:100000:1"], f"{MAX_STEPS} are the most"),
        (["200:1000:1", "5"], f"{MAX_STEPS} are the most"),
        (["many"], "is no number"),
        (["5kW"], "is no number"),
        (["-5"], "is no number"),
        ([":"], "is no number"),
        ([], "names no step"),
    ],
)
def test_what_is_no_step_is_said(words: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_numbers("--limits", words, units=("W",))


@pytest.mark.parametrize(("word", "said"), [("50", "for 50 percent write 50%"), ("0", "above 0 %"), ("110%", "up to")])
def test_a_duty_is_a_share(word: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_shares("--duty", [word])


def test_sizes_are_whole() -> None:
    with pytest.raises(BadInput, match=r"whole numbers of at least 1, not 1\.5"):
        parse_whole_numbers("--sizes", ["1.5"])


def test_a_percent_sign_is_asked_for_only_where_there_is_none() -> None:
    with pytest.raises(BadInput, match=r"not 70; for 70 percent write 70%\.$"):
        parse_shares("--duty", ["70"])
    with pytest.raises(BadInput, match=r"not 110 %\.$"):
        parse_shares("--duty", ["110%"])
