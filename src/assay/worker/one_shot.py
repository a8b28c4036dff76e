"""The process behind ``assay time`` and ``assay trace``: serves one request on functions and workloads, and ends.

It is a separate process so that a call that never returns can be killed with it. A traced call is inside a named range
of PyTorch's profiler, and the host's clock is read before and after it, so that a reader can align the trace with that
clock. Without PyTorch there are only the host's times.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from assay.core import processes
from assay.core.errors import AssayError, BadInput, MachineCannot, TrialFailed, WrongResult
from assay.core.processes import kill_descendants, open_parent_socket, temporary_variable
from assay.monitor.kernel_trace.rows import CallSpan, call_mark
from assay.timing.compare import compare
from assay.timing.measure import measure
from assay.timing.options import require_time_kind, resolve_options
from assay.timing.setup import attribute_errors, time_limit
from assay.worker import subjects
from assay.worker.request import PhaseStarted, RequestFailed, TimeRequest, TimeResult, TraceRequest, TraceResult
from assay.worker.subjects import describe_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from assay.core.results import SubjectFacts
    from assay.core.values import Subject
    from assay.timing.options import TimingOptions
    from assay.worker.request import Phase
    from assay.workloads.base import PreparedWorkload

    class PhaseReporter(Protocol):
        """Reports a new phase to the parent."""

        def __call__(self, phase: Phase, name: str, within_s: float, budget_s: float | None = None, /) -> None:
            """Report the phase, its time limit, and the time that timing is meant to take."""


CPU_BUDGET_S, CUDA_BUDGET_S = 10.0, 30.0
"""Default sampling time of all processes together."""

LOAD_LIMIT_S = 180.0
"""Limit for importing a module, preparing data and checking a result against its reference."""

GRACE_S = 2.0
"""Time after the limit for the process to end a call itself before it is killed."""

GPU_SETUP_S = 60.0
"""Limit for calibrating a GPU, once for each driver, and for capturing graphs."""

MAX_SLOW_CALLS = 8
"""Maximum number of calls of a function when each takes longer than the budget."""


@dataclass(frozen=True)
class LoadedSubject:
    """A subject that was loaded, checked and called once: its name, and the duration of that call in s."""

    name: str
    prepared: PreparedWorkload
    facts: SubjectFacts
    took_s: float

    def call(self) -> object:
        """Make one call and wait for its work, in the way the user specified."""
        result = self.prepared.call()
        self.prepared.synchronize()
        return result


def time_subjects(request: TimeRequest, report_phase: PhaseReporter) -> TimeResult:
    """Load the subjects, check them, call each once, and time them."""
    if request.device is not None:  # otherwise the options cannot be checked before the calls are loaded
        require_time_kind(request.by, _timing_options(request, request.device))
    names = distinct_names([subject.label for subject in request.subjects])
    loaded = {
        index: load_subject(index, names[index], request, report_phase)
        for index in load_order(len(names), request.process)
    }
    ready = [loaded[index] for index in range(len(names))]
    waits = any(entry.prepared.synchronizes_itself for entry in ready)
    device = "cpu" if request.device is None and waits else request.device
    usual_s = CUDA_BUDGET_S if _timing_options(request, device).on_gpu else CPU_BUDGET_S
    budget_s = (request.budget_s or usual_s) / request.processes
    within_s = 2 * budget_s + request.limit_s + GRACE_S + MAX_SLOW_CALLS * sum(entry.took_s for entry in ready)
    within_s += GPU_SETUP_S if "torch" in sys.modules else 0.0
    report_phase("timing", " and ".join(names), within_s, budget_s)
    calls = {entry.name: entry.call if waits else entry.prepared.call for entry in ready}
    timed = _time_calls(request, calls, device, budget_s)
    for entry in ready:
        entry.prepared.close()
    return timed.model_copy(update={"facts": tuple(entry.facts for entry in ready)})


def _time_calls(
    request: TimeRequest, calls: dict[str, Callable[[], object]], device: str | None, budget_s: float
) -> TimeResult:
    """Measure one function or compare several; without a device, it is detected from the calls."""
    if len(calls) == 1:
        ((name, call),) = calls.items()
        measurement = measure(
            call, device=device, cache=request.cache, method=request.method, precision=request.precision,
            budget_s=budget_s, limit_s=request.limit_s, lock_mhz=request.lock_mhz, name=name,
        )  # fmt: skip
        return TimeResult(facts=(), budget_s=budget_s, measurement=measurement)
    comparison = compare(
        calls, device=device, cache=request.cache, method=request.method, by=request.by,
        minimum_effect=request.minimum_effect, budget_s=budget_s, limit_s=request.limit_s, lock_mhz=request.lock_mhz,
        seed=request.seed + request.process - 1,
    )  # fmt: skip
    return TimeResult(facts=(), budget_s=budget_s, comparison=comparison)


def load_order(count: int, process: int) -> list[int]:
    """Return the order in which a process loads its subjects; it rotates, so that each comes first equally often."""
    return [(position + process - 1) % count for position in range(count)]


def _timing_options(request: TimeRequest, device: str | None) -> TimingOptions:
    return resolve_options(
        device=device, cache=request.cache, method=request.method, precision=request.precision,
        budget_s=request.budget_s or CPU_BUDGET_S, times=("call",), limit_s=request.limit_s, lock_mhz=request.lock_mhz,
    )  # fmt: skip


def distinct_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Return distinct names: a subject may be compared with itself."""
    return tuple(
        label if label not in labels[:index] else f"{label} ({labels[: index + 1].count(label)})"
        for index, label in enumerate(labels)
    )


