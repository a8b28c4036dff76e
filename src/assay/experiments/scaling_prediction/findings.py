"""What is claimed of a prediction: that so many GPUs would be used well, judged by its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Finding, Findings
from assay.experiments.scaling.numbers import Known
from assay.experiments.scaling.written import share, time_cell, times
from assay.experiments.scaling_prediction.forecast import forecasts
from assay.experiments.scaling_prediction.plan import left_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.results import Estimate, Record, Verdict
    from assay.core.values import Params
    from assay.experiments.scaling_prediction.forecast import Forecast
    from assay.experiments.scaling_prediction.options import PredictionOptions
    from assay.experiments.scaling_prediction.plan import Cell, LeftOut


def analyse(options: PredictionOptions, records: Iterable[Record]) -> Findings:
    """Return a judged claim for each cell, the ones that cannot be predicted with their reason."""
    by_trial = {record.trial: record for record in records}
    predictions = forecasts(options, by_trial.values())
    origin = next((record.origin for record in by_trial.values() if record.origin != "real"), "real")
    findings = [_finding(options, item).model_copy(update={"origin": origin}) for item in predictions]
    findings += [_refused(options, item) for item in left_out(options)]
    return Findings(headline=headline(options, predictions), findings=tuple(findings))


def headline(options: PredictionOptions, found: Sequence[Forecast]) -> str:
    """Return the answer for the most tokens over the most devices, in one sentence."""
    timed = [prediction for prediction in found if prediction.time is not None]
    if not timed:
        return "Nothing can be predicted: no share of a ring could be measured."
    last = max(timed, key=lambda prediction: (prediction.cell.tokens, prediction.cell.gpus))
    time = time_cell(Known(in_us(last.time.time_s))) if last.time is not None else None
    text = f"Predicted, not measured: {named(options, last.cell)} over {options.link.name} take {time}"
    if last.efficiency is None:
        return f"{text}; how efficient that is cannot be said: {last.reason}."
    doubt = "" if last.efficiency.low is not None else ", all without an interval"
    much = "" if last.speedup is None else f", {times(Known(last.speedup))} as fast as one"
    return f"{text}{much}, an efficiency of {share(Known(last.efficiency))}{doubt}."


def named(options: PredictionOptions, cell: Cell) -> str:
    """Name a cell: "65,536 tokens on 8 GPUs"."""
    per = " a rank" if options.mode == "weak" else ""
    many = ranks(options)
    return f"{cell.tokens:,} tokens{per} on {cell.gpus} {many if cell.gpus > 1 else many.removesuffix('s')}"


def ranks(options: PredictionOptions) -> str:
    """Name what the counts are of: GPUs where one was measured, otherwise ranks like the one that was."""
    return "GPUs" if options.device.startswith("cuda") else "ranks"


def in_us(seconds: Estimate) -> Estimate:
    """Return a time in microseconds."""
    low, high = (None if end is None else end * 1e6 for end in (seconds.low, seconds.high))
    return seconds.model_copy(update={"value": seconds.value * 1e6, "low": low, "high": high, "unit": "µs"})


def judged(share: Estimate | None, enough: float) -> Verdict:
    """Return whether a share is surely enough; unsure where the interval holds both, or there is none."""
    if share is None or share.low is None or share.high is None:
        return "unsure"
    return "yes" if share.low >= enough else "no" if share.high < enough else "unsure"


def _finding(options: PredictionOptions, each: Forecast) -> Finding:
    efficiency = each.efficiency
    missing = each.reason
    if missing is None and efficiency is not None and efficiency.low is None:
        missing = "too few calls were measured for an interval"
    return Finding(
        claim=_claim(options, each.cell),
        estimate=efficiency,
        verdict=judged(efficiency, options.enough),
        records=each.records,
        reason=missing,
        facts=_facts(options, each),
    )


def _refused(options: PredictionOptions, each: LeftOut) -> Finding:
    return Finding(
        claim=_claim(options, each.cell),
        estimate=None,
        verdict="no",
        records=(),
        reason=f"Not possible: {each.reason}",
        facts={"sequence": each.cell.tokens, "world": each.cell.gpus, "status": "skipped"},
    )


def _claim(options: PredictionOptions, cell: Cell) -> str:
    enough = f"{100 * options.enough:.0f} %"
    return f"Predicted: {named(options, cell)} over {options.link.name} are at least {enough} efficient"


def _facts(options: PredictionOptions, each: Forecast) -> Params:
    time = each.time
    return {
        "sequence": each.cell.tokens,
        "world": each.cell.gpus,
        "mode": options.mode,
        "passes": options.passes,
        "link": options.link.name,
        "shard": each.shard,
        "time_s": None if time is None else time.time_s.value,
        "time_low_s": None if time is None else time.time_s.low,
        "time_high_s": None if time is None else time.time_s.high,
        "compute_s": None if time is None else time.compute_s,
        "communication_s": None if time is None else time.communication_s,
        "messages": each.traffic.messages,
        "received_bytes": each.traffic.received_bytes,
        "speedup": None if each.speedup is None else each.speedup.value,
        "memory_mib": each.memory_mib.value,
        "memory_low_mib": each.memory_mib.low,
        "memory_high_mib": each.memory_mib.high,
        "peak_allocated_mib": each.peak_mib,
        "status": "predicted" if time is not None else "failed",
    }
