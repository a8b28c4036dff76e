"""Supervise one job: start Assay, and stop it on request, at its deadline, or when no client listens any more.

Run as a program, stop a job from outside.
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

from assay.hosts.remote.agent import folder as job_folder

POLL_S = 10.0
GRACE_S = 30.0
"""Time for Assay to stop by itself and keep what it measured."""

UNDO_S = 20.0
"""Time for the job's own guardian to clean up, when Assay could not do it itself."""


def supervise(folder: Path) -> int:
    """Supervise a job to its end."""
    waker, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGTERM, lambda *_: os.write(wake, b"."))
    job = job_folder.read_or_none(folder / job_folder.JOB) or {}
    (folder / job_folder.HEARTBEAT).touch()
    with (folder / job_folder.LOG).open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "assay.cli.remote_rank", *job["words"]],
            cwd=folder / job["start"],
            env={**os.environ, **job["environment"], job_folder.FOLDER_VARIABLE: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    why = _wait_for_end(child, folder, waker, limit_s=job["limit_s"], unheard_s=job["unheard_s"])
    if why is not None:
        _stop_gently(child)
    if job_folder.wait_until_gone(folder, UNDO_S):
        (folder / job_folder.GONE).touch()
    answered = (folder / "ranks" / "0.json").exists()
    if why is None and not answered:
        _invalidate_environment()
    job_folder.write_atomically(folder / job_folder.ENDED, {"code": child.returncode, "why": why, "answered": answered})
    return 0


def _wait_for_end(
    child: subprocess.Popen[bytes], folder: Path, waker: int, *, limit_s: float | None, unheard_s: float
) -> str | None:
    """Wait until Assay has exited; return why it must be stopped, null if it exited by itself."""
    started_at = heard_at = time.monotonic()
    heartbeat = None
    poll = select.poll()
    poll.register(os.pidfd_open(child.pid), select.POLLIN)
    poll.register(waker, select.POLLIN)
    while child.poll() is None:
        left_s = None if limit_s is None else started_at + limit_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            return "late"
        if heartbeat != (heartbeat := (folder / job_folder.HEARTBEAT).stat().st_mtime_ns):
            heard_at = time.monotonic()
        if time.monotonic() - heard_at > unheard_s:
            return "unheard"
        pause_s = min(POLL_S, unheard_s) if left_s is None else min(POLL_S, unheard_s, left_s)
        if any(handle == waker for handle, _ in poll.poll(max(1, pause_s * 1000))):
            return "asked"
    return None


def _stop_gently(child: subprocess.Popen[bytes]) -> None:
    """Interrupt it as Ctrl-C does; kill it if it does not stop."""
    child.send_signal(signal.SIGINT)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _invalidate_environment() -> None:
    """Make the next job recreate the environment: Assay could not start in it."""
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)[:1]:
        Path(entry).with_name(job_folder.ENV).unlink(missing_ok=True)


def main(folder: Path) -> int:
    """Ask the supervisor to stop the job, or stop it without one; return 0 once all is gone, else 1."""
    deadline = time.monotonic() + GRACE_S + UNDO_S + 15
    requested = False
    while (supervisor := job_folder.supervisor_of(folder)) is not None and time.monotonic() < deadline:
        if not requested:
            os.kill(supervisor, signal.SIGTERM)
            requested = True
        time.sleep(0.02)
    if supervisor is not None:
        os.kill(supervisor, signal.SIGKILL)
    if not requested:
        for pid in job_folder.processes_of(folder):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
    return 0 if job_folder.wait_until_gone(folder, 0.0 if requested else UNDO_S) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
