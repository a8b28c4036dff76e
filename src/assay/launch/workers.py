"""The workers of one restart of a trial, from their parent's side.

A worker has an ID (role, rank and restart) and a handle to send to, wait for and end it. A group starts its workers
together, collects their replies, sorts failures by root cause and always ends all of them. Samples arrive as raw
bytes and end up in the trial's outcome.
"""

from __future__ import annotations

import re
import selectors
import time
from array import array
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, Self

from assay.core.processes import defer_stop
from assay.core.results import Evidence, Missing, Note, SettlingResult, Tuning
from assay.core.values import Role  # noqa: TC001 - pydantic resolves it in LaunchSpec
from assay.isolation.placement import Allotment  # noqa: TC001 - likewise
from assay.timing.continuous import START_US
from assay.worker import protocol as say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Disturbance, GpuSnapshot, Status
    from assay.core.values import Trial, Value


RANK_FAILURE_GRACE_S = 3.0


@dataclass(frozen=True)
class WorkerFailure:
    """Why a worker, given by its name, gave no reply: in words, and as a FailureCode for programs."""

    worker: str
    reason: str
    code: str = "error"


@dataclass(frozen=True)
class WorkerId:
    """The role, rank and restart of a worker."""

    role: Role
    rank: int
    restart: int

    @property
    def name(self) -> str:
        """A readable name: ``cpu:0``, or ``rank 3 of ring``."""
        return self.role.name if self.role.ranks == 1 else f"rank {self.rank} of {self.role.name}"

    @property
    def key(self) -> tuple[str, int]:
        """The worker's key within one restart."""
        return self.role.name, self.rank


class WorkerHandle(Protocol):
    """One worker, here or behind an agent of another torchrun process."""

    worker_id: WorkerId
    born_ns: int
    log: str | None
    same_clock: bool

    def fileno(self) -> int:
        """Return the file descriptor to wait on for its messages."""

    def send(self, message: say.Message) -> None:
        """Send a message; a worker that is gone is noticed when waiting for its reply."""

    def read(self) -> say.Frame | None:
        """Return the next complete frame, or null; raises `ConnectionClosed` or `InvalidMessage`."""

    def exit_status(self) -> Missing:
        """Return how it ended, once its connection is closed."""

    def stop(self) -> None:
        """End it and all its descendants, in any state; safe to call twice."""

    def tail(self) -> str | None:
        """Return the end of its output."""


@dataclass(frozen=True)
class WorkerReply:
    """A worker's frame, and the time of its arrival."""

    message: say.Message
    payload: bytes
    at_ns: int


WorkerReplies = dict[tuple[str, int], WorkerReply | WorkerFailure]


def collect_replies(
    handles: Iterable[WorkerHandle],
    expected: type[Value],
    *,
    within_s: float,
    doing: str,
    loads: Iterable[WorkerHandle] = (),
) -> WorkerReplies:
    """Wait, asleep, until every worker has replied or failed; a late one is killed.

    A worker that sends an unexpected message has failed, with its own reason if it sent one. When a rank has failed,
    the others of its role wait for it in vain and are soon killed too. The ``loads`` owe no reply, only to continue:
    when one has ended, the other workers no longer measure what was requested, and are killed.
    """
    replies: WorkerReplies = {}
    deadline = time.monotonic() + within_s
    late = WorkerFailure("", f"no answer within {within_s:.0f} s while {doing}; it was ended")
    with selectors.DefaultSelector() as selector:
        waiting = {handle.worker_id.key: handle for handle in handles}
        for handle in (*waiting.values(), *loads):
            selector.register(handle.fileno(), selectors.EVENT_READ, handle)
        while waiting:
            events = selector.select(max(0.0, deadline - time.monotonic()))
            for event, _ in events:
                handle = event.data
                is_awaited = handle.worker_id.key in waiting
                reply = _read_reply(handle, expected) if is_awaited else _load_failure(handle)
                if reply is not None:
                    selector.unregister(event.fd)
                    replies[handle.worker_id.key] = reply
                    waiting.pop(handle.worker_id.key, None)
                if isinstance(reply, WorkerFailure) and (handle.worker_id.role.ranks > 1 or not is_awaited):
                    deadline = min(deadline, time.monotonic() + (RANK_FAILURE_GRACE_S if is_awaited else 0.0))
                    reason = f"it was ended, as {handle.worker_id.name} had failed"
                    late = WorkerFailure("", reason, code="peer_lost")
            if time.monotonic() >= deadline and not events:
                break
    for key, handle in waiting.items():
        handle.stop()
        replies[key] = replace(late, worker=handle.worker_id.name)
    return replies


def _load_failure(handle: WorkerHandle) -> WorkerFailure | None:
    """Return why a load ended; null if it has not, or the message is not complete yet."""
    reply = _read_reply(handle, say.MeasurementFailed)
    if not isinstance(reply, WorkerFailure):
        return None
    return replace(reply, reason=f"the load ended early: {reply.reason}")


