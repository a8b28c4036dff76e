"""The result of a comparison as a value, its headline, and its page."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.format import format_count, format_list, format_percent, format_value, ratio_cell
from assay.core.page import Page, Section, Table, Text, build_table
from assay.core.results import Origin, Verdict
from assay.core.values import SCHEMA_VERSION, Value
from assay.experiments.compare.pairing import (
    CAVEAT_TEXTS,
    THRESHOLD_QUANTITY,
    ChangeVerdict,
    ComparedPair,
    ComparedRow,
    ComparedSide,
    NotComparable,
    View,
    device_models,
    judge_pairs,
    name_text,
    shorten_list,
    summarize_side,
)
from assay.experiments.compare.thresholds import ThresholdRise, compare_thresholds
from assay.experiments.reporting import CLAIM_TONES, EFFECT_TONES, overall_origin, table_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.experiments.compare.pairing import ResultSource, ResultTable


class SideBySideRow(ComparedRow):
    """One thing in all results, by their paths; null where one does not have it."""

    values: dict[str, ComparedSide | None]


class ComparisonResult(Value):
    """The whole comparison."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    headline: str
    view: View
    baseline: str
    others: tuple[str, ...]
    kinds: dict[str, str] = Field(description="What each result is, by its path.")
    minimum_effect: float
    verdict: Verdict = Field(description="Of a gate: no regression (yes), a regression (no), or undecided.")
    pairs: tuple[ComparedPair, ...]
    thresholds: tuple[ThresholdRise, ...] = ()
    not_comparable: tuple[NotComparable, ...] = ()
    table: tuple[SideBySideRow, ...] = Field(description="Everything that the baseline and another have.")
    on_other_models: tuple[str, ...] = Field(description="Results on another device model: no verdict.")
    only_in: dict[str, tuple[str, ...]] = Field(description="By result, what no other has.")
    differing_facts: dict[str, dict[str, str | None]] = Field(description="How the measurements differ.")
    notes: tuple[str, ...] = ()
    origin: Origin = "real"

    @property
    def can_decide(self) -> bool:
        """Whether there is anything that a gate can rest on."""
        return bool(self.thresholds) or any(pair.decidable for pair in self.pairs)


def compare_results(table: ResultTable, minimum_effect: float) -> ComparisonResult:
    """Return the comparison of results that stand side by side."""
    comparable = [p for p in table.pairs if p.is_comparable and p.name.quantity != THRESHOLD_QUANTITY]
    pairs, rises = judge_pairs(comparable, minimum_effect), compare_thresholds(table)
    paths = [source.path for source in table.sources]
    measured = dict.fromkeys(pair.against for pair in table.pairs)
    with_verdicts = {pair.against for pair in pairs} | {rise.against for rise in rises}
    return ComparisonResult(
        headline=_headline(table, pairs, rises, minimum_effect),
        view=table.view,
        baseline=paths[0],
        others=tuple(paths[1:]),
        kinds={source.path: source.kind for source in table.sources},
        minimum_effect=minimum_effect,
        verdict=_gate_verdict(pairs, rises),
        pairs=pairs,
        thresholds=rises,
        not_comparable=table.not_comparable,
        table=tuple(
            SideBySideRow(
                what=name.work,
                quantity=name.quantity,
                details=name.detail_values,
                values={path: summarize_side(cells) if cells else None for path, cells in zip(paths, row, strict=True)},
            )
            for name, row in table.shared.items()
        ),
        on_other_models=tuple(path for path in paths if path in measured and path not in with_verdicts),
        only_in={
            path: tuple(f"{name_text(name)} {name.quantity}" for name in lone)
            for index, path in enumerate(paths)
            if (lone := table.only_in(index))
        },
        differing_facts=_differing_facts(table.sources),
        notes=tuple(f"{source.path}: {note}" for source in table.sources for note in source.notes),
        origin=overall_origin(table.sources),
    )


def _gate_verdict(pairs: Sequence[ComparedPair], rises: Sequence[ThresholdRise]) -> Verdict:
    """Return whether nothing became worse."""
    if any(pair.regression for pair in pairs) or any(rise.rose == "yes" for rise in rises):
        return "no"
    verdicts = [pair.verdict for pair in pairs if pair.sense != "neither"] + [rise.rose for rise in rises]
    return "unsure" if "unsure" in verdicts or not verdicts else "yes"


