"""Submit one Slurm job, watch it to its end, and cancel it by its name."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Literal

from assay.core import leases
from assay.core.errors import BadInput, MachineCannot
from assay.hosts import run_job as traces
from assay.hosts.base import JobProgress
from assay.hosts.slurm import commands as queue
from assay.hosts.slurm.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from assay.core.leases import Lease
    from assay.hosts.base import Job, JobWatcher, Offer, Rental
    from assay.hosts.slurm.commands import QueueEntry


TICK_S = 0.1
"""Polling interval for the job's own files, which costs nobody else anything."""

FIRST_POLL_S, MAX_POLL_S, POLL_GROWTH = 0.2, 10.0, 1.4
"""Polling interval of the queue: short at first and after a change, then growing, as all users share the
controller."""

MAX_SILENCE_S = 600.0


class JobWatch:
    """Watches one job."""

    def __init__(self, rental: Rental, folder: Path, watcher: JobWatcher) -> None:
        self._rental = rental
        self._folder = folder
        self._watcher = watcher
        self._last_progress: JobProgress | None = None
        self._nodes: tuple[str, ...] = ()
        self._silent_since: float | None = None
        self._tails = (
            LogTail(folder / "ranks/0.out", watcher.out),
            LogTail(folder / "ranks/0.err", watcher.err),
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes allocated to the job."""
        return self._nodes

    def wait(self) -> QueueEntry | None:
        """Wait until the job is over; return its last entry in the queue, null when Slurm no longer knows it."""
        pause_s, next_poll_at = FIRST_POLL_S, 0.0
        ended = False
        while True:
            self.forward_output()
            if not ended and (self._folder / traces.ENDED).exists():
                ended, pause_s, next_poll_at = True, TICK_S, 0.0
            if time.monotonic() >= next_poll_at:
                answered, entry = self._poll()
                if answered and (entry is None or entry.over):
                    return entry
                if self._changed(entry):
                    pause_s = FIRST_POLL_S
                next_poll_at = time.monotonic() + pause_s
                pause_s = min(MAX_POLL_S, pause_s * POLL_GROWTH)
            time.sleep(TICK_S)

    def forward_output(self) -> None:
        """Pass on the first rank's new output."""
        for tail in self._tails:
            tail.forward()

    def _poll(self) -> tuple[bool, QueueEntry | None]:
        """Return whether Slurm answered, and the job's entry if there is one."""
        try:
            entries = query_queue(self._rental.name)
        except MachineCannot as error:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since > MAX_SILENCE_S:
                raise
            self._report_progress("waits", f"cannot be asked after: {error}".rstrip("."))
            return False, None
        self._silent_since = None
        return True, entries[0] if entries else None

    def _changed(self, entry: QueueEntry | None) -> bool:
        """Report a change of the queue entry; return whether there was one."""
        if entry is None:
            return False
        if entry.waiting:
            never = queue.NEVER_STARTS_REASONS.get(entry.reason)
            if never is not None:
                raise MachineCannot(f"Slurm would never start the job: {never} ({entry.reason}).")
            return self._report_progress("waits", f"waits: {queue.wait_reason(entry.reason)}")
        if entry.state == "RUNNING" and not self._nodes:
            self._nodes = expand_hostnames(entry.nodes)
        where = ", ".join(self._nodes)
        texts = {"RUNNING": f"runs on {where}", "COMPLETING": "is ending"}
        return self._report_progress("runs", texts.get(entry.state, f"is {entry.state}"))

    def _report_progress(self, state: Literal["waits", "runs"], what: str) -> bool:
        progress = JobProgress(state=state, what=f"Slurm job {self._rental.number} {what}", nodes=self._nodes)
        if progress == self._last_progress:
            return False
        self._last_progress = progress
        self._watcher.progress(progress)
        return True


class LogTail:
    """Passes on a file that another process writes, as it grows."""

    def __init__(self, path: Path, take: Callable[[bytes], None]) -> None:
        self._path = path
        self._take = take
        self._at = 0

    def forward(self) -> None:
        """Pass on what is new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        if data:
            self._at += len(data)
            self._take(data)


def query_queue(name: str, conf: str | None = None, *, by_task: bool = False) -> tuple[QueueEntry, ...]:
    """Return the queue entries of a job name, with ended jobs for as long as Slurm remembers them.

    An array's tasks in the same state share one entry, unless ``by_task`` is set.

    Raises:
        MachineCannot: Slurm did not answer.
    """
    array_option = ["--array"] if by_task else []
    result = run_command(
        *("squeue", "--noheader", "--states=all", *array_option),
        *(f"--name={name}", f"--format={queue.JOB_FORMAT}"),
        conf=conf,
    )
    if result.code != 0:
        raise MachineCannot(f"Slurm's queue cannot be read: {result.reason}.")
    return queue.parse_queue(result.out)


def expand_hostnames(nodes: str) -> tuple[str, ...]:
    """Return the nodes of a list such as ``n[1-2]``."""
    if not nodes:
        return ()
    result = run_command("scontrol", "show", "hostnames", nodes)
    return tuple(result.out.split()) if result.code == 0 else (nodes,)


NO_ANSWER_ERRORS = ("timed out", "Unable to contact", "Zero Bytes", "no answer")
_BAD_OPTIONS = ("unrecognized option", "invalid option", "ambiguous", "Invalid --", "requires an argument")


def create_lease(job: Job, what: str) -> Lease:
    """Write a lease to cancel everything with the job's name, before it is submitted."""
    return leases.take_lease(
        "slurm",
        f"{what} {job.name}",
        "assay.hosts.slurm.batch_job:cancel_job",
        {"name": job.name, "conf": os.environ.get("SLURM_CONF")},
        lease_id=job.id,
    )


def submit_job(job: Job, options: list[str], script: Path, lease: Lease) -> str:
    """Submit a job and return its number; where no answer came, look it up in the queue by its name."""
    result = run_command("sbatch", "--parsable", *options, str(script))
    if result.code == 0:
        return result.out.strip().partition(";")[0]
    if any(text in result.err for text in NO_ANSWER_ERRORS):
        entries = query_queue(job.name)
        if entries:
            return entries[0].number.partition("_")[0]
        raise MachineCannot(f"Slurm did not answer: {result.reason}.")
    leases.discard_lease(lease)
    if any(text in result.err for text in _BAD_OPTIONS):
        raise BadInput(f"sbatch cannot read its options: {result.reason}.")
    raise MachineCannot(f"Slurm refuses the job: {result.reason}.{partitions_up_text()}")


def list_offers() -> tuple[Offer, ...]:
    """Return the partitions that are up."""
    result = run_command("sinfo", "--noheader", f"--format={queue.PARTITION_FORMAT}")
    if result.code != 0:
        raise MachineCannot(f"Slurm does not answer: {result.reason}.")
    return queue.parse_offers(result.out)


def partitions_up_text() -> str:
    """Return a sentence with the partitions that are up; an empty string where Slurm does not answer."""
    try:
        names = dict.fromkeys(offer.name for offer in list_offers())
    except MachineCannot:
        return ""
    return f" Partitions that are up: {', '.join(names)}." if names else ""


GONE_TIMEOUT_S = 90.0
"""Slurm asks a job to stop, waits half a minute by default, and kills it."""

APPEAR_TIMEOUT_S = 2.0
"""A job submitted just before its submitter died may not be in the queue yet."""

CANCEL_INTERVAL_S = 10.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0


def cancel_job(name: str, conf: str | None) -> None:
    """Cancel the jobs of a name and wait until they are gone; idempotent, and safe if none was ever created.

    Raises:
        MachineCannot: A job is still there, or Slurm does not answer.
    """
    started_at = time.monotonic()
    cancelled_at_s: float | None = None
    pause_s, ever_seen = _FIRST_PAUSE_S, False
    while True:
        entries = query_queue(name, conf)
        left = [entry for entry in entries if not entry.over]
        ever_seen = ever_seen or bool(entries)
        elapsed_s = time.monotonic() - started_at
        if not left and (ever_seen or elapsed_s >= APPEAR_TIMEOUT_S):
            return
        if elapsed_s > GONE_TIMEOUT_S:
            states = ", ".join(f"{entry.number} ({entry.state})" for entry in left)
            raise MachineCannot(f"Slurm's job {states} is still there after {GONE_TIMEOUT_S:.0f} s.")
        if left and (cancelled_at_s is None or elapsed_s - cancelled_at_s > CANCEL_INTERVAL_S):
            cancelled_at_s = elapsed_s
            run_command(
                "scancel", *dict.fromkeys(entry.number.partition("_")[0] for entry in left), conf=conf
            )  # arrays are cancelled whole
        time.sleep(pause_s)
        pause_s = min(_MAX_PAUSE_S, pause_s * 1.5)
