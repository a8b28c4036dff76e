"""Capturing calls in a CUDA graph, and leaving the process as it was where that fails."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from assay.core.errors import TrialFailed

if TYPE_CHECKING:
    from assay.timing.cuda.bench import Bench
    from assay.timing.instrument import Call


class NotCaptured(TrialFailed):
    """A call did something that a graph cannot hold, such as waiting for the GPU."""


def capture(bench: Bench, body: Call, memory: object, *, keep: bool = False) -> Any:
    """Return a graph of what a body puts on the bench's stream, in a pool of memory; nothing of it runs yet.

    Raises:
        NotCaptured: The body does what a graph cannot hold.
    """
    torch = bench.torch
    torch.cuda.synchronize(bench.index)
    graph = torch.cuda.CUDAGraph(keep_graph=keep)
    with torch.cuda.stream(bench.stream):
        graph.capture_begin(pool=memory, capture_error_mode="thread_local")
        try:
            body()
            graph.capture_end()
        except Exception as error:
            _abandon(bench, graph, memory)
            raise NotCaptured(" ".join(str(error).split())[:200]) from error
        except BaseException:
            _abandon(bench, graph, memory)
            raise
    return graph


def _abandon(bench: Bench, graph: Any, memory: object) -> None:
    """End a capture that failed, so that memory and random numbers work as before."""
    torch = bench.torch
    with contextlib.suppress(RuntimeError):  # that it failed is known; ending it is what matters
        graph.capture_end()
    with contextlib.suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(bench.index, memory)  # noqa: SLF001 - PyTorch leaves it open
    torch.cuda.synchronize(bench.index)
    generator = torch.cuda.default_generators[bench.index]
    afresh = torch.Generator(device=f"cuda:{bench.index}")
    afresh.set_state(generator.get_state())
    generator.graphsafe_set_state(afresh.graphsafe_get_state())
