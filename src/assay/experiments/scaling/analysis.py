"""Analyse the records: each shape's times, speedup, checks, bytes, memory, energy and FLOP/s.

Speedup and efficiency are of a shape against one rank. They are arithmetic on arrays, element by element, so that
intervals follow from it.

    speedup     S = (work / T) / (work₁ / T₁)          efficiency  E = S / ranks
    exposed     T - compute                            overlap     1 - exposed / communication
    Karp–Flatt  (1/S - 1/R) / (1 - 1/R) of one ring of R

Efficiency is the product of five factors:

    T₁ / (R·T) =   shard   ·  contention  ·  balance  ·  exposed  ·  rest

    shard       one rank with 1/R of the sequence, alone, over R, against one rank with all of it
    contention  a rank's share alone, against the same beside its neighbours
    balance     the mean over ranks of computing, against the slowest
    exposed     the slowest computing, against it with the part of the communication that is not hidden
    rest        what neither computing nor the transfers by themselves explain
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.core.results import Estimate, Missing
from assay.experiments.reporting import primary_estimate
from assay.experiments.run.plan import subject_facts
from assay.experiments.scaling.plan import (
    FIRST_REPEAT,
    MATMUL_BLOCK,
    ROLE,
    ScalingShape,
    list_shapes,
    minimum_flop,
    shape_traffic,
    shape_work,
)
from assay.experiments.scaling.prediction import predict_time
from assay.experiments.scaling.timings import (
    EFFICIENCY_FACTORS,
    QUANTITIES,
    build_basis,
    build_number,
    collect_timings,
    missing_interval,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from assay.core.results import Check, SubjectFacts
    from assay.core.values import Subject
    from assay.experiments.scaling.plan import ScalingOptions
    from assay.experiments.scaling.prediction import PredictedTime
    from assay.experiments.scaling.timings import ScalingTimings, ShapeNumbers, ShapeTiming, TimeVectors, TimingBasis
    from assay.machine.model import Machine
    from assay.store.records import Records

    Samples = NDArray[np.float64]


def compute_throughput(total_us: Samples, work: float) -> Samples:
    """Return work a second."""
    return work / (total_us / 1e6)


def compute_speedup(total_us: Samples, work: float, alone_us: Samples, alone_work: float) -> Samples:
    """Return how many times as much work is done in the same time as by one rank."""
    return (work / total_us) / (alone_work / alone_us)


def compute_karp_flatt(ring_speedup: Samples, ring: int) -> Samples:
    """Return the share of the work that is as if it were not shared out, from the speedup of a ring above 1."""
    return (1 / ring_speedup - 1 / ring) / (1 - 1 / ring)


@dataclass(frozen=True, eq=False)
class CommunicationTimes:
    """Microseconds of the three runs of one plan, each of its slowest rank; ``sent``: whether anything is."""

    full_us: Samples
    compute_us: Samples
    communication_us: Samples
    sent: bool

    @classmethod
    def of(cls, times: TimeVectors) -> CommunicationTimes:
        """Return it from what was timed; where nothing is sent, computing is all there is."""
        full = times.slowest["total"]
        if "compute" not in times.slowest:
            return cls(full, full, np.zeros_like(full), sent=False)
        return cls(full, times.slowest["compute"], times.slowest["communication"], sent=True)

    @property
    def exposed_us(self) -> Samples:
        """What the full run takes beyond computing."""
        return self.full_us - self.compute_us

    @property
    def exposed_share(self) -> Samples:
        """The same as a share of the full run."""
        return self.exposed_us / self.full_us

    @property
    def overlap(self) -> Samples:
        """The share of the communication that is hidden behind computing; below 0 where both together take longer."""
        return 1 - self.exposed_us / self.communication_us


@dataclass(frozen=True, eq=False)
class EfficiencyFactors:
    """The factors of efficiency; their product is the efficiency."""

    shard: Samples
    contention: Samples
    balance: Samples
    exposed: Samples
    rest: Samples

    @property
    def product(self) -> Samples:
        """All of them together."""
        return self.shard * self.contention * self.balance * self.exposed * self.rest


def split_efficiency(times: TimeVectors, alone_us: Samples, share_us: Samples, ring: int) -> EfficiencyFactors:
    """Return where the efficiency goes.

    ``alone_us`` is of one rank with all of a ring's work; under weak scaling with as much as one rank of it has, and
    ``ring`` is then 1. ``share_us`` is of one rank, alone, with the last place's share. That place may have more to do
    than others; what an average share would take alone follows from how computing compares side by side.
    """
    runs = CommunicationTimes.of(times)
    name = "compute" if runs.sent else "total"
    mean, last, slowest = times.mean[name], times.last[name], runs.compute_us
    unhidden = np.minimum(np.maximum(runs.exposed_us, 0.0), runs.communication_us)
    return EfficiencyFactors(
        shard=alone_us / (ring * share_us * (mean / last)),
        contention=share_us / last,
        balance=mean / slowest,
        exposed=slowest / (slowest + unhidden),
        rest=(slowest + unhidden) / runs.full_us,
    )


ONE_RANK = Missing(code="one_rank", detail="this is one rank")


def _speedup_numbers(options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape) -> ShapeNumbers:
    """Return the speedup of a shape over one rank, and its efficiency."""
    if shape.world == 1:
        return dict.fromkeys(("speedup", "efficiency", "karp_flatt"), ONE_RANK)
    basis = build_basis(timings.timings_of("ring", shape), timings.timings_of("ring", shape.alone))
    if basis is None:
        missing = timings.missing("ring", shape.alone)
        no_baseline = Missing(code="no_baseline", detail=f"one rank alone was not measured: {missing.detail}")
        return dict.fromkeys(("speedup", "efficiency", "karp_flatt"), no_baseline)
    total, alone = (times.slowest["total"] for times in basis.times)
    speedup = compute_speedup(total, shape_work(options, shape), alone, shape_work(options, shape.alone))
    numbers: ShapeNumbers = {
        "speedup": build_number(basis, "speedup", speedup),
        "efficiency": build_number(basis, "efficiency", speedup / shape.world),
    }
    if options.mode == "weak":
        numbers["karp_flatt"] = Missing(code="weak_scaling", detail="in weak scaling the work grows with the ranks")
    elif not options.is_attention or shape.ring == 1:
        numbers["karp_flatt"] = Missing(code="not_sharded", detail="no sequence is sharded over ranks")
    else:
        numbers["karp_flatt"] = build_number(basis, "karp_flatt", compute_karp_flatt(speedup / shape.rings, shape.ring))
    return numbers


def _factor_numbers(options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape) -> ShapeNumbers:
    """Return the factors of the efficiency."""
    if shape.world == 1:
        return dict.fromkeys(EFFICIENCY_FACTORS, ONE_RANK)
    if not options.is_attention:
        missing = Missing(code="unknown_traffic", detail=f"what {options.subject.label} sends is unknown")
        return dict.fromkeys(EFFICIENCY_FACTORS, missing)
    whole, share = timings.timings_of("ring", shape.alone), ScalingShape(shape.sequence, shape.ring, shape.ring)
    part = timings.timings_of("share", share) if shape.ring > 1 else whole
    basis = build_basis(timings.timings_of("ring", shape), whole, part)
    if basis is None:
        missing = timings.missing("share", share) if whole else timings.missing("ring", shape.alone)
        no_baseline = Missing(code="no_baseline", detail=f"the time of one rank alone is unknown: {missing.detail}")
        return dict.fromkeys(EFFICIENCY_FACTORS, no_baseline)
    times, alone, shared = basis.times
    factors = split_efficiency(
        times,
        alone.slowest["total"],
        shared.slowest["share" if shape.ring > 1 else "total"],
        1 if options.mode == "weak" else shape.ring,
    )
    return {
        name: build_number(basis, name, getattr(factors, name.removeprefix("split_"))) for name in EFFICIENCY_FACTORS
    }


@dataclass(frozen=True)
class RankMemory:
    """Peak memory of one rank, in MiB. Null: not measured, or the device has no such number."""

    rank: int
    device: str
    allocated_mib: float | None
    reserved_mib: float | None
    process_mib: float | None
    device_mib: float | None
    """The most that was in use on its GPU by NVML while the trial was timed."""


@dataclass(frozen=True)
class ShapeFacts:
    """What the workers reported of a shape beside its times. Null: not known.

    Attributes:
        checks: The worst check of each subject over its ranks and repeats, by name.
        received_bytes: Bytes received by all ranks together in one call.
        expected_bytes: The bytes that the algorithm requires.
        flop_inflation: Operations of all ranks together in one call, relative to the minimum.
        memory: Peak memory of each rank.
        energy_per_token: In joules.
        traces: Files of the profiler.
    """

    checks: dict[str, Check]
    received_bytes: float | None
    expected_bytes: float | None
    flop_inflation: float | None
    memory: tuple[RankMemory, ...]
    energy_per_token: Estimate | Missing
    traces: tuple[str, ...]

    @property
    def byte_inflation(self) -> float | None:
        """Bytes received relative to those required; null where unknown, or where nothing is sent."""
        if self.received_bytes is None or not self.expected_bytes:
            return None
        return self.received_bytes / self.expected_bytes


def collect_shape_facts(options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape) -> ShapeFacts:
    """Return the facts of a shape that was measured at least once."""
    shape_timings = list(timings.timings_of("ring", shape).values())
    last = shape_timings[-1]
    total = last.facts("total")
    flop = _sum_all(facts.flop for facts in total.values())
    least = minimum_flop(options, shape) if options.is_attention else None
    return ShapeFacts(
        checks=_worst_checks(shape_timings),
        received_bytes=sum_measured(total.values(), "received_bytes"),
        expected_bytes=sum_measured(total.values(), "expected_received_bytes"),
        flop_inflation=None if flop is None or not least else flop / least,
        memory=tuple(_rank_memory(options, last, rank, facts) for rank, facts in total.items()),
        energy_per_token=_energy_per_token(options, timings, shape),
        traces=tuple(e.trace for timing in shape_timings for e in timing.record.evidence if e.trace),
    )


def _worst_checks(timings: Iterable[ShapeTiming]) -> dict[str, Check]:
    checks: dict[str, list[Check]] = {}
    for timing in timings:
        for name in timing.plan.names:
            checks.setdefault(name, []).extend(f.check for f in timing.facts(name).values() if f.check is not None)
    return {name: max(of_name, key=lambda check: check.error) for name, of_name in checks.items() if of_name}


def sum_measured(all_facts: Iterable[SubjectFacts], name: str) -> float | None:
    """Return the sum over ranks of something they measured; null where any did not, or there is none."""
    return _sum_all((facts.measured or {}).get(name) for facts in all_facts)


def _sum_all(values: Iterable[float | None]) -> float | None:
    """Return the sum; null where any is not known, or there is none."""
    all_values = list(values)
    present = [value for value in all_values if value is not None]
    return sum(present) if present and len(present) == len(all_values) else None


def _rank_memory(options: ScalingOptions, timing: ShapeTiming, rank: int, facts: SubjectFacts) -> RankMemory:
    evidence = next(e for e in timing.record.evidence if e.rank == rank)
    kind, _, number = evidence.device.partition(":")
    during, device_mib = timing.record.during, None
    if kind == "cuda" and during is not None and options.is_here(rank):
        index = int(number.partition("/")[0])
        device_mib = next((gpu.memory_used_mib for gpu in during.gpus if gpu.gpu == index), None)
    measured = facts.measured or {}
    return RankMemory(
        rank=rank,
        device=evidence.device,
        allocated_mib=measured.get("peak_allocated_mib"),
        reserved_mib=measured.get("peak_reserved_mib"),
        process_mib=evidence.peak_memory_mib,
        device_mib=device_mib,
    )


def _energy_per_token(options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape) -> Estimate | Missing:
    """Return the joules per token, from the trial that ran for a while."""
    if not options.energy:
        return Missing(code="not_requested", detail="energy was not measured (use --energy)")
    if not options.is_here(shape.world - 1):
        return Missing(code="remote_ranks", detail="the energy of ranks on other machines is not measured")
    timing = next(iter(timings.timings_of("energy", shape).values()), None)
    if timing is None:
        return timings.missing("energy", shape)
    record = timing.record
    if record.energy is None:
        return record.energy_missing or Missing(code="not_watched", detail="no monitor recorded the trial")
    if record.energy_window == "whole_trial":
        return Missing(code="whole_trial", detail="energy is known only for the whole trial, including start-up")
    work = timing.by_rank["total"].shape[1] * shape_work(options, shape)
    method = f"{QUANTITIES['energy_per_token'].words}: {record.energy_note}; {record.energy.method}"
    return record.energy.scaled("J", over=work).model_copy(update={"method": method})


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
"""TFLOP/s by words of the GPU's name; a name that contains another comes first."""


