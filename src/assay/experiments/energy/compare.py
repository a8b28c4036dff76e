"""Compare cells of several runs: joules by speed, the Pareto front, the effect of one setting; and the page.

A point is *dominated* only where another is faster and takes less energy, both beyond the intervals. It is on the
*front* where no other could be better in both. Otherwise it is *unsure*. Without an interval a difference counts only
beyond a factor of two. Only points of the same request (tokens in, tokens out) and of the same origin are compared;
the same setting measured in several runs does not compete with itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay.core.format import format_bounds, ratio_cell
from assay.core.page import Column, Page, ScatterPlot, ScatterPoint, Section, Table, Text
from assay.stats import ratios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Origin


ComparedBy = Literal["model", "batch", "placement", "mode", "gpu", "run"]
ComparedPhase = Literal["decode", "prefill", "requests"]
ParetoState = Literal["front", "dominated", "unsure"]

COMPARED_BY: tuple[ComparedBy, ...] = ("batch", "mode", "placement", "model", "gpu", "run")
PHASE_FIGURES: dict[ComparedPhase, tuple[str, str]] = {
    "decode": ("decode_tokens_per_s", "decode_j_per_token"),
    "prefill": ("prefill_tokens_per_s", "prefill_j_per_token"),
    "requests": ("output_tokens_per_s", "j_per_output_token"),
}
"""Which two figures of a cell are compared: while decoding, while prompts are read, or over whole requests."""
NO_INTERVAL_FACTOR = 2.0
"""Where an interval is missing, a number is surely above another only beyond so many times that one."""


@dataclass(frozen=True)
class PointValue:
    """A number, and its interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    def surely_below(self, other: PointValue) -> bool:
        """Return whether all of this interval lies below all of the other.

        A number without an interval is taken as it stands, and then the two must be more than a factor of two apart.
        """
        most = self.value if self.high is None else self.high
        least = other.value if other.low is None else other.low
        bare = self.high is None or other.low is None
        return most * (NO_INTERVAL_FACTOR if bare else 1.0) < least

    @property
    def is_bare(self) -> bool:
        """Whether it has no interval."""
        return self.low is None or self.high is None

    @property
    def is_informative(self) -> bool:
        """Whether its interval does not reach far beyond the number."""
        return (
            self.low is None
            or self.high is None
            or (self.high <= UNINFORMATIVE_FACTOR * self.value and self.low * UNINFORMATIVE_FACTOR >= self.value)
        )

    def over(self, divisor: float) -> PointValue:
        """Return the same, divided by a count."""
        low = None if self.low is None else self.low / divisor
        return PointValue(self.value / divisor, low, None if self.high is None else self.high / divisor)


@dataclass(frozen=True)
class ComparedPoint:
    """One cell of one run. Null: not measured, for ``missing_reason``.

    ``settings`` is how the model was run beyond what has a name of its own: backend, revision, attention, isolation.
    ``request`` is what it was asked beyond the number of tokens: prompts, how they are answered.
    """

    run: str
    model: str
    placement: str
    mode: str
    batch: int
    concurrency: int
    input_tokens: int
    output_tokens: int
    gpu: str
    dtype: str = ""
    settings: str = ""
    request: str = ""
    origin: Origin = "real"
    partial: bool = False
    rate: PointValue | None = None
    joules: PointValue | None = None
    missing_reason: str | None = None

    @property
    def at_once(self) -> int:
        """How many sequences share the tokens."""
        return self.concurrency if self.mode == "server" else self.batch

    @property
    def size(self) -> str:
        """Say how many sequences at once, as people say it."""
        return f"{self.concurrency} at once" if self.mode == "server" else f"batch {self.batch}"

    @property
    def work(self) -> str:
        """Say what was asked: so many tokens in and out, and what else of the request is known."""
        tokens = f"{self.input_tokens} in, {self.output_tokens} out"
        return f"{tokens}, {self.request}" if self.request else tokens

    @property
    def rate_per_sequence(self) -> PointValue | None:
        """The tokens per second that one sequence gets."""
        return None if self.rate is None else self.rate.over(self.at_once)

    def describe(self, aspect: str) -> str:
        """Return one of the things in which points may differ, in words."""
        return self.size if aspect == "batch" else str(getattr(self, aspect))


