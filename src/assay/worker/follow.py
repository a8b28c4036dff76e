"""The process behind ``assay trace``: calls a subject back to back, with PyTorch's profiler writing down what runs.

Each call stands in a mark of ours, and the host's clock is read on both sides of it, so that whoever reads the trace
can lay it on that clock. Where PyTorch is not loaded there is only the host's clock.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from assay.core.environment import variable
from assay.core.errors import MachineCannot
from assay.monitor.kernels.kineto import mark
from assay.monitor.kernels.rows import CallSpan
from assay.timing.subject import blamed
from assay.worker.once import GRACE_S, SPARE_S, make_ready, serve, told
from assay.worker.wish import Followed, TraceWish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.worker.once import Ready, Tell

NOT_LOADED = (
    "PyTorch, whose profiler tells operators and kernels apart, was not loaded: a row is a call by the host's clock"
)


def follow(wish: TraceWish, tell: Tell) -> Followed:
    """Load the subject, check it, call it until it is warm, and then follow the calls that count."""
    ready = make_ready(0, wish.subjects[0].label, wish, tell)
    torch = sys.modules.get("torch")
    tell("tracing", ready.name, wish.limit_s + GRACE_S + (SPARE_S if torch is not None else 0.0))
    with _theirs(wish, ready):
        for _ in range(wish.warmup):
            ready.call()
    spans = _by_the_host(wish, ready) if torch is None else _profiled(wish, ready, torch)
    ready.prepared.close()
    return Followed(
        facts=ready.facts, calls=spans, profiled=torch is not None, why_not=NOT_LOADED if torch is None else None
    )


@contextlib.contextmanager
def _theirs(wish: TraceWish, ready: Ready) -> Iterator[None]:
    """Say of what is raised in a block that the subject raised it, and where."""
    with told("", wish.subjects[0]), blamed(ready.name):
        yield


def _by_the_host(wish: TraceWish, ready: Ready) -> tuple[CallSpan, ...]:
    spans: list[CallSpan] = []
    with _theirs(wish, ready):
        for _ in range(wish.calls):
            began_ns = time.monotonic_ns()
            ready.call()
            spans.append(CallSpan(entered_ns=began_ns, began_ns=began_ns, ended_ns=time.monotonic_ns()))
    return tuple(spans)


def _profiled(wish: TraceWish, ready: Ready, torch: Any) -> tuple[CallSpan, ...]:
    """Make the calls under the profiler and export what it saw.

    What it does when it first starts is kept out by a call that is profiled and forgotten, after which it must stay
    attached: one that was told to let go of the driver sees no kernel the second time. The profiler is the one in
    ``torch.autograd``: the other imports PyTorch's compiler, and this one's trace is the same.
    """
    from torch.autograd.profiler import profile, record_function

    on_gpu = wish.device.startswith("cuda") and torch.cuda.is_available()
    profile_options = {"use_device": "cuda" if on_gpu else None, "use_kineto": True}
    spans: list[CallSpan] = []
    try:
        with (
            variable("TEARDOWN_CUPTI", "0"),
            profile(**profile_options),
            record_function("warm-up"),
            _theirs(wish, ready),
        ):
            ready.call()
        with profile(**profile_options) as profiler, _theirs(wish, ready):
            for number in range(wish.calls):
                entered_ns = time.monotonic_ns()
                with record_function(mark(number)):
                    began_ns = time.monotonic_ns()
                    ready.prepared.call()
                    ended_ns = time.monotonic_ns()
                spans.append(CallSpan(entered_ns=entered_ns, began_ns=began_ns, ended_ns=ended_ns))
            ready.prepared.synchronize()
            if on_gpu:
                torch.cuda.synchronize()
        profiler.export_chrome_trace(wish.file)
    except RuntimeError as error:
        raise MachineCannot(f"PyTorch's profiler cannot trace here: {' '.join(str(error).split())[:200]}.") from error
    return tuple(spans)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:], TraceWish, follow))
