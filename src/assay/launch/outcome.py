"""What came of a trial, before it is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.core.results import Disturbance, Evidence, GpuMoment, Settled, Status, Tuning


@dataclass(frozen=True)
class RawSeries:
    """Every sample of one quantity from one worker, as the float64 bytes it sent."""

    role: str
    rank: int
    subject: int
    restart: int
    quantity: str
    calls_per_sample: int
    start_ns: int
    end_ns: int
    data: bytes


@dataclass
class Outcome:
    """A trial's samples, tunings and evidence, or why there are none; traces by their place in the run folder."""

    start_ns: int
    end_ns: int
    started_at: str
    status: Status = "ok"
    reason: str | None = None
    senseless: bool = False
    stderr_tail: str | None = None
    series: list[RawSeries] = field(default_factory=list)
    tunings: list[Tuning] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    traces: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    disturbance: Disturbance | None = None
    gpus_before: tuple[GpuMoment, ...] = ()
    gpus_after: tuple[GpuMoment, ...] = ()
    settled: Settled | None = None
