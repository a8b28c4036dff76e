"""What the records of a study say, as values, computed once for findings, page and files.

A row for each timed GPU of each trial; estimates of each GPU in each case over repeats; contention effects and
differences between GPUs as ratios within repeats, with intervals over repeats: a GPU is only compared with itself in
another case of the same repeat, or with another GPU in the same case of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.experiments.power.characterize.options import skipped_reasons
from assay.experiments.power.characterize.plan import cases_by_trial, is_idle
from assay.experiments.power.rows import (
    GpuRow,
    energy_fields,
    find_gpu_stats,
    identify_device,
    mean_share_by_reason,
    sensor_fields,
)
from assay.experiments.reporting import primary_time, run_estimate
from assay.stats.blocks import average_units, decide_difference, ratio_over_blocks
from assay.stats.intervals import CONFIDENCE, repeats_interval, restarts_interval, summarize_samples
from assay.stats.sensor_intervals import ProcessReading, estimate_joules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.results import GpuWindowStats, Record, Verdict
    from assay.experiments.power.characterize.options import CharacterizeCase, CharacterizeOptions, NoisePart, Placement
    from assay.experiments.power.characterize.plan import PlacedCase
    from assay.machine.model import Machine
    from assay.store.records import Records

    Quantity = Callable[[GpuRow], float | None]


@dataclass(frozen=True)
class GpuCase:
    """One GPU in one case, over all repeats. Null: not measured, or not reported."""

    case: str
    rows: tuple[GpuRow, ...]
    time: Estimate
    energy: Estimate | None

    @property
    def one(self) -> GpuRow:
        """Any of its rows, for what is the same in all of them."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """The GPU as people call it."""
        return gpu_name(self.one.device)

    @property
    def n(self) -> int:
        """Calls that were timed."""
        return sum(row.n for row in self.rows)

    @property
    def processes(self) -> int:
        """Fresh starts of its worker."""
        return sum(len(row.restart_medians_us) for row in self.rows)

    @property
    def cv(self) -> float | None:
        """Of the same call again and again in one process; over all of them, the root of the mean square."""
        return _root_mean_square([row.cv for row in self.rows if row.cv is not None])

    @property
    def quartiles_us(self) -> tuple[float, float, float]:
        """The medians of its repeats' quartiles."""
        first, middle, third = np.median([row.quartiles_us for row in self.rows], axis=0)
        return float(first), float(middle), float(third)

    def mean(self, quantity: str) -> float | None:
        """Return the mean of a quantity over the repeats that have it."""
        values = [value for row in self.rows if (value := getattr(row, quantity)) is not None]
        return float(np.mean(values)) if values else None

    def held_back(self) -> dict[str, float]:
        """Return the share of the time that each reason kept the clock from being higher; idleness is none."""
        shares = mean_share_by_reason([row.held_back for row in self.rows])
        return {reason: share for reason, share in shares.items() if share > 0 and reason != "idle"}


def _root_mean_square(values: Sequence[float]) -> float | None:
    return math.sqrt(float(np.mean(np.square(values)))) if values else None


def gpu_name(device: str) -> str:
    """Write a device as people call it: "GPU 0" for cuda:0; a group of cores as it is."""
    kind, _, number = device.partition(":")
    return f"GPU {number}" if kind == "cuda" else device


def gpu_cases_of(rows: Iterable[GpuRow]) -> list[GpuCase]:
    """Return each GPU in each case, in the order the cases were first measured, and GPUs by their slot."""
    grouped: dict[tuple[str, str], list[GpuRow]] = {}
    for row in sorted(rows, key=lambda row: row.slot):
        grouped.setdefault((row.case, row.uuid), []).append(row)
    return [
        GpuCase(case, tuple(case_rows), time_estimate(case_rows), energy_estimate(case_rows))
        for (case, _), case_rows in grouped.items()
    ]


def values_by_repeat(rows: Iterable[GpuRow], value: Callable[[GpuRow], float | None]) -> dict[int, float]:
    """Return a positive quantity in each repeat; of several trials in one, their geometric mean."""
    values_of_repeat: dict[int, list[float]] = {}
    for row in rows:
        number = value(row)
        if number is not None and number > 0:
            values_of_repeat.setdefault(row.repeat, []).append(number)
    return {repeat: math.exp(float(np.mean(np.log(values)))) for repeat, values in values_of_repeat.items()}


