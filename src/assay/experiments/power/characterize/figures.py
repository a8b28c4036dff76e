"""The figures of a study: every kernel of every GPU, power and clocks over time, clock by temperature.

Sensor timelines are read in one pass over the recording, in little memory: power of each GPU over the whole run and,
at full resolution, around one trial; clocks by temperature while the base was timed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import LinePlot, PlotLine, StripPlot, StripRow, Timeline, TimelineBar
from assay.experiments.power.characterize.gpu_cases import gpu_name
from assay.experiments.power.characterize.plan import is_idle
from assay.experiments.reporting import TIME_AXES, primary_time
from assay.monitor.report import DownsampledLine
from assay.monitor.samples import POWER_QUANTITIES, GpuSample, RecordingHeader, quantity_info

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Element
    from assay.core.results import Record
    from assay.experiments.power.characterize.gpu_cases import GpuCase
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.plan import PlacedCase
    from assay.experiments.power.characterize.study import PowerStudy
    from assay.stats.intervals import Samples
    from assay.store.records import Records


MAX_SAMPLES = 5000
"""Of a strip; of more, those of evenly spread ranks are kept."""


def kernel_strips(options: CharacterizeOptions, study: PowerStudy, records: Records) -> list[Element]:
    """Return a figure for each case with a strip for each GPU: every kernel, the median and its interval."""
    figures: list[Element] = []
    for number, case in enumerate(options.cases):
        gpus = [gpu for gpu in study.gpus if gpu.case == case.name and not is_idle(case)]
        if gpus:
            unit, scale = ("ms", 1e-3) if min(gpu.time.value for gpu in gpus) >= 1000 else ("µs", 1.0)
            figures.append(
                StripPlot(
                    title=f"Every kernel: {case.name}",
                    name=f"kernels_{number}",
                    axis=TIME_AXES[gpus[0].one.quantity],
                    unit=unit,
                    strips=tuple(_gpu_strip(gpu, _case_samples(study, records, gpu), scale) for gpu in gpus),
                )
            )
    return figures


def _gpu_strip(gpu: GpuCase, samples: Samples, scale: float) -> StripRow:
    ends = [None if end is None else end * scale for end in (gpu.time.low, gpu.time.high)]
    values = tuple((samples * scale).tolist())
    return StripRow(label=gpu.name, samples=values, value=gpu.time.value * scale, low=ends[0], high=ends[1])


def _case_samples(study: PowerStudy, records: Records, gpu: GpuCase) -> Samples:
    """Return every kernel of a GPU in a case, the fastest first."""
    device = gpu.one.device
    chunks = [
        records.samples(series)
        for where, record in study.pairs
        if where.case.name == gpu.case and device in where.base and record.status == "ok"
        for series in record.series
        if (series.role, series.quantity) == (device, primary_time([record], device))
    ]
    ordered = np.sort(np.concatenate(chunks)) if chunks else np.zeros(0)
    if len(ordered) > MAX_SAMPLES:
        ordered = ordered[np.linspace(0, len(ordered) - 1, MAX_SAMPLES).round().astype(np.intp)]
    return ordered


def run_timeline(study: PowerStudy, course: SensorTimeline) -> list[Element]:
    """Return who was busy when, and what every GPU drew."""
    bars = tuple(
        TimelineBar(
            lane=gpu_name(device),
            label=where.case.name if device in where.base else _load_workload(where, device),
            start_s=(start_ns - course.zero_ns) / 1e9,
            end_s=(end_ns - course.zero_ns) / 1e9,
            tone="plain" if record.status == "ok" else "bad",
        )
        for where, record in study.pairs
        for device, (start_ns, end_ns) in _busy_spans(where, record).items()
    )
    if not bars:
        return []
    ordered = tuple(sorted(bars, key=lambda bar: bar.lane))
    lines = tuple(_thinned_line(f"GPU {gpu}", watts) for gpu, watts in sorted(course.watts.items()))
    return [
        Timeline(
            title="Who was busy when, and what each GPU drew",
            name="run",
            bars=ordered,
            lines=tuple(line for line in lines if len(line.x) > 1),
            lines_axis="power (W)",
            note="Bars: what was timed, and loads beside it. Between them workers start and heat settles.",
        )
    ]


def _load_workload(where: PlacedCase, device: str) -> str:
    return next((load.part.subject.workload for load in where.noise if load.device == device), "")


def _busy_spans(where: PlacedCase, record: Record) -> dict[str, tuple[int, int]]:
    """Return when each device of a trial was busy with what was kept."""
    spans: dict[str, tuple[int, int]] = {}
    names = {device: device for device in where.base}
    names |= {f"{load.part.subject.label} on {load.device}": load.device for load in where.noise}
    for series in record.series:
        device = names.get(series.role)
        if device is not None:
            start_ns, end_ns = spans.get(device, (series.start_ns, series.end_ns))
            spans[device] = min(start_ns, series.start_ns), max(end_ns, series.end_ns)
    return spans


def _thinned_line(label: str, thinned: DownsampledLine) -> PlotLine:
    points = thinned.points
    return PlotLine(label=label, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))


def trial_timeline(course: SensorTimeline, where: PlacedCase, record: Record) -> list[Element]:
    """Return one trial from its start to its end: watts by each name a card has for them, and the clock."""
    gpu = int(where.base[0].partition(":")[2].partition("/")[0]) if where.base[0].startswith("cuda") else -1
    watts = [(name, course.close_lines[gpu, name]) for name in POWER_QUANTITIES if (gpu, name) in course.close_lines]
    bars = _stage_bars(record, where.base[0])
    if not watts or not bars:
        return []
    names = {name: quantity_info(name, gpu=True).title.removeprefix("power, ") for name, _ in watts}
    what = f"{where.case.name}, {gpu_name(where.base[0])}, repeat {where.repeat}"
    figures: list[Element] = [
        Timeline(
            title=f"Power over time: {what}",
            name="power_time",
            bars=bars,
            lines=tuple(_thinned_line(names[name], thinned) for name, thinned in watts),
            lines_axis="W",
            note="As the card tells it; where it has both, the average of the last second lags behind.",
        )
    ]
    clock = course.close_lines.get((gpu, "sm_mhz"))
    heat = course.close_lines.get((gpu, "temperature_c"))
    if clock is not None and len(clock.points) > 1:
        figures.append(_time_lines(f"SM clock over time: {what}", "clock_time", "SM clock (MHz)", clock))
    if heat is not None and len(heat.points) > 1:
        figures.append(_time_lines(f"Temperature over time: {what}", "heat_time", "temperature (°C)", heat))
    return figures


def _time_lines(title: str, name: str, axis: str, thinned: DownsampledLine) -> LinePlot:
    return LinePlot(
        title=title, name=name, x_axis="time (s)", y_axis=axis, lines=(_thinned_line(axis, thinned),), markers=False
    )


def _stage_bars(record: Record, role: str) -> tuple[TimelineBar, ...]:
    """Return when a trial started its worker, waited for steadiness, and timed; from its own start on."""
    zero_ns = record.window.start_ns
    bars: list[TimelineBar] = []
    begin_s = 0.0
    spans = sorted({(s.start_ns, s.end_ns) for s in record.series if s.role == role})
    for start_ns, end_ns in spans:
        start_s, end_s = (start_ns - zero_ns) / 1e9, (end_ns - zero_ns) / 1e9
        before = "starting" if record.settled is None else "starting, settling"
        bars.append(TimelineBar(lane="untimed", label=before, start_s=begin_s, end_s=start_s))
        bars.append(TimelineBar(lane="timed", label="kernels", start_s=start_s, end_s=end_s))
        begin_s = end_s
    return tuple(bars)


def clock_by_temperature(course: SensorTimeline, workload: str) -> list[Element]:
    """Return the clock that each GPU ran at, by its temperature, while the base was timed."""
    lines = [
        PlotLine(
            label=f"GPU {gpu}",
            x=tuple(float(degree) for degree, *_ in points),
            y=tuple(middle for _, middle, _, _ in points),
            low=tuple(low for _, _, low, _ in points),
            high=tuple(high for *_, high in points),
        )
        for gpu in sorted(course.clocks)
        if (points := course.clock_by_temperature(gpu))
    ]
    if not lines:
        return []
    return [
        LinePlot(
            title=f"Clock by temperature while {workload} was timed",
            name="clock_temperature",
            x_axis="temperature (°C)",
            y_axis="SM clock (MHz)",
            lines=tuple(lines),
            note="The median at each degree, with its quartiles, over all cases with this base.",
        )
    ]


def timed_workloads(pairs: Sequence[tuple[PlacedCase, Record]]) -> str:
    """Return what is timed in these trials."""
    return ", ".join(dict.fromkeys(where.case.base.subject.label for where, _ in pairs))


DETAIL_QUANTITIES = (*POWER_QUANTITIES, "sm_mhz", "temperature_c")
TimeSpanNs = tuple[int, int]


@dataclass
class SensorTimeline:
    """Lines that grow; times are in s since ``zero_ns``, those of the close view since its beginning."""

    zero_ns: int
    close: TimeSpanNs
    busy: dict[int, list[TimeSpanNs]]
    watts: dict[int, DownsampledLine] = field(default_factory=dict)
    close_lines: dict[tuple[int, str], DownsampledLine] = field(default_factory=dict)
    clocks: dict[int, dict[int, list[float]]] = field(default_factory=dict)
    interval_s: float | None = None
    gpus: int = 0

    def read(self, records: Records) -> SensorTimeline:
        """Take all that was recorded."""
        for line in records.watched():
            if isinstance(line, RecordingHeader):
                self.interval_s, self.gpus = line.interval_s, len(line.gpus)
            elif isinstance(line, GpuSample):
                self._add(line)
        return self

    def _add(self, sample: GpuSample) -> None:
        power_w = next((value for name in POWER_QUANTITIES if (value := getattr(sample, name)) is not None), None)
        if power_w is not None:
            self.watts.setdefault(sample.gpu, DownsampledLine()).add((sample.t_ns - self.zero_ns) / 1e9, power_w)
        if self.close[0] <= sample.t_ns <= self.close[1]:
            for name in DETAIL_QUANTITIES:
                value = getattr(sample, name)
                if value is not None:
                    at_s = (sample.t_ns - self.close[0]) / 1e9
                    self.close_lines.setdefault((sample.gpu, name), DownsampledLine()).add(at_s, float(value))
        if sample.temperature_c is not None and sample.sm_mhz is not None and self._is_busy(sample):
            self.clocks.setdefault(sample.gpu, {}).setdefault(sample.temperature_c, []).append(float(sample.sm_mhz))

    def _is_busy(self, sample: GpuSample) -> bool:
        return any(start_ns <= sample.t_ns <= end_ns for start_ns, end_ns in self.busy.get(sample.gpu, ()))

    def clock_by_temperature(self, gpu: int) -> list[tuple[int, float, float, float]]:
        """Return for each degree the median clock and its quartiles, the coolest first."""
        rows = []
        for degree, clocks in sorted(self.clocks.get(gpu, {}).items()):
            middle, low, high = np.quantile(clocks, [0.5, 0.25, 0.75])
            rows.append((degree, float(middle), float(low), float(high)))
        return rows


def read_timeline(records: Records, pairs: list[tuple[PlacedCase, Record]], shown: Record | None) -> SensorTimeline:
    """Return the course of a run: ``pairs`` are the trials whose clocks count, ``shown`` is looked at closely."""
    busy: dict[int, list[TimeSpanNs]] = {}
    for where, record in pairs:
        for series in record.series:
            if series.role in where.base and series.role.startswith("cuda:") and "/" not in series.role:
                span = (series.start_ns, series.end_ns)
                busy.setdefault(int(series.role.removeprefix("cuda:")), []).append(span)
    distinct = {gpu: sorted(set(spans)) for gpu, spans in busy.items()}
    zero_ns = min((record.window.start_ns for record in records), default=0)
    close = (shown.window.start_ns, shown.window.end_ns) if shown is not None else (0, -1)
    return SensorTimeline(zero_ns, close, distinct).read(records)
