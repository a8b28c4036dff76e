"""How long the history's verb for regressions takes over a thousand series of a year, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from assay.store.history.database import VARIABLE, HistoryDatabase, file_location
from benchmarks.history import Runs, imported

RUNS, TRIES = 365, 3
VERB = ("history", "regressions")
AS_IT_SHOULD = (0, 1)
"""Exit codes with which the verb may end: nothing became slower, or something did."""


def timed() -> dict[str, Any]:
    """Return seconds and peak memory of each try over a thousand stable series, one run a day."""
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        file = folder / "history.sqlite"
        made = imported(HistoryDatabase.open(file_location(file)), Runs("one quantity"), RUNS, folder / "runs")
        tries = [_once(file, folder) for _ in range(TRIES)]
    return {
        "points": sum(int(batch[1]) for batch in made),
        "cores": len(os.sched_getaffinity(0)),
        "tries": tries,
    }


def _once(file: Path, folder: Path) -> dict[str, float]:
    """Return what one process took: seconds, those of CPU, MiB at the most, and its exit code."""
    begun = time.monotonic()
    with (folder / "said").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "assay", *VERB, "--origin", "all", "--json"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, VARIABLE: str(file), "ASSAY_HOME": str(folder / "home")},
        )
        _, status, used = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in AS_IT_SHOULD:
        raise RuntimeError(f"the verb ended with status {code}: {(folder / 'said').read_text()[-500:]}")
    return {
        "took_s": round(time.monotonic() - begun, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "most_mib": round(used.ru_maxrss / 1024),
        "code": code,
    }
