"""How much of a call the GPU was at work, and how much it waited for the host.

Kernels take the same time whether they are watched or not, but their launches do not: kernels are counted in a call
that is watched, and the call's length is that of one that is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from assay.core.environment import variable
from assay.workloads.torch_profile import kernel_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from assay.workloads.generation.graphs import GraphLoop
    from assay.workloads.generation.stamps import Extras

STEPS = 8
"""Decoding steps that are looked at."""


def union_us(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of several spans lasted; they may overlap."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def watched(call: Callable[[], Extras], where: str) -> dict[str, float]:
    """Make a call unwatched, watched, and unwatched again; say how long kernels ran, and how long each call took.

    The profiler is asked to let go of the driver afterwards: what stays attached slows every launch that follows, and
    ``untraced_after_us`` shows whether something did. Nothing is said where it sees nothing, as on a CPU.
    """
    if where == "cpu":
        return {}
    call()
    before = length_us(call())
    lengths: list[float] = []
    with variable("TEARDOWN_CUPTI", "1"):
        spans = kernel_spans(lambda: lengths.append(length_us(call())), where)
    call()
    after = length_us(call())
    if not spans:
        return {}
    return {
        "busy_us": union_us(spans),
        "traced_us": lengths[-1],
        "untraced_us": before,
        "untraced_after_us": after,
    }


def replayed(loop: GraphLoop, steps: int) -> dict[str, float]:
    """Say the same of replays, by events between them: no profiler has to look into a graph."""
    loop.decode(steps)
    untraced = length_us(loop.decode(steps))
    busy = loop.occupied_us(steps)
    return {"busy_us": busy, "traced_us": length_us(loop.decode(steps)), "untraced_us": untraced}


def length_us(said: Extras) -> float:
    """Return how long the tokens of a call took: until the first one, or from the first to the last."""
    return sum(cast("list[float]", said.get("gap_us") or said["first_token_us"]))
