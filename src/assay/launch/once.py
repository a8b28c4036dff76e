"""One process that serves one wish, as for ``assay time``: waited for asleep, and ended with all it started."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import site
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot, TrialFailed, WrongResult
from assay.core.lifeline import descendants
from assay.core.processes import marks
from assay.launch.fate import describe_end, oom_kills
from assay.worker.wish import Begins, Followed, Timed, TraceWish, Unfulfilled, read_answer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from assay.worker.wish import Answer, Wish

STARTING_S = 60.0
END_WITHIN_S = 5.0
TICK_S = 1.0
TAIL_BYTES = 4000
_ERRORS = {
    "BadInput": BadInput,
    "MachineCannot": MachineCannot,
    "WrongResult": WrongResult,
    "TrialFailed": TrialFailed,
}
AnswerT = TypeVar("AnswerT", Timed, Followed)


class Watcher(Protocol):
    """Somebody who is told how far it has come."""

    def begins(self, begins: Begins) -> None:
        """Something else begins."""
        ...

    def tick(self) -> None:
        """About a second has passed."""
        ...


class Defect(Exception):
    """Assay itself broke in the process that times."""


class Once:
    """``with Once(wish) as once: once.wait(watcher)``; leaving it ends the process and everything it started.

    Attributes:
        printed: How many bytes the process printed since timing or tracing began.
    """

    def __init__(self, wish: Wish | TraceWish, environment: Mapping[str, str] | None = None) -> None:
        self.printed = 0
        self._doing = Begins(phase="loading", name=wish.subjects[0].label, within_s=STARTING_S)
        self._limit_s = wish.limit_s
        self._lines = b""
        self._tail = b""
        self._oom_kills = oom_kills()
        token = leases.new_id()
        doing, module = ("tracing", "follow") if isinstance(wish, TraceWish) else ("timing", "once")
        what = f"{doing} of {wish.subjects[0].label}"
        self._lease = leases.take("process", what, "assay.core.processes:kill_marked", {"token": token})
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", f"assay.worker.{module}", str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={**our_environment(), **(environment or {}), **marks(token)},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except BaseException as error:
            self._socket.close()
            leases.release(self._lease)
            if isinstance(error, OSError):
                raise MachineCannot(
                    f"A process for the calls could not be started: {error.strerror or error}."
                ) from error
            raise
        with contextlib.suppress(BrokenPipeError):
            self._socket.sendall(wish.model_dump_json().encode() + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process with all its descendants, also those that left its session or cleared their marks."""
        family = [handle for pid in descendants(self._process.pid) if (handle := _handle(pid)) is not None]
        leases.release(self._lease)
        self._process.wait()
        for handle in family:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self._socket.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def tail(self) -> str:
        """The end of what the process printed."""
        return self._tail.decode("utf-8", errors="replace").strip()

    def wait(self, watcher: Watcher) -> Timed:
        """Wait for what comes out of timing; see ``wait_for``."""
        return self.wait_for(Timed, watcher)

    def wait_for(self, kind: type[AnswerT], watcher: Watcher) -> AnswerT:
        """Wait for what comes out, asleep.

        Raises:
            BadInput: The wish makes no sense.
            MachineCannot: This machine cannot do it.
            TrialFailed: A subject fails, is wrong, never returns, or takes the process with it.
            Defect: Assay itself broke.
        """
        deadline = time.monotonic() + self._doing.within_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            if self._process.stdout is not None:
                selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TrialFailed(self._late())
                ready = {key.fileobj for key, _ in selector.select(min(TICK_S, left_s))}
                watcher.tick()
                if self._process.stdout in ready and not self._drained():
                    selector.unregister(self._process.stdout)
                if self._socket not in ready:
                    continue
                for reply in self._heard():
                    if not isinstance(reply, Begins):
                        return _outcome(reply, kind)
                    self._doing = reply
                    deadline = time.monotonic() + reply.within_s
                    watcher.begins(reply)

    def _drained(self) -> bool:
        """Take in what the process printed, the end of it kept; false when it will not print any more."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        data = os.read(self._process.stdout.fileno(), 2**16)
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if self._doing.phase in {"timing", "tracing"}:
            self.printed += len(data)
        return bool(data)

    def _heard(self) -> list[Answer]:
        """Return what the process has said, line by line."""
        try:
            data = self._socket.recv(2**20)
        except ConnectionResetError:
            data = b""
        if not data:
            raise TrialFailed(f"{self._doing.name}: {self._fate()}.")
        *lines, self._lines = (self._lines + data).split(b"\n")
        return [read_answer(line) for line in lines]

    def _fate(self) -> str:
        try:
            code = self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            return "the process closed its line without an answer"
        return describe_end(code, out_of_memory=oom_kills() > self._oom_kills).replace("the worker", "the process")

    def _late(self) -> str:
        name = self._doing.name
        if self._doing.phase == "loading":
            return f"{name} was not loaded within {self._doing.within_s:g} s; the process was ended."
        if self._doing.phase == "calling":
            return f"{name} has not returned within {self._limit_s:g} s, and could not be interrupted; it was ended."
        return f"{name}: a call returned at first, and later one did not; the process was ended."


def _outcome(said: Timed | Followed | Unfulfilled, kind: type[AnswerT]) -> AnswerT:
    if isinstance(said, kind):
        return said
    if not isinstance(said, Unfulfilled):
        raise Defect(f"a {kind.__name__} was awaited, and a {type(said).__name__} came")
    if said.error != "defect":
        raise _ERRORS[said.error](said.reason)
    defect = Defect(said.reason)
    defect.add_note(said.traceback or "")
    raise defect


def _handle(pid: int) -> int | None:
    """Return a handle of a process that no other can take the place of; null where it is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def our_environment() -> dict[str, str]:
    """Return our environment for a process that finds this very Assay and counts GPUs as NVML does."""
    variables = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ}
    ours = str(Path(__file__).resolve().parents[2])
    paths = [str(Path(p).absolute()) for p in variables.get("PYTHONPATH", "").split(os.pathsep) if p]
    if ours not in {*site.getsitepackages(), site.getusersitepackages()}:
        paths.insert(0, ours)
    return {**variables, "PYTHONPATH": os.pathsep.join(paths)}
