"""The Slurm host: one batch job per job, found and cancelled by its name.

How it ended is read from the queue and from the files that its nodes and ranks left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from assay.core import leases
from assay.core.errors import EXIT_STOPPED, BadInput, MachineCannot, StopRequested
from assay.core.files import replace_atomically, translate_os_errors
from assay.core.format import format_duration
from assay.hosts import run_job
from assay.hosts.base import NAME_PREFIX, JobEnd, JobProgress, Offer, Rental
from assay.hosts.slurm.commands import (
    JOB_FORMAT,
    NEVER_STARTS_REASONS,
    NODE_FORMAT,
    QueueEntry,
    expand_hostnames,
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
    from assay.core.leases import Lease
    from assay.hosts.base import Job, JobWatcher, Offer
    from assay.hosts.run_job import RankRecord


TICK_S = 0.1
"""Polling interval for the job's own files, which costs nobody else anything."""

FIRST_POLL_S, MAX_POLL_S, POLL_GROWTH = 0.2, 10.0, 1.4
"""Polling interval of the queue: short at first and after a change, then growing, as all users share the
controller."""

MAX_SILENCE_S = 600.0


class QueuePoll:
    """Polls the queue for the entries of one job name; Slurm may be silent for a while."""

    def __init__(self, name: str, *, by_task: bool = False) -> None:
        self._name, self._by_task = name, by_task
        self._silent_since: float | None = None
        self.error = ""
        """Why the last poll was not answered."""

    def poll(self) -> tuple[QueueEntry, ...] | None:
        """Return the entries; null when Slurm does not answer.

        Raises:
            MachineCannot: Slurm has not answered for `MAX_SILENCE_S`.
        """
        try:
            entries = query_queue(self._name, by_task=self._by_task)
        except MachineCannot as error:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now - self._silent_since > MAX_SILENCE_S:
                raise
            self.error = str(error).rstrip(".")
            return None
        self._silent_since = None
        return entries


class JobWatch:
    """Watches one job."""

    def __init__(self, rental: Rental, folder: Path, watcher: JobWatcher) -> None:
        self._number = rental.number
        self._folder = folder
        self._watcher = watcher
        self._queue = QueuePoll(rental.name)
        self._last_progress: JobProgress | None = None
        self.nodes: tuple[str, ...] = ()
        """The nodes allocated to the job."""

        self._outputs = {folder / "ranks/0.out": watcher.out, folder / "ranks/0.err": watcher.err}
        self._read_bytes = dict.fromkeys(self._outputs, 0)

    def wait(self) -> QueueEntry | None:
        """Wait until the job is over; return its last entry in the queue, null when Slurm no longer knows it."""
        pause_s, next_poll_at = FIRST_POLL_S, 0.0
        ended = False
        while True:
            self.forward_output()
            if not ended and (self._folder / run_job.ENDED).exists():
                ended, pause_s, next_poll_at = True, TICK_S, 0.0
            if time.monotonic() >= next_poll_at:
                entries = self._queue.poll()
                entry = entries[0] if entries else None
                if entries is None:
                    self._report_progress("waits", f"cannot be queried: {self._queue.error}")
                elif entry is None or entry.over:
                    return entry
                elif self._report_entry(entry):
                    pause_s = FIRST_POLL_S
                next_poll_at = time.monotonic() + pause_s
                pause_s = min(MAX_POLL_S, pause_s * POLL_GROWTH)
            time.sleep(TICK_S)

    def forward_output(self) -> None:
        """Pass on the first rank's new output."""
        for path, take in self._outputs.items():
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(self._read_bytes[path])
                if data := file.read():
                    self._read_bytes[path] += len(data)
                    take(data)

    def _report_entry(self, entry: QueueEntry) -> bool:
        """Report a change of the queue entry; return whether there was one."""
        if entry.waiting:
            never = NEVER_STARTS_REASONS.get(entry.reason)
            if never is not None:
                raise MachineCannot(f"Slurm would never start the job: {never} ({entry.reason}).")
            return self._report_progress("waits", f"waits: {wait_reason(entry.reason)}")
        if entry.state == "RUNNING" and not self.nodes:
            self.nodes = expand_hostnames(entry.nodes) or (entry.nodes,)
        texts = {"RUNNING": f"runs on {', '.join(self.nodes)}", "COMPLETING": "is ending"}
        return self._report_progress("runs", texts.get(entry.state, f"is {entry.state}"))

    def _report_progress(self, state: Literal["waits", "runs"], what: str) -> bool:
        progress = JobProgress(state=state, what=f"Slurm job {self._number} {what}", nodes=self.nodes)
        if progress == self._last_progress:
            return False
        self._last_progress = progress
        self._watcher.progress(progress)
        return True


