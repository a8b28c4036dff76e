"""The page of ``assay energy run`` and its figures: joules over load and by speed, token gaps, power over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import format_duration
from assay.core.page import (
    Column,
    LinePlot,
    Page,
    PlotLine,
    Section,
    StripPlot,
    StripRow,
    Table,
    Text,
    Timeline,
    TimelineBar,
)
from assay.core.values import Done
from assay.experiments.energy import tables
from assay.experiments.energy import tables as gpu_tables
from assay.experiments.energy.cell_notes import end_sentence
from assay.experiments.energy.compare import group_comparable
from assay.experiments.energy.compare import pareto_figures as pareto_of
from assay.experiments.energy.compare_sources import build_points, choose_phase
from assay.experiments.energy.estimates import gap_windows
from assay.experiments.energy.export import flatten_rows
from assay.experiments.energy.findings import NOTHING_MEASURED, has_stalled, token_energy
from assay.experiments.energy.plan import label_trials
from assay.experiments.energy.tables import common_sizes, label_cells
from assay.experiments.reporting import compose_page, monitor_table, notes_table, sensor_axis, sensor_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Element, Tone
    from assay.core.results import Findings
    from assay.experiments.energy.observations import CellObservations
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.result import EnergyResult, EnergyRow
    from assay.experiments.energy.study import EnergyStudy
    from assay.machine.model import Machine
    from assay.stats.intervals import Samples
    from assay.store.records import Records


MAX_GAPS = 2000
"""Dots of one strip: of more, as many evenly from the smallest to the largest."""
LOG_AXIS_FACTOR = 20.0
"""Numbers further apart than so many times stand on a logarithmic axis."""
MIN_POINTS = 2


def energy_over_load(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the joules of a token over batch sizes or requests at once, a line for each mode and length."""
    groups: dict[tuple[str, int, int], list[EnergyRow]] = {}
    for row in rows:
        if token_energy(row) is not None:
            groups.setdefault((row.cell.mode, row.cell.input_tokens, row.cell.output_tokens), []).append(row)
    lengths = len({(i, o) for _, i, o in groups})
    lines = [
        _load_line(f"{mode}, {i} in, {o} out" if lengths > 1 else mode, several)
        for (mode, i, o), several in groups.items()
        if len(several) >= MIN_POINTS
    ]
    if not lines:
        return []
    served = any(row.cell.mode == "server" for row in rows)
    values = [y for line in lines for y in line.y if y is not None]
    return [
        LinePlot(
            title="GPU energy of an output token" + ("" if served else ", while decoding"),
            name="joules_over_load",
            x_axis="requests at once" if served else "batch size",
            y_axis="J/token",
            lines=tuple(lines),
            log_x=True,
            log_y=max(values) > LOG_AXIS_FACTOR * min(values) > 0,
            note="Bands are 95 % intervals.",
        )
    ]


def _load_line(label: str, rows: Sequence[EnergyRow]) -> PlotLine:
    points = [(_cell_load(row), energy) for row in rows if (energy := token_energy(row)) is not None]
    return PlotLine(
        label=label,
        x=tuple(float(load) for load, _ in points),
        y=tuple(energy.value for _, energy in points),
        low=tuple(energy.low for _, energy in points),
        high=tuple(energy.high for _, energy in points),
    )


def _cell_load(row: EnergyRow) -> int:
    return row.cell.concurrency if row.cell.mode == "server" else row.cell.batch


def run_pareto_figures(result: EnergyResult) -> list[Element]:
    """Return joules by speed, with the front; nothing of fewer than two cells."""
    rows = flatten_rows(result)
    if len(rows) < MIN_POINTS:
        return []
    of = choose_phase(rows)
    parts = group_comparable(build_points(rows, of)).values()
    return [element for number, part in enumerate(parts, 1) for element in pareto_of(part, of, "batch", number)]


def gap_strips(study: EnergyStudy) -> list[Element]:
    """Return the gaps between one token and the next, a strip for each cell, all processes together."""
    called = label_cells(study.result.rows)
    strips = [strip for cell in study.cells if (strip := _gap_strip(cell, called[cell.cell])) is not None]
    if not strips:
        return []
    return [
        StripPlot(
            title=f"Gaps between one token and the next{common_sizes(study.result.rows)}",
            name="gaps",
            axis="gap",
            unit="ms",
            strips=tuple(strips),
            note="All processes together; the mark stands at the median.",
        )
    ]


def _gap_strip(cell: CellObservations, label: str) -> StripRow | None:
    windows = gap_windows(cell)
    if not windows:
        return None
    samples = np.concatenate([window.samples("gap_us") for window in windows]) / 1e3
    return StripRow(label=label, samples=_thin_samples(samples), value=float(np.median(samples)))


def _thin_samples(samples: Samples) -> tuple[float, ...]:
    if len(samples) <= MAX_GAPS:
        return tuple(samples.tolist())
    return tuple(np.quantile(samples, np.linspace(0.0, 1.0, MAX_GAPS)).tolist())