def find_peak_flop_per_s(name: str, dtype: str) -> float | None:
    """Return the dense peak of one GPU in a precision, by its data sheet; null for unlisted GPUs."""
    words = name.replace("-", " ").split()
    for model, peaks in _PEAKS.items():
        if all(word in words for word in model.split()):
            return next((tera * TERA for dtypes, tera in peaks.items() if dtype in dtypes), None)
    return None


MATMUL_SIDE = {"cuda": 8192, "cpu": 1024}
"""Side of the square matrices: large enough to reach the device's peak rate."""


def build_matmul_subject(subject: Subject, kind: str) -> Subject:
    """Return a large matmul of the same precision."""
    from assay.workloads import registry

    side = str(MATMUL_SIDE[kind])
    params = {"m": side, "n": side, "k": side, "dtype": str(subject.params.get("dtype", "float32"))}
    return registry.resolve_subject("gemm@torch", device_kind=kind, explicit=params)


def measure_matmul_flop_per_s(options: ScalingOptions, records: Records) -> Estimate | Missing:
    """Return the FLOP/s of this run's matmul on one device."""
    record = next((record for record in records if record.block == MATMUL_BLOCK), None)
    if options.matmul is None:
        return Missing(code="not_requested", detail="no matmul was measured in this run (use --references)")
    if record is None:
        return Missing(code="not_measured", detail="the matmul was not measured")
    time_us, facts = primary_estimate(record, ROLE), subject_facts([record], ROLE)
    if record.status != "ok" or time_us is None or facts is None or facts.flop is None:
        return Missing(code="failed", detail=f"the matmul failed: {record.reason or 'no time was measured'}")
    scale = facts.flop * 1e6
    low, high = time_us.low, time_us.high
    return time_us.model_copy(
        update={
            "value": scale / time_us.value,
            "low": None if high is None else scale / high,
            "high": None if low is None else scale / low,
            "unit": "FLOP/s",
            "method": f"{options.matmul.label} of {options.matmul.params['m']}: {time_us.method}",
        }
    )


