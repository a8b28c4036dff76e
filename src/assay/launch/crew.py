"""The workers of one restart of a trial: brought up together, spoken to by role, and always brought down."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from assay.core.results import Evidence, Settled, Tuning
from assay.core.stopping import stops_deferred
from assay.launch.cause import by_cause
from assay.launch.handle import Answer, Failure, gather
from assay.worker import protocol as say

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from assay.core.plan import Role, Trial
    from assay.core.values import Value
    from assay.isolation.allot import Allotment
    from assay.launch.handle import Answers, Handle, Seat
    from assay.launch.outcome import RawSeries


@dataclass(frozen=True)
class Errand:
    """What a worker is started for; ``port`` is where the ranks of its role meet, null for a single one."""

    trial: str
    attempt: int
    seat: Seat
    allotment: Allotment
    port: int | None


class Starter(Protocol):
    """Starts workers, here or elsewhere."""

    def __call__(self, errand: Errand) -> Handle:
        """Return a worker that waits to be prepared."""
        ...


@dataclass(eq=False)
class Trouble(Exception):
    """Some workers of a crew failed, the one that caused it first; the rest is of no use to this trial."""

    failures: tuple[Failure, ...]
    tail: str | None


@dataclass(frozen=True)
class Load:
    """What a worker did while it was held as a load, all times put together."""

    calls: int = 0
    up_s: float = 0.0
    cpu_s: float = 0.0

    def and_then(self, said: say.Released) -> Load:
        """Return the load with one more time added."""
        up_s = (said.end_ns - said.start_ns) / 1e9
        return Load(self.calls + said.calls, self.up_s + up_s, self.cpu_s + said.cpu_s)


class Crew:
    """Every worker of one restart. Leaving it ends them all, whatever happened."""

    def __init__(self, trial: Trial, restart: int) -> None:
        self.trial = trial
        self.restart = restart
        self.handles: dict[tuple[str, int], Handle] = {}
        self.facts: dict[tuple[str, int], say.Ready] = {}
        self.threads: dict[tuple[str, int], int | None] = {}
        self.held: dict[tuple[str, int], Load] = {}
        self.setup_s: dict[tuple[str, int], float] = {}
        self.series: list[RawSeries] = []
        self.tunings: list[Tuning] = []
        self.evidence: list[Evidence] = []
        self.settled: list[Settled] = []
        self.traces: dict[tuple[str, int], bytes] = {}
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with stops_deferred():
            for handle in self.handles.values():
                handle.stop()

    def of(self, roles: Iterable[Role]) -> list[Handle]:
        """Return the workers of some roles."""
        names = {role.name for role in roles}
        return [handle for (name, _), handle in self.handles.items() if name in names]

    @property
    def timed(self) -> tuple[Role, ...]:
        """The roles whose time is taken."""
        return tuple(role for role in self.trial.roles if role.duty == "timed")

    @property
    def loads(self) -> tuple[Role, ...]:
        """The roles that only make a load."""
        return tuple(role for role in self.trial.roles if role.duty == "load")

    def tell(self, handles: Iterable[Handle], message: say.Message) -> None:
        """Say the same to several workers."""
        for handle in handles:
            handle.send(message)

    def hear(self, handles: list[Handle], expected: type[Value], *, within_s: float, doing: str) -> Answers:
        """Wait for the answers of several workers; any failure ends the crew."""
        answers = gather(handles, expected, within_s=within_s, doing=doing)
        self.fail_on(answers)
        return answers

    def fail_on(self, answers: Answers) -> None:
        """Raise the trouble in some answers, its cause first, with the end of what that worker printed."""
        failures = by_cause(answer for answer in answers.values() if isinstance(answer, Failure))
        if failures:
            first = next(key for key, answer in answers.items() if answer is failures[0])
            raise Trouble(tuple(failures), self.handles[first].tail())

    def keep_tunings(self, answers: Answers) -> None:
        """Keep what the tuners found, also where another worker failed."""
        for key in self.handles:
            answer = answers.get(key)
            if isinstance(answer, Answer) and isinstance(answer.message, say.Tuned):
                tuning = answer.message.model_dump(exclude={"kind"})
                self.tunings.append(Tuning(role=key[0], restart=self.restart, **tuning))

    def finish(self) -> None:
        """Bring the crew down in good order and keep what each worker says about itself."""
        everyone = list(self.handles.values())
        self.tell(everyone, say.Finish())
        answers = self.hear(everyone, say.Finished, within_s=self.trial.method.timeout_s, doing="finishing")
        for key, handle in self.handles.items():
            answer = answers[key]
            if isinstance(answer, Answer) and isinstance(answer.message, say.Finished):
                self.evidence.append(self._evidence(handle, answer.message))

    @property
    def named_traces(self) -> dict[str, bytes]:
        """The traces by where they are kept within the run folder."""
        named = {self._trace_name(key): trace for key, trace in self.traces.items()}
        return {name: trace for name, trace in named.items() if name is not None}

    def _trace_name(self, key: tuple[str, int]) -> str | None:
        role, rank = key
        if not self.traces.get(key):
            return None
        role_suffix = "" if len(self.timed) == 1 else "-" + re.sub(r"[^\w.-]", "_", role)
        return f"traces/{self.trial.id}{role_suffix}-rank{rank}.json"

    def _evidence(self, handle: Handle, said: say.Finished) -> Evidence:
        worker_id, role = handle.seat, handle.seat.role
        load = self.held.get(worker_id.key)
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
            **said.model_dump(exclude={"kind"}),
        )
