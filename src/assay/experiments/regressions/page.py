"""Steps of the history as a page: what they are, and each series with its levels."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from assay.core.page import Column, Line, Lines, Page, Section, Table, Text
from assay.experiments.regressions.words import change, commits, sentence
from assay.store.history.page import line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.page import Element, Tone
    from assay.experiments.regressions.found import Found, Standing, Stepped
    from assay.store.history.series import Course

MOST_FIGURES = 12
TONES: dict[Standing, Tone] = {
    "regression": "bad",
    "improvement": "good",
    "confounded": "unsure",
    "maybe chance": "unsure",
}
COLUMNS = (
    Column(title="it is"),
    Column(title="series"),
    Column(title="change (95 %)"),
    Column(title="first run after it"),
    Column(title="commits"),
    Column(title="at the same time"),
    Column(title="on"),
    Column(title="chance", numeric=True),
    Column(title="key"),
)


def page(found: Found, courses: Sequence[Course]) -> Page:
    """Return the page of a look at the history; series that stepped are drawn if they are given."""
    named = {course.name: course for course in courses}
    tone: Tone = "bad" if found.regressions else "plain"
    sections = [Section(title="Steps", elements=(table(found.steps),))] if found.steps else []
    figures = drawn([step for step in found.steps if step.key in named], named)
    if figures:
        sections.append(Section(title="Series", elements=figures))
    sections.append(Section(title="What was looked at", elements=(Text(text=looked_at(found)),)))
    return Page(
        title="assay history: regressions",
        lead=found.headline,
        lead_tone=tone,
        sections=tuple(sections),
        origin=found.origin,
    )


def table(steps: Sequence[Stepped]) -> Table:
    """Return the steps as rows."""
    rows = tuple(
        (
            step.standing,
            f"{step.what} {step.details}",
            f"{step.verdict}: {change(step)}",
            f"{step.first_bad.run}, {step.first_bad.began_at:%Y-%m-%d %H:%M}{_between(step)}",
            commits(step),
            "; ".join((*step.confounded_by, *step.beside)) or None,
            step.where,
            f"{step.chance:.1g}",
            step.key,
        )
        for step in steps
    )
    return Table(
        title="Regressions first, the largest of them at the top",
        columns=COLUMNS,
        rows=rows,
        tones=tuple(TONES.get(step.standing, "plain") for step in steps),
        note="Chance: that a stable series as long as this one looks so. Times are UTC.",
    )


def _between(step: Stepped) -> str:
    """Say between which runs a step began where that is not sure."""
    early, late = step.earliest.began_at, step.latest.began_at
    return "" if early == late else f" (from {early:%m-%d %H:%M} to {late:%m-%d %H:%M})"


def drawn(steps: Sequence[Stepped], named: Mapping[str, Course]) -> tuple[Element, ...]:
    """Return the course of each series that stepped, with its levels: regressions first, and not too many."""
    elements: list[Element] = []
    keys = list(dict.fromkeys(step.key for step in steps))
    for number, key in enumerate(keys[:MOST_FIGURES]):
        of_it = sorted((s for s in steps if s.key == key), key=lambda s: s.first_bad.began_at)
        elements += [Text(text=f"{sentence(step)} ({step.standing}).") for step in of_it]
        elements.append(with_levels(named[key], of_it, f"series_{number}"))
    left = len(keys) - MOST_FIGURES
    if left > 0:
        elements.append(Text(text=f"{left} more series are not drawn; `assay history plot KEY` draws one."))
    return tuple(elements)


def with_levels(course: Course, steps: Sequence[Stepped], name: str) -> Lines:
    """Return the line of a series with its level between steps."""
    plain = line(course)
    x, cuts = np.array(plain.lines[0].x), [step.first_bad.began_at.timestamp() for step in steps]
    bounds = [-math.inf, *cuts, math.inf]
    levels = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        inside = (course.started_s >= low) & (course.started_s < high) & np.isfinite(course.value)
        if not inside.any():
            continue
        middle, ends = float(np.median(course.value[inside])), x[inside][[0, -1]]
        label = "level" if number == 0 else f"after step {number}"
        levels.append(Line(label=label, x=tuple(ends.tolist()), y=(middle, middle), limit=True))
    updates = {"lines": (*plain.lines, *levels), "name": name, "title": f"{plain.title}, {course.key.details}"}
    return plain.model_copy(update=updates)


def looked_at(found: Found) -> str:
    """Say how many series there were, and what was left out."""
    texts = [f"{found.series} series with {found.runs} runs in all."]
    if found.too_short:
        texts.append(f"{found.too_short} have too few runs to tell a step from noise.")
    if found.not_positive:
        texts.append(f"{found.not_positive} runs whose value is not above zero were left out.")
    if found.drifted:
        texts.append(
            f"Without a step, but far from where they began: {', '.join(found.drifted)}; "
            "`assay history plot KEY` shows one."
        )
    texts.append(f"Of the steps that are told, {100 * found.false_share:.3g} % may be false.")
    return " ".join(texts)
