"""Analyse the records: every shape's times, checks, bytes, memory, FLOP/s (against data sheet, matmul), energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.results import Estimate
from assay.experiments.estimates import primary_estimate
from assay.experiments.run.plan import subject_facts
from assay.experiments.scaling.estimates import QUANTITIES, ScalingNumber, build_number
from assay.experiments.scaling.forecast import score_predictions
from assay.experiments.scaling.plan import (
    MATMUL_BLOCK,
    ROLE,
    ScalingShape,
    list_shapes,
    minimum_flop,
    sequence_lengths,
    shape_work,
)
from assay.experiments.scaling.speedup import CommunicationTimes, compare_with_one_rank, compute_throughput
from assay.experiments.scaling.timings import build_basis, collect_timings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.plan import Subject
    from assay.core.results import Check, Record, SubjectFacts
    from assay.experiments.scaling.forecast import PredictionScore
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.timings import ScalingTimings, ShapeTiming, TimingBasis
    from assay.machine.model import Machine
    from assay.store.records import Records


@dataclass(frozen=True)
class RankMemory:
    """The most that one rank held, in MiB. Null: not measured, or there is no such thing."""

    rank: int
    device: str
    allocated_mib: float | None
    reserved_mib: float | None
    process_mib: float | None
    device_mib: float | None


@dataclass(frozen=True)
class ShapeFacts:
    """What is known of a shape beside its times. Null: not known.

    Attributes:
        checks: The worst check of each subject over its ranks and repeats, by name.
        received_bytes: What all ranks together received in one call.
        expected_bytes: What the formula says they must.
        flop: What all ranks together computed in one call.
        flop_inflation: The same over the least there is.
        memory: Of each rank.
        energy_per_token: In joules.
        backends: Which libraries did the work.
        traces: Files of the profiler.
    """

    checks: dict[str, Check]
    received_bytes: float | None
    expected_bytes: float | None
    flop: float | None
    flop_inflation: float | None
    memory: tuple[RankMemory, ...]
    energy_per_token: ScalingNumber
    backends: tuple[str, ...]
    traces: tuple[str, ...]

    @property
    def byte_inflation(self) -> float | None:
        """Received over least bytes; null where they are not known or nothing need be sent."""
        if self.received_bytes is None or not self.expected_bytes:
            return None
        return self.received_bytes / self.expected_bytes


def collect_shape_facts(options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape) -> ShapeFacts:
    """Return what is known of a shape that came off at least once."""
    shape_timings = list(timings.timings_of("ring", shape).values())
    last = shape_timings[-1]
    total = last.facts("total")
    flop = _sum_all(facts.flop for facts in total.values())
    least = minimum_flop(options, shape) if options.is_attention else None
    return ShapeFacts(
        checks=_worst_checks(shape_timings),
        received_bytes=_sum_all(_measured_value(facts, "received_bytes") for facts in total.values()),
        expected_bytes=_sum_all(_measured_value(facts, "expected_received_bytes") for facts in total.values()),
        flop=flop,
        flop_inflation=None if flop is None or not least else flop / least,
        memory=tuple(_rank_memory(options, last, rank, facts) for rank, facts in total.items()),
        energy_per_token=_energy_per_token(options, timings, shape),
        backends=tuple(dict.fromkeys(facts.backend for facts in total.values() if facts.backend)),
        traces=tuple(e.trace for timing in shape_timings for e in timing.record.evidence if e.trace),
    )


def _worst_checks(timings: Iterable[ShapeTiming]) -> dict[str, Check]:
    checks: dict[str, Check] = {}
    for timing in timings:
        for name in timing.plan.names:
            for facts in timing.facts(name).values():
                worst = checks.get(name)
                if facts.check is not None and (worst is None or facts.check.error > worst.error):
                    checks[name] = facts.check
    return checks


def _measured_value(facts: SubjectFacts, name: str) -> float | None:
    return None if facts.measured is None else facts.measured.get(name)


def _sum_all(values: Iterable[float | None]) -> float | None:
    """Return the sum; null where any is not known, or there is none."""
    all_values = list(values)
    present = [value for value in all_values if value is not None]
    return sum(present) if present and len(present) == len(all_values) else None


def _rank_memory(options: ScalingOptions, timing: ShapeTiming, rank: int, facts: SubjectFacts) -> RankMemory:
    evidence = next(e for e in timing.record.evidence if e.rank == rank)
    return RankMemory(
        rank=rank,
        device=evidence.device,
        allocated_mib=_measured_value(facts, "peak_allocated_mib"),
        reserved_mib=_measured_value(facts, "peak_reserved_mib"),
        process_mib=evidence.peak_memory_mib,
        device_mib=_device_memory_mib(timing.record, evidence.device) if options.is_here(rank) else None,
    )


def _device_memory_mib(record: Record, device: str) -> float | None:
    """Return the most that NVML saw in use on a GPU while the trial was timed."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or record.during is None:
        return None
    index = int(number.partition("/")[0])
    return next((gpu_stats.memory_used_mib for gpu_stats in record.during.gpus if gpu_stats.gpu == index), None)


