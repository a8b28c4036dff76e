"""The findings and the page of ``assay scaling predict``: intervals, parts, and assumptions of the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.format import BYTE_SCALES, format_percent, format_scaled, format_time, format_value
from assay.core.page import LinePlot, Page, PlotLine, Section, Table, Text
from assay.core.results import Finding, Findings
from assay.experiments.base import Report
from assay.experiments.reporting import (
    CLAIM_TONES,
    compose_page,
    gather_findings,
    monitor_table,
    table_columns,
)
from assay.experiments.scaling.estimates import (
    ScalingNumber,
    format_number,
    format_percent_cell,
    format_ratio_cell,
    format_time_cell,
)
from assay.experiments.scaling.prediction import NOTHING_SENT, describe_link
from assay.experiments.scaling_prediction.forecast import MEMORY_METHOD, forecast_cells
from assay.experiments.scaling_prediction.plan import list_impossible_cells, plan_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.page import Cell, Element, Page
    from assay.core.results import Estimate, Findings, Record, Verdict
    from assay.core.values import Params
    from assay.experiments.scaling_prediction.forecast import CellForecast
    from assay.experiments.scaling_prediction.plan import ImpossibleCell, PredictionCell, PredictionOptions
    from assay.machine.model import Machine
    from assay.store.records import Records


def build_report(machine: Machine, options: PredictionOptions, records: Records) -> Report:
    """Return the findings and the page."""
    predictions = forecast_cells(options, records)
    findings = build_findings(options, predictions, records)
    return Report(findings, build_page(machine, options, predictions, findings, records))


def build_findings(
    options: PredictionOptions, predictions: Sequence[CellForecast], records: Iterable[Record]
) -> Findings:
    """Return a judged claim for each cell, the ones that cannot be predicted with their reason."""
    findings = [_cell_finding(options, prediction) for prediction in predictions]
    findings += [_refused_finding(options, cell) for cell in list_impossible_cells(options)]
    return gather_findings(write_headline(options, predictions), findings, records)


def write_headline(options: PredictionOptions, predictions: Sequence[CellForecast]) -> str:
    """Return the answer for the most tokens over the most devices, in one sentence."""
    timed = [prediction for prediction in predictions if prediction.time is not None]
    if not timed:
        return "Nothing can be predicted: no share of a ring could be measured."
    last = max(timed, key=lambda prediction: (prediction.cell.tokens, prediction.cell.gpus))
    time = format_time_cell(ScalingNumber(to_microseconds(last.time.time_s))) if last.time is not None else None
    text = f"Predicted, not measured: {name_cell(options, last.cell)} over {options.link.name} take {time}"
    if last.efficiency is None:
        return f"{text}; how efficient that is cannot be said: {last.reason}."
    doubt = "" if last.efficiency.low is not None else ", all without an interval"
    much = "" if last.speedup is None else f", {format_ratio_cell(ScalingNumber(last.speedup))} as fast as one"
    return f"{text}{much}, an efficiency of {format_percent_cell(ScalingNumber(last.efficiency))}{doubt}."


def name_cell(options: PredictionOptions, cell: PredictionCell) -> str:
    """Name a cell: "65,536 tokens on 8 GPUs"."""
    per = " a rank" if options.mode == "weak" else ""
    many = name_ranks(options)
    return f"{cell.tokens:,} tokens{per} on {cell.gpus} {many if cell.gpus > 1 else many.removesuffix('s')}"


def name_ranks(options: PredictionOptions) -> str:
    """Name what the counts are of: GPUs where one was measured, otherwise ranks like the one that was."""
    return "GPUs" if options.device.startswith("cuda") else "ranks"


def to_microseconds(seconds: Estimate) -> Estimate:
    """Return a time in microseconds."""
    low, high = (None if end is None else end * 1e6 for end in (seconds.low, seconds.high))
    return seconds.model_copy(update={"value": seconds.value * 1e6, "low": low, "high": high, "unit": "µs"})


def judge_share(share: Estimate | None, enough: float) -> Verdict:
    """Return whether a share is surely enough; unsure where the interval holds both, or there is none."""
    if share is None or share.low is None or share.high is None:
        return "unsure"
    return "yes" if share.low >= enough else "no" if share.high < enough else "unsure"


def _cell_finding(options: PredictionOptions, prediction: CellForecast) -> Finding:
    efficiency = prediction.efficiency
    missing = prediction.reason
    if missing is None and efficiency is not None and efficiency.low is None:
        missing = "too few calls were measured for an interval"
    return Finding(
        kind="prediction" if prediction.time is not None else "missing",
        claim=_cell_claim(options, prediction.cell),
        estimate=efficiency,
        verdict=judge_share(efficiency, options.required_efficiency),
        records=prediction.records,
        reason=missing,
        facts=_cell_facts(options, prediction),
    )


def _refused_finding(options: PredictionOptions, impossible: ImpossibleCell) -> Finding:
    return Finding(
        kind="skipped",
        claim=_cell_claim(options, impossible.cell),
        estimate=None,
        verdict="no",
        records=(),
        reason=f"Not possible: {impossible.reason}",
        facts={"sequence": impossible.cell.tokens, "world": impossible.cell.gpus},
    )


def _cell_claim(options: PredictionOptions, cell: PredictionCell) -> str:
    enough = format_percent(options.required_efficiency, digits=3)
    return f"Predicted: {name_cell(options, cell)} over {options.link.name} are at least {enough} efficient"


def _cell_facts(options: PredictionOptions, prediction: CellForecast) -> Params:
    time = prediction.time
    return {
        "sequence": prediction.cell.tokens,
        "world": prediction.cell.gpus,
        "mode": options.mode,
        "passes": options.passes,
        "link": options.link.name,
        "shard": prediction.shard,
        "time_s": None if time is None else time.time_s.value,
        "time_low_s": None if time is None else time.time_s.low,
        "time_high_s": None if time is None else time.time_s.high,
        "compute_s": None if time is None else time.compute_s,
        "communication_s": None if time is None else time.communication_s,
        "messages": prediction.traffic.messages,
        "received_bytes": prediction.traffic.received_bytes,
        "speedup": None if prediction.speedup is None else prediction.speedup.value,
        "memory_mib": prediction.memory_mib.value,
        "memory_low_mib": prediction.memory_mib.low,
        "memory_high_mib": prediction.memory_mib.high,
        "peak_allocated_mib": prediction.peak_mib,
    }


def build_page(
    machine: Machine,
    options: PredictionOptions,
    predictions: Sequence[CellForecast],
    findings: Findings,
    records: Records,
) -> Page:
    """Return the whole page."""
    timed = [prediction for prediction in predictions if prediction.time is not None]
    params = options.subject.params
    return compose_page(
        machine,
        records,
        title=(
            f"assay scaling predict: {', '.join(map(str, options.counts))} {name_ranks(options)} over "
            f"{options.link.name}"
        ),
        lead=findings.headline,
        lead_tone="plain" if timed else "bad",
        sections=[
            Section(title="Results", elements=_result_elements(options, predictions)),
            Section(title="Over the number of GPUs", elements=tuple(build_figures(options, timed))),
            Section(title="What it rests on", elements=_method_elements(options, predictions, records)),
        ],
        facts={
            "measured on": options.device,
            "attention": " ".join(
                f"{k}={v}" for k, v in params.items() if k not in {"sequence", "ring", "only", "passes"}
            ),
            "calls": f"{options.benchmark_runs} after {options.warmup_runs} to warm up",
            "isolation asked": options.isolation,
            "seed": str(options.seed),
        },
    )


def _result_elements(options: PredictionOptions, predictions: Sequence[CellForecast]) -> tuple[Element, ...]:
    missing = [f"{name_cell(options, item.cell)}: {item.reason}." for item in predictions if item.reason is not None]
    skipped = [f"{name_cell(options, item.cell)}: skipped. {item.reason}" for item in list_impossible_cells(options)]
    return (
        time_table(options, predictions),
        parts_table(options, predictions),
        *(Text(text=text, tone="bad") for text in missing),
        *(Text(text=text, tone="unsure") for text in skipped),
        *(Text(text=f"Assumed: {text}") for text in list_assumptions(predictions)),
    )


def list_assumptions(predictions: Sequence[CellForecast]) -> tuple[str, ...]:
    """Return what the predictions take for granted, each once."""
    texts = dict.fromkeys(
        text for prediction in predictions if prediction.time is not None for text in prediction.time.assumptions
    )
    texts.pop(NOTHING_SENT, None)
    ring = "All of a count form one ring, and each has one shard of every sequence."
    return tuple(dict.fromkeys((ring, *texts, f"Memory is {MEMORY_METHOD}.")))


def time_table(options: PredictionOptions, predictions: Sequence[CellForecast]) -> Table:
    """Return the prediction: times, speedups and efficiency with their intervals."""
    what = "Forward and backward" if options.passes == "total" else "Forward"
    grown = ", the work growing with them" if options.mode == "weak" else ""
    return Table(
        title=f"{what}, predicted over {options.link.name}{grown}",
        columns=table_columns("shape", "time", "speedup", "efficiency"),
        rows=tuple(_time_row(options, prediction) for prediction in predictions),
        tones=tuple(
            CLAIM_TONES[judge_share(prediction.efficiency, options.required_efficiency)] for prediction in predictions
        ),
        note=(
            f"Marked by whether at least {format_percent(options.required_efficiency, digits=3)} efficiency is sure, "
            "surely missed, or neither."
        ),
    )


def _time_row(options: PredictionOptions, prediction: CellForecast) -> tuple[Cell, ...]:
    time = None if prediction.time is None else to_microseconds(prediction.time.time_s)
    return (
        name_cell(options, prediction.cell),
        format_time_cell(ScalingNumber(time)),
        format_ratio_cell(ScalingNumber(prediction.speedup)),
        format_percent_cell(ScalingNumber(prediction.efficiency)),
    )


def parts_table(options: PredictionOptions, predictions: Sequence[CellForecast]) -> Table:
    """Return what each prediction is made of, and what a device holds."""
    titles = ("shard", "computes", "transfers", "messages", "received", "memory", "peak alone, MiB")
    return Table(
        title="Of the busiest rank, in one call",
        columns=table_columns("shape", *titles),
        rows=tuple(_parts_row(options, prediction) for prediction in predictions),
        note=(
            "Computation is measured, alone; transfers are what the link would take for the messages, none where every "
            "segment lies within a shard. Memory is a model; the peak is what the allocator held where the share was "
            "measured, on a GPU only."
        ),
    )


def _parts_row(options: PredictionOptions, prediction: CellForecast) -> tuple[Cell, ...]:
    time = prediction.time
    return (
        name_cell(options, prediction.cell),
        prediction.shard,
        None if time is None else format_time(time.compute_s * 1e6),
        None if time is None else format_time(time.communication_s * 1e6),
        prediction.traffic.messages,
        format_scaled(prediction.traffic.received_bytes, BYTE_SCALES),
        format_number(ScalingNumber(prediction.memory_mib), lambda mib, low, high: format_value(mib, "MiB", low, high)),
        prediction.peak_mib,
    )


def _value_and_bounds(estimate: Estimate | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)


def build_figures(options: PredictionOptions, predictions: Sequence[CellForecast]) -> list[Element]:
    """Return time, efficiency and memory over the number of GPUs, with their intervals as bands."""
    if not predictions:
        return []
    tokens = sorted({prediction.cell.tokens for prediction in predictions})
    time = [
        _build_line(predictions, t, [None if e.time is None else e.time.time_s for e in predictions], 1e3)
        for t in tokens
    ]
    share = [_build_line(predictions, t, [e.efficiency for e in predictions], 100) for t in tokens]
    memory = [_build_line(predictions, t, [e.memory_mib for e in predictions], 1.0) for t in tokens]
    over = f"{name_ranks(options)} in one ring over {options.link.name}"
    shown: list[Element] = [
        _build_lines("Predicted time of a call", "predicted_time", over, "time of a call, ms", time, log_y=True)
    ]
    if any(y is not None for line in share for y in line.y):
        shown.append(_build_lines("Predicted efficiency", "predicted_efficiency", over, "efficiency, %", share))
    shown.append(
        _build_lines(
            "Predicted memory of a rank", "predicted_memory", over, "memory of a rank, MiB", memory, log_y=True
        )
    )
    return shown


def _build_lines(
    title: str, name: str, x_axis: str, y_axis: str, lines: list[PlotLine], *, log_y: bool = False
) -> LinePlot:
    return LinePlot(
        title=title,
        name=name,
        x_axis=x_axis,
        y_axis=y_axis,
        lines=tuple(lines),
        log_x=True,
        log_y=log_y,
        note="The bands are intervals: of the link's speed, of how much is hidden, and of the measurement.",
    )


def _build_line(
    predictions: Sequence[CellForecast], tokens: int, estimates: Sequence[Estimate | None], scale: float
) -> PlotLine:
    pairs = zip(predictions, estimates, strict=True)
    chosen = {
        prediction.cell.gpus: _value_and_bounds(estimate)
        for prediction, estimate in pairs
        if prediction.cell.tokens == tokens
    }
    gpus = sorted(chosen)
    value, low, high = (tuple(_scale(chosen[count][part], scale) for count in gpus) for part in range(3))
    return PlotLine(label=f"{tokens:,} tokens", x=tuple(float(count) for count in gpus), y=value, low=low, high=high)


def _scale(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _method_elements(
    options: PredictionOptions, predictions: Sequence[CellForecast], records: Records
) -> tuple[Element, ...]:
    labels = {trial.id: str(trial.settings["phase"]) for block in plan_blocks(options) for trial in block.trials}
    return (
        *(Text(text=f"Link {describe_link(options.link)}.") for _ in predictions[:1]),
        *monitor_table(records, labels),
    )
