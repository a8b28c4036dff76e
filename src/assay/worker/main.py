"""The worker: one process, one rank of one role, from prepare to finish.

It answers the parent's messages: it times blocks, runs the role's tuner, traces one call of each subject with
PyTorch's profiler, runs as a load, and reports evidence at the end (where it ran, what it used and what disturbed
it).
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from assay.core import processes as copies
from assay.core.errors import AssayError, BadInput
from assay.core.processes import kill_descendants, open_parent_socket
from assay.core.values import HOST, Adaptive, Continuous, Counted, Paired, Staged
from assay.isolation.binding import (
    HeldIsolation,
    bind_process,
    bound_nodes,
    pages_by_node,
    pin_threads,
    process_cpus,
    recheck_isolation,
)
from assay.timing.setup import time_limit
from assay.tuners import base as registry
from assay.tuners.base import TuningJob, TuningResult, describe_error
from assay.worker import protocol as say
from assay.worker import subjects
from assay.worker.sequences import PairedSubjects, StagedSubjects
from assay.worker.subjects import describe_failure
from assay.worker.timer import ContinuousTimer, SubjectTimer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import SubjectFacts
    from assay.core.values import Subject
    from assay.timing.interleaved import SampleBlock
    from assay.workloads.base import PreparedWorkload


TIMEOUT_SHARE = 0.9
"""Share of the timeout, on top of a tuner's budget, after which a tuner is interrupted, before the parent kills it."""


def run_tuner(message: say.Prepare, *, device: str, seed: int) -> say.Tuned:
    """Run the tuner of a prepared role; whatever it raises becomes the reason why there is no configuration."""
    tuner = message.role.tuner
    if tuner is None:
        raise say.InvalidMessage("a role without a tuner was told to tune")
    cache = message.mode.cache if isinstance(message.mode, Adaptive) else None
    job = TuningJob(message.role.subjects[0], tuner, device, seed, cache)
    limit_s = tuner.budget_s + TIMEOUT_SHARE * message.mode.timeout_s
    start = time.perf_counter_ns()
    try:
        with time_limit(limit_s, "the tuner's command" if tuner.command else f"the tuner {tuner.name}"):
            result = registry.load_tuner(tuner.name)(job)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tuner raises is why it chose nothing
        if not isinstance(error, AssayError):
            traceback.print_exc()
        result = TuningResult(config=None, reason=describe_error(error))
    end = time.perf_counter_ns()
    result = registry.check_choice(job, result)
    subjects.release_memory(device)  # what the candidates cached, for concurrent processes
    return say.Tuned(
        tuner=tuner.name,
        version=result.version,
        config=result.config,
        time_us=result.time_us,
        tried=result.tried,
        tuning_s=(end - start) / 1e9 if result.tuning_s is None else result.tuning_s,
        start_ns=start,
        end_ns=end,
        reason=result.reason,
        notes=result.notes,
    )


def trace_subjects(prepared: Sequence[PreparedWorkload], subjects: Sequence[Subject]) -> tuple[say.TraceDone, bytes]:
    """Call every subject once under the profiler; return the trace, or why there is none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return say.TraceDone(reason="PyTorch, whose profiler it is, was not loaded"), b""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        for workload, name in zip(prepared, distinguishing_names(subjects), strict=True):
            if workload.align is not None:
                workload.align()
            with record_function(name):
                workload.call()
                workload.synchronize()
    with tempfile.TemporaryDirectory(prefix="assay-trace-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        if path.stat().st_size > say.MAX_PAYLOAD_BYTES:
            return say.TraceDone(reason=f"its trace is larger than {say.MAX_PAYLOAD_BYTES // 2**20} MiB"), b""
        return say.TraceDone(), path.read_bytes()


def distinguishing_names(subjects: Sequence[Subject]) -> list[str]:
    """Return a name for each subject: its label, with those parameters in which it differs from another."""
    differing = {
        name
        for subject in subjects
        for name in subject.params
        if len({repr(other.params.get(name)) for other in subjects}) > 1
    }
    return [
        " ".join([s.label, *(f"{name}={value}" for name, value in s.params.items() if name in differing)])
        for s in subjects
    ]


def cpu_seconds() -> float:
    """Return the CPU time in s of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def read_evidence(held: HeldIsolation) -> say.Finished:
    """Read back where this process actually ran and what disturbed it."""
    self_usage, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return say.Finished(
        pid=os.getpid(),
        isolation_held=held.level,
        isolation_limits=held.limits,
        allowed_cores=process_cpus(),
        memory_nodes=bound_nodes(),
        pages_by_node=pages_by_node(),
        involuntary_switches=self_usage.ru_nivcsw + children.ru_nivcsw,
        voluntary_switches=self_usage.ru_nvcsw + children.ru_nvcsw,
        cpu_s=cpu_seconds(),
        peak_memory_mib=max(self_usage.ru_maxrss, children.ru_maxrss) / 1024,
    )


