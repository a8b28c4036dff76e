"""The result of a comparison as a value, its headline, and its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.format import format_percent, format_ratio, format_value
from assay.core.page import Column, Page, Section, Text
from assay.core.page import Table as Grid
from assay.core.results import Estimate, Origin
from assay.core.results import Verdict as Claim
from assay.core.values import SCHEMA_VERSION, Value
from assay.experiments.compare.adapters import THRESHOLD_QUANTITY
from assay.experiments.compare.alignment import Difference, View, describe_differences, name_text
from assay.experiments.compare.verdicts import (
    ChangeVerdict,
    Doubt,
    compare_thresholds,
    device_models,
    judge_pairs,
    on_same_model,
)
from assay.stats import ratios
from assay.store.identity import MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.experiments.compare.alignment import Number, NumberName, ResultSource, ResultTable
    from assay.experiments.compare.verdicts import ComparedPair, ThresholdComparison
    from assay.stats.ratios import LogEstimate


UNIT_US = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6}
VERDICT_ORDER = ("slower", "more", "faster", "less", "higher", "lower", "same", "unsure")
VERDICT_TEXTS = {"same": "the same"}
MAX_NOT_COMPARABLE = 3
"""So many results that are not comparable are named in the headline."""


def combine_devices(numbers: Sequence[Number]) -> tuple[float | None, tuple[float, float] | None]:
    """Return what several devices of one result say together, and its interval; nulls where there is none."""
    good = [number for number in numbers if number.value is not None]
    if not good:
        return None, None
    if len(good) == 1 and len(good[0].draws) < 2:
        only = good[0]
        return only.value, None if only.low is None or only.high is None else (only.low, only.high)
    levels = [_ratio_level(number) for number in good]
    if any(level is None for level in levels):
        return None, None
    mean_level = ratios.geometric_mean([level for level in levels if level is not None])
    return mean_level.value, mean_level.interval()


def _ratio_level(number: Number) -> LogEstimate | None:
    if number.value is None:
        return None
    if len(number.draws) > 1:
        return ratios.log_estimate_of_draws(number.draws)
    return ratios.log_estimate(number.value, number.low, number.high, number.processes)


def format_numbers(numbers: Sequence[Number]) -> str | None:
    """Write what a result says, with its interval; or why it says nothing."""
    if not numbers:
        return None
    value, ends = combine_devices(numbers)
    if value is None:
        return numbers[0].reason
    return format_value(value, numbers[0].unit, *(ends or (None, None)))


def format_log_estimate(ratio: LogEstimate | None) -> str | None:
    """Write a ratio with its interval; null where there is none."""
    return None if ratio is None else format_ratio(ratio.value, *(ratio.interval() or (None, None)))


def headline(
    table: ResultTable,
    pairs: Sequence[ComparedPair],
    rising: Sequence[ThresholdComparison],
    different: Sequence[str],
    minimum_effect: float,
) -> str:
    """Return what came of it in a sentence or two."""
    baseline, sentences = table.sources[0].path, []
    if pairs:
        counts = [(word, sum(pair.verdict == word for pair in pairs)) for word in VERDICT_ORDER]
        counts_text = ", ".join(f"{count} {VERDICT_TEXTS.get(word, word)}" for word, count in counts if count)
        many = f"{len(pairs)} number{'' if len(pairs) == 1 else 's'}"
        sentences.append(f"Of {many} in common with {baseline}: {counts_text}{_largest_change(pairs)}.")
        if all(pair.verdict == "same" for pair in pairs):
            sentences[-1] = (
                f"All of {many} in common with {baseline} are the same to {format_percent(minimum_effect, digits=3)}."
            )
    rose = [rise.name for rise in rising if rise.rose == "yes"]
    sentences += [f"The threshold of {' and of '.join(rose)} rose."] if rose else []
    if different and not table.shared:
        sentences.append(f"Nothing is comparable with {baseline}: {_first_sentences(different)}.")
    elif different and pairs:
        sentences.append(f"Not comparable: {_first_sentences(different)}.")
    if table.shared and not pairs and not rising:
        on = ", ".join(f"{source.path} on {_models_text(table, index)}" for index, source in enumerate(table.sources))
        sentences.append(f"Side by side, without a verdict, as devices differ: {on}.")
    return " ".join(sentences)


def _first_sentences(sentences: Sequence[str]) -> str:
    more = f"; and {len(sentences) - MAX_NOT_COMPARABLE} more" if len(sentences) > MAX_NOT_COMPARABLE else ""
    return f"{'; '.join(sentences[:MAX_NOT_COMPARABLE])}{more}"


def _largest_change(pairs: Sequence[ComparedPair]) -> str:
    """Tell the change that is farthest from none, of those that are sure; nothing where none is."""
    changed = [pair for pair in pairs if pair.ratio is not None and pair.verdict not in {"same", "unsure"}]
    if not changed:
        return ""
    most = max(changed, key=lambda pair: abs(pair.ratio.log) if pair.ratio else 0.0)
    name = name_text(most.name, [pair.name for pair in pairs])
    return f"; the largest change is {name} ({most.name.quantity}), {format_log_estimate(most.ratio)}"


def _models_text(table: ResultTable, index: int) -> str:
    """Write the models that a result was measured on."""
    names = device_models([number for row in table.shared.values() for number in row[index]])
    return ", ".join(sorted(names)) or "a device that is not told"


class SideResult(Value):
    """What one result says. Null: not measured, or not told."""

    value: float | None
    low: float | None
    high: float | None
    unit: str
    model: str | None
    devices: int
    reason: str | None = Field(default=None, description="Why there is no value.")


class ComparedNumber(Value):
    """One thing in the baseline and in another result."""

    what: str
    quantity: str
    details: dict[str, str]
    method: str | None = Field(description="How the numbers were obtained; null: not recorded.")
    against: str = Field(description="The other result.")
    baseline: SideResult
    other: SideResult
    ratio: Estimate | None = Field(description="Times the baseline's number.")
    verdict: ChangeVerdict
    regression: bool
    decidable: bool = Field(description="Whether a gate can rest on it.")
    doubt: Doubt | None = Field(description="Why it is unsure, as a code; all but `too close` can never be decided.")
    reason: str | None = Field(description="Why it is unsure.")
    note: str | None = Field(description="What must be known of the ratio.")


class SideBySideRow(Value):
    """One thing in all results, by their paths; null where one does not have it."""

    what: str
    quantity: str
    details: dict[str, str]
    values: dict[str, SideResult | None]


class NotComparableResult(Value):
    """What the baseline has, and another result has only of something else: never judged."""

    what: str
    quantities: tuple[str, ...]
    against: str
    differences: tuple[Difference, ...]
    text: str = Field(description="The differences in words.")


class ThresholdRise(Value):
    """Whether a threshold rose."""

    name: str
    against: str
    rose: Claim
    text: str


class ComparisonResult(Value):
    """The whole comparison."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    headline: str
    view: View
    baseline: str
    others: tuple[str, ...]
    minimum_effect: float
    verdict: Claim = Field(description="Of a gate: no regression, one, or it cannot be told.")
    pairs: tuple[ComparedNumber, ...]
    thresholds: tuple[ThresholdRise, ...] = ()
    not_comparable: tuple[NotComparableResult, ...] = ()
    table: tuple[SideBySideRow, ...] = Field(
        description="Every thing that the baseline and another have, side by side."
    )
    on_other_models: tuple[str, ...] = Field(description="Results on another model than the baseline's: not judged.")
    only_in: dict[str, tuple[str, ...]] = Field(description="By result, what no other has.")
    differing_facts: dict[str, dict[str, str | None]] = Field(description="What differs in how they were measured.")
    notes: tuple[str, ...] = ()
    origin: Origin = "real"

    @property
    def can_decide(self) -> bool:
        """Whether there is anything that a gate can rest on."""
        return bool(self.thresholds) or any(pair.decidable for pair in self.pairs)


