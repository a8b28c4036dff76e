"""Run a job on a host and release its machine whatever happens.

Also the files that the job's ranks and nodes write into its folder, from which the submitter learns how it ended.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.errors import BadInput, EndedEarly, StopRequested
from assay.core.files import append_line, read_json, read_lines, replace_atomically
from assay.core.guardian import Guardian
from assay.core.processes import stop_on_signals
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.hosts.base import Host, Job, JobEnd, JobWatcher


def run_job(host: Host, job: Job, watcher: JobWatcher) -> tuple[JobEnd, tuple[Path, ...]]:
    """Return how a job ended and the run folders it left, once its machine is confirmed gone.

    Raises:
        MachineCannot: The host refuses, or does not answer.
        EndedEarly: Time or budget ran out; the machine is gone nevertheless.
        StopRequested: A signal came; likewise.
    """
    with stop_on_signals(), Guardian():
        rental = host.create(job)
        try:
            ended = host.run(rental, job, watcher)
            folders = host.collect(rental, job)
        except (StopRequested, EndedEarly) as stopped:
            release_after(stopped, lambda: host.release(rental))
            raise type(stopped)(f"{stopped}; {rental.name} ({rental.host} {rental.number}) is gone") from None
        except BaseException as error:
            release_after(error, lambda: host.release(rental))
            raise
        host.release(rental)
    return ended, folders


def release_after(error: BaseException, release: Callable[[], None]) -> None:
    """Release a machine after an error; if that fails, raise the failure instead, as it is what costs money."""
    try:
        release()
    except Exception as failure:
        raise failure from error


FOLDER_VARIABLE = "ASSAY_JOB_FOLDER"
ENDED = "ended"
JOB = "job.json"
LOG = "job.log"
SCRIPT = "job.sh"
TAIL_BYTES = 4000


class RankRecord(Value):
    """One remote process of Assay; ``exit_code`` is null until it exits by itself."""

    rank: int
    node: str
    exit_code: int | None = None


def make_job_folder(folder: Path) -> None:
    """Create a job's folder."""
    for name in ("nodes", "ranks"):
        (folder / name).mkdir(parents=True, exist_ok=True)


def write_rank(folder: Path, rank: RankRecord) -> None:
    """Record that a rank has started, or how it ended."""
    replace_atomically(folder / "ranks" / f"{rank.rank}.json", rank.model_dump_json().encode())


def read_ranks(folder: Path) -> dict[int, RankRecord]:
    """Return the ranks that have started; a file that is still being written is skipped until the next poll."""
    ranks: list[RankRecord] = []
    for path in (folder / "ranks").glob("*.json"):
        with contextlib.suppress(BadInput, ValidationError):
            ranks.append(RankRecord.model_validate(read_json(path)))
    return {rank.rank: rank for rank in sorted(ranks, key=lambda rank: rank.rank)}


def read_nodes(folder: Path) -> dict[str, bool]:
    """Return the nodes that have started, and whether each was ready to join the others."""
    return {path.name: path.stat().st_size > 0 for path in (folder / "nodes").glob("*")}


def record_run(job_folder: Path, run: Path) -> None:
    """Record the run folder of a job, for the process that submitted it."""
    append_line(job_folder / "run", str(run))


def recorded_run(folder: Path) -> Path | None:
    """Return the run folder of a job; null when it has not got that far."""
    lines = read_lines(folder / "run")
    return Path(lines[0]) if lines else None


def read_tail(path: Path) -> str:
    """Return the end of a file as text; an empty string when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace").strip()
    except OSError:
        return ""


def last_line(path: Path) -> str:
    """Return the last line of a file that is not blank."""
    lines = [line.strip() for line in read_tail(path).splitlines() if line.strip()]
    return lines[-1] if lines else ""
