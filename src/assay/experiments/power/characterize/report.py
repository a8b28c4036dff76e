"""The page of ``assay power characterize``.

Times, power, contention effects, differences between GPUs, method and data quality.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.format import (
    change_cell,
    format_change,
    format_duration,
    format_joules,
    format_percent,
    format_range,
    format_time,
)
from assay.core.page import Column, Page, Section, Table, Text
from assay.experiments.budget import overrun_text
from assay.experiments.power.characterize import figures
from assay.experiments.power.characterize.figures import read_timeline
from assay.experiments.power.characterize.findings import NOTHING_MEASURED
from assay.experiments.power.characterize.gpu_cases import gpu_name
from assay.experiments.power.characterize.plan import distance_text, is_idle
from assay.experiments.power.characterize.study import least_contended_case
from assay.experiments.reporting import EFFECT_TONES, compose_page, monitor_table, notes_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.page import Cell, Element, Page, Tone
    from assay.core.results import Findings, Record, Verdict
    from assay.experiments.power.characterize.figures import SensorTimeline
    from assay.experiments.power.characterize.gpu_cases import GpuCase
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.plan import PlacedCase
    from assay.experiments.power.characterize.study import CaseEffect, PowerStudy
    from assay.machine.model import Machine
    from assay.store.records import Records


DEVICE_COLUMN = "device"
MATTERS_COLUMN = "counts"
VERDICT_TEXTS: dict[Verdict, str] = {"yes": "yes", "no": "no", "unsure": "not decided"}
VERDICT_TONES: dict[Verdict, Tone] = {**EFFECT_TONES, "no": "plain"}


def time_table(study: PowerStudy, *, idle: set[str]) -> list[Element]:
    """Return how long a kernel takes on each GPU in each case."""
    busy = [gpu for gpu in study.gpus if gpu.case not in idle]
    rows: list[tuple[Cell, ...]] = [
        (
            gpu.case,
            gpu.name,
            format_time(gpu.time.value, gpu.time.low, gpu.time.high),
            format_percent((gpu.quartiles_us[2] - gpu.quartiles_us[0]) / gpu.time.value),
            None if gpu.cv is None else format_percent(gpu.cv),
        )
        for gpu in busy
    ]
    return _build_table(
        "Time of one kernel",
        ("case", DEVICE_COLUMN, "median", "IQR", "CV"),
        rows,
        note=(
            "The interval is over repeats where there are several, else over starts of the worker, else within it. "
            f"IQR (of the median) and CV: of the same kernel again and again, {_sample_count_text(busy)}."
        ),
        words=2,
    )


def _sample_count_text(gpus: Sequence[GpuCase]) -> str:
    """Count the calls and processes behind each row."""
    calls, processes = [sorted(counts) for counts in ([g.n for g in gpus], [g.processes for g in gpus])]
    if not gpus:
        return "never"
    ranges = [format_range(str(counts[0]), str(counts[-1])) for counts in (calls, processes)]
    return f"{ranges[0]} calls in {ranges[1]} process{'' if processes[-1] == 1 else 'es'} each"


def power_table(study: PowerStudy) -> list[Element]:
    """Return what each GPU drew and spent, how fast it ran and how hot it was; nothing where no sensor was read."""
    gpus = [gpu for gpu in study.gpus if gpu.mean("power_w") is not None or gpu.mean("sm_mhz") is not None]
    rows: list[tuple[Cell, ...]] = [
        (
            gpu.case,
            gpu.name,
            _rounded_text(gpu.mean("power_w")),
            None if gpu.energy is None else format_joules(gpu.energy.value, gpu.energy.low, gpu.energy.high, digits=3),
            _rounded_text(gpu.mean("gflop_per_j"), 1),
            _rounded_text(gpu.mean("sm_mhz")),
            _rounded_text(gpu.mean("temperature_c"), 1),
            "; ".join(f"{reason} {format_percent(part)}" for reason, part in gpu.held_back().items()) or None,
        )
        for gpu in gpus
    ]
    titles = ("case", DEVICE_COLUMN, "power, W", "energy a kernel", "GFLOP/J", "SM, MHz", "°C", "held back")
    return _build_table(
        "Watts, joules, clocks and heat",
        titles,
        rows,
        note=(
            "Means over the time in which kernels followed one another. Energy: of the card, idle power included. "
            "Held back: share of the time."
        ),
        words=2,
    )


def _rounded_text(value: float | None, decimals: int = 0) -> str | None:
    return None if value is None else f"{value:.{decimals}f}"


def device_noun(options: CharacterizeOptions) -> str:
    """Return what the devices are called."""
    return "GPUs" if options.devices[0].startswith("cuda") else "groups of cores"


def contention_tables(options: CharacterizeOptions, study: PowerStudy) -> list[Element]:
    """Return what company does to what is timed, and whether it matters where the neighbours are."""
    note = (
        f"The same {device_noun(options)} in the same repeats, with intervals over repeats. It counts where "
        "the interval "
        f"excludes none and the change is more than {format_percent(options.minimum_effect)}."
    )
    return [
        *_effect_table("What company changes", "against", study.contention, note),
        *_effect_table("Far instead of near neighbours", "near", study.distance, note),
    ]


def _effect_table(title: str, against: str, effects: tuple[CaseEffect, ...], note: str) -> list[Element]:
    rows: list[tuple[Cell, ...]] = [
        (
            effect.case,
            effect.against,
            change_cell(effect.time),
            VERDICT_TEXTS[effect.verdict],
            change_cell(effect.energy),
            None if effect.clock is None else format_change(effect.clock.value),
            None if effect.hotter_c is None else f"{effect.hotter_c:+.1f}".replace("-", "−"),
        )
        for effect in effects
    ]
    titles: tuple[str, ...] = ("case", against, "time", MATTERS_COLUMN, "energy a kernel", "SM clock", "°C")
    tones = tuple(VERDICT_TONES[effect.verdict] for effect in effects)
    references = list(dict.fromkeys(effect.against for effect in effects))
    if len(references) == 1:
        note = f"Against {references[0]!r}. {note}"
        titles, rows = (titles[0], *titles[2:]), [(row[0], *row[2:]) for row in rows]
    words = 2 if len(references) > 1 else 1
    return _build_table(title, titles, rows, note=note, words=words, tones=tones)


def spread_table(options: CharacterizeOptions, study: PowerStudy) -> list[Element]:
    """Return how unequal the GPUs are, a row for each case and model."""
    several = len({spread.model for spread in study.spreads}) > 1
    rows: list[tuple[Cell, ...]] = [
        (
            f"{spread.case}, {spread.model}" if several else spread.case,
            spread.slowest,
            spread.fastest,
            change_cell(spread.ratio),
            VERDICT_TEXTS[spread.verdict],
            format_percent(spread.cv),
            spread.gpus,
        )
        for spread in study.spreads
    ]
    return _build_table(
        f"How unequal the {device_noun(options)} are",
        ("case", "slowest", "fastest", "slowest over fastest", MATTERS_COLUMN, "CV between them", "of"),
        rows,
        note=(
            f"Of {device_noun(options)} of one model in the same repeats. The interval is widened, as the "
            "two were picked "
            "among all; it counts where it excludes none and the difference is more than "
            f"{format_percent(options.minimum_effect)}. `assay power variability` says more, over many runs."
        ),
        words=3,
        tones=tuple(VERDICT_TONES[spread.verdict] for spread in study.spreads),
    )


def skipped_table(study: PowerStudy) -> list[Element]:
    """Return the cases that do not fit here, and why."""
    rows: list[tuple[Cell, ...]] = [(case, "skipped", reason) for case, reason in study.skipped.items()]
    return _build_table("Cases that do not fit here", ("case", "status", "reason"), rows, words=3)


def settling_table(study: PowerStudy) -> list[Element]:
    """Return how long each trial waited for steady clocks and heat, and how steady they were."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for where, record in study.pairs:
        settled = record.settled
        if settled is not None:
            rows.append(
                (
                    where.repeat,
                    where.case.name,
                    _gpu_names(where.base),
                    f"{settled.waited_s:.0f}",
                    "yes" if settled.steady else "no",
                    _rounded_texts(settled.temperature_c.values(), 0),
                    _rounded_texts(settled.drift_c.values(), 1),
                    settled.note,
                )
            )
            tones.append("plain" if settled.steady else "unsure")
    titles = ("repeat", "case", "timed on", "waited, s", "steady", "°C", "°C a minute", "note")
    return _build_table("How steady clocks and heat were before timing", titles, rows, words=8, tones=tuple(tones))