def _read_reply(handle: WorkerHandle, expected: type[Value]) -> WorkerReply | WorkerFailure | None:
    try:
        frame = handle.read()
    except say.ConnectionClosed:
        missing = handle.exit_status()
        return WorkerFailure(handle.worker_id.name, missing.detail, missing.code)
    except say.InvalidMessage as error:
        handle.stop()
        return WorkerFailure(handle.worker_id.name, f"it sent an invalid message: {error}")
    if frame is None:
        return None
    if isinstance(frame.message, say.MeasurementFailed):
        failure = frame.message
        return WorkerFailure(handle.worker_id.name, failure.reason, failure.code)
    if not isinstance(frame.message, expected):
        handle.stop()
        return WorkerFailure(handle.worker_id.name, f"it sent {frame.message.kind!r} out of turn")
    return WorkerReply(frame.message, frame.payload, time.perf_counter_ns())


def sort_by_root_cause(failures: Iterable[WorkerFailure]) -> list[WorkerFailure]:
    """Return failures, given in order of arrival, with the root cause first.

    Running out of memory comes first, then failures that are not a consequence of another one, in order of arrival.
    """
    return sorted(failures, key=lambda failure: (failure.code == "peer_lost", failure.code != "out_of_memory"))


def all_refused(failures: Iterable[WorkerFailure]) -> bool:
    """Return whether the machine cannot do it, on every rank that failed for a reason of its own."""
    all_failures = list(failures)
    root_failures = [failure for failure in all_failures if failure.code != "peer_lost"]
    return all(failure.code == "machine_cannot" for failure in root_failures or all_failures)


@dataclass(frozen=True)
class LaunchSpec:
    """What a worker is started for; ``port`` is the rendezvous port of its role's ranks, null for a single one."""

    trial: str
    attempt: int
    worker_id: WorkerId
    allotment: Allotment
    port: int | None


class WorkerStarter(Protocol):
    """Starts workers, here or elsewhere."""

    def __call__(self, spec: LaunchSpec) -> WorkerHandle:
        """Return a worker that waits to be prepared."""


@dataclass(eq=False)
class WorkersFailed(Exception):
    """Some workers of a group failed, the root cause first; the trial cannot use the others' results."""

    failures: tuple[WorkerFailure, ...]
    tail: str | None


@dataclass
class LoadTotals:
    """The totals of a worker over all times that it was held as a load."""

    calls: int = 0
    up_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, message: say.Released) -> None:
        """Add one more time."""
        self.calls += message.calls
        self.up_s += (message.end_ns - message.start_ns) / 1e9
        self.cpu_s += message.cpu_s


class WorkerGroup:
    """Every worker of one restart. Leaving it ends them all in any case."""

    def __init__(self, trial: Trial, restart: int) -> None:
        self.trial = trial
        self.restart = restart
        self.handles: dict[tuple[str, int], WorkerHandle] = {}
        self.facts: dict[tuple[str, int], say.WorkerReady] = {}
        self.threads: dict[tuple[str, int], int | None] = {}
        self.load_totals: dict[tuple[str, int], LoadTotals] = {}
        self.setup_s: dict[tuple[str, int], float] = {}
        self.series: list[RawSeries] = []
        self.tunings: list[Tuning] = []
        self.evidence: list[Evidence] = []
        self.settled: list[SettlingResult] = []
        self.traces: dict[tuple[str, int], bytes] = {}
        self.notes: list[Note] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with defer_stop():
            for handle in self.handles.values():
                handle.stop()

    def workers_of(self, roles: Iterable[Role]) -> list[WorkerHandle]:
        """Return the workers of some roles."""
        names = {role.name for role in roles}
        return [handle for (name, _), handle in self.handles.items() if name in names]

    @property
    def timed(self) -> tuple[Role, ...]:
        """The timed roles."""
        return tuple(role for role in self.trial.roles if role.duty == "timed")

    @property
    def loads(self) -> tuple[Role, ...]:
        """The roles that only make a load."""
        return tuple(role for role in self.trial.roles if role.duty == "load")

    def send(self, handles: Iterable[WorkerHandle], message: say.Message) -> None:
        """Send the same message to several workers."""
        for handle in handles:
            handle.send(message)

    def collect(
        self, handles: list[WorkerHandle], expected: type[Value], *, within_s: float, doing: str
    ) -> WorkerReplies:
        """Wait for the replies of several workers; any failure ends the group."""
        replies = collect_replies(handles, expected, within_s=within_s, doing=doing)
        self.fail_on(replies)
        return replies

    def fail_on(self, replies: WorkerReplies) -> None:
        """Raise the failures among some replies, root cause first, with the end of that worker's output."""
        failures = sort_by_root_cause(reply for reply in replies.values() if isinstance(reply, WorkerFailure))
        if failures:
            first = next(key for key, reply in replies.items() if reply is failures[0])
            raise WorkersFailed(tuple(failures), self.handles[first].tail())

    def keep_tunings(self, replies: WorkerReplies) -> None:
        """Keep the tuners' results, even if another worker failed."""
        for key in self.handles:
            reply = replies.get(key)
            if isinstance(reply, WorkerReply) and isinstance(reply.message, say.Tuned):
                tuning = reply.message.model_dump(exclude={"kind"})
                self.tunings.append(Tuning(role=key[0], restart=self.restart, **tuning))

    def finish(self) -> None:
        """Finish the workers in an orderly way and keep each one's evidence."""
        handles = list(self.handles.values())
        self.send(handles, say.Finish())
        replies = self.collect(handles, say.Finished, within_s=self.trial.mode.timeout_s, doing="finishing")
        for key, handle in self.handles.items():
            reply = replies[key]
            if isinstance(reply, WorkerReply) and isinstance(reply.message, say.Finished):
                self.evidence.append(self._evidence(handle, reply.message))

    @property
    def named_traces(self) -> dict[str, bytes]:
        """The traces by their paths within the run folder."""
        return {name: trace for key, trace in self.traces.items() if (name := self._trace_name(key)) is not None}

    def _trace_name(self, key: tuple[str, int]) -> str | None:
        role, rank = key
        if not self.traces.get(key):
            return None
        role_suffix = "" if len(self.timed) == 1 else "-" + re.sub(r"[^\w.-]", "_", role)
        return f"traces/{self.trial.id}{role_suffix}-rank{rank}.json"

    def _evidence(self, handle: WorkerHandle, message: say.Finished) -> Evidence:
        worker_id, role = handle.worker_id, handle.worker_id.role
        load = self.load_totals.get(worker_id.key)
        return Evidence(
            role=role.name,
            rank=worker_id.rank,
            restart=worker_id.restart,
            device=role.device_of(worker_id.rank),
            isolation_asked=role.isolation,
            setup_s=self.setup_s[worker_id.key],
            subjects=self.facts[worker_id.key].facts,
            load_calls=load.calls if load else None,
            load_s=load.up_s if load else None,
            load_cpu_s=load.cpu_s if load else None,
            thread_limit=self.threads.get(worker_id.key),
            log=handle.log,
            trace=self._trace_name(worker_id.key),
            **message.model_dump(exclude={"kind"}),
        )


