"""What a comparison came to, as a value: every pair, thresholds that rose, and what only one of the results has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.results import Estimate, Origin
from assay.core.results import Verdict as Claim
from assay.core.values import SCHEMA_VERSION, Value
from assay.experiments.comparing.aligning import in_words
from assay.experiments.comparing.judging import Doubt, Verdict, judged, models, on_same
from assay.experiments.comparing.thresholds import risen
from assay.experiments.comparing.values import View
from assay.experiments.comparing.words import headline, number_of
from assay.experiments.differences import Difference, describe
from assay.store.identity import MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.comparing.aligning import Table
    from assay.experiments.comparing.judging import Pair
    from assay.experiments.comparing.values import Name, Number, Source


class Side(Value):
    """What one result says. Null: not measured, or not told."""

    value: float | None
    low: float | None
    high: float | None
    unit: str
    model: str | None
    devices: int
    reason: str | None = Field(default=None, description="Why there is no value.")


class Compared(Value):
    """One thing in the baseline and in another result."""

    what: str
    quantity: str
    details: dict[str, str]
    method: str | None = Field(description="How the numbers were obtained; null: not recorded.")
    against: str = Field(description="The other result.")
    baseline: Side
    other: Side
    ratio: Estimate | None = Field(description="Times the baseline's number.")
    verdict: Verdict
    regression: bool
    decidable: bool = Field(description="Whether a gate can rest on it.")
    doubt: Doubt | None = Field(description="Why it is unsure, as a code; all but `too close` can never be decided.")
    reason: str | None = Field(description="Why it is unsure.")
    note: str | None = Field(description="What must be known of the ratio.")


class Row(Value):
    """One thing in all results, by their paths; null where one does not have it."""

    what: str
    quantity: str
    details: dict[str, str]
    values: dict[str, Side | None]


class Different(Value):
    """What the baseline has, and another result has only of something else: never judged."""

    what: str
    quantities: tuple[str, ...]
    against: str
    differences: tuple[Difference, ...]
    said: str = Field(description="The differences in words.")


class Rising(Value):
    """Whether a threshold rose."""

    name: str
    against: str
    rose: Claim
    said: str


class Result(Value):
    """The whole comparison."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    headline: str
    view: View
    baseline: str
    others: tuple[str, ...]
    minimum_effect: float
    verdict: Claim = Field(description="Of a gate: no regression, one, or it cannot be told.")
    pairs: tuple[Compared, ...]
    thresholds: tuple[Rising, ...] = ()
    not_comparable: tuple[Different, ...] = ()
    table: tuple[Row, ...] = Field(description="Every thing that the baseline and another have, side by side.")
    elsewhere: tuple[str, ...] = Field(description="Results on another model than the baseline's: not judged.")
    only: dict[str, tuple[str, ...]] = Field(description="By result, what no other has.")
    differ: dict[str, dict[str, str | None]] = Field(description="What differs in how they were measured.")
    notes: tuple[str, ...] = ()
    origin: Origin = "real"

    @property
    def can_decide(self) -> bool:
        """Whether there is anything that a gate can rest on."""
        return bool(self.thresholds) or any(pair.decidable for pair in self.pairs)


def compare(table: Table, minimum_effect: float) -> Result:
    """Return what results that stand side by side come to."""
    pairs, rising = judged(table, minimum_effect), risen(table)
    different = not_comparable(table)
    paths = [source.path for source in table.sources]
    judged_places = {pair.other for pair in pairs} | {item.other for item in rising}
    measured = {index for row in table.shared.values() for index in range(1, len(paths)) if row[index]}
    elsewhere = tuple(paths[index] for index in sorted(measured - judged_places))
    origins = {source.origin for source in table.sources} - {"real"}
    rows = {name: dict(zip(paths, map(_side, row), strict=True)) for name, row in table.shared.items()}
    return Result(
        headline=headline(table, pairs, rising, [item.said for item in different], minimum_effect),
        view=table.view,
        baseline=paths[0],
        others=tuple(paths[1:]),
        minimum_effect=minimum_effect,
        verdict=_gate(pairs, [item.rose for item in rising]),
        pairs=tuple(_compared(pair, paths[pair.other]) for pair in pairs),
        thresholds=tuple(Rising(name=r.name, against=paths[r.other], rose=r.rose, said=r.said) for r in rising),
        not_comparable=different,
        table=tuple(
            Row(what=name.work, quantity=name.quantity, details=_details(name), values=values)
            for name, values in rows.items()
        ),
        elsewhere=elsewhere,
        only={
            path: tuple(f"{in_words(name)} {name.quantity}" for name in lone)
            for index, path in enumerate(paths)
            if (lone := table.lone(index))
        },
        differ=_differ(table.sources),
        notes=tuple(f"{source.path}: {note}" for source in table.sources for note in source.notes),
        origin=min(origins, default="real"),
    )


