"""The GPU's own record of what it did (CUPTI, through PyTorch's profiler), split into calls by stamps.

It tells kernels apart, so it gives ``busy_us`` where a call launches several. It is in the way a little: a traced
kernel that writes much takes up to 2 % longer (seen on an H200).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import MachineCannot, TrialFailed
from assay.timing.instrument import Batch, Samples

if TYPE_CHECKING:
    from assay.timing.cuda.bench import Bench
    from assay.timing.cuda.work import Work
    from assay.timing.instrument import Call

GATE_MOST_NS = 500_000_000
_BEGIN, _END = "assay_begin", "assay_end"


@dataclass(frozen=True)
class Activity:
    """One thing the GPU did: a kernel, a copy or a fill."""

    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Traced:
    """What one call did on the GPU: how long, from when to when, and with which kernels."""

    busy_us: float
    span_us: float
    names: tuple[str, ...]


def split(activities: list[Activity]) -> list[Traced]:
    """Return the calls between stamps, in order; whatever lies outside is not a call's."""
    calls: list[Traced] = []
    inside: list[Activity] | None = None
    for activity in sorted(activities, key=lambda a: a.start_ns):
        if _BEGIN in activity.name:
            inside = []
        elif _END in activity.name:
            if inside:
                calls.append(_traced(inside))
            inside = None
        elif inside is not None:
            inside.append(activity)
    return calls


def _traced(activities: list[Activity]) -> Traced:
    last = max(a.start_ns + a.duration_ns for a in activities)
    return Traced(
        busy_us=sum(a.duration_ns for a in activities) / 1000,
        span_us=(last - activities[0].start_ns) / 1000,
        names=tuple(a.name for a in activities),
    )


class TraceClock:
    """Calls launched behind a gate under the profiler; each batch launches them again."""

    method = "trace"
    primary = "busy_us"
    calls_per_sample = 1

    def __init__(self, bench: Bench, work: Work) -> None:
        self._bench = bench
        self._work = work
        self.names: tuple[str, ...] = ()

    def take(self) -> Batch:
        """Trace the calls and return how long each kept the GPU busy."""
        calls = self.trace()
        stamps = self._bench.slots.read(self._work.calls)
        busy, span = (np.array([getattr(c, name) for c in calls], dtype=np.float64) for name in ("busy_us", "span_us"))
        quantities: dict[str, Samples] = {"busy_us": busy, "span_us": span}
        mhz = stamps.mhz
        if mhz is not None:
            quantities["cycles"] = busy * mhz
        return Batch(quantities, mhz)

    def trace(self) -> list[Traced]:
        """Return what each call of a batch did."""
        activities = record(self._bench, self._put, self._work.limit_s, gated=not self._work.waits)
        calls = split(activities)
        if len(calls) != self._work.calls:
            raise TrialFailed(
                f"The activity trace shows {len(calls)} of {self._work.calls} calls; is another profiler on?"
            )
        self.names = calls[0].names
        return calls

    def _put(self) -> None:
        device, work = self._bench, self._work
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
        """Every call is a sample of its own."""
        return False

    def close(self) -> None:
        """Nothing is held."""


def record(bench: Bench, body: Call, limit_s: float, *, gated: bool) -> list[Activity]:
    """Return what the GPU did in a body, launched as a whole behind a gate, or as it comes."""
    from torch.autograd.profiler import profile

    bench.wait(limit_s)
    try:
        with profile(use_device="cuda", use_kineto=True) as profiler:
            gate = bench.gate.closed(bench.handle, GATE_MOST_NS) if gated else contextlib.nullcontext()
            with bench.torch.cuda.stream(bench.stream), gate:
                body()
            bench.wait(limit_s)
    except RuntimeError as error:
        raise MachineCannot(f"PyTorch's profiler cannot trace here: {' '.join(str(error).split())[:200]}") from error
    return [_activity(event) for event in profiler.kineto_results.events() if "CUDA" in str(event.device_type())]


def _activity(event: Any) -> Activity:
    return Activity(str(event.name()), int(event.start_ns()), int(event.duration_ns()))
