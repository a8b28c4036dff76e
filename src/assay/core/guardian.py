"""A small process that cleans up when the program that holds leases cannot: killed, crashed, out of memory.

    program ──pipe──▶ guardian (own session, ignores Ctrl-C and termination signals)
       │ ends, in whatever way
       └─▶ the pipe closes ──▶ the guardian releases all leases of that process, and ends too

A program that ends normally has released its leases itself, and the guardian finds nothing to do. To stay small, it
imports the lease code only when leases are left, or right away once something starts that must not be left behind.

A guardian that dies before its program is restarted at once and covers all existing leases. A change that must not
be made without one, such as a GPU setting or a rented machine, starts with `Guardian.require`: where no guardian can
be started the change is not made, earlier changes are undone, and the run stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from assay.core import files, processes
from assay.core.errors import AssayError, MachineCannot
from assay.core.files import home_folder
from assay.core.processes import stop_main_thread

if TYPE_CHECKING:
    from subprocess import Popen

_READY = b"ready\n"
_LOAD, _GOODBYE = b"l", b"g"
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_GOODBYE_WITHIN_S = 5.0
_START_TRIES, _START_PAUSE_S = 3, 0.2


class GuardianNotStarted(MachineCannot):
    """The guardian could not be started."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Could not start the guardian that cleans up after Assay: {reason}.")
        self.reason = reason


class GuardianLost(MachineCannot):
    """The guardian died, and no replacement can be started; operations that need one are not started."""


class Guardian:
    """``with Guardian():`` around all work that takes leases; inside, even a kill -9 leaves nothing behind.

    A process has one guardian: further ones, nested or in other threads, share it until the last one exits. A forked
    child is not covered by its parent's.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[_GuardianProcess | None] = None

    def __enter__(self) -> Self:
        """Start the guardian and wait until it is watching.

        Raises:
            GuardianNotStarted: It could not be started.
        """
        with self._lock:
            watch = Guardian._shared
            if watch is None or watch.pid != os.getpid():
                watch = Guardian._shared = _GuardianProcess()
            watch.users += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Dismiss the guardian; wait at most a few seconds for one that still has something to undo."""
        with self._lock:
            watch = Guardian._shared
            if watch is None or watch.pid != os.getpid():
                return
            watch.users -= 1
            if watch.users == 0:
                Guardian._shared = None
                watch.end()

    @classmethod
    def require(cls) -> None:
        """Ensure that a guardian is alive before something is started that must not be held without one.

        From then on the run is stopped if the guardian dies and no replacement can be started.

        Raises:
            GuardianLost: It has died, and none can be started.
        RuntimeError: This is not within ``with Guardian():``.
        """
        watch = cls._shared
        if watch is None or watch.pid != os.getpid():
            raise RuntimeError("what must be undone after a kill is begun within `with Guardian():` only")
        watch.require()


