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
"""Between two looks at the order's own files, which nobody else pays for."""

FIRST_POLL_S, MAX_POLL_S, POLL_GROWTH = 0.2, 10.0, 1.4
"""Between two looks at the queue: often at first and when something has changed, then ever rarer, as the controller
serves everybody."""

MAX_SILENCE_S = 600.0


class JobWatch:
    """One job on its way."""

    def __init__(self, rental: Rental, folder: Path, watcher: JobWatcher) -> None:
        self._loan = rental
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
        """The nodes that the job was given."""
        return self._nodes

    def wait(self) -> QueueEntry | None:
        """Wait until the job is over; return its last line in the queue, null when Slurm no longer knows it."""
        pause_s, next_look = FIRST_POLL_S, 0.0
        ended = False
        while True:
            self.forward_output()
            if not ended and (self._folder / traces.ENDED).exists():
                ended, pause_s, next_look = True, TICK_S, 0.0
            if time.monotonic() >= next_look:
                answered, entry = self._poll()
                if answered and (entry is None or entry.over):
                    return entry
                if self._changed(entry):
                    pause_s = FIRST_POLL_S
                next_look = time.monotonic() + pause_s
                pause_s = min(MAX_POLL_S, pause_s * POLL_GROWTH)
            time.sleep(TICK_S)

    def forward_output(self) -> None:
        """Hand on what the first rank has printed since."""
        for tail in self._tails:
            tail.forward()

    def _poll(self) -> tuple[bool, QueueEntry | None]:
        """Return whether Slurm answered, and the job if it knows it."""
        try:
            entries = query_queue(self._loan.name)
        except MachineCannot as silence:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since > MAX_SILENCE_S:
                raise
            self._report_progress("waits", f"cannot be asked after: {silence}".rstrip("."))
            return False, None
        self._silent_since = None
        return True, entries[0] if entries else None

    def _changed(self, entry: QueueEntry | None) -> bool:
        """Tell what has changed in the queue, if anything has."""
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
        words = {"RUNNING": f"runs on {where}", "COMPLETING": "is ending"}
        return self._report_progress("runs", words.get(entry.state, f"is {entry.state}"))

    def _report_progress(self, state: Literal["waits", "runs"], what: str) -> bool:
        progress = JobProgress(state=state, what=f"Slurm job {self._loan.number} {what}", nodes=self._nodes)
        if progress == self._last_progress:
            return False
        self._last_progress = progress
        self._watcher.progress(progress)
        return True


class LogTail:
    """A file that another process writes, handed on as it grows."""

    def __init__(self, path: Path, take: Callable[[bytes], None]) -> None:
        self._path = path
        self._take = take
        self._at = 0

    def forward(self) -> None:
        """Hand on what is new."""
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
    """Return the jobs of a name, those that have ended too, as long as Slurm remembers them.

    Tasks of an array that are alike stand in one line, unless each is asked for.

    Raises:
        MachineCannot: Slurm did not answer.
    """
    how = ["--array"] if by_task else []
    result = run_command(
        "squeue", "--noheader", "--states=all", *how, f"--name={name}", f"--format={queue.JOB_FORMAT}", conf=conf
    )
    if result.code != 0:
        raise MachineCannot(f"Slurm's queue cannot be read: {result.reason}.")
    return queue.parse_queue(result.out)


def expand_hostnames(nodes: str) -> tuple[str, ...]:
    """Return each node of a list as ``n[1-2]``."""
    if not nodes:
        return ()
    result = run_command("scontrol", "show", "hostnames", nodes)
    return tuple(result.out.split()) if result.code == 0 else (nodes,)


NO_ANSWER_ERRORS = ("timed out", "Unable to contact", "Zero Bytes", "no answer")
_BAD_OPTIONS = ("unrecognized option", "invalid option", "ambiguous", "Invalid --", "requires an argument")


def create_lease(job: Job, what: str) -> Lease:
    """Write down that all of an order's name is to be cancelled, before it is sent."""
    return leases.take_lease(
        "slurm",
        f"{what} {job.name}",
        "assay.hosts.slurm.batch_job:cancel_job",
        {"name": job.name, "conf": os.environ.get("SLURM_CONF")},
        lease_id=job.id,
    )


def submit_job(job: Job, options: list[str], script: Path, lease: Lease) -> str:
    """Return the job's number; where the answer never came, that of the job that is there all the same."""
    result = run_command("sbatch", "--parsable", *options, str(script))
    if result.code == 0:
        return result.out.strip().partition(";")[0]
    if any(word in result.err for word in NO_ANSWER_ERRORS):
        entries = query_queue(job.name)
        if entries:
            return entries[0].number.partition("_")[0]
        raise MachineCannot(f"Slurm did not answer: {result.reason}.")
    leases.discard_lease(lease)
    if any(word in result.err for word in _BAD_OPTIONS):
        raise BadInput(f"sbatch cannot read its options: {result.reason}.")
    raise MachineCannot(f"Slurm refuses the job: {result.reason}.{partitions_up_text()}")


def list_offers() -> tuple[Offer, ...]:
    """Return the partitions that are up."""
    result = run_command("sinfo", "--noheader", f"--format={queue.PARTITION_FORMAT}")
    if result.code != 0:
        raise MachineCannot(f"Slurm does not answer: {result.reason}.")
    return queue.parse_offers(result.out)


def partitions_up_text() -> str:
    """Name the partitions that are up in a sentence; nothing where Slurm does not say."""
    try:
        names = dict.fromkeys(offer.name for offer in list_offers())
    except MachineCannot:
        return ""
    return f" Partitions that are up: {', '.join(names)}." if names else ""


GONE_TIMEOUT_S = 90.0
"""A job is asked to end, given half a minute by default, and killed."""

APPEAR_TIMEOUT_S = 2.0
"""A job that was sent just before we died may still be on its way into the queue."""

CANCEL_INTERVAL_S = 10.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0


def cancel_job(name: str, conf: str | None) -> None:
    """Cancel the job of a name and wait until it is gone; safe to do twice, and when it never came to be.

    Raises:
        MachineCannot: It is still there, or Slurm does not answer.
    """
    begun = time.monotonic()
    asked_at: float | None = None
    pause_s, ever_seen = _FIRST_PAUSE_S, False
    while True:
        entries = query_queue(name, conf)
        left = [entry for entry in entries if not entry.over]
        ever_seen = ever_seen or bool(entries)
        lasted_s = time.monotonic() - begun
        if not left and (ever_seen or lasted_s >= APPEAR_TIMEOUT_S):
            return
        if lasted_s > GONE_TIMEOUT_S:
            states = ", ".join(f"{entry.number} ({entry.state})" for entry in left)
            raise MachineCannot(f"Slurm's job {states} is still there after {GONE_TIMEOUT_S:.0f} s.")
        if left and (asked_at is None or lasted_s - asked_at > CANCEL_INTERVAL_S):
            asked_at = lasted_s
            run_command(
                "scancel", *dict.fromkeys(entry.number.partition("_")[0] for entry in left), conf=conf
            )  # arrays whole
        time.sleep(pause_s)
        pause_s = min(_MAX_PAUSE_S, pause_s * 1.5)
