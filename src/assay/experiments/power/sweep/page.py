"""What ``assay power sweep`` shows: the answer, the curve of each device in numbers and lines, what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Table, Text
from assay.experiments.contention.budget import overrun
from assay.experiments.power.sweep.binding import POWER_CAP
from assay.experiments.power.sweep.curve import curves
from assay.experiments.power.sweep.figures import figures
from assay.experiments.power.sweep.grounds import grounds
from assay.experiments.power.sweep.intent import persistence_note
from assay.experiments.power.sweep.readings import taken
from assay.experiments.power.sweep.words import (
    at_text,
    joules_text,
    percent,
    ratio_text,
    setting_text,
    time_text,
)
from assay.experiments.power.sweep.written import gflop_per_j
from assay.experiments.trouble import trouble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Estimate, Finding, Findings
    from assay.experiments.power.sweep.curve import Curve, Step
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.machine.model import Machine
    from assay.store.records import Records


Cells = dict[str, list["Cell"]]
"""Cells of a table by the heading of their column."""


def page(machine: Machine, options: SweepOptions, findings: Findings, records: Records) -> Page:
    """Return the whole page."""
    all_curves = curves(options, records)
    sections = [
        Section(title="Results", elements=_results(machine, options, all_curves, findings, records)),
        Section(title="Curves", elements=_curves(options, all_curves)),
        Section(title="What it rests on", elements=grounds(options, records)),
        *trouble(records),
    ]
    return Page(
        title=f"assay power sweep: {options.workload}, {sum(p.setting is not None for p in options.points)} steps",
        lead=findings.headline,
        lead_tone="plain" if all_curves else "bad",
        sections=tuple(section for section in sections if section.elements),
        facts=_facts(machine, options, records),
        origin=next((r.origin for r in records if r.origin != "real"), "real"),
    )


def _curves(options: SweepOptions, found: Sequence[Curve]) -> tuple[Element, ...]:
    tables = [element for curve in found for element in beside(options, curve, several=len(found) > 1)]
    return (*figures(options, found), *tables)


def _results(
    machine: Machine, options: SweepOptions, found: Sequence[Curve], findings: Findings, records: Records
) -> tuple[Element, ...]:
    refused = [
        Text(text=f"{at_text(options.knob, point.setting)}: refused, {point.refused}", tone="bad")
        for point in options.points
        if point.refused is not None
    ]
    doubts = [
        Text(text=f"{_claimed(finding)}: {finding.reason}.", tone="unsure")
        for finding in findings.findings
        if finding.facts.get("kind") == "best_energy" and finding.verdict == "unsure" and finding.reason
    ]
    overrun_text = (
        overrun(options.budget_s, [r for _, r in taken(options, records)]) if options.budget_s is not None else None
    )
    late = (
        [Text(text=f"{overrun_text[:1].upper()}{overrun_text[1:]}.", tone="unsure")] if overrun_text is not None else []
    )
    loose = persistence_note(machine, options) if options.capped else None
    warned = [Text(text=loose, tone="unsure")] if loose is not None else []
    tables = [table(options, curve, several=len(found) > 1) for curve in found]
    return (*tables, *doubts, *refused, *warned, *late)


def _claimed(finding: Finding) -> str:
    return finding.claim if finding.estimate is not None else f"Energy on {finding.facts['device']}"


def table(options: SweepOptions, curve: Curve, *, several: bool) -> Table:
    """Return a device's curve in numbers, and what is to be said of each step."""
    steps = (*curve.all_reference, *curve.steps)
    columns = _columns(options, steps)
    marks = [_mark(options, curve, step) for step in steps]
    return Table(
        title=f"{options.workload} on {curve.device}" if several else f"{options.workload}, step by step",
        columns=(
            _first(options),
            Column(title=""),
            *(Column(title=name, numeric=True) for name in columns),
        ),
        rows=tuple(
            (setting_text(options.knob, step.setting), marks[n], *(columns[name][n] for name in columns))
            for n, step in enumerate(steps)
        ),
        tones=tuple(_tone(curve, step) for step in steps),
        note=_note(options),
    )


def _columns(options: SweepOptions, steps: Sequence[Step]) -> Cells:
    """Return what answers the question, each under its heading."""
    columns: Cells = {
        "a call": [time_text(step.time_us.value) for step in steps],
        "energy of a call": [_joules(step.energy_j, bare=options.reference is not None) for step in steps],
    }
    if options.reference is not None:
        columns["× time"] = [ratio_text(step.slowdown) for step in steps]
        columns["× energy"] = [ratio_text(step.energy_ratio) for step in steps]
    else:
        columns |= _work(steps)
    return _known(columns)


