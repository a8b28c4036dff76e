"""A recording as a page: statistics in tables, and power, utilization and clocks over time in figures.

The curves of the figures are downsampled in one pass: the lowest and highest reading of equal segments.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from assay.core.format import format_duration
from assay.core.page import Column, LinePlot, Page, PlotLine, Section, Table, Text, Timeline, TimelineBar
from assay.monitor.samples import POWER_QUANTITIES, GpuSample, HostSample, RecordingHeader, quantity_info, source_of
from assay.monitor.statistics import RunningStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.page import Cell, Element
    from assay.monitor.samples import RecordingLine
    from assay.monitor.statistics import CounterStatistics, LevelStatistics, MonitorStatistics, SourceStatistics


_PERCENT_TITLES = {
    "utilisation_percent": "GPU busy",
    "memory_utilisation_percent": "memory busy",
    "cpu_percent": "CPUs busy",
    "steal_percent": "CPU steal",
    "memory_used_percent": "memory used",
}


def recording_figures(
    source: SourceStatistics, statistics: MonitorStatistics, curves: RecordingCurves
) -> list[LinePlot | Timeline]:
    """Return the figures of a source."""
    use = _lines_figure(source, curves, "use", _PERCENT_TITLES, unit="%")
    if source.source == "host":
        return [*use]
    clock = source.level("sm_mhz")
    moved = clock is not None and clock.minimum < clock.maximum
    clocks = _lines_figure(source, curves, "SM clock", {"sm_mhz": "SM clock"}, unit="MHz") if moved else []
    return [_power_figure(source, statistics, curves), *use, *clocks]


def _figure_name(source: SourceStatistics, what: str) -> str:
    return f"{source.source.replace(':', '')}_{what.replace(' ', '_').lower()}"


def _curves(source: SourceStatistics, curves: RecordingCurves, names: dict[str, str]) -> tuple[PlotLine, ...]:
    """Return the labelled lines of those quantities that a source has."""
    labelled = ((label, curves.lines.get((source.source, name))) for name, label in names.items())
    points = [(label, line.points) for label, line in labelled if line is not None]
    return tuple(PlotLine(label=label, x=tuple(p[0] for p in xy), y=tuple(p[1] for p in xy)) for label, xy in points)


def _power_figure(source: SourceStatistics, statistics: MonitorStatistics, curves: RecordingCurves) -> Timeline:
    """Return power over time, above the throttle reasons and the marks."""
    names = {name: quantity_info(name, gpu=True).title.removeprefix("power, ") for name in POWER_QUANTITIES}
    bars = [
        TimelineBar(lane="recorded", label=source.ended or "", start_s=0.0, end_s=_end_s(source, statistics, curves))
    ]
    if source.ended:
        bars[0] = bars[0].model_copy(update={"tone": "bad"})
    for reason, start_s, end_s in curves.spans(source.source, apart_s=statistics.lasted_s / 100):
        bars.append(TimelineBar(lane="throttled", label=reason, start_s=start_s, end_s=min(end_s, statistics.lasted_s)))
    for mark in statistics.marks:
        end_s = mark.start_s if mark.end_s is None else mark.end_s
        bars.append(TimelineBar(lane="marks", label=mark.name, start_s=mark.start_s, end_s=end_s))
    return Timeline(
        title=f"{source.title}: power",
        name=_figure_name(source, "power"),
        bars=tuple(bars),
        lines=_curves(source, curves, names),
        lines_axis="W",
    )


def _end_s(source: SourceStatistics, statistics: MonitorStatistics, curves: RecordingCurves) -> float:
    """Return when a source was last sampled, in s; the end of the recording if it was not lost."""
    if not source.ended:
        return statistics.lasted_s
    ends = [line.points[-1][0] for (of, _), line in curves.lines.items() if of == source.source]
    return max(ends, default=0.0)


def _lines_figure(
    source: SourceStatistics, curves: RecordingCurves, what: str, names: dict[str, str], *, unit: str
) -> list[LinePlot]:
    lines = _curves(source, curves, names)
    if not lines:
        return []
    return [
        LinePlot(
            title=f"{source.title}: {what}",
            name=_figure_name(source, what),
            x_axis="time (s)",
            y_axis=unit,
            lines=lines,
            markers=False,
        )
    ]


MAX_SEGMENTS = 600
"""There are at most twice as many, two points each."""

LinePoint: TypeAlias = tuple[float, float]


class DownsampledLine:
    """A growing line; when it has too many segments, neighbours are merged."""

    def __init__(self) -> None:
        self._segments: list[tuple[LinePoint, LinePoint]] = []
        self._readings_per_segment = 1
        self._readings_in_last = 0

    def add(self, x: float, y: float) -> None:
        """Add a reading."""
        point = x, y
        if self._readings_in_last == 0:
            self._segments.append((point, point))
        else:
            self._segments[-1] = _extremes(self._segments[-1], (point, point))
        self._readings_in_last = (self._readings_in_last + 1) % self._readings_per_segment
        if len(self._segments) > 2 * MAX_SEGMENTS and self._readings_in_last == 0:
            self._halve()

    def _halve(self) -> None:
        pairs = zip(self._segments[::2], self._segments[1::2], strict=False)
        odd = self._segments[-1:] if len(self._segments) % 2 else []
        self._segments = [_extremes(one, other) for one, other in pairs] + odd
        self._readings_in_last = self._readings_per_segment if odd else 0
        self._readings_per_segment *= 2

    @property
    def points(self) -> list[LinePoint]:
        """The lowest and the highest reading of each segment, in time order."""
        return [point for low, high in self._segments for point in sorted({low, high})]


def _extremes(one: tuple[LinePoint, LinePoint], other: tuple[LinePoint, LinePoint]) -> tuple[LinePoint, LinePoint]:
    low = one[0] if one[0][1] <= other[0][1] else other[0]
    high = one[1] if one[1][1] >= other[1][1] else other[1]
    return low, high


GPU_CURVES = (
    "power_instant_w",
    "power_average_w",
    "power_usage_w",
    "utilisation_percent",
    "memory_utilisation_percent",
    "sm_mhz",
)
HOST_CURVES = ("cpu_percent", "steal_percent")
IDLE_REASON = "idle"
"""A reason that does not throttle anything."""


class RecordingCurves:
    """Lines by source and quantity, in s since the recording began, and spans of each throttle reason."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], DownsampledLine] = {}
        self.held: dict[str, list[tuple[str, float, float]]] = {}
        self._zero_ns = 0
        self._interval_s = 0.0
        self._since: dict[tuple[str, str], tuple[float, float]] = {}

    def add(self, line: RecordingLine) -> None:
        """Add a line of the recording."""
        if isinstance(line, RecordingHeader):
            self._zero_ns, self._interval_s = line.t_ns, line.interval_s
        elif isinstance(line, GpuSample):
            self._sample(line, GPU_CURVES)
            self._memory(line)
            self._hold(line)
        elif isinstance(line, HostSample):
            self._sample(line, HOST_CURVES)
            self._memory(line)

    def _at_s(self, line: RecordingLine) -> float:
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
        self.lines.setdefault((source_of(sample), name), DownsampledLine()).add(self._at_s(sample), value)

    def _hold(self, sample: GpuSample) -> None:
        """Extend each reason from the first sample that gives it to one interval after the last."""
        source, now_s = source_of(sample), self._at_s(sample)
        reasons = {reason for reason in sample.throttle or () if reason != IDLE_REASON}
        for (key_source, reason), (start_s, last_s) in list(self._since.items()):
            if key_source == source and (reason not in reasons or now_s - last_s > 10 * self._interval_s):
                self._close(source, reason, start_s, last_s)
        for reason in reasons:
            start_s, _ = self._since.get((source, reason), (now_s, now_s))
            self._since[source, reason] = start_s, now_s

    def _close(self, source: str, reason: str, start_s: float, last_s: float) -> None:
        del self._since[source, reason]
        self.held.setdefault(source, []).append((reason, start_s, last_s + self._interval_s))

    def spans(self, source: str, *, apart_s: float) -> list[tuple[str, float, float]]:
        """Return the spans of each throttle reason, in order; spans at most ``apart_s`` apart are merged."""
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


