"""What ``assay power characterize`` shows: the numbers, every kernel, watts and clocks over time, what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Page, Section, Text
from assay.core.units import format_span
from assay.experiments.contention.budget import overrun
from assay.experiments.notes import notes_table
from assay.experiments.power.characterize import figures, tables
from assay.experiments.power.characterize.course import course_of
from assay.experiments.power.characterize.headline import NOTHING
from assay.experiments.power.characterize.plan import is_idle
from assay.experiments.power.characterize.study import plainest, study_of
from assay.experiments.trouble import trouble
from assay.experiments.watched import watched_table

if TYPE_CHECKING:
    from assay.core.page import Element
    from assay.core.results import Findings, Record
    from assay.experiments.power.characterize.course import Course
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.placing import Placed
    from assay.experiments.power.characterize.study import Study
    from assay.machine.model import Machine
    from assay.store.records import Records


def page(machine: Machine, options: CharacterizeOptions, findings: Findings, records: Records) -> Page:
    """Return the whole page."""
    study = study_of(machine, options, records)
    plain = plainest(options, study)
    base = plain.base.subject if plain is not None else None
    pairs = [pair for pair in study.pairs if pair[1].status == "ok" and pair[0].case.base.subject == base]
    shown = next((pair for pair in pairs if plain is not None and pair[0].case.name == plain.name), None)
    course = course_of(records, pairs, shown[1] if shown else None)
    sections = [
        Section(title="Results", elements=_results(options, study, records)),
        Section(title="Every kernel", elements=tuple(figures.strips(options, study, records))),
        Section(title="Watts, clocks and heat", elements=_courses(study, course, shown, pairs)),
        Section(title="What it rests on", elements=_grounds(machine, study, records)),
        *trouble(records),
    ]
    return Page(
        title=f"assay power characterize: {_many(options, study)}",
        lead=findings.headline,
        lead_tone="bad" if findings.headline == NOTHING else "plain",
        sections=tuple(section for section in sections if section.elements),
        facts=_facts(machine, options, records, course),
        origin=next((r.origin for r in records if r.origin != "real"), "real"),
    )


def _many(options: CharacterizeOptions, study: Study) -> str:
    """Count the cases that were measured, of how many where not all were, and devices."""
    measured, every = len({gpu.case for gpu in study.gpus}), len(options.cases) + len(options.left_out)
    cases = f"{every} case{'' if every == 1 else 's'}"
    count_of_cases = cases if measured == every else f"{measured} of {cases}"
    devices, called = len(options.devices), tables.called(options)
    one = called.replace("GPUs", "GPU").replace("groups", "group")
    return f"{count_of_cases} on {devices} {one if devices == 1 else called}"


def _results(options: CharacterizeOptions, study: Study, records: Records) -> tuple[Element, ...]:
    idle = {case.name for case in options.cases if is_idle(case)}
    late = overrun(options.budget_s, records) if options.budget_s is not None else None
    return (
        *tables.times(study, idle=idle),
        *tables.watts(study),
        *_without_watts(study),
        *_mixed(study),
        *tables.company(options, study),
        *tables.unequal(options, study),
        *tables.left_out(study),
        *([Text(text=f"{late[:1].upper()}{late[1:]}.", tone="unsure")] if late is not None else []),
    )


def _without_watts(study: Study) -> list[Element]:
    """Say why there are no watts, where there are none; and why some energy is not told."""
    if not study.gpus:
        return []
    if not any(record.meanwhile is not None for _, record in study.pairs):
        text = "No monitor watched: there are times, and neither watts nor clocks nor heat beside them."
        return [Text(text=text, tone="unsure")]
    if not any(gpu.one.device.startswith("cuda") for gpu in study.gpus):
        return [Text(text="Groups of cores have no sensors of their own: watts, clocks and heat are told of GPUs.")]
    notes = dict.fromkeys(
        stats.energy_note
        for _, record in study.pairs
        if record.meanwhile is not None and record.status == "ok"
        for stats in record.meanwhile.gpus
        if stats.energy is None and stats.energy_note
    )
    return [Text(text=f"Some energy: {note}.", tone="unsure") for note in list(notes)[:2]]


def _mixed(study: Study) -> list[Element]:
    """Say so where GPUs of different models were measured."""
    models = dict.fromkeys(gpu.one.model for gpu in study.gpus)
    if len(models) < 2:
        return []
    model_list = "; ".join(
        f"{model}: {', '.join(dict.fromkeys(gpu.name for gpu in study.gpus if gpu.one.model == model))}"
        for model in models
    )
    return [Text(text=f"GPUs of different models are here ({model_list}); each is compared with its own kind only.")]


def _courses(
    study: Study, course: Course, shown: tuple[Placed, Record] | None, pairs: list[tuple[Placed, Record]]
) -> tuple[Element, ...]:
    return (
        *(figures.closely(course, *shown) if shown is not None else ()),
        *figures.clock_over_heat(course, figures.workloads_of(pairs)),
        *figures.over_the_run(study, course),
    )


def _grounds(machine: Machine, study: Study, records: Records) -> tuple[Element, ...]:
    named = tables.labels(study.pairs)
    return (
        *tables.placed(machine, study),
        *tables.steadiness(study),
        *watched_table(records, named),
        *notes_table(records, named),
    )


def _facts(
    machine: Machine, options: CharacterizeOptions, records: Records, course: Course
) -> tuple[tuple[str, str], ...]:
    repeats = len({record.block for record in records})
    watched = "nobody watched"
    if course.interval_s is not None:
        watched = f"all {course.gpus} GPUs by one recorder, each every {1e3 * course.interval_s:.0f} ms"
    durations = sorted({case.duration_s for case in options.cases})
    return (
        ("machine", f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or f"none ({machine.gpu_note})"),
        ("devices", ", ".join(options.devices)),
        ("cases", options.source or "as given"),
        ("repeats", f"{repeats} of {options.repeats}"),
        ("timed per trial", " or ".join(map(format_span, durations))),
        ("sensors", watched),
        ("seed", str(options.seed)),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items() if v)),
        ("commit", f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}"),
    )
