"""What the sensors did over the run, in one pass over the recording and in little memory.

watts      of each GPU over the whole run, and closely around one trial, where an average of a second and an instant
           value can be told apart
MHz, °C    clocks over the seconds of that trial, and over temperatures while the base was timed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.monitor.lines import GpuSample, Header
from assay.monitor.quantities import POWERS
from assay.monitor.thinning import Thinned

if TYPE_CHECKING:
    from assay.core.results import Record
    from assay.experiments.power.characterize.placing import Placed
    from assay.store.records import Records

CLOSE_LINES = (*POWERS, "sm_mhz", "temperature_c")
Span = tuple[int, int]


@dataclass
class Course:
    """Lines that grow; times are in s since ``zero_ns``, those of the close view since its beginning."""

    zero_ns: int
    close: Span
    busy: dict[int, list[Span]]
    watts: dict[int, Thinned] = field(default_factory=dict)
    close_lines: dict[tuple[int, str], Thinned] = field(default_factory=dict)
    clocks: dict[int, dict[int, list[float]]] = field(default_factory=dict)
    interval_s: float | None = None
    gpus: int = 0

    def read(self, records: Records) -> Course:
        """Take all that was recorded."""
        for line in records.watched():
            if isinstance(line, Header):
                self.interval_s, self.gpus = line.interval_s, len(line.gpus)
            elif isinstance(line, GpuSample):
                self._add(line)
        return self

    def _add(self, look: GpuSample) -> None:
        power_w = next((value for name in POWERS if (value := getattr(look, name)) is not None), None)
        if power_w is not None:
            self.watts.setdefault(look.gpu, Thinned()).add((look.t_ns - self.zero_ns) / 1e9, power_w)
        if self.close[0] <= look.t_ns <= self.close[1]:
            for name in CLOSE_LINES:
                value = getattr(look, name)
                if value is not None:
                    at_s = (look.t_ns - self.close[0]) / 1e9
                    self.close_lines.setdefault((look.gpu, name), Thinned()).add(at_s, float(value))
        if look.temperature_c is not None and look.sm_mhz is not None and self._is_busy(look):
            self.clocks.setdefault(look.gpu, {}).setdefault(look.temperature_c, []).append(float(look.sm_mhz))

    def _is_busy(self, look: GpuSample) -> bool:
        return any(start_ns <= look.t_ns <= end_ns for start_ns, end_ns in self.busy.get(look.gpu, ()))

    def clock_by_heat(self, gpu: int) -> list[tuple[int, float, float, float]]:
        """Return for each degree the median clock and its quartiles, the coolest first."""
        rows = []
        for degree, clocks in sorted(self.clocks.get(gpu, {}).items()):
            middle, low, high = np.quantile(clocks, [0.5, 0.25, 0.75])
            rows.append((degree, float(middle), float(low), float(high)))
        return rows


def course_of(records: Records, pairs: list[tuple[Placed, Record]], shown: Record | None) -> Course:
    """Return the course of a run: ``pairs`` are the trials whose clocks count, ``shown`` is looked at closely."""
    busy: dict[int, list[Span]] = {}
    for where, record in pairs:
        for series in record.series:
            if series.role in where.base and series.role.startswith("cuda:") and "/" not in series.role:
                span = (series.start_ns, series.end_ns)
                busy.setdefault(int(series.role.removeprefix("cuda:")), []).append(span)
    distinct = {gpu: sorted(set(spans)) for gpu, spans in busy.items()}
    zero_ns = min((record.window.start_ns for record in records), default=0)
    close = (shown.window.start_ns, shown.window.end_ns) if shown is not None else (0, -1)
    return Course(zero_ns, close, distinct).read(records)
