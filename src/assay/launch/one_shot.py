"""One-shot processes that serve one request each, as for ``assay time``, and are ended with all their descendants.

    process 1   start, load, check, compile │ warm up ░ sample ▓▓▓▓│ end
    process 2                                                        start, load, check │ warm up ░ sample ▓▓▓▓│ end
    …           equal shares of the budget

The same request is served by several fresh processes, so that the result holds for any start and not for one. Their
number is fixed before the first, so that the interval over them is valid; only if calls are so long that the budget
is spent are the last ones skipped. The parent sleeps while it waits.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from assay.core import leases
from assay.core.errors import AssayError, BadInput, MachineCannot, StopRequested, TrialFailed, WrongResult
from assay.core.processes import list_descendants, mark_environment
from assay.launch.local import count_oom_kills, describe_exit, with_our_import_path
from assay.timing.processes import (
    MIN_PROCESSES,
    merge_comparisons,
    merge_measurements,
    summarize_comparison,
    summarize_measurement,
)
from assay.timing.results import Comparison, Measurement, ProcessTimes
from assay.worker.request import PhaseStarted, RequestFailed, TimeResult, TraceRequest, TraceResult, parse_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.worker.request import Reply, TimeRequest


START_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 5.0
TICK_S = 1.0
TAIL_BYTES = 4000
_ERRORS = {"BadInput": BadInput, "MachineCannot": MachineCannot, "WrongResult": WrongResult, "TrialFailed": TrialFailed}
ResultT = TypeVar("ResultT", TimeResult, TraceResult)


class ProgressWatcher(Protocol):
    """Receives progress."""

    def begins(self, begins: PhaseStarted) -> None:
        """Another phase begins."""

    def tick(self) -> None:
        """About a second has passed."""


class AssayDefect(Exception):
    """Assay itself failed in the timing process."""


class OneShotProcess:
    """``with OneShotProcess(request) as process: process.wait_for(TimeResult, watcher)``.

    Leaving the block ends the process with all its descendants.

    Attributes:
        printed: How many bytes the process printed since timing or tracing began.
    """

    def __init__(self, request: TimeRequest | TraceRequest, environment: Mapping[str, str] | None = None) -> None:
        self.printed = 0
        self._doing = PhaseStarted(phase="loading", name=request.subjects[0].label, within_s=START_TIMEOUT_S)
        self._limit_s = request.limit_s
        self._lines = b""
        self._tail = b""
        self._oom_kills = count_oom_kills()
        token = leases.new_lease_id()
        activity = "trace" if isinstance(request, TraceRequest) else "time"
        what = f"{activity} of {request.subjects[0].label}"
        command = [sys.executable, "-P", "-m", "assay.worker.one_shot", activity]
        self._lease = leases.take_lease("process", what, "assay.core.processes:kill_marked", {"token": token})
        self._socket, child_end = socket.socketpair()
        try:
            with child_end:
                self._process = subprocess.Popen(
                    [*command, str(child_end.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={**subprocess_environment(), **(environment or {}), **mark_environment(token)},
                    pass_fds=(child_end.fileno(),),
                    start_new_session=True,
                )
        except BaseException as error:
            self._socket.close()
            leases.release_lease(self._lease)
            if isinstance(error, OSError):
                raise MachineCannot(
                    f"A process for the calls could not be started: {error.strerror or error}."
                ) from error
            raise
        with contextlib.suppress(BrokenPipeError):
            self._socket.sendall(request.model_dump_json().encode() + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process with all its descendants, also those that left its session or cleared their marks."""
        pidfds: list[int] = []  # these cannot refer to another process later
        for pid in list_descendants(self._process.pid):
            with contextlib.suppress(OSError):  # it is gone
                pidfds.append(os.pidfd_open(pid))
        leases.release_lease(self._lease)
        self._process.wait()
        for handle in pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self._socket.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def tail(self) -> str:
        """The end of the process's output."""
        return self._tail.decode("utf-8", errors="replace").strip()

    def wait_for(self, kind: type[ResultT], watcher: ProgressWatcher) -> ResultT:
        """Wait for the result, asleep.

        Raises:
            BadInput: The request is invalid.
            MachineCannot: This machine cannot do it.
            TrialFailed: A subject fails, is wrong, never returns, or crashes the process.
            AssayDefect: Assay itself failed.
        """
        deadline = time.monotonic() + self._doing.within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            if self._process.stdout is not None:
                selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TrialFailed(self._timeout_message())
                ready = {key.fileobj for key, _ in selector.select(min(TICK_S, left_s))}
                watcher.tick()
                if self._process.stdout in ready and not self._read_output():
                    selector.unregister(self._process.stdout)
                if self._socket not in ready:
                    continue
                for reply in self._receive():
                    if not isinstance(reply, PhaseStarted):
                        return _unwrap_reply(reply, kind)
                    self._doing = reply
                    deadline = time.monotonic() + reply.within_s
                    watcher.begins(reply)

    def _read_output(self) -> bool:
        """Read the process's output, keeping its end; return false at the end of the output."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        data = os.read(self._process.stdout.fileno(), 2**16)
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if self._doing.phase in {"timing", "tracing"}:
            self.printed += len(data)
        return bool(data)

    def _receive(self) -> list[Reply]:
        """Return the replies received."""
        try:
            data = self._socket.recv(2**20)
        except ConnectionResetError:
            data = b""
        if not data:
            try:
                code = self._process.wait(EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise TrialFailed(f"{self._doing.name}: the process closed its connection without an answer.") from None
            out_of_memory = count_oom_kills() > self._oom_kills
            reason = describe_exit(code, process="the process", out_of_memory=out_of_memory).detail
            raise TrialFailed(f"{self._doing.name}: {reason}.")
        *lines, self._lines = (self._lines + data).split(b"\n")
        return [parse_reply(line) for line in lines]

    def _timeout_message(self) -> str:
        name = self._doing.name
        if self._doing.phase == "loading":
            return f"{name} was not loaded within {self._doing.within_s:g} s; the process was ended."
        if self._doing.phase == "calling":
            return f"{name} has not returned within {self._limit_s:g} s, and could not be interrupted; it was ended."
        return f"{name}: a call returned at first, and later one did not; the process was ended."


def _unwrap_reply(reply: TimeResult | TraceResult | RequestFailed, kind: type[ResultT]) -> ResultT:
    if isinstance(reply, kind):
        return reply
    if not isinstance(reply, RequestFailed):
        raise AssayDefect(f"a {kind.__name__} was awaited, and a {type(reply).__name__} came")
    if reply.error != "defect":
        raise _ERRORS[reply.error](reply.reason)
    defect = AssayDefect(reply.reason)
    defect.add_note(reply.traceback or "")
    raise defect


def subprocess_environment() -> dict[str, str]:
    """Return this process's environment, for a process that finds this Assay and numbers GPUs as NVML does."""
    return with_our_import_path({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ})


