"""The ratio of two results with its interval, a verdict that holds for all pairs together (Holm).

Whether thresholds rose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from assay.core.errors import BadInput
from assay.experiments.compare.adapters import THRESHOLD_QUANTITY
from assay.experiments.threshold import baseline
from assay.experiments.threshold import saved_results as saved
from assay.experiments.threshold.answers import build_answer
from assay.stats import ratios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Verdict
    from assay.experiments.compare.alignment import Number, NumberName, ResultTable
    from assay.stats.ratios import LogEstimate
    from assay.stats.sequential import SpeedVerdict as OfTimes


ChangeVerdict = Literal["faster", "slower", "less", "more", "lower", "higher", "same", "unsure"]
QuantitySense = Literal["time", "rate", "cost", "neither"]
"""What more of a quantity means: slower, faster, that it costs more; or it cannot be said whether that is better."""

TIME_UNITS = {"ns", "µs", "ms", "s", "min"}
COST_UNITS = {"J", "mJ", "kJ", "Wh", "kWh", "MiB", "GiB", "MB", "GB"}
VERDICT_WORDS: dict[QuantitySense, tuple[ChangeVerdict, ChangeVerdict]] = {
    "time": ("slower", "faster"),
    "rate": ("faster", "slower"),
    "cost": ("more", "less"),
    "neither": ("higher", "lower"),
}
"""What a ratio above 1, and one below, is called."""

WORSE_VERDICTS: dict[QuantitySense, ChangeVerdict | None] = {
    "time": "slower",
    "rate": "slower",
    "cost": "more",
    "neither": None,
}

Doubt = Literal["no number", "no ratio", "no interval", "one process", "model unknown", "too close"]
"""Why a pair is unsure. All but the last can never be decided, whatever the numbers are."""

DOUBT_REASONS: dict[Doubt, str] = {
    "no ratio": "a number is not above zero, so that there is no ratio",
    "no interval": "too little was measured for an interval",
    "one process": "measured in one process, and how much processes differ is not known",
    "model unknown": "one of the two does not say on which model of device it was measured",
}


@dataclass(frozen=True)
class ComparedPair:
    """The same thing in the baseline, ``first``, and in another result.

    Attributes:
        other: The place of the other among the results.
        ratio: How many times the baseline's the other's number is; null where there is none.
        regression: Whether it surely became worse by more than the minimum effect.
        doubt, reason: Why it is unsure, as a code and in words; null where it is not.
        note: What must be known of the ratio.
    """

    name: NumberName
    other: int
    first: tuple[Number, ...]
    second: tuple[Number, ...]
    ratio: LogEstimate | None
    verdict: ChangeVerdict = "unsure"
    doubt: Doubt | None = None
    reason: str | None = None
    note: str | None = None

    @property
    def sense(self) -> QuantitySense:
        """What more of it means."""
        return quantity_sense(self.name.quantity, self.first[0].unit)

    @property
    def regression(self) -> bool:
        """Whether it surely became worse."""
        return self.verdict == WORSE_VERDICTS[self.sense]

    @property
    def counts(self) -> bool:
        """Whether it can be said of it which is better, so that a gate looks at it."""
        return WORSE_VERDICTS[self.sense] is not None

    @property
    def is_decidable(self) -> bool:
        """Whether numbers like these could be told apart at all, so that a gate can rest on them."""
        return self.counts and self.doubt in {None, "too close"}


def quantity_sense(quantity: str, unit: str) -> QuantitySense:
    """Return what more of a quantity means."""
    if "speedup" in quantity or unit.endswith("/s") or quantity.endswith("_per_s"):
        return "rate"
    if "_per_" in quantity:
        return "neither"
    return "time" if unit in TIME_UNITS else "cost" if unit in COST_UNITS else "neither"


def judge_pairs(table: ResultTable, minimum_effect: float) -> list[ComparedPair]:
    """Return every pair of the baseline and another result on the same model, with verdicts that hold for all."""
    pairs = [
        _judge_pair(name, other, row[0], row[other])
        for name, row in table.shared.items()
        if name.quantity != THRESHOLD_QUANTITY
        for other in range(1, len(table.sources))
        if row[other] and on_same_model(row[0], row[other])
    ]
    sure = [index for index, pair in enumerate(pairs) if pair.doubt is None and pair.ratio is not None]
    verdicts = ratios.decide_ratios(
        [ratio for index in sure if (ratio := pairs[index].ratio) is not None], minimum_effect
    )
    for index, verdict in zip(sure, verdicts, strict=True):
        pairs[index] = _with_verdict(pairs[index], verdict, minimum_effect)
    return pairs


def device_models(numbers: Sequence[Number]) -> set[str]:
    """Return the models that numbers were measured on, as far as they are told."""
    return {number.model for number in numbers if number.model is not None}


def on_same_model(first: Sequence[Number], second: Sequence[Number]) -> bool:
    """Return whether numbers may be held against each other: of the same model, or of one that is not told."""
    one, other = device_models(first), device_models(second)
    return not one or not other or bool(one & other)


def _judge_pair(name: NumberName, other: int, first: tuple[Number, ...], second: tuple[Number, ...]) -> ComparedPair:
    shared = device_models(first) & device_models(second)
    if shared:
        first, second = (tuple(n for n in side if n.model in shared) for side in (first, second))
    for side, which in ((first, "the baseline"), (second, "the other")):
        missing = next((number for number in side if number.value is None), None)
        if all(number.value is None for number in side):
            why = missing.reason if missing is not None else "not measured"
            missed = f"{which} has no number: {why}"
            return ComparedPair(name, other, first, second, None, doubt="no number", reason=missed)
    first, second = (tuple(n for n in side if n.value is not None) for side in (first, second))
    strata = _strata(first, second)
    ratio = _pooled_ratio(strata)
    note = _ratio_note(first, second, shared)
    doubt = _find_doubt(ratio, first, second)
    reason = None if doubt is None else DOUBT_REASONS[doubt]
    return ComparedPair(name, other, first, second, ratio, doubt=doubt, reason=reason, note=note)


def _strata(first: Sequence[Number], second: Sequence[Number]) -> list[tuple[list[Number], list[Number]]]:
    """Return what is held against what: each device against itself, or all against all where none is in both."""
    devices = [n.device for n in first if n.device is not None and n.device in {m.device for m in second}]
    if not devices:
        return [(list(first), list(second))]
    sides = [{n.device: n for n in side} for side in (first, second)]
    return [([sides[0][device]], [sides[1][device]]) for device in dict.fromkeys(devices)]


def _pooled_ratio(strata: Sequence[tuple[list[Number], list[Number]]]) -> LogEstimate | None:
    """Return the ratio over all strata; by least squares where single results are all there is."""
    if all(number.draws for one, other in strata for number in (*one, *other)):
        return ratios.pooled_ratio([(_all_draws(one), _all_draws(other)) for one, other in strata])
    ratios_by_stratum: list[LogEstimate] = []
    for one, other in strata:
        sides = [[_number_level(number) for number in side] for side in (one, other)]
        if any(level is None for side in sides for level in side):
            return None
        first, second = (ratios.geometric_mean([level for level in side if level is not None]) for side in sides)
        ratios_by_stratum.append(ratios.divide_estimates(first, second))
    return ratios.geometric_mean(ratios_by_stratum)


def _all_draws(numbers: Sequence[Number]) -> list[float]:
    return [draw for number in numbers for draw in number.draws]


def _number_level(number: Number) -> LogEstimate | None:
    return (
        None if number.value is None else ratios.log_estimate(number.value, number.low, number.high, number.processes)
    )


def _find_doubt(ratio: LogEstimate | None, first: Sequence[Number], second: Sequence[Number]) -> Doubt | None:
    """Return why no verdict can be given; null where one may be."""
    if ratio is None:
        return "no ratio"
    if bool(device_models(first)) != bool(device_models(second)):
        return "model unknown"
    if ratio.error is None:
        return "no interval"
    single = any(number.processes == 1 and not number.draws for number in (*first, *second))
    return "one process" if single else None


def _ratio_note(first: Sequence[Number], second: Sequence[Number], shared: set[str]) -> str | None:
    """Say what must be known of a ratio: that the model is not told, or that it is another device of it."""
    if not shared:
        return "on which model it was measured is not told"
    devices = [{number.device for number in side} for side in (first, second)]
    return None if devices[0] & devices[1] else "measured on another device of the same model, and such differ"


def _with_verdict(pair: ComparedPair, verdict: OfTimes, minimum_effect: float) -> ComparedPair:
    """Return a pair with its verdict, in the words for its quantity."""
    above, below = VERDICT_WORDS[pair.sense]
    words: dict[OfTimes, ChangeVerdict] = {"slower": above, "faster": below, "same": "same", "unsure": "unsure"}
    if verdict == "unsure":
        reason = f"it may differ by more or less than {100 * minimum_effect:g} %"
        return replace(pair, doubt="too close", reason=reason)
    return replace(pair, verdict=words[verdict])


@dataclass(frozen=True)
class ThresholdComparison:
    """Whether one threshold rose in the result at a place: yes, no, or that cannot be told; in words."""

    other: int
    name: str
    rose: Verdict
    text: str


def compare_thresholds(table: ResultTable) -> list[ThresholdComparison]:
    """Return for each threshold that the baseline and another result on the same model have whether it rose.

    The other is decided anew by the baseline's margin and time, so that like is held against like.
    """
    names = [name for name in table.shared if name.quantity == THRESHOLD_QUANTITY]
    others = [
        other
        for other in range(1, len(table.sources))
        if any(
            table.rows[name][other] and on_same_model(table.rows[name][0], table.rows[name][other]) for name in names
        )
    ]
    return [rose for other in others for rose in _changes_against(table, other)]


def _changes_against(table: ResultTable, other: int) -> list[ThresholdComparison]:
    first, second = (Path(table.sources[index].path) for index in (0, other))
    try:
        before, old, new = baseline.read_baseline(first), saved.read_saved(first), saved.read_saved(second)
    except BadInput:
        return []
    margin = None if old.results is None else old.thresholds[0][0].margin
    decide_on = new.decide_on if old.results is None else old.decide_on
    answers = [build_answer(item, decide_on) for item in new.judge(margin, decide_on)]
    return [
        ThresholdComparison(other, item.name, item.rose, item.text)
        for item in baseline.compare_with_baseline(answers, before)
    ]
