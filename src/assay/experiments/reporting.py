"""The parts of a report that all experiments share.

The page itself with the facts at its foot, its origin, data quality, monitor readings, notes on trials, failed trials.

Data quality stands in the first lines of every page:

    2 of 12 trials disturbed: ffmpeg (1.4 cores).
    Isolation full did not hold in 12 of 12 trials (none held): cpu:0 shared core 0 with cpu:2.

Notes that differ only in their numbers are shown once, with the range of the numbers and the trials they are of:

    starting takes 6.3 s, most of the 6.5 s asked for          block 1, alone
    starting takes 7.1 s, most of the 6.5 s asked for          block 1, isolated
    → starting takes 6.3–7.1 s, most of the 6.5 s asked for    2: block 1, alone; block 1, isolated
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from assay.core.page import Column, Page, PlotLine, Section, Table, Text, build_table
from assay.core.results import DataQuality, Findings, InterferenceSource, IsolationShortfall
from assay.experiments.budget import overrun_text
from assay.isolation.placement import LEVELS
from assay.monitor.report import DownsampledLine
from assay.monitor.samples import POWER_QUANTITIES, GpuSample, HostSample

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import (
        Estimate,
        Evidence,
        Finding,
        GpuWindowStats,
        Interference,
        InterferenceKind,
        LostGpu,
        Origin,
        Record,
        Verdict,
    )
    from assay.core.values import Isolation
    from assay.machine.model import Machine
    from assay.store.records import Records


Row = TypeVar("Row")
CLAIM_TONES: dict[Verdict, Tone] = {"yes": "good", "no": "bad", "unsure": "unsure"}
"""Of a claim that is hoped for."""
EFFECT_TONES: dict[Verdict, Tone] = {"yes": "bad", "no": "good", "unsure": "unsure"}
"""Of an effect that is not."""


class HasOrigin(Protocol):
    """A record, or what was made of records."""

    @property
    def origin(self) -> Origin:
        """Where it comes from."""
        ...


def overall_origin(items: Iterable[HasOrigin]) -> Origin:
    """Return "real" where all items are, else the first other origin."""
    return next((item.origin for item in items if item.origin != "real"), "real")


def gather_findings(headline: str, findings: Iterable[Finding], records: Iterable[Record]) -> Findings:
    """Return findings that all have the origin of the whole run."""
    update = {"origin": overall_origin(records)}
    return Findings(headline=headline, findings=tuple(finding.model_copy(update=update) for finding in findings))


def compose_page(
    machine: Machine,
    records: Sequence[Record],
    *,
    title: str,
    lead: str,
    lead_tone: Tone,
    sections: Iterable[Section],
    facts: Mapping[str, str],
    trial_labels: Mapping[str, str] | None = None,
) -> Page:
    """Return the page of a run: sections without elements are left out, failed trials and the origin are added.

    ``facts`` are those of this experiment; what is known of any machine is put around them. ``trial_labels`` name
    failed trials; null: by their ids.
    """
    return Page(
        title=title,
        lead=lead,
        lead_tone=lead_tone,
        sections=(
            *(section for section in sections if section.elements),
            *failures_section(records, trial_labels or {}),
        ),
        facts=standard_facts(machine, facts),
        origin=overall_origin(records),
    )


def standard_facts(machine: Machine, facts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the facts at the foot of a page: the machine, those of an experiment, then versions and the commit.

    A fact of the experiment replaces one of the machine of the same name.
    """
    every = {
        "machine": machine_text(machine),
        "GPUs": ", ".join(gpu.name for gpu in machine.gpus) or f"none ({machine.gpu_note})",
        **({"driver": machine.driver} if machine.driver else {}),
        **facts,
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions.items() if version),
        "commit": f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}",
    }
    return tuple(every.items())


def machine_text(machine: Machine) -> str:
    """Write "AMD EPYC 9654, 96 cores"."""
    return f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"


def table_columns(*titles: str, words: int = 1) -> tuple[Column, ...]:
    """Return the columns of a table: the first are words, the others numbers."""
    return tuple(Column(title=title, numeric=index >= words) for index, title in enumerate(titles))


