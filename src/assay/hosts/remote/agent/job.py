"""Run one job: accept its upload, check the GPU, and supervise Assay to its end.

    accept BASE KEY JOB   unpack the upload, start the supervisor, follow the output
    stop FOLDER           stop the job from outside

The supervisor stops Assay on request, at its deadline, or when no client listens any more.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import AssayError
from assay.hosts.remote.agent import folder as job_folder
from assay.hosts.remote.agent import stream
from assay.hosts.remote.agent.bootstrap import VERSION

if TYPE_CHECKING:
    from assay.machine.model import Machine

POLL_S = 10.0
GRACE_S = 30.0
"""Time for Assay to stop by itself and keep what it measured."""

UNDO_S = 20.0
"""Time for the job's own guardian to clean up, when Assay could not do it itself."""


def accept(base: Path, key: str, job_id: str) -> int:
    """Start a job, or follow it if it runs already."""
    environment = base / "env" / key
    if (environment / VERSION).read_text() != sys.version:
        (environment / job_folder.ENV).unlink(missing_ok=True)
        return job_folder.NO_ENVIRONMENT
    (environment / job_folder.ENV).touch()
    folder = base / job_folder.JOBS / job_id
    try:
        if not folder.is_dir():
            _unpack_job(folder, environment)
        job = job_folder.read_or_none(folder / job_folder.JOB) or {}
        mismatch = None if job["gpu"] is None else wrong_gpu(job["gpu"], job["gpu_count"])
        if mismatch is not None:
            sys.stderr.write(mismatch)
            return job_folder.WRONG_GPU
        _start_supervisor_once(folder)
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}: {error.filename or folder}")
        return 1
    except AssayError as error:
        sys.stderr.write(str(error))
        return 1
    return stream.send_output(folder, 0, 0)


def _unpack_job(folder: Path, environment: Path) -> None:
    part = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        job_folder.unpack(sys.stdin.buffer, part)
        job = job_folder.read_or_none(part / job_folder.JOB) or {}
        for name in ("nodes", "ranks", job["start"]):
            (part / name).mkdir(parents=True, exist_ok=True)
        if job["resumes"] is not None:
            from assay.store.run_folder import RunFolder

            RunFolder.open(part / job["start"] / job["resumes"]).start_in(str(folder / job["start"]))
        shutil.copy(environment / job_folder.ENV, part / job_folder.ENV)
        part.rename(folder)
    except (OSError, AssayError):
        shutil.rmtree(part, ignore_errors=True)
        if not folder.is_dir():
            raise


def wrong_gpu(requested: str, count: int, machine: Machine | None = None) -> str | None:
    """Return which GPUs are here instead of the requested ones, as a clause; null when they match.

    Every GPU must be of that type, as it is not known yet which one will be used.
    """
    from assay.hosts.gpu_types import satisfies
    from assay.machine.detect import detect

    machine = machine or detect()
    names = [gpu.name for gpu in machine.gpus]
    matching = [name for name in names if satisfies(requested, name)]
    if len(matching) == len(names) and len(matching) >= count:
        return None
    if not names:
        return "there is no GPU" + (f" ({machine.gpu_note})" if machine.gpu_note else "")
    if len(matching) == len(names):
        return f"there {'is' if len(names) == 1 else 'are'} only {len(names)} {names[0]}"
    return f"there is {', '.join(dict.fromkeys(names))}"


def _start_supervisor_once(folder: Path) -> None:
    try:
        (folder / "started").touch(exist_ok=False)
    except FileExistsError:
        return
    sys.stdout.flush()
    supervisor = os.fork()
    if supervisor:
        record = {"pid": supervisor, "started": job_folder.process_started_at(supervisor)}
        job_folder.write_atomically(folder / job_folder.SUPERVISOR, record)
        return
    os.setsid()
    with (folder / job_folder.LOG).open("ab") as log, Path(os.devnull).open("rb") as null:
        for file, descriptor in ((null, 0), (log, 1), (log, 2)):
            os.dup2(file.fileno(), descriptor)
    os.chdir("/")
    os._exit(supervise(folder))


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
    why = wait_for_end(child, folder, waker, limit_s=job["limit_s"], unattended_s=job["unattended_s"])
    if why is not None:  # interrupt it as Ctrl-C does
        child.send_signal(signal.SIGINT)
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    if job_folder.wait_until_gone(folder, UNDO_S):
        (folder / job_folder.GONE).touch()
    answered = (folder / "ranks" / "0.json").exists()
    if why is None and not answered:  # Assay could not start: the next job recreates the environment
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)[:1]:
            Path(entry).with_name(job_folder.ENV).unlink(missing_ok=True)
    job_folder.write_atomically(folder / job_folder.ENDED, {"code": child.returncode, "why": why, "answered": answered})
    return 0


def wait_for_end(
    child: subprocess.Popen[bytes], folder: Path, waker: int, *, limit_s: float | None, unattended_s: float
) -> str | None:
    """Wait until Assay has exited; return why it must be stopped, null if it exited by itself."""
    started_at = attended_at = time.monotonic()
    heartbeat = None
    poll = select.poll()
    poll.register(os.pidfd_open(child.pid), select.POLLIN)
    poll.register(waker, select.POLLIN)
    while child.poll() is None:
        left_s = float("inf") if limit_s is None else started_at + limit_s - time.monotonic()
        if left_s <= 0:
            return "time limit"
        if heartbeat != (heartbeat := (folder / job_folder.HEARTBEAT).stat().st_mtime_ns):
            attended_at = time.monotonic()
        if time.monotonic() - attended_at > unattended_s:
            return "unattended"
        if any(handle == waker for handle, _ in poll.poll(max(1, min(POLL_S, unattended_s, left_s) * 1000))):
            return "stop requested"
    return None


def stop(folder: Path) -> int:
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
    if sys.argv[1] == "accept":
        raise SystemExit(accept(Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
    raise SystemExit(stop(Path(sys.argv[2])))
