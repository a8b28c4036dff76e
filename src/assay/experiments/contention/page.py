"""What ``assay contention run`` shows: the answer, the phases side by side, the picks, the noise, what ran when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Page, Section, Text
from assay.core.units import format_span
from assay.experiments.contention.budget import spent_s
from assay.experiments.contention.figures import ratios, samples, timeline
from assay.experiments.contention.grounds import noise_table, sensors_table, where_table
from assay.experiments.contention.headline import only_callers_wait
from assay.experiments.contention.options import WORDS
from assay.experiments.contention.picks import picks
from assay.experiments.contention.plan import block_name
from assay.experiments.contention.retime import RETIMED, retiming
from assay.experiments.contention.tables import devices_table, places_table, times_table
from assay.experiments.contention.warm import WARM, warming
from assay.experiments.notes import grouped, notes_table
from assay.experiments.trouble import trouble
from assay.experiments.watched import watched_table

if TYPE_CHECKING:
    from assay.core.page import Element, Tone
    from assay.core.plan import Trial
    from assay.core.results import Findings
    from assay.experiments.contention.analysis import Analysis
    from assay.experiments.contention.options import ContentionOptions
    from assay.machine.model import Machine
    from assay.store.records import Records


def page(machine: Machine, options: ContentionOptions, found: Analysis, findings: Findings, records: Records) -> Page:
    """Return the whole page."""
    some = bool(found.layout.cells)
    sections = [
        Section(title="Results", elements=(*_results(options, found, some=some), *_remarks(found))),
        Section(title="Every block, every sample", elements=(*ratios(options, found), *samples(options, found))),
        Section(title="What the tuner picked", elements=picks(options, found)),
        Section(title="Where the noise comes from", elements=(*noise_table(found), *sensors_table(found))),
        Section(title="Devices beside each other", elements=_devices(options, found)),
        Section(title="Who ran where and when", elements=_placement(machine, options, found, records, some=some)),
        *trouble(records),
    ]
    return Page(
        title=f"assay contention: {', '.join(dict.fromkeys(s.label for s in options.subjects))}",
        lead=findings.headline,
        lead_tone=_tone(found) if some else "bad",
        sections=tuple(section for section in sections if section.elements),
        facts=_facts(machine, options, records),
        origin=next((r.origin for r in records if r.origin != "real"), "real"),
    )


def _tone(found: Analysis) -> Tone:
    comparisons = found.times.get(found.layout.quantity, {})
    if "naive" not in comparisons:
        return "plain"
    if only_callers_wait(found):
        return "bad"
    tones: dict[str, Tone] = {"yes": "bad", "no": "good", "unsure": "unsure"}
    return tones[comparisons["naive"].overall.verdict]


def _results(options: ContentionOptions, found: Analysis, *, some: bool) -> tuple[Element, ...]:
    return (times_table(found), places_table(options, found)) if some else ()


def _remarks(found: Analysis) -> tuple[Element, ...]:
    remarks = [*found.remarks, *([found.overrun] if found.overrun else [])]
    texts = [Text(text=f"{remark[:1].upper()}{remark[1:]}.", tone="unsure") for remark in remarks]
    missing = grouped((item.why, item.where) for item in found.layout.missing)
    return (*texts, *(Text(text=f"Missing: {item.where}: {item.said}.", tone="bad") for item in missing))


def _devices(options: ContentionOptions, found: Analysis) -> tuple[Element, ...]:
    if found.incomparable is not None:
        return (Text(text=f"Devices are not compared with each other: {found.incomparable}.", tone="unsure"),)
    return tuple(devices_table(options, found))


def _placement(
    machine: Machine, options: ContentionOptions, found: Analysis, records: Records, *, some: bool
) -> tuple[Element, ...]:
    labels = _labels(machine, options, found)
    return (
        *timeline(found, records),
        *((where_table(options, found),) if some else ()),
        *watched_table(records, labels),
        *notes_table(records, labels),
    )


def _labels(machine: Machine, options: ContentionOptions, found: Analysis) -> dict[str, str]:
    """Return what each trial measures, when and where."""
    labels = {trial.id: f"{WARM}, {_what(trial)}" for trial in warming(machine, options, block_name(1))}
    again = retiming(machine, options, found.layout.choices)
    labels |= {trial.id: f"{WORDS[RETIMED]}, {_what(trial)}" for trial in (again.trials if again else ())}
    for phase_trial in found.layout.seen:
        labels[phase_trial.record.trial] = (
            f"block {phase_trial.block}, {WORDS[phase_trial.phase]}, {_what(phase_trial.trial)}"
        )
    return labels


def _what(trial: Trial) -> str:
    devices = dict.fromkeys(device for role in trial.roles if role.duty == "timed" for device in role.devices)
    return f"{trial.roles[0].subjects[0].label} on {', '.join(devices)}"


def _facts(machine: Machine, options: ContentionOptions, records: Records) -> tuple[tuple[str, str], ...]:
    loads = ", ".join(load.subject.label for load in options.aggressors)
    used = sum(spent_s(records).values())
    blocks = "as many as fit" if options.repeat is None else str(options.repeat)
    return (
        ("machine", f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or f"none ({machine.gpu_note})"),
        ("devices", f"{', '.join(options.devices)}, {options.workers} worker{'s' if options.workers > 1 else ''} each"),
        ("aggressors", loads or "none"),
        ("tuner", options.tuner or "none"),
        ("blocks", blocks),
        ("budget", f"{format_span(options.budget_s)}; {format_span(used)} were used"),
        ("per worker and trial", f"{options.timing_s:.2g} s timed, {options.tuning_s:.2g} s tuned"),
        ("seed", str(options.seed)),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items() if v)),
        ("commit", f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}"),
    )