SPIN_NS = 2_000_000
"""The last part of the wait for a common start is a busy loop, so that all start within microseconds."""


RoleTimer: TypeAlias = SubjectTimer | ContinuousTimer | PairedSubjects | StagedSubjects


class Worker:
    """Handles the parent's messages, one after another."""

    def __init__(self, connection: say.WorkerConnection) -> None:
        self._connection = connection
        self._held = HeldIsolation("none")
        self._prepared: tuple[PreparedWorkload, ...] = ()
        self._timer: RoleTimer = SubjectTimer((), ())
        self._prepare_message: say.Prepare | None = None

    def serve(self) -> None:
        """Handle messages until one asks to finish."""
        while True:
            message = self._connection.receive()
            match message:
                case say.Prepare():
                    self._prepare(message)
                case say.TakeBlock() | say.TakeSamples() | say.TakeStage():
                    self._take(message)
                case say.Tune():
                    self._tune(message)
                case say.TakeTrace():
                    self._connection.send(*trace_subjects(self._prepared, self._message.role.subjects))
                case say.Hold():
                    self._hold(announce=True)
                case say.Finish():
                    self._finish()
                    return
                case _:
                    raise say.InvalidMessage(f"a worker was told {message.kind!r}")

    def _prepare(self, message: say.Prepare) -> None:
        pin_threads(message.all_cpus)
        self._held = bind_process(message.allotment)
        self._prepare_message = message
        role, mode, device = message.role, message.mode, worker_device(message)
        if role.duty == "timed" and isinstance(mode, Paired | Staged):
            self._timer = parts = (
                PairedSubjects(message, mode, device)
                if isinstance(mode, Paired)
                else StagedSubjects(message, mode, device)
            )
            self._connection.send(say.WorkerReady(facts=parts.begin()))
            return
        self._prepared = tuple(subjects.prepare_subject(s, device=device, seed=message.seed) for s in role.subjects)
        facts = tuple(subjects.check_subject(i, role.subjects[i], p) for i, p in enumerate(self._prepared))
        is_counted = role.ranks > 1 or isinstance(mode, Counted)
        if isinstance(mode, Continuous) and not is_counted:
            self._timer = continuous = ContinuousTimer(self._prepared, message, mode, device)
            facts = tuple(f.model_copy(update={"timed": continuous.describe_timing()}) for f in facts)
        else:
            self._timer = timer = SubjectTimer(self._prepared, [subject.label for subject in role.subjects])
            if role.duty == "timed" and not is_counted:
                cache = mode.cache if isinstance(mode, Adaptive) else None
                methods = timer.set_up(device, cache, mode.timeout_s)
                facts = tuple(f.model_copy(update={"timed": method}) for f, method in zip(facts, methods, strict=True))
        self._connection.send(say.WorkerReady(facts=facts))

    def _take(self, message: say.TakeBlock | say.TakeSamples | say.TakeStage) -> None:
        if message.start_at_ns is not None:
            wait_until(message.start_at_ns)
        block, facts = self._take_block(message)
        headers, payload = _pack_series(block)
        done = say.BlockDone(start_ns=block.start_ns, end_ns=block.end_ns, series=headers, facts=facts)
        self._connection.send(done, payload)
        if not isinstance(message, say.TakeStage) and message.hold:
            self._hold(announce=False)

    def _take_block(
        self, message: say.TakeBlock | say.TakeSamples | say.TakeStage
    ) -> tuple[SampleBlock, tuple[SubjectFacts, ...] | None]:
        """Time a block; for pairs and stages also return what was learned about each."""
        match self._timer, message:
            case StagedSubjects() as staged, say.TakeStage():
                return staged.take(message)
            case PairedSubjects() as paired, say.TakeBlock():
                return paired.take(message)
            case ContinuousTimer() as continuous, say.TakeBlock():
                return continuous.take(message), None
            case SubjectTimer() as timer, say.TakeBlock() | say.TakeSamples():
                return timer.take(message), None
            case _:
                raise say.InvalidMessage(f"a worker that was prepared otherwise was asked for a {message.kind}")

    @property
    def _message(self) -> say.Prepare:
        if self._prepare_message is None:
            raise say.InvalidMessage("a worker was told to tune or to trace before it was prepared")
        return self._prepare_message

    def _tune(self, message: say.Tune) -> None:
        prepared = self._message
        if message.start_at_ns is not None:
            wait_until(message.start_at_ns)
        self._connection.send(run_tuner(prepared, device=worker_device(prepared), seed=message.seed))
        if message.hold:
            self._hold(announce=False)

    def _hold(self, *, announce: bool) -> None:
        """Run every subject in turn until the parent sends a message; a load keeps the samples of continuous calls."""
        cpu_s, announced = cpu_seconds(), not announce

        def stop() -> bool:
            nonlocal announced
            if not announced:
                self._connection.send(say.Holding())
            announced = True
            return self._connection.has_message()

        if isinstance(self._timer, PairedSubjects | StagedSubjects):
            raise say.InvalidMessage("pairs and stages cannot be held as a load")
        calls, block = self._timer.hold(stop)
        if not isinstance(self._connection.receive(), say.Release):
            raise say.InvalidMessage("a load was told something other than release")
        headers, payload = _pack_series(block)
        used_s = cpu_seconds() - cpu_s
        self._connection.send(
            say.Released(calls=calls, start_ns=block.start_ns, end_ns=block.end_ns, cpu_s=used_s, series=headers),
            payload,
        )

    def _finish(self) -> None:
        for prepared in self._prepared:
            prepared.close()
        kill_descendants()
        isolation = self._held
        if self._prepare_message is not None:
            for subject in self._prepare_message.role.subjects:
                subjects.verify_origin(subject)
            isolation = recheck_isolation(self._held, self._prepare_message.allotment)
        self._connection.send(read_evidence(isolation))