POINT_ASPECTS = ("model", "gpu", "dtype", "placement", "settings", "mode", "batch")
"""In what points may differ, from what is said first to last."""


@dataclass(frozen=True)
class ParetoStanding:
    """Whether a point is on the front; where it is not, who dominates it."""

    state: ParetoState
    by: ComparedPoint | None = None


@dataclass(frozen=True)
class SettingChange:
    """What changing one thing does: the second over the first, all else the same."""

    fixed: str
    first: str
    second: str
    rate: PointValue | None
    joules: PointValue | None


def group_comparable(points: Sequence[ComparedPoint]) -> dict[tuple[int, int, str, str], list[ComparedPoint]]:
    """Return the points that may be held against each other, by tokens in, tokens out, what was asked, and origin."""
    groups: dict[tuple[int, int, str, str], list[ComparedPoint]] = {}
    for point in points:
        groups.setdefault((point.input_tokens, point.output_tokens, point.request, point.origin), []).append(point)
    return groups


def differing_aspects(points: Sequence[ComparedPoint]) -> list[str]:
    """Return in what points differ; the run only where nothing else tells two of them apart."""
    names = [name for name in POINT_ASPECTS if len({point.describe(name) for point in points}) > 1]
    labels = {
        (*(point.describe(name) for name in POINT_ASPECTS), point.input_tokens, point.output_tokens) for point in points
    }
    return names if len(labels) == len(points) else [*names, "run"]


def choose_compared_by(points: Sequence[ComparedPoint]) -> ComparedBy:
    """Return what is varied first of all."""
    return next((by for by in COMPARED_BY if len({point.describe(by) for point in points}) > 1), "batch")


def rank_points(points: Sequence[ComparedPoint], *, per_sequence: bool = False) -> list[ParetoStanding | None]:
    """Return where each point stands among those given; null where one of its two numbers is missing.

    ``per_sequence``: by the speed that one sequence gets, not by that of all together.
    """
    pairs = {
        index: pair
        for index, point in enumerate(points)
        if (pair := _rate_and_joules(point, per_sequence=per_sequence)) is not None
    }
    ranking: list[ParetoStanding | None] = []
    for index, point in enumerate(points):
        if index not in pairs:
            ranking.append(None)
            continue
        rivals = [other for other in pairs if not _same_setting(point, points[other])]
        ranking.append(_rank_point(pairs[index], [(pairs[other], points[other]) for other in rivals]))
    return ranking


def _rank_point(
    own: tuple[PointValue, PointValue], rivals: Sequence[tuple[tuple[PointValue, PointValue], ComparedPoint]]
) -> ParetoStanding:
    rate, joules = own
    better = [(pair, point) for pair, point in rivals if rate.surely_below(pair[0]) and pair[1].surely_below(joules)]
    if better:
        return ParetoStanding("dominated", min(better, key=lambda candidate: candidate[0][1].value)[1])
    safe = all(pair[0].surely_below(rate) or joules.surely_below(pair[1]) for pair, _ in rivals)
    return ParetoStanding("front" if safe else "unsure")


def _rate_and_joules(point: ComparedPoint, *, per_sequence: bool) -> tuple[PointValue, PointValue] | None:
    rate = point.rate_per_sequence if per_sequence else point.rate
    return None if rate is None or point.joules is None else (rate, point.joules)


def _same_setting(one: ComparedPoint, other: ComparedPoint) -> bool:
    """Return whether two points are the same thing, measured twice perhaps: neither dominates the other."""
    return all(one.describe(name) == other.describe(name) for name in POINT_ASPECTS)