def find_datasheet_flop_per_s(machine: Machine, options: ScalingOptions) -> Estimate | Missing:
    """Return one device's peak FLOP/s by its data sheet."""
    if options.kind != "cuda":
        return Missing(code="no_datasheet", detail="CPU cores have no data-sheet peak here")
    indices = {int(device.partition(":")[2].partition("/")[0]) for device in options.devices}
    names = sorted({gpu.name for gpu in machine.gpus if gpu.index in indices})
    dtype = str(options.subject.params.get("dtype"))
    peaks = {find_peak_flop_per_s(name, dtype) for name in names}
    if len(peaks) != 1 or (peak := peaks.pop()) is None:
        detail = f"no data-sheet peak is listed for {dtype} on {', '.join(names) or 'these devices'}"
        return Missing(code="no_datasheet", detail=detail)
    return Estimate(value=peak, low=None, high=None, unit="FLOP/s", scope="machine", method="the data sheet", n=1)


PredictionOutcome = Literal["within", "faster", "slower", "unknown"]
"""Where the measured time lies: its interval meets the predicted one, or it lies below or above all of it."""


@dataclass(frozen=True)
class PredictionScore:
    """A prediction and the measurement."""

    shape: ScalingShape
    predicted: PredictedTime
    measured: Estimate | None
    outcome: PredictionOutcome

    @property
    def error(self) -> float | None:
        """Relative error of the predicted value: 0.1 is 10 % too high; null where nothing was measured."""
        if self.measured is None:
            return None
        return self.predicted.time_s.value * 1e6 / self.measured.value - 1


