"""The worker: one process, one rank of one role, from prepare to finish."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING

from assay.core.errors import AssayError, BadInput, MachineCannot
from assay.core.lifeline import adopt_orphans, die_with_parent, end_descendants
from assay.isolation.bind import Held, bind, bound_nodes, pages_by_node
from assay.worker import protocol as say
from assay.worker import subjects
from assay.worker.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.timing.stretch import Stretch
    from assay.workloads.base import Prepared

SPIN_NS = 2_000_000
"""The last stretch before a common start is waited for awake, so that all start within microseconds."""


class Worker:
    """Does what the parent says, one message after another."""

    def __init__(self, line: say.Line) -> None:
        self._line = line
        self._held = Held("none")
        self._cores: tuple[int, ...] | None = None
        self._prepared: tuple[Prepared, ...] = ()
        self._timer = Timer((), ())

    def serve(self) -> None:
        """Answer messages until told to finish."""
        while True:
            message = self._line.receive()
            match message:
                case say.Prepare():
                    self._prepare(message)
                case say.TakeBlock():
                    self._block(message)
                case say.Hold():
                    self._hold(announce=True)
                case say.Finish():
                    self._finish()
                    return
                case _:
                    raise say.Garbled(f"a worker was told {message.kind!r}")

    def _prepare(self, message: say.Prepare) -> None:
        os.sched_setaffinity(0, message.all_cpus)
        self._held = bind(message.allotment)
        self._cores = tuple(sorted(os.sched_getaffinity(0)))
        role = message.role
        device = role.device_of(message.rank)
        self._prepared = tuple(subjects.prepare(s, device=device, seed=message.seed) for s in role.subjects)
        facts = tuple(subjects.facts(i, role.subjects[i], p) for i, p in enumerate(self._prepared))
        self._timer = Timer(self._prepared, [subject.label for subject in role.subjects])
        if role.duty == "timed" and not message.counted:
            how = self._timer.set_up(device, message.cache, message.timeout_s)
            facts = tuple(f.model_copy(update={"timed": h}) for f, h in zip(facts, how, strict=True))
        self._line.send(say.Ready(facts=facts))

    def _block(self, message: say.TakeBlock) -> None:
        if message.start_at_ns is not None:
            wait_until(message.start_at_ns)
        self._line.send(*_packed(self._timer.take(message)))
        if message.hold:
            self._hold(announce=False)

    def _hold(self, *, announce: bool) -> None:
        """Run every subject in turn, untimed, until the parent says something."""
        start = time.perf_counter_ns()
        calls = 0
        while True:
            each = self._timer.run_once()
            calls += each
            if announce and calls == each:
                self._line.send(say.Holding())
            if self._line.waiting():
                break
        if not isinstance(self._line.receive(), say.Release):
            raise say.Garbled("a load was told something other than release")
        self._line.send(say.Released(calls=calls, start_ns=start, end_ns=time.perf_counter_ns()))

    def _finish(self) -> None:
        for prepared in self._prepared:
            prepared.close()
        end_descendants()
        self._line.send(evidence(still_held(self._held, self._cores)))


def wait_until(moment_ns: int) -> None:
    """Wait for a monotonic moment, asleep at first and awake at the end."""
    left = moment_ns - time.perf_counter_ns() - SPIN_NS
    if left > 0:
        time.sleep(left / 1e9)
    while time.perf_counter_ns() < moment_ns:
        pass


def still_held(held: Held, cores: tuple[int, ...] | None) -> Held:
    """Return the level that held to the end: work that moved itself to other cores was not isolated."""
    now = tuple(sorted(os.sched_getaffinity(0)))
    if cores is None or now == cores:
        return held
    return Held("none", (*held.notes, f"the work itself moved from cores {list(cores)} to {list(now)}"))


def evidence(held: Held) -> say.Finished:
    """Read back where this process really ran and what disturbed it."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return say.Finished(
        pid=os.getpid(),
        isolation_held=held.level,
        isolation_notes=held.notes,
        allowed_cores=tuple(sorted(os.sched_getaffinity(0))),
        memory_nodes=bound_nodes(),
        pages_by_node=pages_by_node(),
        involuntary_switches=own.ru_nivcsw + children.ru_nivcsw,
        voluntary_switches=own.ru_nvcsw + children.ru_nvcsw,
        cpu_s=own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
        peak_memory_mib=max(own.ru_maxrss, children.ru_maxrss) / 1024,
    )


def _packed(stretch: Stretch) -> tuple[say.BlockDone, bytes]:
    headers = tuple(
        say.SeriesHeader(subject=s.subject, quantity=s.quantity, n=len(s.samples), calls_per_sample=s.calls_per_sample)
        for s in stretch.series
    )
    payload = b"".join(s.samples.tobytes() for s in stretch.series)
    return say.BlockDone(start_ns=stretch.start_ns, end_ns=stretch.end_ns, series=headers), payload


def explain(error: BaseException) -> say.Failed:
    """Return a failure as one sentence."""
    if isinstance(error, AssayError):
        return say.Failed(reason=str(error), refused=isinstance(error, MachineCannot))
    text = " ".join(str(error).split())
    if _is_out_of_memory(error, text):
        return say.Failed(reason=f"out of memory: {text[:300] or type(error).__name__}")
    return say.Failed(reason=f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__)


def _is_out_of_memory(error: BaseException, text: str) -> bool:
    """Return whether memory ran out: Python's, a GPU's as PyTorch says it, or the host's as PyTorch says it."""
    names = {base.__name__ for base in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator: can't allocate memory" in text


def main(arguments: Sequence[str]) -> int:
    """Serve the parent on an inherited socket; exit 0 after a clean finish."""
    descriptor, parent = int(arguments[0]), int(arguments[1])
    del sys.argv[1:]  # they are ours, and user code may read its own
    os.set_inheritable(descriptor, False)
    die_with_parent(parent)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as sock:
        line = say.Line(sock)
        try:
            Worker(line).serve()
        except (say.Closed, BrokenPipeError, ConnectionResetError):
            return 1
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is told to the parent
            if not isinstance(error, AssayError) or isinstance(error, BadInput):
                traceback.print_exc()
            line.send(explain(error))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
