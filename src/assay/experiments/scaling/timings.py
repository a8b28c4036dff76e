"""The measured times by shape and repeat, the vectors that every number is computed from, and the numbers by name.

With one repeat, the first element of a vector is the measured value and the others are bootstrap draws; with several
repeats there is one element per repeat. Arithmetic on vectors, element by element, gives a number with its interval.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from assay.core.results import NO_INTERVAL, Estimate, Missing
from assay.experiments.scaling.plan import plan_trials
from assay.stats import intervals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Record, SubjectFacts, Verdict
    from assay.experiments.scaling.plan import PlannedTrial, ScalingOptions, ScalingShape, TrialKind
    from assay.store.records import Records

    Samples = NDArray[np.float64]


TIME_QUANTITY = "call_us"


@dataclass(frozen=True, eq=False)
class ShapeTiming:
    """One completed trial: microseconds of each subject by name, one row per rank and one column per iteration."""

    plan: PlannedTrial
    record: Record
    by_rank: dict[str, Samples]

    @property
    def seed(self) -> int:
        """A seed for resampling that depends on the measurement alone, not on how its fields are named."""
        return zlib.crc32(f"{self.record.window.boot_id} {self.record.window.start_ns}".encode())

    def facts(self, name: str) -> dict[int, SubjectFacts]:
        """Return what each rank reported about a subject, by rank."""
        number = self.plan.names.index(name)
        return {e.rank: f for e in self.record.evidence for f in e.subjects if f.subject == number}


@dataclass(frozen=True, eq=False)
class ScalingTimings:
    """Every attempted trial, and the completed ones with their samples."""

    attempts: tuple[tuple[PlannedTrial, Record], ...]
    completed: tuple[ShapeTiming, ...]

    def timings_of(self, kind: TrialKind, shape: ScalingShape) -> dict[int, ShapeTiming]:
        """Return the completed trials of a shape, by repeat."""
        return {t.plan.repeat: t for t in self.completed if (t.plan.kind, t.plan.shape) == (kind, shape)}

    def missing(self, kind: TrialKind, shape: ScalingShape) -> Missing:
        """Return why a shape has no samples."""
        failed = [r for p, r in self.attempts if (p.kind, p.shape) == (kind, shape) and r.status != "ok"]
        if not failed:
            return Missing(code="not_measured", detail="it was not measured")
        return Missing(code=failed[-1].status, detail=failed[-1].reason or "no reason was recorded")

    def status(self, kind: TrialKind, shape: ScalingShape) -> str | None:
        """Return the final status of a shape; null where it was never tried."""
        states = [r.status for p, r in self.attempts if (p.kind, p.shape) == (kind, shape)]
        return "ok" if "ok" in states else states[-1] if states else None

    def trials(self, *shapes: ScalingShape) -> tuple[str, ...]:
        """Return the trials of some shapes, including those of their shares."""
        return tuple(r.trial for p, r in self.attempts if p.shape in shapes and p.kind in {"ring", "share"})


def collect_timings(options: ScalingOptions, records: Records) -> ScalingTimings:
    """Return the samples of the records, by shape and repeat."""
    plans = {planned_trial.trial.id: planned_trial for planned_trial in plan_trials(options)}
    tried = tuple((plans[record.trial], record) for record in records if record.trial in plans)
    timings = (_build_timing(plan, record, records) for plan, record in tried if record.status == "ok")
    return ScalingTimings(tried, tuple(timing for timing in timings if timing.by_rank))


def _build_timing(plan: PlannedTrial, record: Record, records: Records) -> ShapeTiming:
    rows: dict[str, list[Samples]] = {}
    for number, name in enumerate(plan.names):
        series = sorted(
            (s for s in record.series if (s.subject, s.quantity) == (number, TIME_QUANTITY)), key=lambda s: s.rank
        )
        rows[name] = [records.samples(s) for s in series]
    common = min((len(row) for rank_rows in rows.values() for row in rank_rows), default=0)
    whole = common and all(len(rank_rows) == plan.trial.roles[0].ranks for rank_rows in rows.values())
    by_rank = {name: np.array([row[:common] for row in rank_rows]) for name, rank_rows in rows.items()} if whole else {}
    return ShapeTiming(plan, record, by_rank)


@dataclass(frozen=True, eq=False)
class TimeVectors:
    """Microseconds of a trial, of each subject by name: medians over iterations.

    Attributes:
        slowest: Of the slowest rank of each iteration.
        mean: Of the mean over ranks.
        last: Of the last positions of rings, which compute the most with a causal mask.
    """

    slowest: dict[str, Samples]
    mean: dict[str, Samples]
    last: dict[str, Samples]


@dataclass(frozen=True, eq=False)
class TimingBasis:
    """The times of some trials, in the repeats that have all of them."""

    times: tuple[TimeVectors, ...]
    repeats: tuple[int, ...]
    samples: int
    no_interval_reason: str | None

    def estimate(self, values: Samples, unit: str, what: str) -> Estimate | None:
        """Return a number with its interval, or without one and why; null where it is not finite."""
        if not np.isfinite(values[0] if len(self.repeats) == 1 else values).all():
            return None
        if len(self.repeats) > 1:
            centre, low, high = intervals.repeats_interval(values)
            how = f"{what}; mean of {len(values)} repeats, each started afresh, Student's t"
            return Estimate(value=centre, low=low, high=high, unit=unit, scope="run", method=how, n=self.samples)
        interval = intervals.draws_interval(values) if self.no_interval_reason is None else None
        how = f"{what}; bootstrap over iterations of one start, which says nothing about the next start"
        if interval is None:
            how = f"{what}{NO_INTERVAL}{self.no_interval_reason or 'some bootstrap draws are not finite'}"
        value, ends = float(values[0]), interval or (None, None)
        return Estimate(value=value, low=ends[0], high=ends[1], unit=unit, scope="process", method=how, n=self.samples)


def build_basis(*several: Mapping[int, ShapeTiming]) -> TimingBasis | None:
    """Return the times of several trials of each repeat; null where no repeat has all of them."""
    repeats = sorted(set.intersection(*map(set, several)))
    if not repeats:
        return None
    chosen = [[timings[repeat] for repeat in repeats] for timings in several]
    refusals: list[str | None] = []
    if len(repeats) == 1:
        refusals = [intervals.explain_no_process_interval(_deciding_samples(only)) for (only,) in chosen]
    return TimingBasis(
        times=tuple(_reduce_timings(timings) for timings in chosen),
        repeats=tuple(repeats),
        samples=sum(_deciding_samples(timing).size for timing in chosen[0]),
        no_interval_reason=next((reason for reason in refusals if reason is not None), None),
    )


def reduce_ranks(timing: ShapeTiming, name: str) -> dict[str, Samples]:
    """Return, per iteration: the slowest rank, the mean of all ranks, and the mean of the last positions of rings."""
    rows = timing.by_rank[name]
    ring = timing.plan.shape.ring if timing.plan.kind == "ring" else 1
    return {"slowest": rows.max(axis=0), "mean": rows.mean(axis=0), "last": rows[ring - 1 :: ring].mean(axis=0)}


def _deciding_samples(timing: ShapeTiming) -> Samples:
    """Return the samples that decide whether there can be an interval."""
    name = "total" if "total" in timing.by_rank else next(iter(timing.by_rank))
    return reduce_ranks(timing, name)["slowest"]


def _reduce_timings(timings: Sequence[ShapeTiming]) -> TimeVectors:
    """Return the median of each repeat; of a single one its median, and those of its bootstrap draws."""
    first = timings[0]
    draws = intervals.draw_indices(_deciding_samples(first), first.seed) if len(timings) == 1 else None
    reduced = [{name: reduce_ranks(timing, name) for name in first.by_rank} for timing in timings]

    def medians(name: str, part: str) -> Samples:
        if draws is not None:
            return intervals.medians_of_draws(reduced[0][name][part], draws)
        return np.array([float(np.median(by_name[name][part])) for by_name in reduced])

    return TimeVectors(*({name: medians(name, part) for name in first.by_rank} for part in ("slowest", "mean", "last")))


class ScalingQuantity(NamedTuple):
    """What a number is of, in words, and its unit."""

    words: str
    unit: str


QUANTITIES: dict[str, ScalingQuantity] = {
    "time": ScalingQuantity("median time of a call on its slowest rank, forward and backward", "µs"),
    "forward": ScalingQuantity("median time of the forward pass on its slowest rank", "µs"),
    "backward": ScalingQuantity("time of both passes minus that of the forward pass", "µs"),
    "throughput": ScalingQuantity("work of all ranks per second", "/s"),
    "speedup": ScalingQuantity("throughput relative to one rank", "×"),
    "efficiency": ScalingQuantity("speedup per rank", ""),
    "karp_flatt": ScalingQuantity("serial fraction of a ring's work (Karp–Flatt)", ""),
    "compute": ScalingQuantity("median time of computation alone on its slowest rank", "µs"),
    "communication": ScalingQuantity("median time of the transfers alone on their slowest rank", "µs"),
    "exposed": ScalingQuantity("exposed communication: time beyond computation alone", "µs"),
    "exposed_share": ScalingQuantity("exposed communication as a share of the time", ""),
    "overlap": ScalingQuantity("share of the communication that overlaps computation", ""),
    "split_shard": ScalingQuantity("efficiency of a shard computed alone, relative to the whole sequence", ""),
    "split_contention": ScalingQuantity("a shard computed alone, relative to the same beside other ranks", ""),
    "split_balance": ScalingQuantity("mean computation time relative to the slowest rank's", ""),
    "split_exposed": ScalingQuantity("computation relative to computation and exposed transfers", ""),
    "split_rest": ScalingQuantity("computation and exposed transfers relative to the time", ""),
    "tflops": ScalingQuantity("minimum floating-point operations per second, all ranks", "TFLOP/s"),
    "mfu_datasheet": ScalingQuantity("minimum FLOP/s as a share of the data sheet's peak", "%"),
    "mfu_matmul": ScalingQuantity("minimum FLOP/s as a share of what a matmul reached in this run", "%"),
    "energy_per_token": ScalingQuantity("energy of the devices per token", "J"),
}
"""Every number of a shape; the factors of efficiency have ``split_`` before their names."""

EFFICIENCY_FACTORS = {
    "split_shard": "smaller shards",
    "split_contention": "contention",
    "split_balance": "load imbalance",
    "split_exposed": "exposed communication",
    "split_rest": "other effects",
}
"""The factors of efficiency, and the cause of each loss in a word or two."""

ShapeNumbers = dict[str, Estimate | Missing]
"""Estimates by name; where there is none, why."""


def build_number(basis: TimingBasis, name: str, values: Samples) -> Estimate | Missing:
    """Return the number of that name, computed from its vector."""
    quantity = QUANTITIES[name]
    estimate = basis.estimate(values, quantity.unit, quantity.words)
    return estimate or Missing(code="not_finite", detail="the measured times give no finite number")


def is_over_starts(estimate: Estimate) -> bool:
    """Return whether it has an interval over several starts."""
    return estimate.bounds is not None and estimate.scope == "run"


def missing_interval(estimate: Estimate) -> str | None:
    """Return why an estimate has no interval; null where it has one."""
    return None if estimate.bounds is not None else f"no interval: {estimate.method.partition(NO_INTERVAL)[2]}"


def judge_at_least(estimate: Estimate | None, edge: float) -> Verdict:
    """Return whether a number is at least ``edge``; unsure without an interval, or where it contains the edge."""
    if estimate is None or estimate.bounds is None:
        return "unsure"
    low, high = estimate.bounds
    return "no" if high < edge else "yes" if low >= edge else "unsure"
