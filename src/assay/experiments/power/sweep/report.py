"""The report of ``assay power sweep``: tables, figures and data quality; as files a row for each device and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay.core.format import format_joules, format_percent, format_time, ratio_cell
from assay.core.page import LinePlot, PlotLine, Section, StripPlot, StripRow, Text
from assay.experiments.base import Report
from assay.experiments.power.rows import (
    SWEEP_FILE,
    SweepRow,
    energy_fields,
    identify_device,
    rows_to_csv,
    rows_to_json_lines,
)
from assay.experiments.power.sweep.curve import build_study
from assay.experiments.power.sweep.findings import axis_name, build_findings
from assay.experiments.power.sweep.options import KNOBS, axis_value, setting_phrase, setting_text, step_text
from assay.experiments.power.sweep.plan import persistence_note
from assay.experiments.reporting import (
    compose_page,
    fixed_cell,
    measured_table,
    monitor_table,
    notes_table,
    overall_origin,
    overrun_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.page import Cell, Element, Page, Tone
    from assay.core.results import Estimate, Findings
    from assay.experiments.power.sweep.curve import CapBinding, SweepCurve, SweepStep, SweepStudy
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.machine.model import Machine
    from assay.store.records import Records

    Columns = dict[str, Callable[[SweepStep], Cell]]


LOG_AXIS_RATIO = 8.0
"""From this ratio of the largest to the smallest size on, sizes have a logarithmic axis."""
JOULE_SCALES = ((1e-12, "pJ"), (1e-9, "nJ"), (1e-6, "µJ"), (1e-3, "mJ"), (1.0, "J"))
BAND_NOTE = "The band is the 95 % interval over the repeats."
MEAN_NOTE = "Mean over the repeats."
BINDING_TEXTS: dict[CapBinding, str] = {"binds": "binds", "does_not_bind": "does not bind", "unclear": "unclear"}
MAX_TRIALS_NAMED = 3
SWEEP_CSV = "power/sweep.csv"


def build_report(machine: Machine, options: SweepOptions, records: Records) -> Report:
    """Return where each device spends the least energy, the curves, and a row for each device and step as files."""
    study = build_study(options, records)
    findings = build_findings(options, study, records)
    rows = [_build_row(machine, options, records, curve, step) for curve in study.curves for step in curve.all_steps]
    page = build_page(machine, options, study, findings, records)
    return Report(findings, page, {SWEEP_FILE: rows_to_json_lines(rows), SWEEP_CSV: rows_to_csv(rows)})


def _build_row(
    machine: Machine, options: SweepOptions, records: Records, curve: SweepCurve, step: SweepStep
) -> SweepRow:
    trials = {reading.trial for reading in step.readings}
    step_records = [record for record in records if record.trial in trials]
    subject = options.points[step.index].subject
    first = step.readings[0]
    by_start = [samples for reading in step.readings for samples in reading.samples]
    pooled = np.concatenate(by_start)
    low, middle, high = np.quantile(pooled, [0.25, 0.5, 0.75])
    mean = float(pooled.mean())
    return SweepRow(
        run=records.run,
        started_at=min(record.window.started_at for record in step_records),
        host=machine.host,
        **identify_device(machine, curve.device),
        origin=overall_origin(step_records),
        n=sum(reading.calls for reading in step.readings),
        quantity=first.quantity,
        median_us=step.time_us.value,
        low_us=step.time_us.low,
        high_us=step.time_us.high,
        quartiles_us=(float(low), float(middle), float(high)),
        mean_us=mean,
        cv=float(pooled.std(ddof=1)) / mean if len(pooled) > 1 and mean > 0 else None,
        restart_medians_us=tuple(float(np.median(samples)) for samples in by_start),
        **energy_fields(step.energy_j),
        gflop_per_j=_gflop_per_j(step),
        **{name: step.mean(name) for name in ("power_w", "sm_mhz", "temperature_c", "utilisation_percent")},
        held_back=step.held_back() or {},
        workload=options.workload,
        params=dict(subject.params) if subject is not None else {},
        knob=options.knob,
        setting=step.setting,
        calls_per_s=step.calls_per_s.value,
        work_per_call=first.flop or first.bytes_moved,
    )


def _gflop_per_j(step: SweepStep) -> float | None:
    """Return the operations of a joule, in billions; null where either is not known."""
    flop = step.readings[0].flop
    return flop / step.energy_j.value / 1e9 if flop is not None and step.energy_j is not None else None


def build_page(
    machine: Machine, options: SweepOptions, study: SweepStudy, findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    settle = "not waited for" if options.settle_s is None else f"at most {options.settle_s:g} s"
    several = len(study.curves) > 1
    activity = [element for curve in study.curves for element in activity_table(options, curve, several=several)]
    return compose_page(
        machine,
        records,
        title=f"assay power sweep: {options.workload}, {sum(p.setting is not None for p in options.points)} steps",
        lead=findings.headline,
        lead_tone="plain" if study.curves else "bad",
        sections=[
            Section(title="Results", elements=_result_elements(machine, options, study, findings)),
            Section(title="Curves", elements=(*sweep_figures(options, study.curves), *activity)),
            Section(title="What it rests on", elements=_method_elements(options, study, records)),
        ],
        facts={
            "devices": f"{', '.join(options.devices)}{', together' if options.together else ''}",
            "repeats": f"{len({record.block for record in records})} of {options.repeat}",
            "per trial": f"{options.duration_s:g} s, steadiness {settle}",
            "seed": str(options.seed),
        },
    )


def _result_elements(
    machine: Machine, options: SweepOptions, study: SweepStudy, findings: Findings
) -> tuple[Element, ...]:
    several = len(study.curves) > 1
    doubts = [
        f"{finding.claim if finding.estimate is not None else 'Energy on ' + str(finding.facts['device'])}: "
        f"{finding.reason}."
        for finding in findings.findings
        if finding.kind == "best_energy" and finding.verdict == "unsure" and finding.reason
    ]
    refused = [
        Text(text=f"{setting_phrase(options.knob, point.setting)}: refused, {point.refused}", tone="bad")
        for point in options.points
        if point.refused is not None
    ]
    loose = persistence_note(machine, options) if options.capped else None
    return (
        *(element for curve in study.curves for element in curve_table(options, curve, several=several)),
        *(Text(text=doubt, tone="unsure") for doubt in doubts),
        *refused,
        *([Text(text=loose, tone="unsure")] if loose is not None else []),
        *overrun_lines(options.budget_s, [record for _, record in study.pairs]),
    )


def curve_table(options: SweepOptions, curve: SweepCurve, *, several: bool) -> list[Element]:
    """Return a device's curve in numbers, and remarks on each step."""
    compared = options.reference is not None
    columns: Columns = {
        **_setting_column(options),
        "": lambda step: _step_remarks(options, curve, step),
        "a call": lambda step: format_time(step.time_us.value),
        "energy of a call": lambda step: _joules_cell(step.energy_j, bare=compared),
    }
    if compared:
        columns |= {
            "× time": lambda step: ratio_cell(step.slowdown),
            "× energy": lambda step: ratio_cell(step.energy_ratio),
        }
    else:
        columns |= _WORK_COLUMNS
    note = f"Intervals are over {options.repeat} repeats, in each of which every step is measured once in random order."
    if options.capped:
        note += (
            " × time and × energy are of a call, against the GPU as it was found: taken within each repeat, with "
            "intervals that hold for all steps together. A cap does not bind where the GPU draws less, is not held "
            "back by it, and is as fast as it was found."
        )
    return measured_table(
        f"{options.workload} on {curve.device}" if several else f"{options.workload}, step by step",
        curve.all_steps,
        columns,
        text=(*_setting_column(options), ""),
        tone=lambda step: _step_tone(curve, step),
        note=note,
    )