def _work(steps: Sequence[Step]) -> Cells:
    return {
        "TFLOP/s": [_rate(step, "flop", 1e12) for step in steps],
        "GB/s": [None if step.readings[0].flop else _rate(step, "bytes_moved", 1e9) for step in steps],
        "GFLOP/J": [gflop_per_j(step) for step in steps],
    }


def _known(found: Cells) -> Cells:
    """Return the columns of which something is known."""
    return {name: cells for name, cells in found.items() if any(cell is not None for cell in cells)}


def beside(options: SweepOptions, curve: Curve, *, several: bool) -> list[Element]:
    """Return what the device did meanwhile at each step: its work, its clock, its heat, and what held it back."""
    steps = (*curve.all_reference, *curve.steps)
    columns = _known(
        {
            "power, W": [_rounded(step.mean("power_w")) for step in steps],
            **(_work(steps) if options.reference is not None else {}),
            "SM clock, MHz": [_rounded(step.mean("sm_mhz")) for step in steps],
            "°C": [_rounded(step.mean("temperature_c")) for step in steps],
            "held by power": [_held(step) for step in steps],
            "cap": [step.binds for step in steps],
        }
    )
    if not columns:
        return []
    return [
        Table(
            title=f"What {curve.device} did meanwhile" if several else "What the device did meanwhile",
            columns=(_first(options), *(Column(title=name, numeric=name != "cap") for name in columns)),
            rows=tuple(
                (setting_text(options.knob, step.setting), *(columns[name][n] for name in columns))
                for n, step in enumerate(steps)
            ),
            note="Means over the repeats. Held by power: the share of the time, as the GPU itself says.",
        )
    ]


def _first(options: SweepOptions) -> Column:
    return Column(title={"power_limit_w": "limit", "sm_mhz": "clock"}.get(options.knob, options.knob))


def _rate(step: Step, name: str, scale: float) -> float | None:
    work = getattr(step.readings[0], name)
    return work * step.calls_per_s.value / scale if work else None


def _rounded(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def _joules(found: Estimate | None, *, bare: bool) -> str | None:
    """Write an energy, with half its interval where no ratio stands beside it."""
    if found is None:
        return None
    half = None if bare else found.relative_half_width
    return f"{joules_text(found.value)}{'' if half is None else f' ±{percent(half)}'}"


def _held(step: Step) -> str | None:
    reported = any(reading.held_back is not None for reading in step.readings)
    return f"{100 * step.held_back().get(POWER_CAP, 0.0):.0f} %" if reported else None


def _mark(options: SweepOptions, curve: Curve, step: Step) -> str:
    """Say what a step is: the best, as good as the best, the furthest within the slowdown, a cap that does nothing."""
    if step.setting is None:
        return ""
    remarks = []
    best, delay = curve.best, curve.best_delay
    if best is not None and step.place == best.place:
        remarks.append("least energy" if best.told else "least energy?")
    elif best is not None and best.chance and step.place in best.may_be:
        remarks.append("may be least")
    if delay is not None and step.place == delay.place and delay.chance:
        remarks.append("least energy × time")
    within = curve.within(options.max_slowdown) if options.capped else None
    if within is not None and within.place == step.place:
        remarks.append(f"lowest within {100 * options.max_slowdown:g} %")
    if step.binds == "does not bind":
        remarks.append("does not bind")
    return ", ".join(remarks)


def _tone(curve: Curve, step: Step) -> Tone:
    if curve.best is not None and step.place == curve.best.place:
        return "good" if curve.best.told else "unsure"
    return "plain"


def _note(options: SweepOptions) -> str:
    note = f"Intervals are over {options.repeat} repeats, in each of which every step is measured once in random order."
    if options.capped:
        note += (
            " × time and × energy are of a call, against the GPU as it was found: taken within each repeat, with "
            "intervals that hold for all steps together. A cap does not bind where the GPU draws less, is not held "
            "back by it, and is as fast as it was found."
        )
    return note


def _facts(machine: Machine, options: SweepOptions, records: Records) -> tuple[tuple[str, str], ...]:
    blocks = len({record.block for record in records})
    settle = "not waited for" if options.settle_s is None else f"at most {options.settle_s:g} s"
    return (
        ("machine", f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or f"none ({machine.gpu_note})"),
        ("devices", f"{', '.join(options.devices)}{', together' if options.together else ''}"),
        ("repeats", f"{blocks} of {options.repeat}"),
        ("per trial", f"{options.duration_s:g} s, steadiness {settle}"),
        ("seed", str(options.seed)),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items() if v)),
        ("commit", f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}"),
    )
