"""The small process that cleans up when the program that holds leases cannot: killed, crashed, out of memory.

    program ──pipe──▶ guardian (own session, deaf to Ctrl-C and polite signals)
       │ ends, in whatever way
       └─▶ the pipe ends ──▶ the guardian releases all leases of that process, and ends too

A program that ends well has released its leases itself, and the guardian finds nothing to do.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from assay.core import durable, leases, processes
from assay.core.errors import MachineCannot
from assay.core.home import home

if TYPE_CHECKING:
    from subprocess import Popen
    from types import TracebackType

_READY = b"ready\n"
_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_GOODBYE_WITHIN_S = 5.0


class Guardian:
    """``with Guardian():`` around all work that takes leases; inside, a kill -9 leaves nothing behind.

    A process has one guardian: further ones, nested or in other threads, share it until the last has left. A forked
    child is not guarded by its parent's.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[_Watch | None] = None

    def __enter__(self) -> Self:
        """Start the guardian and wait until it watches.

        Raises:
            MachineCannot: It could not be started.
        """
        with self._lock:
            watch = Guardian._shared
            if watch is None or watch.pid != os.getpid():
                watch = Guardian._shared = _Watch()
            watch.users += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the guardian go; one that still has something to undo is not waited for longer than a few seconds."""
        with self._lock:
            watch = Guardian._shared
            if watch is None or watch.pid != os.getpid():
                return
            watch.users -= 1
            if watch.users == 0:
                Guardian._shared = None
                watch.end()


class _Watch:
    """A running guardian, seen from the process it watches."""

    def __init__(self) -> None:
        self.users = 0
        self.pid = os.getpid()
        read_end, self._pipe = os.pipe()
        try:
            self._process = _start(read_end)
            _wait_until_ready(self._process)
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(read_end)

    def end(self) -> None:
        """Say goodbye. The byte is for the case that a forked child still holds a copy of the pipe."""
        from subprocess import TimeoutExpired

        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, b"\n")
        os.close(self._pipe)
        with contextlib.suppress(TimeoutExpired):
            self._process.wait(_GOODBYE_WITHIN_S)


def _start(stdin: int) -> Popen[bytes]:
    from subprocess import PIPE, STDOUT, Popen

    owner = processes.current().model_dump_json()
    command = [sys.executable, "-P", "-m", "assay.core.guardian", owner, os.environ.get("PYTHONPATH", "")]
    environment = _environment()
    try:
        return Popen(command, stdin=stdin, stdout=PIPE, stderr=STDOUT, env=environment, cwd="/", start_new_session=True)
    except OSError as error:
        raise MachineCannot(f"Could not start the guardian that cleans up after Assay: {error}.") from error


def _environment() -> dict[str, str]:
    """Return the guardian's environment: it finds the modules we find, and no `kill_marked` finds it."""
    environment = {name: value for name, value in os.environ.items() if name != processes.MARK}
    environment["ASSAY_HOME"] = str(home())
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return environment


def _wait_until_ready(process: Popen[bytes]) -> None:
    """Read what the guardian says until it is ready; what comes instead is why it failed."""
    said: list[bytes] = []
    if process.stdout is None:
        raise AssertionError("the guardian's output is a pipe")
    with process.stdout as output:
        for line in output:
            if line == _READY:
                return
            said.append(line)
    process.wait()
    why = said[-1].decode(errors="replace").strip() if said else f"it ended with {process.returncode}"
    raise MachineCannot(f"Could not start the guardian that cleans up after Assay: {why}.")


def main(owner_json: str, python_path: str) -> int:
    """Watch the process that started us, then release its leases; return the exit code."""
    for number in _DEAF_TO:
        # A handler, unlike SIG_IGN, is not inherited by what an undo starts.
        signal.signal(number, lambda *_: None)
    os.environ.pop("PYTHONPATH")
    if python_path:
        os.environ["PYTHONPATH"] = python_path
    owner = processes.Identity.model_validate_json(owner_json)
    os.write(1, _READY)
    _point_at_null(1, 2)
    _wait_for_the_end_of(owner)
    _point_at_null(0)
    return _clean_up_after(owner)


def _wait_for_the_end_of(owner: processes.Identity) -> None:
    """Sleep until the pipe ends or speaks, or the owner is dead while a forked child of it keeps the pipe open."""
    watched = select.poll()
    watched.register(0, select.POLLIN)
    with contextlib.suppress(OSError):
        watched.register(os.pidfd_open(owner.pid), select.POLLIN)
        if not processes.alive(owner):
            return
    watched.poll()


def _clean_up_after(owner: processes.Identity) -> int:
    try:
        failed = [report for report in leases.release_all_of(owner) if report.outcome == "failed"]
        for report in failed:
            _log(report.reason)
    except Exception:  # noqa: BLE001 - nobody is left to hear of it but the log
        _log(" | ".join(traceback.format_exc().splitlines()))
        return 1
    return 1 if failed else 0


def _log(message: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    durable.append_line(home() / "guardian.log", f"{now} {message}")


def _point_at_null(*descriptors: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