def _setting_column(options: SweepOptions) -> Columns:
    return {KNOBS[options.knob].short: lambda step: setting_text(options.knob, step.setting)}


def _rate(step: SweepStep, name: str, scale: float) -> float | None:
    work = getattr(step.readings[0], name)
    return work * step.calls_per_s.value / scale if work else None


_WORK_COLUMNS: Columns = {
    "TFLOP/s": lambda step: _rate(step, "flop", 1e12),
    "GB/s": lambda step: None if step.readings[0].flop else _rate(step, "bytes_moved", 1e9),
    "GFLOP/J": _gflop_per_j,
}


def _joules_cell(estimate: Estimate | None, *, bare: bool) -> str | None:
    """Write an energy, with its interval where no ratio stands beside it."""
    if estimate is None:
        return None
    return format_joules(estimate.value, *((None, None) if bare else (estimate.low, estimate.high)))


def _step_remarks(options: SweepOptions, curve: SweepCurve, step: SweepStep) -> str:
    """Say what a step is: the best, as good as the best, the furthest within the slowdown, a cap that does nothing."""
    if step.setting is None:
        return ""
    remarks = []
    best, delay = curve.best, curve.best_delay
    if best is not None and step.index == best.index:
        remarks.append("least energy" if best.is_clear else "least energy?")
    elif best is not None and best.chance and step.index in best.may_be:
        remarks.append("may be least")
    if delay is not None and step.index == delay.index and delay.chance:
        remarks.append("least energy × time")
    within = curve.within(options.max_slowdown) if options.capped else None
    if within is not None and within.index == step.index:
        remarks.append(f"lowest within {format_percent(options.max_slowdown, digits=3)}")
    if step.binds == "does_not_bind":
        remarks.append(BINDING_TEXTS[step.binds])
    return ", ".join(remarks)


