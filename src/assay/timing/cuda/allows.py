"""What a call allows a timer to do, found out by trying: it may wait for the GPU, or refuse to be captured."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay.core.errors import BadInput
from assay.timing.cuda.driver import captured
from assay.timing.cuda.graphs import NotCaptured, capture

if TYPE_CHECKING:
    from assay.timing.cuda.bench import Bench
    from assay.timing.cuda.driver import Captured
    from assay.timing.instrument import Call

Method = Literal["graph", "queue", "trace", "wall"]
GATE_MOST_NS = (50_000_000, 2_000_000_000)
"""A gate opens by itself after the first; the second tells a call that waits for it from a host that is slow."""


@dataclass(frozen=True)
class Allows:
    """What a call allows.

    Attributes:
        waits: It waits for the GPU, so that nothing can be queued behind a gate.
        captures: It can be held in a graph.
        refusal: Why not, in the driver's words.
        copies: How many of its operations copy memory, which a graph does in its own way.
        operations: How many kernels, copies and fills it launches; null where it cannot be captured.
        branches: Some of them may run side by side.
    """

    waits: bool
    captures: bool
    refusal: str | None = None
    operations: int | None = None
    branches: bool = False
    copies: int = 0


def find_out(bench: Bench, call: Call, setup: Call | None, *, steady: bool, limit_s: float) -> Allows:
    """Make a call behind a closed gate, and capture one, each after its setup, which stands in every batch too.

    ``steady`` says that every call does the same.
    """
    prepare = setup or _nothing
    if all(_outlasts_gate(bench, prepare, call, most_ns, limit_s) for most_ns in GATE_MOST_NS):
        return Allows(waits=True, captures=False, refusal="it waits for the GPU")
    if not steady:
        return Allows(waits=False, captures=False, refusal="its calls differ from each other")
    summaries: list[Captured] = []

    def body() -> None:
        prepare()
        summaries.append(captured(bench.handle))
        call()
        summaries.append(captured(bench.handle))

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
            capture(bench, body, bench.torch.cuda.graph_pool_handle(), keep=True).reset()
    except NotCaptured as error:
        return Allows(waits=False, captures=False, refusal=str(error))
    return Allows(
        waits=False,
        captures=True,
        operations=summaries[1].operations - summaries[0].operations,
        branches=summaries[1].branches,
        copies=summaries[1].copies - summaries[0].copies,
    )


def _outlasts_gate(bench: Bench, prepare: Call, call: Call, most_ns: int, limit_s: float) -> bool:
    with bench.torch.cuda.stream(bench.stream), bench.gate.closed(bench.handle, most_ns) as gate:
        prepare()
        call()
        passed = gate.passed
    bench.wait(limit_s)
    return passed


def choose(allows: Allows, wanted: Method | Literal["auto"]) -> tuple[Method, str]:
    """Return the method for a call, and why.

    Raises:
        BadInput: The method asked for cannot time this call.
    """
    best, why = _best(allows)
    if wanted in {"auto", best}:
        return best, why if wanted == "auto" else "asked for"
    if wanted == "graph" and not allows.captures:
        raise BadInput(f"This call cannot be held in a graph: {allows.refusal}. Use method='auto'.")
    if wanted == "queue" and allows.waits:
        raise BadInput("This call waits for the GPU, so it cannot be queued. Use method='auto'.")
    return wanted, "asked for"


def _best(allows: Allows) -> tuple[Method, str]:
    if allows.operations == 0:
        return "wall", "it launches nothing on the GPU"
    if allows.captures and allows.copies:
        return "queue", "it copies memory, which a graph does in its own way"
    if allows.captures:
        return "graph", "it can be captured, so that the host has no part in the time"
    if not allows.waits:
        return "queue", f"it cannot be captured ({allows.refusal}) and can be queued"
    return "trace", "it waits for the GPU itself, so that it can be neither captured nor queued"


def _nothing() -> None:
    """Do nothing."""