def query_queue(name: str | None, conf: str | None = None, *, by_task: bool = False) -> tuple[QueueEntry, ...]:
    """Return the queue entries of a job name, with ended jobs for as long as Slurm remembers them.

    An array's tasks in the same state share one entry, unless ``by_task`` is set. Without a name: this user's jobs that
    have not ended.

    Raises:
        MachineCannot: Slurm did not answer.
    """
    options = ["--me"] if name is None else ["--states=all", f"--name={name}", *(["--array"] if by_task else [])]
    result = run_command("squeue", "--noheader", *options, f"--format={JOB_FORMAT}", conf=conf)
    if result.code != 0:
        raise MachineCannot(f"Slurm's queue cannot be read: {result.reason}.")
    return parse_queue(result.out)


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
            numbers = dict.fromkeys(entry.number.partition("_")[0] for entry in left)  # arrays are cancelled whole
            run_command("scancel", *numbers, conf=conf)
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
        return JobEnd(exit_code=EXIT_STOPPED, reason="Slurm no longer knows the job, and it left no result")
    if entry.state not in {"COMPLETED", "FAILED"}:
        return JobEnd(exit_code=EXIT_STOPPED, reason=_ended_by_slurm_reason(entry, job_traces, job))
    if code is None:
        return _end_without_exit_code(job_traces, job)
    return JobEnd(exit_code=code, reason=_root_cause(job_traces) if code == EXIT_STOPPED else None)


def _ended_by_slurm_reason(entry: QueueEntry, job_traces: JobTraces, job: Job) -> str:
    """Return why Slurm ended a job."""
    if entry.state == "TIMEOUT":
        limit = f" of {format_duration(job.limit_s)} (--time)" if job.limit_s else ""
        return f"Slurm ended the job at its time limit{limit}"
    if entry.state in {"NODE_FAIL", "BOOT_FAIL"}:
        named = [f"node {name} failed ({why})" for name, why in job_traces.failed_nodes.items()]
        named = named or [f"node {name} failed" for name in nodes_reported_failed(job_traces.log)]
        one_of = f"one of its nodes ({', '.join(job_traces.nodes)}) failed"
        return f"Slurm ended the job because {' and '.join(named) or one_of}"
    if entry.state == "OUT_OF_MEMORY":
        return "Slurm ended the job because it used more memory than it was given"
    if entry.state == "CANCELLED":
        return "somebody else cancelled the job"
    return f"Slurm ended the job: {entry.state} ({entry.reason})"


def _end_without_exit_code(job_traces: JobTraces, job: Job) -> JobEnd:
    """Return how far a job got whose first rank left no exit code."""
    lines = [line.strip() for line in job_traces.log.splitlines() if line.strip()]
    program_lines = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]
    last = (program_lines or lines or [""])[-1]
    suffix = f": {last}" if last else ""
    if not job_traces.begun:
        shared = f"; is {job.folder} on a file system that the nodes share?"
        reason = f"the job ended before anything ran on its nodes{suffix or shared}"
        return JobEnd(exit_code=MachineCannot.exit_code, reason=reason)
    if job_traces.ranks:
        reason = _root_cause(job_traces) or f"the ranks gave no answer{suffix}"
        return JobEnd(exit_code=EXIT_STOPPED, reason=reason)
    absent = [node for node in job_traces.nodes if not job_traces.begun.get(node)]
    if 0 < len(absent) < len(job_traces.nodes):
        nodes = f"node{'' if len(absent) == 1 else 's'} {', '.join(absent)}"
        return JobEnd(exit_code=EXIT_STOPPED, reason=f"{nodes} never joined the others{suffix}")
    first = first_failed_node(job_traces.log)
    where = f"node {first}" if first else "the nodes"
    reason = f"{job.python} could not start Assay on {where}{suffix}"
    return JobEnd(exit_code=MachineCannot.exit_code, reason=reason)


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
    states = ""
    if nodes:
        options = ("--noheader", "--Node", f"--nodes={','.join(nodes)}", f"--format={NODE_FORMAT}")
        states = run_command("sinfo", *options).out
    return JobTraces(
        nodes=nodes,
        begun=run_job.read_nodes(folder),
        ranks=ranks,
        words={number: run_job.last_line(folder / "ranks" / f"{number}.err") for number in ranks},
        failed_nodes=parse_failed_nodes(states),
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
        except BaseException as error:
            leases.release_lease(lease)
            if isinstance(error, StopRequested):  # the job may have been in the queue already
                raise StopRequested(f"{error}; Slurm job {job.name} is gone") from None
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
        nodes = watch.nodes or (expand_hostnames(entry.nodes) if entry is not None and entry.nodes else ())
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
        ours = [entry for entry in query_queue(None) if entry.name.startswith(NAME_PREFIX)]
        return tuple(Rental(host=self.name, name=entry.name, number=entry.number, state=entry.state) for entry in ours)


HOST = SlurmHost()
