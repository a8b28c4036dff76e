"""What two results say of the same thing: the ratio with its interval, and a verdict that holds beside all others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from assay.experiments.comparing.from_older import THRESHOLD
from assay.stats import ratios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.comparing.aligning import Table
    from assay.experiments.comparing.values import Name, Number
    from assay.stats.paired import Verdict as OfTimes
    from assay.stats.ratios import Level

Verdict = Literal["faster", "slower", "less", "more", "lower", "higher", "same", "unsure"]
Sense = Literal["time", "rate", "cost", "neither"]
"""What more of a quantity means: slower, faster, that it costs more; or it cannot be said whether that is better."""

TIMES = {"ns", "µs", "ms", "s", "min"}
COSTS = {"J", "mJ", "kJ", "Wh", "kWh", "MiB", "GiB", "MB", "GB"}
WORDS: dict[Sense, tuple[Verdict, Verdict]] = {
    "time": ("slower", "faster"),
    "rate": ("faster", "slower"),
    "cost": ("more", "less"),
    "neither": ("higher", "lower"),
}
"""What a ratio above 1, and one below, is called."""

WORSE: dict[Sense, Verdict | None] = {"time": "slower", "rate": "slower", "cost": "more", "neither": None}

Doubt = Literal["no number", "no ratio", "no interval", "one process", "model unknown", "too close"]
"""Why a pair is unsure. All but the last can never be decided, whatever the numbers are."""

REASONS: dict[Doubt, str] = {
    "no ratio": "a number is not above zero, so that there is no ratio",
    "no interval": "too little was measured for an interval",
    "one process": "measured in one process, and how much processes differ is not known",
    "model unknown": "one of the two does not say on which model of device it was measured",
}


@dataclass(frozen=True)
class Pair:
    """The same thing in the baseline, ``first``, and in another result.

    Attributes:
        other: The place of the other among the results.
        ratio: How many times the baseline's the other's number is; null where there is none.
        regression: Whether it surely became worse by more than the minimum effect.
        doubt, reason: Why it is unsure, as a code and in words; null where it is not.
        note: What must be known of the ratio.
    """

    name: Name
    other: int
    first: tuple[Number, ...]
    second: tuple[Number, ...]
    ratio: Level | None
    verdict: Verdict = "unsure"
    doubt: Doubt | None = None
    reason: str | None = None
    note: str | None = None

    @property
    def sense(self) -> Sense:
        """What more of it means."""
        return sense_of(self.name.quantity, self.first[0].unit)

    @property
    def regression(self) -> bool:
        """Whether it surely became worse."""
        return self.verdict == WORSE[self.sense]

    @property
    def counts(self) -> bool:
        """Whether it can be said of it which is better, so that a gate looks at it."""
        return WORSE[self.sense] is not None

    @property
    def is_decidable(self) -> bool:
        """Whether numbers like these could be told apart at all, so that a gate can rest on them."""
        return self.counts and self.doubt in {None, "too close"}


def sense_of(quantity: str, unit: str) -> Sense:
    """Return what more of a quantity means."""
    if "speedup" in quantity or unit.endswith("/s") or quantity.endswith("_per_s"):
        return "rate"
    if "_per_" in quantity:
        return "neither"
    return "time" if unit in TIMES else "cost" if unit in COSTS else "neither"


def judged(table: Table, minimum_effect: float) -> list[Pair]:
    """Return every pair of the baseline and another result on the same model, with verdicts that hold for all."""
    pairs = [
        _pair(name, other, row[0], row[other])
        for name, row in table.shared.items()
        if name.quantity != THRESHOLD
        for other in range(1, len(table.sources))
        if row[other] and on_same(row[0], row[other])
    ]
    sure = [index for index, pair in enumerate(pairs) if pair.doubt is None and pair.ratio is not None]
    verdicts = ratios.decide([ratio for index in sure if (ratio := pairs[index].ratio) is not None], minimum_effect)
    for index, verdict in zip(sure, verdicts, strict=True):
        pairs[index] = _with(pairs[index], verdict, minimum_effect)
    return pairs


def models(numbers: Sequence[Number]) -> set[str]:
    """Return the models that numbers were measured on, as far as they are told."""
    return {number.model for number in numbers if number.model is not None}


def on_same(first: Sequence[Number], second: Sequence[Number]) -> bool:
    """Return whether numbers may be held against each other: of the same model, or of one that is not told."""
    one, other = models(first), models(second)
    return not one or not other or bool(one & other)


def _pair(name: Name, other: int, first: tuple[Number, ...], second: tuple[Number, ...]) -> Pair:
    shared = models(first) & models(second)
    if shared:
        first, second = (tuple(n for n in side if n.model in shared) for side in (first, second))
    for side, which in ((first, "the baseline"), (second, "the other")):
        missing = next((number for number in side if number.value is None), None)
        if all(number.value is None for number in side):
            why = missing.reason if missing is not None else "not measured"
            missed = f"{which} has no number: {why}"
            return Pair(name, other, first, second, None, doubt="no number", reason=missed)
    first, second = (tuple(n for n in side if n.value is not None) for side in (first, second))
    strata = _strata(first, second)
    ratio = _ratio(strata)
    note = _note(first, second, shared)
    doubt = _doubt(ratio, first, second)
    reason = None if doubt is None else REASONS[doubt]
    return Pair(name, other, first, second, ratio, doubt=doubt, reason=reason, note=note)


def _strata(first: Sequence[Number], second: Sequence[Number]) -> list[tuple[list[Number], list[Number]]]:
    """Return what is held against what: each device against itself, or all against all where none is in both."""
    devices = [n.device for n in first if n.device is not None and n.device in {m.device for m in second}]
    if not devices:
        return [(list(first), list(second))]
    sides = [{n.device: n for n in side} for side in (first, second)]
    return [([sides[0][device]], [sides[1][device]]) for device in dict.fromkeys(devices)]


def _ratio(strata: Sequence[tuple[list[Number], list[Number]]]) -> Level | None:
    """Return the ratio over all strata; by least squares where single results are all there is."""
    if all(number.draws for one, other in strata for number in (*one, *other)):
        return ratios.pooled([(_draws(one), _draws(other)) for one, other in strata])
    ratios_by_stratum: list[Level] = []
    for one, other in strata:
        sides = [[_level(number) for number in side] for side in (one, other)]
        if any(level is None for side in sides for level in side):
            return None
        first, second = (ratios.mean([level for level in side if level is not None]) for side in sides)
        ratios_by_stratum.append(ratios.ratio(first, second))
    return ratios.mean(ratios_by_stratum)


def _draws(numbers: Sequence[Number]) -> list[float]:
    return [draw for number in numbers for draw in number.draws]


def _level(number: Number) -> Level | None:
    return None if number.value is None else ratios.level(number.value, number.low, number.high, number.processes)


def _doubt(ratio: Level | None, first: Sequence[Number], second: Sequence[Number]) -> Doubt | None:
    """Return why no verdict can be given; null where one may be."""
    if ratio is None:
        return "no ratio"
    if bool(models(first)) != bool(models(second)):
        return "model unknown"
    if ratio.error is None:
        return "no interval"
    single = any(number.processes == 1 and not number.draws for number in (*first, *second))
    return "one process" if single else None


def _note(first: Sequence[Number], second: Sequence[Number], shared: set[str]) -> str | None:
    """Say what must be known of a ratio: that the model is not told, or that it is another device of it."""
    if not shared:
        return "on which model it was measured is not told"
    devices = [{number.device for number in side} for side in (first, second)]
    return None if devices[0] & devices[1] else "measured on another device of the same model, and such differ"


def _with(pair: Pair, said: OfTimes, minimum_effect: float) -> Pair:
    """Return a pair with its verdict, in the words for its quantity."""
    above, below = WORDS[pair.sense]
    words: dict[OfTimes, Verdict] = {"slower": above, "faster": below, "same": "same", "unsure": "unsure"}
    if said == "unsure":
        reason = f"it may differ by more or less than {100 * minimum_effect:g} %"
        return replace(pair, doubt="too close", reason=reason)
    return replace(pair, verdict=words[said])