def _rounded_texts(values: Iterable[float], decimals: int) -> str | None:
    return " ".join(f"{value:.{decimals}f}" for value in values) or None


def _gpu_names(devices: tuple[str, ...]) -> str:
    return ", ".join(map(gpu_name, devices))


def placement_table(machine: Machine, study: PowerStudy) -> list[Element]:
    """Return who was timed where, beside what, and how far away that was."""
    rows: dict[tuple[Cell, ...], None] = {}
    for where, _ in sorted(study.pairs, key=lambda pair: (pair[0].repeat, pair[0].base)):
        rows[where.repeat, where.case.name, _gpu_names(where.base), _loads_text(machine, where)] = None
    titles = ("repeat", "case", "timed on", "beside")
    return _build_table("Who ran where", titles, list(rows), words=4)


def _loads_text(machine: Machine, where: PlacedCase) -> str | None:
    parts = []
    for load in where.noise:
        far = distance_text(machine, where.base[0], load.device)
        parts.append(f"{load.part.subject.workload} on {gpu_name(load.device)}{f' ({far})' if far else ''}")
    return ", ".join(parts) or None


def trial_labels(pairs: tuple[tuple[PlacedCase, Record], ...]) -> dict[str, str]:
    """Return what each trial is called, by its id."""
    return {
        record.trial: f"repeat {where.repeat}, {where.case.name}, {_gpu_names(where.base)}" for where, record in pairs
    }


