"""The figures of a study: every kernel of every GPU, watts and clocks over time, clocks over heat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Bar, Line, Lines, Strip, Strips, Timeline
from assay.experiments.power.characterize.numbers import gpu_name
from assay.experiments.power.characterize.plan import is_idle
from assay.experiments.times import AXES, decisive
from assay.monitor.quantities import POWERS, meaning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Element
    from assay.core.results import Record
    from assay.experiments.power.characterize.course import Course
    from assay.experiments.power.characterize.numbers import GpuCase
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.placing import Placed
    from assay.experiments.power.characterize.study import Study
    from assay.monitor.thinning import Thinned
    from assay.stats.summary import Samples
    from assay.store.records import Records

MOST_SAMPLES = 5000
"""Of a strip; of more, those of evenly spread ranks are kept."""


def strips(options: CharacterizeOptions, study: Study, records: Records) -> list[Element]:
    """Return a figure for each case with a strip for each GPU: every kernel, the median and its interval."""
    figures: list[Element] = []
    for number, case in enumerate(options.cases):
        gpus = [gpu for gpu in study.gpus if gpu.case == case.name and not is_idle(case)]
        if gpus:
            unit, scale = ("ms", 1e-3) if min(gpu.time.value for gpu in gpus) >= 1000 else ("µs", 1.0)
            figures.append(
                Strips(
                    title=f"Every kernel: {case.name}",
                    name=f"kernels_{number}",
                    axis=AXES[gpus[0].one.quantity],
                    unit=unit,
                    strips=tuple(_strip(gpu, _samples(study, records, gpu), scale) for gpu in gpus),
                )
            )
    return figures


def _strip(gpu: GpuCase, samples: Samples, scale: float) -> Strip:
    ends = [None if end is None else end * scale for end in (gpu.time.low, gpu.time.high)]
    values = tuple((samples * scale).tolist())
    return Strip(label=gpu.name, samples=values, value=gpu.time.value * scale, low=ends[0], high=ends[1])


def _samples(study: Study, records: Records, gpu: GpuCase) -> Samples:
    """Return every kernel of a GPU in a case, the fastest first."""
    device = gpu.one.device
    chunks = [
        records.samples(series)
        for where, record in study.pairs
        if where.case.name == gpu.case and device in where.base and record.status == "ok"
        for series in record.series
        if (series.role, series.quantity) == (device, decisive([record], device))
    ]
    ordered = np.sort(np.concatenate(chunks)) if chunks else np.zeros(0)
    if len(ordered) > MOST_SAMPLES:
        ordered = ordered[np.linspace(0, len(ordered) - 1, MOST_SAMPLES).round().astype(np.intp)]
    return ordered


def over_the_run(study: Study, course: Course) -> list[Element]:
    """Return who was busy when, and what every GPU drew."""
    bars = tuple(
        Bar(
            lane=gpu_name(device),
            label=where.case.name if device in where.base else _noise(where, device),
            start_s=(start_ns - course.zero_ns) / 1e9,
            end_s=(end_ns - course.zero_ns) / 1e9,
            tone="plain" if record.status == "ok" else "bad",
        )
        for where, record in study.pairs
        for device, (start_ns, end_ns) in _spans(where, record).items()
    )
    if not bars:
        return []
    ordered = tuple(sorted(bars, key=lambda bar: bar.lane))
    lines = tuple(_line(f"GPU {gpu}", watts) for gpu, watts in sorted(course.watts.items()))
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


def _noise(where: Placed, device: str) -> str:
    return next((load.part.subject.workload for load in where.noise if load.device == device), "")


def _spans(where: Placed, record: Record) -> dict[str, tuple[int, int]]:
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


def _line(label: str, thinned: Thinned) -> Line:
    points = thinned.points
    return Line(label=label, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))


def closely(course: Course, where: Placed, record: Record) -> list[Element]:
    """Return one trial from its start to its end: watts by each name a card has for them, and the clock."""
    gpu = int(where.base[0].partition(":")[2].partition("/")[0]) if where.base[0].startswith("cuda") else -1
    watts = [(name, course.close_lines[gpu, name]) for name in POWERS if (gpu, name) in course.close_lines]
    bars = _stages(record, where.base[0])
    if not watts or not bars:
        return []
    names = {name: meaning(name, gpu=True).title.removeprefix("power, ") for name, _ in watts}
    what = f"{where.case.name}, {gpu_name(where.base[0])}, repeat {where.repeat}"
    figures: list[Element] = [
        Timeline(
            title=f"Power over time: {what}",
            name="power_time",
            bars=bars,
            lines=tuple(_line(names[name], thinned) for name, thinned in watts),
            lines_axis="W",
            note="As the card tells it; where it has both, the average of the last second lags behind.",
        )
    ]
    clock = course.close_lines.get((gpu, "sm_mhz"))
    heat = course.close_lines.get((gpu, "temperature_c"))
    if clock is not None and len(clock.points) > 1:
        figures.append(_over_time(f"SM clock over time: {what}", "clock_time", "SM clock (MHz)", clock))
    if heat is not None and len(heat.points) > 1:
        figures.append(_over_time(f"Temperature over time: {what}", "heat_time", "temperature (°C)", heat))
    return figures


def _over_time(title: str, name: str, axis: str, thinned: Thinned) -> Lines:
    return Lines(title=title, name=name, x_axis="time (s)", y_axis=axis, lines=(_line(axis, thinned),), markers=False)


def _stages(record: Record, role: str) -> tuple[Bar, ...]:
    """Return when a trial started its worker, waited for steadiness, and timed; from its own start on."""
    zero_ns = record.window.start_ns
    bars: list[Bar] = []
    begin_s = 0.0
    spans = sorted({(s.start_ns, s.end_ns) for s in record.series if s.role == role})
    for start_ns, end_ns in spans:
        start_s, end_s = (start_ns - zero_ns) / 1e9, (end_ns - zero_ns) / 1e9
        before = "starting" if record.settled is None else "starting, settling"
        bars.append(Bar(lane="untimed", label=before, start_s=begin_s, end_s=start_s))
        bars.append(Bar(lane="timed", label="kernels", start_s=start_s, end_s=end_s))
        begin_s = end_s
    return tuple(bars)


def clock_over_heat(course: Course, workload: str) -> list[Element]:
    """Return the clock that each GPU ran at, by its temperature, while the base was timed."""
    lines = [
        Line(
            label=f"GPU {gpu}",
            x=tuple(float(degree) for degree, *_ in points),
            y=tuple(middle for _, middle, _, _ in points),
            low=tuple(low for _, _, low, _ in points),
            high=tuple(high for *_, high in points),
        )
        for gpu in sorted(course.clocks)
        if (points := course.clock_by_heat(gpu))
    ]
    if not lines:
        return []
    return [
        Lines(
            title=f"Clock by temperature while {workload} was timed",
            name="clock_temperature",
            x_axis="temperature (°C)",
            y_axis="SM clock (MHz)",
            lines=tuple(lines),
            note="The median at each degree, with its quartiles, over all cases with this base.",
        )
    ]


def workloads_of(pairs: Sequence[tuple[Placed, Record]]) -> str:
    """Return what is timed in these trials."""
    return ", ".join(dict.fromkeys(where.case.base.subject.label for where, _ in pairs))
