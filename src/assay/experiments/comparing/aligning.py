"""Which numbers of several results are of the same thing, told in terms that all of them have.

Numbers are of the same thing where everything that is known of what was measured agrees. There is no second, coarser
try: what agrees in less is listed with the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.experiments.differences import Difference, differences

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.experiments.comparing.values import Name, Number, Source, View

AT_MOST = 3
"""So many names of a result are shown where nothing is in common."""


@dataclass(frozen=True)
class NotComparable:
    """A number of the baseline that another result has only of something else, and in what that differs."""

    other: int
    name: Name
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Table:
    """Results side by side in terms that all have: by name, what each of them holds of it.

    Attributes:
        view: In which terms.
        sources: The results, the baseline first.
        rows: By name, the numbers of each source, one for each device; none where it does not have it.
    """

    view: View
    sources: tuple[Source, ...]
    rows: Mapping[Name, tuple[tuple[Number, ...], ...]]

    @property
    def shared(self) -> dict[Name, tuple[tuple[Number, ...], ...]]:
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

    def _nearest(self, name: Name, other: int) -> tuple[Difference, ...] | None:
        """Return in what a name differs from the nearest that only the other result has; null where none is near."""
        names = [n for n, row in self.rows.items() if row[other] and not row[0] and is_related(name, n)]
        return min((between(name, candidate) for candidate in names), key=len, default=None)

    def lone(self, place: int) -> list[Name]:
        """Return the names that only one of the results has, and of which no other has anything like it."""
        others = [other for other in range(len(self.sources)) if other != place]
        alone = [n for n, row in self.rows.items() if row[place] and not any(row[other] for other in others)]
        related = [n for n, row in self.rows.items() if any(row[other] for other in others) and not row[place]]
        return [n for n in alone if not any(is_related(n, other) for other in related)]


def is_related(one: Name, other: Name) -> bool:
    """Return whether two numbers are of the same workload and quantity, were all else the same."""
    return one.quantity == other.quantity and workload_of(one) == workload_of(other)


def workload_of(name: Name) -> str:
    """Return the work whatever its implementation: ``softmax`` of ``softmax@numpy``."""
    return name.work.partition("@")[0]


def between(one: Name, other: Name) -> tuple[Difference, ...]:
    """Return in what two names differ: implementation, details, method."""
    result = list(differences(one.details, other.details))
    if one.work != other.work:
        impls = (name.work.partition("@")[2] or name.work for name in (one, other))
        result.insert(0, Difference(aspect="implementation", name="implementation", **_sides(*impls)))
    if one.method != other.method:
        result.append(Difference(aspect="method", name="method", **_sides(one.method, other.method)))
    return tuple(result)


def _sides(baseline: str | None, other: str | None) -> dict[str, str | None]:
    return {"baseline": baseline, "other": other}


def aligned(sources: Sequence[Source], quantities: Sequence[str] = ()) -> Table:
    """Return results side by side, in the first terms of the baseline's that all of them have.

    ``quantities`` are those that are wanted; all where none is named.

    Raises:
        BadInput: Nothing is in common, not even a workload; the sentence says what each has.
    """
    view = next((view for view in sources[0].readers if all(view in source.readers for source in sources)), None)
    if view is None:
        kinds = ", ".join(f"{source.path} is {source.kind}" for source in sources)
        raise BadInput(f"These results have no terms in common: {kinds}.")
    table = _table(view, sources, quantities)
    if not table.shared and not table.not_comparable:
        raise BadInput(_nothing(table, quantities))
    return table


def _table(view: View, sources: Sequence[Source], quantities: Sequence[str]) -> Table:
    rows: dict[Name, list[list[Number]]] = {}
    failed: list[tuple[int, Number]] = []
    for index, source in enumerate(sources):
        for number in source.readers[view]():
            if quantities and number.name.quantity not in quantities:
                continue
            if number.value is None:
                failed.append((index, number))
            else:
                rows.setdefault(number.name, [[] for _ in sources])[index].append(number)
    _place_failed(rows, failed, len(sources))
    return Table(view, tuple(sources), {name: tuple(map(tuple, row)) for name, row in rows.items()})


def _place_failed(rows: dict[Name, list[list[Number]]], failed: Sequence[tuple[int, Number]], sources: int) -> None:
    """Put what was not measured, which has no method, beside what others measured of it."""
    by_work = {replace(name, method=None): name for name in rows}
    for index, number in failed:
        name = by_work.get(replace(number.name, method=None), number.name)
        rows.setdefault(name, [[] for _ in range(sources)])[index].append(number)


def _nothing(table: Table, quantities: Sequence[str]) -> str:
    """Say what each result has."""
    has = "; ".join(f"{source.path} has {_some(table, index)}" for index, source in enumerate(table.sources))
    of = f" of the quantity {' or '.join(quantities)}" if quantities else ""
    return f"Nothing{of} is in common: {has}."


def _some(table: Table, place: int) -> str:
    names = list(dict.fromkeys(in_words(name) for name, row in table.rows.items() if row[place]))
    more = f" and {len(names) - AT_MOST} more" if len(names) > AT_MOST else ""
    return f"{', '.join(names[:AT_MOST])}{more}" if names else "none"


def in_words(name: Name, among: Sequence[Name] = ()) -> str:
    """Write what a number is of: its work, and of the details those that differ among some names, or all."""
    constant = {detail for detail in name.details if among and all(detail in other.details for other in among)}
    text = " ".join(f"{detail.name}={detail.value}" for detail in name.details if detail not in constant)
    return f"{name.work} {text}".rstrip()