MAX_FAILURES = 2
"""After this many failed processes no more are started."""

MIN_CALLS, OVERSPEND_FACTOR = 5, 1.5
"""If a process's share is shorter than this many calls, its minimum, no further process is started that would spend the
budget this many times over."""


class ProcessWatcher(ProgressWatcher, Protocol):
    """Receives progress, process by process."""

    def process(self, number: int, of: int) -> None:
        """One of several processes begins."""


@dataclass(frozen=True)
class ProcessFailure:
    """A process that failed: its number, its error, and the end of its output."""

    process: int
    error: AssayError
    tail: str


@dataclass
class ProcessOutcomes:
    """The results of all processes, and the failures."""

    planned: int
    answers: list[tuple[int, TimeResult]] = field(default_factory=list)
    failures: list[ProcessFailure] = field(default_factory=list)
    printed: int = 0

    @property
    def by_process(self) -> tuple[ProcessTimes, ...]:
        """The times or the failure of each process, in order."""
        succeeded = [_process_times(process, timed) for process, timed in self.answers]
        failed = [ProcessTimes(process=f.process, status="failed", reason=str(f.error)) for f in self.failures]
        return tuple(sorted([*succeeded, *failed], key=lambda entry: entry.process))

    def timed(self) -> TimeResult:
        """Return the merged result; that of the single process if only one was planned."""
        first = self.answers[0][1]
        if self.planned == 1:
            return first
        merged: Measurement | Comparison
        if first.measurement is not None:
            measured = [timed.measurement for _, timed in self.answers if timed.measurement is not None]
            name, merged = "measurement", merge_measurements(measured, self.by_process)
        else:
            compared = [timed.comparison for _, timed in self.answers if timed.comparison is not None]
            name, merged = "comparison", merge_comparisons(compared, self.by_process)
        noted = merged.model_copy(update={"notes": (*merged.notes, *self._notes())})
        return first.model_copy(update={name: noted})

    def _notes(self) -> tuple[str, ...]:
        failed = tuple(f"process {f.process} of {self.planned} failed: {f.error}" for f in self.failures)
        skipped = self.planned - len(self.answers) - len(self.failures)
        if not skipped or len(self.failures) >= MAX_FAILURES:
            return failed
        return (
            *failed,
            f"{skipped} of {self.planned} processes were left out: calls are long, and the budget was spent",
        )


