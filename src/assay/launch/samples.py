"""Samples as workers send them, and as they are kept: one series for each quantity of a worker."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from assay.launch.outcome import RawSeries
from assay.timing.lanes import START_US

if TYPE_CHECKING:
    from assay.launch.handle import Seat
    from assay.worker import protocol as say


def unpacked(seat: Seat, said: say.BlockDone | say.Released, payload: bytes) -> list[RawSeries]:
    """Return the samples behind a message."""
    series: list[RawSeries] = []
    offset = 0
    for header in said.series:
        end = offset + 8 * header.n
        start_ns, end_ns = header.window or (said.start_ns, said.end_ns)
        series.append(
            RawSeries(
                role=seat.role.name,
                rank=seat.rank,
                subject=header.subject,
                restart=seat.restart,
                quantity=header.quantity,
                calls_per_sample=header.calls_per_sample,
                start_ns=start_ns,
                end_ns=end_ns,
                data=payload[offset:end],
            )
        )
        offset = end
    return series


def joined(series: list[RawSeries]) -> list[RawSeries]:
    """Put the stretches of one worker's quantity together in the order they were taken; starts count from the first."""
    stretches: dict[tuple[str, int, int, int, str], list[RawSeries]] = defaultdict(list)
    for part in series:
        stretches[part.role, part.rank, part.subject, part.restart, part.quantity].append(part)
    return [
        replace(parts[0], end_ns=parts[-1].end_ns, data=b"".join(_since(parts[0].start_ns, part) for part in parts))
        for parts in stretches.values()
    ]


def _since(zero_ns: int, part: RawSeries) -> bytes:
    """Return a part's samples; where they are starts, counted from another moment."""
    later_us = (part.start_ns - zero_ns) / 1e3
    if part.quantity != START_US or later_us == 0:
        return part.data
    return array("d", [start_us + later_us for start_us in memoryview(part.data).cast("d")]).tobytes()
