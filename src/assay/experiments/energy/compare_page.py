"""The page of a comparison: a table, the Pareto figures, what one change does, and what to know of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Dot, Page, Scatter, Section, Table, Text
from assay.experiments.energy.compare_words import (
    SPEED,
    TONES,
    about,
    headline,
    origin_of,
    remarks,
    said,
    spread_wide,
    times,
)
from assay.experiments.energy.comparing import Known, changes, differing, front_path, shapes, standings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element
    from assay.experiments.energy.comparing import By, Of, Point, Standing

MOST_TOLD = 20
TITLES = {"batch": "sequences"}


def page(points: Sequence[Point], of: Of, by: By, *, notes: Sequence[str] = ()) -> Page:
    """Return the whole page."""
    lead = headline(points, of)
    tables = [table(of_shape, of, points) for of_shape in shapes(points).values()]
    figures = [
        figure for number, part in enumerate(shapes(points).values(), 1) for figure in drawn(part, of, by, number)
    ]
    texts = [Text(text=text, tone=tone) for text, tone in remarks(points, of)]
    texts += [Text(text=f"{note.rstrip('.')}.", tone="bad") for note in notes[:MOST_TOLD]]
    sections = (
        Section(title="Results", elements=(*tables, *what_changes(points, by))),
        Section(title="Joules by speed", elements=tuple(figures)),
        Section(title="What to know", elements=tuple(texts)),
    )
    return Page(
        title=f"assay energy compare: {about(points)}",
        lead=lead,
        sections=tuple(section for section in sections if section.elements),
        origin=origin_of(points),
    )


def _title(points: Sequence[Point], everything: Sequence[Point]) -> str:
    first = points[0]
    shape = f"{first.input_tokens} tokens in, {first.output_tokens} out"
    if len({point.request for point in everything}) > 1:
        shape += f", {first.request or 'of a request that is not recorded'}"
    fake = f", {first.origin}" if len({point.origin for point in everything}) > 1 else ""
    return f"{shape}{fake}"


def table(points: Sequence[Point], of: Of, everything: Sequence[Point]) -> Table:
    """Return points of one kind of request, the least energy first, each by its number."""
    names = differing(everything)
    points = sorted(points, key=_by_energy)
    together, per_sequence = standings(points), standings(points, each=True)
    columns: list[tuple[Column, list[Cell]]] = [(Column(title="#"), [str(n) for n in range(1, len(points) + 1)])]
    columns += [(Column(title=TITLES.get(name, name)), [point.said(name) for point in points]) for name in names]
    columns += [
        (Column(title="tokens/s", numeric=True), [said(point.rate) for point in points]),
        (Column(title="each", numeric=True), [said(_bare(point.each_rate)) for point in points]),
        (Column(title="J/token", numeric=True), [said(point.joules) for point in points]),
    ]
    if any(together):
        columns.append((Column(title="front"), [_standing(standing, points) for standing in together]))
        columns.append((Column(title="front, each"), [_standing(standing, points) for standing in per_sequence]))
    return Table(
        title=_title(points, everything),
        columns=tuple(column for column, _ in columns),
        rows=tuple(zip(*(cells for _, cells in columns), strict=True)),
        tones=tuple("plain" if mark is None else TONES[mark.state] for mark in together),
        note=(
            f"{SPEED[of].capitalize()}, of all sequences together and of each; GPU energy alone, idle power within it; "
            "95 % intervals. On the front: no other could be faster and take less. Dominated: another surely is and "
            "does, by its number. Unsure: the intervals do not say."
            + (" Without [ ]: no interval (more repeats)." if _any_bare(points) else "")
        ),
    )


def _any_bare(points: Sequence[Point]) -> bool:
    return any(value is not None and value.is_bare for point in points for value in (point.rate, point.joules))


def _bare(known: Known | None) -> Known | None:
    return None if known is None else Known(known.value)


def _by_energy(point: Point) -> tuple[bool, float]:
    return (True, -point.rate.value if point.rate else 0.0) if point.joules is None else (False, point.joules.value)


def _standing(standing: Standing | None, points: Sequence[Point]) -> str | None:
    if standing is None:
        return None
    if standing.by is not None:
        return f"dominated by {points.index(standing.by) + 1}"
    return "on it" if standing.state == "front" else "unsure"


def drawn(points: Sequence[Point], of: Of, by: By, number: int) -> list[Element]:
    """Return the Pareto figures of one kind of request: all sequences together, and each where that differs."""
    if not any(point.rate is not None and point.joules is not None for point in points):
        return []
    figures: list[Element] = [scatter(points, of, by, number, each=False)]
    if len({point.at_once for point in points}) > 1:
        figures.append(scatter(points, of, by, number, each=True))
    return figures


def scatter(points: Sequence[Point], of: Of, by: By, number: int, *, each: bool) -> Scatter:
    """Return joules by speed, with the front; a dot's name is its batch where that differs, its colour all else."""
    ranking = standings(points, each=each)
    shown = [index for index, standing in enumerate(ranking) if standing is not None]
    names = differing(points)
    label = "batch" if "batch" in names else by
    groups = [name for name in names if name != label]
    dots = tuple(_dot(points[index], ranking[index], label, groups, each=each) for index in shown)
    path = [shown.index(index) for index in front_path(points, each=each) if _joined(ranking[index])]
    first = points[0]
    whose = "of each sequence" if each else "of all sequences together"
    suffix = f"{'_each' if each else ''}{f'_{number}' if number > 1 else ''}"
    return Scatter(
        title=f"Joules by speed {whose}: {first.input_tokens} tokens in, {first.output_tokens} out",
        name=f"pareto{suffix}",
        x_axis=f"{SPEED[of]}, {whose.removeprefix('of ')}",
        y_axis="GPU energy (J/token)",
        dots=dots,
        path=tuple(path),
        path_label="the front, by values alone",
        tones={"good": "on the front", "unsure": "cannot be told", "plain": "dominated"},
        log_x=spread_wide([dot.x for dot in dots]),
        log_y=spread_wide([dot.y for dot in dots]),
        note="Better is down and to the right. Bars are 95 % intervals.",
    )