def _build_table(
    title: str,
    titles: tuple[str, ...],
    rows: list[tuple[Cell, ...]],
    *,
    words: int,
    note: str | None = None,
    tones: tuple[Tone, ...] | None = None,
) -> list[Element]:
    """Return a table whose first columns are words and whose others are numbers; nothing without rows.

    A column in which nothing is known is left out.
    """
    if not rows:
        return []
    shown_columns = [index for index in range(len(titles)) if any(row[index] is not None for row in rows)]
    columns = tuple(
        Column(title=titles[index], numeric=index >= words and titles[index] != MATTERS_COLUMN)
        for index in shown_columns
    )
    shown = tuple(tuple(row[index] for index in shown_columns) for row in rows)
    return [Table(title=title, columns=columns, rows=shown, tones=tones, note=note)]


def build_page(
    machine: Machine, options: CharacterizeOptions, study: PowerStudy, findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    plain = least_contended_case(options, study)
    base = plain.base.subject if plain is not None else None
    pairs = [pair for pair in study.pairs if pair[1].status == "ok" and pair[0].case.base.subject == base]
    shown = next((pair for pair in pairs if plain is not None and pair[0].case.name == plain.name), None)
    course = read_timeline(records, pairs, shown[1] if shown else None)
    sections = [
        Section(title="Results", elements=_result_elements(options, study, records)),
        Section(title="Every kernel", elements=tuple(figures.kernel_strips(options, study, records))),
        Section(title="Watts, clocks and heat", elements=_timeline_elements(study, course, shown, pairs)),
        Section(title="What it rests on", elements=_method_elements(machine, study, records)),
    ]
    return compose_page(
        machine,
        records,
        title=f"assay power characterize: {_count_text(options, study)}",
        lead=findings.headline,
        lead_tone="bad" if findings.headline == NOTHING_MEASURED else "plain",
        sections=sections,
        facts=_page_facts(options, records, course),
    )


def _count_text(options: CharacterizeOptions, study: PowerStudy) -> str:
    """Count the cases that were measured, of how many where not all were, and devices."""
    measured, every = len({gpu.case for gpu in study.gpus}), len(options.cases) + len(options.skipped)
    cases = f"{every} case{'' if every == 1 else 's'}"
    count_of_cases = cases if measured == every else f"{measured} of {cases}"
    devices, called = len(options.devices), device_noun(options)
    one = called.replace("GPUs", "GPU").replace("groups", "group")
    return f"{count_of_cases} on {devices} {one if devices == 1 else called}"


def _result_elements(options: CharacterizeOptions, study: PowerStudy, records: Records) -> tuple[Element, ...]:
    idle = {case.name for case in options.cases if is_idle(case)}
    late = overrun_text(options.budget_s, records) if options.budget_s is not None else None
    return (
        *time_table(study, idle=idle),
        *power_table(study),
        *_missing_power_notes(study),
        *_mixed_models_note(study),
        *contention_tables(options, study),
        *spread_table(options, study),
        *skipped_table(study),
        *([Text(text=f"{late[:1].upper()}{late[1:]}.", tone="unsure")] if late is not None else []),
    )


def _missing_power_notes(study: PowerStudy) -> list[Element]:
    """Say why there are no watts, where there are none; and why some energy is not told."""
    if not study.gpus:
        return []
    if not any(record.during is not None for _, record in study.pairs):
        text = "No monitor watched: there are times, and neither watts nor clocks nor heat beside them."
        return [Text(text=text, tone="unsure")]
    if not any(gpu.one.device.startswith("cuda") for gpu in study.gpus):
        return [Text(text="Groups of cores have no sensors of their own: watts, clocks and heat are told of GPUs.")]
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
    models = dict.fromkeys(gpu.one.model for gpu in study.gpus)
    if len(models) < 2:
        return []
    model_list = "; ".join(
        f"{model}: {', '.join(dict.fromkeys(gpu.name for gpu in study.gpus if gpu.one.model == model))}"
        for model in models
    )
    return [Text(text=f"GPUs of different models are here ({model_list}); each is compared with its own kind only.")]


def _timeline_elements(
    study: PowerStudy,
    course: SensorTimeline,
    shown: tuple[PlacedCase, Record] | None,
    pairs: list[tuple[PlacedCase, Record]],
) -> tuple[Element, ...]:
    return (
        *(figures.trial_timeline(course, *shown) if shown is not None else ()),
        *figures.clock_by_temperature(course, figures.timed_workloads(pairs)),
        *figures.run_timeline(study, course),
    )


def _method_elements(machine: Machine, study: PowerStudy, records: Records) -> tuple[Element, ...]:
    named = trial_labels(study.pairs)
    return (
        *placement_table(machine, study),
        *settling_table(study),
        *monitor_table(records, named),
        *notes_table(records, named),
    )


def _page_facts(options: CharacterizeOptions, records: Records, course: SensorTimeline) -> dict[str, str]:
    watched = "nobody watched"
    if course.interval_s is not None:
        watched = f"all {course.gpus} GPUs by one recorder, each every {1e3 * course.interval_s:.0f} ms"
    durations = sorted({case.duration_s for case in options.cases})
    return {
        "devices": ", ".join(options.devices),
        "cases": options.source or "as given",
        "repeats": f"{len({record.block for record in records})} of {options.repeats}",
        "timed per trial": " or ".join(map(format_duration, durations)),
        "sensors": watched,
        "seed": str(options.seed),
    }
