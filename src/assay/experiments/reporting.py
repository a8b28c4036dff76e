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

from assay.core.format import format_count
from assay.core.page import Column, Page, PlotLine, Section, Table, Text, build_table
from assay.core.results import DataQuality, Estimate, Findings, InterferenceSource, IsolationShortfall
from assay.experiments.budget import overrun_text
from assay.isolation.placement import LEVELS
from assay.monitor.report import DownsampledLine
from assay.monitor.samples import POWER_QUANTITIES, GpuSample, HostSample

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import (
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
    from assay.stats.blocks import BlockRatio
    from assay.stats.ratios import Proportion
    from assay.store.records import Records


Row = TypeVar("Row")

TIME_QUANTITIES = {
    "busy_us": "the median time of its kernels",
    "span_us": "the median time from its first kernel to its last",
    "call_us": "the median time of a call",
}
"""The times of a result in words, the one that counts first: the kernels' where measured, otherwise the call's."""

TIME_AXES = {
    "busy_us": "time of the kernels of one call",
    "span_us": "time from first to last kernel of one call",
    "call_us": "time of one call",
}
TIME_LABELS = {"busy_us": "kernels", "span_us": "first to last kernel", "call_us": "call"}
CLOCK_QUANTITIES = frozenset({"busy_cycles", "clock_mhz", "throttled"})
"""What is kept beside the times of a GPU."""


def primary_time(records: Iterable[Record], role: str) -> str:
    """Return the quantity that counts among those that were taken of a role."""
    measured = {s.quantity for record in records for s in record.series if s.role == role}
    return next((quantity for quantity in TIME_QUANTITIES if quantity in measured), "call_us")


def primary_estimate(record: Record, role: str) -> Estimate | None:
    """Return a record's own estimate of the time that counts; null where it has none."""
    quantity = primary_time([record], role)
    return next((s.estimate for s in record.estimates if s.role == role and s.quantity == quantity), None)


def block_ratio_estimate(
    ratio: BlockRatio | None, method: str, *, unit: str = "×", scale: float = 1.0
) -> Estimate | None:
    """Return a ratio over blocks as an estimate, times ``scale``; null where nothing was measured."""
    if ratio is None:
        return None
    return Estimate(
        value=scale * ratio.value,
        low=None if ratio.low is None else scale * ratio.low,
        high=None if ratio.high is None else scale * ratio.high,
        unit=unit,
        scope="run",
        method=method,
        n=ratio.blocks,
    )


def share_estimate(share: Proportion, what: str) -> Estimate | None:
    """Return a share in percent with its exact interval; null where nothing was compared."""
    value, interval = share.value, share.interval()
    if value is None or interval is None:
        return None
    return Estimate(
        value=100 * value,
        low=100 * interval[0],
        high=100 * interval[1],
        unit="%",
        scope="run",
        method=f"{what}: {share.count} of {share.n} comparisons, Clopper–Pearson",
        n=share.n,
    )


def run_estimate(bounds: tuple[float, float | None, float | None], unit: str, method: str, n: int) -> Estimate:
    """Return value, low and high of something over a run as an estimate."""
    value, low, high = bounds
    return Estimate(value=value, low=low, high=high, unit=unit, scope="run", method=method, n=n)


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

    ``facts`` are those of this experiment; they stand between those of the machine and the versions, and replace one of
    the same name. ``trial_labels`` name failed trials; null: by their ids.
    """
    every = {
        "machine": f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores",
        "GPUs": ", ".join(gpu.name for gpu in machine.gpus) or f"none ({machine.gpu_note})",
        **({"driver": machine.driver} if machine.driver else {}),
        **facts,
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions.items() if version),
        "commit": f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}",
    }
    failures = (*_failed_trials_table(records, trial_labels or {}), *_lost_gpu_lines(records))
    answer, *rest = sections
    all_sections = (
        answer.model_copy(update={"brief": True}),
        *rest,
        Section(title="What went wrong", elements=failures, brief=True),
    )
    return Page(
        title=title,
        lead=lead,
        lead_tone=lead_tone,
        sections=tuple(section for section in all_sections if section.elements),
        facts=tuple(every.items()),
        origin=overall_origin(records),
    )


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
    by_source: dict[tuple[InterferenceKind, str], dict[int, list[Interference]]] = {}
    for number, several in enumerate(trials):
        for item in several:
            by_source.setdefault((item.kind, item.source), {}).setdefault(number, []).append(item)
    sources = []
    for (kind, source), by_trial in by_source.items():
        items = [max(several, key=lambda item: item.amount or 0.0) for several in by_trial.values()]
        amount = max((item.amount for item in items if item.amount is not None), default=None)
        sources.append(
            InterferenceSource(kind=kind, source=source, trials=len(items), amount=amount, unit=items[0].unit)
        )
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
    again = f"; {quality.retaken} measured again" if quality.retaken else ""
    trials = format_count(quality.trials, "trial")
    lines = []
    if quality.disturbed:
        advice = f"; {WAIT_ADVICE}" if 2 * quality.disturbed > quality.trials else ""
        lines.append(Text(text=f"{disturbance_text(quality)}{again}{advice}.", tone="unsure"))
    elif quality.watched and quality.watched >= quality.trials:
        where = "the trial" if quality.trials == 1 else trials
        lines.append(Text(text=f"No interference detected in {where}{again}."))
    for short in quality.isolation:
        where = f"{short.trials} of {trials}"
        text = f"Isolation {short.requested} did not hold in {where} ({short.held} held): {short.message}."
        lines.append(Text(text=text, tone="unsure"))
    return tuple(lines)


def disturbance_text(quality: DataQuality) -> str:
    """Write "2 of 12 trials disturbed: ffmpeg (1.4 cores)"; empty where none was."""
    if not quality.disturbed:
        return ""
    several = []
    for source in quality.sources[:MAX_NAMED_SOURCES]:
        often = [format_count(source.trials, "trial")] if source.trials < quality.disturbed else []
        several.append(_source_text(source, often))
    more = len(quality.sources) - MAX_NAMED_SOURCES
    several += [f"{more} more"] if more > 0 else []
    return f"{quality.disturbed} of {format_count(quality.trials, 'trial')} disturbed: {', '.join(several)}"


def process_interference_line(complaints: Sequence[Interference]) -> Text:
    """Return the line for what one process measured, without trials: "Disturbed: ffmpeg (1.4 cores)."."""
    if not complaints:
        return Text(text="No interference detected.")
    return Text(text=f"Disturbed: {', '.join(_source_text(item, []) for item in complaints)}.", tone="unsure")


def _source_text(item: Interference | InterferenceSource, often: list[str]) -> str:
    """Write "ffmpeg (1.4 cores)"."""
    amount, unit = item.amount, item.unit
    facts = [] if amount is None else [f"{amount:.{1 if amount < 100 else 0}f} {unit or ''}".strip()]
    facts += often
    return f"{item.source} ({', '.join(facts)})" if facts else item.source


def isolation_text(evidence: Evidence) -> str:
    """Write the level that held, and the one that was asked for where it did not: "none, not full"."""
    held, requested = evidence.isolation_held, evidence.isolation_asked
    return held if held == requested else f"{held}, not {requested}"


def monitor_table(records: Records, labels: Mapping[str, str]) -> list[Element]:
    """Return what was seen while each trial was timed, a row for each GPU; nothing where no monitor watched."""
    watched = [(record, record.during) for record in records if record.during is not None]
    if not watched:
        return []
    on_gpu = any(during.gpus for _, during in watched)
    titles = ("trial", "CPUs busy, %", "steal, %", "waited for a CPU, %", "energy, J")
    gpu_titles = ("GPU", "power, W", "SM clock, MHz", "throttled, s", "temperature, °C") if on_gpu else ()
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    for record, during in watched:
        host = (
            labels.get(record.trial, record.block),
            _fixed_text(during.cpu_percent, 0),
            _fixed_text(during.steal_percent, 1),
            _fixed_text(during.pressure_cpu_percent, 0),
            _energy_text(record.energy),
        )
        nothing: tuple[Cell, ...] = (None,) * len(gpu_titles)
        mine = [(*host, *_gpu_cells(gpu)) for gpu in during.gpus] or [(*host, *nothing)]
        rows += mine
        tones += ["unsure" if record.disturbed else "plain"] * len(mine)
    energy_notes = dict.fromkeys(note for record, _ in watched for note in _energy_notes(record))
    clauses = ("Marked: disturbed beyond what a measurement bears", *list(energy_notes)[:2])
    return [
        Table(
            title="What the monitor saw while each trial was timed",
            columns=tuple(Column(title=t, numeric=t not in {"trial", "GPU"}) for t in (*titles, *gpu_titles)),
            rows=tuple(rows),
            tones=tuple(tones),
            note=f"{'; '.join(clauses)}.",
        )
    ]


def _energy_notes(record: Record) -> list[str]:
    """Return how the energy of a trial was measured, or why it is missing, as clauses."""
    if record.energy is None:
        return [] if record.energy_missing is None else [f"no energy: {record.energy_missing.detail}"]
    whole = " of the whole trial, start-up included" if record.energy_window == "whole_trial" else ""
    return [f"energy{whole}: {record.energy_note}"] if record.energy_note or whole else []


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
    if len(thinned) > 1:
        thinned.pop("CPUs", None)
    return tuple(
        PlotLine(label=name, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))
        for name, series in thinned.items()
        if len(points := series.points) > 1
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
    ranges = []
    for numbers in zip(*(_NUMBER.findall(text) for text in several), strict=True):
        low, high = min(numbers, key=float), max(numbers, key=float)
        ranges.append(low if float(low) == float(high) else f"{low}–{high}")
    remaining = iter(ranges)
    return _NUMBER.sub(lambda _: next(remaining), several[0])


def notes_table(records: Iterable[Record], labels: Mapping[str, str]) -> list[Element]:
    """Return every note once with the trials it is of; nothing where there is none. ``labels`` name the trials."""
    all_records = list(records)
    groups = group_notes(
        (note.message, labels.get(record.trial, record.block)) for record in all_records for note in record.notes
    )
    if not groups:
        return []

    def which(group: NoteGroup) -> str:
        return "all" if len(group.trials) == len(all_records) > MAX_NAMED_TRIALS else group.trial_names

    table = build_table(
        "What was noted",
        groups,
        {"note": lambda group: group.text, "trials": lambda group: len(group.trials), "which": which},
        numeric=("trials",),
        note=f"Of {len(all_records)} trials. Numbers that differ between them are told from the lowest to the highest.",
    )
    return [table]


def _failed_trials_table(records: Sequence[Record], labels: Mapping[str, str]) -> list[Element]:
    failed = [record for record in records if record.status != "ok"]
    if not failed:
        return []

    def last_error(record: Record) -> str | None:
        lines = (record.stderr_tail or "").strip().splitlines()
        return next(reversed([line for line in lines if "rror" in line] or lines), None)

    table = build_table(
        "Trials without a result",
        failed,
        {
            "block": lambda record: record.block,
            "trial": lambda record: labels.get(record.trial, record.trial),
            "status": lambda record: record.status,
            "reason": lambda record: record.reason,
            "end of what it printed": last_error,
        },
        tone=lambda _: "bad",
    )
    return [table]


def _lost_gpu_lines(records: Sequence[Record]) -> list[Element]:
    """Return a sentence for each metered GPU that was lost: when first, why, and in how many trials it is missing."""
    lost: dict[str, list[tuple[Record, LostGpu]]] = {}
    for record in records:
        for gpu in record.lost_gpus:
            lost.setdefault(gpu.uuid, []).append((record, gpu))
    lines: list[Element] = []
    for several in lost.values():
        record, gpu = several[0]
        when = f"{gpu.after_s:.1f} s into trial {record.trial}" if gpu.after_s else f"before trial {record.trial}"
        text = (
            f"GPU {gpu.gpu} was lost {when} of {record.block}: {gpu.reason}. The result is partial: "
            f"{format_count(len(several), 'trial')} without its sensors from then on."
        )
        lines.append(Text(text=text, tone="bad"))
    return lines


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
