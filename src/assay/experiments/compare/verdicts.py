"""Judge pairs of cells: the ratio with its interval, and verdicts of which with 95 % confidence none is wrong (Holm).

A device is compared with itself where both results have it, else with all others of its model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import Field

from assay.core.format import format_percent
from assay.core.results import Estimate
from assay.core.values import Value
from assay.experiments.compare.pairing import QuantitySense, device_models
from assay.stats import ratios

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.results import Verdict
    from assay.experiments.compare.pairing import CellPair, ComparedCell
    from assay.stats.ratios import LogEstimate
    from assay.stats.sequential import SpeedVerdict


KeyT = TypeVar("KeyT")
ItemT = TypeVar("ItemT")

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
    for cells, which in zip(sides, ("the baseline", "the other"), strict=True):
        if all(cell.value is None for cell in cells):
            why = f"{which} has no number: {cells[0].reason or 'not measured'}"
            return _compared_pair(pair, sides, None, "no number", reason=why), None
    first, second = sides = [[cell for cell in side if cell.value is not None] for side in sides]
    ratio = cells_ratio(first, second)
    doubt = _find_doubt(ratio, first, second)
    reason = None if doubt is None else DOUBT_REASONS[doubt]
    caveat = _find_caveat(first, second, shared)
    return _compared_pair(pair, sides, ratio, doubt, reason=reason, caveat=caveat), ratio


def _compared_pair(
    pair: CellPair,
    sides: Sequence[Sequence[ComparedCell]],
    ratio: LogEstimate | None,
    doubt: Doubt | None,
    *,
    reason: str | None,
    caveat: PairCaveat | None = None,
) -> ComparedPair:
    sense = sides[0][0].sense
    scope: Literal["process", "run"] = (
        "process" if ratio is None or ratio.error is None or doubt == "one process" else "run"
    )
    n = sum(cell.processes or 1 for side in sides for cell in side)
    return ComparedPair(
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


def ratio_estimate(ratio: LogEstimate, method: str, n: int, scope: Literal["process", "run"]) -> Estimate:
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
        levels = [level for cell in measured if (level := _cell_level(cell)) is not None]
        if len(levels) == len(measured):
            mean = ratios.geometric_mean(levels)
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
    sides = ({cell.device or id(cell): [cell] for cell in side} for side in (first, second))
    strata, _ = pair_strata(*sides)
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
    first: Mapping[KeyT, Sequence[ItemT]], second: Mapping[KeyT, Sequence[ItemT]]
) -> tuple[list[tuple[list[ItemT], list[ItemT]]], int]:
    """Return what is compared with what, and how many strata (devices) both sides have.

    Each stratum is compared with itself; where none is on both sides, everything with everything.
    """
    shared = [key for key in first if first[key] and second.get(key)]
    if shared:
        return [(list(first[key]), list(second[key])) for key in shared], len(shared)
    one, other = ([item for items in side.values() for item in items] for side in (first, second))
    return [(one, other)], 0


def _cell_level(cell: ComparedCell) -> LogEstimate | None:
    return ratios.log_estimate_of_draws(cell.draws) if len(cell.draws) > 1 else _interval_level(cell)


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


def _find_caveat(first: Sequence[ComparedCell], second: Sequence[ComparedCell], shared: set[str]) -> PairCaveat | None:
    if not shared:
        return "unknown model"
    devices = [{cell.device for cell in side} for side in (first, second)]
    return None if devices[0] & devices[1] else "other device"


def _with_verdict(pair: ComparedPair, verdict: SpeedVerdict, minimum_effect: float) -> ComparedPair:
    """Return a pair with its verdict, in the words for its quantity."""
    if verdict == "unsure":
        reason = f"it may differ by more or less than {format_percent(minimum_effect, digits=3)}"
        return pair.model_copy(update={"doubt": "too close", "reason": reason})
    above, below = VERDICT_WORDS[pair.sense]
    words: dict[SpeedVerdict, ChangeVerdict] = {"slower": above, "faster": below, "same": "same"}
    update = {"verdict": words[verdict], "regression": words[verdict] == WORSE_VERDICTS[pair.sense]}
    return pair.model_copy(update=update)


def exceeds_verdict(ratio: Estimate | None, minimum_effect: float) -> Verdict:
    """Return whether one ratio, by itself, is surely larger than 1 by more than the minimum effect."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "unsure"
    if ratio.low > 1 + minimum_effect:
        return "yes"
    return "no" if ratio.high <= 1 + minimum_effect else "unsure"