def _step_tone(curve: SweepCurve, step: SweepStep) -> Tone:
    if curve.best is not None and step.index == curve.best.index:
        return "good" if curve.best.is_clear else "unsure"
    return "plain"


def activity_table(options: SweepOptions, curve: SweepCurve, *, several: bool) -> list[Element]:
    """Return work, power, clock and temperature of the device at each step, and what held it back."""

    def throttled(step: SweepStep) -> str | None:
        return None if step.power_capped is None else format_percent(step.power_capped)

    columns: Columns = {
        **_setting_column(options),
        "power, W": lambda step: fixed_cell(step.mean("power_w")),
        **(_WORK_COLUMNS if options.reference is not None else {}),
        "SM clock, MHz": lambda step: fixed_cell(step.mean("sm_mhz")),
        "°C": lambda step: fixed_cell(step.mean("temperature_c")),
        "held by power": throttled,
        "cap": lambda step: None if step.binds is None else BINDING_TEXTS[step.binds],
    }
    if all(cell(step) is None for cell in list(columns.values())[1:] for step in curve.all_steps):
        return []
    return measured_table(
        f"What {curve.device} did meanwhile" if several else "What the device did meanwhile",
        curve.all_steps,
        columns,
        text=(*_setting_column(options), "cap"),
        note="Means over the repeats. Held by power: the share of the time, as the GPU itself says.",
    )


class PlottedValue(NamedTuple):
    """A value with its ends; null: not measured."""

    value: float | None
    low: float | None = None
    high: float | None = None


class FigureSpec(NamedTuple):
    """What one figure shows: its title, the name of its file, its axis, what it takes from a step, and a note."""

    title: str
    name: str
    axis: str
    value: Callable[[SweepStep], PlottedValue]
    note: str


def sweep_figures(options: SweepOptions, curves: Sequence[SweepCurve]) -> list[Element]:
    """Return a figure for each quantity that was measured, a line for each device."""
    draw = _strip_figure if options.knob == "dtype" else _line_figure
    return [
        draw(options, curves, spec)
        for spec in _figure_specs(options, curves)
        if any(spec.value(step).value is not None for curve in curves for step in curve.steps)
    ]


def _figure_specs(options: SweepOptions, curves: Sequence[SweepCurve]) -> list[FigureSpec]:
    unit = next((curve.unit for curve in curves), None) or "call"
    per = "item of the batch" if unit == "item" else unit
    steps = [step for curve in curves for step in curve.steps]
    largest_j = max((step.cost_j.value for step in steps if step.cost_j is not None), default=1.0)
    scale, joules = next((pair for pair in JOULE_SCALES if largest_j < 1000 * pair[0]), JOULE_SCALES[-1])
    rate = "calls/s"
    if all(step.readings[0].flop for step in steps):
        rate = "TFLOP/s"
    elif all(step.readings[0].bytes_moved for step in steps):
        rate = "GB/s"

    def throttled(step: SweepStep) -> PlottedValue:
        return PlottedValue(None if step.power_capped is None else 100 * step.power_capped)

    specs = [
        ("Work", "sweep_rate", f"work ({rate})", _rate_value, BAND_NOTE),
        ("Energy", "sweep_energy", f"energy of a {per} ({joules})", lambda s: _plotted(s.cost_j, scale), BAND_NOTE),
        ("Power drawn", "sweep_power", "power (W)", lambda s: PlottedValue(s.mean("power_w")), MEAN_NOTE),
        ("SM clock", "sweep_clock", "SM clock (MHz)", lambda s: PlottedValue(s.mean("sm_mhz")), MEAN_NOTE),
    ]
    if options.capped:
        note = "Share of the time that the power cap held the clock back."
        specs.append(("Held back by power", "sweep_throttle", "share of the time (%)", throttled, note))
    return [FigureSpec(*spec) for spec in specs]


