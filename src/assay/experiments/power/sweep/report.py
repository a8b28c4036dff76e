"""The report of ``assay power sweep``.

Tables, figures and data quality, and a row for each device and step as files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay.core.format import format_joules, format_percent, format_time, ratio_cell
from assay.core.page import Column, LinePlot, PlotLine, Section, StripPlot, StripRow, Table, Text
from assay.experiments.base import Report
from assay.experiments.budget import overrun_text
from assay.experiments.power.rows import SWEEP_FILE, SweepRow, rows_to_csv
from assay.experiments.power.sweep.cap_changes import persistence_note
from assay.experiments.power.sweep.curve import POWER_CAP_REASON, build_study
from assay.experiments.power.sweep.findings import build_findings
from assay.experiments.power.sweep.options import KNOB_AXES, axis_value, setting_phrase, setting_text, step_text
from assay.experiments.reporting import compose_page, monitor_table, notes_table, overall_origin
from assay.machine.cuda_devices import gpu_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.page import Cell, Element, Page, Tone
    from assay.core.results import Estimate, Finding, Findings
    from assay.experiments.power.sweep.curve import CapBinding, SweepCurve, SweepStep, SweepStudy
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.machine.model import Machine
    from assay.store.records import Records


LOG_AXIS_RATIO = 8.0
"""From this ratio of the largest to the smallest size on, sizes stand on a logarithmic axis."""
JOULE_SCALES = ((1e-12, "pJ"), (1e-9, "nJ"), (1e-6, "µJ"), (1e-3, "mJ"), (1.0, "J"))
BAND_NOTE = "The band is the 95 % interval over the repeats."
MEAN_NOTE = "Mean over the repeats."
BINDING_TEXTS: dict[CapBinding, str] = {"binds": "binds", "does_not_bind": "does not bind", "unclear": "unclear"}
AXIS_UNIT_NAMES = {"call": "call", "FLOP": "FLOP", "byte": "byte", "item": "item of the batch"}


class PlottedValue(NamedTuple):
    """A value with its ends; null: not measured."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class FigureSpec:
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
        draw(options, curves, picture) for picture in _figure_specs(options, curves) if _has_values(curves, picture)
    ]


def _has_values(curves: Sequence[SweepCurve], picture: FigureSpec) -> bool:
    return any(picture.value(step).value is not None for curve in curves for step in curve.steps)


def _figure_specs(options: SweepOptions, curves: Sequence[SweepCurve]) -> list[FigureSpec]:
    unit = next((curve.unit for curve in curves), None)
    scale, joules = _joule_scale([step.cost_j for curve in curves for step in curve.steps])
    per = AXIS_UNIT_NAMES[unit] if unit is not None else "call"
    specs = [
        FigureSpec("Work", "sweep_rate", _rate_axis_title(curves), _rate_value, BAND_NOTE),
        FigureSpec(
            "Energy",
            "sweep_energy",
            f"energy of a {per} ({joules})",
            lambda s: _estimate_value(s.cost_j, scale),
            BAND_NOTE,
        ),
        FigureSpec("Power drawn", "sweep_power", "power (W)", lambda s: PlottedValue(s.mean("power_w")), MEAN_NOTE),
        FigureSpec("SM clock", "sweep_clock", "SM clock (MHz)", lambda s: PlottedValue(s.mean("sm_mhz")), MEAN_NOTE),
    ]
    if options.capped:
        note = "Share of the time that the power cap held the clock back."
        specs.append(
            FigureSpec("Held back by power", "sweep_throttle", "share of the time (%)", _throttled_value, note)
        )
    return specs


def _joule_scale(costs: Sequence[Estimate | None]) -> tuple[float, str]:
    """Return the unit of energy in which all costs read best."""
    largest = max((cost.value for cost in costs if cost is not None), default=1.0)
    return next(((scale, name) for scale, name in JOULE_SCALES if largest < 1000 * scale), JOULE_SCALES[-1])


def _rate_axis_title(curves: Sequence[SweepCurve]) -> str:
    steps = [step for curve in curves for step in curve.steps]
    if all(step.readings[0].flop for step in steps):
        return "work (TFLOP/s)"
    return "work (GB/s)" if all(step.readings[0].bytes_moved for step in steps) else "work (calls/s)"


def _rate_value(step: SweepStep) -> PlottedValue:
    reading = step.readings[0]
    if reading.flop:
        return _estimate_value(step.calls_per_s, 1e12 / reading.flop)
    return _estimate_value(step.calls_per_s, 1e9 / reading.bytes_moved if reading.bytes_moved else 1.0)


