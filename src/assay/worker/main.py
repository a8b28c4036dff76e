"""The worker: one process, one rank of one role, from prepare to finish."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING

from assay.core import copies
from assay.core.errors import AssayError, BadInput
from assay.core.lifeline import adopt_orphans, die_with_parent, end_descendants, keep_last_words
from assay.core.plan import HOST
from assay.isolation.bind import Held, bind, pin_threads, still_held
from assay.worker import origin, subjects
from assay.worker import protocol as say
from assay.worker.evidence import cpu_seconds, evidence
from assay.worker.explain import explain
from assay.worker.flow import Flow
from assay.worker.pairs import Pairs
from assay.worker.stages import Stages
from assay.worker.timer import Timer
from assay.worker.tracing import traced
from assay.worker.tuning import tuned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import SubjectFacts
    from assay.timing.stretch import Stretch
    from assay.workloads.base import Prepared

SPIN_NS = 2_000_000
"""The last stretch before a common start is waited for awake, so that all start within microseconds."""


class Worker:
    """Does what the parent says, one message after another."""

    def __init__(self, line: say.Line) -> None:
        self._line = line
        self._held = Held("none")
        self._prepared: tuple[Prepared, ...] = ()
        self._timer = Timer((), ())
        self._flow: Flow | None = None
        self._told: say.Prepare | None = None
        self._parts: Pairs | Stages | None = None

    def serve(self) -> None:
        """Answer messages until told to finish."""
        while True:
            message = self._line.receive()
            match message:
                case say.Prepare():
                    self._prepare(message)
                case say.TakeBlock():
                    self._block(message)
                case say.Tune():
                    self._tune(message)
                case say.Trace():
                    self._trace()
                case say.Hold():
                    self._hold(message.duty, announce=True)
                case say.Finish():
                    self._finish()
                    return
                case _:
                    raise say.Garbled(f"a worker was told {message.kind!r}")

    def _prepare(self, message: say.Prepare) -> None:
        pin_threads(message.all_cpus)
        self._held = bind(message.allotment)
        self._told = message
        role, device = message.role, workplace(message)
        if role.in_pairs or role.in_stages:
            self._parts = Pairs(message, device) if role.in_pairs else Stages(message, device)
            self._line.send(say.Ready(facts=self._parts.begin()))
            return
        self._prepared = tuple(subjects.prepare(s, device=device, seed=message.seed) for s in role.subjects)
        facts = tuple(subjects.facts(i, role.subjects[i], p) for i, p in enumerate(self._prepared))
        if role.parity:
            facts = (facts[0], facts[1].model_copy(update={"parity": subjects.parity(*self._prepared)}))
        self._timer = Timer(self._prepared, [subject.label for subject in role.subjects])
        if message.continuous and not message.counted:
            self._flow = Flow(self._prepared, message, device)
            facts = tuple(f.model_copy(update={"timed": self._flow.how()}) for f in facts)
        elif role.duty == "timed" and not message.counted:
            how = self._timer.set_up(device, message.cache, message.timeout_s)
            facts = tuple(f.model_copy(update={"timed": h}) for f, h in zip(facts, how, strict=True))
        self._line.send(say.Ready(facts=facts))

    def _block(self, message: say.TakeBlock) -> None:
        if message.start_at_ns is not None:
            wait_until(message.start_at_ns)
        stretch, facts = self._taken(message)
        headers, payload = _packed(stretch)
        done = say.BlockDone(start_ns=stretch.start_ns, end_ns=stretch.end_ns, series=headers, facts=facts)
        self._line.send(done, payload)
        if message.hold:
            self._hold(message.duty, announce=False)

    def _taken(self, message: say.TakeBlock) -> tuple[Stretch, tuple[SubjectFacts, ...] | None]:
        """Time a stretch; of pairs and stages, what was found out about each on the way comes with it."""
        if self._parts is not None:
            return self._parts.take(message)
        return (self._timer.take(message) if self._flow is None else self._flow.take(message)), None

    def _tune(self, message: say.Tune) -> None:
        if self._told is None:
            raise say.Garbled("a worker was told to tune before it was prepared")
        if message.start_at_ns is not None:
            wait_until(message.start_at_ns)
        self._line.send(tuned(self._told, device=workplace(self._told), seed=message.seed))
        if message.hold:
            self._hold(1.0, announce=False)

    def _trace(self) -> None:
        if self._told is None:
            raise say.Garbled("a worker was told to trace before it was prepared")
        self._line.send(*traced(self._prepared, self._told.role.subjects))

    def _hold(self, duty: float, *, announce: bool) -> None:
        """Run every subject in turn until the parent says something; of a load, continuous calls are kept."""
        cpu_s, announced = cpu_seconds(), not announce

        def stop() -> bool:
            nonlocal announced
            if not announced:
                self._line.send(say.Holding())
            announced = True
            return self._line.waiting()

        calls, up = self._timer.hold(stop) if self._flow is None else self._flow.hold(stop, duty)
        if not isinstance(self._line.receive(), say.Release):
            raise say.Garbled("a load was told something other than release")
        headers, payload = _packed(up)
        used_s = cpu_seconds() - cpu_s
        self._line.send(
            say.Released(calls=calls, start_ns=up.start_ns, end_ns=up.end_ns, cpu_s=used_s, series=headers), payload
        )

    def _finish(self) -> None:
        for prepared in self._prepared:
            prepared.close()
        end_descendants()
        for subject in self._told.role.subjects if self._told is not None else ():
            origin.make_sure(subject)
        isolation = self._held if self._told is None else still_held(self._held, self._told.allotment)
        self._line.send(evidence(isolation))


def workplace(told: say.Prepare) -> str:
    """Return the device that a rank works on; what runs on the host works on its cores, whichever they are."""
    device = told.role.device_of(told.rank)
    return "cpu" if device == HOST else device


def wait_until(moment_ns: int) -> None:
    """Wait for a monotonic moment, asleep at first and awake at the end."""
    left = moment_ns - time.perf_counter_ns() - SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while time.perf_counter_ns() < moment_ns:
        pass


def _packed(stretch: Stretch) -> tuple[tuple[say.SeriesHeader, ...], bytes]:
    headers = tuple(
        say.SeriesHeader(
            subject=s.subject,
            quantity=s.quantity,
            n=len(s.samples),
            calls_per_sample=s.calls_per_sample,
            window=s.window,
        )
        for s in stretch.series
    )
    return headers, b"".join(s.samples.tobytes() for s in stretch.series)


def main(arguments: Sequence[str]) -> int:
    """Serve the parent on an inherited socket; exit 0 after a clean finish."""
    descriptor, parent = int(arguments[0]), int(arguments[1])
    del sys.argv[1:]  # they are ours, and user code may read its own
    os.set_inheritable(descriptor, False)
    die_with_parent(parent)
    adopt_orphans()
    keep_last_words()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as sock:
        connection = say.Line(sock)
        copies.watch(lambda reason: connection.send(say.Failed(reason=reason)))
        try:
            Worker(connection).serve()
        except (say.Closed, BrokenPipeError, ConnectionResetError):
            return 1
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is told to the parent
            if not isinstance(error, AssayError) or (isinstance(error, BadInput) and error.__cause__ is not None):
                traceback.print_exc()  # of bad input, what it came of
            connection.send(explain(error))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