def compare_results(table: ResultTable, minimum_effect: float) -> ComparisonResult:
    """Return what results that stand side by side come to."""
    pairs, rising = judge_pairs(table, minimum_effect), compare_thresholds(table)
    different = list_not_comparable(table)
    paths = [source.path for source in table.sources]
    judged_places = {pair.other for pair in pairs} | {item.other for item in rising}
    measured = {index for row in table.shared.values() for index in range(1, len(paths)) if row[index]}
    elsewhere = tuple(paths[index] for index in sorted(measured - judged_places))
    origins = {source.origin for source in table.sources} - {"real"}
    rows = {name: dict(zip(paths, map(_optional_side, row), strict=True)) for name, row in table.shared.items()}
    return ComparisonResult(
        headline=headline(table, pairs, rising, [item.text for item in different], minimum_effect),
        view=table.view,
        baseline=paths[0],
        others=tuple(paths[1:]),
        minimum_effect=minimum_effect,
        verdict=_gate_verdict(pairs, [item.rose for item in rising]),
        pairs=tuple(_compared_number(pair, paths[pair.other]) for pair in pairs),
        thresholds=tuple(ThresholdRise(name=r.name, against=paths[r.other], rose=r.rose, text=r.text) for r in rising),
        not_comparable=different,
        table=tuple(
            SideBySideRow(what=name.work, quantity=name.quantity, details=_details_dict(name), values=values)
            for name, values in rows.items()
        ),
        on_other_models=elsewhere,
        only_in={
            path: tuple(f"{name_text(name)} {name.quantity}" for name in lone)
            for index, path in enumerate(paths)
            if (lone := table.only_in(index))
        },
        differing_facts=_differing_facts(table.sources),
        notes=tuple(f"{source.path}: {note}" for source in table.sources for note in source.notes),
        origin=min(origins, default="real"),
    )


