"""Cells of several runs held against each other: speed by joules, who is on the Pareto front, what one change does.

A point is *dominated* only where another is faster and takes less, both beyond the intervals. It is on the *front*
where no other could be better in both. In between it cannot be told, and that is what is said of it. Without an
interval a difference counts only beyond a factor of two. Only points of the same request (so many tokens in, so many
out) and of the same origin are held against each other; the same setting, measured in several runs, does not compete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from assay.stats import ratios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Origin

By = Literal["model", "batch", "placement", "mode", "gpu", "run"]
Of = Literal["decode", "prefill", "requests"]
State = Literal["front", "dominated", "unsure"]

BY: tuple[By, ...] = ("batch", "mode", "placement", "model", "gpu", "run")
FIGURES_OF: dict[Of, tuple[str, str]] = {
    "decode": ("decode_tokens_per_s", "decode_j_per_token"),
    "prefill": ("prefill_tokens_per_s", "prefill_j_per_token"),
    "requests": ("output_tokens_per_s", "j_per_output_token"),
}
"""Which two figures of a cell are compared: while decoding, while prompts are read, or over whole requests."""
BARE_FACTOR = 2.0
"""Where an interval is missing, a number is surely above another only beyond so many times that one."""


@dataclass(frozen=True)
class Known:
    """A number, and its interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    def surely_below(self, other: Known) -> bool:
        """Return whether all of this interval lies below all of the other.

        A number without an interval is taken as it stands, and then the two must be more than a factor of two apart.
        """
        most = self.value if self.high is None else self.high
        least = other.value if other.low is None else other.low
        bare = self.high is None or other.low is None
        return most * (BARE_FACTOR if bare else 1.0) < least

    @property
    def is_bare(self) -> bool:
        """Whether it has no interval."""
        return self.low is None or self.high is None

    def over(self, divisor: float) -> Known:
        """Return the same, divided by a count."""
        low = None if self.low is None else self.low / divisor
        return Known(self.value / divisor, low, None if self.high is None else self.high / divisor)


@dataclass(frozen=True)
class Point:
    """One cell of one run. Null: not measured, for ``why``.

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
    rate: Known | None = None
    joules: Known | None = None
    why: str | None = None

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
    def each_rate(self) -> Known | None:
        """The tokens per second that one sequence gets."""
        return None if self.rate is None else self.rate.over(self.at_once)

    def said(self, what: str) -> str:
        """Return one of the things in which points may differ, in words."""
        return self.size if what == "batch" else str(getattr(self, what))


SAID = ("model", "gpu", "dtype", "placement", "settings", "mode", "batch")
"""In what points may differ, from what is said first to last."""


@dataclass(frozen=True)
class Standing:
    """Whether a point is on the front; where it is not, who dominates it."""

    state: State
    by: Point | None = None


@dataclass(frozen=True)
class Change:
    """What changing one thing does: the second over the first, all else the same."""

    fixed: str
    first: str
    second: str
    rate: Known | None
    joules: Known | None


def shapes(points: Sequence[Point]) -> dict[tuple[int, int, str, str], list[Point]]:
    """Return the points that may be held against each other, by tokens in, tokens out, what was asked, and origin."""
    groups: dict[tuple[int, int, str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.input_tokens, point.output_tokens, point.request, point.origin), []).append(point)
    return groups


def differing(points: Sequence[Point]) -> list[str]:
    """Return in what points differ; the run only where nothing else tells two of them apart."""
    names = [name for name in SAID if len({point.said(name) for point in points}) > 1]
    labels = {(*(point.said(name) for name in SAID), point.input_tokens, point.output_tokens) for point in points}
    return names if len(labels) == len(points) else [*names, "run"]


def default_by(points: Sequence[Point]) -> By:
    """Return what is varied first of all."""
    return next((by for by in BY if len({point.said(by) for point in points}) > 1), "batch")


def standings(points: Sequence[Point], *, each: bool = False) -> list[Standing | None]:
    """Return where each point stands among those given; null where one of its two numbers is missing.

    ``each``: by the speed that one sequence gets, not by that of all together.
    """
    pairs = {index: pair for index, point in enumerate(points) if (pair := _pair(point, each=each)) is not None}
    ranking: list[Standing | None] = []
    for index, point in enumerate(points):
        if index not in pairs:
            ranking.append(None)
            continue
        rivals = [other for other in pairs if not _same_setting(point, points[other])]
        ranking.append(_standing(pairs[index], [(pairs[other], points[other]) for other in rivals]))
    return ranking


def _standing(own: tuple[Known, Known], rivals: Sequence[tuple[tuple[Known, Known], Point]]) -> Standing:
    rate, joules = own
    better = [(pair, point) for pair, point in rivals if rate.surely_below(pair[0]) and pair[1].surely_below(joules)]
    if better:
        return Standing("dominated", min(better, key=lambda candidate: candidate[0][1].value)[1])
    safe = all(pair[0].surely_below(rate) or joules.surely_below(pair[1]) for pair, _ in rivals)
    return Standing("front" if safe else "unsure")


def _pair(point: Point, *, each: bool) -> tuple[Known, Known] | None:
    rate = point.each_rate if each else point.rate
    return None if rate is None or point.joules is None else (rate, point.joules)


def _same_setting(one: Point, other: Point) -> bool:
    """Return whether two points are the same thing, measured twice perhaps: neither dominates the other."""
    return all(one.said(name) == other.said(name) for name in SAID)


def front_path(points: Sequence[Point], *, each: bool = False) -> list[int]:
    """Return the places of those that none beats in both by value alone, from the slowest to the fastest."""
    pairs = {index: pair for index, point in enumerate(points) if (pair := _pair(point, each=each)) is not None}

    def beaten(place: int) -> bool:
        rate, joules = pairs[place]
        return any(
            other[0].value >= rate.value and other[1].value <= joules.value and other != pairs[place]
            for other in pairs.values()
        )

    return sorted((index for index in pairs if not beaten(index)), key=lambda index: pairs[index][0].value)


def changes(points: Sequence[Point], by: By) -> list[Change]:
    """Return what each value of one thing does against the first, all else the same; within a run where that can be."""
    fixed = [name for name in differing(points) if name != by]
    return _changes(points, by, fixed) or _changes(points, by, [name for name in fixed if name != "run"])


def _changes(points: Sequence[Point], by: By, fixed: Sequence[str]) -> list[Change]:
    groups: dict[tuple[str, ...], list[Point]] = {}
    for shape, of_shape in shapes(points).items():
        for point in of_shape:
            groups.setdefault((*map(str, shape), *(point.said(name) for name in fixed)), []).append(point)
    several = len(shapes(points)) > 1
    changed = []
    for group in groups.values():
        first = min(group, key=lambda point: point.at_once) if by == "batch" else group[0]
        fixed_texts = [first.said(name) for name in fixed]
        fixed_texts += [first.work] if several else []
        for point in group:
            if point.said(by) != first.said(by):
                rate, joules = ratio(point.rate, first.rate), ratio(point.joules, first.joules)
                changed.append(Change(", ".join(fixed_texts), first.said(by), point.said(by), rate, joules))
    return changed


def ratio(top: Known | None, bottom: Known | None) -> Known | None:
    """Return one number over another, with the interval of both as if neither knew of the other."""
    if top is None or bottom is None:
        return None
    levels = [ratios.level(value.value, value.low, value.high, None) for value in (bottom, top)]
    if levels[0] is None or levels[1] is None:
        return None
    return Known(top.value / bottom.value, *(ratios.ratio(levels[0], levels[1]).interval() or (None, None)))
