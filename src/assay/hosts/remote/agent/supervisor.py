"""Supervise one job: start Assay, and stop it when asked to, at its deadline, or when no client listens any more.

Stop a job from outside.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from assay.hosts.remote.agent import folder as its

POLL_S = 10.0
GRACE_S = 30.0
"""To stop by itself, with what was measured kept."""

UNDO_S = 20.0
"""For whatever the order's own guardian has to undo, when Assay could not do it itself."""


def supervise(folder: Path) -> int:
    """Keep an order to its end."""
    waker, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGTERM, lambda *_: os.write(wake, b"."))
    job = its.read_or_none(folder / its.JOB) or {}
    (folder / its.HEARTBEAT).touch()
    with (folder / its.LOG).open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "assay.cli.remote_rank", *job["words"]],
            cwd=folder / job["start"],
            env={**os.environ, **job["environment"], its.FOLDER_VARIABLE: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    why = _wait_for_end(child, folder, waker, limit_s=job["limit_s"], unheard_s=job["unheard_s"])
    if why is not None:
        _stop_gently(child)
    if its.wait_until_gone(folder, UNDO_S):
        (folder / its.GONE).touch()
    answered = (folder / "ranks" / "0.json").exists()
    if why is None and not answered:
        _distrust_environment()
    its.write_atomically(folder / its.ENDED, {"code": child.returncode, "why": why, "answered": answered})
    return 0


def _wait_for_end(
    child: subprocess.Popen[bytes], folder: Path, waker: int, *, limit_s: float | None, unheard_s: float
) -> str | None:
    """Sleep until the Assay there has ended; return why it is to be ended, if it has not."""
    begun = heard = time.monotonic()
    mark = None
    waiting = select.poll()
    waiting.register(os.pidfd_open(child.pid), select.POLLIN)
    waiting.register(waker, select.POLLIN)
    while child.poll() is None:
        left_s = None if limit_s is None else begun + limit_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            return "late"
        if mark != (mark := (folder / its.HEARTBEAT).stat().st_mtime_ns):
            heard = time.monotonic()
        if time.monotonic() - heard > unheard_s:
            return "unheard"
        pause_s = min(POLL_S, unheard_s) if left_s is None else min(POLL_S, unheard_s, left_s)
        if any(handle == waker for handle, _ in waiting.poll(max(1, pause_s * 1000))):
            return "asked"
    return None


def _stop_gently(child: subprocess.Popen[bytes]) -> None:
    """Let it stop as by Ctrl-C; kill it if it does not."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _distrust_environment() -> None:
    """Have the environment looked at again before the next order: Assay could not even start in it."""
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)[:1]:
        Path(entry).with_name(its.ENV).unlink(missing_ok=True)


def main(folder: Path) -> int:
    """Ask its keeper to end it; without one, end it ourselves. Not 0: something is still there."""
    deadline = time.monotonic() + GRACE_S + UNDO_S + 15
    requested = False
    while (keeper := its.supervisor_of(folder)) is not None and time.monotonic() < deadline:
        if not requested:
            os.kill(keeper, signal.SIGTERM)
            requested = True
        time.sleep(0.02)
    if keeper is not None:
        os.kill(keeper, signal.SIGKILL)
    if not requested:
        for pid in its.processes_of(folder):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
    return 0 if its.wait_until_gone(folder, 0.0 if requested else UNDO_S) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
