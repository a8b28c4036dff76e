"""What a comparison shows: pairs with their verdicts, results side by side, and what to know of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Page, Section, Text
from assay.core.page import Table as Grid
from assay.experiments.comparing.aligning import in_words
from assay.experiments.comparing.from_older import THRESHOLD
from assay.experiments.comparing.judging import judged, models
from assay.experiments.comparing.words import factor, interval, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.experiments.comparing.aligning import Table
    from assay.experiments.comparing.judging import Pair
    from assay.experiments.comparing.result import Result

AT_MOST = 8
"""So many names that only one result has are listed."""


def page(table: Table, found: Result) -> Page:
    """Return the whole page."""
    pairs = judged(table, found.minimum_effect)
    results: list[Element] = []
    for index, source in enumerate(table.sources[1:], 1):
        mine = [pair for pair in pairs if pair.other == index]
        if mine:
            results.append(_pairs(mine, found.baseline, source.path, found.minimum_effect))
    results += _rising(found)
    results += _side_by_side(table, across=bool(found.elsewhere))
    sections = [
        Section(title="Results", elements=tuple(results)),
        Section(title="Not comparable", elements=tuple(_not_comparable(found))),
        Section(title="What differs in how they were measured", elements=_differences(found)),
        Section(title="What to know", elements=tuple(_remarks(found, pairs))),
    ]
    tones: dict[str, Tone] = {"yes": "good", "no": "bad", "unsure": "unsure"}
    return Page(
        title="assay compare",
        lead=found.headline,
        lead_tone=tones[found.verdict] if pairs else "plain",
        sections=tuple(section for section in sections if section.elements),
        facts=(
            ("baseline", f"{found.baseline}, {table.sources[0].kind}"),
            *(("against", f"{source.path}, {source.kind}") for source in table.sources[1:]),
        ),
        origin=found.origin,
    )


def tone_of(pair: Pair) -> Tone:
    """Return whether a pair is good news."""
    if pair.regression:
        return "bad"
    if pair.verdict == "unsure":
        return "unsure"
    return "good" if pair.counts or pair.verdict == "same" else "plain"


def _pairs(pairs: Sequence[Pair], baseline: str, other: str, minimum_effect: float) -> Grid:
    names = [pair.name for pair in pairs]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            in_words(pair.name, names if len(names) > 1 else ()),
            pair.name.quantity,
            shown(pair.first),
            shown(pair.second),
            factor(pair.ratio),
            interval(pair.ratio),
            pair.verdict,
        )
        for pair in pairs
    )
    titles = ("what", "quantity", "baseline", "other", "ratio", "95 % interval", "verdict")
    return Grid(
        title=f"{other} against {baseline}",
        columns=tuple(Column(title=title, numeric=2 <= index < 6) for index, title in enumerate(titles)),
        rows=rows,
        tones=tuple(map(tone_of, pairs)),
        note=(
            f"A verdict needs more than {100 * minimum_effect:g} % of difference, or surely less; all of them together "
            "hold with 95 % confidence (Holm). The interval of a ratio is by itself. “Or any”: too little was measured "
            "to say."
        ),
    )


def _rising(found: Result) -> list[Element]:
    tones: dict[str, Tone] = {"yes": "bad", "no": "good", "unsure": "unsure"}
    return [Text(text=f"{rise.against}: {rise.said}.", tone=tones[rise.rose]) for rise in found.thresholds]


def _side_by_side(table: Table, *, across: bool) -> list[Element]:
    """Return a column for each result: across models of everything, otherwise of thresholds, which are no times."""
    names = [name for name in table.shared if across or name.quantity == THRESHOLD]
    if not names:
        return []
    columns = [Column(title="what"), Column(title="quantity")]
    for index, source in enumerate(table.sources):
        on = sorted(models([number for name in names for number in table.rows[name][index]]))
        columns.append(Column(title=f"{source.path} ({', '.join(on) or '?'})", numeric=True))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (in_words(name, names if len(names) > 1 else ()), name.quantity, *map(shown, table.rows[name]))
        for name in names
    )
    note = "With half the 95 % interval. Across models there is no verdict: they differ for known reasons."
    return [Grid(title="Side by side", columns=tuple(columns), rows=rows, note=note if across else None)]


def _not_comparable(found: Result) -> list[Element]:
    return [
        Text(text=f"{item.said} ({', '.join(item.quantities)}; {item.against}).", tone="unsure")
        for item in found.not_comparable
    ]


def _differences(found: Result) -> tuple[Element, ...]:
    if not found.differ:
        return ()
    paths = list(next(iter(found.differ.values())))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(values[path] for path in paths)) for name, values in found.differ.items()
    )
    columns = tuple(Column(title=title) for title in ("what", *paths))
    return (Grid(title="Machines and software", columns=columns, rows=rows),)


def _remarks(found: Result, pairs: Sequence[Pair]) -> list[Element]:
    """Return what must be known: reasons for what is unsure, notes, and what only one result has."""
    counts: dict[str, int] = {}
    for pair in pairs:
        for why in (pair.reason, pair.note):
            if why is not None:
                counts[why] = counts.get(why, 0) + 1
    texts = [f"{count} of {len(pairs)}: {why}." for why, count in counts.items()]
    texts += [f"{note.rstrip('.')}." for note in found.notes]
    for path, names in found.only.items():
        more = f" and {len(names) - AT_MOST} more" if len(names) > AT_MOST else ""
        texts.append(f"Only {path} has {', '.join(names[:AT_MOST])}{more}.")
    return [Text(text=text, tone="unsure") for text in texts]