def typical_us(row: GpuRow) -> float:
    """Return the typical median of the processes of a row."""
    return math.exp(float(np.mean(np.log(row.restart_medians_us)))) if row.restart_medians_us else row.median_us


def time_estimate(rows: Sequence[GpuRow]) -> Estimate:
    """Return the median time of a call with its interval: over repeats, else over processes, else within the one."""
    n = sum(row.n for row in rows)
    repeats = list(values_by_repeat(rows, typical_us).values())
    if len(repeats) > 1:
        how = f"geometric mean of the medians of {len(repeats)} repeats, Student's t on their logarithms"
        return run_estimate(repeats_interval(np.array(repeats)), "µs", how, n)
    processes = [median for row in rows for median in row.restart_medians_us]
    if len(processes) > 1:
        centre, low, high, how = restarts_interval(processes)
        return run_estimate((centre, low, high), "µs", how, n)
    one, how = rows[0], "median of one process, order statistics at the effective sample size, widened"
    return Estimate(value=one.median_us, low=one.low_us, high=one.high_us, unit="µs", scope="process", method=how, n=n)


def energy_estimate(rows: Sequence[GpuRow]) -> Estimate | None:
    """Return the energy of a call: the spread of repeats (of one, that of its times) and the sensor's interval."""
    measured = [row for row in rows if row.energy_per_call_j is not None]
    repeats = values_by_repeat(measured, lambda row: row.energy_per_call_j)
    if not repeats:
        return None
    estimate = estimate_joules(
        [_repeat_draw(value, [row for row in measured if row.repeat == repeat]) for repeat, value in repeats.items()]
    )
    method = f"the card's energy over the calls made meanwhile; {estimate.method}"
    return estimate.model_copy(update={"method": method, "n": len(measured)})


def _repeat_draw(value: float, rows: Sequence[GpuRow]) -> ProcessReading:
    """Return what one repeat gave; how far its calls leave energy open is what they leave open of its time."""
    halves = [
        (row.energy_high_j - row.energy_low_j) / 2 / row.energy_per_call_j
        for row in rows
        if row.energy_per_call_j is not None and row.energy_low_j is not None and row.energy_high_j is not None
    ]
    sensor = float(np.mean(halves)) if len(halves) == len(rows) else None
    return ProcessReading(value, sensor, sum(row.n for row in rows), time_estimate(rows).relative_half_width)


def build_rows(machine: Machine, pairs: Sequence[tuple[PlacedCase, Record]], records: Records) -> list[GpuRow]:
    """Return a row for each GPU that was timed well, in the order of the trials; idle watts stand beside."""
    good = [(where, record) for where, record in pairs if record.status == "ok"]
    idle_w = _idle_watts(good)
    rows = [
        _build_row(machine, records, trial, device, idle_w.get((trial[0].repeat, device)))
        for trial in good
        for device in trial[0].base
    ]
    return [row for row in rows if row is not None]


def _idle_watts(pairs: list[tuple[PlacedCase, Record]]) -> dict[tuple[int, str], float]:
    """Return what each device drew when idle, by repeat; where a repeat has none, the mean of the others."""
    idle_watts: dict[tuple[int, str], float] = {}
    for where, record in pairs:
        for device in where.base if is_idle(where.case) else ():
            power_w = _mean_power_w(record, find_gpu_stats(record, device))
            if power_w is not None:
                idle_watts[where.repeat, device] = power_w
    for device in {device for _, device in idle_watts}:
        usual_w = float(np.mean([watts for (_, other), watts in idle_watts.items() if other == device]))
        for repeat in {where.repeat for where, _ in pairs}:
            idle_watts.setdefault((repeat, device), usual_w)
    return idle_watts


def _mean_power_w(record: Record, stats: GpuWindowStats | None) -> float | None:
    """Return a GPU's mean power while it was timed: of its energy where that is reported, else of its readings."""
    if stats is None:
        return None
    if stats.energy is not None and record.during is not None and record.during.observed_s > 0:
        return stats.energy.value / record.during.observed_s
    return stats.power_w


