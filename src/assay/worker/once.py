"""The process behind ``assay time``: times functions and workloads once, and says what came out.

It exists to be killed: a call that never returns ends with it. ``serve`` is that of every process with one wish.
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

from assay.core import copies
from assay.core.errors import AssayError, BadInput, MachineCannot, TrialFailed, WrongResult
from assay.core.lifeline import adopt_orphans, die_with_parent, end_descendants, keep_last_words
from assay.timing.compare import compare
from assay.timing.deadline import limited
from assay.timing.measure import measure
from assay.timing.options import can_tell, options
from assay.timing.subject import blamed
from assay.worker import subjects
from assay.worker.explain import explain
from assay.worker.wish import Begins, Followed, Timed, TraceWish, Unfulfilled, Wish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from assay.core.plan import Subject
    from assay.core.results import SubjectFacts
    from assay.timing.options import Options
    from assay.worker.wish import Phase
    from assay.workloads.base import Prepared

    class Tell(Protocol):
        """Says to the parent what begins."""

        def __call__(self, phase: Phase, name: str, within_s: float, budget_s: float | None = None, /) -> None:
            """Say that a phase begins, how long it may take, and how long timing is meant to take."""


WishT = TypeVar("WishT", Wish, TraceWish)

CPU_BUDGET_S, CUDA_BUDGET_S = 10.0, 30.0
"""How long all processes together sample where nobody says."""

LOADING_S = 180.0
"""To import a module, put data in place and check a result against its reference."""

GRACE_S = 2.0
"""After the limit, for the process to end a call by itself before it is ended."""

SPARE_S = 60.0
"""To learn to know a GPU, once for each driver, and to capture graphs."""

CALLS = 8
"""Calls at most that are made of a function even when each takes longer than the budget."""


@dataclass(frozen=True)
class Ready:
    """A subject that was loaded, checked and called once: its name, and the seconds that call took."""

    name: str
    prepared: Prepared
    facts: SubjectFacts
    took_s: float

    def call(self) -> object:
        """Make one call and wait for its work, as the user said how."""
        result = self.prepared.call()
        self.prepared.synchronize()
        return result


def fulfil(wish: Wish, tell: Tell) -> Timed:
    """Load the subjects, check them, call each once, and time them."""
    _make_sense(wish)
    names = distinct([subject.label for subject in wish.subjects])
    loaded = {index: make_ready(index, names[index], wish, tell) for index in turned(len(names), wish.process)}
    ready = [loaded[index] for index in range(len(names))]
    device = "cpu" if wish.device is None and any(entry.prepared.waits_itself for entry in ready) else wish.device
    budget_s = _budget_s(wish, device)
    within_s = 2 * budget_s + wish.limit_s + GRACE_S + CALLS * sum(entry.took_s for entry in ready)
    within_s += SPARE_S if "torch" in sys.modules else 0.0
    tell("timing", " and ".join(names), within_s, budget_s)
    timing = Timing(device, budget_s)
    timed = _measured(wish, ready[0], timing) if len(ready) == 1 else _compared(wish, ready, timing)
    for entry in ready:
        entry.prepared.close()
    return timed


@dataclass(frozen=True)
class Timing:
    """Where calls are timed (null: where they turn out to run), and for how long in this process."""

    device: str | None
    budget_s: float


def turned(count: int, process: int) -> list[int]:
    """Return the order in which a process loads its subjects: each is the first in one process as in another."""
    return [(position + process - 1) % count for position in range(count)]


def _make_sense(wish: Wish) -> None:
    """Look at the options before anything of the user's is loaded; without a device, that decides what makes sense."""
    if wish.device is not None:
        can_tell(wish.by, _options(wish, wish.device))


def _options(wish: Wish, device: str | None) -> Options:
    return options(
        device=device, cache=wish.cache, method=wish.method, precision=wish.precision,
        budget_s=wish.budget_s or CPU_BUDGET_S, times=("call",), limit_s=wish.limit_s, lock_mhz=wish.lock_mhz,
    )  # fmt: skip


def _budget_s(wish: Wish, device: str | None) -> float:
    """Return this process's share of the budget."""
    usual_s = CUDA_BUDGET_S if _options(wish, device).on_gpu else CPU_BUDGET_S
    return (wish.budget_s or usual_s) / wish.processes


def distinct(labels: Sequence[str]) -> tuple[str, ...]:
    """Return names that differ: the same thing may be compared with itself."""
    return tuple(
        label if label not in labels[:index] else f"{label} ({labels[: index + 1].count(label)})"
        for index, label in enumerate(labels)
    )