def _estimate_value(estimate: Estimate | None, scale: float) -> PlottedValue:
    if estimate is None:
        return PlottedValue(None)
    ends = (None if end is None else end / scale for end in (estimate.low, estimate.high))
    return PlottedValue(estimate.value / scale, *ends)


def _throttled_value(step: SweepStep) -> PlottedValue:
    reported = any(reading.held_back is not None for reading in step.readings)
    return PlottedValue(100 * step.held_back().get(POWER_CAP_REASON, 0.0) if reported else None)


def _line_figure(options: SweepOptions, curves: Sequence[SweepCurve], picture: FigureSpec) -> LinePlot:
    alone = len(curves) == 1
    lines = [line for curve in curves for line in _curve_lines(options, curve, picture.value, alone=alone)]
    xs = [x for line in lines for x in line.x]
    return LinePlot(
        title=f"{picture.title} over the {KNOB_AXES[options.knob].partition(' (')[0]}",
        name=picture.name,
        x_axis=KNOB_AXES[options.knob],
        y_axis=picture.axis,
        lines=tuple(lines),
        log_x=options.knob in {"size", "batch"} and max(xs) >= LOG_AXIS_RATIO * min(xs),
        note=f"{picture.note} Flat: as it was found." if alone and options.reference is not None else picture.note,
    )


def _curve_lines(
    options: SweepOptions, curve: SweepCurve, value: Callable[[SweepStep], PlottedValue], *, alone: bool
) -> list[PlotLine]:
    """Return a device's line; of a single device also the level at which it was found."""
    steps = sorted(curve.steps, key=lambda step: axis_value(options.knob, step.setting))
    values = [value(step) for step in steps]
    x = tuple(axis_value(options.knob, step.setting) for step in steps)
    banded = any(plotted.low is not None for plotted in values)
    lines = [
        PlotLine(
            label=curve.device,
            x=x,
            y=tuple(plotted.value for plotted in values),
            low=tuple(plotted.low for plotted in values) if banded else None,
            high=tuple(plotted.high for plotted in values) if banded else None,
        )
    ]
    reference_value = value(curve.reference).value if alone and curve.reference is not None else None
    if reference_value is not None and len(x) > 1:
        lines.append(PlotLine(label="as found", x=(x[0], x[-1]), y=(reference_value, reference_value)))
    return lines


def _strip_figure(options: SweepOptions, curves: Sequence[SweepCurve], picture: FigureSpec) -> StripPlot:
    """Return the steps of a knob that has no order, a row each."""
    what, _, unit = picture.axis.rstrip(")").partition(" (")
    rows = []
    for curve in curves:
        for step in curve.steps:
            plotted = picture.value(step)
            where = f"{curve.device}, " if len(curves) > 1 else ""
            label = f"{where}{setting_text(options.knob, step.setting)}"
            rows.append(StripRow(label=label, samples=(), value=plotted.value, low=plotted.low, high=plotted.high))
    title = f"{picture.title} by dtype"
    return StripPlot(title=title, name=picture.name, axis=what, unit=unit, strips=tuple(rows), note=picture.note)


MAX_TRIALS_NAMED = 3


def method_elements(options: SweepOptions, study: SweepStudy, records: Records) -> tuple[Element, ...]:
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


SWEEP_CSV = "power/sweep.csv"


def sweep_files(machine: Machine, options: SweepOptions, study: SweepStudy, records: Records) -> dict[str, str]:
    """Return the files by their paths within the run folder."""
    rows = build_rows(machine, options, study, records)
    return {SWEEP_FILE: "".join(f"{row.model_dump_json()}\n" for row in rows), SWEEP_CSV: rows_to_csv(rows)}


def build_rows(machine: Machine, options: SweepOptions, study: SweepStudy, records: Records) -> list[SweepRow]:
    """Return a row for each device and step that was measured, the device as it was found first."""
    return [
        _build_row(machine, options, records, curve.device, step)
        for curve in study.curves
        for step in (*curve.all_reference, *curve.steps)
    ]


