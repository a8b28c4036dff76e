"""The job that measures an untrusted commit: its code is uploaded to the rented machine, and none of it runs here.

    trusted/    this Assay, and the thresholds of the repository's own branch: what is compared, and what is written
    subject/    the commit, as files; its thresholds are replaced by the trusted ones, so that they name no local file
    out/        what the other jobs read

A link in the commit could lead to any file of this machine, and would be uploaded: a commit with one is refused.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.files import read_text, replace_atomically, translate_os_errors
from assay.core.values import Value
from assay.github.results import EXIT_CODE_FILE, RENTALS_FILE, RESULTS_FILE

if TYPE_CHECKING:
    from pathlib import Path

REPORT_FILE, RUNS_FOLDER = "report.md", "runs"
VERSION_FILE = "src/assay/_version.py"
"""A commit that contains this file is one of Assay itself."""


class MeasureJob(Value):
    """How one kind of GPU is measured."""

    gpu: str
    on: str = "auto"
    max_cost_usd: float = Field(default=1.0, gt=0)
    limit: str = "30m"


def prepare_commit(subject: Path, thresholds: str | None, trusted: Path | None) -> None:
    """Prepare a commit's files for the upload.

    ``thresholds`` is a path within the commit; it is replaced by the ``trusted`` file.

    Raises:
        BadInput: The files contain a link, or are missing.
    """
    if not subject.is_dir():
        raise BadInput(f"{subject} is no folder: the commit that is to be measured was not checked out.")
    for path in sorted(subject.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            name = path.relative_to(subject)
            raise BadInput(f"{name} of the commit is a link, which could lead anywhere: it is not sent.")
    if thresholds is None or trusted is None:
        return
    target = subject / thresholds
    if subject.resolve() not in target.resolve().parents:
        raise BadInput(f"{thresholds} is not within the commit.")
    text = read_text(trusted)
    with translate_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(target, text.encode())


def threshold_command(job: MeasureJob, thresholds: str | None, out: Path) -> list[str]:
    """Return the command line that measures."""
    cost_args = [] if job.on.startswith("ssh:") else ["--max-cost", f"{job.max_cost_usd:g}"]
    host_args = ["--on", job.on, "--gpu-type", job.gpu, *cost_args, "--time", job.limit]
    paths = {"--output": RESULTS_FILE, "--report": REPORT_FILE, "--output-dir": RUNS_FOLDER}
    output_args = [word for option, name in paths.items() for word in (option, str(out / name))]
    return ["threshold", "run", *([thresholds] if thresholds else []), *host_args, *output_args]


def write_exit(out: Path, code: int, journal: Path) -> None:
    """Write the exit code and the journal of rentals beside the results."""
    replace_atomically(out / EXIT_CODE_FILE, f"{code}\n".encode())
    if journal.is_file():
        with translate_os_errors(out):
            shutil.copyfile(journal, out / RENTALS_FILE)


def is_assay(subject: Path) -> bool:
    """Return whether a commit is one of Assay itself, so that its own code is measured."""
    return (subject / VERSION_FILE).is_file()


def prepare_output(out: Path) -> Path:
    """Return the output folder as an absolute path, created if missing.

    Raises:
        BadInput: It is not empty.
    """
    with translate_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise BadInput(f"{out} is not empty: results of one job would be taken for those of another.")
    return out.resolve()