MAX_NAMED_SOURCES = 3
WAIT_ADVICE = "`--on-interference wait` waits for a quiet machine"


def assess_quality(records: Iterable[Record]) -> DataQuality:
    """Return how far records can be trusted; trials without a result are not counted."""
    measured = [record for record in records if record.status == "ok"]
    disturbed = [record for record in measured if record.disturbed]
    return DataQuality(
        trials=len(measured),
        watched=sum(r.disturbance is not None or r.during is not None or bool(r.disturbed) for r in measured),
        disturbed=len(disturbed),
        retaken=sum(record.take > 1 for record in measured),
        sources=tuple(_interference_sources([record.disturbed for record in disturbed])),
        isolation=tuple(_isolation_shortfalls([record.evidence for record in measured])),
    )


def _interference_sources(trials: Sequence[Sequence[Interference]]) -> list[InterferenceSource]:
    """Return who disturbed trials, the most frequent first; of each, its most in one trial."""
    by_source: dict[tuple[InterferenceKind, str], list[Interference]] = {}
    for several in trials:
        largest: dict[tuple[InterferenceKind, str], Interference] = {}
        for interference in several:
            largest_so_far = largest.get((interference.kind, interference.source))
            if largest_so_far is None or (interference.amount or 0.0) > (largest_so_far.amount or 0.0):
                largest[interference.kind, interference.source] = interference
        for key, interference in largest.items():
            by_source.setdefault(key, []).append(interference)
    sources = [
        InterferenceSource(
            kind=kind,
            source=source,
            trials=len(several),
            amount=max(
                (interference.amount for interference in several if interference.amount is not None), default=None
            ),
            unit=several[0].unit,
        )
        for (kind, source), several in by_source.items()
    ]
    return sorted(sources, key=lambda source: -source.trials)


def _isolation_shortfalls(trials: Sequence[Sequence[Evidence]]) -> list[IsolationShortfall]:
    """Return the levels that were asked for and did not hold."""
    short: dict[Isolation, list[list[Evidence]]] = {}
    for workers in trials:
        for level in dict.fromkeys(worker.isolation_asked for worker in workers):
            below = [w for w in workers if w.isolation_asked == level and w.isolation_held != level]
            if below:
                short.setdefault(level, []).append(below)
    return [
        IsolationShortfall(
            requested=level,
            held=min((w.isolation_held for below in several for w in below), key=LEVELS.index),
            trials=len(several),
            codes=tuple(dict.fromkeys(x.code for below in several for w in below for x in w.isolation_limits)),
            message=next((x.message for below in several for w in below for x in w.isolation_limits), "reason unknown"),
        )
        for level, several in short.items()
    ]


def quality_lines(quality: DataQuality) -> tuple[Text, ...]:
    """Return the lines that stand under the headline of a page."""
    return (*_interference_line(quality), *(_isolation_line(quality, shortfall) for shortfall in quality.isolation))


def disturbance_text(quality: DataQuality) -> str:
    """Write "2 of 12 trials disturbed: ffmpeg (1.4 cores)"; empty where none was."""
    if not quality.disturbed:
        return ""
    several = [_source_text(source, quality) for source in quality.sources[:MAX_NAMED_SOURCES]]
    more = len(quality.sources) - MAX_NAMED_SOURCES
    several += [f"{more} more"] if more > 0 else []
    return f"{quality.disturbed} of {_trial_count(quality.trials)} disturbed: {', '.join(several)}"


def process_interference_line(complaints: Sequence[Interference]) -> Text:
    """Return the line for what one process measured, without trials: "Disturbed: ffmpeg (1.4 cores)."."""
    if not complaints:
        return Text(text="No interference detected.")
    named = [_with_facts(c.source, [amount_text(c.amount, c.unit)] if c.amount is not None else []) for c in complaints]
    return Text(text=f"Disturbed: {', '.join(named)}.", tone="unsure")


