"""Run a job on a machine that shares no files with this one, over any connection.

    run      upload ─▶ prepare ─▶ check the GPU ─▶ start, detached ─▶ follow its output ─▶ its exit code
    collect  the run folder comes back whole or not at all, is verified, and is placed under ``job.output_dir``
    end      what still runs of the job is asked to stop, then killed, and confirmed gone
    clean    the job's folder there is removed

A host that uses these has "ship" among its ``options``: the command line then sends the files named on it. Whoever
creates the machine owns it: nothing here creates or returns one. On a rented machine a watchdog shuts it down at its
deadline.
"""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from assay.core.errors import EXIT_STOPPED, MachineCannot, StopRequested
from assay.core.files import replace_atomically, translate_os_errors
from assay.core.format import format_duration
from assay.core.results import STAND_IN
from assay.hosts.base import JobEnd, JobProgress
from assay.hosts.remote.agent.folder import GONE, JOBS, NO_ENVIRONMENT, NOTHING_THERE, WRONG_GPU
from assay.hosts.remote.connection import RemoteConnectionLost
from assay.hosts.remote.transfer import (
    PRELUDE,
    FrameReader,
    download_run,
    environment_key,
    failure_reason,
    job_archive,
    prepare_environment,
    remote_runs_folder,
    start_folder,
)
from assay.hosts.run_job import JOB

if TYPE_CHECKING:
    from typing import Any

    from assay.hosts.base import Job, JobWatcher
    from assay.hosts.remote.connection import RemoteConnection, RemoteResult


RECONNECT_TIMEOUT_S = 300.0
"""How long to retry a lost connection."""

UNATTENDED_LIMIT_S = 600.0
"""A job stops itself when no client has listened for this long."""

TRIES, FIRST_PAUSE_S, LONGEST_PAUSE_S = 3, 0.2, 15.0
END_WITHIN_S, CLEAN_WITHIN_S = 120.0, 60.0


def run_remotely(connection: RemoteConnection, job: Job, watcher: JobWatcher) -> JobEnd:
    """Run a job there to its end, and pass on its output as it comes.

    A lost connection is re-established, as the job runs on without it. When a signal stops us (`StopRequested`), the
    job is stopped there and its run downloaded before the exception is raised again; `collect` need not be called
    then.

    Raises:
        MachineCannot: The GPU there is not the requested one, no environment can be created, the disk is full.
        RemoteConnectionLost: The machine did not answer within the reconnect timeout; the job there stops by
            itself.
    """
    folder = Path(job.folder)
    with translate_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace_atomically(folder / JOB, job.model_dump_json(indent=1).encode())
    frames = FrameReader(job, watcher)
    try:
        _start_job(connection, job, watcher, frames)
        while frames.ended is None:
            _reconnect(connection, job, watcher, frames)
    except StopRequested:
        with contextlib.suppress(MachineCannot):
            end_remote_job(connection, job)
            collect_run(connection, job)
        raise
    finally:
        frames.flush()
    if frames.ended["why"] == "unsupervised":
        end_remote_job(connection, job)
    return job_end(frames.ended, job, connection.where)


def collect_run(connection: RemoteConnection, job: Job) -> tuple[Path, ...]:
    """Download the job's run folder, validate it, and move it under ``job.output_dir``; return it, or nothing.

    Safe to call again: the run is downloaded once more, in its newest state.

    Raises:
        MachineCannot: The download is not a valid run, or cannot be written here.
        RemoteConnectionLost: The connection broke.
    """
    for left in reversed(range(TRIES)):
        try:
            return download_run(connection, job, _agent_script(job, "stream run"))
        except RemoteConnectionLost:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def end_remote_job(connection: RemoteConnection, job: Job) -> None:
    """Stop whatever still runs of a job there and confirm that it is gone; do nothing if nothing runs."""
    result = connection.do(_agent_script(job, "job stop", unless=GONE), within_s=END_WITHIN_S)
    if result.code not in {0, NOTHING_THERE}:
        raise MachineCannot(f"Processes of {job.name} are still on {connection.where}: {failure_reason(result)}.")