def not_comparable(table: Table) -> tuple[Different, ...]:
    """Return what only looks alike, each difference once for all quantities that have it."""
    quantities: dict[tuple[str, int, tuple[Difference, ...]], list[str]] = {}
    for entry in table.not_comparable:
        quantities.setdefault((entry.name.work, entry.other, entry.differences), []).append(entry.name.quantity)
    results = [
        Different(
            what=work,
            quantities=tuple(dict.fromkeys(several)),
            against=table.sources[other].path,
            differences=differences,
            said=f"{work}: {describe(differences)}",
        )
        for (work, other, differences), several in quantities.items()
    ]
    return (*results, *_across_models(table))


def _across_models(table: Table) -> list[Different]:
    """Return what two results have of the same thing, but on other models of device."""
    quantities_by_models: dict[tuple[str, int, str, str], list[str]] = {}
    for name, row in table.shared.items():
        for other in range(1, len(table.sources)):
            if row[other] and not on_same(row[0], row[other]):
                one, two = (", ".join(sorted(models(row[index]))) for index in (0, other))
                quantities_by_models.setdefault((name.work, other, one, two), []).append(name.quantity)
    return [
        Different(
            what=work,
            quantities=tuple(dict.fromkeys(quantities)),
            against=table.sources[other].path,
            differences=(difference := Difference(aspect=MODEL, name=MODEL, baseline=one, other=two),),
            said=f"{work}: {describe([difference])}",
        )
        for (work, other, one, two), quantities in quantities_by_models.items()
    ]


def _details(name: Name) -> dict[str, str]:
    return {detail.name: detail.value for detail in name.details}


def _gate(pairs: Sequence[Pair], rose: Sequence[Claim]) -> Claim:
    """Return whether nothing became worse: no, where something surely did; unsure, where that cannot be told."""
    if any(pair.regression for pair in pairs) or "yes" in rose:
        return "no"
    counting = [pair for pair in pairs if pair.counts]
    if any(pair.verdict == "unsure" for pair in counting) or "unsure" in rose or not (counting or rose):
        return "unsure"
    return "yes"


def _compared(pair: Pair, against: str) -> Compared:
    ends = None if pair.ratio is None else pair.ratio.interval()
    n = sum(number.processes or 1 for number in (*pair.first, *pair.second))
    ratio = pair.ratio and Estimate(
        value=pair.ratio.value,
        low=None if ends is None else ends[0],
        high=None if ends is None else ends[1],
        unit="×",
        scope="process" if ends is None or pair.doubt == "one process" else "run",
        method="ratio of logarithms, Student's t; the verdict holds beside all others (Holm)",
        n=n,
    )
    return Compared(
        what=pair.name.work,
        quantity=pair.name.quantity,
        details=_details(pair.name),
        method=pair.name.method,
        against=against,
        baseline=_sure_side(pair.first),
        other=_sure_side(pair.second),
        ratio=ratio,
        verdict=pair.verdict,
        regression=pair.regression,
        decidable=pair.is_decidable,
        doubt=pair.doubt,
        reason=pair.reason,
        note=pair.note,
    )


def _side(numbers: Sequence[Number]) -> Side | None:
    return _sure_side(numbers) if numbers else None


def _sure_side(numbers: Sequence[Number]) -> Side:
    value, ends = number_of(numbers)
    return Side(
        value=value,
        low=None if ends is None else ends[0],
        high=None if ends is None else ends[1],
        unit=numbers[0].unit,
        model=", ".join(sorted(models(numbers))) or None,
        devices=len(numbers),
        reason=None if value is not None else numbers[0].reason,
    )


def _differ(sources: Sequence[Source]) -> dict[str, dict[str, str | None]]:
    """Return the facts in which results differ that tell any."""
    described = [source for source in sources if source.facts]
    names = dict.fromkeys(name for source in described for name in source.facts)
    return {
        name: {source.path: source.facts.get(name) for source in described}
        for name in names
        if len({source.facts.get(name) for source in described}) > 1
    }
