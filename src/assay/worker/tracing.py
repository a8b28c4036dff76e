"""One call of each subject as PyTorch's profiler sees it, for Perfetto or Chrome."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from assay.worker import protocol as say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.plan import Subject
    from assay.workloads.base import Prepared


def traced(prepared: Sequence[Prepared], subjects: Sequence[Subject]) -> tuple[say.Traced, bytes]:
    """Call every subject once under the profiler; return the trace, or why there is none."""
    torch = sys.modules.get("torch")
    if torch is None:
        return say.Traced(reason="PyTorch, whose profiler it is, was not loaded"), b""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        for workload, name in zip(prepared, names(subjects), strict=True):
            if workload.align is not None:
                workload.align()
            with record_function(name):
                workload.call()
                workload.synchronize()
    with tempfile.TemporaryDirectory(prefix="assay-trace-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        if path.stat().st_size > say.LONGEST_PAYLOAD:
            return say.Traced(reason=f"its trace is larger than {say.LONGEST_PAYLOAD // 2**20} MiB"), b""
        return say.Traced(), path.read_bytes()


def names(subjects: Sequence[Subject]) -> list[str]:
    """Return a name for each subject: its label, with those parameters in which it differs from another."""
    differing = {
        name
        for subject in subjects
        for name in subject.params
        if len({repr(other.params.get(name)) for other in subjects}) > 1
    }
    return [
        " ".join([s.label, *(f"{name}={value}" for name, value in s.params.items() if name in differing)])
        for s in subjects
    ]