def pareto_front_path(points: Sequence[ComparedPoint], *, per_sequence: bool = False) -> list[int]:
    """Return the places of those that none beats in both by value alone, from the slowest to the fastest."""
    pairs = {
        index: pair
        for index, point in enumerate(points)
        if (pair := _rate_and_joules(point, per_sequence=per_sequence)) is not None
    }

    def beaten(index: int) -> bool:
        rate, joules = pairs[index]
        return any(
            other[0].value >= rate.value and other[1].value <= joules.value and other != pairs[index]
            for other in pairs.values()
        )

    return sorted((index for index in pairs if not beaten(index)), key=lambda index: pairs[index][0].value)


def compute_changes(points: Sequence[ComparedPoint], by: ComparedBy) -> list[SettingChange]:
    """Return what each value of one thing does against the first, all else the same; within a run where that can be."""
    fixed = [name for name in differing_aspects(points) if name != by]
    return _changes_at(points, by, fixed) or _changes_at(points, by, [name for name in fixed if name != "run"])


def _changes_at(points: Sequence[ComparedPoint], by: ComparedBy, fixed: Sequence[str]) -> list[SettingChange]:
    groups: dict[tuple[str, ...], list[ComparedPoint]] = {}
    for shape, of_shape in group_comparable(points).items():
        for point in of_shape:
            groups.setdefault((*map(str, shape), *(point.describe(name) for name in fixed)), []).append(point)
    several = len(group_comparable(points)) > 1
    changed = []
    for group in groups.values():
        first = min(group, key=lambda point: point.at_once) if by == "batch" else group[0]
        fixed_texts = [first.describe(name) for name in fixed]
        fixed_texts += [first.work] if several else []
        for point in group:
            if point.describe(by) != first.describe(by):
                rate, joules = ratio_of_values(point.rate, first.rate), ratio_of_values(point.joules, first.joules)
                changed.append(
                    SettingChange(", ".join(fixed_texts), first.describe(by), point.describe(by), rate, joules)
                )
    return changed


def ratio_of_values(top: PointValue | None, bottom: PointValue | None) -> PointValue | None:
    """Return one number over another, with the interval of both as if neither knew of the other."""
    if top is None or bottom is None:
        return None
    levels = [ratios.log_estimate(value.value, value.low, value.high, None) for value in (bottom, top)]
    if levels[0] is None or levels[1] is None:
        return None
    return PointValue(
        top.value / bottom.value, *(ratios.divide_estimates(levels[0], levels[1]).interval() or (None, None))
    )


RATE_TITLES: dict[ComparedPhase, str] = {
    "decode": "output tokens/s while decoding",
    "prefill": "input tokens/s while prompts are read",
    "requests": "output tokens/s of whole requests",
}
STATE_TONES: dict[ParetoState, Tone] = {"front": "good", "dominated": "plain", "unsure": "unsure"}
UNINFORMATIVE_FACTOR = 10.0
"""An interval that reaches so many times as far as its number tells nothing."""
LOG_AXIS_FACTOR = 4.0
"""Numbers that are this many times apart stand on a logarithmic axis."""