def _build_row(
    machine: Machine, records: Records, trial: tuple[PlacedCase, Record], device: str, idle_w: float | None
) -> GpuRow | None:
    """Return the row of a timed device; null where no call was kept."""
    where, record = trial
    quantity = primary_time([record], device)
    series = [s for s in record.series if (s.role, s.quantity) == (device, quantity) and s.n]
    if not series:
        return None
    samples = [records.samples(s) for s in series]
    summary = summarize_samples(device, 0, quantity, "µs", samples)
    calls = sum(s.n * s.calls_per_sample for s in series)
    stats = find_gpu_stats(record, device)
    timed_s = sum(s.end_ns - s.start_ns for s in series) / 1e9
    joules: dict[str, float | None] = {}
    if stats is not None and record.during is not None and not is_idle(where.case):
        # Of one call, from that of all the time in which they followed another.
        joules = energy_fields(stats.energy, timed_s / calls / record.during.observed_s)
    joules_per_call = joules.get("energy_per_call_j") or 0.0
    facts = next((facts for e in record.evidence if e.role == device for facts in e.subjects), None)
    # What a parameter that the worker chose came to: a size that fills the card.
    chosen = (facts.measured if facts is not None else None) or {}
    subject = where.case.base.subject
    sizes = {name: int(n) if n == int(n) else n for name, n in chosen.items() if name in subject.params}
    return GpuRow(
        run=records.run,
        started_at=record.window.started_at,
        host=machine.hostname or machine.host,
        **identify_device(machine, device),
        origin=record.origin,
        case=where.case.name,
        repeat=where.repeat,
        workload=subject.label,
        params={**subject.params, **sizes},
        config=subject.config or {},
        isolation=next((e.isolation_asked for e in record.evidence if e.role == device), None),
        neighbours=where.concurrent_with(device),
        n=calls,
        quantity=quantity,
        median_us=summary.estimate.value,
        low_us=summary.estimate.low,
        high_us=summary.estimate.high,
        quartiles_us=summary.quartiles,
        mean_us=summary.mean,
        cv=_root_mean_square([float(s.std(ddof=1) / s.mean()) for s in samples if len(s) > 1 and s.mean() > 0]),
        restart_medians_us=tuple(float(np.median(of_process)) for of_process in samples),
        **joules,
        gflop_per_j=facts.flop / 1e9 / joules_per_call if facts and facts.flop and joules_per_call else None,
        power_w=_mean_power_w(record, stats),
        **sensor_fields(stats),
        held_back=stats.throttle_share if stats is not None else {},
        idle_w=idle_w,
    )


@dataclass(frozen=True)
class CaseEffect:
    """One case as a multiple of another, on the same GPUs in the same repeats. Null: not measured, or not reported."""

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
    """Return what contention does in each case that has any, against the same base without it."""
    references = ((case, uncontended_case(case, options.cases)) for case in options.cases)
    return _compare_pairs(options, rows, [(case, other) for case, other in references if other is not None])


def _compare_pairs(
    options: CharacterizeOptions, rows: Sequence[GpuRow], pairs: Sequence[tuple[CharacterizeCase, CharacterizeCase]]
) -> list[CaseEffect]:
    effects = [compare_cases(options, rows, case.name, other.name) for case, other in pairs]
    return [effect for effect in effects if effect is not None]


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

    def placements(case: CharacterizeCase) -> set[Placement]:
        return {part.placement for part in case.noise if part.placement in {"near", "far"}}

    def moved_near(part: NoisePart) -> NoisePart:
        return part.model_copy(update={"placement": "near"}) if part.placement == "far" else part

    return _compare_pairs(
        options,
        rows,
        [
            (far, near)
            for near in options.cases
            for far in options.cases
            if placements(near) == {"near"} and "far" in placements(far)
            if (tuple(map(moved_near, far.noise)), far.base) == (near.noise, near.base)
        ],
    )


