"""Which numbers of several results are of the same thing, told in terms that all of them have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.experiments.comparing.values import Name, Number, Source, View

AT_MOST = 3
"""So many names of a result are shown where nothing is in common."""


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

    def lone(self, place: int) -> list[Name]:
        """Return the names that only one of the results has."""
        others = [other for other in range(len(self.sources)) if other != place]
        return [n for n, row in self.rows.items() if row[place] and not any(row[other] for other in others)]


def aligned(sources: Sequence[Source], quantities: Sequence[str] = ()) -> Table:
    """Return results side by side, in the first terms of the baseline's in which something is in common.

    ``quantities`` are those that are wanted; all where none is named.

    Raises:
        BadInput: Nothing is in common; the sentence says what each has.
    """
    tried: list[Table] = []
    for view in sources[0].readers:
        if all(view in source.readers for source in sources):
            table = _table(view, sources, quantities)
            if table.shared:
                return table
            tried.append(table)
    raise BadInput(_nothing(sources, tried, quantities))


def _table(view: View, sources: Sequence[Source], quantities: Sequence[str]) -> Table:
    rows: dict[Name, list[list[Number]]] = {}
    for place, source in enumerate(sources):
        for number in source.readers[view]():
            if not quantities or number.name.quantity in quantities:
                rows.setdefault(number.name, [[] for _ in sources])[place].append(number)
    return Table(view, tuple(sources), {name: tuple(map(tuple, row)) for name, row in rows.items()})


def _nothing(sources: Sequence[Source], tried: Sequence[Table], quantities: Sequence[str]) -> str:
    """Say what each result has."""
    if not tried:
        kinds = ", ".join(f"{source.path} is {source.kind}" for source in sources)
        return f"These results have no terms in common: {kinds}."
    table = tried[0]
    has = "; ".join(f"{source.path} has {_some(table, place)}" for place, source in enumerate(sources))
    of = f" of the quantity {' or '.join(quantities)}" if quantities else ""
    return f"Nothing{of} is in common: {has}."


def _some(table: Table, place: int) -> str:
    names = list(dict.fromkeys(in_words(name) for name, row in table.rows.items() if row[place]))
    more = f" and {len(names) - AT_MOST} more" if len(names) > AT_MOST else ""
    return f"{', '.join(names[:AT_MOST])}{more}" if names else "none"


def in_words(name: Name, among: Sequence[Name] = ()) -> str:
    """Write what a number is of: its work, and of the details those that differ among some names, or all."""
    constant = {detail for detail in name.details if among and all(detail in other.details for other in among)}
    told = " ".join(f"{key}={value}" for key, value in name.details if (key, value) not in constant)
    return f"{name.work} {told}".rstrip()