def remove_remote_files(connection: RemoteConnection, job: Job) -> None:
    """Remove the job's files there; the environment stays for the next job."""
    result = connection.do(f'{PRELUDE}rm -rf "$base/{JOBS}/{job.id}"', within_s=CLEAN_WITHIN_S)
    if result.code != 0:
        raise MachineCannot(f"The files of {job.name} are still on {connection.where}: {failure_reason(result)}.")


def job_data(job: Job, *, stand_in: bool = False) -> dict[str, Any]:
    """Return the data for the supervisor there; it contains no secrets."""
    environment = {"COLUMNS": str(job.columns), "ASSAY_HISTORY": "off", "PYTHONUNBUFFERED": "1"}
    if stand_in:
        environment[STAND_IN] = "1"
    return {
        "words": list(job.words),
        "start": start_folder(job.files),
        "resumes": next((word for word in job.words if word.startswith(f"{remote_runs_folder(job.id)}/")), None),
        "environment": environment,
        "limit_s": job.limit_s,
        "unattended_s": UNATTENDED_LIMIT_S,
        "gpu": job.gpu,
        "gpu_count": job.gpu_count if job.gpu else None,
    }


def job_end(ended: dict[str, Any], job: Job, where: str) -> JobEnd:
    """Return how a job ended, with a reason where the remote Assay could not report it."""
    code, why, log = ended["code"], ended["why"], ended["log"]
    limit = f" of {format_duration(job.limit_s)} (--time)" if job.limit_s else ""
    unattended = format_duration(UNATTENDED_LIMIT_S)
    reasons = {
        "time limit": f"it was stopped on {where} at its time limit{limit}",
        "unattended": f"it stopped itself on {where}, as no client had listened for {unattended}",
        "stop requested": f"somebody else stopped it on {where}",
        "unsupervised": f"its supervisor on {where} was killed",
    }
    if why is not None:
        return JobEnd(exit_code=EXIT_STOPPED, reason=reasons.get(why, why))
    if code < 0:
        return JobEnd(exit_code=EXIT_STOPPED, reason=f"Assay was killed on {where} (signal {-code})")
    if not ended["answered"]:
        detail = f": {log}" if log else ""
        return JobEnd(exit_code=MachineCannot.exit_code, reason=f"Assay could not start on {where}{detail}")
    return JobEnd(exit_code=code)


def _start_job(connection: RemoteConnection, job: Job, watcher: JobWatcher, frames: FrameReader) -> None:
    """Start the job there, after creating its environment where there is none, and follow it."""
    where, key = connection.where, environment_key(job)
    script = (
        f'{PRELUDE}[ -f "$base/env/{key}/env" ] || exit {NO_ENVIRONMENT}\n. "$base/env/{key}/env"\n'
        f'exec "$python" -P -m assay.hosts.remote.agent.job accept "$base" {key} {job.id}'
    )
    _report_progress(watcher, "waits", f"{job.name} is sent to {where}")
    result = _start_with_retries(connection, script, job, frames)
    if result is not None and result.code == NO_ENVIRONMENT:
        _report_progress(watcher, "waits", f"{where} gets an environment for this version of Assay")
        prepare_environment(connection, job)
        result = _start_with_retries(connection, script, job, frames)
    if result is None or result.code == 0 or frames.begun:
        return
    if result.code == WRONG_GPU:
        raise MachineCannot(f"--gpu-type {job.gpu} was requested, and on {where} {failure_reason(result)}.")
    raise MachineCannot(f"The job could not be started on {where}: {failure_reason(result)}.")


def _start_with_retries(
    connection: RemoteConnection, script: str, job: Job, frames: FrameReader
) -> RemoteResult | None:
    """Start the job, and retry if the connection was lost before the first frame; null where it was lost later."""
    for left in reversed(range(TRIES)):
        archive = job_archive(job.files, job_data(job, stand_in=connection.stand_in))
        try:
            frames.cut()
            return connection.do(script, feed=archive, out=frames.take)
        except RemoteConnectionLost:
            if frames.begun:
                return None
            if not left:
                raise
            time.sleep(FIRST_PAUSE_S)
    raise AssertionError("the last try returns or raises")