def make_ready(index: int, name: str, wish: Wish | TraceWish, tell: Tell) -> Ready:
    """Load a subject, check it against its reference where it has one, and call it once."""
    subject = wish.subjects[index]
    device = wish.device or "cpu"
    tell("loading", name, LOADING_S)
    with told(f"{name} cannot be loaded: ", subject):
        prepared = subjects.prepare(subject, device=device if ":" in device else f"{device}:0", seed=wish.seed)
        facts = subjects.facts(index, subject, prepared)
    tell("calling", name, wish.limit_s + GRACE_S)
    begin = time.perf_counter()
    with told("", subject), blamed(name), limited(wish.limit_s, name):
        prepared.call()
        prepared.synchronize()
        copies.end_copy()
    return Ready(name, prepared, facts, time.perf_counter() - begin)


@contextlib.contextmanager
def told(what: str, subject: Subject) -> Iterator[None]:
    """Say of what a subject raises in which line of its own file that was."""
    try:
        yield
    except (BadInput, MachineCannot):
        raise
    except TrialFailed as error:
        raise type(error)(f"{error}{_where(error.__cause__, subject)}") from error.__cause__
    except (Exception, SystemExit) as error:
        raise TrialFailed(f"{what}{explain(error).reason}{_where(error, subject)}") from error


def _where(error: BaseException | None, subject: Subject) -> str:
    path = subject.workload.rpartition(":")[0]
    if error is None or not path.endswith(".py"):
        return ""
    file = str(Path(path).absolute())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" (line {lines[-1]} of {path})" if lines else ""


def _measured(wish: Wish, ready: Ready, timing: Timing) -> Timed:
    measurement = measure(
        ready.call if ready.prepared.waits_itself else ready.prepared.call,
        device=timing.device,
        cache=wish.cache,
        method=wish.method,
        precision=wish.precision,
        budget_s=timing.budget_s,
        limit_s=wish.limit_s,
        lock_mhz=wish.lock_mhz,
        name=ready.name,
    )
    return Timed(facts=(ready.facts,), budget_s=timing.budget_s, measurement=measurement)


def _compared(wish: Wish, ready: Sequence[Ready], timing: Timing) -> Timed:
    waits = any(entry.prepared.waits_itself for entry in ready)
    comparison = compare(
        {entry.name: entry.call if waits else entry.prepared.call for entry in ready},
        device=timing.device,
        cache=wish.cache,
        method=wish.method,
        by=wish.by,
        minimum_effect=wish.minimum_effect,
        budget_s=timing.budget_s,
        limit_s=wish.limit_s,
        lock_mhz=wish.lock_mhz,
        seed=wish.seed + wish.process - 1,
    )
    return Timed(facts=tuple(entry.facts for entry in ready), budget_s=timing.budget_s, comparison=comparison)


def answer(
    wish: WishT, tell: Tell, fulfil: Callable[[WishT, Tell], Timed | Followed]
) -> Timed | Followed | Unfulfilled:
    """Return what came of a wish, whatever that is."""
    try:
        return fulfil(wish, tell)
    except BadInput as error:
        return Unfulfilled(error="BadInput", reason=str(error))
    except MachineCannot as error:
        return Unfulfilled(error="MachineCannot", reason=str(error))
    except WrongResult as error:
        return Unfulfilled(error="WrongResult", reason=str(error))
    except AssayError as error:
        return Unfulfilled(error="TrialFailed", reason=str(error))
    except Exception as error:  # noqa: BLE001 - what nobody foresaw is told to the parent as our defect
        reason = f"{type(error).__name__}: {error}"
        return Unfulfilled(error="defect", reason=reason, traceback=traceback.format_exc())


def serve(arguments: Sequence[str], kind: type[WishT], fulfil: Callable[[WishT, Tell], Timed | Followed]) -> int:
    """Fulfil the wish that comes over an inherited socket; return 0 whatever came out, 1 where nobody hears of it."""
    descriptor, parent = int(arguments[0]), int(arguments[1])
    del sys.argv[1:]  # they are ours, and user code may read its own
    os.set_inheritable(descriptor, False)
    die_with_parent(parent)
    adopt_orphans()
    keep_last_words()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A line that is closed: the parent is gone, or a subject closed all files.
    with contextlib.suppress(OSError), socket.socket(fileno=descriptor) as sock, sock.makefile("rb") as lines:

        def send(message: Begins | Timed | Followed | Unfulfilled) -> None:
            sys.stdout.flush()
            sock.sendall(message.model_dump_json().encode() + b"\n")

        copies.watch(lambda reason: send(Unfulfilled(error="TrialFailed", reason=f"{reason[0].upper()}{reason[1:]}.")))
        request = kind.model_validate_json(lines.readline())

        def report_phase(phase: Phase, name: str, within_s: float, budget_s: float | None = None, /) -> None:
            send(Begins(phase=phase, name=name, within_s=within_s, budget_s=budget_s))

        reply = answer(request, report_phase, fulfil)
        end_descendants()
        send(reply)
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:], Wish, fulfil))