SUMMARY_TITLE, WARNINGS_TITLE = "In short", "Worth knowing"
MAX_BUSY_CPUS = 5
MEGA = 1e6
MAX_STOPPED = 4
MIN_SILENT_S, SILENT_READINGS = 0.5, 3.0
"""A quantity has stopped if it is silent for longer than this, and than this many of its reading intervals."""


def recording_page(lines: Iterable[RecordingLine], *, name: str) -> tuple[MonitorStatistics, Page]:
    """Return the statistics of a recording, and its page; ``name`` is the file's."""
    running, curves = RunningStatistics(), RecordingCurves()
    for line in lines:
        running.add(line)
        curves.add(line)
    statistics = running.result(None)
    return statistics, build_recording_page(statistics, curves, name)


def build_recording_page(statistics: MonitorStatistics, curves: RecordingCurves, name: str) -> Page:
    """Return the page of a recording."""
    started = datetime.fromtimestamp(statistics.wall_ns / 1e9, UTC)
    return Page(
        title=f"assay monitor: {name}",
        lead=recording_lead(statistics),
        lead_tone="plain" if statistics.finished and not statistics.partial else "unsure",
        sections=(
            *_warnings_section(statistics),
            *_summary_section(statistics),
            *(_source_section(source, statistics, curves) for source in statistics.sources),
            *_marks_section(statistics),
        ),
        facts=(
            ("began", started.isoformat(timespec="milliseconds")),
            ("interval", f"{statistics.interval_s * 1e3:g} ms"),
            ("mean, time mean", "of the samples; of the straight lines between them, which missed ticks do not bend"),
            ("counter difference", "last reading less the first; edges are not interpolated"),
        ),
        origin=statistics.origin,
    )