def _energy_per_token(options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape) -> ScalingNumber:
    """Return the joules of one token, from the trial that ran for a while."""
    if not options.energy:
        return ScalingNumber(reason="energy was not metered (--energy does)")
    if not options.is_here(shape.world - 1):
        return ScalingNumber(reason="ranks on other machines are not metered")
    timing = next(iter(timings.timings_of("energy", shape).values()), None)
    if timing is None:
        return ScalingNumber(reason=timings.missing_reason("energy", shape))
    record = timing.record
    energy = record.energy
    if energy is None:
        reason = "no monitor watched" if record.energy_missing is None else record.energy_missing.detail
        return ScalingNumber(reason=f"no energy: {reason}")
    if record.energy_window == "whole_trial":
        return ScalingNumber(reason="energy is known only of the whole trial, start-up included")
    calls = timing.by_rank["total"].shape[1]
    work = calls * shape_work(options, shape)
    scaled = {
        "value": energy.value / work,
        "low": None if energy.low is None else energy.low / work,
        "high": None if energy.high is None else energy.high / work,
        "unit": "J",
        "method": f"{QUANTITIES['energy_per_token'].words}: {record.energy_note}; {energy.method}",
    }
    return ScalingNumber(energy.model_copy(update=scaled))


TERA = 1e12

_HALF, _SINGLE, _DOUBLE = ("bfloat16", "float16"), ("float32",), ("float64",)
_PEAKS: dict[str, dict[tuple[str, ...], float]] = {
    "B200": {_HALF: 2250.0, _SINGLE: 75.0, _DOUBLE: 37.0},
    "H200 NVL": {_HALF: 835.5, _SINGLE: 60.0, _DOUBLE: 60.0},
    "H200": {_HALF: 989.4, _SINGLE: 66.9, _DOUBLE: 66.9},
    "H100 NVL": {_HALF: 835.5, _SINGLE: 60.0, _DOUBLE: 60.0},
    "H100 PCIe": {_HALF: 756.0, _SINGLE: 51.2, _DOUBLE: 51.2},
    "H100": {_HALF: 989.4, _SINGLE: 66.9, _DOUBLE: 66.9},
    "A100": {_HALF: 312.0, _SINGLE: 19.5, _DOUBLE: 19.5},
    "L40S": {_HALF: 362.0, _SINGLE: 91.6},
    "L4": {_HALF: 121.0, _SINGLE: 30.3},
    "A10": {_HALF: 125.0, _SINGLE: 31.2},
    "V100": {("float16",): 125.0, _SINGLE: 15.7, _DOUBLE: 7.8},
    "T4": {("float16",): 65.0, _SINGLE: 8.1},
}
"""TFLOP/s by a part of the GPU's name, the longer names first where one holds another."""


def find_peak_flop_per_s(name: str, dtype: str) -> float | None:
    """Return what one GPU of that name does at most in a precision; null where its data sheet is not known here."""
    words = name.replace("-", " ").split()
    for model, peaks in _PEAKS.items():
        if all(word in words for word in model.split()):
            return next((tera * TERA for dtypes, tera in peaks.items() if dtype in dtypes), None)
    return None


