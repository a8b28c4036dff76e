"""What ``assay gate`` shows: the answer, every restart, the two revisions, and what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Strip, Strips, Table, Text
from assay.experiments.gate.answers import answers, verdict_of
from assay.experiments.gate.plan import head_first, step
from assay.experiments.gate.words import SAID, limit, percent
from assay.experiments.notes import notes_table
from assay.experiments.trouble import trouble
from assay.experiments.watched import watched_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Findings, Verdict
    from assay.experiments.gate.answers import Answer
    from assay.experiments.gate.options import GateOptions
    from assay.machine.model import Machine
    from assay.store.records import Records

TONES: dict[Verdict, Tone] = {"yes": "good", "no": "bad", "unsure": "unsure"}


def page(machine: Machine, options: GateOptions, findings: Findings, records: Records) -> Page:
    """Return the whole page."""
    results = answers(options, records)
    labels = {record.trial: record.block.replace("-", " ") for record in records}
    sections = [
        Section(title="Results", elements=(answers_table(options, results), *_notes(options), *_strips(results))),
        Section(title="Every restart", elements=tuple(_restarts_table(options, answer) for answer in results)),
        Section(title="The revisions", elements=(_revisions_table(options),)),
        Section(
            title="What it rests on",
            elements=(*watched_table(records, labels), *notes_table(records, labels), *_ended(options, records)),
        ),
        *trouble(records),
    ]
    return Page(
        title=f"assay gate: {options.subject.label}",
        lead=findings.headline,
        lead_tone=TONES[verdict_of(results)],
        sections=tuple(section for section in sections if section.elements),
        facts=_facts(machine, options),
        origin=next((r.origin for r in records if r.origin != "real"), "real"),
    )


def answers_table(options: GateOptions, found: Sequence[Answer]) -> Table:
    """Return what is known about each quantity."""
    titles = ("quantity", "base", "head", "change", "interval", "limit", "answer")
    return Table(
        title="Head against base",
        columns=tuple(Column(title=title, numeric=1 <= index <= 5) for index, title in enumerate(titles)),
        rows=tuple(_row(options, answer) for answer in found),
        tones=tuple(TONES[answer.verdict] for answer in found),
        note="Typical medians of the restarts. The interval is over restarts and holds at every look together with the "
        "others (95 %): it passes where all of it is within the limit, and fails where all of it is beyond.",
    )


def _row(options: GateOptions, answer: Answer) -> tuple[Cell, ...]:
    question, ratio = answer.question, answer.change
    verdict = SAID[answer.verdict]
    if ratio is None:
        return (question.name, None, None, None, None, limit(options, question), answer.reason or verdict)
    value, low, high = ratio
    base = sorted(pair.base for pair in answer.pairs)[len(answer.pairs) // 2]
    interval = None if low is None or high is None else f"{percent(low)} to {percent(high)}"
    cells = (question.told(base), question.told(base * value), percent(value), interval)
    return (question.name, *cells, limit(options, question), verdict)


def _notes(options: GateOptions) -> list[Element]:
    return [Text(text=f"{note[:1].upper()}{note[1:]}.") for note in options.notes]


def _strips(found: Sequence[Answer]) -> list[Element]:
    strips = []
    for answer in found:
        change = answer.change
        if change is not None:
            ratios = tuple(pair.ratio for pair in answer.pairs if pair.ratio is not None)
            value, low, high = change
            strips.append(Strip(label=answer.question.name, samples=ratios, value=value, low=low, high=high))
    if not strips:
        return []
    return [
        Strips(
            title="Head over base",
            name="ratios",
            axis="head over base",
            unit="×",
            strips=tuple(strips),
            centre=1.0,
            note="A dot a restart.",
        )
    ]


def _restarts_table(options: GateOptions, answer: Answer) -> Table:
    titles = ("restart", "first turn", "base", "head", "change")
    format_value = answer.question.told
    rows = tuple(
        (
            number,
            "head" if head_first(options, number - 1) else "base",
            format_value(pair.base),
            format_value(pair.head),
            None if pair.ratio is None else percent(pair.ratio),
        )
        for pair in answer.pairs
        for number in [int(pair.block.rpartition("-")[2])]
    )
    columns = tuple(Column(title=title, numeric=title != "first turn") for title in titles)
    note = "Both in processes of their own. The medians are of all turns; the change is that of neighbouring ones."
    return Table(title=answer.question.name.capitalize(), columns=columns, rows=rows, note=note)


def _revisions_table(options: GateOptions) -> Table:
    titles = ("revision", "as named", "commit", "checked out in", "interpreter")
    return Table(
        title="What was measured",
        columns=tuple(Column(title=title) for title in titles),
        rows=tuple((r.name, r.ref, r.commit, r.checkout, r.interpreter) for r in options.checkouts.revisions),
        note="The checkouts are removed when all is measured."
        + ("" if options.checkouts.setup is None else f" Set up by: {options.checkouts.setup}"),
    )


def _ended(options: GateOptions, records: Records) -> list[Element]:
    following = step(options, records)
    return [] if hasattr(following, "trials") else [Text(text=f"It ended as {following.why}.")]


def _facts(machine: Machine, options: GateOptions) -> tuple[tuple[str, str], ...]:
    return (
        ("machine", f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or f"none ({machine.gpu_note})"),
        ("device", options.device),
        ("isolation asked", options.isolation),
        ("repository", options.checkouts.repository),
        ("minimum effect", f"{100 * options.minimum_effect:.3g} %"),
        ("seed", str(options.seed)),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items() if v)),
    )