def _differing_facts(sources: Sequence[ResultSource]) -> dict[str, dict[str, str | None]]:
    """Return the facts in which those results differ that record any."""
    described = [source for source in sources if source.facts]
    names = dict.fromkeys(name for source in described for name in source.facts)
    return {
        name: {source.path: source.facts.get(name) for source in described}
        for name in names
        if len({source.facts.get(name) for source in described}) > 1
    }


VERDICT_ORDER: tuple[ChangeVerdict, ...] = (
    "slower", "more", "faster", "less", "higher", "lower", "same", "unsure"
)  # fmt: skip
VERDICT_TEXTS: dict[ChangeVerdict, str] = {"same": "unchanged", "unsure": "inconclusive"}
MAX_NOT_COMPARABLE = 3
"""Number of results that are not comparable named in the headline."""
MAX_ONLY_NAMES = 8
"""Number of names listed that only one result has."""


def _headline(
    table: ResultTable, pairs: Sequence[ComparedPair], rises: Sequence[ThresholdRise], minimum_effect: float
) -> str:
    """Return the outcome in a sentence or two."""
    baseline, sentences = table.sources[0].path, []
    if pairs:
        counts = Counter(pair.verdict for pair in pairs)
        texts = [f"{counts[word]} {VERDICT_TEXTS.get(word, word)}" for word in VERDICT_ORDER if counts[word]]
        results = format_count(len(pairs), "result")
        sentences.append(f"Of {results} in common with {baseline}: {', '.join(texts)}{_largest_change(pairs)}.")
        if set(counts) == {"same"}:
            within = f"within {format_percent(minimum_effect, digits=3)}"
            sentences = [f"{len(pairs)} of {results} unchanged from {baseline} ({within})."]
    rose = [rise.name for rise in rises if rise.rose == "yes"]
    sentences += [f"The threshold of {format_list(rose)} rose."] if rose else []
    if table.not_comparable and (pairs or not table.shared):
        texts = [item.text for item in table.not_comparable]
        more = f"; and {len(texts) - MAX_NOT_COMPARABLE} more" if len(texts) > MAX_NOT_COMPARABLE else ""
        what = "Not comparable" if table.shared else f"Nothing is comparable with {baseline}"
        sentences.append(f"{what}: {'; '.join(texts[:MAX_NOT_COMPARABLE])}{more}.")
    if table.shared and not pairs and not rises:
        where = []
        for index, source in enumerate(table.sources):
            models = device_models([cell for row in table.shared.values() for cell in row[index]])
            where.append(f"{source.path} on {', '.join(sorted(models)) or 'a device that is not recorded'}")
        sentences.append(f"Side by side, without a verdict, as devices differ: {', '.join(where)}.")
    return " ".join(sentences)


def _largest_change(pairs: Sequence[ComparedPair]) -> str:
    """Name the largest change among those that are sure; nothing where none is."""
    changed = [
        (pair.ratio, label if len(pairs) > 1 else pair.what, pair.quantity)
        for label, pair in zip(_row_labels(pairs), pairs, strict=True)
        if pair.ratio is not None and pair.verdict not in {"same", "unsure"}
    ]
    if not changed:
        return ""
    ratio, name, quantity = max(changed, key=lambda item: max(item[0].value, 1 / item[0].value))
    return f"; the largest change is {name} ({quantity}), {ratio_cell(ratio)}"


def build_page(result: ComparisonResult) -> Page:
    """Return the whole page."""
    results: list[Element] = [
        _pairs_table(several, f"{path} against {result.baseline}", result.minimum_effect)
        for path in result.others
        if (several := [pair for pair in result.pairs if pair.against == path])
    ]
    results += [Text(text=f"{rise.against}: {rise.text}.", tone=EFFECT_TONES[rise.rose]) for rise in result.thresholds]
    results += _side_by_side_tables(result)
    not_comparable = (
        Text(text=f"{item.text} ({', '.join(item.quantities)}; {item.against}).", tone="unsure")
        for item in result.not_comparable
    )
    sections = [
        Section(title="Results", elements=tuple(results)),
        Section(title="Not comparable", elements=tuple(not_comparable)),
        Section(title="Differences in setup", elements=_facts_tables(result)),
        Section(title="Notes", elements=tuple(Text(text=text, tone="unsure") for text in _remarks(result))),
    ]
    baseline, *others = (f"{path}, {kind}" for path, kind in result.kinds.items())
    return Page(
        title="assay compare",
        lead=result.headline,
        lead_tone=CLAIM_TONES[result.verdict] if result.pairs else "plain",
        sections=tuple(section for section in sections if section.elements),
        facts=(("baseline", baseline), *(("against", other) for other in others)),
        origin=result.origin,
    )


