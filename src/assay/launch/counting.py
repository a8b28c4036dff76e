"""Run ncu around the calls of a trace: asleep until it has ended, and ended with all it started when it takes too long.

Counters come from a run of their own: ncu runs kernel after kernel alone, each as often as its counters need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core import leases
from assay.core.durable import friendly_os_errors
from assay.core.processes import marks
from assay.core.units import format_span
from assay.launch import profilers
from assay.launch.once import TICK_S, our_environment
from assay.machine import tools
from assay.monitor.kernels.ncu import (
    METRICS,
    OLDEST,
    Refusal,
    read_counters,
    refusal_of,
    too_old,
    unknown_metrics,
    version_of,
)
from assay.worker.wish import Begins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.launch.once import Watcher
    from assay.launch.profilers import Calls
    from assay.monitor.kernels.ncu import Counted

TRIES = 3
"""At most so many runs: after one in which metrics were unknown, the next does without them."""
VERSION_WITHIN_S = 20.0


@dataclass(frozen=True)
class Counting:
    """What came of it: kernels with their counters, or why there are none."""

    counted: Sequence[Counted] = ()
    refusal: Refusal | None = None
    version: str | None = None
    command: str | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Ran:
    code: int | None
    """Null: it took too long and was ended."""
    text: str


def count(calls: Calls, folder: Path, *, timeout_s: float, watcher: Watcher, root: Path = Path("/")) -> Counting:
    """Have ncu read the counters of every kernel of the calls; what it prints stays in the folder.

    ``root`` is where the distribution is looked up, for how to install what is missing.
    """
    watcher.begins(Begins(phase="counting", name=calls.workload, within_s=timeout_s))
    if shutil.which("ncu") is None:
        return Counting(refusal=Refusal(reason="ncu (Nsight Compute) is not on the path", mend=_install(root)))
    runs = _Runs(calls, folder, watcher)
    version = version_of(runs.run(("ncu", "--version"), VERSION_WITHIN_S).text)
    if version is not None and too_old(version):
        oldest = ".".join(map(str, OLDEST))
        reason = f"this ncu is too old: it is of {version}, and {oldest} is the first that will do"
        return Counting(refusal=Refusal(reason=reason, mend="install a newer Nsight Compute"), version=version)
    return _counted(runs, timeout_s, version)


def _counted(runs: _Runs, timeout_s: float, version: str | None) -> Counting:
    """Run ncu, and again without the metrics that it does not know."""
    metrics, result = METRICS, Counting()
    for _ in range(TRIES):
        argv = profilers.counters(runs.calls, metrics, log=str(runs.log))
        missing = tuple(metric for metric in METRICS if metric not in metrics)
        ran = runs.run(argv, timeout_s)
        counted = read_counters(ran.text)
        refusal = None if any(kernel.metrics for kernel in counted) else _why(ran, timeout_s)
        result = Counting(counted, refusal, version, profilers.typed(runs.calls, argv), missing)
        unknown = unknown_metrics(ran.text, metrics) if refusal is not None else set()
        if not unknown or unknown == set(metrics):
            break
        metrics = tuple(metric for metric in metrics if metric not in unknown)
    return result


def _why(ran: _Ran, timeout_s: float) -> Refusal:
    if ran.code is None:
        reason = f"ncu had not ended after {format_span(timeout_s)}, and was ended"
        return Refusal(reason=reason, mend="give it more time with --timeout, or fewer kernels with --calls")
    return refusal_of(ran.text, ran.code)


@dataclass(frozen=True)
class _Runs:
    """Runs commands to their ends, what they print going into the folder, and leaves nothing of them behind."""

    calls: Calls
    folder: Path
    watcher: Watcher

    @property
    def log(self) -> Path:
        """Where ncu writes; what the calls print goes elsewhere."""
        return self.folder / "ncu.log"

    def run(self, argv: Sequence[str], timeout_s: float) -> _Ran:
        printed, token = self.folder / "ncu.out", leases.new_id()
        self.log.unlink(missing_ok=True)
        variables = {**our_environment(), **self.calls.environment, "LC_NUMERIC": "C", **marks(token)}
        with (
            friendly_os_errors(printed),
            printed.open("wb") as output,
            leases.held("process", "ncu around calls", "assay.core.processes:kill_marked", {"token": token}),
        ):
            try:
                process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables, start_new_session=True
                )
            except OSError as error:
                return _Ran(127, f"==ERROR== {error.strerror or error}")
            code = self._ended(process, timeout_s)
        process.wait()
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in (self.log, printed) if path.exists()]
        return _Ran(code, "\n".join(texts))

    def _ended(self, process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                return process.wait(min(TICK_S, left_s))
            except subprocess.TimeoutExpired:
                self.watcher.tick()
        return None


def _install(root: Path) -> str:
    """Return how ncu is installed here."""
    tool = next(tool for tool in tools.TOOLS if tool.name == "ncu")
    command = tools.install_command(tool, tools.distribution(root), root_user=os.geteuid() == 0)
    return command or "install Nsight Compute, which comes with the CUDA toolkit"
