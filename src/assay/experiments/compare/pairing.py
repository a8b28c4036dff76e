"""Cells of results, and which of them are paired.

Cells are paired only where everything that is recorded of what was measured agrees. There is no second, coarser match:
those that agree in less are listed with the difference, e.g.
``softmax@numpy: parameters differ (rows 256 vs 512); isolation differs (none vs full)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.values import Value
from assay.store.identity import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from assay.core.results import Origin
    from assay.store.identity import IdentityDetail


View = Literal["times", "tunings", "shapes", "speed-ups", "rows", "findings"]
"""The terms of a result: two results are compared in terms that both have."""
THRESHOLD_QUANTITY = "threshold"
"""The quantity of a recommended threshold: a size, not a measured cell."""

QuantitySense = Literal["time", "rate", "cost", "neither"]
"""What more of a quantity means: slower, faster, more expensive; neither: more is neither better nor worse."""

TIME_UNITS = {"ns", "µs", "ms", "s", "min"}
COST_UNITS = {"J", "mJ", "kJ", "Wh", "kWh", "MiB", "GiB", "MB", "GB"}


def quantity_sense(quantity: str, unit: str) -> QuantitySense:
    """Return what more of a quantity means."""
    if "speedup" in quantity or unit.endswith("/s") or quantity.endswith("_per_s"):
        return "rate"
    if "_per_" in quantity:
        return "neither"
    return "time" if unit in TIME_UNITS else "cost" if unit in COST_UNITS else "neither"


@dataclass(frozen=True)
class CellName:
    """What a cell is of: the work in its implementation, what else must agree, the quantity, and the estimator.

    ``method`` is null where the source does not record how its numbers were obtained, or nothing was measured.
    """

    work: str
    details: tuple[IdentityDetail, ...]
    quantity: str
    method: str | None = None

    @property
    def detail_values(self) -> dict[str, str]:
        """The details by name."""
        return {detail.name: detail.value for detail in self.details}


@dataclass(frozen=True)
class ComparedCell:
    """One number of a result.

    Attributes:
        device: Distinguishes devices of one model: a GPU's UUID. Null: not recorded.
        model: The model of the GPU, or of the host where there is none. Null: not recorded.
        value: Null where it was not measured, for ``reason``.
        low, high: Its interval; null where too little was measured.
        unit: As on screen.
        processes: How many processes the interval is over; 1: it is within one. Null: not recorded.
        draws: One number per process, where there is no interval: it follows from them.
        known_sense: What more of it means; null: it follows from quantity and unit.
    """

    name: CellName
    device: str | None
    model: str | None
    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    processes: int | None = None
    draws: tuple[float, ...] = ()
    reason: str | None = None
    known_sense: QuantitySense | None = None

    @property
    def sense(self) -> QuantitySense:
        """What more of it means."""
        return self.known_sense or quantity_sense(self.name.quantity, self.unit)


@dataclass(frozen=True)
class CellPair:
    """Cells of the baseline and of another result with the same name: one for each device on either side."""

    name: CellName
    against: str
    baseline: Sequence[ComparedCell]
    other: Sequence[ComparedCell]

    @property
    def shared_models(self) -> set[str]:
        """The device models that both sides record."""
        return device_models(self.baseline) & device_models(self.other)

    @property
    def is_comparable(self) -> bool:
        """Whether both are of the same device model, or one side does not record it."""
        return not device_models(self.baseline) or not device_models(self.other) or bool(self.shared_models)


def device_models(cells: Sequence[ComparedCell]) -> set[str]:
    """Return the device models that cells record."""
    return {cell.model for cell in cells if cell.model is not None}


@dataclass(frozen=True)
class ResultSource:
    """A result that can be compared.

    Attributes:
        path: As the user wrote it.
        kind: What it is, in words.
        readers: The functions that read its cells, by view; the most detailed view first.
        facts: How else it was measured: driver, versions, commit.
        origin: Whether a real device was measured.
        notes: What qualifies it.
    """

    path: str
    kind: str
    readers: Mapping[View, Callable[[], Sequence[ComparedCell]]]
    facts: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = "real"
    notes: tuple[str, ...] = ()


PLURAL_ASPECTS = frozenset({"parameters", "conditions"})
UNSET_TEXTS = {"schedule": "alone", "beside": "nothing", "in turns": "no", "in stages": "no"}
"""What a missing detail means; of all others, that it is not set."""
MAX_DIFFERENCES = 4
"""Number of differing values named per aspect."""


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
"""Number of names shown per result where nothing is in common."""


class NotComparable(Value):
    """What the baseline has, and another result only of something else; it gets no verdict."""

    what: str
    quantities: tuple[str, ...]
    against: str
    differences: tuple[Difference, ...]
    text: str = Field(description="The differences in words.")


@dataclass(frozen=True)
class ResultTable:
    """Results side by side in terms that all have.

    Attributes:
        view: In which terms.
        sources: The results, the baseline first.
        rows: By name, the cells of each source, one for each device; none where it does not have it.
    """

    view: View
    sources: tuple[ResultSource, ...]
    rows: Mapping[CellName, tuple[tuple[ComparedCell, ...], ...]]

    @cached_property
    def shared(self) -> dict[CellName, tuple[tuple[ComparedCell, ...], ...]]:
        """The rows that the baseline and at least one other have."""
        return {name: row for name, row in self.rows.items() if row[0] and any(row[1:])}

    @cached_property
    def pairs(self) -> tuple[CellPair, ...]:
        """The baseline's cells with those of each other result, also where device models differ."""
        return tuple(
            CellPair(name, self.sources[other].path, row[0], row[other])
            for name, row in self.shared.items()
            for other in range(1, len(self.sources))
            if row[other]
        )

    @cached_property
    def not_comparable(self) -> tuple[NotComparable, ...]:
        """What both results have of a workload, but not of the same thing, or not on the same device model.

        Each difference stands once, for all quantities that have it.
        """
        quantities: dict[tuple[str, str, tuple[Difference, ...]], dict[str, None]] = {}
        for other, source in enumerate(self.sources[1:], 1):
            for name, row in self.rows.items():
                if row[0] and not row[other] and (differences := self._nearest(name, other)) is not None:
                    quantities.setdefault((name.work, source.path, differences), {})[name.quantity] = None
        for pair in self.pairs:
            if not pair.is_comparable:
                models = (", ".join(sorted(device_models(side))) for side in (pair.baseline, pair.other))
                difference = Difference(aspect=MODEL, name=MODEL, **_difference_sides(*models))
                quantities.setdefault((pair.name.work, pair.against, (difference,)), {})[pair.name.quantity] = None
        return tuple(
            NotComparable(
                what=work,
                quantities=tuple(several),
                against=against,
                differences=differences,
                text=f"{work}: {describe_differences(differences)}",
            )
            for (work, against, differences), several in quantities.items()
        )

    def _nearest(self, name: CellName, other: int) -> tuple[Difference, ...] | None:
        """Return in what a name differs from the nearest that only the other result has; null where none is near."""
        names = [n for n, row in self.rows.items() if row[other] and not row[0] and is_related(name, n)]
        return min((name_differences(name, candidate) for candidate in names), key=len, default=None)

    def only_in(self, index: int) -> list[CellName]:
        """Return the names that only one of the results has, and of which no other has anything like it."""
        others = [other for other in range(len(self.sources)) if other != index]
        alone = [n for n, row in self.rows.items() if row[index] and not any(row[other] for other in others)]
        related = [n for n, row in self.rows.items() if any(row[other] for other in others) and not row[index]]
        return [n for n in alone if not any(is_related(n, other) for other in related)]


