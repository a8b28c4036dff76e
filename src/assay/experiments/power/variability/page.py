"""The page: fleet by fleet what stands out, which to ask for, where the variance comes from, and the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Page, Section, Text
from assay.experiments.power.variability import words
from assay.experiments.power.variability.figures import scatter_figures, strips_figures
from assay.experiments.power.variability.tables import (
    components_table,
    gpus_table,
    outliers_table,
    pairs_table,
    places_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.core.page import Element, Figure
    from assay.core.results import Findings, Origin
    from assay.experiments.power.variability.analysis import Looked

MOST_DRAWN = 4
"""Fleets that get figures; the tables of the others say the same."""
MOST_TOLD = 20


def page(
    all_looked: Sequence[Looked],
    found: Findings,
    *,
    notes: Sequence[str] = (),
    unusable: Sequence[str] = (),
    over_time: Figure | None = None,
    facts: Sequence[tuple[str, str]] = (),
    origin: Origin = "real",
) -> Page:
    """Return the whole page."""
    sections = [section for index, looked in enumerate(all_looked) for section in _sections(looked, index, all_looked)]
    if over_time is not None:
        sections.append(Section(title="Power over time", elements=(over_time,)))
    trouble = [Text(text=text) for text in notes]
    trouble += [Text(text=f"{text}.", tone="bad") for text in unusable[:MOST_TOLD]]
    if len(unusable) > MOST_TOLD:
        trouble.append(Text(text=f"And {len(unusable) - MOST_TOLD} more; --json has all.", tone="bad"))
    if trouble:
        sections.append(Section(title="What to know of the rows", elements=tuple(trouble)))
    return Page(
        title="assay power variability",
        lead=found.headline,
        lead_tone="bad" if any(one.verdict == "yes" for looked in all_looked for one in looked.outliers) else "plain",
        sections=tuple(sections),
        facts=tuple(facts),
        origin=origin,
    )


def _sections(looked: Looked, place: int, all_looked: Sequence[Looked]) -> Iterator[Section]:
    with_figures = place < MOST_DRAWN
    mark = f"_{place + 1}" if len(all_looked) > 1 else ""
    title = looked.fleet.kind.label
    runs = words.counted(len({row.run for row in looked.fleet.rows}), "run")
    sizes = [words.counted(len(looked.fleet.gpus), "GPU"), words.counted(len(looked.fleet.hosts), "host"), runs]
    savings = words.money(looked)
    elements: list[Element] = [
        Text(text=f"{', '.join(sizes)}, {words.counted(len(looked.fleet.rows), 'row')}. {words.answer(looked)}"),
        *([Text(text=savings)] if savings else []),
        *gpus_table(looked),
        *outliers_table(looked),
        *(strips_figures(looked, mark) if with_figures else []),
        *places_table(looked),
        *components_table(looked),
    ]
    yield Section(title=title, elements=tuple(elements))
    correlation_elements = [*pairs_table(looked), *(scatter_figures(looked, mark) if with_figures else [])]
    if correlation_elements:
        yield Section(title=f"{title}: what goes together", elements=tuple(correlation_elements))
