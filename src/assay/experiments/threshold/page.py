"""What ``assay threshold run`` shows: the answers and why, speed-ups over size, every point, and what it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Page, Section, Text
from assay.experiments.notes import notes_table
from assay.experiments.threshold.findings import answers_of
from assay.experiments.threshold.plan import walk
from assay.experiments.threshold.tables import answers_table, parity_table, paths_table, points_table, speed_ups
from assay.experiments.trouble import trouble
from assay.experiments.watched import watched_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Element, Tone
    from assay.core.results import Findings
    from assay.experiments.threshold.answers import Answer
    from assay.experiments.threshold.options import ThresholdOptions
    from assay.machine.model import Machine
    from assay.store.records import Records


def page(machine: Machine, options: ThresholdOptions, findings: Findings, records: Records) -> Page:
    """Return the whole page."""
    answers = answers_of(options, records)
    labels = {record.trial: record.block.replace("-", " ") for record in records}
    figures = [figure for number, answer in enumerate(answers) for figure in speed_ups(answer, number)]
    sections = [
        Section(title="Results", elements=(answers_table(answers), *why(answers), *_late(records))),
        Section(title="Speed-ups over size", elements=tuple(figures)),
        Section(title="Every point", elements=tuple(points_table(answer) for answer in answers)),
        Section(title="Is the fast path right?", elements=tuple(parity_table(answers))),
        Section(
            title="What it rests on",
            elements=(
                *paths_table(answers),
                *watched_table(records, labels),
                *notes_table(records, labels),
                *_ended(options, records),
            ),
        ),
        *trouble(records),
    ]
    return Page(
        title=f"assay threshold run: {', '.join(answer.name for answer in answers)}",
        lead=findings.headline,
        lead_tone=_tone(answers),
        sections=tuple(section for section in sections if section.elements),
        facts=_facts(machine, options, records),
        origin=next((r.origin for r in records if r.origin != "real"), "real"),
    )


def _tone(answers: Sequence[Answer]) -> Tone:
    if any(answer.parity == "failed" for answer in answers):
        return "bad"
    unsure = any(answer.parity == "skipped" or answer.place.decision == "unsure" for answer in answers)
    return "unsure" if unsure else "plain"


def why(answers: Sequence[Answer]) -> list[Element]:
    """Return the reasons of each answer as a paragraph."""
    return [
        Text(
            text=f"{answer.name}: {' '.join(answer.why)}",
            tone="bad" if answer.parity == "failed" else "unsure" if answer.value is None else "plain",
        )
        for answer in answers
        if answer.why
    ]


def _late(records: Records) -> list[Element]:
    """Say so where the time of the last process was up before it had looked at all that it was to look at."""
    facts = records[-1].evidence[0].subjects if len(records) and records[-1].evidence else ()
    count = sum(not subject.reached for subject in facts) // 2
    if not count:
        return []
    pairs = "1 pair was" if count == 1 else f"{count} pairs were"
    text = f"{pairs} not reached in the last process before its time was up; a longer --duration reaches more."
    return [Text(text=text, tone="unsure")]


def _ended(options: ThresholdOptions, records: Records) -> list[Element]:
    step = walk(options, records).next
    why = getattr(step, "why", "")
    return [Text(text=f"It ended as {why}.")] if why and not hasattr(step, "trials") else []


def _pairs(options: ThresholdOptions) -> str:
    if options.growth == 1:
        return f"{options.rounds} pairs of a point in each"
    return f"{options.rounds} pairs of a point in the first two, {options.growth} times as many in each next"


def _facts(machine: Machine, options: ThresholdOptions, records: Records) -> tuple[tuple[str, str], ...]:
    decided = {"cautious": "both times, the more cautious", "call": "call", "span": "span"}[options.decide_on]
    return (
        ("machine", f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or f"none ({machine.gpu_note})"),
        ("device", options.device),
        ("driver", machine.driver or "none"),
        ("decided on", decided),
        ("processes", f"{len(records)} of {options.blocks} at most, {_pairs(options)}"),
        ("seed", str(options.seed)),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items() if v)),
        ("commit", f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}"),
    )
