"""The job that measures a stranger's commit: its code is sent to the rented machine, and nothing of it runs here.

    trusted/    this Assay, and the thresholds of the repository's own branch: what is compared, and what is written
    subject/    the commit, as files; its thresholds are replaced by the trusted ones, so that they name no file of ours
    out/        what the other jobs read

A link in the commit could lead to any file of this machine, and would be sent along: a commit with one is refused.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.durable import friendly_os_errors, read_text, replace_atomically
from assay.core.errors import BadInput
from assay.core.values import Value
from assay.github.gathered import EXIT_CODE, RENTALS, RESULTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPORT, RUNS = "report.md", "runs"
PACKAGE = "src/assay/_version.py"
"""Where a commit has it, the commit is one of Assay itself."""


class Job(Value):
    """How one kind of GPU is measured."""

    gpu: str
    on: str = "auto"
    max_cost_usd: float = Field(default=1.0, gt=0)
    limit: str = "30m"


def prepare(subject: Path, thresholds: str | None, trusted: Path | None) -> None:
    """Make a commit's files ready to be sent.

    ``thresholds`` is a path within the commit, in whose place the ``trusted`` file is put.

    Raises:
        BadInput: A link is among them, or they are not there.
    """
    if not subject.is_dir():
        raise BadInput(f"{subject} is no folder: the commit that is to be measured was not checked out.")
    for link in links(subject):
        raise BadInput(
            f"{link.relative_to(subject)} of the commit is a link, which could lead anywhere: it is not sent."
        )
    if thresholds is None or trusted is None:
        return
    target = subject / thresholds
    if subject.resolve() not in target.resolve().parents:
        raise BadInput(f"{thresholds} is not within the commit.")
    text = read_text(trusted)
    with friendly_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(target, text.encode())


def links(folder: Path) -> Iterator[Path]:
    """Give what is neither a plain file nor a folder, git's own aside."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            yield path


def words(job: Job, thresholds: str | None, out: Path) -> list[str]:
    """Return the command line that measures."""
    named = [thresholds] if thresholds else []
    cost = [] if job.on.startswith("ssh:") else ["--max-cost", f"{job.max_cost_usd:g}"]
    where = ["--on", job.on, "--gpu-type", job.gpu, *cost, "--time", job.limit]
    files = ["--output", str(out / RESULTS), "--report", str(out / REPORT), "--output-dir", str(out / RUNS)]
    return ["threshold", "run", *named, *where, *files]


def leave(out: Path, code: int, journal: Path) -> None:
    """Leave the exit code and the journal of what was rented beside the results."""
    replace_atomically(out / EXIT_CODE, f"{code}\n".encode())
    if journal.is_file():
        with friendly_os_errors(out):
            shutil.copyfile(journal, out / RENTALS)


def is_assay(subject: Path) -> bool:
    """Return whether a commit is one of Assay itself, whose own code is then what is measured."""
    return (subject / PACKAGE).is_file()


def fresh(out: Path) -> Path:
    """Return the folder for what is left, made if missing, absolute.

    Raises:
        BadInput: Something is in it already.
    """
    with friendly_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise BadInput(f"{out} is not empty: results of one job would be taken for those of another.")
    return out.resolve()