def compare_cases(options: CharacterizeOptions, rows: Sequence[GpuRow], case: str, against: str) -> CaseEffect | None:
    """Return one case as a multiple of another; null where no GPU was measured in both in one repeat."""
    over, under = ([row for row in rows if row.case == name] for name in (case, against))
    logs = _log_ratios(over, under, typical_us)
    time = _ratio_estimate(average_units(logs))
    if time is None:
        return None

    def ratio(value: Quantity) -> Estimate | None:
        return _ratio_estimate(average_units(_log_ratios(over, under, value)))

    return CaseEffect(
        case=case,
        against=against,
        time=time,
        energy=ratio(lambda row: row.energy_per_call_j),
        power=ratio(lambda row: row.power_w),
        clock=ratio(lambda row: row.sm_mhz),
        hotter_c=_temperature_difference(over, under),
        gpus=sum(any(value is not None for value in of_gpu) for of_gpu in logs),
        verdict=decide_difference(ratio_over_blocks(average_units(logs)), 0.0, options.minimum_effect),
    )


def _log_ratios(over: Sequence[GpuRow], under: Sequence[GpuRow], value: Quantity) -> list[list[float | None]]:
    """Return for each GPU the logarithm of the ratio in each repeat; null in a repeat that lacks either."""
    uuids = [uuid for uuid in dict.fromkeys(row.uuid for row in over) if any(row.uuid == uuid for row in under)]
    readings = [[values_by_repeat((r for r in side if r.uuid == u), value) for side in (over, under)] for u in uuids]
    repeats = sorted({repeat for one, other in readings for repeat in one if repeat in other})
    if not repeats:
        return []
    return [
        [math.log(one[r] / other[r]) if r in one and r in other else None for r in repeats] for one, other in readings
    ]


def _ratio_estimate(logs: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """Return the ratio over repeats of its logarithm in each."""
    ratio = ratio_over_blocks(logs, confidence)
    if ratio is None:
        return None
    method = f"geometric mean of the ratios in {ratio.blocks} repeats, Student's t on their logarithms"
    estimate = run_estimate((ratio.value, ratio.low, ratio.high), "×", method, ratio.blocks)
    return estimate.model_copy(update={"confidence": confidence})


def _temperature_difference(over: Sequence[GpuRow], under: Sequence[GpuRow]) -> float | None:
    """Return by how many degrees the GPUs were hotter, in the mean over those that have both."""
    means: list[dict[str, float]] = []
    for side in (over, under):
        readings: dict[str, list[float]] = defaultdict(list)
        for row in side:
            if row.temperature_c is not None:
                readings[row.uuid].append(row.temperature_c)
        means.append({uuid: float(np.mean(values)) for uuid, values in readings.items()})
    both = [means[0][uuid] - means[1][uuid] for uuid in means[0] if uuid in means[1]]
    return float(np.mean(both)) if both else None


def model_spreads(options: CharacterizeOptions, rows: Sequence[GpuRow]) -> list[ModelSpread]:
    """Return how unequal the GPUs of each model are in each case in which two or more were measured."""
    models = dict.fromkeys(row.model for row in rows)
    return [
        spread
        for case in options.cases
        for model in models
        if (spread := model_spread(case.name, model, rows, options.minimum_effect)) is not None
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
    logs = [math.log(times[slowest][r] / times[fastest][r]) for r in common]
    pairs = math.comb(len(means), 2)
    confidence = 1 - (1 - CONFIDENCE) / pairs
    ratio = _ratio_estimate(logs, confidence)
    if ratio is None:
        return None
    typical = np.exp(list(means.values()))
    return ModelSpread(
        case=case,
        model=model,
        slowest=gpu_name(devices[slowest]),
        fastest=gpu_name(devices[fastest]),
        ratio=ratio,
        gpus=len(means),
        cv=float(np.std(typical, ddof=1) / np.mean(typical)),
        verdict=decide_difference(ratio_over_blocks(logs, confidence), 0.0, minimum_effect),
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
    """Return the measured case with the least contention, idleness left out; null where there is none."""
    measured = {gpu.case for gpu in study.gpus}
    busy = [case for case in options.cases if not is_idle(case) and case.name in measured]
    return min(busy, key=lambda case: (len(case.noise), case.base.count or len(options.devices)), default=None)