def _interference_line(quality: DataQuality) -> list[Text]:
    again = f"; {quality.retaken} measured again" if quality.retaken else ""
    if quality.disturbed:
        often = 2 * quality.disturbed > quality.trials
        return [Text(text=f"{disturbance_text(quality)}{again}{f'; {WAIT_ADVICE}' if often else ''}.", tone="unsure")]
    if quality.watched == 0 or quality.watched < quality.trials:
        return []
    where = "the trial" if quality.trials == 1 else _trial_count(quality.trials)
    return [Text(text=f"No interference detected in {where}{again}.")]


def _source_text(source: InterferenceSource, quality: DataQuality) -> str:
    facts = [amount_text(source.amount, source.unit)] if source.amount is not None else []
    if source.trials < quality.disturbed:
        facts.append(_trial_count(source.trials))
    return _with_facts(source.source, facts)


def _with_facts(source: str, facts: Sequence[str]) -> str:
    return f"{source} ({', '.join(facts)})" if facts else source


def isolation_text(evidence: Evidence) -> str:
    """Write the level that held, and the one that was asked for where it did not: "none, not full"."""
    held, requested = evidence.isolation_held, evidence.isolation_asked
    return held if held == requested else f"{held}, not {requested}"


def amount_text(amount: float, unit: str | None) -> str:
    """Write an amount of interference: "1.4 cores", "3.2 %"."""
    return f"{amount:.{1 if amount < 100 else 0}f} {unit or ''}".strip()


def _isolation_line(quality: DataQuality, short: IsolationShortfall) -> Text:
    where = f"{short.trials} of {_trial_count(quality.trials)}"
    return Text(
        text=f"Isolation {short.requested} did not hold in {where} ({short.held} held): {short.message}.", tone="unsure"
    )


