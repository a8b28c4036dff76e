"""Which method a call gets: the best that it allows, or the one asked for where that can be."""

from __future__ import annotations

import re
from typing import Any

import pytest

from assay.core.errors import BadInput
from assay.timing.cuda.allows import Allows, choose

CAPTURED = Allows(waits=False, captures=True, operations=1)
NOT_CAPTURED = Allows(waits=False, captures=False, refusal="its calls differ from each other")
WAITS = Allows(waits=True, captures=False, refusal="it waits for the GPU")
NOTHING = Allows(waits=False, captures=True, operations=0)


@pytest.mark.parametrize(
    ("allows", "method", "words"),
    [
        (CAPTURED, "graph", "the host has no part in the time"),
        (NOT_CAPTURED, "queue", r"cannot be captured \(its calls differ from each other\)"),
        (WAITS, "trace", "waits for the GPU itself"),
        (NOTHING, "wall", "launches nothing"),
    ],
)
def test_a_call_gets_the_best_method_it_allows_and_the_reason(allows: Allows, method: str, words: str) -> None:
    chosen, why = choose(allows, "auto")
    assert chosen == method
    assert re.search(words, why)


@pytest.mark.parametrize("wanted", ["graph", "queue", "trace", "wall"])
def test_what_is_asked_for_is_taken_where_it_can_be(wanted: Any) -> None:
    assert choose(CAPTURED, wanted) == (wanted, "asked for")


def test_a_graph_of_what_cannot_be_captured_is_bad_input_with_the_reason() -> None:
    with pytest.raises(BadInput, match=r"cannot be held in a graph: its calls differ from each other\."):
        choose(NOT_CAPTURED, "graph")
    with pytest.raises(BadInput, match="cannot be held in a graph: it waits"):
        choose(WAITS, "graph")


def test_a_call_that_waits_cannot_be_queued() -> None:
    with pytest.raises(BadInput, match="cannot be queued"):
        choose(WAITS, "queue")


@pytest.mark.parametrize("wanted", ["trace", "wall"])
def test_a_call_that_waits_can_be_traced_or_timed_by_the_host(wanted: Any) -> None:
    assert choose(WAITS, wanted)[0] == wanted
