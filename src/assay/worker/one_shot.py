"""The process behind ``assay time``: times functions and workloads once and returns the result.

It is a separate process so that a call that never returns can be killed with it. ``serve_request`` serves any one-shot
request.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from assay.core import processes
from assay.core.errors import AssayError, BadInput, MachineCannot, TrialFailed, WrongResult
from assay.core.processes import adopt_orphans, die_with_parent, enable_line_buffering, kill_descendants
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


RequestT = TypeVar("RequestT", TimeRequest, TraceRequest)

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
    _check_options(request)
    names = distinct_names([subject.label for subject in request.subjects])
    loaded = {
        index: load_subject(index, names[index], request, report_phase)
        for index in load_order(len(names), request.process)
    }
    ready = [loaded[index] for index in range(len(names))]
    device = (
        "cpu"
        if request.device is None and any(entry.prepared.synchronizes_itself for entry in ready)
        else request.device
    )
    budget_s = _process_budget_s(request, device)
    within_s = 2 * budget_s + request.limit_s + GRACE_S + MAX_SLOW_CALLS * sum(entry.took_s for entry in ready)
    within_s += GPU_SETUP_S if "torch" in sys.modules else 0.0
    report_phase("timing", " and ".join(names), within_s, budget_s)
    timing = TimingPlan(device, budget_s)
    timed = _measure(request, ready[0], timing) if len(ready) == 1 else _compare(request, ready, timing)
    for entry in ready:
        entry.prepared.close()
    return timed


@dataclass(frozen=True)
class TimingPlan:
    """The device to time calls on (null: detected from the calls), and this process's budget in s."""

    device: str | None
    budget_s: float


def load_order(count: int, process: int) -> list[int]:
    """Return the order in which a process loads its subjects; it rotates, so that each comes first equally often."""
    return [(position + process - 1) % count for position in range(count)]


def _check_options(request: TimeRequest) -> None:
    """Check the options before anything of the user's is loaded; without a device, they cannot be checked yet."""
    if request.device is not None:
        require_time_kind(request.by, _timing_options(request, request.device))


def _timing_options(request: TimeRequest, device: str | None) -> TimingOptions:
    return resolve_options(
        device=device, cache=request.cache, method=request.method, precision=request.precision,
        budget_s=request.budget_s or CPU_BUDGET_S, times=("call",), limit_s=request.limit_s, lock_mhz=request.lock_mhz,
    )  # fmt: skip


def _process_budget_s(request: TimeRequest, device: str | None) -> float:
    """Return this process's share of the budget."""
    usual_s = CUDA_BUDGET_S if _timing_options(request, device).on_gpu else CPU_BUDGET_S
    return (request.budget_s or usual_s) / request.processes


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


def _measure(request: TimeRequest, ready: LoadedSubject, timing: TimingPlan) -> TimeResult:
    measurement = measure(
        ready.call if ready.prepared.synchronizes_itself else ready.prepared.call,
        device=timing.device,
        cache=request.cache,
        method=request.method,
        precision=request.precision,
        budget_s=timing.budget_s,
        limit_s=request.limit_s,
        lock_mhz=request.lock_mhz,
        name=ready.name,
    )
    return TimeResult(facts=(ready.facts,), budget_s=timing.budget_s, measurement=measurement)


def _compare(request: TimeRequest, ready: Sequence[LoadedSubject], timing: TimingPlan) -> TimeResult:
    waits = any(entry.prepared.synchronizes_itself for entry in ready)
    comparison = compare(
        {entry.name: entry.call if waits else entry.prepared.call for entry in ready},
        device=timing.device,
        cache=request.cache,
        method=request.method,
        by=request.by,
        minimum_effect=request.minimum_effect,
        budget_s=timing.budget_s,
        limit_s=request.limit_s,
        lock_mhz=request.lock_mhz,
        seed=request.seed + request.process - 1,
    )
    return TimeResult(facts=tuple(entry.facts for entry in ready), budget_s=timing.budget_s, comparison=comparison)


def fulfil_request(
    request: RequestT,
    report_phase: PhaseReporter,
    handler: Callable[[RequestT, PhaseReporter], TimeResult | TraceResult],
) -> TimeResult | TraceResult | RequestFailed:
    """Return the result of a request, or the failure."""
    try:
        return handler(request, report_phase)
    except BadInput as error:
        return RequestFailed(error="BadInput", reason=str(error))
    except MachineCannot as error:
        return RequestFailed(error="MachineCannot", reason=str(error))
    except WrongResult as error:
        return RequestFailed(error="WrongResult", reason=str(error))
    except AssayError as error:
        return RequestFailed(error="TrialFailed", reason=str(error))
    except Exception as error:  # noqa: BLE001 - an unexpected error is reported to the parent as a defect of Assay
        reason = f"{type(error).__name__}: {error}"
        return RequestFailed(error="defect", reason=reason, traceback=traceback.format_exc())


def serve_request(
    arguments: Sequence[str],
    kind: type[RequestT],
    handler: Callable[[RequestT, PhaseReporter], TimeResult | TraceResult],
) -> int:
    """Handle the request that arrives on an inherited socket; return 0 if a reply was sent, 1 otherwise."""
    descriptor, parent = int(arguments[0]), int(arguments[1])
    del sys.argv[1:]  # these are Assay's, and user code may read its own
    os.set_inheritable(descriptor, False)
    die_with_parent(parent)
    adopt_orphans()
    enable_line_buffering()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The socket may be closed: the parent is gone, or a subject closed all files.
    with contextlib.suppress(OSError), socket.socket(fileno=descriptor) as sock, sock.makefile("rb") as lines:

        def send(message: PhaseStarted | TimeResult | TraceResult | RequestFailed) -> None:
            sys.stdout.flush()
            sock.sendall(message.model_dump_json().encode() + b"\n")

        processes.watch_for_forks(
            lambda reason: send(RequestFailed(error="TrialFailed", reason=f"{reason[0].upper()}{reason[1:]}."))
        )
        request = kind.model_validate_json(lines.readline())

        def report_phase(phase: Phase, name: str, within_s: float, budget_s: float | None = None, /) -> None:
            send(PhaseStarted(phase=phase, name=name, within_s=within_s, budget_s=budget_s))

        reply = fulfil_request(request, report_phase, handler)
        kill_descendants()
        send(reply)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(serve_request(sys.argv[1:], TimeRequest, time_subjects))