def predict_shape(
    options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape, repeat: int
) -> PredictedTime | None:
    """Return what is predicted before a repeat of a shape, from shares computed alone until then.

    Null without a link, or where no share was measured.
    """
    if options.link is None or not options.is_attention:
        return None
    alone = estimate_compute_alone(timings, shape, repeat)
    return None if alone is None else predict_time(alone, shape_traffic(options, shape), options.link)


def estimate_compute_alone(timings: ScalingTimings, shape: ScalingShape, repeat: int) -> Estimate | None:
    """Return what a rank of a shape computes when it is alone, in seconds, from the repeats until one."""
    share = timings.timings_of("share", ScalingShape(shape.sequence, shape.ring, shape.ring))
    by_repeat = share if shape.ring > 1 else timings.timings_of("ring", shape.alone)
    basis = build_basis({number: timing for number, timing in by_repeat.items() if number <= repeat})
    if basis is None:
        return None
    slowest = basis.times[0].slowest
    values = slowest["share" if shape.ring > 1 else "total"]
    return basis.estimate(values / 1e6, "s", "median time of a share computed alone")


def score_predictions(
    options: ScalingOptions, timings: ScalingTimings, measured: Mapping[ScalingShape, Estimate | None]
) -> tuple[PredictionScore, ...]:
    """Return how the predictions fared that were made before the first repeat of each shape."""
    results = []
    for shape, time in measured.items():
        predicted = predict_shape(options, timings, shape, FIRST_REPEAT)
        if predicted is not None:
            results.append(PredictionScore(shape, predicted, time, judge_prediction(predicted.time_s, time)))
    return tuple(results)


