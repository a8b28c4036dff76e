"""What the jobs that measured have left: a folder for each kind of GPU.

    results-L4/results.json     of ``assay threshold run --output``; missing where nothing was measured
    results-L4/exit-code        of it
    results-L4/rentals.jsonl    the journal of what was rented, for the cost

A single file of results is taken, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from assay.core.errors import AssayError, BadInput
from assay.github.grammar import NAMES
from assay.github.results import checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from assay.experiments.threshold.spec import Wanted
    from assay.github.results import Measured

RESULTS, EXIT_CODE, RENTALS = "results.json", "exit-code", "rentals.jsonl"
FOLDER = "results-"
CODES = {
    0: "done",
    1: "a gate said no",
    2: "what was asked for makes no sense",
    3: "this account cannot have it measured: credentials, capacity, budget, or a GPU on which it cannot work",
    4: "stopped early, or some of it failed",
}
"""What Assay's exit codes mean."""


@dataclass(frozen=True)
class Spent:
    """What a machine cost, in dollars; null where that is not known."""

    provider: str
    gpu: str | None
    quoted_usd: float | None
    billed_usd: float | None


@dataclass(frozen=True)
class Job:
    """What one job left.

    Attributes:
        gpu: The kind that was asked for; null for a file that somebody gave.
        measured: Its results; null where there are none that can be used.
        why: Why there are none, as a clause; null where there are.
    """

    gpu: str | None
    measured: Measured | None
    why: str | None
    spent: tuple[Spent, ...] = field(default=())

    @property
    def title(self) -> str:
        """What it is about, in a word: the GPU that answered, or the one that was asked for."""
        return self.measured.device if self.measured else self.gpu or "results"


def gather(paths: Iterable[Path], thresholds: Sequence[Wanted], expected: Sequence[str] = ()) -> list[Job]:
    """Return what is there, and that nothing is of ``expected`` kinds of which nothing is there.

    Raises:
        BadInput: A path leads to nothing.
    """
    jobs: list[Job] = []
    for path in paths:
        if path.is_dir():
            jobs += [_job(folder, thresholds) for folder in _folders(path)]
        elif path.is_file():
            jobs.append(_of_file(None, path, None, thresholds))
        elif not expected:
            raise BadInput(f"{path} does not exist.")
    present = {job.gpu for job in jobs}
    missing = [Job(name, None, "its job left nothing") for name in expected if name not in present]
    return [*jobs, *missing]


def _folders(path: Path) -> list[Path]:
    """Return the folders of jobs in a folder, or the folder itself where it is one."""
    if (path / RESULTS).exists() or (path / EXIT_CODE).exists():
        return [path]
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and folder.name.startswith(FOLDER))


def _job(folder: Path, thresholds: Sequence[Wanted]) -> Job:
    name = folder.name.removeprefix(FOLDER)
    gpu = name if name in NAMES else None
    code = _exit_code(folder / EXIT_CODE)
    costs = _spent(folder / RENTALS)
    if not (folder / RESULTS).is_file():
        return Job(gpu, None, _without_results(code), costs)
    job = _of_file(gpu, folder / RESULTS, code, thresholds)
    return Job(gpu, job.measured, job.why, costs)


def _of_file(gpu: str | None, file: Path, code: int | None, thresholds: Sequence[Wanted]) -> Job:
    try:
        return Job(gpu, checked(file, thresholds), None)
    except AssayError as error:
        if gpu is None and code is None:
            raise
        return Job(gpu, None, f"its results fail their check: {str(error).replace(str(file), RESULTS).rstrip('.')}")


def _exit_code(file: Path) -> int | None:
    if not file.is_file() or file.stat().st_size > 8:
        return None
    text = file.read_text(encoding="ascii", errors="replace").strip()
    return int(text) if re.fullmatch(r"\d{1,3}", text) else None


def _without_results(code: int | None) -> str:
    if code is None:
        return "nothing was measured, and its job did not tell why"
    return f"nothing was measured: {CODES.get(code, 'it failed')} (exit code {code})"


def _spent(journal: Path) -> tuple[Spent, ...]:
    from assay.hosts.rented.book import Book

    if not journal.is_file() or journal.stat().st_size > 2**20:
        return ()
    now = datetime.now(UTC)
    try:
        rentals = Book(journal).rentals()
    except BadInput:
        return ()
    return tuple(
        Spent(rental.provider, rental.gpu, rental.quoted_usd(now) if rental.released_at else None, rental.billed_usd)
        for rental in rentals
        if rental.machines
    )
