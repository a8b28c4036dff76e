"""Predict the time and the memory of whole rings, cell by cell, from the records of single shares.

Peak memory of a rank is a model, linear in the length of its shard:

                    queries' heads         keys' heads            elements of
    inputs          q, gradient of output  k, v                   the dtype
    output          output                                        the dtype
    log-sum-exp     one to a position                             the sums
    sums            gradient of q          gradients of k and v   the sums (float32, float64 for float64)
    gradients       of q                   of k and v             the dtype
    messages                               keys and values that a step brings or takes away: a shard's, dilated
    work            a block's output, and a gradient of as many elements backward

The library's own memory (CUDA context, workspaces, NCCL buffers, the allocator's cache) is not included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.results import Estimate, Missing
from assay.experiments.scaling.prediction import predict_efficiency, predict_speedup, predict_time, ring_traffic
from assay.experiments.scaling_prediction.plan import ROLE, baseline_cell, cell_problem, cell_trial, list_cells

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Record
    from assay.experiments.scaling.prediction import PredictedTime, RankTraffic
    from assay.experiments.scaling_prediction.plan import PredictionCell, PredictionOptions
    from assay.workloads.dilated_attention.problem import AttentionCosts


MIB = 2**20
MESSAGES_IN_FLIGHT = {False: 3, True: 6}
"""Messages that are held at once, forward or also backward: keys held, passed on and awaited; gradients likewise."""

MEMORY_METHOD = (
    "a model: tensors of a shard, their sums in float32, and messages; the interval is from the minimum to all of them "
    "at once; excluding the CUDA context, workspaces, NCCL and the allocator's cache"
)


@dataclass(frozen=True)
class RankMemoryModel:
    """Bytes that a rank holds, by what for; all are linear in the length of its shard."""

    inputs: int
    output: int
    log_sums: int
    sums: int
    gradients: int
    messages: int
    work: int

    @property
    def least(self) -> int:
        """What is there at the end of a call whatever computes it."""
        return self.inputs + self.output + self.log_sums + self.gradients

    @property
    def peak(self) -> int:
        """What is there at the fullest moment as it is computed here: work is done before sums become gradients."""
        return self.inputs + self.output + self.log_sums + self.sums + self.messages + max(self.gradients, self.work)

    @property
    def most(self) -> int:
        """What is there where a kernel keeps sums of its own, and nothing is given back before the end."""
        return self.least + 2 * self.sums + self.messages + self.work


def model_rank_memory(costs: AttentionCosts, ranks: int, *, backward: bool) -> RankMemoryModel:
    """Return what the rank at the end of a ring holds in one call."""
    shard = costs.sequence // ranks
    queries, keys = costs.heads.queries, costs.heads.keys
    rows, wide = costs.batch * shard, max(4, costs.item_bytes)
    head, head_sums = rows * costs.dim * costs.item_bytes, rows * costs.dim * wide
    if not backward:
        inputs, sums, gradients = (queries + 2 * keys) * head, queries * head_sums, 0
    else:
        inputs = 2 * (queries + keys) * head
        sums, gradients = (queries + 2 * keys) * head_sums, (queries + 2 * keys) * head
    longer = [branch for branch in costs.schedule.branches if branch.segment > shard]
    message = max((2 * keys * head // branch.rate for branch in longer), default=0)
    return RankMemoryModel(
        inputs=inputs,
        output=queries * head,
        log_sums=queries * rows * wide,
        sums=sums,
        gradients=gradients,
        messages=MESSAGES_IN_FLIGHT[backward] * message,
        work=queries * head * (2 if backward else 1),
    )


def predict_memory_mib(costs: AttentionCosts, ranks: int, *, backward: bool) -> Estimate:
    """Return the most that a rank holds; the interval is from what must be there to what may be there at once."""
    parts = model_rank_memory(costs, ranks, backward=backward)
    return Estimate(
        value=parts.peak / MIB,
        low=parts.least / MIB,
        high=parts.most / MIB,
        unit="MiB",
        scope="machine",
        method=MEMORY_METHOD,
        n=1,
    )


TIME_QUANTITY = "call_us"


@dataclass(frozen=True)
class CellForecast:
    """The prediction for one cell; null where a measurement it needs is ``missing``.

    Attributes:
        cell: The question.
        shard: Positions per GPU.
        traffic: Messages and bytes that the busiest GPU receives in one call.
        time: Of a call.
        speedup: Over one GPU, in strong scaling.
        efficiency: Relative to one GPU.
        memory_mib: Peak memory of a GPU, by the model.
        peak_mib: The allocator's peak where the shard was measured; null on a CPU.
        missing: Which measurement is missing, and why.
        records: The trials it was computed from.
    """

    cell: PredictionCell
    shard: int
    traffic: RankTraffic
    time: PredictedTime | None
    speedup: Estimate | None
    efficiency: Estimate | None
    memory_mib: Estimate
    peak_mib: float | None
    missing: Missing | None
    records: tuple[str, ...]


def forecast_cells(options: PredictionOptions, records: Iterable[Record]) -> tuple[CellForecast, ...]:
    """Return the prediction for every possible cell."""
    by_trial = {record.trial: record for record in records}
    return tuple(_forecast_cell(options, cell, by_trial) for cell in list_cells(options))


def _forecast_cell(options: PredictionOptions, cell: PredictionCell, records: dict[str, Record]) -> CellForecast:
    problem, weak = cell_problem(options, cell), options.mode == "weak"
    trial, first = cell_trial(options, cell).id, cell_trial(options, baseline_cell(cell)).id
    share, alone = _call_time_s(records.get(trial)), _call_time_s(records.get(first))
    traffic = ring_traffic(problem.costs, cell.gpus, backward=problem.backward)
    time = predict_time(share, traffic, options.link) if share is not None else None
    speedup, efficiency = None, None
    if time is not None and alone is not None:
        speedup = None if weak else predict_speedup(alone, time.time_s)
        efficiency = predict_efficiency(alone, time.time_s, 1 if weak else cell.gpus)
    return CellForecast(
        cell=cell,
        shard=problem.shard,
        traffic=traffic,
        time=time,
        speedup=speedup,
        efficiency=efficiency,
        memory_mib=predict_memory_mib(problem.costs, cell.gpus, backward=problem.backward),
        peak_mib=_peak_mib(records.get(trial)),
        missing=_find_missing(records, trial, first),
        records=tuple(dict.fromkeys(name for name in (first, trial) if name in records)),
    )


def _call_time_s(record: Record | None) -> Estimate | None:
    """Return the median time of a call, in seconds; null where it was not measured."""
    if record is None or record.status != "ok":
        return None
    estimate = next((s.estimate for s in record.estimates if (s.role, s.quantity) == (ROLE, TIME_QUANTITY)), None)
    if estimate is None:
        return None
    return estimate.scaled("s", over=1e6)


def _peak_mib(record: Record | None) -> float | None:
    measured = (
        [facts.measured for evidence in record.evidence for facts in evidence.subjects] if record is not None else []
    )
    return max((m["peak_allocated_mib"] for m in measured if m and "peak_allocated_mib" in m), default=None)


def _find_missing(records: dict[str, Record], trial: str, first: str) -> Missing | None:
    for what, trial_id in (("its shard", trial), ("one GPU alone", first)):
        record = records.get(trial_id)
        if record is None:
            return Missing(code="not_measured", detail=f"{what} is not measured yet")
        if record.status != "ok":
            return Missing(code=record.status, detail=f"{what} was not measured: {record.reason}")
    return None
