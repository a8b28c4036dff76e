"""Run Assay as one rank of a job that was submitted from elsewhere.

Its output and exit code go into the job's folder.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.processes import ignore_signals
from assay.hosts.run_job import FOLDER_VARIABLE, RankRecord, write_rank

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the command line and leave its exit code."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    rank = RankRecord(
        rank=int(os.environ.get("RANK", "0")), node=os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    )
    for descriptor, name in ((1, "out"), (2, "err")):
        sys.stdout.flush()
        file = os.open(folder / "ranks" / f"{rank.rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, descriptor)
        os.close(file)
    write_rank(folder, rank)
    from assay.cli.main import main as command_line

    code = command_line(arguments)
    ignore_signals()
    write_rank(folder, rank.model_copy(update={"exit_code": code}))
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
