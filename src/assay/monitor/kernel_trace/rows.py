"""Rows of a kernel trace: a kernel, copy or fill on a GPU; on a CPU a PyTorch operator, or a whole call."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RowKind = Literal["kernel", "copy", "fill", "operator", "call"]
Dim3 = tuple[int, int, int]


class CallSpan(Value):
    """A call in ns of the host's monotonic clock: before its mark was set, just after, and when it returned."""

    entered_ns: int
    began_ns: int
    ended_ns: int


class KernelRow(Value):
    """One row. What is unknown is null: sensors where none was read, counters where they are not permitted."""

    index: int = Field(description="In the order of their starts, from 0.")
    call: int | None = Field(default=None, description="The call that launched it, from 0.")
    kind: RowKind
    name: str
    start_s: float = Field(description="Since the first traced call began.")
    start_ns: int | None = Field(default=None, description="On the host's monotonic clock.")
    duration_us: float
    grid: Dim3 | None = None
    block: Dim3 | None = None
    registers: int | None = Field(default=None, description="Per thread.")
    shared_memory_bytes: int | None = Field(default=None, description="Per block.")
    stream: int | None = None
    correlation: int | None = Field(default=None, description="Grows from launch to launch.")
    occupancy_estimate_percent: float | None = Field(
        default=None, description="By the profiler, from registers, shared memory and the grid; nothing is measured."
    )
    copied_bytes: int | None = None

    sm_mhz: int | None = Field(default=None, description="This and the next five: of the look nearest to its middle.")
    temperature_c: int | None = None
    power_instant_w: float | None = Field(default=None, description="Of the card, as of its sensor's last tick.")
    power_usage_w: float | None = Field(default=None, description="Of a card that does not offer the instant value.")
    throttle: str | None = Field(
        default=None, description='Why the clock was not higher; "none": nothing held it back.'
    )
    sensor_offset_ms: float | None = Field(default=None, description="From its middle to that look.")

    sm_efficiency_percent: float | None = Field(default=None, description="This and the rest: in a run of their own.")
    achieved_occupancy_percent: float | None = None
    dram_utilisation_percent: float | None = None
    l2_hit_percent: float | None = None
    sysmem_read_bytes: float | None = None
    sysmem_write_bytes: float | None = None
    sysmem_utilisation_percent: float | None = Field(
        default=None, description="Of what the card's PCIe link carries one way, the busier way."
    )

    @property
    def end_s(self) -> float:
        """When the row ended, in s since the first traced call began."""
        return self.start_s + self.duration_us / 1e6


SENSOR_COLUMNS = ("sm_mhz", "temperature_c", "power_instant_w", "power_usage_w", "throttle", "sensor_offset_ms")
COUNTER_COLUMNS = (
    "sm_efficiency_percent",
    "achieved_occupancy_percent",
    "dram_utilisation_percent",
    "l2_hit_percent",
    "sysmem_read_bytes",
    "sysmem_write_bytes",
    "sysmem_utilisation_percent",
)


def calls_as_rows(spans: Sequence[CallSpan], name: str) -> list[KernelRow]:
    """Return a row for each call, by the host's clock."""
    return [
        KernelRow(
            index=number,
            call=number,
            kind="call",
            name=name,
            start_s=(span.began_ns - spans[0].began_ns) / 1e9,
            start_ns=span.began_ns,
            duration_us=(span.ended_ns - span.began_ns) / 1e3,
        )
        for number, span in enumerate(spans)
    ]


def format_csv(kernels: Iterable[KernelRow], *, origin: str) -> str:
    """Return rows as CSV with a heading; null is empty, and each row states its origin, e.g. a fake driver."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*KernelRow.model_fields, "origin"])
    for kernel in kernels:
        writer.writerow([*(_csv_cell(getattr(kernel, name)) for name in KernelRow.model_fields), origin])
    return buffer.getvalue()


def _csv_cell(value: object) -> object:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return "" if value is None else value
