"""What is drawn of a recording: its lines over time, and when something held a clock back. One pass, little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.monitor.lines import GpuSample, Header, HostSample
from assay.monitor.quantities import source_of
from assay.monitor.thinning import Thinned

if TYPE_CHECKING:
    from assay.monitor.lines import Line

GPU_LINES = (
    "power_instant_w",
    "power_average_w",
    "power_usage_w",
    "utilisation_percent",
    "memory_utilisation_percent",
    "sm_mhz",
)
HOST_LINES = ("cpu_percent", "steal_percent")
IDLE = "idle"
"""A reason that holds nothing back."""


class Drawn:
    """Lines by source and quantity, in s since the recording began; spans in which a reason held."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], Thinned] = {}
        self.held: dict[str, list[tuple[str, float, float]]] = {}
        self._zero_ns = 0
        self._interval_s = 0.0
        self._since: dict[tuple[str, str], tuple[float, float]] = {}

    def add(self, line: Line) -> None:
        """Take a line."""
        if isinstance(line, Header):
            self._zero_ns, self._interval_s = line.t_ns, line.interval_s
        elif isinstance(line, GpuSample):
            self._sample(line, GPU_LINES)
            self._memory(line)
            self._hold(line)
        elif isinstance(line, HostSample):
            self._sample(line, HOST_LINES)
            self._memory(line)

    def _at_s(self, line: Line) -> float:
        return (line.t_ns - self._zero_ns) / 1e9

    def _sample(self, sample: GpuSample | HostSample, names: tuple[str, ...]) -> None:
        for name in names:
            value = getattr(sample, name)
            if value is not None:
                self._put(sample, name, value)

    def _memory(self, sample: GpuSample | HostSample) -> None:
        used, total = sample.memory_used_mib, sample.memory_total_mib
        if used is not None and total:
            self._put(sample, "memory_used_percent", 100 * used / total)

    def _put(self, sample: GpuSample | HostSample, name: str, value: float) -> None:
        self.lines.setdefault((source_of(sample), name), Thinned()).add(self._at_s(sample), value)

    def _hold(self, sample: GpuSample) -> None:
        """Let each reason last from the first sample that gives it to one interval after the last."""
        source, now_s = source_of(sample), self._at_s(sample)
        reasons = {reason for reason in sample.throttle or () if reason != IDLE}
        for (of, reason), (start_s, last_s) in list(self._since.items()):
            if of == source and (reason not in reasons or now_s - last_s > 10 * self._interval_s):
                self._close(source, reason, start_s, last_s)
        for reason in reasons:
            start_s, _ = self._since.get((source, reason), (now_s, now_s))
            self._since[source, reason] = start_s, now_s

    def _close(self, source: str, reason: str, start_s: float, last_s: float) -> None:
        del self._since[source, reason]
        self.held.setdefault(source, []).append((reason, start_s, last_s + self._interval_s))

    def spans(self, source: str, *, apart_s: float) -> list[tuple[str, float, float]]:
        """Return when which reason held, in order; spans nearer to each other than so much are one."""
        open_ones = [
            (r, start, last + self._interval_s) for (of, r), (start, last) in self._since.items() if of == source
        ]
        joined: dict[str, list[tuple[float, float]]] = {}
        for reason, start_s, end_s in sorted([*self.held.get(source, []), *open_ones], key=lambda span: span[1]):
            spans = joined.setdefault(reason, [])
            if spans and start_s - spans[-1][1] <= apart_s:
                spans[-1] = spans[-1][0], max(spans[-1][1], end_s)
            else:
                spans.append((start_s, end_s))
        labelled_spans = [(reason, *span) for reason, spans in joined.items() for span in spans]
        return sorted(labelled_spans, key=lambda span: span[1])