def needs_log_axis(values: Sequence[float]) -> bool:
    """Return whether numbers are far enough apart for a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) >= LOG_AXIS_FACTOR


def format_value(point_value: PointValue | None) -> str | None:
    """Write a number and its interval, with as many decimals: ``0.170 (0.165–0.175)``."""
    if point_value is None:
        return None
    decimals = max(0, 2 - math.floor(math.log10(abs(point_value.value)))) if point_value.value else 0

    def write(number: float) -> str:
        return f"{number:,.{decimals}f}"

    return format_bounds(
        write(point_value.value), point_value.low, point_value.high, write, informative=point_value.is_informative
    )


def name_point(point: ComparedPoint, points: Sequence[ComparedPoint]) -> str:
    """Name a point by what tells it from the others."""
    return ", ".join(point.describe(name) for name in differing_aspects(points)) or point.size


def describe_points(points: Sequence[ComparedPoint]) -> str:
    """Say what is compared: how many cells, of which models."""
    models = list(dict.fromkeys(point.model for point in points))
    of = models[0] if len(models) == 1 else f"{len(models)} models"
    return f"{len(points)} cell{'' if len(points) == 1 else 's'} of {of}"


def origin_of_points(points: Sequence[ComparedPoint]) -> Origin:
    """Return where the numbers come from: real only where all are."""
    return next((point.origin for point in points if point.origin != "real"), "real")


def comparison_headline(points: Sequence[ComparedPoint], phase: ComparedPhase) -> str:
    """Say which takes the least energy for each kind of request, and whether that is sure."""
    clauses = [
        _lowest_energy_sentence(part, phase, several=len(group_comparable(points)) > 1)
        for part in group_comparable(points).values()
    ]
    clauses_present = [text for text in clauses if text]
    if clauses_present:
        return " ".join(clauses_present)
    why = next((point.missing_reason for point in points if point.missing_reason), "nothing metered it")
    return f"No GPU energy is known of {'this cell' if len(points) == 1 else 'these cells'}: {why.rstrip('.')}."


def _lowest_energy_sentence(points: Sequence[ComparedPoint], phase: ComparedPhase, *, several: bool) -> str | None:
    metered = [(point, point.joules) for point in points if point.joules is not None]
    if not metered:
        return None
    best, least = min(metered, key=lambda pair: pair[1].value)
    token = "input token" if phase == "prefill" else "output token"
    shape = f", {best.input_tokens} in and {best.output_tokens} out" if several else ""
    speed = f" at {format_value(PointValue(best.rate.value))} tokens/s" if best.rate else ""
    text = f"The least GPU energy per {token}{shape}: {name_point(best, points)}, {format_value(least)} J{speed}."
    near = [point for point, joules in metered if point is not best and not least.surely_below(joules)]
    if near:
        shown = "; ".join(name_point(point, points) for point in near[:2]) + (" and others" if len(near) > 2 else "")
        text += f" Not to be told from it: {shown}."
    return text + _state_counts(points)


def _state_counts(points: Sequence[ComparedPoint]) -> str:
    states = [standing.state for standing in rank_points(points) if standing is not None]
    if len(states) < 2:
        return ""
    parts = [(states.count("front"), "on the front"), (states.count("dominated"), "dominated")]
    parts.append((states.count("unsure"), "unsure"))
    return f" Of {len(states)}: {', '.join(f'{count} {what}' for count, what in parts if count)}."


def comparison_notes(points: Sequence[ComparedPoint], phase: ComparedPhase) -> list[tuple[str, Tone]]:
    """Say what a reader should know before believing it."""
    notes: list[tuple[str, Tone]] = []
    origins = sorted({point.origin for point in points})
    if len(origins) > 1:
        notes.append((f"Origins are mixed ({', '.join(origins)}): only equal ones are held against each other.", "bad"))
    gpus = list(dict.fromkeys(point.gpu for point in points if point.joules is not None))
    if len(gpus) > 1:
        text = (
            f"Different GPUs ({'; '.join(gpus)}): each card's counter may be off by a gain of its own, of several "
            "percent on some, which no interval here holds."
        )
        notes.append((text, "unsure"))
    notes += [(text, "unsure") for text in no_interval_notes(points)]
    partial = [name_point(point, points) for point in points if point.partial]
    if partial:
        notes.append((f"Partial, some of its processes, phases or tokens are missing: {'; '.join(partial)}.", "unsure"))
    lacking = [point for point in points if point.joules is None or point.rate is None]
    if lacking and len(lacking) < len(points):
        why = next((f": {point.missing_reason}" for point in lacking if point.missing_reason), "")
        notes.append((f"{len(lacking)} of {len(points)} lack speed or energy{why}.", "unsure"))
    if phase == "requests" and any(point.mode == "server" for point in points):
        notes.append(("A server's phases cannot be told apart, so whole requests are compared.", "plain"))
    return notes


def no_interval_notes(points: Sequence[ComparedPoint]) -> list[str]:
    """Say how many points have a speed or an energy without an interval, and what that means."""
    bare = sum(any(value is not None and value.is_bare for value in (point.rate, point.joules)) for point in points)
    if not bare:
        return []
    text = f"{bare} of {len(points)} have a number with no interval: more repeats would give one."
    return [f"{text} Without it a difference counts only beyond a factor of two."]


MAX_NOTES = 20
COLUMN_TITLES = {"batch": "sequences"}


def comparison_page(
    points: Sequence[ComparedPoint], phase: ComparedPhase, by: ComparedBy, *, notes: Sequence[str] = ()
) -> Page:
    """Return the whole page."""
    lead = comparison_headline(points, phase)
    tables = [points_table(of_shape, phase, points) for of_shape in group_comparable(points).values()]
    figures = [
        figure
        for number, part in enumerate(group_comparable(points).values(), 1)
        for figure in pareto_figures(part, phase, by, number)
    ]
    texts = [Text(text=text, tone=tone) for text, tone in comparison_notes(points, phase)]
    texts += [Text(text=f"{note.rstrip('.')}.", tone="bad") for note in notes[:MAX_NOTES]]
    sections = (
        Section(title="Results", elements=(*tables, *change_tables(points, by))),
        Section(title="Joules by speed", elements=tuple(figures)),
        Section(title="What to know", elements=tuple(texts)),
    )
    return Page(
        title=f"assay energy compare: {describe_points(points)}",
        lead=lead,
        sections=tuple(section for section in sections if section.elements),
        origin=origin_of_points(points),
    )


def _table_title(points: Sequence[ComparedPoint], everything: Sequence[ComparedPoint]) -> str:
    first = points[0]
    shape = f"{first.input_tokens} tokens in, {first.output_tokens} out"
    if len({point.request for point in everything}) > 1:
        shape += f", {first.request or 'of a request that is not recorded'}"
    fake = f", {first.origin}" if len({point.origin for point in everything}) > 1 else ""
    return f"{shape}{fake}"


def points_table(points: Sequence[ComparedPoint], phase: ComparedPhase, everything: Sequence[ComparedPoint]) -> Table:
    """Return points of one kind of request, the least energy first, each by its number."""
    names = differing_aspects(everything)
    points = sorted(points, key=_energy_key)
    together, per_sequence = rank_points(points), rank_points(points, per_sequence=True)
    columns: list[tuple[Column, list[Cell]]] = [(Column(title="#"), [str(n) for n in range(1, len(points) + 1)])]
    columns += [
        (Column(title=COLUMN_TITLES.get(name, name)), [point.describe(name) for point in points]) for name in names
    ]
    columns += [
        (Column(title="tokens/s", numeric=True), [format_value(point.rate) for point in points]),
        (
            Column(title="each", numeric=True),
            [format_value(_without_interval(point.rate_per_sequence)) for point in points],
        ),
        (Column(title="J/token", numeric=True), [format_value(point.joules) for point in points]),
    ]
    if any(together):
        columns.append((Column(title="front"), [_format_standing(standing, points) for standing in together]))
        columns.append((Column(title="front, each"), [_format_standing(standing, points) for standing in per_sequence]))
    return Table(
        title=_table_title(points, everything),
        columns=tuple(column for column, _ in columns),
        rows=tuple(zip(*(cells for _, cells in columns), strict=True)),
        tones=tuple("plain" if mark is None else STATE_TONES[mark.state] for mark in together),
        note=(
            f"{RATE_TITLES[phase].capitalize()}, of all sequences together and of each; GPU energy alone, idle "
            "power within it; "
            "95 % intervals. On the front: no other could be faster and take less. Dominated: another surely is and "
            "does, by its number. Unsure: the intervals do not say."
            + (" Without [ ]: no interval (more repeats)." if _any_without_interval(points) else "")
        ),
    )


def _any_without_interval(points: Sequence[ComparedPoint]) -> bool:
    return any(value is not None and value.is_bare for point in points for value in (point.rate, point.joules))


def _without_interval(value: PointValue | None) -> PointValue | None:
    return None if value is None else PointValue(value.value)


def _energy_key(point: ComparedPoint) -> tuple[bool, float]:
    return (True, -point.rate.value if point.rate else 0.0) if point.joules is None else (False, point.joules.value)


def _format_standing(standing: ParetoStanding | None, points: Sequence[ComparedPoint]) -> str | None:
    if standing is None:
        return None
    if standing.by is not None:
        return f"dominated by {points.index(standing.by) + 1}"
    return "on it" if standing.state == "front" else "unsure"


def pareto_figures(points: Sequence[ComparedPoint], phase: ComparedPhase, by: ComparedBy, number: int) -> list[Element]:
    """Return the Pareto figures of one kind of request: all sequences together, and each where that differs."""
    if not any(point.rate is not None and point.joules is not None for point in points):
        return []
    figures: list[Element] = [pareto_scatter(points, phase, by, number, per_sequence=False)]
    if len({point.at_once for point in points}) > 1:
        figures.append(pareto_scatter(points, phase, by, number, per_sequence=True))
    return figures


def pareto_scatter(
    points: Sequence[ComparedPoint], phase: ComparedPhase, by: ComparedBy, number: int, *, per_sequence: bool
) -> ScatterPlot:
    """Return joules by speed, with the front; a dot's name is its batch where that differs, its colour all else."""
    ranking = rank_points(points, per_sequence=per_sequence)
    shown = [index for index, standing in enumerate(ranking) if standing is not None]
    names = differing_aspects(points)
    label = "batch" if "batch" in names else by
    groups = [name for name in names if name != label]
    dots = tuple(
        _scatter_dot(points[index], ranking[index], label, groups, per_sequence=per_sequence) for index in shown
    )
    path = [
        shown.index(index)
        for index in pareto_front_path(points, per_sequence=per_sequence)
        if _is_on_path(ranking[index])
    ]
    first = points[0]
    whose = "of each sequence" if per_sequence else "of all sequences together"
    suffix = f"{'_each' if per_sequence else ''}{f'_{number}' if number > 1 else ''}"
    return ScatterPlot(
        title=f"Joules by speed {whose}: {first.input_tokens} tokens in, {first.output_tokens} out",
        name=f"pareto{suffix}",
        x_axis=f"{RATE_TITLES[phase]}, {whose.removeprefix('of ')}",
        y_axis="GPU energy (J/token)",
        dots=dots,
        path=tuple(path),
        path_label="the front, by values alone",
        tones={"good": "on the front", "unsure": "cannot be told", "plain": "dominated"},
        log_x=needs_log_axis([dot.x for dot in dots]),
        log_y=needs_log_axis([dot.y for dot in dots]),
        note="Better is down and to the right. Bars are 95 % intervals.",
    )