def is_related(one: CellName, other: CellName) -> bool:
    """Return whether two cells are of the same workload and quantity, were all else the same."""
    return one.quantity == other.quantity and workload_name(one) == workload_name(other)


def workload_name(name: CellName) -> str:
    """Return the work whatever its implementation: ``softmax`` of ``softmax@numpy``."""
    return name.work.partition("@")[0]


def name_differences(one: CellName, other: CellName) -> tuple[Difference, ...]:
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
    cells = [
        (index, cell)
        for index, source in enumerate(sources)
        for cell in source.readers[view]()
        if not quantities or cell.name.quantity in quantities
    ]
    rows: dict[CellName, list[list[ComparedCell]]] = {}
    for index, cell in cells:
        if cell.value is not None:
            rows.setdefault(cell.name, [[] for _ in sources])[index].append(cell)
    measured = {replace(name, method=None): name for name in rows}
    for index, cell in cells:  # what was not measured has no method: it stands beside what others measured of it
        if cell.value is None:
            name = measured.get(replace(cell.name, method=None), cell.name)
            rows.setdefault(name, [[] for _ in sources])[index].append(cell)
    return ResultTable(view, tuple(sources), {name: tuple(map(tuple, row)) for name, row in rows.items()})


def _nothing_in_common(table: ResultTable, quantities: Sequence[str]) -> str:
    """Say what each result has."""
    has = "; ".join(f"{source.path} has {_example_names(table, index)}" for index, source in enumerate(table.sources))
    of = f" of the quantity {' or '.join(quantities)}" if quantities else ""
    return f"Nothing{of} is in common: {has}."


def _example_names(table: ResultTable, index: int) -> str:
    names = list(dict.fromkeys(name_text(name) for name, row in table.rows.items() if row[index]))
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    return f"{', '.join(names[:MAX_NAMES_SHOWN])}{more}" if names else "none"


def name_text(name: CellName, constant: Collection[IdentityDetail] = ()) -> str:
    """Write what a cell is of: its work and its details, but those that are constant."""
    text = " ".join(f"{detail.name}={detail.value}" for detail in name.details if detail not in constant)
    return f"{name.work} {text}".rstrip()
