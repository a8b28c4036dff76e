"""What ``assay scaling run`` shows: the answer, where the efficiency goes, communication, memory, truth, samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Page, Section, Text
from assay.experiments.scaling.details import (
    arithmetic_table,
    bytes_table,
    energy_table,
    memory_table,
    passes_table,
    prediction_table,
    truth_table,
)
from assay.experiments.scaling.figures import drawn_of, samples, timeline
from assay.experiments.scaling.findings import EXPECTED
from assay.experiments.scaling.gate import judge
from assay.experiments.scaling.headline import largest
from assay.experiments.scaling.tables import TONES, buys_table, communication_tables, remarks, split_table
from assay.experiments.trouble import trouble
from assay.experiments.watched import watched_table

if TYPE_CHECKING:
    from assay.core.page import Element, Tone
    from assay.core.results import Findings
    from assay.experiments.scaling.analysis import Analysis
    from assay.experiments.scaling.options import ScalingOptions
    from assay.machine.model import Machine
    from assay.store.records import Records


def page(machine: Machine, options: ScalingOptions, found: Analysis, findings: Findings, records: Records) -> Page:
    """Return the whole page."""
    figures = drawn_of(options, found)
    short = split_table(options, found, with_intervals=False)
    answer = (buys_table(options, found), *short, *remarks(options, found))
    factors = tuple(split_table(options, found, with_intervals=True))
    sections = [
        Section(title="Results", elements=answer),
        Section(title="Over ranks", elements=(*figures.scaling, *passes_table(options, found))),
        Section(title="Where the efficiency goes", elements=factors),
        Section(title="Communication", elements=tuple(communication_tables(options, found))),
        Section(title="Predicted and measured", elements=tuple(prediction_table(options, found))),
        Section(title="Is it right?", elements=(*truth_table(options, found), *bytes_table(options, found))),
        Section(title="Memory", elements=(*memory_table(options, found), *figures.memory)),
        Section(
            title="Arithmetic and energy",
            elements=(*arithmetic_table(options, found), *energy_table(options, found)),
        ),
        Section(title="At a glance", elements=figures.heat_maps),
        Section(title="Every sample", elements=tuple(samples(options, found))),
        Section(title="What ran when", elements=_placement(found, records)),
        *trouble(records),
    ]
    return Page(
        title=f"assay scaling: {options.subject.label}",
        lead=findings.headline,
        lead_tone=_tone(options, found),
        sections=tuple(section for section in sections if section.elements),
        facts=_facts(machine, options),
        origin=next((r.origin for r in records if r.origin != "real"), "real"),
    )


def _tone(options: ScalingOptions, found: Analysis) -> Tone:
    if not any(result.facts is not None for result in found.all):
        return "bad"
    if not found.measured:
        return "plain"
    return TONES[judge(largest(found)["efficiency"], options.min_efficiency or EXPECTED)]


def _placement(found: Analysis, records: Records) -> tuple[Element, ...]:
    labels = {record.trial: str(plan.trial.settings["phase"]) for plan, record in found.laid.tried}
    traces = [trace for result in found.all if result.facts is not None for trace in result.facts.traces]
    notes = dict.fromkeys(note for record in records for note in record.notes)
    return (
        *timeline(found, records),
        *watched_table(records, labels),
        *(Text(text=f"Trace for ui.perfetto.dev or chrome://tracing: {trace}") for trace in traces),
        *(Text(text=f"Note: {note}.") for note in notes),
    )


def _facts(machine: Machine, options: ScalingOptions) -> tuple[tuple[str, str], ...]:
    params = ", ".join(
        f"{name} {value}"
        for name, value in options.subject.params.items()
        if not options.is_attention or name not in {"sequence", "ring", "passes", "only"}
    )
    return (
        ("machine", f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or f"none ({machine.gpu_note})"),
        ("devices", ", ".join(options.devices)),
        ("scaling", options.mode),
        ("parameters", params or "none"),
        ("calls", f"{options.warmup_runs} to warm up, {options.benchmark_runs} timed, of each subject"),
        ("repeats", str(options.repeat)),
        ("isolation asked", options.isolation),
        ("seed", str(options.seed)),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items() if v)),
        ("commit", f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}"),
    )