def _is_on_path(standing: ParetoStanding | None) -> bool:
    return standing is not None and standing.state != "dominated"


def _scatter_dot(
    point: ComparedPoint, standing: ParetoStanding | None, label: str, groups: Sequence[str], *, per_sequence: bool
) -> ScatterPoint:
    rate, joules = point.rate_per_sequence if per_sequence else point.rate, point.joules
    if rate is None or joules is None or standing is None:
        raise ValueError("a dot has two numbers")
    return ScatterPoint(
        label=point.describe(label),
        group=", ".join(point.describe(name) for name in groups),
        x=rate.value,
        x_low=rate.low,
        x_high=rate.high,
        y=joules.value,
        y_low=joules.low,
        y_high=joules.high,
        tone=STATE_TONES[standing.state],
    )


def change_tables(points: Sequence[ComparedPoint], by: ComparedBy) -> list[Table]:
    """Return what each value of one thing does against the first of it; nothing where it has one value."""
    changed = compute_changes(points, by)
    if not changed:
        return []
    what = "more sequences at once change" if by == "batch" else f"another {by} changes"
    columns: list[tuple[Column, list[Cell]]] = [
        (Column(title="from"), [change.first for change in changed]),
        (Column(title="to"), [change.second for change in changed]),
        (Column(title="tokens/s", numeric=True), [ratio_cell(change.rate) for change in changed]),
        (Column(title="J/token", numeric=True), [ratio_cell(change.joules) for change in changed]),
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