def _reconnect(connection: RemoteConnection, job: Job, watcher: JobWatcher, frames: FrameReader) -> None:
    """Reconnect, and follow the output from where it was interrupted."""
    lost = f"the connection to {connection.where} was lost; the job goes on there, and the connection is retried"
    _report_progress(watcher, "runs", lost)
    deadline = time.monotonic() + RECONNECT_TIMEOUT_S
    pause_s = FIRST_PAUSE_S
    while True:
        old_position = dict(frames.at)
        try:
            frames.cut()
            result = connection.do(_agent_script(job, "stream output", frames.at["o"], frames.at["e"]), out=frames.take)
        except RemoteConnectionLost:
            if frames.at != old_position:
                deadline, pause_s = time.monotonic() + RECONNECT_TIMEOUT_S, FIRST_PAUSE_S
            if time.monotonic() > deadline:
                raise
        else:
            if frames.ended is None:
                raise MachineCannot(f"{job.name} is no longer on {connection.where}: {failure_reason(result)}.")
            return
        time.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 2)


def _agent_script(job: Job, program: str, *arguments: object, unless: str | None = None) -> str:
    """Return a script that runs a program of `remote.agent` on the job's folder, ``unless`` this file exists."""
    rest = " ".join(map(str, arguments))
    done = f'[ ! -f "$d/{unless}" ] || exit 0\n' if unless else ""
    return (
        f'{PRELUDE}d="$base/{JOBS}/{job.id}"\n{done}[ -f "$d/env" ] || exit {NOTHING_THERE}\n. "$d/env"\n'
        f'exec "$python" -P -m assay.hosts.remote.agent.{program} "$d" {rest}'
    )


def _report_progress(watcher: JobWatcher, state: str, what: str) -> None:
    watcher.progress(JobProgress.model_validate({"state": state, "what": f"{what}."}))


OFF = (
    "sync; s=; [ $(id -u) = 0 ] || s='sudo -n'; "
    "$s shutdown -h now || $s poweroff -f || $s halt -f -p || $s sh -c 'echo o > /proc/sysrq-trigger'; "
    "sleep 20; $s kill -s TERM 1; sleep 10; $s kill -s KILL -- -1"
)
"""Commands that end a machine, in turn: a whole machine is shut down; a container ends with its first process."""


def shutdown_script(deadline_at: datetime, *, now: datetime | None = None, off: str = OFF) -> str:
    """Return a ``sh`` script that makes a machine shut itself down at a deadline; the script returns at once.

    The machine counts seconds from now, as its clock may be wrong. When run again, the last deadline counts.
    """
    left_s = max(0, round((deadline_at - (now or datetime.now(UTC))).total_seconds()))
    return f"""umask 077
f="${{TMPDIR:-/tmp}}/assay-watchdog.$(id -u)"
if [ -O "$f" ]; then
  kill -s KILL -- "-$(cat "$f")" 2>/dev/null
  rm -f "$f"
fi
command -v setsid >/dev/null || exit 1
nohup setsid sh -c {quote(f"sleep {left_s}; {off}")} </dev/null >/dev/null 2>&1 &
echo $! > "$f"
"""


ARM_TIMEOUT_S = 60.0


class RemoteWork:
    """Runs jobs over a connection; `arm` sets the machine's own deadline beforehand."""

    def run(self, connection: RemoteConnection, job: Job, watcher: JobWatcher) -> JobEnd:
        """Run a job there to its end."""
        return run_remotely(connection, job, watcher)

    def collect(self, connection: RemoteConnection, job: Job) -> tuple[Path, ...]:
        """Download its run folder."""
        return collect_run(connection, job)

    def arm(self, connection: RemoteConnection, deadline_at: datetime) -> None:
        """Make the machine enforce its own deadline.

        Raises:
            MachineCannot: It cannot; a machine that would run on without us is not used.
        """
        result = connection.do(shutdown_script(deadline_at), within_s=ARM_TIMEOUT_S)
        if result.code != 0:
            why = " ".join(result.err.decode(errors="replace").split())[-200:]
            raise MachineCannot(f"{connection.where} does not take its deadline: {why or f'exit code {result.code}'}.")