MATMUL_SIDE = {"cuda": 8192, "cpu": 1024}
"""Of the square matrices that are multiplied: large enough for the device to reach what it can."""


def build_matmul_subject(subject: Subject, kind: str) -> Subject:
    """Return a large matmul of the same precision."""
    from assay.workloads import registry

    side = str(MATMUL_SIDE[kind])
    params = {"m": side, "n": side, "k": side, "dtype": str(subject.params.get("dtype", "float32"))}
    return registry.resolve_subject("gemm@torch", device_kind=kind, explicit=params)


def measure_matmul_flop_per_s(options: ScalingOptions, records: Records) -> ScalingNumber:
    """Return what the matmul of this run reached on one device."""
    if options.matmul is None:
        return ScalingNumber(reason="no matmul was measured in this run (--references measures one)")
    for record in records:
        if record.block != MATMUL_BLOCK:
            continue
        time_us, facts = primary_estimate(record, ROLE), subject_facts([record], ROLE)
        if record.status != "ok" or time_us is None or facts is None or facts.flop is None:
            return ScalingNumber(reason=f"the matmul could not be measured: {record.reason or 'no time was taken'}")
        scale = facts.flop * 1e6
        low, high = time_us.low, time_us.high
        return ScalingNumber(
            time_us.model_copy(
                update={
                    "value": scale / time_us.value,
                    "low": None if high is None else scale / high,
                    "high": None if low is None else scale / low,
                    "unit": "FLOP/s",
                    "method": f"{options.matmul.label} of {options.matmul.params['m']}: {time_us.method}",
                }
            )
        )
    return ScalingNumber(reason="the matmul was not measured")


def find_datasheet_flop_per_s(machine: Machine, options: ScalingOptions) -> ScalingNumber:
    """Return what the data sheet says of one device, or why that is not known."""
    if options.kind != "cuda":
        return ScalingNumber(reason="there is no data sheet of a group of cores here")
    indices = {int(device.partition(":")[2].partition("/")[0]) for device in options.devices}
    names = sorted({gpu.name for gpu in machine.gpus if gpu.index in indices})
    dtype = str(options.subject.params.get("dtype"))
    peaks = {find_peak_flop_per_s(name, dtype) for name in names}
    if len(peaks) != 1 or (peak := peaks.pop()) is None:
        return ScalingNumber(reason=f"no data sheet is known here of {dtype} on {', '.join(names) or 'these devices'}")
    return ScalingNumber(
        Estimate(value=peak, low=None, high=None, unit="FLOP/s", scope="machine", method="the data sheet", n=1)
    )


FlopCeilings = dict[str, ScalingNumber]
"""Operations a second of one device at most, or why that is not known, by what it is held against."""

COMMUNICATION_NUMBERS = ("compute", "communication", "exposed", "exposed_share", "overlap")


@dataclass(frozen=True, eq=False)
class AnalysedShape:
    """One shape: its numbers by name, and what its ranks found out beside their times.

    ``status`` is that of its records, null where it was never tried; ``reason`` says why there are no numbers.
    """

    shape: ScalingShape
    numbers: dict[str, ScalingNumber]
    facts: ShapeFacts | None
    status: str | None
    reason: str | None = None

    def __getitem__(self, name: str) -> ScalingNumber:
        return self.numbers[name]


@dataclass(frozen=True, eq=False)
class ScalingAnalysis:
    """Every shape that was asked for, those of one rank apart; and how the predictions fared."""

    timings: ScalingTimings
    alone: tuple[AnalysedShape, ...]
    scaled: tuple[AnalysedShape, ...]
    scores: tuple[PredictionScore, ...]
    matmul: ScalingNumber

    @property
    def all(self) -> tuple[AnalysedShape, ...]:
        """Every shape, one rank before several at each sequence."""
        return tuple(
            shape
            for first in self.alone
            for shape in (first, *(s for s in self.scaled if s.shape.sequence == first.shape.sequence))
        )

    @property
    def measured(self) -> tuple[AnalysedShape, ...]:
        """Those of several ranks that have an efficiency."""
        return tuple(shape for shape in self.scaled if shape["efficiency"].estimate is not None)