def list_not_comparable(table: ResultTable) -> tuple[NotComparableResult, ...]:
    """Return what only looks alike, each difference once for all quantities that have it."""
    quantities: dict[tuple[str, int, tuple[Difference, ...]], list[str]] = {}
    for entry in table.not_comparable:
        quantities.setdefault((entry.name.work, entry.other, entry.differences), []).append(entry.name.quantity)
    results = [
        NotComparableResult(
            what=work,
            quantities=tuple(dict.fromkeys(several)),
            against=table.sources[other].path,
            differences=differences,
            text=f"{work}: {describe_differences(differences)}",
        )
        for (work, other, differences), several in quantities.items()
    ]
    return (*results, *_model_differences(table))


def _model_differences(table: ResultTable) -> list[NotComparableResult]:
    """Return what two results have of the same thing, but on other models of device."""
    quantities_by_models: dict[tuple[str, int, str, str], list[str]] = {}
    for name, row in table.shared.items():
        for other in range(1, len(table.sources)):
            if row[other] and not on_same_model(row[0], row[other]):
                one, two = (", ".join(sorted(device_models(row[index]))) for index in (0, other))
                quantities_by_models.setdefault((name.work, other, one, two), []).append(name.quantity)
    return [
        NotComparableResult(
            what=work,
            quantities=tuple(dict.fromkeys(quantities)),
            against=table.sources[other].path,
            differences=(difference := Difference(aspect=MODEL, name=MODEL, baseline=one, other=two),),
            text=f"{work}: {describe_differences([difference])}",
        )
        for (work, other, one, two), quantities in quantities_by_models.items()
    ]


def _details_dict(name: NumberName) -> dict[str, str]:
    return {detail.name: detail.value for detail in name.details}


def _gate_verdict(pairs: Sequence[ComparedPair], rose: Sequence[Claim]) -> Claim:
    """Return whether nothing became worse: no, where something surely did; unsure, where that cannot be told."""
    if any(pair.regression for pair in pairs) or "yes" in rose:
        return "no"
    counting = [pair for pair in pairs if pair.counts]
    if any(pair.verdict == "unsure" for pair in counting) or "unsure" in rose or not (counting or rose):
        return "unsure"
    return "yes"


def _compared_number(pair: ComparedPair, against: str) -> ComparedNumber:
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
    return ComparedNumber(
        what=pair.name.work,
        quantity=pair.name.quantity,
        details=_details_dict(pair.name),
        method=pair.name.method,
        against=against,
        baseline=_side_result(pair.first),
        other=_side_result(pair.second),
        ratio=ratio,
        verdict=pair.verdict,
        regression=pair.regression,
        decidable=pair.is_decidable,
        doubt=pair.doubt,
        reason=pair.reason,
        note=pair.note,
    )


def _optional_side(numbers: Sequence[Number]) -> SideResult | None:
    return _side_result(numbers) if numbers else None


def _side_result(numbers: Sequence[Number]) -> SideResult:
    value, ends = combine_devices(numbers)
    return SideResult(
        value=value,
        low=None if ends is None else ends[0],
        high=None if ends is None else ends[1],
        unit=numbers[0].unit,
        model=", ".join(sorted(device_models(numbers))) or None,
        devices=len(numbers),
        reason=None if value is not None else numbers[0].reason,
    )


def _differing_facts(sources: Sequence[ResultSource]) -> dict[str, dict[str, str | None]]:
    """Return the facts in which results differ that tell any."""
    described = [source for source in sources if source.facts]
    names = dict.fromkeys(name for source in described for name in source.facts)
    return {
        name: {source.path: source.facts.get(name) for source in described}
        for name in names
        if len({source.facts.get(name) for source in described}) > 1
    }


MAX_ONLY_NAMES = 8
"""So many names that only one result has are listed."""