def load_subject(
    index: int, name: str, request: TimeRequest | TraceRequest, report_phase: PhaseReporter
) -> LoadedSubject:
    """Load a subject, check it against its reference where it has one, and call it once."""
    subject = request.subjects[index]
    device = request.device or "cpu"
    report_phase("loading", name, LOAD_LIMIT_S)
    with reporting_source_line(f"{name} cannot be loaded: ", subject):
        prepared = subjects.prepare_subject(
            subject, device=device if ":" in device else f"{device}:0", seed=request.seed
        )
        facts = subjects.check_subject(index, subject, prepared)
    report_phase("calling", name, request.limit_s + GRACE_S)
    begin = time.perf_counter()
    with reporting_source_line("", subject), attribute_errors(name), time_limit(request.limit_s, name):
        prepared.call()
        prepared.synchronize()
        processes.exit_if_forked()
    return LoadedSubject(name, prepared, facts, time.perf_counter() - begin)


@contextlib.contextmanager
def reporting_source_line(prefix: str, subject: Subject) -> Iterator[None]:
    """Add the line of the subject's own file to errors that it raises."""
    try:
        yield
    except (BadInput, MachineCannot):
        raise
    except TrialFailed as error:
        raise type(error)(f"{error}{_source_line(error.__cause__, subject)}") from error.__cause__
    except (Exception, SystemExit) as error:
        raise TrialFailed(f"{prefix}{describe_failure(error).reason}{_source_line(error, subject)}") from error


def _source_line(error: BaseException | None, subject: Subject) -> str:
    path = subject.workload.rpartition(":")[0]
    if error is None or not path.endswith(".py"):
        return ""
    file = str(Path(path).absolute())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" (line {lines[-1]} of {path})" if lines else ""


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


def fulfil_request(
    request: TimeRequest | TraceRequest, report_phase: PhaseReporter
) -> TimeResult | TraceResult | RequestFailed:
    """Return the result of a request, or the failure."""
    try:
        if isinstance(request, TraceRequest):
            return trace_calls(request, report_phase)
        return time_subjects(request, report_phase)
    except AssayError as error:
        kind = next((kind for kind in (BadInput, MachineCannot, WrongResult) if isinstance(error, kind)), TrialFailed)
        return RequestFailed.model_validate({"error": kind.__name__, "reason": str(error)})
    except Exception as error:  # noqa: BLE001 - an unexpected error is reported to the parent as a defect of Assay
        reason = f"{type(error).__name__}: {error}"
        return RequestFailed(error="defect", reason=reason, traceback=traceback.format_exc())


def serve_request(activity: str, descriptor: str, parent_pid: str) -> int:
    """Handle the request to time or trace from an inherited socket; return 0 if a reply was sent, 1 otherwise."""
    kind = TraceRequest if activity == "trace" else TimeRequest
    # The socket may be closed: the parent is gone, or a subject closed all files.
    with (
        contextlib.suppress(OSError),
        open_parent_socket(int(descriptor), int(parent_pid)) as sock,
        sock.makefile("rb") as lines,
    ):

        def send(message: PhaseStarted | TimeResult | TraceResult | RequestFailed) -> None:
            sys.stdout.flush()
            sock.sendall(message.model_dump_json().encode() + b"\n")

        processes.watch_for_forks(
            lambda reason: send(RequestFailed(error="TrialFailed", reason=f"{reason[0].upper()}{reason[1:]}."))
        )
        request = kind.model_validate_json(lines.readline())

        def report_phase(phase: Phase, name: str, within_s: float, budget_s: float | None = None, /) -> None:
            send(PhaseStarted(phase=phase, name=name, within_s=within_s, budget_s=budget_s))

        reply = fulfil_request(request, report_phase)
        kill_descendants()
        send(reply)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(serve_request(*sys.argv[1:]))
