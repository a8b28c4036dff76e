"""The page of ``assay power characterize``: times, power, contention effects, figures, method and data quality.

Sensors over time are read in one pass over the recording, in little memory: power of each GPU over the whole run and,
at full resolution, around one trial; clocks by temperature while the base was timed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import (
    change_cell,
    format_change,
    format_count,
    format_duration,
    format_joules,
    format_percent,
    format_range,
    time_cell,
    typeset_minus,
)
from assay.core.page import LinePlot, PlotLine, Section, StripPlot, StripRow, Text, Timeline, TimelineBar
from assay.experiments.power.characterize.findings import NOTHING_MEASURED
from assay.experiments.power.characterize.plan import device_noun, distance_text, gpu_number, is_idle
from assay.experiments.power.characterize.study import gpu_name, least_contended_case
from assay.experiments.reporting import (
    EFFECT_TONES,
    TIME_AXES,
    compose_page,
    fixed_cell,
    measured_table,
    monitor_table,
    notes_table,
    overrun_lines,
    primary_time,
)
from assay.monitor.report import DownsampledLine
from assay.monitor.samples import POWER_QUANTITIES, GpuSample, RecordingHeader, quantity_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.page import Cell, Element, Page, Tone
    from assay.core.results import Estimate, Findings, Record, SettlingResult, Verdict
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.plan import PlacedCase
    from assay.experiments.power.characterize.study import CaseEffect, GpuCase, PowerStudy
    from assay.machine.model import Machine
    from assay.stats.intervals import Samples
    from assay.store.records import Records

    TrialPair = tuple[PlacedCase, Record]


VERDICT_TEXTS: dict[Verdict, str] = {"yes": "yes", "no": "no", "unsure": "not decided"}
VERDICT_TONES: dict[Verdict, Tone] = {**EFFECT_TONES, "no": "plain"}
MAX_SAMPLES = 5000
"""Samples in a strip; of more, evenly spread ranks are kept."""
DETAIL_QUANTITIES = (*POWER_QUANTITIES, "sm_mhz", "temperature_c")


def build_page(
    machine: Machine, options: CharacterizeOptions, study: PowerStudy, findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    plain = least_contended_case(options, study)
    base = plain.base.subject if plain is not None else None
    pairs = [pair for pair in study.pairs if pair[1].status == "ok" and pair[0].case.base.subject == base]
    shown = next((pair for pair in pairs if plain is not None and pair[0].case.name == plain.name), None)
    timeline = read_timeline(records, pairs, shown[1] if shown else None)
    labels = {
        record.trial: f"repeat {where.repeat}, {where.case.name}, {_gpu_names(where.base)}"
        for where, record in study.pairs
    }
    measured, every = len({gpu.case for gpu in study.gpus}), len(options.cases) + len(options.skipped)
    cases = format_count(every, "case")
    count, noun = len(options.devices), device_noun(options.devices, len(options.devices))
    return compose_page(
        machine,
        records,
        title=f"assay power characterize: {cases if measured == every else f'{measured} of {cases}'} on {count} {noun}",
        lead=findings.headline,
        lead_tone="bad" if findings.headline == NOTHING_MEASURED else "plain",
        sections=[
            Section(title="Results", elements=_result_elements(options, study, records)),
            Section(title="Every kernel", elements=tuple(kernel_strips(options, study, records))),
            Section(
                title="Watts, clocks and heat",
                elements=(
                    *(trial_timeline(timeline, *shown) if shown is not None else ()),
                    *clock_by_temperature(timeline, pairs),
                    *run_timeline(study, timeline),
                ),
            ),
            Section(
                title="What it rests on",
                elements=(
                    *placement_table(machine, study),
                    *settling_table(study),
                    *monitor_table(records, labels),
                    *notes_table(records, labels),
                ),
            ),
        ],
        facts=_page_facts(options, records, timeline),
    )


def _page_facts(options: CharacterizeOptions, records: Records, timeline: SensorTimeline) -> dict[str, str]:
    watched = "nobody watched"
    if timeline.interval_s is not None:
        watched = f"all {timeline.gpus} GPUs by one recorder, each every {1e3 * timeline.interval_s:.0f} ms"
    durations = sorted({case.duration_s for case in options.cases})
    return {
        "devices": ", ".join(options.devices),
        "cases": options.source or "as given",
        "repeats": f"{len({record.block for record in records})} of {options.repeats}",
        "timed per trial": " or ".join(map(format_duration, durations)),
        "sensors": watched,
        "seed": str(options.seed),
    }


def _result_elements(options: CharacterizeOptions, study: PowerStudy, records: Records) -> tuple[Element, ...]:
    idle = {case.name for case in options.cases if is_idle(case)}
    least = format_percent(options.minimum_effect)
    note = (
        f"The same {device_noun(options.devices, 2)} in the same repeats, with intervals over repeats. It counts where "
        f"the interval excludes none and the change is more than {least}."
    )
    return (
        *time_table([gpu for gpu in study.gpus if gpu.case not in idle]),
        *power_table(study),
        *_missing_power_notes(study),
        *_mixed_models_note(study),
        *_effect_table("Effect of contention", "against", study.contention, note),
        *_effect_table("Far instead of near neighbours", "near", study.distance, note),
        *spread_table(options, study),
        *measured_table(
            "Cases that do not fit here",
            study.skipped.items(),
            {"case": lambda item: item[0], "status": lambda _: "skipped", "reason": lambda item: item[1]},
            text=("case", "status", "reason"),
        ),
        *overrun_lines(options.budget_s, records),
    )


def time_table(gpus: Sequence[GpuCase]) -> list[Element]:
    """Return how long a kernel takes on each GPU in each case."""
    if not gpus:
        return []
    calls, processes = [gpu.n for gpu in gpus], [gpu.processes for gpu in gpus]
    ranges = [format_range(str(min(counts)), str(max(counts))) for counts in (calls, processes)]
    often = f"{ranges[0]} calls in {ranges[1]} process{'' if max(processes) == 1 else 'es'} each"
    return measured_table(
        "Time of one kernel",
        gpus,
        {
            "case": lambda gpu: gpu.case,
            "device": lambda gpu: gpu.name,
            "median": lambda gpu: time_cell(gpu.time),
            "IQR": lambda gpu: format_percent((gpu.quartiles_us[2] - gpu.quartiles_us[0]) / gpu.time.value),
            "CV": lambda gpu: None if gpu.cv is None else format_percent(gpu.cv),
        },
        text=("case", "device"),
        note="The interval is over repeats where there are several, else over starts of the worker, else within it. "
        f"IQR (of the median) and CV: of the same kernel again and again, {often}.",
    )


def power_table(study: PowerStudy) -> list[Element]:
    """Return what each GPU drew and spent, how fast it ran and how hot it was; nothing where no sensor was read."""
    return measured_table(
        "Watts, joules, clocks and heat",
        [gpu for gpu in study.gpus if gpu.mean("power_w") is not None or gpu.mean("sm_mhz") is not None],
        {
            "case": lambda gpu: gpu.case,
            "device": lambda gpu: gpu.name,
            "power, W": lambda gpu: fixed_cell(gpu.mean("power_w")),
            "energy a kernel": lambda gpu: _joules_cell(gpu.energy),
            "GFLOP/J": lambda gpu: fixed_cell(gpu.mean("gflop_per_j"), 1),
            "SM, MHz": lambda gpu: fixed_cell(gpu.mean("sm_mhz")),
            "°C": lambda gpu: fixed_cell(gpu.mean("temperature_c"), 1),
            "throttled": lambda gpu: "; ".join(f"{r} {format_percent(s)}" for r, s in gpu.held_back().items()) or None,
        },
        text=("case", "device"),
        note="Means over the time in which kernels followed one another. Energy: of the card, idle power included. "
        "Held back: share of the time.",
    )


def _joules_cell(energy: Estimate | None) -> str | None:
    return None if energy is None else format_joules(energy.value, energy.low, energy.high, digits=3)


def _effect_table(title: str, against: str, effects: Sequence[CaseEffect], note: str) -> list[Element]:
    """Return what contention does to what is timed; a reference that is common to all is in the note."""
    references = {effect.against for effect in effects}
    common = len(references) == 1
    return measured_table(
        title,
        effects,
        {
            "case": lambda effect: effect.case,
            **({} if common else {against: lambda effect: effect.against}),
            "time": lambda effect: change_cell(effect.time),
            "counts": lambda effect: VERDICT_TEXTS[effect.verdict],
            "energy a kernel": lambda effect: change_cell(effect.energy),
            "SM clock": lambda effect: None if effect.clock is None else format_change(effect.clock.value),
            "°C": lambda effect: None if effect.hotter_c is None else typeset_minus(f"{effect.hotter_c:+.1f}"),
        },
        text=("case", against, "counts"),
        tone=lambda effect: VERDICT_TONES[effect.verdict],
        note=f"Against {effects[0].against!r}. {note}" if common else note,
    )


def spread_table(options: CharacterizeOptions, study: PowerStudy) -> list[Element]:
    """Return how unequal the GPUs are, a row for each case and model."""
    several = len({spread.model for spread in study.spreads}) > 1
    noun = device_noun(options.devices, 2)
    return measured_table(
        f"How unequal the {noun} are",
        study.spreads,
        {
            "case": lambda spread: f"{spread.case}, {spread.model}" if several else spread.case,
            "slowest": lambda spread: spread.slowest,
            "fastest": lambda spread: spread.fastest,
            "slowest over fastest": lambda spread: change_cell(spread.ratio),
            "counts": lambda spread: VERDICT_TEXTS[spread.verdict],
            "CV between them": lambda spread: format_percent(spread.cv),
            "of": lambda spread: spread.gpus,
        },
        text=("case", "slowest", "fastest", "counts"),
        tone=lambda spread: VERDICT_TONES[spread.verdict],
        note=f"Of {noun} of one model in the same repeats. The interval is widened, as the two were picked among all; "
        f"it counts where it excludes none and the difference is more than {format_percent(options.minimum_effect)}. "
        "`assay power variability` says more, over many runs.",
    )


def _missing_power_notes(study: PowerStudy) -> list[Element]:
    """Say why there are no watts, where there are none; and why some energy is missing."""
    if not study.gpus:
        return []
    if not any(record.during is not None for _, record in study.pairs):
        text = "No monitor watched: there are times, and neither watts nor clocks nor heat beside them."
        return [Text(text=text, tone="unsure")]
    if not any(gpu.one.device.startswith("cuda") for gpu in study.gpus):
        return [
            Text(
                text="Groups of cores have no sensors of their own: power, clocks and temperature are measured of GPUs."
            )
        ]
    notes = dict.fromkeys(
        stats.energy_missing.detail
        for _, record in study.pairs
        if record.during is not None and record.status == "ok"
        for stats in record.during.gpus
        if stats.energy_missing is not None
    )
    return [Text(text=f"Some energy is missing: {note}.", tone="unsure") for note in list(notes)[:2]]


def _mixed_models_note(study: PowerStudy) -> list[Element]:
    """Say so where GPUs of different models were measured."""
    names: dict[str, dict[str, None]] = {}
    for gpu in study.gpus:
        names.setdefault(gpu.one.model, {})[gpu.name] = None
    if len(names) < 2:
        return []
    models = "; ".join(f"{model}: {', '.join(gpus)}" for model, gpus in names.items())
    return [Text(text=f"GPUs of different models are here ({models}); each is compared with its own kind only.")]


def settling_table(study: PowerStudy) -> list[Element]:
    """Return how long each trial waited for steady clocks and heat, and how steady they were."""

    def joined(values: Iterable[float], decimals: int) -> str | None:
        return " ".join(f"{value:.{decimals}f}" for value in values) or None

    columns: dict[str, Callable[[tuple[PlacedCase, SettlingResult]], Cell]] = {
        "repeat": lambda row: row[0].repeat,
        "case": lambda row: row[0].case.name,
        "timed on": lambda row: _gpu_names(row[0].base),
        "waited, s": lambda row: f"{row[1].waited_s:.0f}",
        "steady": lambda row: "yes" if row[1].steady else "no",
        "°C": lambda row: joined(row[1].temperature_c.values(), 0),
        "°C a minute": lambda row: joined(row[1].drift_c.values(), 1),
        "note": lambda row: row[1].note,
    }
    return measured_table(
        "How steady clocks and heat were before timing",
        [(where, record.settled) for where, record in study.pairs if record.settled is not None],
        columns,
        text=columns,
        tone=lambda row: "plain" if row[1].steady else "unsure",
    )


def _gpu_names(devices: tuple[str, ...]) -> str:
    return ", ".join(map(gpu_name, devices))


def placement_table(machine: Machine, study: PowerStudy) -> list[Element]:
    """Return who was timed where, beside what, and how far away that was."""

    def loads_text(where: PlacedCase) -> str | None:
        parts = []
        for load in where.noise:
            far = distance_text(machine, where.base[0], load.device)
            parts.append(f"{load.part.subject.workload} on {gpu_name(load.device)}{f' ({far})' if far else ''}")
        return ", ".join(parts) or None

    ordered = sorted((where for where, _ in study.pairs), key=lambda where: (where.repeat, where.base))
    rows = dict.fromkeys((w.repeat, w.case.name, _gpu_names(w.base), loads_text(w)) for w in ordered)
    return measured_table(
        "Who ran where",
        rows,
        {
            "repeat": lambda row: row[0],
            "case": lambda row: row[1],
            "timed on": lambda row: row[2],
            "beside": lambda row: row[3],
        },
        text=("repeat", "case", "timed on", "beside"),
    )


def kernel_strips(options: CharacterizeOptions, study: PowerStudy, records: Records) -> list[Element]:
    """Return a figure for each case with a strip for each GPU: every kernel, the median and its interval."""
    figures: list[Element] = []
    for number, case in enumerate(options.cases):
        gpus = [gpu for gpu in study.gpus if gpu.case == case.name and not is_idle(case)]
        if gpus:
            unit, scale = ("ms", 1e-3) if min(gpu.time.value for gpu in gpus) >= 1000 else ("µs", 1.0)
            strips = []
            for gpu in gpus:
                samples = tuple((_case_samples(study, records, gpu) * scale).tolist())
                low, high = (None if end is None else end * scale for end in (gpu.time.low, gpu.time.high))
                value = gpu.time.value * scale
                strips.append(StripRow(label=gpu.name, samples=samples, value=value, low=low, high=high))
            title, axis = f"Every kernel: {case.name}", TIME_AXES[gpus[0].one.quantity]
            name = f"kernels_{number}"
            figures.append(StripPlot(title=title, name=name, axis=axis, unit=unit, strips=tuple(strips)))
    return figures


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


@dataclass
class SensorTimeline:
    """Sensors over a run, in s since ``zero_ns``; those of the one trial that is shown closely, since its start.

    ``shown`` is when that trial was, ``busy`` when the base was timed on each GPU, both in ns.
    """

    zero_ns: int
    shown: tuple[int, int]
    busy: dict[int, list[tuple[int, int]]]
    watts: dict[int, DownsampledLine] = field(default_factory=dict)
    details: dict[tuple[int, str], DownsampledLine] = field(default_factory=dict)
    clocks: dict[int, dict[int, list[float]]] = field(default_factory=dict)
    interval_s: float | None = None
    gpus: int = 0

    def add(self, sample: GpuSample) -> None:
        """Take one sample of one GPU."""
        power_w = next((value for name in POWER_QUANTITIES if (value := getattr(sample, name)) is not None), None)
        if power_w is not None:
            self.watts.setdefault(sample.gpu, DownsampledLine()).add((sample.t_ns - self.zero_ns) / 1e9, power_w)
        if self.shown[0] <= sample.t_ns <= self.shown[1]:
            at_s = (sample.t_ns - self.shown[0]) / 1e9
            for name in DETAIL_QUANTITIES:
                if (value := getattr(sample, name)) is not None:
                    self.details.setdefault((sample.gpu, name), DownsampledLine()).add(at_s, float(value))
        is_busy = any(start_ns <= sample.t_ns <= end_ns for start_ns, end_ns in self.busy.get(sample.gpu, ()))
        if is_busy and sample.temperature_c is not None and sample.sm_mhz is not None:
            clocks = self.clocks.setdefault(sample.gpu, {})
            clocks.setdefault(sample.temperature_c, []).append(float(sample.sm_mhz))


def read_timeline(records: Records, pairs: Sequence[TrialPair], shown: Record | None) -> SensorTimeline:
    """Return the sensors of a run: ``pairs`` are the trials whose clocks count, ``shown`` is looked at closely."""
    busy: dict[int, list[tuple[int, int]]] = {}
    for where, record in pairs:
        for series in record.series:
            span = (series.start_ns, series.end_ns)
            if series.role in where.base and series.role.startswith("cuda:") and "/" not in series.role:
                spans = busy.setdefault(gpu_number(series.role), [])
                spans += [span] if span not in spans else []
    zero_ns = min((record.window.start_ns for record in records), default=0)
    close = (shown.window.start_ns, shown.window.end_ns) if shown is not None else (0, -1)
    timeline = SensorTimeline(zero_ns, close, busy)
    for line in records.watched():
        if isinstance(line, RecordingHeader):
            timeline.interval_s, timeline.gpus = line.interval_s, len(line.gpus)
        elif isinstance(line, GpuSample):
            timeline.add(line)
    return timeline


def _plot_line(label: str, line: DownsampledLine) -> PlotLine:
    return PlotLine(label=label, x=tuple(x for x, _ in line.points), y=tuple(y for _, y in line.points))


def trial_timeline(timeline: SensorTimeline, where: PlacedCase, record: Record) -> list[Element]:
    """Return one trial from its start to its end: watts by each name that the GPU has for them, clock and heat."""
    gpu = gpu_number(where.base[0]) if where.base[0].startswith("cuda") else -1
    details = {name: line for (of_gpu, name), line in timeline.details.items() if of_gpu == gpu}
    watts = [
        _plot_line(quantity_info(name, gpu=True).title.removeprefix("power, "), details[name])
        for name in POWER_QUANTITIES
        if name in details
    ]
    bars = _stage_bars(record, where.base[0])
    if not watts or not bars:
        return []
    what = f"{where.case.name}, {gpu_name(where.base[0])}, repeat {where.repeat}"
    figures: list[Element] = [
        Timeline(
            title=f"Power over time: {what}",
            name="power_time",
            bars=bars,
            lines=tuple(watts),
            lines_axis="W",
            note="As the card tells it; where it has both, the average of the last second lags behind.",
        )
    ]
    for quantity, what_of, name, axis in (
        ("sm_mhz", "SM clock", "clock_time", "SM clock (MHz)"),
        ("temperature_c", "Temperature", "heat_time", "temperature (°C)"),
    ):
        if quantity in details and len(details[quantity].points) > 1:
            lines = (_plot_line(axis, details[quantity]),)
            title = f"{what_of} over time: {what}"
            figures.append(LinePlot(title=title, name=name, x_axis="time (s)", y_axis=axis, lines=lines, markers=False))
    return figures


def _stage_bars(record: Record, role: str) -> tuple[TimelineBar, ...]:
    """Return when a trial started its worker, waited for steadiness, and timed; from its own start on."""
    bars: list[TimelineBar] = []
    begin_s = 0.0
    before = "starting" if record.settled is None else "starting, settling"
    for span in sorted({(s.start_ns, s.end_ns) for s in record.series if s.role == role}):
        start_s, end_s = ((at_ns - record.window.start_ns) / 1e9 for at_ns in span)
        bars.append(TimelineBar(lane="untimed", label=before, start_s=begin_s, end_s=start_s))
        bars.append(TimelineBar(lane="timed", label="kernels", start_s=start_s, end_s=end_s))
        begin_s = end_s
    return tuple(bars)


def clock_by_temperature(timeline: SensorTimeline, pairs: Sequence[TrialPair]) -> list[Element]:
    """Return the clock that each GPU ran at, by its temperature, while the base was timed."""
    lines = []
    for gpu, clocks in sorted(timeline.clocks.items()):
        points = [np.quantile(clocks[degree], [0.5, 0.25, 0.75]).tolist() for degree in sorted(clocks)]
        middle, low, high = (tuple(column) for column in zip(*points, strict=True))
        x = tuple(float(degree) for degree in sorted(clocks))
        lines.append(PlotLine(label=f"GPU {gpu}", x=x, y=middle, low=low, high=high))
    if not lines:
        return []
    workload = ", ".join(dict.fromkeys(where.case.base.subject.label for where, _ in pairs))
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


def run_timeline(study: PowerStudy, timeline: SensorTimeline) -> list[Element]:
    """Return who was busy when, and what every GPU drew."""
    bars = [
        TimelineBar(
            lane=gpu_name(device),
            label=label,
            start_s=(start_ns - timeline.zero_ns) / 1e9,
            end_s=(end_ns - timeline.zero_ns) / 1e9,
            tone="plain" if record.status == "ok" else "bad",
        )
        for where, record in study.pairs
        for device, label, start_ns, end_ns in _busy_spans(where, record)
    ]
    if not bars:
        return []
    lines = [_plot_line(f"GPU {gpu}", watts) for gpu, watts in sorted(timeline.watts.items())]
    return [
        Timeline(
            title="Who was busy when, and what each GPU drew",
            name="run",
            bars=tuple(sorted(bars, key=lambda bar: bar.lane)),
            lines=tuple(line for line in lines if len(line.x) > 1),
            lines_axis="power (W)",
            note="Bars: what was timed, and loads beside it. Between them workers start and heat settles.",
        )
    ]


def _busy_spans(where: PlacedCase, record: Record) -> list[tuple[str, str, int, int]]:
    """Return device, label, start and end of each span in which a device was busy with what was kept."""
    loads = {f"{load.part.subject.label} on {load.device}": load for load in where.noise}
    spans: dict[str, list[int]] = {}
    for series in record.series:
        if series.role in where.base or series.role in loads:
            device = series.role if series.role in where.base else loads[series.role].device
            spans.setdefault(device, []).extend((series.start_ns, series.end_ns))
    workloads = {load.device: load.part.subject.workload for load in reversed(where.noise)}
    return [
        (device, where.case.name if device in where.base else workloads[device], min(times), max(times))
        for device, times in spans.items()
    ]
