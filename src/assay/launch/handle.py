"""A worker as its parent holds it: something to speak to, to wait for, and to end."""

from __future__ import annotations

import selectors
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from assay.worker import protocol as say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.plan import Role
    from assay.core.values import Value


AFTER_A_RANK_FAILED_S = 3.0


@dataclass(frozen=True)
class Failure:
    """Why a worker gave no answer, in words.

    Attributes:
        who: The worker.
        reason: Why.
        refused: The machine cannot, rather than the work failing.
        by_another: It is what the end of another one does to it.
        senseless: It was asked for what cannot be, on any machine.
    """

    who: str
    reason: str
    refused: bool = False
    by_another: bool = False
    senseless: bool = False


@dataclass(frozen=True)
class Seat:
    """Which rank of which role a worker is, in which of the trial's restarts."""

    role: Role
    rank: int
    restart: int

    @property
    def name(self) -> str:
        """The seat for people: ``cpu:0``, or ``rank 3 of ring``."""
        return self.role.name if self.role.ranks == 1 else f"rank {self.rank} of {self.role.name}"

    @property
    def key(self) -> tuple[str, int]:
        """The seat within one restart."""
        return self.role.name, self.rank


class Handle(Protocol):
    """One worker, here or behind an agent of another torchrun process."""

    seat: Seat
    born_ns: int
    log: str | None
    same_clock: bool

    def fileno(self) -> int:
        """Return what to wait on for its messages."""
        ...

    def send(self, message: say.Message) -> None:
        """Say something; a worker that is gone is noticed when its answer is waited for."""
        ...

    def read(self) -> say.Frame | None:
        """Return the next whole frame that has come, or null; raises `Closed` or `Garbled`."""
        ...

    def fate(self) -> str:
        """Return in words how it ended, once its line is closed."""
        ...

    def stop(self) -> None:
        """End it and all it started, whatever state it is in; safe to call twice."""
        ...

    def tail(self) -> str | None:
        """Return the end of what it printed."""
        ...


@dataclass(frozen=True)
class Answer:
    """A worker's frame, and when it came."""

    message: say.Message
    payload: bytes
    at_ns: int


Answers = dict[tuple[str, int], Answer | Failure]


def gather(
    handles: Iterable[Handle],
    expected: type[Value],
    *,
    within_s: float,
    doing: str,
    beside: Iterable[Handle] = (),
) -> Answers:
    """Wait, asleep, until every worker has answered or failed; one that is late is ended.

    A worker that answers anything but what is expected has failed, in its own words where it has some. When a
    rank has failed, the others of its role wait for it in vain and are soon ended too. Those ``beside`` are loads, who
    owe nothing but to go on: when one has ended, what the others do is not what was asked for, and they are ended.
    """
    answers: Answers = {}
    deadline = time.monotonic() + within_s
    late = Failure("", f"no answer within {within_s:.0f} s while {doing}; it was ended")
    with selectors.DefaultSelector() as selector:
        waiting = {handle.seat.key: handle for handle in handles}
        for handle in (*waiting.values(), *beside):
            selector.register(handle.fileno(), selectors.EVENT_READ, handle)
        while waiting:
            events = selector.select(max(0.0, deadline - time.monotonic()))
            for event, _ in events:
                handle = event.data
                owes = handle.seat.key in waiting
                answer = _read(handle, expected) if owes else _ended_early(handle)
                if answer is not None:
                    selector.unregister(event.fd)
                    answers[handle.seat.key] = answer
                    waiting.pop(handle.seat.key, None)
                if isinstance(answer, Failure) and (handle.seat.role.ranks > 1 or not owes):
                    deadline = min(deadline, time.monotonic() + (AFTER_A_RANK_FAILED_S if owes else 0.0))
                    late = Failure("", f"it was ended, as {handle.seat.name} had failed", by_another=True)
            if time.monotonic() >= deadline and not events:
                break
    for key, handle in waiting.items():
        handle.stop()
        answers[key] = replace(late, who=handle.seat.name)
    return answers


def _ended_early(handle: Handle) -> Failure | None:
    """Return why a load does not go on; null when more must come first."""
    answer = _read(handle, say.Failed)
    if not isinstance(answer, Failure):
        return None
    return replace(answer, reason=f"the load ended early: {answer.reason}")


def _read(handle: Handle, expected: type[Value]) -> Answer | Failure | None:
    try:
        frame = handle.read()
    except say.Closed:
        return Failure(handle.seat.name, handle.fate())
    except say.Garbled as error:
        handle.stop()
        return Failure(handle.seat.name, f"it spoke garbage: {error}")
    if frame is None:
        return None
    if isinstance(frame.message, say.Failed):
        failure = frame.message
        return Failure(handle.seat.name, failure.reason, failure.refused, failure.by_another, failure.senseless)
    if not isinstance(frame.message, expected):
        handle.stop()
        return Failure(handle.seat.name, f"it said {frame.message.kind!r} out of turn")
    return Answer(frame.message, frame.payload, time.perf_counter_ns())
