"""Statistics of a recording or a window of it, in one pass over its lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.monitor.lines import (
    Beat,
    End,
    Ended,
    GpuMeterSample,
    GpuProcesses,
    GpuSample,
    Header,
    HostSample,
    Mark,
    TopProcesses,
)
from assay.monitor.quantities import POWERS, source_of
from assay.monitor.summary import MonitorStatistics, Span, Together
from assay.monitor.tallies import SourceTally, TopTally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.monitor.lines import Line
    from assay.monitor.summary import SourceStatistics

SAME_TIME, READ_EVERY_S = 0.1, 1.0
"""Counters were read over the same time where the times differ by less than this share and one reading."""
LONGEST_GAP_S, GAP_INTERVALS = 3.0, 5
"""What was between two samples further apart than this, and than so many intervals, is not known."""
JUMP_NS = 500_000_000
"""A wall clock that moves so much against the monotonic one was set, and not merely kept right."""


def summarise(lines: Iterable[Line], *, window: tuple[int, int] | None = None) -> MonitorStatistics:
    """Return what lines, the header first, say; of a window given in ns, that it lasted as long as it did.

    Raises:
        BadInput: The header is missing.
    """
    tally = Tally()
    for line in lines:
        tally.add(line)
    return tally.told(window)


class Tally:
    """All that is counted in one pass."""

    def __init__(self) -> None:
        self._header: Header | None = None
        self._sources: dict[str, SourceTally] = {}
        self._sum = _Sum()
        self._top = TopTally()
        self._marks: list[Mark] = []
        self._offset_ns = 0
        self._jumps: list[str] = []
        self._last_ns = 0
        self._finished = False

    def add(self, line: Line) -> None:
        """Take a line."""
        self._last_ns = max(self._last_ns, line.t_ns)
        match line:
            case Header():
                self._begin(line)
            case GpuSample():
                self._sources[source_of(line)].add(line)
                self._sum.add(line)
            case GpuMeterSample() | HostSample():
                self._sources[source_of(line)].add(line)
            case GpuProcesses():
                tally = self._sources[f"gpu:{line.gpu}"]
                tally.most_processes = max(line.count, tally.most_processes or 0)
            case Ended():
                self._sources[f"gpu:{line.gpu}"].ended = line.reason
            case TopProcesses():
                self._top.add(line)
            case Mark():
                self._marks.append(line)
            case Beat() | End():
                self._check_clock(line)
                self._finished = self._finished or isinstance(line, End)

    def _begin(self, header: Header) -> None:
        self._header = header
        self._offset_ns = header.wall_ns - header.t_ns
        self._sum.gpus = len(header.gpus)
        for gpu in header.gpus:
            title = f"GPU {gpu.index}" if gpu.name is None else f"GPU {gpu.index}, {gpu.name}"
            self._sources[f"gpu:{gpu.index}"] = SourceTally(
                title=title, stride=1, gpu=True, gap_ns=_gap_ns(header, 1), uuid=gpu.uuid
            )
        if header.host_every is not None:
            stride = header.host_every
            gap_ns = _gap_ns(header, stride)
            self._sources["host"] = SourceTally(title="Host", stride=stride, gpu=False, gap_ns=gap_ns)

    def _check_clock(self, line: Beat | End) -> None:
        offset_ns = line.wall_ns - line.t_ns
        moved_ns = offset_ns - self._offset_ns
        if abs(moved_ns) >= JUMP_NS and self._header is not None:
            after_s = (line.t_ns - self._header.t_ns) / 1e9
            self._jumps.append(
                f"the wall clock was set by {moved_ns / 1e9:+.1f} s, {after_s:.1f} s after the start; "
                "times here are of the monotonic clock and not touched by it"
            )
        self._offset_ns = offset_ns

    def told(self, window: tuple[int, int] | None) -> MonitorStatistics:
        """Return what the lines say."""
        header = self._header
        if header is None:
            raise BadInput("There is no header, so that it cannot be known what was recorded.")
        start_ns, end_ns = window or (header.t_ns, max(self._last_ns, header.t_ns))
        sources = tuple(tally.told(name) for name, tally in self._sources.items())
        peak_w, peak_of = self._sum.peak()
        return MonitorStatistics(
            started_at_ns=start_ns,
            wall_ns=start_ns + header.wall_ns - header.t_ns,
            lasted_s=(end_ns - start_ns) / 1e9,
            interval_s=header.interval_s,
            sources=sources,
            together=Together(
                peak_power_w=peak_w,
                peak_power_of=peak_of,
                energy_j=_energy_of_all([source for source in sources if source.source != "host"]),
            ),
            marks=tuple(_span(mark, header.t_ns) for mark in self._marks),
            busiest=self._top.told(),
            notes=(*([f"no GPU is watched: {header.gpu_note}"] if header.gpu_note else []), *self._jumps),
            finished=self._finished,
            partial=any(source.ended for source in sources),
            origin=header.origin,
        )


def _gap_ns(header: Header, stride: int) -> float:
    return 1e9 * max(LONGEST_GAP_S, GAP_INTERVALS * stride * header.interval_s)


def _energy_of_all(gpus: list[SourceStatistics]) -> float | None:
    """Return what all GPUs spent; null where one does not say, was lost, or its counter was read for another time."""
    counted = [gpu.counter("energy_j") for gpu in gpus]
    counters = [one for one in counted if one is not None and one.difference is not None]
    if not counters or len(counters) < len(gpus) or any(gpu.ended for gpu in gpus):
        return None
    longest_s, shortest_s = max(one.over_s for one in counters), min(one.over_s for one in counters)
    if longest_s - shortest_s > SAME_TIME * longest_s + READ_EVERY_S:
        return None
    return sum(one.difference for one in counters if one.difference is not None)


def _span(mark: Mark, zero_ns: int) -> Span:
    end_s = None if mark.end_ns is None else (mark.end_ns - zero_ns) / 1e9
    return Span(name=mark.name, start_s=(mark.start_ns - zero_ns) / 1e9, end_s=end_s)


class _Sum:
    """The sum of all GPUs' power, tick by tick; a tick at which one of them says nothing does not count."""

    def __init__(self) -> None:
        self.gpus = 0
        self._tick = -1
        self._now: list[float] = []
        self._peak: float | None = None
        self._names: set[str] = set()

    def add(self, sample: GpuSample) -> None:
        if sample.tick != self._tick:
            self._close()
            self._tick = sample.tick
        name = next((name for name in POWERS if getattr(sample, name) is not None), None)
        if name is not None:
            self._now.append(getattr(sample, name))
            self._names.add(name)

    def _close(self) -> None:
        if self._now and len(self._now) == self.gpus:
            self._peak = max(sum(self._now), self._peak or 0.0)
        self._now = []

    def peak(self) -> tuple[float | None, str | None]:
        """Return the highest sum and which readings it is of; null where there is none."""
        self._close()
        return self._peak, None if self._peak is None else ", ".join(sorted(self._names))