def build_page(table: ResultTable, result: ComparisonResult) -> Page:
    """Return the whole page."""
    pairs = judge_pairs(table, result.minimum_effect)
    results: list[Element] = []
    for index, source in enumerate(table.sources[1:], 1):
        mine = [pair for pair in pairs if pair.other == index]
        if mine:
            results.append(_pairs_table(mine, result.baseline, source.path, result.minimum_effect))
    results += _threshold_lines(result)
    results += _side_by_side_tables(table, across=bool(result.on_other_models))
    sections = [
        Section(title="Results", elements=tuple(results)),
        Section(title="Not comparable", elements=tuple(_not_comparable_lines(result))),
        Section(title="What differs in how they were measured", elements=_differences_table(result)),
        Section(title="What to know", elements=tuple(_remarks(result, pairs))),
    ]
    tones: dict[str, Tone] = {"yes": "good", "no": "bad", "unsure": "unsure"}
    return Page(
        title="assay compare",
        lead=result.headline,
        lead_tone=tones[result.verdict] if pairs else "plain",
        sections=tuple(section for section in sections if section.elements),
        facts=(
            ("baseline", f"{result.baseline}, {table.sources[0].kind}"),
            *(("against", f"{source.path}, {source.kind}") for source in table.sources[1:]),
        ),
        origin=result.origin,
    )


def pair_tone(pair: ComparedPair) -> Tone:
    """Return whether a pair is good news."""
    if pair.regression:
        return "bad"
    if pair.verdict == "unsure":
        return "unsure"
    return "good" if pair.counts or pair.verdict == "same" else "plain"


def _pairs_table(pairs: Sequence[ComparedPair], baseline: str, other: str, minimum_effect: float) -> Grid:
    names = [pair.name for pair in pairs]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name_text(pair.name, names if len(names) > 1 else ()),
            pair.name.quantity,
            format_numbers(pair.first),
            format_numbers(pair.second),
            format_log_estimate(pair.ratio),
            pair.verdict,
        )
        for pair in pairs
    )
    titles = ("what", "quantity", "baseline", "other", "ratio", "verdict")
    return Grid(
        title=f"{other} against {baseline}",
        columns=tuple(Column(title=title, numeric=2 <= index < 5) for index, title in enumerate(titles)),
        rows=rows,
        tones=tuple(map(pair_tone, pairs)),
        note=(
            f"A verdict needs more than {format_percent(minimum_effect, digits=3)} of difference, or surely less; "
            "all of them together hold with 95 % confidence (Holm). The interval of a ratio is by itself. "
            "Inconclusive: too little was measured to say."
        ),
    )


def _threshold_lines(result: ComparisonResult) -> list[Element]:
    tones: dict[str, Tone] = {"yes": "bad", "no": "good", "unsure": "unsure"}
    return [Text(text=f"{rise.against}: {rise.text}.", tone=tones[rise.rose]) for rise in result.thresholds]


def _side_by_side_tables(table: ResultTable, *, across: bool) -> list[Element]:
    """Return a column for each result: across models of everything, otherwise of thresholds, which are no times."""
    names = [name for name in table.shared if across or name.quantity == THRESHOLD_QUANTITY]
    if not names:
        return []
    columns = [Column(title="what"), Column(title="quantity")]
    for index, source in enumerate(table.sources):
        on = sorted(device_models([number for name in names for number in table.rows[name][index]]))
        columns.append(Column(title=f"{source.path} ({', '.join(on) or '?'})", numeric=True))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name_text(name, names if len(names) > 1 else ()), name.quantity, *map(format_numbers, table.rows[name]))
        for name in names
    )
    note = "With half the 95 % interval. Across models there is no verdict: they differ for known reasons."
    return [Grid(title="Side by side", columns=tuple(columns), rows=rows, note=note if across else None)]


def _not_comparable_lines(result: ComparisonResult) -> list[Element]:
    return [
        Text(text=f"{item.text} ({', '.join(item.quantities)}; {item.against}).", tone="unsure")
        for item in result.not_comparable
    ]


def _differences_table(result: ComparisonResult) -> tuple[Element, ...]:
    if not result.differing_facts:
        return ()
    paths = list(next(iter(result.differing_facts.values())))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(values[path] for path in paths)) for name, values in result.differing_facts.items()
    )
    columns = tuple(Column(title=title) for title in ("what", *paths))
    return (Grid(title="Machines and software", columns=columns, rows=rows),)


def _remarks(result: ComparisonResult, pairs: Sequence[ComparedPair]) -> list[Element]:
    """Return what must be known: reasons for what is unsure, notes, and what only one result has."""
    counts: dict[str, int] = {}
    for pair in pairs:
        for why in (pair.reason, pair.note):
            if why is not None:
                counts[why] = counts.get(why, 0) + 1
    texts = [f"{count} of {len(pairs)}: {why}." for why, count in counts.items()]
    texts += [f"{note.rstrip('.')}." for note in result.notes]
    for path, names in result.only_in.items():
        more = f" and {len(names) - MAX_ONLY_NAMES} more" if len(names) > MAX_ONLY_NAMES else ""
        texts.append(f"Only {path} has {', '.join(names[:MAX_ONLY_NAMES])}{more}.")
    return [Text(text=text, tone="unsure") for text in texts]