def judge_prediction(predicted_s: Estimate, measured_us: Estimate | None) -> PredictionOutcome:
    """Return where the measured time lies; without intervals the values stand for them."""
    if measured_us is None or predicted_s.low is None or predicted_s.high is None:
        return "unknown"
    low, high = measured_us.bounds or (measured_us.value, measured_us.value)
    if high / 1e6 < predicted_s.low:
        return "faster"
    return "slower" if low / 1e6 > predicted_s.high else "within"


COMMUNICATION_NUMBERS = ("compute", "communication", "exposed", "exposed_share", "overlap")


@dataclass(frozen=True, eq=False)
class AnalysedShape:
    """One shape: its numbers by name, and what its ranks reported beside their times.

    ``status`` is that of its records, null where it was never tried; ``facts`` are null where it was not measured.
    """

    shape: ScalingShape
    numbers: ShapeNumbers
    facts: ShapeFacts | None
    status: str | None

    def __getitem__(self, name: str) -> Estimate | None:
        number = self.numbers[name]
        return number if isinstance(number, Estimate) else None

    def missing_reason(self, name: str) -> str | None:
        """Return why there is no number of that name, or no interval of it; null where there are both."""
        number = self.numbers[name]
        return number.detail if isinstance(number, Missing) else missing_interval(number)

    @property
    def is_failed(self) -> bool:
        """Whether it was tried and never measured."""
        return self.status not in {"ok", None}


@dataclass(frozen=True, eq=False)
class ScalingAnalysis:
    """Every requested shape, those of one rank apart; and how good the predictions were."""

    timings: ScalingTimings
    alone: tuple[AnalysedShape, ...]
    scaled: tuple[AnalysedShape, ...]
    scores: tuple[PredictionScore, ...]

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
        return tuple(shape for shape in self.scaled if shape["efficiency"] is not None)