def stage_timeline(study: EnergyStudy, records: Records) -> list[Element]:
    """Return when each stage was measured, and the watts above it."""
    windows = study.progress.observations.windows
    if not windows:
        return []
    origin_ns = min(window.stage.start_ns for window in windows)
    bars = tuple(
        TimelineBar(
            lane=window.cell_phase.phase,
            label="idle" if window.cell_phase.cell is None else window.cell_phase.cell.name,
            start_s=(window.stage.start_ns - origin_ns) / 1e9,
            end_s=(window.stage.end_ns - origin_ns) / 1e9,
            tone="plain" if window.record.status == "ok" else "unsure",
        )
        for window in windows
    )
    return [
        Timeline(
            title="When each phase was measured",
            name="stages",
            bars=bars,
            lines=sensor_lines(records, origin_ns),
            lines_axis=sensor_axis(records),
            note="Between the bars models are loaded, put in place and warmed up; that counts for nothing.",
        )
    ]


def build_page(
    machine: Machine, options: EnergyOptions, findings: Findings, study: EnergyStudy, records: Records
) -> Page:
    """Return the whole page."""
    rows = study.result.rows
    sections = [
        Section(
            title="Results",
            elements=(
                *tables.energy_tables(rows),
                *_no_energy_text(study),
                *tables.speed_tables(rows),
                *tables.utilization_table(rows),
                *tables.note_texts(rows),
                *tables.mode_table(rows),
            ),
        ),
        Section(title="Joules over the load", elements=(*energy_over_load(rows), *run_pareto_figures(study.result))),
        Section(title="GPUs", elements=(*gpu_tables.gpu_table(rows), *gpu_tables.placement_table(rows))),
        Section(title="Every token", elements=tuple(gap_strips(study))),
        Section(title="What is missing", elements=tuple(tables.missing_tables(study))),
        Section(title="What it rests on", elements=_method_elements(options, study, records)),
    ]
    return compose_page(
        machine,
        records,
        title=f"assay energy run: {study.result.model}",
        lead=findings.headline,
        lead_tone=_lead_tone(findings, study),
        sections=sections,
        facts=_page_facts(machine, options, study),
    )


def _lead_tone(findings: Findings, study: EnergyStudy) -> Tone:
    if findings.headline.startswith(NOTHING_MEASURED):
        return "bad"
    doubtful = any(row.partial or has_stalled(row) for row in study.result.rows)
    return "unsure" if study.result.skipped or doubtful else "plain"


def _no_energy_text(study: EnergyStudy) -> list[Element]:
    """Say why there are no joules, where there are none."""
    rows = study.result.rows
    if not rows or any(row.figures.get("j_per_output_token") for row in rows):
        return []
    why = next(
        (row.missing_reasons[name] for row in rows for name in ("j_per_output_token",) if name in row.missing_reasons),
        None,
    )
    return [Text(text=end_sentence(f"Energy is not told: {why or 'no counter to read'}"), tone="unsure")]


def _method_elements(options: EnergyOptions, study: EnergyStudy, records: Records) -> tuple[Element, ...]:
    labels = label_trials(study.progress.measured)
    return (
        *_windows_table(study),
        *stage_timeline(study, records),
        *(Text(text=end_sentence(f"{note[:1].upper()}{note[1:]}"), tone="unsure") for note in options.notes),
        *monitor_table(records, labels),
        *notes_table(records, labels),
        *_end_text(study),
    )


def _windows_table(study: EnergyStudy) -> list[Element]:
    """Return how often and how long each phase of each cell was measured."""
    windows = study.progress.observations.windows
    phases = dict.fromkeys(window.cell_phase for window in windows)
    if not phases:
        return []
    rows = []
    for phase in phases:
        phase_windows = [window for window in windows if window.cell_phase == phase]
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


def _end_text(study: EnergyStudy) -> list[Element]:
    step = study.progress.next_step
    return [Text(text=f"It ended as {step.why}.")] if isinstance(step, Done) else []


def _page_facts(machine: Machine, options: EnergyOptions, study: EnergyStudy) -> dict[str, str]:
    backend = options.config.backend
    metered = ", ".join(options.gpus) or "no GPU"
    where = backend.endpoint or ", ".join(options.devices)
    return {
        "GPUs": study.result.gpu or f"none that is metered ({machine.gpu_note or 'none was named'})",
        "model": f"{backend.model}{f' ({backend.revision})' if backend.revision else ''}",
        "backend": f"{backend.type} on {where}",
        "metered": metered if options.monitored else "nothing: metrics.enabled is false",
        "processes": f"{options.restarts}, and as many of what was measured for longer",
        "window": f"{format_duration(options.stage_s)} at least ({options.stage_why})",
        "precision": f"±{100 * options.config.scenario.precision:.3g} %",
        "seed": str(options.seed),
    }
