"""Watch a job to its end: what the queue says, now and then, and what its first rank prints, as it comes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from assay.core.errors import MachineCannot
from assay.hosts import traces
from assay.hosts.base import Progress
from assay.hosts.slurm import queue
from assay.hosts.slurm.commands import ask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from assay.hosts.base import Loan, Watcher
    from assay.hosts.slurm.queue import Job

TICK_S = 0.1
"""Between two looks at the order's own files, which nobody else pays for."""

FIRST_LOOKS_S, LONGEST_S, GROWTH = 0.2, 10.0, 1.4
"""Between two looks at the queue: often at first and when something has changed, then ever rarer, as the controller
serves everybody."""

SILENT_AT_MOST_S = 600.0


class Watch:
    """One job on its way."""

    def __init__(self, loan: Loan, folder: Path, watcher: Watcher) -> None:
        self._loan = loan
        self._folder = folder
        self._watcher = watcher
        self._told: Progress | None = None
        self._nodes: tuple[str, ...] = ()
        self._silent_since: float | None = None
        self._tails = (
            Tail(folder / "ranks/0.out", watcher.out),
            Tail(folder / "ranks/0.err", watcher.err),
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the job was given."""
        return self._nodes

    def to_the_end(self) -> Job | None:
        """Wait until the job is over; return its last line in the queue, null when Slurm no longer knows it."""
        pause_s, next_look = FIRST_LOOKS_S, 0.0
        ended = False
        while True:
            self.pass_on()
            if not ended and (self._folder / traces.ENDED).exists():
                ended, pause_s, next_look = True, TICK_S, 0.0
            if time.monotonic() >= next_look:
                answered, entry = self._look()
                if answered and (entry is None or entry.over):
                    return entry
                if self._changed(entry):
                    pause_s = FIRST_LOOKS_S
                next_look = time.monotonic() + pause_s
                pause_s = min(LONGEST_S, pause_s * GROWTH)
            time.sleep(TICK_S)

    def pass_on(self) -> None:
        """Hand on what the first rank has printed since."""
        for tail in self._tails:
            tail.pass_on()

    def _look(self) -> tuple[bool, Job | None]:
        """Return whether Slurm answered, and the job if it knows it."""
        try:
            entries = look(self._loan.name)
        except MachineCannot as silence:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since > SILENT_AT_MOST_S:
                raise
            self._tell("waits", f"cannot be asked after: {silence}".rstrip("."))
            return False, None
        self._silent_since = None
        return True, entries[0] if entries else None

    def _changed(self, job: Job | None) -> bool:
        """Tell what has changed in the queue, if anything has."""
        if job is None:
            return False
        if job.waiting:
            never = queue.NEVER.get(job.reason)
            if never is not None:
                raise MachineCannot(f"Slurm would never start the job: {never} ({job.reason}).")
            return self._tell("waits", f"waits: {queue.why_waiting(job.reason)}")
        if job.state == "RUNNING" and not self._nodes:
            self._nodes = hostnames(job.nodes)
        where = ", ".join(self._nodes)
        words = {"RUNNING": f"runs on {where}", "COMPLETING": "is ending"}
        return self._tell("runs", words.get(job.state, f"is {job.state}"))

    def _tell(self, state: Literal["waits", "runs"], what: str) -> bool:
        progress = Progress(state=state, what=f"Slurm job {self._loan.number} {what}", nodes=self._nodes)
        if progress == self._told:
            return False
        self._told = progress
        self._watcher.progress(progress)
        return True


class Tail:
    """A file that another process writes, handed on as it grows."""

    def __init__(self, path: Path, take: Callable[[bytes], None]) -> None:
        self._path = path
        self._take = take
        self._at = 0

    def pass_on(self) -> None:
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


def look(name: str, conf: str | None = None, *, by_task: bool = False) -> tuple[Job, ...]:
    """Return the jobs of a name, those that have ended too, as long as Slurm remembers them.

    Tasks of an array that are alike stand in one line, unless each is asked for.

    Raises:
        MachineCannot: Slurm did not answer.
    """
    how = ["--array"] if by_task else []
    result = ask(
        "squeue", "--noheader", "--states=all", *how, f"--name={name}", f"--format={queue.JOB_FORMAT}", conf=conf
    )
    if result.code != 0:
        raise MachineCannot(f"Slurm's queue cannot be read: {result.why}.")
    return queue.jobs(result.out)


def hostnames(nodes: str) -> tuple[str, ...]:
    """Return each node of a list as ``n[1-2]``."""
    if not nodes:
        return ()
    result = ask("scontrol", "show", "hostnames", nodes)
    return tuple(result.out.split()) if result.code == 0 else (nodes,)