def analyse_scaling(machine: Machine, options: ScalingOptions, records: Records) -> ScalingAnalysis:
    """Compute the numbers of every shape."""
    timings = collect_timings(options, records)
    peaks: ShapeNumbers = {
        "mfu_datasheet": find_datasheet_flop_per_s(machine, options),
        "mfu_matmul": measure_matmul_flop_per_s(options, records),
    }

    def analyse(shapes: Iterable[ScalingShape]) -> tuple[AnalysedShape, ...]:
        return tuple(_analyse_shape(options, timings, shape, peaks) for shape in shapes)

    scaled = analyse(list_shapes(options))
    return ScalingAnalysis(
        timings=timings,
        alone=analyse(ScalingShape(length, 1, 1) for length in options.lengths),
        scaled=scaled,
        scores=score_predictions(options, timings, {result.shape: result["time"] for result in scaled}),
    )


def _analyse_shape(
    options: ScalingOptions, timings: ScalingTimings, shape: ScalingShape, peaks: ShapeNumbers
) -> AnalysedShape:
    status, basis = timings.status("ring", shape), build_basis(timings.timings_of("ring", shape))
    if basis is None:
        return AnalysedShape(shape, dict.fromkeys(QUANTITIES, timings.missing("ring", shape)), None, status)
    facts = collect_shape_facts(options, timings, shape)
    numbers = {
        **_time_numbers(options, basis, shape),
        **_arithmetic_numbers(options, basis, shape, peaks),
        **_speedup_numbers(options, timings, shape),
        **_factor_numbers(options, timings, shape),
        "energy_per_token": facts.energy_per_token,
    }
    return AnalysedShape(shape, numbers, facts, status)


def _time_numbers(options: ScalingOptions, basis: TimingBasis, shape: ScalingShape) -> ShapeNumbers:
    slowest = basis.times[0].slowest
    total = slowest["total"]
    numbers: ShapeNumbers = {
        "time": build_number(basis, "time", total),
        "throughput": build_number(basis, "throughput", compute_throughput(total, shape_work(options, shape))),
    }
    if "forward" not in slowest:
        detail = f"{options.subject.label} has no passes, and what it sends is unknown"
        missing = Missing(code="unknown_traffic", detail=detail)
        return {**numbers, **dict.fromkeys(("forward", "backward", *COMMUNICATION_NUMBERS), missing)}
    numbers["forward"] = build_number(basis, "forward", slowest["forward"])
    numbers["backward"] = build_number(basis, "backward", total - slowest["forward"])
    runs = CommunicationTimes.of(basis.times[0])
    if not runs.sent:
        why = "every segment lies within a shard" if shape.ring > 1 else "each rank has whole sequences"
        missing = Missing(code="nothing_sent", detail=f"nothing is sent: {why}")
        return {**numbers, **dict.fromkeys(COMMUNICATION_NUMBERS, missing)}
    vectors = (runs.compute_us, runs.communication_us, runs.exposed_us, runs.exposed_share, runs.overlap)
    pairs = zip(COMMUNICATION_NUMBERS, vectors, strict=True)
    return {**numbers, **{name: build_number(basis, name, vector) for name, vector in pairs}}


def _arithmetic_numbers(
    options: ScalingOptions, basis: TimingBasis, shape: ScalingShape, peaks: ShapeNumbers
) -> ShapeNumbers:
    if not options.is_attention:
        missing = Missing(code="not_counted", detail=f"operations are not counted for {options.subject.label}")
        return dict.fromkeys(("tflops", *peaks), missing)
    rate = minimum_flop(options, shape) / (basis.times[0].slowest["total"] / 1e6)
    shares: ShapeNumbers = {
        name: peak if isinstance(peak, Missing) else build_number(basis, name, 100 * rate / (shape.world * peak.value))
        for name, peak in peaks.items()
    }
    return {"tflops": build_number(basis, "tflops", rate / 1e12), **shares}