def recording_lead(statistics: MonitorStatistics) -> str:
    """Return a one-sentence summary of the recording."""
    gpus = [source for source in statistics.sources if source.source != "host"]
    host = ["the host"] if statistics.of("host") is not None else []
    watched = " and ".join([*([f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"] if gpus else []), *host])
    together = statistics.together
    peak = "" if together.peak_power_w is None else f"; at most {together.peak_power_w:.0f} W at one moment"
    energy = "" if together.energy_j is None else f", {together.energy_j:.0f} J by the counters"
    cut = "" if statistics.finished else "; the recording was cut off"
    lost = [f"GPU {source.source.removeprefix('gpu:')}" for source in statistics.sources if source.ended]
    partial = f" Partial: {', '.join(lost)} {'was' if len(lost) == 1 else 'were'} lost." if lost else ""
    return f"Watched {watched or 'nothing'} for {format_duration(statistics.lasted_s)}{peak}{energy}{cut}.{partial}"


def _warnings_section(statistics: MonitorStatistics) -> list[Section]:
    warnings = [
        f"{s.title}: lost before the end, {s.ended}. Its figures are of {s.n} samples until then."
        for s in statistics.sources
        if s.ended
    ]
    warnings += [f"{s.title}: {message}." for s in statistics.sources for message in missing_values(s)]
    warnings += [f"{s.title}: {s.missed} of {s.n + s.missed} samples missed." for s in statistics.sources if s.missed]
    warnings += [f"{s.title}: {c.note}." for s in statistics.sources for c in s.counted if c.note]
    warnings += [f"{note[:1].upper()}{note[1:]}." for note in statistics.notes]
    return (
        [Section(title=WARNINGS_TITLE, elements=tuple(Text(text=t, tone="unsure") for t in warnings))]
        if warnings
        else []
    )


def missing_values(source: SourceStatistics) -> list[str]:
    """Report quantities that only some samples had, and those no longer read before the last sample."""
    gpu = source.source != "host"
    partial: dict[int, list[str]] = {}
    for level in source.levels:
        if gpu and level.n < source.n:
            partial.setdefault(level.n, []).append(quantity_info(level.quantity, gpu=gpu).title)
    remarks = [f"{n} of {source.n} samples had {'; '.join(titles)}" for n, titles in partial.items()]
    read: list[LevelStatistics | CounterStatistics] = [*source.counted, *(() if gpu else source.levels)]
    stopped = [
        f"{quantity_info(stats.quantity, gpu=gpu).title}: last read {stats.silent_s:.1f} s before the last sample"
        for stats in read
        if _has_stopped(stats, source)
    ]
    more = len(stopped) - MAX_STOPPED
    return [*remarks, *stopped[:MAX_STOPPED], *([f"{more} more were no longer read"] if more > 0 else [])]


def _has_stopped(stats: LevelStatistics | CounterStatistics, source: SourceStatistics) -> bool:
    """Whether a quantity was silent for far longer than its interval between readings."""
    read_s = source.lasted_s - stats.silent_s
    every_s = read_s / (stats.n - 1) if stats.n > 1 else source.lasted_s / max(1, source.n)
    return stats.silent_s > max(MIN_SILENT_S, SILENT_READINGS * every_s)


def _summary_section(statistics: MonitorStatistics) -> list[Section]:
    """Return the main figures, one row per GPU, and a sentence about the host."""
    gpus = [source for source in statistics.sources if source.source != "host" and source.n]
    host = statistics.of("host")
    host_text = None if host is None else _host_summary(host)
    elements: list[Element] = [
        *_gpus_table(gpus),
        *([Text(text=host_text)] if host_text else []),
    ]
    return [Section(title=SUMMARY_TITLE, elements=tuple(elements))] if elements else []


def _gpus_table(gpus: list[SourceStatistics]) -> list[Table]:
    titles = ("busy, mean %", "memory, highest MiB", "power, mean W", "highest W", "energy, J", "hottest °C")
    rows: list[tuple[Cell, ...]] = []
    for gpu in gpus:
        power = next((level for name in POWER_QUANTITIES if (level := gpu.level(name)) is not None), None)
        memory, heat, clock = gpu.level("memory_used_mib"), gpu.level("temperature_c"), gpu.level("sm_mhz")
        rows.append((
            gpu.title.removeprefix("GPU "),
            None if clock is None else f"{clock.minimum:.0f} – {clock.maximum:.0f}",
            _mean(gpu.level("utilisation_percent")),
            None if memory is None else memory.maximum,
            _mean(power),
            None if power is None else power.maximum,
            gpu.difference("energy_j"),
            None if heat is None else heat.maximum,
        ))  # fmt: skip
    note = "Means are weighted by time. Energy is the difference of the card's own counter."
    return _table("GPUs", rows, ("GPU", "SM clock, MHz"), titles, note=note)


def _mean(level: LevelStatistics | None) -> float | None:
    return None if level is None else level.mean if level.time_mean is None else level.time_mean


def _host_summary(host: SourceStatistics) -> str | None:
    texts = {
        "cpu_percent": "CPUs {mean:.1f} % busy (at most {most:.0f} %)",
        "steal_percent": "CPU steal {mean:.1f} % (at most {most:.0f} %)",
        "memory_used_mib": "{most:.0f} MiB of memory used at most",
    }
    levels = [(level, text) for name, text in texts.items() if (level := host.level(name)) is not None]
    summary = ", ".join(text.format(mean=_mean(level), most=level.maximum) for level, text in levels)
    return f"Host: {summary}." if summary else None


def _source_section(source: SourceStatistics, statistics: MonitorStatistics, curves: RecordingCurves) -> Section:
    if not source.n:
        return Section(title=source.title, elements=(Text(text="No sample was taken.", tone="unsure"),))
    elements: list[Element] = [
        *_levels_table(source),
        *_counters_table(source),
        *_throttle_table(source),
        *_busy_cpus_table(source),
    ]
    if source.source == "host":
        elements += _busy_processes_table(statistics)
    elements += recording_figures(source, statistics, curves)
    return Section(title=source.title, elements=tuple(elements))


def _levels_table(source: SourceStatistics) -> list[Table]:
    gpu = source.source != "host"
    rows = [
        (quantity_info(v.quantity, gpu=gpu).title, v.unit, v.n, v.mean, v.time_mean, v.minimum, v.maximum)
        for v in source.levels
        if "[" not in v.quantity
    ]
    missed = f", {source.missed} missed" if source.missed else ""
    titles = ("samples", "mean", "time mean", "lowest", "highest")
    return _table(f"Levels, of {source.n} samples{missed}", rows, ("quantity", "unit"), titles)


def _counters_table(source: SourceStatistics) -> list[Table]:
    rows: list[tuple[Cell, ...]] = []
    for counted in source.counted:
        info = quantity_info(counted.quantity, gpu=source.source != "host")
        scale, unit = (MEGA, "MB") if info.unit == "B" else (1.0, info.unit)
        cells = [None if value is None else value / scale for value in (counted.difference, counted.per_s)]
        rows.append((info.title, unit, *cells))
    return _table("Counters", rows, ("quantity", "unit"), ("difference", "per second"))


def _throttle_table(source: SourceStatistics) -> list[Table]:
    rows = [(reason, 100 * share) for reason, share in sorted(source.throttle_share.items())]
    return _table("Throttle reasons", rows, ("reason",), ("% of the time",))


def _busy_cpus_table(source: SourceStatistics) -> list[Table]:
    cores = [level for level in source.levels if level.quantity.startswith("core_percent[")]
    ranked = sorted(cores, key=lambda level: -(level.time_mean or level.mean))[:MAX_BUSY_CPUS]
    rows = [(level.quantity[len("core_percent[") : -1], level.mean, level.maximum) for level in ranked]
    return _table(f"The busiest of {len(cores)} CPUs", rows, ("CPU",), ("busy, mean %", "highest %"))


def _busy_processes_table(statistics: MonitorStatistics) -> list[Table]:
    rows = [
        (p.name, p.pid, None if p.cpus is None else ", ".join(map(str, p.cpus)), p.cores) for p in statistics.busiest
    ]
    return _table("The busiest processes", rows, ("process", "PID", "CPU affinity"), ("cores used",))


def _marks_section(statistics: MonitorStatistics) -> list[Section]:
    rows = [(m.name, m.start_s, m.end_s, None if m.end_s is None else m.end_s - m.start_s) for m in statistics.marks]
    tables = _table("Marks and windows", rows, ("mark",), ("from, s", "until, s", "duration, s"))
    return [Section(title="Marks", elements=tuple(tables))] if tables else []


def _table(
    title: str,
    rows: Sequence[tuple[Cell, ...]],
    titles: tuple[str, ...],
    numeric_titles: tuple[str, ...],
    note: str | None = None,
) -> list[Table]:
    """Return a table whose last columns are numbers, if it has rows."""
    columns = (*(Column(title=t) for t in titles), *(Column(title=t, numeric=True) for t in numeric_titles))
    return [Table(title=title, columns=columns, rows=tuple(rows), note=note)] if rows else []
