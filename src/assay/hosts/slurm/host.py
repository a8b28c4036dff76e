"""The Slurm host: one batch job per job, found and cancelled by its name.

How it ended is read from the queue and from the files that its nodes and ranks left.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from assay.core import leases
from assay.core.errors import EXIT_STOPPED, BadInput, EndedEarly, MachineCannot, StopRequested
from assay.core.files import replace_atomically, translate_os_errors
from assay.core.format import format_duration
from assay.hosts import run_job
from assay.hosts.base import NAME_PREFIX, JobEnd, JobProgress, Offer, Rental
from assay.hosts.slurm.commands import (
    JOB_FORMAT,
    NEVER_STARTS_REASONS,
    NODE_FORMAT,
    QueueEntry,
    first_failed_node,
    list_offers,
    nodes_reported_failed,
    parse_failed_nodes,
    parse_queue,
    partitions_up_text,
    run_command,
    too_many_nodes_reason,
    wait_reason,
)
from assay.hosts.slurm.script import batch_script, sbatch_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.leases import Lease
    from assay.hosts.base import Job, JobWatcher, Offer
    from assay.hosts.run_job import RankRecord


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
            if not ended and (self._folder / run_job.ENDED).exists():
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
            never = NEVER_STARTS_REASONS.get(entry.reason)
            if never is not None:
                raise MachineCannot(f"Slurm would never start the job: {never} ({entry.reason}).")
            return self._report_progress("waits", f"waits: {wait_reason(entry.reason)}")
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
        *(f"--name={name}", f"--format={JOB_FORMAT}"),
        conf=conf,
    )
    if result.code != 0:
        raise MachineCannot(f"Slurm's queue cannot be read: {result.reason}.")
    return parse_queue(result.out)


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
        "assay.hosts.slurm.host:cancel_job",
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


@dataclass(frozen=True)
class JobTraces:
    """Traces of a job: its nodes, which of them started and were ready to join, its ranks and their last messages."""

    nodes: tuple[str, ...] = ()
    begun: dict[str, bool] = field(default_factory=dict)
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    words: dict[int, str] = field(default_factory=dict)
    failed_nodes: dict[str, str] = field(default_factory=dict)
    log: str = ""


def job_outcome(entry: QueueEntry | None, job_traces: JobTraces, job: Job) -> JobEnd:
    """Return the exit code and, where the remote Assay could not report it, the reason."""
    first = job_traces.ranks.get(0)
    code = None if first is None else first.exit_code
    if code == 0:
        return JobEnd(exit_code=0)
    if entry is None:
        return _job_end(EndedEarly, "Slurm no longer knows the job, and it left no result")
    if entry.state not in {"COMPLETED", "FAILED"}:
        return _job_end(EndedEarly, _ended_by_slurm_reason(entry, job_traces, job))
    if code is None:
        return _end_without_exit_code(job_traces, job)
    return JobEnd(exit_code=code, reason=_root_cause(job_traces) if code == EXIT_STOPPED else None)


def _job_end(kind: type[EndedEarly | MachineCannot], reason: str) -> JobEnd:
    return JobEnd(exit_code=kind.exit_code, reason=reason)


def _ended_by_slurm_reason(entry: QueueEntry, job_traces: JobTraces, job: Job) -> str:
    """Return why Slurm ended a job."""
    if entry.state == "TIMEOUT":
        limit = f" of {format_duration(job.limit_s)} (--time)" if job.limit_s else ""
        return f"Slurm ended the job at its time limit{limit}"
    if entry.state in {"NODE_FAIL", "BOOT_FAIL"}:
        return f"Slurm ended the job because {_failed_nodes_text(job_traces)}"
    if entry.state == "OUT_OF_MEMORY":
        return "Slurm ended the job because it used more memory than it was given"
    if entry.state == "CANCELLED":
        return "somebody else cancelled the job"
    return f"Slurm ended the job: {entry.state} ({entry.reason})"


def _failed_nodes_text(job_traces: JobTraces) -> str:
    named = [f"node {name} failed ({why})" for name, why in job_traces.failed_nodes.items()]
    named = named or [f"node {name} failed" for name in nodes_reported_failed(job_traces.log)]
    return " and ".join(named) or f"one of its nodes ({', '.join(job_traces.nodes)}) failed"


def _end_without_exit_code(job_traces: JobTraces, job: Job) -> JobEnd:
    """Return how far a job got whose first rank left no exit code."""
    last = _last_line(job_traces.log)
    suffix = f": {last}" if last else ""
    if not job_traces.begun:
        shared = f"; is {job.folder} on a file system that the nodes share?"
        return _job_end(MachineCannot, f"the job ended before anything ran on its nodes{suffix or shared}")
    if job_traces.ranks:
        return _job_end(EndedEarly, _root_cause(job_traces) or f"the ranks gave no answer{suffix}")
    absent = [node for node in job_traces.nodes if not job_traces.begun.get(node)]
    if 0 < len(absent) < len(job_traces.nodes):
        return _job_end(EndedEarly, f"{_join_nodes(absent)} never joined the others{suffix}")
    first = first_failed_node(job_traces.log)
    where = f"node {first}" if first else "the nodes"
    return _job_end(MachineCannot, f"{job.python} could not start Assay on {where}{suffix}")


def _root_cause(job_traces: JobTraces) -> str | None:
    """Return the rank that stopped the others: one that reported an error, else one that died."""
    failed = {number: rank for number, rank in job_traces.ranks.items() if rank.exit_code not in {None, 0, 4}}
    dead = {number: rank for number, rank in job_traces.ranks.items() if rank.exit_code is None}
    for number, rank in (*failed.items(), *dead.items()):
        where = f"rank {number} on node {rank.node}"
        if rank.exit_code is None:
            return f"{where} died without an answer"
        message = job_traces.words.get(number, "").removeprefix("assay: ")
        return f"{where} ended with exit code {rank.exit_code}{f': {message}' if message else ''}"
    return None


def _join_nodes(nodes: list[str]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(nodes)}"


def _last_line(log: str) -> str:
    """Return the last line of a log that is not from Slurm itself, if there is one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    program_lines = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]
    return (program_lines or lines or [""])[-1]