def _rate_value(step: SweepStep) -> PlottedValue:
    reading = step.readings[0]
    if reading.flop:
        return _plotted(step.calls_per_s, 1e12 / reading.flop)
    return _plotted(step.calls_per_s, 1e9 / reading.bytes_moved if reading.bytes_moved else 1.0)


def _plotted(estimate: Estimate | None, scale: float) -> PlottedValue:
    if estimate is None:
        return PlottedValue(None)
    ends = (None if end is None else end / scale for end in (estimate.low, estimate.high))
    return PlottedValue(estimate.value / scale, *ends)


def _line_figure(options: SweepOptions, curves: Sequence[SweepCurve], spec: FigureSpec) -> LinePlot:
    """Return a line for each device; of a single device also the level at which it was found."""
    lines = []
    for curve in curves:
        steps = sorted(curve.steps, key=lambda step: axis_value(options.knob, step.setting))
        x = tuple(axis_value(options.knob, step.setting) for step in steps)
        y, low, high = (tuple(column) for column in zip(*(spec.value(step) for step in steps), strict=True))
        banded = any(end is not None for end in low)
        lines.append(PlotLine(label=curve.device, x=x, y=y, low=low if banded else None, high=high if banded else None))
    alone = len(curves) == 1
    xs = [x for line in lines for x in line.x]
    reference = curves[0].reference if alone else None
    level = spec.value(reference).value if reference is not None else None
    if level is not None and len(xs) > 1:
        lines.append(PlotLine(label="as found", x=(xs[0], xs[-1]), y=(level, level)))
    return LinePlot(
        title=f"{spec.title} over the {axis_name(options)}",
        name=spec.name,
        x_axis=KNOBS[options.knob].axis,
        y_axis=spec.axis,
        lines=tuple(lines),
        log_x=options.knob in {"size", "batch"} and max(xs) >= LOG_AXIS_RATIO * min(xs),
        note=f"{spec.note} Flat: as it was found." if alone and options.reference is not None else spec.note,
    )


def _strip_figure(options: SweepOptions, curves: Sequence[SweepCurve], spec: FigureSpec) -> StripPlot:
    """Return the steps of a knob that has no order, a row each."""
    what, _, unit = spec.axis.rstrip(")").partition(" (")
    rows = []
    for curve in curves:
        for step in curve.steps:
            label = f"{f'{curve.device}, ' if len(curves) > 1 else ''}{setting_text(options.knob, step.setting)}"
            rows.append(StripRow(label=label, samples=(), **spec.value(step)._asdict()))
    title = f"{spec.title} by dtype"
    return StripPlot(title=title, name=spec.name, axis=what, unit=unit, strips=tuple(rows), note=spec.note)


def _method_elements(options: SweepOptions, study: SweepStudy, records: Records) -> tuple[Element, ...]:
    """Return the words and tables behind the curves."""
    labels = {
        record.trial: f"{record.block.replace('-', ' ')}, {step_text(options, options.points[visit.point].setting)}"
        + (f" on {', '.join(visit.devices)}" if len(options.devices) > len(visit.devices) else "")
        for visit, record in study.pairs
    }
    return (
        *_sensor_note(study),
        *_settling_note(options, records, labels),
        *monitor_table(records, labels),
        *notes_table(records, labels),
    )


def _sensor_note(study: SweepStudy) -> list[Element]:
    """Say how much of a trial's energy its sensor leaves open, beside what the repeats show."""
    halves = [r.energy_j.relative_half_width for r in study.readings if r.energy_j is not None]
    present = [half for half in halves if half is not None]
    if not present:
        return []
    open_share = format_percent(float(np.median(present)))
    text = f"Beside chance, the sensor leaves ±{open_share} of the energy of a trial open"
    return [Text(text=f"{text}; what is common to all steps cancels between them. Longer trials leave less open.")]


def _settling_note(options: SweepOptions, records: Records, labels: dict[str, str]) -> list[Element]:
    """Say which trials were timed before clocks and heat were steady."""
    on_gpu = any(device.startswith("cuda") for device in options.devices)
    waited = [record for record in records if record.settled is not None] if on_gpu else []
    restless = [labels.get(r.trial, r.block) for r in waited if r.settled is not None and not r.settled.steady]
    if not restless:
        return []
    more = len(restless) - MAX_TRIALS_NAMED
    named = "; ".join(restless[:MAX_TRIALS_NAMED]) + (f" and {more} more" if more > 0 else "")
    text = f"In {len(restless)} of {len(waited)} trials clocks and heat were not steady after {options.settle_s:g} s"
    return [Text(text=f"{text}: {named}. A longer --settle waits for them.", tone="unsure")]
