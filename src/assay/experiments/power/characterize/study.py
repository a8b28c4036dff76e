"""All results of the records, as values, computed once for findings, page and files.

Contention effects and differences between GPUs are ratios within repeats, with intervals over repeats: a GPU is only
compared with itself in another case of the same repeat, or with another GPU in the same case of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.experiments.power.characterize.gpu_cases import (
    build_rows,
    gpu_cases_of,
    gpu_name,
    typical_us,
    values_by_repeat,
)
from assay.experiments.power.characterize.options import skipped_reasons
from assay.experiments.power.characterize.plan import cases_by_trial, is_idle
from assay.stats.blocks import average_units, decide_difference, ratio_over_blocks
from assay.stats.intervals import CONFIDENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.results import Record, Verdict
    from assay.experiments.power.characterize.gpu_cases import GpuCase
    from assay.experiments.power.characterize.options import CharacterizeCase, CharacterizeOptions, NoisePart
    from assay.experiments.power.characterize.plan import PlacedCase
    from assay.experiments.power.rows import GpuRow
    from assay.machine.model import Machine
    from assay.store.records import Records


if TYPE_CHECKING:
    Quantity = Callable[[GpuRow], float | None]

RATIO_UNIT = "×"
"""The unit of a ratio."""


@dataclass(frozen=True)
class CaseEffect:
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
class ModelSpread:
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


def contention_effects(options: CharacterizeOptions, rows: Sequence[GpuRow]) -> list[CaseEffect]:
    """Return what company does in each case that has any, against the same base without it."""
    pairs = [(case, other) for case in options.cases if (other := uncontended_case(case, options.cases)) is not None]
    return [
        result for case, other in pairs if (result := compare_cases(options, rows, case.name, other.name)) is not None
    ]


def uncontended_case(case: CharacterizeCase, cases: Sequence[CharacterizeCase]) -> CharacterizeCase | None:
    """Return the case in which the same base is without the noise; or of several at once, by itself."""
    alike = [c for c in cases if not c.noise and c.base.subject == case.base.subject and c.name != case.name]
    if case.noise:
        same = (c for c in alike if (c.base.count, c.base.devices) == (case.base.count, case.base.devices))
        return next(same, None) or next((c for c in alike if c.base.count == case.base.count), None)
    if case.base.count == 1:
        return None
    return next((c for c in alike if c.base.count == 1), None)


def far_over_near_effects(options: CharacterizeOptions, rows: Sequence[GpuRow]) -> list[CaseEffect]:
    """Return each case with far neighbours as a multiple of that with near ones."""
    pairs = [
        (near, far)
        for near in options.cases
        for far in options.cases
        if _load_placements(near) == {"near"} and "far" in _load_placements(far)
        if (_with_near_loads(far), far.base) == (near.noise, near.base)
    ]
    return [result for near, far in pairs if (result := compare_cases(options, rows, far.name, near.name)) is not None]


def _load_placements(case: CharacterizeCase) -> set[str]:
    return {str(part.placement) for part in case.noise} - {"any", "same"}


def _with_near_loads(case: CharacterizeCase) -> tuple[NoisePart, ...]:
    return tuple(p.model_copy(update={"placement": "near"}) if p.placement == "far" else p for p in case.noise)


def compare_cases(options: CharacterizeOptions, rows: Sequence[GpuRow], case: str, against: str) -> CaseEffect | None:
    """Return one case as a multiple of another; null where no GPU was measured in both in one repeat."""
    over, under = ([row for row in rows if row.case == name] for name in (case, against))
    time, gpus = _log_ratios(over, under, typical_us)
    if time is None:
        return None
    ratio = ratio_over_blocks(time)
    estimate = _ratio_estimate(time, CONFIDENCE)
    if ratio is None or estimate is None:
        return None
    return CaseEffect(
        case=case,
        against=against,
        time=estimate,
        energy=_ratio_estimate(_log_ratios(over, under, lambda row: row.energy_per_call_j)[0], CONFIDENCE),
        power=_ratio_estimate(_log_ratios(over, under, lambda row: row.power_w)[0], CONFIDENCE),
        clock=_ratio_estimate(_log_ratios(over, under, lambda row: row.sm_mhz)[0], CONFIDENCE),
        hotter_c=_temperature_difference(over, under),
        gpus=gpus,
        verdict=decide_difference(ratio, 0.0, options.minimum_effect),
    )


def _log_ratios(over: Sequence[GpuRow], under: Sequence[GpuRow], value: Quantity) -> tuple[list[float] | None, int]:
    """Return the logarithm of the ratio in each repeat, over the GPUs that have both; and how many GPUs that are."""
    uuids = [uuid for uuid in dict.fromkeys(row.uuid for row in over) if any(row.uuid == uuid for row in under)]
    readings = [[values_by_repeat((r for r in side if r.uuid == u), value) for side in (over, under)] for u in uuids]
    repeats = sorted({repeat for one, other in readings for repeat in one if repeat in other})
    if not repeats:
        return None, 0
    logs = [
        [math.log(one[r] / other[r]) if r in one and r in other else None for r in repeats] for one, other in readings
    ]
    return average_units(logs), sum(any(value is not None for value in row) for row in logs)


def _ratio_estimate(logs: list[float] | None, confidence: float) -> Estimate | None:
    ratio = None if logs is None else ratio_over_blocks(logs, confidence)
    if ratio is None:
        return None
    return Estimate(
        value=ratio.value,
        low=ratio.low,
        high=ratio.high,
        unit=RATIO_UNIT,
        scope="run",
        method=f"geometric mean of the ratios in {ratio.blocks} repeats, Student's t on their logarithms",
        confidence=confidence,
        n=ratio.blocks,
    )


def _temperature_difference(over: Sequence[GpuRow], under: Sequence[GpuRow]) -> float | None:
    """Return by how many degrees the GPUs were hotter, in the mean over those that have both."""
    means = [_mean_temperatures(side) for side in (over, under)]
    both = [means[0][uuid] - means[1][uuid] for uuid in means[0] if uuid in means[1]]
    return float(np.mean(both)) if both else None


def _mean_temperatures(rows: Sequence[GpuRow]) -> dict[str, float]:
    readings: dict[str, list[float]] = {}
    for row in rows:
        if row.temperature_c is not None:
            readings.setdefault(row.uuid, []).append(row.temperature_c)
    return {uuid: float(np.mean(values)) for uuid, values in readings.items()}


def model_spreads(options: CharacterizeOptions, rows: Sequence[GpuRow]) -> list[ModelSpread]:
    """Return how unequal the GPUs of each model are in each case in which two or more were measured."""
    return [
        result
        for case in options.cases
        for model in dict.fromkeys(row.model for row in rows)
        if (result := model_spread(case.name, model, rows, options.minimum_effect)) is not None
    ]


def model_spread(case: str, model: str, rows: Sequence[GpuRow], minimum_effect: float) -> ModelSpread | None:
    """Return the slowest GPU over the fastest; null where fewer than two were measured in one repeat."""
    chosen = [row for row in rows if (row.case, row.model) == (case, model)]
    devices = {row.uuid: row.device for row in chosen}
    times = {uuid: values_by_repeat((row for row in chosen if row.uuid == uuid), typical_us) for uuid in devices}
    common = sorted(set.intersection(*map(set, times.values()))) if len(times) > 1 else []
    if not common:
        return None
    means = {uuid: float(np.mean([math.log(times_of_gpu[r]) for r in common])) for uuid, times_of_gpu in times.items()}
    slowest, fastest = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    pairs = sum(1 for _ in combinations(means, 2))
    logs = [math.log(times[slowest][r] / times[fastest][r]) for r in common]
    confidence = 1 - (1 - CONFIDENCE) / pairs
    ratio, log_ratio = _ratio_estimate(logs, confidence), ratio_over_blocks(logs, confidence)
    if ratio is None:
        return None
    return ModelSpread(
        case=case,
        model=model,
        slowest=gpu_name(devices[slowest]),
        fastest=gpu_name(devices[fastest]),
        ratio=ratio,
        gpus=len(means),
        cv=float(np.std(np.exp(list(means.values())), ddof=1) / np.mean(np.exp(list(means.values())))),
        verdict=decide_difference(log_ratio, 0.0, minimum_effect),
    )


@dataclass(frozen=True)
class PowerStudy:
    """All that the records say, as values; ``skipped`` has the cases that do not fit here with the reason."""

    rows: tuple[GpuRow, ...]
    gpus: tuple[GpuCase, ...]
    contention: tuple[CaseEffect, ...]
    distance: tuple[CaseEffect, ...]
    spreads: tuple[ModelSpread, ...]
    skipped: dict[str, str]
    pairs: tuple[tuple[PlacedCase, Record], ...]


def analyse_records(machine: Machine, options: CharacterizeOptions, records: Records) -> PowerStudy:
    """Return what the records say; cases are in the order of the file."""
    cases = cases_by_trial(machine, options, options.repeats)
    pairs = tuple((cases[record.trial], record) for record in records if record.trial in cases)
    rows = tuple(build_rows(machine, pairs, records))
    order = {case.name: index for index, case in enumerate(options.cases)}
    idle = {case.name for case in options.cases if is_idle(case)}
    busy = [row for row in rows if row.case not in idle]
    return PowerStudy(
        rows=rows,
        gpus=tuple(sorted(gpu_cases_of(rows), key=lambda gpu: order[gpu.case])),
        contention=tuple(contention_effects(options, busy)),
        distance=tuple(far_over_near_effects(options, busy)),
        spreads=tuple(model_spreads(options, busy)),
        skipped=skipped_reasons(machine, options),
        pairs=pairs,
    )


def least_contended_case(options: CharacterizeOptions, study: PowerStudy) -> CharacterizeCase | None:
    """Return the case with the least company that was measured, idleness left out; null where there is none."""
    measured = {gpu.case for gpu in study.gpus}
    busy = [case for case in options.cases if not is_idle(case) and case.name in measured]
    return min(busy, key=lambda case: (len(case.noise), case.base.count or len(options.devices)), default=None)
