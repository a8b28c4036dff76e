"""Which method a call gets: the best that it allows, or the one asked for where that can be."""

from __future__ import annotations

import re
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput
from assay.timing.cuda.timers import Capability, choose_method, probe_capability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CAPTURED = Capability(waits=False, captures=True, operations=1)
NOT_CAPTURED = Capability(waits=False, captures=False, refusal="its calls differ from each other")
WAITS = Capability(waits=True, captures=False, refusal="it waits for the GPU")
NOTHING = Capability(waits=False, captures=True, operations=0)


@pytest.mark.parametrize(
    ("allows", "method", "words"),
    [
        (CAPTURED, "graph", "the host has no part in the time"),
        (NOT_CAPTURED, "queue", r"cannot be captured \(its calls differ from each other\)"),
        (WAITS, "trace", "waits for the GPU itself"),
        (NOTHING, "wall", "launches nothing"),
    ],
)
def test_a_call_gets_the_best_method_it_allows_and_the_reason(allows: Capability, method: str, words: str) -> None:
    chosen, why = choose_method(allows, "auto")
    assert chosen == method
    assert re.search(words, why)


@pytest.mark.parametrize("wanted", ["graph", "queue", "trace", "wall"])
def test_what_is_asked_for_is_taken_where_it_can_be(wanted: Any) -> None:
    assert choose_method(CAPTURED, wanted) == (wanted, "asked for")


def test_a_graph_of_what_cannot_be_captured_is_bad_input_with_the_reason() -> None:
    with pytest.raises(BadInput, match=r"cannot be held in a graph: its calls differ from each other\."):
        choose_method(NOT_CAPTURED, "graph")
    with pytest.raises(BadInput, match="cannot be held in a graph: it waits"):
        choose_method(WAITS, "graph")


def test_a_call_that_waits_cannot_be_queued() -> None:
    with pytest.raises(BadInput, match="cannot be queued"):
        choose_method(WAITS, "queue")


@pytest.mark.parametrize("wanted", ["trace", "wall"])
def test_a_call_that_waits_can_be_traced_or_timed_by_the_host(wanted: Any) -> None:
    assert choose_method(WAITS, wanted)[0] == wanted


class GatedBench:
    """A GPU whose gate opens by itself when its time is over, and a host whose calls take so long."""

    handle, stream = 0, None

    def __init__(self, call_ns: Callable[[int], int]) -> None:
        self.torch = SimpleNamespace(cuda=SimpleNamespace(stream=lambda _stream: nullcontext()))
        self.gate = self
        self.passed = False
        self.gates_ns: list[int] = []
        self._call_ns = call_ns

    @contextmanager
    def closed(self, _stream: int, most_ns: int) -> Iterator[GatedBench]:
        self.gates_ns.append(most_ns)
        self.passed = False
        yield self

    def call(self) -> None:
        self.passed = self._call_ns(self.gates_ns[-1]) >= self.gates_ns[-1]

    def wait(self, _limit_s: float) -> None:
        """Everything is done at once."""


def found_out(call_ns: Callable[[int], int]) -> tuple[bool, list[int]]:
    bench: Any = GatedBench(call_ns)
    return probe_capability(bench, bench.call, None, steady=False, limit_s=60).waits, bench.gates_ns


def test_a_host_that_is_slow_is_not_taken_for_a_call_that_waits() -> None:
    assert found_out(lambda _gate_ns: 1_000_000) == (False, [50_000_000])
    assert found_out(lambda _gate_ns: 60_000_000) == (False, [50_000_000, 2_000_000_000])


def test_a_call_that_outlasts_every_gate_waits_for_the_gpu() -> None:
    assert found_out(lambda gate_ns: gate_ns) == (True, [50_000_000, 2_000_000_000])
