"""What the records of single shares predict for whole rings, cell by cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.scaling.memory import memory_mib
from assay.experiments.scaling.prediction import efficiency, predict, speedup, traffic_of
from assay.experiments.scaling_prediction.plan import ROLE, baseline_of, cells, problem_of, trial_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Estimate, Record
    from assay.experiments.scaling.prediction import Predicted, Traffic
    from assay.experiments.scaling_prediction.options import PredictionOptions
    from assay.experiments.scaling_prediction.plan import Cell

QUANTITY = "call_us"


@dataclass(frozen=True)
class Forecast:
    """What is predicted of one cell; null where what it takes was not measured, for ``reason``.

    Attributes:
        cell: The question.
        shard: Positions that each GPU has.
        traffic: What reaches the busiest GPU in one call.
        time: What a call takes.
        speedup: Against one GPU, in strong scaling.
        efficiency: Against one GPU.
        memory_mib: What a GPU holds, by the model.
        peak_mib: What the allocator's peak was where the share was measured; null on a CPU.
        reason: Why something is missing.
        records: The trials it rests on.
    """

    cell: Cell
    shard: int
    traffic: Traffic
    time: Predicted | None
    speedup: Estimate | None
    efficiency: Estimate | None
    memory_mib: Estimate
    peak_mib: float | None
    reason: str | None
    records: tuple[str, ...]


def forecasts(options: PredictionOptions, records: Iterable[Record]) -> tuple[Forecast, ...]:
    """Return what is predicted of every cell that keeps the rules."""
    by_trial = {record.trial: record for record in records}
    return tuple(_forecast(options, cell, by_trial) for cell in cells(options))


def _forecast(options: PredictionOptions, cell: Cell, records: dict[str, Record]) -> Forecast:
    problem, weak = problem_of(options, cell), options.mode == "weak"
    trial, first = trial_of(options, cell).id, trial_of(options, baseline_of(cell)).id
    share, alone = _seconds(records.get(trial)), _seconds(records.get(first))
    traffic = traffic_of(problem.costs, cell.gpus, backward=problem.backward)
    time = predict(share, traffic, options.link) if share is not None else None
    gained, used = None, None
    if time is not None and alone is not None:
        gained = None if weak else speedup(alone, time.time_s)
        used = efficiency(alone, time.time_s, 1 if weak else cell.gpus)
    return Forecast(
        cell=cell,
        shard=problem.shard,
        traffic=traffic,
        time=time,
        speedup=gained,
        efficiency=used,
        memory_mib=memory_mib(problem.costs, cell.gpus, backward=problem.backward),
        peak_mib=_peak_mib(records.get(trial)),
        reason=_reason(records, trial, first),
        records=tuple(dict.fromkeys(name for name in (first, trial) if name in records)),
    )


def _seconds(record: Record | None) -> Estimate | None:
    """Return the median time of a call, in seconds; null where it was not measured."""
    if record is None or record.status != "ok":
        return None
    estimate = next((s.estimate for s in record.estimates if (s.role, s.quantity) == (ROLE, QUANTITY)), None)
    if estimate is None:
        return None
    ends = (estimate.value, estimate.low, estimate.high)
    value, low, high = (None if end is None else end / 1e6 for end in ends)
    return estimate.model_copy(update={"value": value, "low": low, "high": high, "unit": "s"})


def _peak_mib(record: Record | None) -> float | None:
    measured = (
        [facts.measured for evidence in record.evidence for facts in evidence.subjects] if record is not None else []
    )
    return max((m["peak_allocated_mib"] for m in measured if m and "peak_allocated_mib" in m), default=None)


def _reason(records: dict[str, Record], trial: str, first: str) -> str | None:
    for what, trial_id in (("its share", trial), ("one GPU alone", first)):
        record = records.get(trial_id)
        if record is None:
            return f"{what} is not measured yet"
        if record.status != "ok":
            return f"{what} was not measured: {record.reason}"
    return None