class _GuardianProcess:
    """A running guardian, and its replacements, as seen from the process they watch."""

    def __init__(self) -> None:
        self.users = 0
        self.pid = os.getpid()
        self._starting = threading.Lock()
        self._required = self._ended = self._lost = False
        self._pipe, self._process = _start_watching()
        self._supervisor = self._start_supervisor()

    def require(self) -> None:
        """Ensure a living guardian from now on; see `Guardian.require`."""
        with self._starting:
            self._required = True
            if processes.identify_process(self._process.pid) is None:
                self._start_again()
                if not self._supervising:  # it had given up
                    self._supervisor = self._start_supervisor()
            self._request_preload()

    def _request_preload(self) -> None:
        """Make the guardian load its code now rather than when it is needed; a dead one is about to be replaced."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, _LOAD)

    def end(self) -> None:
        """Dismiss the guardian; it releases what is still held, or this process does where it was killed."""
        with self._starting:
            self._ended = True
            # The byte is needed where a forked child still holds a copy of the pipe.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, _GOODBYE)
            os.close(self._pipe)
        self._supervisor.join(_GOODBYE_WITHIN_S)
        if self._lost or (self._process.returncode is not None and self._process.returncode < 0):
            _clean_up_after(processes.current_process())

    def _start_supervisor(self) -> threading.Thread:
        self._supervising = True
        supervisor = threading.Thread(target=self._restart_when_dead, name="guardian", daemon=True)
        supervisor.start()
        return supervisor

    def _restart_when_dead(self) -> None:
        """Start another guardian whenever one dies before it was dismissed."""
        while True:
            died = self._process
            died.wait()
            with self._starting:
                if self._process is not died:  # replaced by `require` while this thread waited: watch that one
                    continue
                if self._ended:
                    return
                try:
                    self._start_again()
                except GuardianLost as error:
                    self._supervising = False
                    if self._required:
                        reason = str(error).rstrip(".")
                        stop_main_thread(f"Stopped, as a kill would leave what was changed: {reason}")
                    return

    def _start_again(self) -> None:
        """Start a guardian to replace a dead one; the caller holds the lock.

        Raises:
            GuardianLost: None can be started.
        """
        why = describe_exit(self._process.wait())
        for left in reversed(range(_START_TRIES)):
            try:
                pipe, process = _start_watching()
            except (AssayError, OSError) as error:
                if not left:
                    self._lost = True
                    reason = error.reason if isinstance(error, GuardianNotStarted) else str(error).rstrip(".")
                    raise GuardianLost(
                        f"The guardian that cleans up after Assay {why}, and no other could be started: {reason}."
                    ) from error
                time.sleep(_START_PAUSE_S)
            else:
                os.close(self._pipe)
                self._pipe, self._process = pipe, process
                self._lost = False
                if self._required:
                    self._request_preload()
                break
        with contextlib.suppress(MachineCannot):  # a full disk must not leave us without a guardian
            _log(f"The guardian of process {self.pid} {why}; another watches since.")


def _start_watching() -> tuple[int, Popen[bytes]]:
    """Start a guardian that watches this process; return it with the pipe whose end it waits for.

    Raises:
        GuardianNotStarted: It could not be started.
    """
    read_end, pipe = os.pipe()
    try:
        process = _spawn(read_end)
        _wait_until_ready(process)
    except BaseException:
        os.close(pipe)
        raise
    finally:
        os.close(read_end)
    return pipe, process


def describe_exit(code: int) -> str:
    """Describe how a process ended, from its exit code as Python reports it."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _spawn(stdin: int) -> Popen[bytes]:
    from subprocess import PIPE, STDOUT, Popen

    owner = json.dumps(asdict(processes.current_process()))
    command = [sys.executable, "-P", "-m", "assay.core.guardian", owner, os.environ.get("PYTHONPATH", "")]
    # Our import path, and without the mark that `kill_marked` looks for.
    environment = {name: value for name, value in os.environ.items() if name != processes.MARK}
    environment["ASSAY_HOME"] = str(home_folder())
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    try:
        return Popen(command, stdin=stdin, stdout=PIPE, stderr=STDOUT, env=environment, cwd="/", start_new_session=True)
    except OSError as error:
        raise GuardianNotStarted(str(error)) from error


def _wait_until_ready(process: Popen[bytes]) -> None:
    """Read the guardian's output until it is ready; any other output explains why it failed."""
    lines: list[bytes] = []
    if process.stdout is None:
        raise AssertionError("the guardian's output is a pipe")
    with process.stdout as output:
        for line in output:
            if line == _READY:
                return
            lines.append(line)
    process.wait()
    why = lines[-1].decode(errors="replace").strip() if lines else f"it ended with {process.returncode}"
    raise GuardianNotStarted(why)


def main(owner_json: str, python_path: str) -> int:
    """Watch the process that started us, then release its leases; return the exit code."""
    for number in _IGNORED_SIGNALS:
        # A handler, unlike SIG_IGN, is not inherited by processes that an undo starts.
        signal.signal(number, lambda *_: None)
    os.environ.pop("PYTHONPATH")
    if python_path:
        os.environ["PYTHONPATH"] = python_path
    owner = processes.ProcessIdentity(**json.loads(owner_json))
    with contextlib.suppress(BrokenPipeError):  # the owner was killed meanwhile: a replacement guardian still has work
        os.write(1, _READY)
    _point_at_null(1, 2)
    _wait_for_exit(owner)
    _point_at_null(0)
    return _clean_up_after(owner)


def _wait_for_exit(owner: processes.ProcessIdentity) -> None:
    """Sleep until the pipe closes or dismisses us, or the owner is dead while a forked child of it keeps it open."""
    watched = select.poll()
    watched.register(0, select.POLLIN)
    with contextlib.suppress(OSError):
        watched.register(os.pidfd_open(owner.pid), select.POLLIN)
        if not processes.is_alive(owner):
            return
    while watched.poll() == [(0, select.POLLIN)] and os.read(0, 1) == _LOAD:
        import assay.core.leases  # noqa: F401 - its data models take a quarter of a second of CPU time


def _clean_up_after(owner: processes.ProcessIdentity) -> int:
    try:
        if not any((home_folder() / "leases").glob("*.json")):
            return 0
        from assay.core import leases

        failed = [report for report in leases.release_owned_by(owner) if report.outcome == "failed"]
        for report in failed:
            _log(report.reason)
    except Exception:  # noqa: BLE001 - nobody is left to report to but the log
        _log(" | ".join(traceback.format_exc().splitlines()))
        return 1
    return 1 if failed else 0


def _log(message: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    files.append_line(home_folder() / "guardian.log", f"{now} {message}")


def _point_at_null(*descriptors: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