def analyse_scaling(machine: Machine, options: ScalingOptions, records: Records) -> ScalingAnalysis:
    """Look at the records from every side."""
    timings = collect_timings(options, records)
    matmul = measure_matmul_flop_per_s(options, records)
    ceilings = {"mfu_datasheet": find_datasheet_flop_per_s(machine, options), "mfu_matmul": matmul}
    analysed = tuple(_analyse_shape(options, timings, shape, ceilings) for shape in list_shapes(options))
    return ScalingAnalysis(
        timings=timings,
        alone=tuple(
            _analyse_shape(options, timings, ScalingShape(length, 1, 1), ceilings)
            for length in sequence_lengths(options)
        ),
        scaled=analysed,
        scores=score_predictions(options, timings, {result.shape: result["time"] for result in analysed}),
        matmul=matmul,
    )


def _analyse_shape(
    options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape, ceilings: FlopCeilings
) -> AnalysedShape:
    status, basis = timings.status("ring", shape), build_basis(timings.timings_of("ring", shape))
    if basis is None:
        reason = timings.missing_reason("ring", shape)
        return AnalysedShape(shape, dict.fromkeys(QUANTITIES, ScalingNumber(reason=reason)), None, status, reason)
    facts = collect_shape_facts(options, timings, shape)
    numbers = {
        **_time_numbers(options, basis, shape),
        **_arithmetic_numbers(options, basis, shape, ceilings),
        **compare_with_one_rank(options, timings, shape),
        "energy_per_token": facts.energy_per_token,
    }
    return AnalysedShape(shape, numbers, facts, status)


def _time_numbers(options: ScalingOptions, basis: TimingBasis, shape: ScalingShape) -> dict[str, ScalingNumber]:
    slowest = basis.times[0].slowest
    total = slowest["total"]
    numbers = {
        "time": build_number(basis, "time", total),
        "throughput": build_number(basis, "throughput", compute_throughput(total, shape_work(options, shape))),
    }
    if "forward" not in slowest:
        silent = ScalingNumber(reason=f"{options.subject.label} has no passes, and what it sends is not known")
        return {**numbers, **dict.fromkeys(("forward", "backward", *COMMUNICATION_NUMBERS), silent)}
    numbers["forward"] = build_number(basis, "forward", slowest["forward"])
    numbers["backward"] = build_number(basis, "backward", total - slowest["forward"])
    runs = CommunicationTimes.of(basis.times[0])
    if not runs.sent:
        why = "every segment lies within a shard" if shape.ring > 1 else "each rank has whole sequences"
        return {**numbers, **dict.fromkeys(COMMUNICATION_NUMBERS, ScalingNumber(reason=f"nothing is sent: {why}"))}
    return {
        **numbers,
        "compute": build_number(basis, "compute", runs.compute_us),
        "communication": build_number(basis, "communication", runs.communication_us),
        "exposed": build_number(basis, "exposed", runs.exposed_us),
        "exposed_share": build_number(basis, "exposed_share", runs.exposed_share),
        "overlap": build_number(basis, "overlap", runs.overlap),
    }


def _arithmetic_numbers(
    options: ScalingOptions, basis: TimingBasis, shape: ScalingShape, ceilings: FlopCeilings
) -> dict[str, ScalingNumber]:
    if not options.is_attention:
        return dict.fromkeys(("tflops", *ceilings), ScalingNumber(reason="its operations are not counted here"))
    rate = minimum_flop(options, shape) / (basis.times[0].slowest["total"] / 1e6)
    shares = {
        name: ceiling
        if ceiling.value is None
        else build_number(basis, name, 100 * rate / (shape.world * ceiling.value))
        for name, ceiling in ceilings.items()
    }
    return {"tflops": build_number(basis, "tflops", rate / 1e12), **shares}
