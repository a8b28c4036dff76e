"""Pair the cells of results, and judge the pairs: ratios with intervals, and verdicts.

Cells are paired only where everything that is recorded of what was measured agrees. There is no second, coarser match:
those that agree in less are listed with the difference, e.g.
``softmax@numpy: parameters differ (rows 256 vs 512); isolation differs (none vs full)``.

A device is compared with itself where both results have it, else with all others of its model. With 95 % confidence
none of all verdicts is wrong (Holm).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.format import format_percent
from assay.core.results import Estimate, Scope
from assay.core.values import Value
from assay.stats import ratios
from assay.store.identity import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from assay.core.results import Origin
    from assay.stats.ratios import LogEstimate
    from assay.stats.sequential import SpeedVerdict
    from assay.store.identity import IdentityDetail


ItemT = TypeVar("ItemT")

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

    @property
    def sense(self) -> QuantitySense:
        """What more of it means."""
        return quantity_sense(self.name.quantity, self.unit)


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
    texts = []
    for difference in several[:MAX_DIFFERENCES]:
        label = "" if difference.name == difference.aspect else f"{difference.name} "
        unset = UNSET_TEXTS.get(difference.name, "not set")
        baseline, other = (unset if v is None else v for v in (difference.baseline, difference.other))
        texts.append(f"{label}{baseline} vs {other}")
    more = [f"{len(several) - MAX_DIFFERENCES} more"] if len(several) > MAX_DIFFERENCES else []
    return ", ".join([*texts, *more])


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
                models = [", ".join(sorted(device_models(side))) for side in (pair.baseline, pair.other)]
                difference = Difference(aspect=MODEL, name=MODEL, baseline=models[0], other=models[1])
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
    """Return whether two cells are of the same workload and quantity, whatever the implementation and all else."""
    return one.quantity == other.quantity and one.work.partition("@")[0] == other.work.partition("@")[0]


def name_differences(one: CellName, other: CellName) -> tuple[Difference, ...]:
    """Return in what two names differ: implementation, details, method."""
    result = list(find_differences(one.details, other.details))
    if one.work != other.work:
        impls = [name.work.partition("@")[2] or name.work for name in (one, other)]
        difference = Difference(aspect="implementation", name="implementation", baseline=impls[0], other=impls[1])
        result.insert(0, difference)
    if one.method != other.method:
        result.append(Difference(aspect="method", name="method", baseline=one.method, other=other.method))
    return tuple(result)


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
        texts = []
        for index, source in enumerate(sources):
            names = list(dict.fromkeys(name_text(name) for name, row in table.rows.items() if row[index]))
            texts.append(f"{source.path} has {shorten_list(names, MAX_NAMES_SHOWN) or 'none'}")
        of = f" of the quantity {' or '.join(quantities)}" if quantities else ""
        raise BadInput(f"Nothing{of} is in common: {'; '.join(texts)}.")
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


def shorten_list(names: Sequence[str], most: int) -> str:
    """Write "a, b and 5 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def name_text(name: CellName, constant: Collection[IdentityDetail] = ()) -> str:
    """Write what a cell is of: its work and its details, but those that are constant."""
    text = " ".join(f"{detail.name}={detail.value}" for detail in name.details if detail not in constant)
    return f"{name.work} {text}".rstrip()


ChangeVerdict = Literal["faster", "slower", "less", "more", "lower", "higher", "same", "unsure"]
VERDICT_WORDS: dict[QuantitySense, tuple[ChangeVerdict, ChangeVerdict]] = {
    "time": ("slower", "faster"),
    "rate": ("faster", "slower"),
    "cost": ("more", "less"),
    "neither": ("higher", "lower"),
}
"""The verdict on a ratio above 1, and on one below."""

WORSE_VERDICTS: dict[QuantitySense, ChangeVerdict | None] = {
    "time": "slower",
    "rate": "slower",
    "cost": "more",
    "neither": None,
}

Doubt = Literal["no number", "no ratio", "no interval", "one process", "model unknown", "too close"]
"""Why a pair is unsure. Only "too close" can change with the numbers."""

