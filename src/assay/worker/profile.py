"""The process behind ``assay trace``: calls a subject back to back under PyTorch's profiler.

Each call is inside a named range, and the host's clock is read before and after it, so that a reader can align the
trace with that clock. Without PyTorch there are only the host's times.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from assay.core.errors import MachineCannot
from assay.core.processes import temporary_variable
from assay.monitor.kernel_trace.kineto import call_mark
from assay.monitor.kernel_trace.rows import CallSpan
from assay.timing.setup import attribute_errors
from assay.worker.one_shot import GPU_SETUP_S, GRACE_S, load_subject, reporting_source_line, serve_request
from assay.worker.request import TraceRequest, TraceResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.worker.one_shot import LoadedSubject, PhaseReporter

NO_PROFILER = (
    "PyTorch, whose profiler tells operators and kernels apart, was not loaded: a row is a call by the host's clock"
)


def trace_calls(request: TraceRequest, report_phase: PhaseReporter) -> TraceResult:
    """Load the subject, check it, call it until it is warm, and trace the measured calls."""
    ready = load_subject(0, request.subjects[0].label, request, report_phase)
    torch = sys.modules.get("torch")
    report_phase("tracing", ready.name, request.limit_s + GRACE_S + (GPU_SETUP_S if torch is not None else 0.0))
    with _blame_subject(request, ready):
        for _ in range(request.warmup):
            ready.call()
    spans = _time_on_host(request, ready) if torch is None else _profile(request, ready, torch)
    ready.prepared.close()
    return TraceResult(
        facts=ready.facts,
        calls=spans,
        profiled=torch is not None,
        missing_reason=NO_PROFILER if torch is None else None,
    )


@contextlib.contextmanager
def _blame_subject(request: TraceRequest, ready: LoadedSubject) -> Iterator[None]:
    """Attribute errors in a block to the subject, with its source line."""
    with reporting_source_line("", request.subjects[0]), attribute_errors(ready.name):
        yield


def _time_on_host(request: TraceRequest, ready: LoadedSubject) -> tuple[CallSpan, ...]:
    spans: list[CallSpan] = []
    with _blame_subject(request, ready):
        for _ in range(request.calls):
            began_ns = time.monotonic_ns()
            ready.call()
            spans.append(CallSpan(entered_ns=began_ns, began_ns=began_ns, ended_ns=time.monotonic_ns()))
    return tuple(spans)


def _profile(request: TraceRequest, ready: LoadedSubject, torch: Any) -> tuple[CallSpan, ...]:
    """Make the calls under the profiler and export its trace.

    A profiled call whose trace is discarded absorbs the profiler's start-up. CUPTI must stay attached after it: once
    torn down, it sees no kernels the second time. The profiler is the one in ``torch.autograd``: the other one imports
    PyTorch's compiler, and the traces are the same.
    """
    from torch.autograd.profiler import profile, record_function

    on_gpu = request.device.startswith("cuda") and torch.cuda.is_available()
    profile_options = {"use_device": "cuda" if on_gpu else None, "use_kineto": True}
    spans: list[CallSpan] = []
    try:
        with (
            temporary_variable("TEARDOWN_CUPTI", "0"),
            profile(**profile_options),
            record_function("warm-up"),
            _blame_subject(request, ready),
        ):
            ready.call()
        with profile(**profile_options) as profiler, _blame_subject(request, ready):
            for number in range(request.calls):
                entered_ns = time.monotonic_ns()
                with record_function(call_mark(number)):
                    began_ns = time.monotonic_ns()
                    ready.prepared.call()
                    ended_ns = time.monotonic_ns()
                spans.append(CallSpan(entered_ns=entered_ns, began_ns=began_ns, ended_ns=ended_ns))
            ready.prepared.synchronize()
            if on_gpu:
                torch.cuda.synchronize()
        profiler.export_chrome_trace(request.file)
    except RuntimeError as error:
        raise MachineCannot(f"PyTorch's profiler cannot trace here: {' '.join(str(error).split())[:200]}.") from error
    return tuple(spans)


if __name__ == "__main__":
    sys.exit(serve_request(sys.argv[1:], TraceRequest, trace_calls))