def _trial_count(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"


def monitor_table(records: Records, labels: Mapping[str, str]) -> list[Element]:
    """Return what was seen while each trial was timed, a row for each GPU; nothing where no monitor watched."""
    monitored = [record for record in records if record.during is not None]
    if not monitored:
        return []
    on_gpu = any(record.during.gpus for record in monitored if record.during is not None)
    titles = ("trial", "CPUs busy, %", "steal, %", "waited for a CPU, %", "energy, J")
    gpu_titles = ("GPU", "power, W", "SM clock, MHz", "held back, s", "temperature, °C") if on_gpu else ()
    rows = [
        row
        for record in monitored
        for row in _monitor_rows(record, labels.get(record.trial, record.block), on_gpu=on_gpu)
    ]
    disturbed = [bool(record.disturbed) for record in monitored for _ in range(_row_count(record))]
    energy_notes = dict.fromkeys(note for record in monitored for note in _energy_notes(record))
    return [
        Table(
            title="What the monitor saw while each trial was timed",
            columns=tuple(Column(title=t, numeric=t not in {"trial", "GPU"}) for t in (*titles, *gpu_titles)),
            rows=tuple(rows),
            tones=tuple("unsure" if is_disturbed else "plain" for is_disturbed in disturbed),
            note="; ".join(
                [
                    "Marked: disturbed beyond what a measurement bears",
                    *list(energy_notes)[:2],
                ]
            )
            + ".",
        )
    ]


def _energy_notes(record: Record) -> list[str]:
    """Return how the energy of a trial was measured, or why it is missing, as clauses."""
    if record.energy is None:
        return [] if record.energy_missing is None else [f"no energy: {record.energy_missing.detail}"]
    whole = " of the whole trial, start-up included" if record.energy_window == "whole_trial" else ""
    return [f"energy{whole}: {record.energy_note}"] if record.energy_note or whole else []


def _row_count(record: Record) -> int:
    return max(1, len(record.during.gpus) if record.during is not None else 0)


def _monitor_rows(record: Record, label: str, *, on_gpu: bool) -> list[tuple[Cell, ...]]:
    window = record.during
    if window is None:
        return []
    host = (
        label,
        _fixed_text(window.cpu_percent, 0),
        _fixed_text(window.steal_percent, 1),
        _fixed_text(window.pressure_cpu_percent, 0),
        _energy_text(record.energy),
    )
    if not on_gpu:
        return [host]
    nothing: tuple[Cell, ...] = (None,) * 5
    return [(*host, *_gpu_cells(gpu)) for gpu in window.gpus] or [(*host, *nothing)]


def _gpu_cells(gpu: GpuWindowStats) -> tuple[Cell, ...]:
    low, high = gpu.sm_mhz_low, gpu.sm_mhz_high
    clock = None if low is None or high is None else f"{low:.0f}" if low == high else f"{low:.0f}–{high:.0f}"
    return (
        f"GPU {gpu.gpu}",
        _fixed_text(gpu.power_w, 0),
        clock,
        _fixed_text(gpu.throttled_s, 1),
        _fixed_text(gpu.temperature_c, 0),
    )


def _energy_text(energy: Estimate | None) -> str | None:
    if energy is None:
        return None
    half = energy.relative_half_width
    return f"{energy.value:.3g}" if half is None else f"{energy.value:.3g} ±{half:.0%}"


def _fixed_text(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def sensor_lines(records: Records, origin_ns: int) -> tuple[PlotLine, ...]:
    """Return the power of each GPU, or without one how busy the CPUs were, over the seconds since a moment."""
    thinned: dict[str, DownsampledLine] = {}
    for line in records.watched():
        at_s = (line.t_ns - origin_ns) / 1e9
        if isinstance(line, GpuSample):
            power = next((value for name in POWER_QUANTITIES if (value := getattr(line, name)) is not None), None)
            if power is not None:
                thinned.setdefault(f"GPU {line.gpu}", DownsampledLine()).add(at_s, power)
        elif isinstance(line, HostSample) and line.cpu_percent is not None:
            thinned.setdefault("CPUs", DownsampledLine()).add(at_s, line.cpu_percent)
    shown = {name: series.points for name, series in thinned.items() if name != "CPUs"} or {
        name: series.points for name, series in thinned.items()
    }
    return tuple(
        PlotLine(label=name, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))
        for name, points in shown.items()
        if len(points) > 1
    )


def sensor_axis(records: Records) -> str:
    """Return what the lines are of."""
    on_gpu = any(record.during is not None and record.during.gpus for record in records)
    return "power (W)" if on_gpu else "CPUs busy (%)"


MAX_NAMED_TRIALS = 3
"""Trials that are named at most; the others are counted."""

_NUMBER = re.compile(r"(?<![\w.:/-])\d+(?:\.\d+)?(?![\w.:/]*\w)")
"""A number that stands for itself: not part of a name, a version or a path."""


class NoteGroup(NamedTuple):
    """Something that was said of one or more trials."""

    text: str
    trials: tuple[str, ...]

    @property
    def trial_names(self) -> str:
        """The first trials by name, and how many more."""
        named, more = self.trials[:MAX_NAMED_TRIALS], len(self.trials) - MAX_NAMED_TRIALS
        return "; ".join([*named, f"and {more} more"] if more > 0 else named)


def group_notes(pairs: Iterable[tuple[str, str]]) -> list[NoteGroup]:
    """Return what was said of trials, each once; what differs only in its numbers is told with their range."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for text, trial in pairs:
        alike.setdefault(_NUMBER.sub("#", text), []).append((text, trial))
    return [
        NoteGroup(merge_sentences([text for text, _ in several]), tuple(dict.fromkeys(trial for _, trial in several)))
        for several in alike.values()
    ]


def merge_sentences(several: Sequence[str]) -> str:
    """Return sentences that differ only in their numbers as one, each number as the range of all."""
    columns = zip(*(_NUMBER.findall(text) for text in several), strict=True)
    ranges = iter([_number_range(column) for column in columns])
    return _NUMBER.sub(lambda _: next(ranges), several[0])


def _number_range(numbers: Sequence[str]) -> str:
    low, high = min(numbers, key=float), max(numbers, key=float)
    return low if float(low) == float(high) else f"{low}–{high}"


def notes_table(records: Iterable[Record], labels: Mapping[str, str]) -> list[Element]:
    """Return every note once with the trials it is of; nothing where there is none. ``labels`` name the trials."""
    all_records = list(records)
    groups = group_notes(
        (note.message, labels.get(record.trial, record.block)) for record in all_records for note in record.notes
    )
    if not groups:
        return []
    return [
        Table(
            title="What was noted",
            columns=(Column(title="note"), Column(title="trials", numeric=True), Column(title="which")),
            rows=tuple((group.text, len(group.trials), _which_trials(group, len(all_records))) for group in groups),
            note=f"Of {len(all_records)} trials. Numbers that differ between them are told from the lowest to the "
            "highest.",
        )
    ]


def _which_trials(noted: NoteGroup, all_of_them: int) -> str:
    return "all" if len(noted.trials) == all_of_them > MAX_NAMED_TRIALS else noted.trial_names


def failures_section(records: Iterable[Record], labels: Mapping[str, str]) -> list[Section]:
    """Return a section about the trials without a result and the GPUs lost; nothing where all went well."""
    all_records = list(records)
    elements = (*_failed_trials_table(all_records, labels), *_lost_gpu_lines(all_records))
    return [Section(title="What went wrong", elements=elements)] if elements else []


def _failed_trials_table(records: Sequence[Record], labels: Mapping[str, str]) -> list[Element]:
    rows = tuple(_failed_trial_row(record, labels) for record in records if record.status != "ok")
    if not rows:
        return []
    titles = ("block", "trial", "status", "reason", "end of what it printed")
    return [
        Table(
            title="Trials without a result",
            columns=tuple(Column(title=t) for t in titles),
            rows=rows,
            tones=tuple("bad" for _ in rows),
        )
    ]


def _lost_gpu_lines(records: Sequence[Record]) -> list[Element]:
    """Return a sentence for each metered GPU that was lost: when first, why, and in how many trials it is missing."""
    lost: dict[str, list[tuple[Record, LostGpu]]] = {}
    for record in records:
        for gpu in record.lost_gpus:
            lost.setdefault(gpu.uuid, []).append((record, gpu))
    return [Text(text=_lost_gpu_text(several), tone="bad") for several in lost.values()]


def _lost_gpu_text(several: Sequence[tuple[Record, LostGpu]]) -> str:
    record, gpu = several[0]
    when = f"{gpu.after_s:.1f} s into trial {record.trial}" if gpu.after_s else f"before trial {record.trial}"
    trials = f"{len(several)} trial{'' if len(several) == 1 else 's'}"
    return (
        f"GPU {gpu.gpu} was lost {when} of {record.block}: {gpu.reason}. The result is partial: {trials} "
        "without its sensors from then on."
    )


def _failed_trial_row(record: Record, labels: Mapping[str, str]) -> tuple[Cell, ...]:
    lines = (record.stderr_tail or "").strip().splitlines()
    telling = [line for line in lines if "rror" in line] or lines
    trial = labels.get(record.trial, record.trial)
    return (record.block, trial, record.status, record.reason, telling[-1] if telling else None)


def measured_table(
    title: str,
    rows: Iterable[Row],
    columns: Mapping[str, Callable[[Row], Cell]],
    *,
    text: Collection[str],
    tone: Callable[[Row], Tone] | None = None,
    note: str | None = None,
) -> list[Element]:
    """Return a table without the columns in which nothing was measured; nothing without rows.

    Columns are numbers, but for those whose titles are in ``text``.
    """
    numeric = [name for name in columns if name not in text]
    table = build_table(title, rows, columns, numeric=numeric, tone=tone, note=note)
    shown = [n for n in range(len(columns)) if any(row[n] is not None for row in table.rows)]
    cells = tuple(tuple(row[n] for n in shown) for row in table.rows)
    measured = table.model_copy(update={"columns": tuple(table.columns[n] for n in shown), "rows": cells})
    return [measured] if shown else []


def fixed_cell(value: float | None, decimals: int = 0) -> str | None:
    """Write a number with so many decimals for a table; null where there is none."""
    return None if value is None else f"{value:.{decimals}f}"


def overrun_lines(budget_s: float | None, records: Iterable[Record]) -> list[Element]:
    """Return the line that says by how much a run took longer than its budget; nothing where it did not."""
    late = overrun_text(budget_s, records) if budget_s is not None else None
    return [] if late is None else [Text(text=f"{late[:1].upper()}{late[1:]}.", tone="unsure")]
