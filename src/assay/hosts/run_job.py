"""Run a job on a host and release its machine whatever happens.

And the files that the job's ranks and nodes leave in its folder, from which the submitter learns how it went.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.errors import BadInput, EndedEarly, StopRequested
from assay.core.files import append_line, read_json, read_lines, replace_atomically
from assay.core.guardian import Guardian
from assay.core.signals import stop_on_signals
from assay.core.values import Value

if TYPE_CHECKING:
    from assay.hosts.base import Host, Job, JobEnd, JobWatcher, Rental


def run_job(host: Host, job: Job, watcher: JobWatcher) -> tuple[JobEnd, tuple[Path, ...]]:
    """Return how an order ended and the run folders it left, with the loan seen gone.

    Raises:
        MachineCannot: The host refuses, or does not answer.
        EndedEarly: Time or money ran out; the loan is gone all the same.
        StopRequested: A signal came; likewise.
    """
    with stop_on_signals(), Guardian():
        rental = host.create(job)
        try:
            ended = host.run(rental, job, watcher)
            folders = host.collect(rental, job)
        except (StopRequested, EndedEarly) as stopped:
            _release_after(stopped, host, rental)
            raise type(stopped)(f"{stopped}; {rental.name} ({rental.host} {rental.number}) is gone") from None
        except BaseException as error:
            _release_after(error, host, rental)
            raise
        host.release(rental)
    return ended, folders


def _release_after(error: BaseException, host: Host, rental: Rental) -> None:
    """Give a loan back after an error; a failure to do so replaces it, for it is what costs."""
    try:
        host.release(rental)
    except Exception as failure:
        raise failure from error


FOLDER_VARIABLE = "ASSAY_ORDER_FOLDER"
ENDED = "ended"
ORDER = "order.json"
LOG = "job.log"
SCRIPT = "job.sh"
TAIL_BYTES = 4000


class RankRecord(Value):
    """One process of Assay over there; ``exit_code`` is null until it has ended by itself."""

    rank: int
    node: str
    exit_code: int | None = None


def make_job_folder(folder: Path) -> None:
    """Make an order's folder."""
    for part in ("nodes", "ranks"):
        (folder / part).mkdir(parents=True, exist_ok=True)


def write_rank(folder: Path, rank: RankRecord) -> None:
    """Say that a rank has begun, or how it has ended."""
    replace_atomically(folder / "ranks" / f"{rank.rank}.json", rank.model_dump_json().encode())


def read_ranks(folder: Path) -> dict[int, RankRecord]:
    """Return the ranks that have begun; what is just being written counts at the next look."""
    by_rank: dict[int, RankRecord] = {}
    for path in (folder / "ranks").glob("*.json"):
        try:
            rank = RankRecord.model_validate(read_json(path))
        except (BadInput, ValidationError):
            continue
        by_rank[rank.rank] = rank
    return dict(sorted(by_rank.items()))


def read_nodes(folder: Path) -> dict[str, bool]:
    """Return the nodes that have begun, and whether each was ready to join the others."""
    return {path.name: path.stat().st_size > 0 for path in (folder / "nodes").glob("*")}


def record_run(path: Path) -> None:
    """Say which folder this process measures into, where it was ordered from elsewhere."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        append_line(Path(folder) / "run", str(path))


def recorded_run(folder: Path) -> Path | None:
    """Return the run folder that an order measures into; null when it has not come so far."""
    lines = read_lines(folder / "run")
    return Path(lines[0]) if lines else None


def read_tail(path: Path) -> str:
    """Return the end of a file as text; nothing when it is not there."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace").strip()
    except OSError:
        return ""


def last_line(path: Path) -> str:
    """Return the last line of a file that says anything."""
    lines = [line.strip() for line in read_tail(path).splitlines() if line.strip()]
    return lines[-1] if lines else ""