def _joined(standing: Standing | None) -> bool:
    return standing is not None and standing.state != "dominated"


def _dot(point: Point, standing: Standing | None, label: str, groups: Sequence[str], *, each: bool) -> Dot:
    rate, joules = point.each_rate if each else point.rate, point.joules
    if rate is None or joules is None or standing is None:
        raise ValueError("a dot has two numbers")
    return Dot(
        label=point.said(label),
        group=", ".join(point.said(name) for name in groups),
        x=rate.value,
        x_low=rate.low,
        x_high=rate.high,
        y=joules.value,
        y_low=joules.low,
        y_high=joules.high,
        tone=TONES[standing.state],
    )


def what_changes(points: Sequence[Point], by: By) -> list[Table]:
    """Return what each value of one thing does against the first of it; nothing where it has one value."""
    changed = changes(points, by)
    if not changed:
        return []
    what = "more sequences at once change" if by == "batch" else f"another {by} changes"
    columns: list[tuple[Column, list[Cell]]] = [
        (Column(title="from"), [change.first for change in changed]),
        (Column(title="to"), [change.second for change in changed]),
        (Column(title="tokens/s", numeric=True), [times(change.rate) for change in changed]),
        (Column(title="J/token", numeric=True), [times(change.joules) for change in changed]),
    ]
    if any(change.fixed for change in changed):
        columns.insert(0, (Column(title="at"), [change.fixed for change in changed]))
    return [
        Table(
            title=f"What {what}, all else the same",
            columns=tuple(column for column, _ in columns),
            rows=tuple(zip(*(cells for _, cells in columns), strict=True)),
            note="Ratios, as if neither knew of the other, which of one and the same sensor is wide; 1 is no change.",
        )
    ]
