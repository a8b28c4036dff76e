"""The GPU's own activity record (CUPTI, through PyTorch's profiler), split into calls by stamps.

It separates kernels, so it measures ``busy_us`` where a call launches several. It has a small overhead: a traced kernel
that writes much takes up to 2 % longer (measured on an H200).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import MachineCannot, TrialFailed
from assay.timing.sampling import SampleBatch, Samples

if TYPE_CHECKING:
    from assay.timing.cuda.device import GpuTimingDevice
    from assay.timing.cuda.timers import GpuCallBatch
    from assay.timing.sampling import Call

TRACE_GATE_NS = 500_000_000
_BEGIN, _END = "assay_begin", "assay_end"


@dataclass(frozen=True)
class GpuActivity:
    """One GPU activity: a kernel, a copy or a fill."""

    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class TracedCall:
    """The GPU activity of one call: busy time, span, and kernel names."""

    busy_us: float
    span_us: float
    names: tuple[str, ...]


def split_calls(activities: list[GpuActivity]) -> list[TracedCall]:
    """Return the calls between stamps, in order; activity outside belongs to no call."""
    calls: list[TracedCall] = []
    current: list[GpuActivity] | None = None
    for activity in sorted(activities, key=lambda a: a.start_ns):
        if _BEGIN in activity.name:
            current = []
        elif _END in activity.name:
            if current:
                calls.append(_summarize_call(current))
            current = None
        elif current is not None:
            current.append(activity)
    return calls


def _summarize_call(activities: list[GpuActivity]) -> TracedCall:
    last = max(a.start_ns + a.duration_ns for a in activities)
    return TracedCall(
        busy_us=sum(a.duration_ns for a in activities) / 1000,
        span_us=(last - activities[0].start_ns) / 1000,
        names=tuple(a.name for a in activities),
    )


class TraceTimer:
    """Calls launched behind a gate under the profiler; each batch launches them again."""

    method = "trace"
    primary = "busy_us"
    calls_per_sample = 1

    def __init__(self, device: GpuTimingDevice, work: GpuCallBatch) -> None:
        self._device = device
        self._work = work
        self.names: tuple[str, ...] = ()

    def take(self) -> SampleBatch:
        """Trace the calls and return how long each kept the GPU busy."""
        calls = self.trace()
        stamps = self._device.slots.read(self._work.calls)
        busy, span = (np.array([getattr(c, name) for c in calls], dtype=np.float64) for name in ("busy_us", "span_us"))
        quantities: dict[str, Samples] = {"busy_us": busy, "span_us": span}
        mhz = stamps.mhz
        if mhz is not None:
            quantities["cycles"] = busy * mhz
        return SampleBatch(quantities, mhz)

    def trace(self) -> list[TracedCall]:
        """Return the GPU activity of each call of a batch."""
        activities = record_activities(self._device, self._put, self._work.limit_s, gated=not self._work.waits)
        calls = split_calls(activities)
        if len(calls) != self._work.calls:
            raise TrialFailed(
                f"The activity trace shows {len(calls)} of {self._work.calls} calls; is another profiler on?"
            )
        self.names = calls[0].names
        return calls

    def _put(self) -> None:
        device, work = self._device, self._work
        if work.state == "warm":
            work.prepare()
            work.call()
        for slot in range(work.calls):
            work.prepare()
            device.make_ready(work.state)
            device.slots.begin[slot](device.handle)
            work.call()
            device.slots.end[slot](device.handle)
        device.slots.fetch()

    def replan(self) -> bool:
        """Return false: every call is a sample of its own."""
        return False

    def close(self) -> None:
        """Do nothing: nothing is held."""


def record_activities(device: GpuTimingDevice, body: Call, limit_s: float, *, gated: bool) -> list[GpuActivity]:
    """Return the GPU's activity while ``body`` runs, launched as a whole behind a gate, or immediately."""
    from torch.autograd.profiler import profile

    device.wait(limit_s)
    try:
        with profile(use_device="cuda", use_kineto=True) as profiler:
            gate = device.gate.closed(device.handle, TRACE_GATE_NS) if gated else contextlib.nullcontext()
            with device.torch.cuda.stream(device.stream), gate:
                body()
            device.wait(limit_s)
    except RuntimeError as error:
        raise MachineCannot(f"PyTorch's profiler cannot trace here: {' '.join(str(error).split())[:200]}") from error
    return [_read_activity(event) for event in profiler.kineto_results.events() if "CUDA" in str(event.device_type())]


def _read_activity(event: Any) -> GpuActivity:
    return GpuActivity(str(event.name()), int(event.start_ns()), int(event.duration_ns()))