@dataclass(frozen=True)
class RawSeries:
    """Every sample of one quantity from one worker, as the float64 bytes it sent."""

    role: str
    rank: int
    subject: int
    restart: int
    quantity: str
    calls_per_sample: int
    start_ns: int
    end_ns: int
    data: bytes


@dataclass
class TrialOutcome:
    """A trial's samples, tunings and evidence, or why there are none; traces by their path in the run folder."""

    start_ns: int
    end_ns: int
    started_at: str
    status: Status = "ok"
    reason: str | None = None
    invalid_request: bool = False
    stderr_tail: str | None = None
    series: list[RawSeries] = field(default_factory=list)
    tunings: list[Tuning] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    traces: dict[str, bytes] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    disturbance: Disturbance | None = None
    gpus_before: tuple[GpuSnapshot, ...] = ()
    gpus_after: tuple[GpuSnapshot, ...] = ()
    settled: SettlingResult | None = None


def unpack_series(worker_id: WorkerId, message: say.BlockDone | say.Released, payload: bytes) -> list[RawSeries]:
    """Return the samples after a message."""
    series: list[RawSeries] = []
    offset = 0
    for header in message.series:
        end = offset + 8 * header.n
        start_ns, end_ns = header.window or (message.start_ns, message.end_ns)
        series.append(
            RawSeries(
                role=worker_id.role.name,
                rank=worker_id.rank,
                subject=header.subject,
                restart=worker_id.restart,
                quantity=header.quantity,
                calls_per_sample=header.calls_per_sample,
                start_ns=start_ns,
                end_ns=end_ns,
                data=payload[offset:end],
            )
        )
        offset = end
    return series


def join_series(series: list[RawSeries]) -> list[RawSeries]:
    """Join the blocks of each worker's quantity in the order they were taken; starts count from the first block."""
    groups: dict[tuple[str, int, int, int, str], list[RawSeries]] = defaultdict(list)
    for part in series:
        groups[part.role, part.rank, part.subject, part.restart, part.quantity].append(part)
    joined: list[RawSeries] = []
    for first, *later in groups.values():
        data = [first.data, *(_shift_starts(first.start_ns, part) for part in later)]
        joined.append(replace(first, end_ns=(later or [first])[-1].end_ns, data=b"".join(data)))
    return joined


def _shift_starts(zero_ns: int, part: RawSeries) -> bytes:
    """Return a block's samples; start times are shifted to another zero."""
    later_us = (part.start_ns - zero_ns) / 1e3
    if part.quantity != START_US or later_us == 0:
        return part.data
    return array("d", [start_us + later_us for start_us in memoryview(part.data).cast("d")]).tobytes()
