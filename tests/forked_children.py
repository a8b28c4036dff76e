"""What a forked command line starts of Assay's own, workers and guardians, is forked too: it has all imported already.

To the process itself, and to everybody who looks at it from outside, it is as if it had been started: its environment
and its command line stand where the kernel shows them, its files, signals and streams are those of a new process. Real
ones are started where tests start a command line themselves, as those of signals and of the documents do.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import io
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOM = "ASSAY_TESTS_ROOM"
ROOM_BYTES = 48_000
"""So much of the environment of a process that forks is there to be written over."""
MAY_DIFFER = ("OMP_", "OPENBLAS_", "MKL_")
"""What decides how many threads there are; the tests look at what is set, not at the threads."""

HEEDED = ("PYTHONPATH", "PYTHONFAULTHANDLER")
"""What is heeded without a start: the guardian's and the workers' path is what we have."""


class ForkingPopen(subprocess.Popen[Any]):
    """``subprocess.Popen`` that forks where one of Assay's modules is to be run by this interpreter."""

    deciding: tuple[str, ...] = ()
    """How the names of variables begin that decide how a process starts."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        """Fork, where that is the same as to start; the arguments are those of CPython's own method."""
        (executable, preexec, close_fds, pass_fds, cwd, env, _, _, shell, *pipes) = rest[:15]
        start_new_session = rest[-2]
        plain = executable is None and preexec is None and close_fds and not shell
        if not plain or not _is_ours(args) or not self._same_start(env):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        pid = os.fork()
        if pid == 0:
            streams = (pipes[0], pipes[3], pipes[5])
            become(args, streams=streams, keep=pass_fds, cwd=cwd, env=env, session=start_new_session)
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _same_start(self, env: Mapping[str, str] | None) -> bool:
        names = tuple(set(self.deciding) - set(MAY_DIFFER))
        here, there = (
            {k: v for k, v in each.items() if k.startswith(names)} for each in (os.environ, env or os.environ)
        )
        for name in HEEDED:
            here.pop(name, None)
            there.pop(name, None)
        return here == there


def _is_ours(args: Any) -> bool:
    words = [word for word in args if word != "-P"] if isinstance(args, list) else []
    return words[:2] == [sys.executable, "-m"] and str(words[2]).startswith("assay.")


def become(
    args: Sequence[str],
    *,
    streams: tuple[int, int, int],
    keep: Iterable[int],
    cwd: str | None,
    env: Mapping[str, str] | None,
    session: bool,
) -> None:
    """Be, in a forked child, the process that these arguments would have started; never come back."""
    code = 1
    try:
        if session:
            os.setsid()
        if cwd is not None:
            os.chdir(cwd)
        for place, descriptor in enumerate(streams):
            if descriptor not in {-1, place}:
                os.dup2(descriptor, place)
        _close_all_but({0, 1, 2, *keep})
        _forget_the_parent()
        show_as(args, os.environ.copy() if env is None else env)
        if os.environ.get("PYTHONFAULTHANDLER"):
            faulthandler.enable(2)
        code = _run([word for word in args[1:] if word != "-P"])
    except BaseException:  # noqa: BLE001 - as an interpreter does with what nobody catches
        traceback.print_exc()
    finally:
        end(code)


def end(code: int) -> None:
    """End as an interpreter does: threads first, then what was to be done at exit."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(words: list[str]) -> int:
    module, sys.argv[:] = words[1], words[1:]
    sys.modules.pop(module, None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that it was imported before
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as asked:
        if isinstance(asked.code, str):
            sys.stderr.write(f"{asked.code}\n")
            return 1
        return int(asked.code or 0)
    return 0


def _close_all_but(kept: set[int]) -> None:
    for descriptor in sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # the look itself has opened one
                os.close(descriptor)


def _forget_the_parent() -> None:
    """Have streams, signals, hooks and chances of one's own, as a new process."""
    from assay.core import processes

    processes._ProcessState.request = None
    atexit._clear()
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    faulthandler.disable()
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    sys.stdout = sys.__stdout__ = _stream(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "backslashreplace")  # type: ignore[misc]
    random.seed()


def _stream(descriptor: int, errors: str) -> io.TextIOWrapper:
    buffered = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(buffered, encoding="utf-8", errors=errors, line_buffering=descriptor == 2)


def show_as(args: Sequence[str], env: Mapping[str, str]) -> bool:
    """Take an environment over, and have the kernel show it and a command line as those of this process.

    Return whether it does: a sandbox may not say where it looks.
    """
    os.environ.clear()  # nothing points to where the kernel looks any more
    os.environ.update(env)
    _have_threads_as_told()
    arguments, after, environment, until = _areas()
    if not arguments or not environment:
        return False
    words = b"".join(os.fsencode(word) + b"\0" for word in args)
    entries = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    for at, room, text in ((arguments, after - arguments, words), (environment, until - environment, entries)):
        if len(text) > room:
            raise RuntimeError(f"there is room for {room} bytes, and {len(text)} are to be shown")
        ctypes.memmove(at, text.ljust(room, b"\0"), room)
    return True


def _have_threads_as_told() -> None:
    """Let PyTorch, where it is imported already, have as many threads as it would have found it may have."""
    torch = sys.modules.get("torch")
    if torch is not None:
        told = os.environ.get("OMP_NUM_THREADS", "")
        torch.set_num_threads(int(told) if told.isdecimal() and int(told) else len(os.sched_getaffinity(0)))


def _areas() -> tuple[int, int, int, int]:
    """Return where the kernel finds this process's arguments and its environment: begin and end of each."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    arguments, after, environment, until = (int(field) for field in fields[45:49])
    return arguments, after, environment, until
