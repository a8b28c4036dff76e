"""Links are named or written as ALPHA:BETA with units; what cannot be meant is said in one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.experiments.scaling.prediction import KNOWN_LINKS, LINK_UNCERTAINTY, LinkModel, describe_link, parse_link


@pytest.mark.parametrize(
    ("text", "alpha_s", "beta_bytes_per_s"),
    [
        ("5us:100GB/s", 5e-6, 100e9),
        ("5µs:100GB/s", 5e-6, 100e9),
        ("0us:1MB/s", 0.0, 1e6),
        ("1.5ms:400Gbit/s", 1.5e-3, 50e9),
        ("2 us : 400Gbit/s", 2e-6, 50e9),
        ("800ns:2TB/s", 8e-7, 2e12),
        ("1us:1GiB/s", 1e-6, 2**30),
        ("1us:5e8 B/s", 1e-6, 5e8),
    ],
)
def test_a_link_is_written_as_what_a_message_takes_to_start_and_how_fast_it_flows(
    text: str, alpha_s: float, beta_bytes_per_s: float
) -> None:
    link = parse_link(text)
    assert (link.alpha_s, link.beta_bytes_per_s) == pytest.approx((alpha_s, beta_bytes_per_s))
    assert link.uncertainty == LINK_UNCERTAINTY


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nvlink", "Did you mean nvlink4"),
        ("", "Unknown link ''"),
        ("5:100GB/s", "the latency '5' must be a time"),
        ("us:100GB/s", "the latency 'us' must be a time"),
        ("5us:100", "the bandwidth '100' must have its unit"),
        ("5us:", "the bandwidth '' must have its unit"),
        (":100GB/s", "the latency '' must be a time"),
        ("5us:100gb/s", "such as 100GB/s or 400Gbit/s"),
        ("5us:100Gb/s", "such as 100GB/s or 400Gbit/s"),
        ("5us:100GB", "must have its unit"),
        ("5us:0GB/s", "must be between 1 kB/s and 1 PB/s"),
        ("5us:1e9TB/s", "must be between 1 kB/s and 1 PB/s"),
        ("-5us:100GB/s", "must be a time"),
        ("5us:-100GB/s", "must have its unit"),
        ("5us:1iB/s", "a binary unit without a prefix"),
        ("5us:1:1GB/s", "must have its unit"),
    ],
)
def test_a_link_that_cannot_be_meant_is_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        parse_link(text)


def test_known_links_are_slower_than_their_data_sheets_and_ordered_as_they_are() -> None:
    links = {name: parse_link(name) for name in KNOWN_LINKS}
    assert all(links[name].beta_bytes_per_s < known.nominal_bytes_per_s for name, known in KNOWN_LINKS.items())
    assert links["nvlink4"].beta_bytes_per_s > links["pcie5"].beta_bytes_per_s > links["eth400"].beta_bytes_per_s
    assert links["nvlink4"].alpha_s < links["pcie5"].alpha_s < links["eth400"].alpha_s
    assert parse_link(" NVLink4 ") == links["nvlink4"]


def test_a_link_says_which_share_of_its_data_sheet_it_assumes() -> None:
    assert describe_link(parse_link("nvlink4")) == (
        "nvlink4: 360 GB/s per GPU and direction, 80 % of the 450 of NVLink 4 (H100, H200); 12 µs per message; ±20 %"
    )
    assert describe_link(parse_link("5us:100GB/s")) == (
        "5us:100GB/s: 100 GB/s per GPU and direction; 5 µs per message; ±20 %"
    )


@given(st.floats(0, 1e-3), st.floats(1e6, 1e12), st.floats(0, 0.9), st.integers(0, 10**4), st.integers(0, 10**12))
def test_its_slow_and_fast_ends_stand_around_what_it_takes(
    alpha_s: float, beta: float, uncertainty: float, messages: int, size: int
) -> None:
    link = LinkModel(name="some", alpha_s=alpha_s, beta_bytes_per_s=beta, uncertainty=uncertainty)
    ends = link.fastest_s(messages, size), link.time_s(messages, size), link.slowest_s(messages, size)
    assert 0 <= ends[0] <= ends[1] <= ends[2]


@pytest.mark.parametrize("wrong", [{"alpha_s": -1.0}, {"beta_bytes_per_s": 0.0}, {"uncertainty": 1.0}])
def test_a_link_has_a_speed_and_no_negative_start(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        LinkModel.model_validate({"name": "some", "alpha_s": 1e-6, "beta_bytes_per_s": 1e9, **wrong})
