"""What can be compared: numbers with their names, which numbers of several results are of the same thing.

How others differ.

Numbers are of the same thing where everything that is known of what was measured agrees. There is no second, coarser
match: numbers that agree in less are listed with the difference, e.g.
``softmax@numpy: parameters differ (rows 256 vs 512); isolation differs (none vs full)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from assay.core.errors import BadInput
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.results import Origin
    from assay.store.identity import IdentityDetail


View = Literal["times", "tunings", "shapes", "speed-ups", "rows", "findings"]
"""In which terms results are told: two results can be compared in terms that both have."""


@dataclass(frozen=True)
class NumberName:
    """What a number is of: the work in its implementation, what else must agree, the quantity, and the estimator.

    ``method`` is null where the source does not say how its numbers were obtained, or nothing was measured.
    """

    work: str
    details: tuple[IdentityDetail, ...]
    quantity: str
    method: str | None = None


@dataclass(frozen=True)
class Number:
    """One number that a result holds.

    Attributes:
        device: Tells devices of one model apart: a GPU's UUID. Null: not told.
        model: The model of the GPU, or of the host where there is none. Null: not told.
        value: Null where it was not measured, for ``reason``.
        low, high: Its interval; null where too little was measured.
        unit: As people write it.
        processes: How many processes the interval is over; 1: it is within one. Null: not told.
        draws: What each process gave, where that is all there is: the interval is then made of them.
    """

    name: NumberName
    device: str | None
    model: str | None
    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    processes: int | None = None
    draws: tuple[float, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class ResultSource:
    """A result that is there.

    Attributes:
        path: As the user wrote it.
        kind: What it is, in words.
        readers: By view, the one that tells most first, how its numbers are read.
        facts: What else is known of how it was measured: driver, versions, commit.
        origin: Whether a device was really there.
        notes: What must be known of it.
    """

    path: str
    kind: str
    readers: Mapping[View, Callable[[], Sequence[Number]]]
    facts: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = "real"
    notes: tuple[str, ...] = ()


PLURAL_ASPECTS = frozenset({"parameters", "conditions"})
UNSET_TEXTS = {"schedule": "alone", "beside": "nothing", "in turns": "no", "in stages": "no"}
"""What it means that a result does not have a detail; of all others, that it is not set."""
MAX_DIFFERENCES = 4
"""So many differing values of one aspect are named."""


class Difference(Value):
    """One thing in which two results differ. Null: the result does not have it."""

    aspect: str
    name: str
    baseline: str | None
    other: str | None


def find_differences(first: Sequence[IdentityDetail], second: Sequence[IdentityDetail]) -> tuple[Difference, ...]:
    """Return the details in which two results differ, in the order of the first."""
    one, other = ({(detail.aspect, detail.name): detail.value for detail in side} for side in (first, second))
    return tuple(
        Difference(aspect=aspect, name=name, baseline=one.get((aspect, name)), other=other.get((aspect, name)))
        for aspect, name in dict.fromkeys((*one, *other))
        if one.get((aspect, name)) != other.get((aspect, name))
    )


def describe_differences(different: Sequence[Difference]) -> str:
    """Write differences aspect by aspect: "parameters differ (rows 256 vs 512)"."""
    by_aspect: dict[str, list[Difference]] = {}
    for difference in different:
        by_aspect.setdefault(difference.aspect, []).append(difference)
    return "; ".join(
        f"{aspect} {'differ' if aspect in PLURAL_ASPECTS else 'differs'} ({_values_text(several)})"
        for aspect, several in by_aspect.items()
    )


def _values_text(several: Sequence[Difference]) -> str:
    words = [
        f"{_difference_label(difference)}{_value_text(difference, difference.baseline)} vs "
        f"{_value_text(difference, difference.other)}"
        for difference in several[:MAX_DIFFERENCES]
    ]
    more = [f"{len(several) - MAX_DIFFERENCES} more"] if len(several) > MAX_DIFFERENCES else []
    return ", ".join([*words, *more])


def _difference_label(of: Difference) -> str:
    return "" if of.name == of.aspect else f"{of.name} "


def _value_text(of: Difference, value: str | None) -> str:
    return UNSET_TEXTS.get(of.name, "not set") if value is None else value


MAX_NAMES_SHOWN = 3
"""So many names of a result are shown where nothing is in common."""


@dataclass(frozen=True)
class NotComparable:
    """A number of the baseline that another result has only of something else, and in what that differs."""

    other: int
    name: NumberName
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class ResultTable:
    """Results side by side in terms that all have: by name, what each of them holds of it.

    Attributes:
        view: In which terms.
        sources: The results, the baseline first.
        rows: By name, the numbers of each source, one for each device; none where it does not have it.
    """

    view: View
    sources: tuple[ResultSource, ...]
    rows: Mapping[NumberName, tuple[tuple[Number, ...], ...]]

    @property
    def shared(self) -> dict[NumberName, tuple[tuple[Number, ...], ...]]:
        """The rows that the baseline and at least one other have."""
        return {name: row for name, row in self.rows.items() if row[0] and any(row[1:])}

    @property
    def not_comparable(self) -> tuple[NotComparable, ...]:
        """What the baseline has, and another result has of the same workload, but not of the same thing."""
        return tuple(
            NotComparable(other, name, different)
            for other in range(1, len(self.sources))
            for name, row in self.rows.items()
            if row[0] and not row[other] and (different := self._nearest(name, other)) is not None
        )

    def _nearest(self, name: NumberName, other: int) -> tuple[Difference, ...] | None:
        """Return in what a name differs from the nearest that only the other result has; null where none is near."""
        names = [n for n, row in self.rows.items() if row[other] and not row[0] and is_related(name, n)]
        return min((name_differences(name, candidate) for candidate in names), key=len, default=None)

    def only_in(self, index: int) -> list[NumberName]:
        """Return the names that only one of the results has, and of which no other has anything like it."""
        others = [other for other in range(len(self.sources)) if other != index]
        alone = [n for n, row in self.rows.items() if row[index] and not any(row[other] for other in others)]
        related = [n for n, row in self.rows.items() if any(row[other] for other in others) and not row[index]]
        return [n for n in alone if not any(is_related(n, other) for other in related)]


def is_related(one: NumberName, other: NumberName) -> bool:
    """Return whether two numbers are of the same workload and quantity, were all else the same."""
    return one.quantity == other.quantity and workload_name(one) == workload_name(other)


def workload_name(name: NumberName) -> str:
    """Return the work whatever its implementation: ``softmax`` of ``softmax@numpy``."""
    return name.work.partition("@")[0]


def name_differences(one: NumberName, other: NumberName) -> tuple[Difference, ...]:
    """Return in what two names differ: implementation, details, method."""
    result = list(find_differences(one.details, other.details))
    if one.work != other.work:
        impls = (name.work.partition("@")[2] or name.work for name in (one, other))
        result.insert(0, Difference(aspect="implementation", name="implementation", **_difference_sides(*impls)))
    if one.method != other.method:
        result.append(Difference(aspect="method", name="method", **_difference_sides(one.method, other.method)))
    return tuple(result)


def _difference_sides(baseline: str | None, other: str | None) -> dict[str, str | None]:
    return {"baseline": baseline, "other": other}


def align_results(sources: Sequence[ResultSource], quantities: Sequence[str] = ()) -> ResultTable:
    """Return results side by side, in the first terms of the baseline's that all of them have.

    ``quantities`` are those that are wanted; all where none is named.

    Raises:
        BadInput: Nothing is in common, not even a workload; the sentence says what each has.
    """
    view = next((view for view in sources[0].readers if all(view in source.readers for source in sources)), None)
    if view is None:
        kinds = ", ".join(f"{source.path} is {source.kind}" for source in sources)
        raise BadInput(f"These results have no terms in common: {kinds}.")
    table = _build_table(view, sources, quantities)
    if not table.shared and not table.not_comparable:
        raise BadInput(_nothing_in_common(table, quantities))
    return table


def _build_table(view: View, sources: Sequence[ResultSource], quantities: Sequence[str]) -> ResultTable:
    rows: dict[NumberName, list[list[Number]]] = {}
    failed: list[tuple[int, Number]] = []
    for index, source in enumerate(sources):
        for number in source.readers[view]():
            if quantities and number.name.quantity not in quantities:
                continue
            if number.value is None:
                failed.append((index, number))
            else:
                rows.setdefault(number.name, [[] for _ in sources])[index].append(number)
    _add_failed(rows, failed, len(sources))
    return ResultTable(view, tuple(sources), {name: tuple(map(tuple, row)) for name, row in rows.items()})


def _add_failed(rows: dict[NumberName, list[list[Number]]], failed: Sequence[tuple[int, Number]], sources: int) -> None:
    """Put what was not measured, which has no method, beside what others measured of it."""
    by_work = {replace(name, method=None): name for name in rows}
    for index, number in failed:
        name = by_work.get(replace(number.name, method=None), number.name)
        rows.setdefault(name, [[] for _ in range(sources)])[index].append(number)


def _nothing_in_common(table: ResultTable, quantities: Sequence[str]) -> str:
    """Say what each result has."""
    has = "; ".join(f"{source.path} has {_example_names(table, index)}" for index, source in enumerate(table.sources))
    of = f" of the quantity {' or '.join(quantities)}" if quantities else ""
    return f"Nothing{of} is in common: {has}."


def _example_names(table: ResultTable, index: int) -> str:
    names = list(dict.fromkeys(name_text(name) for name, row in table.rows.items() if row[index]))
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return f"{', '.join(names[:MAX_NAMES_SHOWN])}{more}" if names else "none"


def name_text(name: NumberName, among: Sequence[NumberName] = ()) -> str:
    """Write what a number is of: its work, and of the details those that differ among some names, or all."""
    constant = {detail for detail in name.details if among and all(detail in other.details for other in among)}
    text = " ".join(f"{detail.name}={detail.value}" for detail in name.details if detail not in constant)
    return f"{name.work} {text}".rstrip()
