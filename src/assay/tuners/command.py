"""Any command as a tuner: it writes what it found to a file that we name, in the form of the older analyser."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.tuners.older import read_found
from assay.workloads.command import SCRATCH, ended

if TYPE_CHECKING:
    from assay.tuners.base import Found, Job

PLACE = "{output}"
OUTPUT = "ASSAY_OUTPUT"
"""Names the file too, for a command whose words cannot."""


def tune(job: Job) -> Found:
    """Run the command to its end and read what it wrote; it does not outlive us, however we end."""
    if job.tuner.command is None:
        raise BadInput("the tuner is to be a command, and none is given")
    with tempfile.TemporaryDirectory(prefix="tuner-", dir=os.environ.get(SCRATCH)) as folder:
        output = Path(folder) / "found.json"
        status = _run([word.replace(PLACE, str(output)) for word in job.tuner.command.argv], output)
        if status != 0:
            raise TrialFailed(f"the tuner's command {ended(status)}")
        if not output.exists():
            raise TrialFailed(f"the tuner's command wrote no file to {PLACE} or ${OUTPUT}")
        return read_found(output.read_text(encoding="utf-8", errors="replace"))


def _run(argv: list[str], output: Path) -> int:
    """Run a command, what it prints going where ours goes; return how it ended."""
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env={**os.environ, OUTPUT: str(output)})
    except OSError as error:
        raise MachineCannot(f"the tuner's command {argv[0]!r} cannot be started: {error.strerror}") from None
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # its time is over
            process.kill()
            process.wait()