def worker_device(message: say.Prepare) -> str:
    """Return the device that a rank works on; host roles work on the cores they are bound to."""
    device = message.role.device_of(message.rank)
    return "cpu" if device == HOST else device


def wait_until(moment_ns: int) -> None:
    """Wait for a monotonic time, first sleeping, then in a busy loop."""
    left = moment_ns - time.perf_counter_ns() - SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while time.perf_counter_ns() < moment_ns:
        pass


def _pack_series(block: SampleBlock) -> tuple[tuple[say.SeriesHeader, ...], bytes]:
    headers = tuple(
        say.SeriesHeader(
            subject=s.subject,
            quantity=s.quantity,
            n=len(s.samples),
            calls_per_sample=s.calls_per_sample,
            window=s.window,
        )
        for s in block.series
    )
    return headers, b"".join(s.samples.tobytes() for s in block.series)


def main(arguments: Sequence[str]) -> int:
    """Serve the parent on an inherited socket; exit 0 after a clean finish."""
    with open_parent_socket(int(arguments[0]), int(arguments[1])) as sock:
        connection = say.WorkerConnection(sock)
        copies.watch_for_forks(lambda reason: connection.send(say.MeasurementFailed(reason=reason)))
        try:
            Worker(connection).serve()
        except (say.ConnectionClosed, BrokenPipeError, ConnectionResetError):
            return 1
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is reported to the parent
            if not isinstance(error, AssayError) or (isinstance(error, BadInput) and error.__cause__ is not None):
                traceback.print_exc()  # for bad input, its cause
            connection.send(describe_failure(error))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