SHARED_FILES_TIMEOUT_S = 5.0
"""A node's writes may take a moment to become visible on a shared file system."""


def wait_for_files(entry: QueueEntry | None, folder: Path) -> None:
    """Wait until a shared file system shows the exit code of a job that ended by itself."""
    deadline = time.monotonic() + SHARED_FILES_TIMEOUT_S
    while entry is not None and entry.state == "COMPLETED" and time.monotonic() < deadline:
        first = run_job.read_ranks(folder).get(0)
        if first is not None and first.exit_code is not None:
            return
        time.sleep(0.1)


def collect_traces(folder: Path, nodes: tuple[str, ...], log: Path) -> JobTraces:
    """Return what a job's nodes and ranks left in its folder, and which of its nodes are out of order."""
    ranks = run_job.read_ranks(folder)
    failed = {}
    if nodes:
        result = run_command("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", f"--format={NODE_FORMAT}")
        failed = parse_failed_nodes(result.out)
    return JobTraces(
        nodes=nodes,
        begun=run_job.read_nodes(folder),
        ranks=ranks,
        words={number: run_job.last_line(folder / "ranks" / f"{number}.err") for number in ranks},
        failed_nodes=failed,
        log=run_job.read_tail(log),
    )


COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")


class SlurmHost:
    """A Slurm cluster whose commands are installed here."""

    name = "slurm"
    options = frozenset({"nodes", "nproc", "partition", "account", "time", "gres", "gpus_per_node", "sbatch_args"})

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def available(self) -> str | None:
        """Return why Slurm cannot be used from here; null when it can."""
        missing = [name for name in COMMANDS if shutil.which(name) is None]
        return f"Slurm's commands are not installed ({', '.join(missing)})" if missing else None

    def offers(self) -> tuple[Offer, ...]:
        """Return the partitions that are up."""
        return list_offers()

    def script(self, job: Job) -> str:
        """Return the batch script."""
        return batch_script(job)

    def create(self, job: Job) -> Rental:
        """Submit the job, its lease written first."""
        missing = too_many_nodes_reason(job.nodes, job.host_place, self.offers())
        if missing is not None:
            raise MachineCannot(f"Slurm would never start the job: {missing}.")
        script = Path(job.folder) / run_job.SCRIPT
        with translate_os_errors(script):
            run_job.make_job_folder(script.parent)
            replace_atomically(script, batch_script(job).encode())
        lease = create_lease(job, "Slurm job")
        try:
            number = submit_job(job, sbatch_options(job), script, lease)
        except StopRequested as stopped:  # the job may have been in the queue already
            leases.release_lease(lease)
            raise StopRequested(f"{stopped}; Slurm job {job.name} is gone") from None
        except BaseException:
            leases.release_lease(lease)
            raise
        self._leases[job.name] = lease
        return Rental(host=self.name, name=job.name, number=number, state="PENDING")

    def run(self, rental: Rental, job: Job, watcher: JobWatcher) -> JobEnd:
        """Wait for the job's end, passing on the output of its first rank."""
        folder = Path(job.folder)
        watch = JobWatch(rental, folder, watcher)
        entry = watch.wait()
        wait_for_files(entry, folder)
        watch.forward_output()
        nodes = watch.nodes or (expand_hostnames(entry.nodes) if entry is not None else ())
        return job_outcome(entry, collect_traces(folder, nodes, folder / run_job.LOG), job)

    def collect(self, rental: Rental, job: Job) -> tuple[Path, ...]:
        """Return the run folder, which is here already: the nodes share our file system."""
        run = run_job.recorded_run(Path(job.folder))
        if run is None:
            return ()
        if not (run / "plan.json").is_file():
            raise MachineCannot(f"The run is in {run} on the nodes, and that is not to be seen here; is it shared?")
        return (run,)

    def release(self, rental: Rental) -> None:
        """Cancel the job if it is still there, and confirm that it is gone."""
        lease = self._leases.pop(rental.name, None)
        if lease is None:
            cancel_job(rental.name, os.environ.get("SLURM_CONF"))
        else:
            leases.release_lease(lease)

    def list_ours(self) -> tuple[Rental, ...]:
        """Return this user's jobs that have a name of ours and have not ended."""
        result = run_command("squeue", "--noheader", "--me", f"--format={JOB_FORMAT}")
        if result.code != 0:
            raise MachineCannot(f"Slurm's queue cannot be read: {result.reason}.")
        ours = [entry for entry in parse_queue(result.out) if entry.name.startswith(NAME_PREFIX)]
        return tuple(Rental(host=self.name, name=entry.name, number=entry.number, state=entry.state) for entry in ours)


HOST = SlurmHost()
