"""What ``assay energy run`` shows: joules and speed of every cell, what held them back, and what they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Table, Text
from assay.core.plan import Done
from assay.core.units import format_span
from assay.experiments.energy import drawn, gpu_tables, tables
from assay.experiments.energy.headline import NOTHING, has_stalled
from assay.experiments.energy.step import blocks_of
from assay.experiments.energy.words import sentence
from assay.experiments.notes import notes_table
from assay.experiments.trouble import trouble
from assay.experiments.watched import watched_table

if TYPE_CHECKING:
    from assay.core.page import Element, Tone
    from assay.core.results import Findings
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.result import Study
    from assay.machine.model import Machine
    from assay.store.records import Records


def page_of(machine: Machine, options: EnergyOptions, findings: Findings, study: Study, records: Records) -> Page:
    """Return the whole page."""
    rows = study.result.rows
    sections = [
        Section(
            title="Results",
            elements=(
                *tables.energy(rows),
                *_without_energy(study),
                *tables.speed(rows),
                *tables.held_back(rows),
                *tables.remarks(rows),
                *tables.modes(rows),
            ),
        ),
        Section(title="Joules over the load", elements=(*drawn.over_load(rows), *drawn.pareto(study.result))),
        Section(title="GPUs", elements=(*gpu_tables.gpus(rows), *gpu_tables.placement(rows))),
        Section(title="Every token", elements=tuple(drawn.gaps(study))),
        Section(title="What is missing", elements=tuple(tables.missing(study))),
        Section(title="What it rests on", elements=_grounds(options, study, records)),
        *trouble(records),
    ]
    return Page(
        title=f"assay energy run: {study.result.model}",
        lead=findings.headline,
        lead_tone=_tone(findings, study),
        sections=tuple(section for section in sections if section.elements),
        facts=_facts(machine, options, study),
        origin=next((record.origin for record in records if record.origin != "real"), "real"),
    )


def _tone(findings: Findings, study: Study) -> Tone:
    if findings.headline.startswith(NOTHING):
        return "bad"
    doubtful = any(row.partial or has_stalled(row) for row in study.result.rows)
    return "unsure" if study.result.left_out or doubtful else "plain"


def _without_energy(study: Study) -> list[Element]:
    """Say why there are no joules, where there are none."""
    rows = study.result.rows
    if not rows or any(row.figures.get("j_per_output_token") for row in rows):
        return []
    why = next((row.why_not[name] for row in rows for name in ("j_per_output_token",) if name in row.why_not), None)
    return [Text(text=sentence(f"Energy is not told: {why or 'no counter to read'}"), tone="unsure")]


def _grounds(options: EnergyOptions, study: Study, records: Records) -> tuple[Element, ...]:
    labels = blocks_of(study.walk.taken)
    return (
        *_windows(study),
        *drawn.over_time(study, records),
        *(Text(text=sentence(f"{note[:1].upper()}{note[1:]}"), tone="unsure") for note in options.notes),
        *watched_table(records, labels),
        *notes_table(records, labels),
        *_ended(study),
    )


def _windows(study: Study) -> list[Element]:
    """Return how often and how long each phase of each cell was measured."""
    windows = study.walk.gathered.seen
    phases = dict.fromkeys(window.place for window in windows)
    if not phases:
        return []
    rows = []
    for phase in phases:
        phase_windows = [window for window in windows if window.place == phase]
        metered = sum(window.stage.energy is not None for window in phase_windows)
        calls = sum(window.stage.calls for window in phase_windows)
        durations_s = [window.window_s for window in phase_windows]
        seconds = f"{min(durations_s):.1f} – {max(durations_s):.1f}"
        rows.append(
            (phase.name, len({window.process for window in phase_windows}), len(phase_windows), seconds, calls, metered)
        )
    titles = ("phase", "processes", "windows", "seconds of each", "calls", "with energy")
    return [
        Table(
            title="What was measured",
            columns=tuple(Column(title=title, numeric=title != "phase") for title in titles),
            rows=tuple(rows),
        )
    ]


def _ended(study: Study) -> list[Element]:
    step = study.walk.next
    return [Text(text=f"It ended as {step.why}.")] if isinstance(step, Done) else []


def _facts(machine: Machine, options: EnergyOptions, study: Study) -> tuple[tuple[str, str], ...]:
    backend = options.config.backend
    metered = ", ".join(options.gpus) or "no GPU"
    where = backend.endpoint or ", ".join(options.devices)
    return (
        ("machine", f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"),
        ("GPUs", study.result.gpu or f"none that is metered ({machine.gpu_note or 'none was named'})"),
        ("driver", machine.driver or "none"),
        ("model", f"{backend.model}{f' ({backend.revision})' if backend.revision else ''}"),
        ("backend", f"{backend.type} on {where}"),
        ("metered", metered if options.monitored else "nothing: metrics.enabled is false"),
        ("processes", f"{options.restarts}, and as many of what was measured for longer"),
        ("window", f"{format_span(options.stage_s)} at least ({options.stage_why})"),
        ("precision", f"±{100 * options.config.scenario.precision:.3g} %"),
        ("seed", str(options.seed)),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items() if v)),
        ("commit", f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}"),
    )