def _process_times(process: int, timed: TimeResult) -> ProcessTimes:
    if timed.measurement is not None:
        return summarize_measurement(process, timed.measurement)
    assert timed.comparison is not None  # noqa: S101 - it is one or the other
    return summarize_comparison(process, timed.comparison)


def time_in_processes(
    request: TimeRequest,
    watcher: ProcessWatcher,
    *,
    on_failure: Callable[[ProcessFailure], None],
    start: Callable[[TimeRequest], OneShotProcess] = OneShotProcess,
) -> ProcessOutcomes:
    """Serve a request in as many fresh processes as it asks for, one after another.

    A process after the first may fail: the others count, and the outcome says so. ``on_failure`` is called at once.

    Raises:
        AssayError: The first process failed, too few succeeded, or a result was wrong: then no time is published.
        StopRequested: A signal came.
        AssayDefect: Assay itself failed.
    """
    outcome = ProcessOutcomes(request.processes)
    for process in range(1, request.processes + 1):
        if len(outcome.failures) >= MAX_FAILURES or _overspent(request, outcome):
            break
        watcher.process(process, request.processes)
        _run_process(request.model_copy(update={"process": process}), watcher, start, outcome)
        if outcome.failures and outcome.failures[-1].process == process:
            on_failure(outcome.failures[-1])
            if process == 1:
                break
    if len(outcome.answers) < min(MIN_PROCESSES, request.processes):
        raise outcome.failures[0].error
    return outcome


def _run_process(
    request: TimeRequest,
    watcher: ProgressWatcher,
    start: Callable[[TimeRequest], OneShotProcess],
    outcome: ProcessOutcomes,
) -> None:
    """Serve the request in one process, and store its result or failure."""
    with start(request) as one_shot:
        try:
            outcome.answers.append((request.process, one_shot.wait_for(TimeResult, watcher)))
        except WrongResult:
            raise
        except (BadInput, MachineCannot, TrialFailed) as error:
            outcome.failures.append(ProcessFailure(request.process, error, one_shot.tail))
        except StopRequested as error:
            done = f"{len(outcome.answers)} of {request.processes} processes were timed, and nothing is reported"
            raise StopRequested(f"{error}; {done if outcome.answers else 'nothing was measured'}.") from None
        finally:
            outcome.printed += one_shot.printed


def _overspent(request: TimeRequest, outcome: ProcessOutcomes) -> bool:
    """Return whether calls are so long that one more process, after the first two, would far exceed the budget."""
    if len(outcome.answers) < MIN_PROCESSES:
        return False
    share_s = outcome.answers[0][1].budget_s
    process_times = [_process_times(process, timed) for process, timed in outcome.answers]
    call_s = sum(estimate.value for estimate in process_times[0].times.values() if estimate.unit == "us") / 1e6
    spent_s = [entry.took_s for entry in process_times]
    return MIN_CALLS * call_s > share_s and sum(spent_s) + min(spent_s) > OVERSPEND_FACTOR * request.processes * share_s