def _row_labels(rows: Sequence[ComparedRow]) -> list[str]:
    """Name each row by its work and by the details that are not the same in all rows; of a single row by all."""
    constant = set.intersection(*(set(row.details.items()) for row in rows)) if len(rows) > 1 else set()
    return [
        " ".join(
            [row.what, *(f"{name}={value}" for name, value in row.details.items() if (name, value) not in constant)]
        )
        for row in rows
    ]


def _pairs_table(pairs: Sequence[ComparedPair], title: str, minimum_effect: float) -> Table:
    """Return a row for each pair: both numbers, the ratio, the verdict."""

    def tone(row: tuple[str, ComparedPair]) -> Tone:
        pair = row[1]
        if pair.regression:
            return "bad"
        if pair.verdict == "unsure":
            return "unsure"
        return "good" if pair.sense != "neither" or pair.verdict == "same" else "plain"

    return build_table(
        title,
        zip(_row_labels(pairs), pairs, strict=True),
        {
            "what": lambda row: row[0],
            "quantity": lambda row: row[1].quantity,
            "baseline": lambda row: _side_text(row[1].baseline),
            "other": lambda row: _side_text(row[1].other),
            "ratio": lambda row: ratio_cell(row[1].ratio),
            "verdict": lambda row: row[1].verdict,
        },
        numeric=("baseline", "other", "ratio"),
        tone=tone,
        note=(
            f"A verdict needs a difference of more than {format_percent(minimum_effect, digits=3)}, or surely less; "
            "all verdicts together hold with 95 % confidence (Holm). Each ratio's interval is for that ratio alone. "
            "Inconclusive: the interval is too wide."
        ),
    )


def _side_text(side: ComparedSide | None) -> str | None:
    """Write a side with its interval, or why it has no number."""
    if side is None or side.value is None:
        return None if side is None else side.reason
    return format_value(side.value, side.unit, side.low, side.high)


def _side_by_side_tables(result: ComparisonResult) -> list[Table]:
    """Return a column for each result: across models of everything, otherwise of thresholds, which are no times."""
    across = bool(result.on_other_models)
    rows = [row for row in result.table if across or row.quantity == THRESHOLD_QUANTITY]
    if not rows:
        return []
    titles = []
    for path in result.kinds:
        sides = [side for row in rows if (side := row.values[path]) is not None]
        models = dict.fromkeys(model for side in sides for model in side.models)
        titles.append(f"{path} ({', '.join(sorted(models)) or '?'})")
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (label, row.quantity, *map(_side_text, row.values.values()))
        for label, row in zip(_row_labels(rows), rows, strict=True)
    )
    note = "With 95 % intervals. No verdict across device models: they differ for known reasons."
    columns = table_columns("what", "quantity", *titles, words=2)
    return [Table(title="Side by side", columns=columns, rows=cells, note=note if across else None)]


def _facts_tables(result: ComparisonResult) -> tuple[Table, ...]:
    if not result.differing_facts:
        return ()
    paths = list(next(iter(result.differing_facts.values())))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(values[path] for path in paths)) for name, values in result.differing_facts.items()
    )
    columns = table_columns("what", *paths, words=1 + len(paths))
    return (Table(title="Machines and software", columns=columns, rows=rows),)


def _remarks(result: ComparisonResult) -> list[str]:
    """Return why pairs are unsure, what qualifies results, and what only one result has."""
    reasons = Counter(pair.reason for pair in result.pairs if pair.reason is not None)
    reasons += Counter(CAVEAT_TEXTS[pair.caveat] for pair in result.pairs if pair.caveat is not None)
    texts = [f"{count} of {len(result.pairs)}: {why}." for why, count in reasons.items()]
    texts += [f"{note.rstrip('.')}." for note in result.notes]
    texts += [f"Only {path} has {shorten_list(names, MAX_ONLY_NAMES)}." for path, names in result.only_in.items()]
    return texts