DOUBT_REASONS: dict[Doubt, str] = {
    "no ratio": "a number is not above zero, so there is no ratio",
    "no interval": "too little was measured for an interval",
    "one process": "measured in one process, so how much processes differ is unknown",
    "model unknown": "one of the two does not record the device model",
}
PairCaveat = Literal["unknown model", "other device"]
CAVEAT_TEXTS: dict[PairCaveat, str] = {
    "unknown model": "the device model is not recorded",
    "other device": "measured on another device of the same model; such devices differ",
}
"""What qualifies a ratio."""
RATIO_METHOD = "ratio of logarithms, Student's t; the verdict holds beside all others (Holm)"


class ComparedSide(Value):
    """One side of a pair, all its devices together. Null: not measured, or not recorded."""

    value: float | None
    low: float | None
    high: float | None
    unit: str
    models: tuple[str, ...] = Field(description="Device models; empty: not recorded.")
    devices: int
    reason: str | None = Field(default=None, description="Why there is no value.")


class ComparedRow(Value):
    """One thing that results have in common."""

    what: str
    quantity: str
    details: dict[str, str]


class ComparedPair(ComparedRow):
    """The same thing in the baseline and in another result."""

    method: str | None = Field(description="How the numbers were obtained; null: not recorded.")
    against: str = Field(description="The other result.")
    baseline: ComparedSide
    other: ComparedSide
    ratio: Estimate | None = Field(description="Times the baseline's number.")
    sense: QuantitySense = Field(description="What more of it means.")
    verdict: ChangeVerdict = "unsure"
    regression: bool = Field(default=False, description="Surely worse by more than the minimum effect.")
    decidable: bool = Field(description="Whether a gate can rest on it.")
    doubt: Doubt | None = Field(description="Why it is unsure, as a code; only `too close` depends on the numbers.")
    reason: str | None = Field(description="Why it is unsure.")
    caveat: PairCaveat | None = Field(default=None, description="What qualifies the ratio, as a code.")


def judge_pairs(pairs: Sequence[CellPair], minimum_effect: float) -> tuple[ComparedPair, ...]:
    """Return every pair with its ratio and a verdict; the verdicts hold together."""
    assessed = [_assess_pair(pair) for pair in pairs]
    undoubted = {index: ratio for index, (pair, ratio) in enumerate(assessed) if pair.doubt is None and ratio}
    verdicts = ratios.decide_ratios(list(undoubted.values()), minimum_effect)
    decided = dict(zip(undoubted, verdicts, strict=True))
    return tuple(
        _with_verdict(pair, decided[index], minimum_effect) if index in decided else pair
        for index, (pair, _) in enumerate(assessed)
    )


def _assess_pair(pair: CellPair) -> tuple[ComparedPair, LogEstimate | None]:
    """Return a pair without a verdict, and its ratio."""
    shared = pair.shared_models
    sides = [[c for c in side if not shared or c.model in shared] for side in (pair.baseline, pair.other)]
    first, second = measured = [[cell for cell in side if cell.value is not None] for side in sides]
    ratio: LogEstimate | None = None
    doubt: Doubt | None = "no number"
    caveat: PairCaveat | None = None
    if first and second:
        sides, ratio = measured, cells_ratio(first, second)
        doubt = _find_doubt(ratio, first, second)
        reason = None if doubt is None else DOUBT_REASONS[doubt]
        same_device = {cell.device for cell in first} & {cell.device for cell in second}
        caveat = "unknown model" if not shared else None if same_device else "other device"
    else:
        missing, which = (sides[1], "the other") if first else (sides[0], "the baseline")
        reason = f"{which} has no number: {missing[0].reason or 'not measured'}"
    scope: Scope = "process" if ratio is None or ratio.error is None or doubt == "one process" else "run"
    n = sum(cell.processes or 1 for side in sides for cell in side)
    sense = sides[0][0].sense
    compared = ComparedPair(
        what=pair.name.work,
        quantity=pair.name.quantity,
        details=pair.name.detail_values,
        method=pair.name.method,
        against=pair.against,
        baseline=summarize_side(sides[0]),
        other=summarize_side(sides[1]),
        ratio=None if ratio is None else ratio_estimate(ratio, RATIO_METHOD, n, scope),
        sense=sense,
        decidable=sense != "neither" and doubt is None,
        doubt=doubt,
        reason=reason,
        caveat=caveat,
    )
    return compared, ratio