def _build_row(machine: Machine, options: SweepOptions, records: Records, device: str, step: SweepStep) -> SweepRow:
    trials = {reading.trial for reading in step.readings}
    step_records = [record for record in records if record.trial in trials]
    subject = options.points[step.index].subject
    first = step.readings[0]
    pooled = np.concatenate([start_samples for reading in step.readings for start_samples in reading.samples])
    low, middle, high = np.quantile(pooled, [0.25, 0.5, 0.75])
    mean, energy = float(pooled.mean()), step.energy_j
    uuid, slot, model = _gpu_identity(machine, device)
    return SweepRow(
        run=records.run,
        started_at=min(record.window.started_at for record in step_records),
        host=machine.host,
        uuid=uuid,
        slot=slot,
        device=device,
        model=model,
        origin=overall_origin(step_records),
        n=sum(reading.calls for reading in step.readings),
        quantity=first.quantity,
        median_us=step.time_us.value,
        low_us=step.time_us.low,
        high_us=step.time_us.high,
        quartiles_us=(float(low), float(middle), float(high)),
        mean_us=mean,
        cv=float(pooled.std(ddof=1)) / mean if len(pooled) > 1 and mean > 0 else None,
        restart_medians_us=tuple(
            float(np.median(start_samples)) for reading in step.readings for start_samples in reading.samples
        ),
        energy_per_call_j=energy.value if energy is not None else None,
        energy_low_j=energy.low if energy is not None else None,
        energy_high_j=energy.high if energy is not None else None,
        gflop_per_j=gflop_per_j(step),
        power_w=step.mean("power_w"),
        sm_mhz=step.mean("sm_mhz"),
        temperature_c=step.mean("temperature_c"),
        utilisation_percent=step.mean("utilisation_percent"),
        held_back=step.held_back(),
        workload=options.workload,
        params=dict(subject.params) if subject is not None else {},
        knob=options.knob,
        setting=step.setting,
        calls_per_s=step.calls_per_s.value,
        work_per_call=first.flop or first.bytes_moved,
    )


def gflop_per_j(step: SweepStep) -> float | None:
    """Return the operations of a joule, in billions; null where either is not known."""
    flop = step.readings[0].flop
    return flop / step.energy_j.value / 1e9 if flop is not None and step.energy_j is not None else None


def _gpu_identity(machine: Machine, device: str) -> tuple[str, int, str]:
    """Return UUID, slot and model of a device; a group of cores is known by its name."""
    target = gpu_targets(machine).get(device)
    if target is None:
        number = device.partition(":")[2]
        return device, int(number) if number.isdigit() else 0, machine.cpu_model or machine.architecture
    return target.uuid, int(device.partition(":")[2].partition("/")[0]), target.title


Cells = dict[str, list["Cell"]]
"""Cells of a table by the heading of their column."""


def build_report(machine: Machine, options: SweepOptions, records: Records) -> Report:
    """Return the findings, the page, and the rows as JSON lines and as a table."""
    study = build_study(options, records)
    findings = build_findings(options, study, records)
    return Report(
        findings,
        build_page(machine, options, study, findings, records),
        sweep_files(machine, options, study, records),
    )


