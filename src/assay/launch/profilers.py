"""Ready command lines: the same calls in a plain process, with ncu or nsys around it."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.values import Value
from assay.monitor.kernels.ncu import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_KERNELS = 1000
"""Counted at most: each is run again for every group of counters, and ncu prints only when all are done."""


class Calls(Value):
    """Calls of a workload, as a plain process makes them."""

    workload: str = Field(description="As the command line names it: softmax@torch, file.py:function.")
    params: dict[str, str] = Field(default_factory=dict, description="As they were given.")
    device: str
    calls: int
    warmup: int
    seed: int = 0
    visible: str | None = Field(default=None, description="The UUID of the one GPU that it may see.")

    @property
    def environment(self) -> dict[str, str]:
        """What must stand in the process's environment: which GPU it sees."""
        return {} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible}

    @property
    def argv(self) -> tuple[str, ...]:
        """The process itself."""
        params = [word for name, value in self.params.items() for word in ("--param", f"{name}={value}")]
        counts = ("--device", self.device, "--calls", str(self.calls), "--warmup", str(self.warmup))
        seed = ("--seed", str(self.seed)) if self.seed else ()
        return (sys.executable, "-P", "-m", "assay.worker.calls", self.workload, *params, *counts, *seed)


def counters(calls: Calls, metrics: Sequence[str] = METRICS, *, log: str | None = None) -> tuple[str, ...]:
    """Return ncu's command line for the counters of a trace; the clocks stay as they are, and so do the caches."""
    return (
        "ncu",
        "--csv",
        *("--page", "raw"),
        *("--print-units", "base"),
        *("--print-kernel-base", "demangled"),
        *("--profile-from-start", "off"),
        *("--target-processes", "all"),
        *("--clock-control", "none"),
        *("--cache-control", "none"),
        *("--launch-count", str(MOST_KERNELS)),
        *("--metrics", ",".join(metrics)),
        *(("--log-file", log) if log is not None else ()),
        *calls.argv,
    )


def report(calls: Calls) -> tuple[str, ...]:
    """Return ncu's command line for all it can say of the first kernels, to be opened in its own window."""
    return (
        *("ncu", "--set", "full", "--profile-from-start", "off", "--target-processes", "all"),
        *("--clock-control", "none", "--launch-count", "20", "--export", "trace.ncu-rep", "--force-overwrite"),
        *calls.argv,
    )


def timeline(calls: Calls) -> tuple[str, ...]:
    """Return nsys's command line for the timeline of the calls."""
    return (
        *("nsys", "profile", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
        *("--trace=cuda,nvtx,cublas,cudnn", "--output=trace", "--force-overwrite=true"),
        *calls.argv,
    )


GPU_TRACE = ("nsys", "stats", "--report", "cuda_gpu_trace", "--format", "csv", "--output", "-", "trace.nsys-rep")
"""What nvprof --print-gpu-trace --csv printed, from the timeline."""


def ready_made(calls: Calls) -> dict[str, str]:
    """Return command lines to be typed, by what they are for; on a CPU only the calls themselves."""
    if not calls.device.startswith("cuda"):
        return {"the calls alone": typed(calls, calls.argv)}
    return {
        "counters of each kernel, as CSV (ncu)": typed(calls, counters(calls)),
        "a full report for ncu-ui (ncu)": typed(calls, report(calls)),
        "a timeline for nsys-ui (nsys)": typed(calls, timeline(calls)),
        "that timeline as a table (nsys)": shlex.join(GPU_TRACE),
        "the calls alone": typed(calls, calls.argv),
    }


def typed(calls: Calls, argv: Sequence[str]) -> str:
    """Return a command line as it is typed into a shell, its environment in front."""
    before = ["env", *(f"{name}={value}" for name, value in calls.environment.items())] if calls.environment else []
    return shlex.join([*before, *argv])