def ratio_estimate(ratio: LogEstimate, method: str, n: int, scope: Scope) -> Estimate:
    """Return a ratio with its interval as an estimate."""
    low, high = ratio.interval() or (None, None)
    return Estimate(value=ratio.value, low=low, high=high, unit="×", scope=scope, method=method, n=n)


def summarize_side(cells: Sequence[ComparedCell]) -> ComparedSide:
    """Return what the devices of one result measured together: their geometric mean."""
    measured = [cell for cell in cells if cell.value is not None]
    value: float | None = None
    bounds: tuple[float, float] | None = None
    if len(measured) == 1 and len(measured[0].draws) < 2:
        (only,) = measured
        value = only.value
        bounds = None if only.low is None or only.high is None else (only.low, only.high)
    elif measured:
        levels = [
            ratios.log_estimate_of_draws(cell.draws) if len(cell.draws) > 1 else _interval_level(cell)
            for cell in measured
        ]
        if None not in levels:
            mean = ratios.geometric_mean([level for level in levels if level is not None])
            value, bounds = mean.value, mean.interval()
    low, high = bounds or (None, None)
    return ComparedSide(
        value=value,
        low=low,
        high=high,
        unit=cells[0].unit,
        models=tuple(sorted(device_models(cells))),
        devices=len(cells),
        reason=None if value is not None else cells[0].reason,
    )


def cells_ratio(first: Sequence[ComparedCell], second: Sequence[ComparedCell]) -> LogEstimate | None:
    """Return second over first; by least squares over draws where all cells have them; null where there is none."""
    strata, _ = pair_strata(*({cell.device or str(id(cell)): [cell] for cell in side} for side in (first, second)))
    if all(cell.draws for stratum in strata for side in stratum for cell in side):
        draws = [[[draw for cell in side for draw in cell.draws] for side in stratum] for stratum in strata]
        return ratios.pooled_ratio([(one, other) for one, other in draws])
    result: list[LogEstimate] = []
    for stratum in strata:
        levels = [[_interval_level(cell) for cell in side] for side in stratum]
        one, other = ([level for level in side if level is not None] for side in levels)
        if [one, other] != levels:
            return None
        result.append(ratios.divide_estimates(ratios.geometric_mean(one), ratios.geometric_mean(other)))
    return ratios.geometric_mean(result)


def pair_strata(
    first: Mapping[str, Sequence[ItemT]], second: Mapping[str, Sequence[ItemT]]
) -> tuple[list[tuple[list[ItemT], list[ItemT]]], bool]:
    """Return what is compared with what, and whether each stratum (device) is compared with itself.

    Where no stratum is on both sides, everything is compared with everything.
    """
    shared = [key for key in first if first[key] and second.get(key)]
    if shared:
        return [(list(first[key]), list(second[key])) for key in shared], True
    one, other = ([item for items in side.values() for item in items] for side in (first, second))
    return [(one, other)], False


def _interval_level(cell: ComparedCell) -> LogEstimate | None:
    return None if cell.value is None else ratios.log_estimate(cell.value, cell.low, cell.high, cell.processes)


def _find_doubt(
    ratio: LogEstimate | None, first: Sequence[ComparedCell], second: Sequence[ComparedCell]
) -> Doubt | None:
    """Return why no verdict can be given; null where one may be."""
    if ratio is None:
        return "no ratio"
    if bool(device_models(first)) != bool(device_models(second)):
        return "model unknown"
    if ratio.error is None:
        return "no interval"
    single = any(cell.processes == 1 and not cell.draws for cell in (*first, *second))
    return "one process" if single else None


def _with_verdict(pair: ComparedPair, verdict: SpeedVerdict, minimum_effect: float) -> ComparedPair:
    """Return a pair with its verdict, in the words for its quantity."""
    if verdict == "unsure":
        reason = f"it may differ by more or less than {format_percent(minimum_effect, digits=3)}"
        return pair.model_copy(update={"doubt": "too close", "reason": reason})
    above, below = VERDICT_WORDS[pair.sense]
    words: dict[SpeedVerdict, ChangeVerdict] = {"slower": above, "faster": below, "same": "same"}
    update = {"verdict": words[verdict], "regression": words[verdict] == WORSE_VERDICTS[pair.sense]}
    return pair.model_copy(update=update)