def build_page(
    machine: Machine, options: SweepOptions, study: SweepStudy, findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    settle = "not waited for" if options.settle_s is None else f"at most {options.settle_s:g} s"
    return compose_page(
        machine,
        records,
        title=f"assay power sweep: {options.workload}, {sum(p.setting is not None for p in options.points)} steps",
        lead=findings.headline,
        lead_tone="plain" if study.curves else "bad",
        sections=[
            Section(title="Results", elements=_result_elements(machine, options, study, findings)),
            Section(title="Curves", elements=_curve_elements(options, study.curves)),
            Section(title="What it rests on", elements=method_elements(options, study, records)),
        ],
        facts={
            "devices": f"{', '.join(options.devices)}{', together' if options.together else ''}",
            "repeats": f"{len({record.block for record in records})} of {options.repeat}",
            "per trial": f"{options.duration_s:g} s, steadiness {settle}",
            "seed": str(options.seed),
        },
    )


def _curve_elements(options: SweepOptions, curves_shown: Sequence[SweepCurve]) -> tuple[Element, ...]:
    tables = [
        element for curve in curves_shown for element in activity_tables(options, curve, several=len(curves_shown) > 1)
    ]
    return (*sweep_figures(options, curves_shown), *tables)


def _result_elements(
    machine: Machine, options: SweepOptions, study: SweepStudy, findings: Findings
) -> tuple[Element, ...]:
    refused = [
        Text(text=f"{setting_phrase(options.knob, point.setting)}: refused, {point.refused}", tone="bad")
        for point in options.points
        if point.refused is not None
    ]
    doubts = [
        Text(text=f"{_finding_device(finding)}: {finding.reason}.", tone="unsure")
        for finding in findings.findings
        if finding.kind == "best_energy" and finding.verdict == "unsure" and finding.reason
    ]
    overrun_sentence = (
        overrun_text(options.budget_s, [record for _, record in study.pairs]) if options.budget_s is not None else None
    )
    late = (
        [Text(text=f"{overrun_sentence[:1].upper()}{overrun_sentence[1:]}.", tone="unsure")]
        if overrun_sentence is not None
        else []
    )
    loose = persistence_note(machine, options) if options.capped else None
    warned = [Text(text=loose, tone="unsure")] if loose is not None else []
    tables = [curve_table(options, curve, several=len(study.curves) > 1) for curve in study.curves]
    return (*tables, *doubts, *refused, *warned, *late)


def _finding_device(finding: Finding) -> str:
    return finding.claim if finding.estimate is not None else f"Energy on {finding.facts['device']}"


def curve_table(options: SweepOptions, curve: SweepCurve, *, several: bool) -> Table:
    """Return a device's curve in numbers, and what is to be said of each step."""
    steps = (*curve.all_reference, *curve.steps)
    columns = _answer_columns(options, steps)
    marks = [_step_remarks(options, curve, step) for step in steps]
    return Table(
        title=f"{options.workload} on {curve.device}" if several else f"{options.workload}, step by step",
        columns=(
            _setting_column(options),
            Column(title=""),
            *(Column(title=name, numeric=True) for name in columns),
        ),
        rows=tuple(
            (setting_text(options.knob, step.setting), marks[n], *(columns[name][n] for name in columns))
            for n, step in enumerate(steps)
        ),
        tones=tuple(_step_tone(curve, step) for step in steps),
        note=_table_note(options),
    )


def _answer_columns(options: SweepOptions, steps: Sequence[SweepStep]) -> Cells:
    """Return what answers the question, each under its heading."""
    columns: Cells = {
        "a call": [format_time(step.time_us.value) for step in steps],
        "energy of a call": [_joules_cell(step.energy_j, bare=options.reference is not None) for step in steps],
    }
    if options.reference is not None:
        columns["× time"] = [ratio_cell(step.slowdown) for step in steps]
        columns["× energy"] = [ratio_cell(step.energy_ratio) for step in steps]
    else:
        columns |= _work_columns(steps)
    return _measured_columns(columns)


def _work_columns(steps: Sequence[SweepStep]) -> Cells:
    return {
        "TFLOP/s": [_rate_cell(step, "flop", 1e12) for step in steps],
        "GB/s": [None if step.readings[0].flop else _rate_cell(step, "bytes_moved", 1e9) for step in steps],
        "GFLOP/J": [gflop_per_j(step) for step in steps],
    }


def _measured_columns(columns: Cells) -> Cells:
    """Return the columns of which something is known."""
    return {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}


def activity_tables(options: SweepOptions, curve: SweepCurve, *, several: bool) -> list[Element]:
    """Return what the device did meanwhile at each step: its work, its clock, its heat, and what held it back."""
    steps = (*curve.all_reference, *curve.steps)
    columns = _measured_columns(
        {
            "power, W": [_rounded_text(step.mean("power_w")) for step in steps],
            **(_work_columns(steps) if options.reference is not None else {}),
            "SM clock, MHz": [_rounded_text(step.mean("sm_mhz")) for step in steps],
            "°C": [_rounded_text(step.mean("temperature_c")) for step in steps],
            "held by power": [_throttled_cell(step) for step in steps],
            "cap": [None if step.binds is None else BINDING_TEXTS[step.binds] for step in steps],
        }
    )
    if not columns:
        return []
    return [
        Table(
            title=f"What {curve.device} did meanwhile" if several else "What the device did meanwhile",
            columns=(_setting_column(options), *(Column(title=name, numeric=name != "cap") for name in columns)),
            rows=tuple(
                (setting_text(options.knob, step.setting), *(columns[name][n] for name in columns))
                for n, step in enumerate(steps)
            ),
            note="Means over the repeats. Held by power: the share of the time, as the GPU itself says.",
        )
    ]


def _setting_column(options: SweepOptions) -> Column:
    return Column(title={"power_limit_w": "limit", "sm_mhz": "clock"}.get(options.knob, options.knob))


def _rate_cell(step: SweepStep, name: str, scale: float) -> float | None:
    work = getattr(step.readings[0], name)
    return work * step.calls_per_s.value / scale if work else None


def _rounded_text(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def _joules_cell(estimate: Estimate | None, *, bare: bool) -> str | None:
    """Write an energy, with its interval where no ratio stands beside it."""
    if estimate is None:
        return None
    low, high = (None, None) if bare else (estimate.low, estimate.high)
    return format_joules(estimate.value, low, high)


def _throttled_cell(step: SweepStep) -> str | None:
    reported = any(reading.held_back is not None for reading in step.readings)
    return format_percent(step.held_back().get(POWER_CAP_REASON, 0.0)) if reported else None


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


def _table_note(options: SweepOptions) -> str:
    note = f"Intervals are over {options.repeat} repeats, in each of which every step is measured once in random order."
    if options.capped:
        note += (
            " × time and × energy are of a call, against the GPU as it was found: taken within each repeat, with "
            "intervals that hold for all steps together. A cap does not bind where the GPU draws less, is not held "
            "back by it, and is as fast as it was found."
        )
    return note
