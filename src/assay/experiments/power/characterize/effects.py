"""What company does, and how unequal GPUs are: ratios within repeats, with intervals over repeats.

A GPU is only ever compared with itself in another case of the same repeat, or with another GPU in the same case of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.experiments.power.characterize.numbers import by_repeat, gpu_name, typical_us
from assay.stats.blocks import judge, ratio_of, together
from assay.stats.intervals import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.results import Verdict
    from assay.experiments.power.characterize.options import Case, CharacterizeOptions, NoisePart
    from assay.experiments.power.rows import GpuRow

    Quantity = Callable[[GpuRow], float | None]

TIMES = "×"
"""The unit of a ratio."""


@dataclass(frozen=True)
class Effect:
    """One case as a multiple of another, on the same GPUs in the same repeats. Null: not measured, or not told."""

    case: str
    against: str
    time: Estimate
    energy: Estimate | None
    power: Estimate | None
    clock: Estimate | None
    hotter_c: float | None
    gpus: int
    verdict: Verdict


@dataclass(frozen=True)
class Spread:
    """The slowest GPU of a model over its fastest, in one case.

    The interval is as wide as it must be for two that were picked among ``gpus``.
    """

    case: str
    model: str
    slowest: str
    fastest: str
    ratio: Estimate
    gpus: int
    cv: float
    verdict: Verdict


def company_effects(options: CharacterizeOptions, rows: Sequence[GpuRow]) -> list[Effect]:
    """Return what company does in each case that has any, against the same base without it."""
    pairs = [(case, other) for case in options.cases if (other := without_company(case, options.cases)) is not None]
    return [result for case, other in pairs if (result := effect(options, rows, case.name, other.name)) is not None]


def without_company(case: Case, cases: Sequence[Case]) -> Case | None:
    """Return the case in which the same base is without the noise; or of several at once, by itself."""
    alike = [c for c in cases if not c.noise and c.base.subject == case.base.subject and c.name != case.name]
    if case.noise:
        same = (c for c in alike if (c.base.count, c.base.devices) == (case.base.count, case.base.devices))
        return next(same, None) or next((c for c in alike if c.base.count == case.base.count), None)
    if case.base.count == 1:
        return None
    return next((c for c in alike if c.base.count == 1), None)


def near_against_far(options: CharacterizeOptions, rows: Sequence[GpuRow]) -> list[Effect]:
    """Return each case with far neighbours as a multiple of that with near ones."""
    pairs = [
        (near, far)
        for near in options.cases
        for far in options.cases
        if _placements(near) == {"near"} and "far" in _placements(far)
        if (_moved_near(far), far.base) == (near.noise, near.base)
    ]
    return [result for near, far in pairs if (result := effect(options, rows, far.name, near.name)) is not None]


def _placements(case: Case) -> set[str]:
    return {str(part.placement) for part in case.noise} - {"any", "same"}


def _moved_near(case: Case) -> tuple[NoisePart, ...]:
    return tuple(p.model_copy(update={"placement": "near"}) if p.placement == "far" else p for p in case.noise)


def effect(options: CharacterizeOptions, rows: Sequence[GpuRow], case: str, against: str) -> Effect | None:
    """Return one case as a multiple of another; null where no GPU was measured in both in one repeat."""
    over, under = ([row for row in rows if row.case == name] for name in (case, against))
    time, gpus = _ratio(over, under, typical_us)
    if time is None:
        return None
    ratio = ratio_of(time)
    estimate = _estimate(time, CONFIDENCE)
    if ratio is None or estimate is None:
        return None
    return Effect(
        case=case,
        against=against,
        time=estimate,
        energy=_estimate(_ratio(over, under, lambda row: row.energy_per_call_j)[0], CONFIDENCE),
        power=_estimate(_ratio(over, under, lambda row: row.power_w)[0], CONFIDENCE),
        clock=_estimate(_ratio(over, under, lambda row: row.sm_mhz)[0], CONFIDENCE),
        hotter_c=_hotter(over, under),
        gpus=gpus,
        verdict=judge(ratio, 0.0, options.minimum_effect),
    )


def _ratio(over: Sequence[GpuRow], under: Sequence[GpuRow], value: Quantity) -> tuple[list[float] | None, int]:
    """Return the logarithm of the ratio in each repeat, over the GPUs that have both; and how many GPUs that are."""
    uuids = [uuid for uuid in dict.fromkeys(row.uuid for row in over) if any(row.uuid == uuid for row in under)]
    readings = [[by_repeat((r for r in side if r.uuid == u), value) for side in (over, under)] for u in uuids]
    repeats = sorted({repeat for one, other in readings for repeat in one if repeat in other})
    if not repeats:
        return None, 0
    logs = [
        [math.log(one[r] / other[r]) if r in one and r in other else None for r in repeats] for one, other in readings
    ]
    return together(logs), sum(any(value is not None for value in row) for row in logs)


def _estimate(logs: list[float] | None, confidence: float) -> Estimate | None:
    ratio = None if logs is None else ratio_of(logs, confidence)
    if ratio is None:
        return None
    return Estimate(
        value=ratio.value,
        low=ratio.low,
        high=ratio.high,
        unit=TIMES,
        scope="run",
        method=f"geometric mean of the ratios in {ratio.blocks} repeats, Student's t on their logarithms",
        confidence=confidence,
        n=ratio.blocks,
    )


def _hotter(over: Sequence[GpuRow], under: Sequence[GpuRow]) -> float | None:
    """Return by how many degrees the GPUs were hotter, in the mean over those that have both."""
    means = [_temperatures(side) for side in (over, under)]
    both = [means[0][uuid] - means[1][uuid] for uuid in means[0] if uuid in means[1]]
    return float(np.mean(both)) if both else None


def _temperatures(rows: Sequence[GpuRow]) -> dict[str, float]:
    readings: dict[str, list[float]] = {}
    for row in rows:
        if row.temperature_c is not None:
            readings.setdefault(row.uuid, []).append(row.temperature_c)
    return {uuid: float(np.mean(values)) for uuid, values in readings.items()}


def spreads(options: CharacterizeOptions, rows: Sequence[GpuRow]) -> list[Spread]:
    """Return how unequal the GPUs of each model are in each case in which two or more were measured."""
    return [
        result
        for case in options.cases
        for model in dict.fromkeys(row.model for row in rows)
        if (result := spread(case.name, model, rows, options.minimum_effect)) is not None
    ]


def spread(case: str, model: str, rows: Sequence[GpuRow], minimum_effect: float) -> Spread | None:
    """Return the slowest GPU over the fastest; null where fewer than two were measured in one repeat."""
    chosen = [row for row in rows if (row.case, row.model) == (case, model)]
    devices = {row.uuid: row.device for row in chosen}
    times = {uuid: by_repeat((row for row in chosen if row.uuid == uuid), typical_us) for uuid in devices}
    common = sorted(set.intersection(*map(set, times.values()))) if len(times) > 1 else []
    if not common:
        return None
    means = {uuid: float(np.mean([math.log(times_of_gpu[r]) for r in common])) for uuid, times_of_gpu in times.items()}
    slowest, fastest = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    pairs = sum(1 for _ in combinations(means, 2))
    logs = [math.log(times[slowest][r] / times[fastest][r]) for r in common]
    confidence = 1 - (1 - CONFIDENCE) / pairs
    ratio, log_ratio = _estimate(logs, confidence), ratio_of(logs, confidence)
    if ratio is None:
        return None
    return Spread(
        case=case,
        model=model,
        slowest=gpu_name(devices[slowest]),
        fastest=gpu_name(devices[fastest]),
        ratio=ratio,
        gpus=len(means),
        cv=float(np.std(np.exp(list(means.values())), ddof=1) / np.mean(np.exp(list(means.values())))),
        verdict=judge(log_ratio, 0.0, minimum_effect),
    )
