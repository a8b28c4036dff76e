"""What a timeline comes to: kernels by the time they took, and how long nothing ran."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Params, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.monitor.kernels.rows import Kernel


class ByName(Value):
    """All kernels of one name; counters are means weighted by time, over those that have them."""

    name: str
    count: int
    total_us: float
    mean_us: float
    share: float = Field(description="Of the time of all of them.")
    sm_efficiency_percent: float | None = None
    achieved_occupancy_percent: float | None = None
    dram_utilisation_percent: float | None = None


class Extent(Value):
    """From the first start to the last end: how long, and how much of it nothing ran; null where nothing did."""

    span_s: float | None = None
    busy_s: float | None = Field(default=None, description="Something ran; what ran at once counts once.")
    idle_share: float | None = None


class CountersRead(Value):
    """Which counters were read, by whom and with which command; or why none were, and what mends that."""

    by: str | None = None
    version: str | None = None
    command: str | None = None
    kernels: int = Field(default=0, description="That were counted.")
    matched: int = Field(default=0, description="Rows that have counters.")
    missing: tuple[str, ...] = Field(default=(), description="Metrics that this chip or this version does not have.")
    refused: str | None = None
    mend: str | None = None


class TraceSummary(Value):
    """The content of ``summary.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    workload: str
    params: Params
    device: str
    gpu: str | None = Field(default=None, description="Its name.")
    gpu_uuid: str | None = None
    calls: int
    warmup: int
    rows: int
    rows_are: str
    clock_error_us: float | None = Field(
        default=None, description="The rows' starts lie on the host's monotonic clock to within this."
    )
    extent: Extent
    by_name: tuple[ByName, ...]
    counters: CountersRead
    notes: tuple[str, ...] = ()
    origin: Origin = "real"


def by_name(kernels: Sequence[Kernel]) -> tuple[ByName, ...]:
    """Return the kernels of each name together, the ones that took most time first."""
    groups: defaultdict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.name].append(kernel)
    whole_us = sum(kernel.duration_us for kernel in kernels)
    kernel_groups = [_together(name, group, whole_us) for name, group in groups.items()]
    return tuple(sorted(kernel_groups, key=lambda group: -group.total_us))


def _together(name: str, group: Sequence[Kernel], whole_us: float) -> ByName:
    total_us = sum(kernel.duration_us for kernel in group)
    return ByName(
        name=name,
        count=len(group),
        total_us=total_us,
        mean_us=total_us / len(group),
        share=total_us / whole_us if whole_us > 0 else 0.0,
        sm_efficiency_percent=_mean(group, "sm_efficiency_percent"),
        achieved_occupancy_percent=_mean(group, "achieved_occupancy_percent"),
        dram_utilisation_percent=_mean(group, "dram_utilisation_percent"),
    )


def _mean(group: Sequence[Kernel], column: str) -> float | None:
    weighted = [(getattr(k, column), k.duration_us) for k in group if getattr(k, column) is not None]
    weight = sum(duration for _, duration in weighted)
    return sum(value * duration for value, duration in weighted) / weight if weight > 0 else None


def extent(kernels: Sequence[Kernel]) -> Extent:
    """Return from when to when something ran, and for how long of it nothing did."""
    if not kernels:
        return Extent()
    spans = sorted((kernel.start_s, kernel.end_s) for kernel in kernels)
    busy_s, until = 0.0, spans[0][0]
    for start, end in spans:
        busy_s += max(0.0, end - max(start, until))
        until = max(until, end)
    span_s = until - spans[0][0]
    return Extent(span_s=span_s, busy_s=busy_s, idle_share=1 - busy_s / span_s if span_s > 0 else None)
