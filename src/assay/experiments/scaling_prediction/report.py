"""The findings and the page of ``assay scaling predict``: predicted times with intervals, their parts, assumptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.format import (
    BYTE_SCALES,
    format_percent,
    format_scaled,
    format_time,
    format_value,
    percent_cell,
    ratio_cell,
    time_cell,
)
from assay.core.page import LinePlot, PlotLine, Section, Text, build_table
from assay.core.results import Finding
from assay.experiments.base import Report
from assay.experiments.reporting import CLAIM_TONES, compose_page, gather_findings, monitor_table
from assay.experiments.scaling.prediction import NOTHING_SENT, describe_link
from assay.experiments.scaling.timings import judge_at_least
from assay.experiments.scaling_prediction.forecast import MEMORY_METHOD, forecast_cells
from assay.experiments.scaling_prediction.plan import list_impossible_cells, plan_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.page import Cell, Element, Page, Table
    from assay.core.results import Estimate, Findings, Record
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
    """Return a judged claim for each cell; impossible cells with their reason."""
    findings = [_cell_finding(options, prediction) for prediction in predictions]
    findings += [_refused_finding(options, cell) for cell in list_impossible_cells(options)]
    return gather_findings(write_headline(options, predictions), findings, records)


def write_headline(options: PredictionOptions, predictions: Sequence[CellForecast]) -> str:
    """Return the answer for the most tokens on the most devices, in one sentence."""
    timed = [prediction for prediction in predictions if prediction.time is not None]
    if not timed:
        return "Nothing can be predicted: no shard of a ring could be measured."
    last = max(timed, key=lambda prediction: (prediction.cell.tokens, prediction.cell.gpus))
    text = f"Predicted, not measured: {name_cell(options, last.cell)} over {options.link.name} take {_time_cell(last)}"
    if last.efficiency is None:
        return f"{text}; the efficiency is unknown: {last.missing.detail if last.missing else 'no baseline'}."
    speedup = "" if last.speedup is None else f", speedup {ratio_cell(last.speedup)}"
    no_interval = "" if last.efficiency.low is not None else " (no intervals)"
    return f"{text}{speedup}, efficiency {percent_cell(last.efficiency)}{no_interval}."


def name_cell(options: PredictionOptions, cell: PredictionCell) -> str:
    """Name a cell: "65,536 tokens on 8 GPUs"."""
    per_rank = " per rank" if options.mode == "weak" else ""
    ranks = name_ranks(options)
    return f"{cell.tokens:,} tokens{per_rank} on {cell.gpus} {ranks if cell.gpus > 1 else ranks.removesuffix('s')}"


def name_ranks(options: PredictionOptions) -> str:
    """Name what is counted: GPUs where one was measured, otherwise ranks like the one that was."""
    return "GPUs" if options.device.startswith("cuda") else "ranks"


def _time_cell(prediction: CellForecast) -> str | None:
    return None if prediction.time is None else time_cell(prediction.time.time_s.scaled("µs", times=1e6))


def _cell_finding(options: PredictionOptions, prediction: CellForecast) -> Finding:
    efficiency = prediction.efficiency
    reason = prediction.missing.detail if prediction.missing is not None else None
    if reason is None and efficiency is not None and efficiency.low is None:
        reason = "too few calls were measured for an interval"
    return Finding(
        kind="prediction" if prediction.time is not None else "missing",
        claim=_cell_claim(options, prediction.cell),
        estimate=efficiency,
        verdict=judge_at_least(efficiency, options.required_efficiency),
        records=prediction.records,
        reason=reason,
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
    required = format_percent(options.required_efficiency, digits=3)
    return f"Predicted: {name_cell(options, cell)} over {options.link.name} have an efficiency of at least {required}"


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
    counts = ", ".join(map(str, options.counts))
    return compose_page(
        machine,
        records,
        title=f"assay scaling predict: {counts} {name_ranks(options)} over {options.link.name}",
        lead=findings.headline,
        lead_tone="plain" if timed else "bad",
        sections=[
            Section(title="Results", elements=_result_elements(options, predictions)),
            Section(title=f"By number of {name_ranks(options)}", elements=tuple(build_figures(options, timed))),
            Section(title="Method and data quality", elements=_method_elements(options, predictions, records)),
        ],
        facts={
            "measured on": options.device,
            "attention": " ".join(
                f"{k}={v}" for k, v in params.items() if k not in {"sequence", "ring", "only", "passes"}
            ),
            "calls": f"{options.warmup_runs} warm-up, {options.benchmark_runs} timed",
            "requested isolation": options.isolation,
            "seed": str(options.seed),
        },
    )


def _result_elements(options: PredictionOptions, predictions: Sequence[CellForecast]) -> tuple[Element, ...]:
    missing = [f"{name_cell(options, item.cell)}: {item.missing.detail}." for item in predictions if item.missing]
    skipped = [f"{name_cell(options, item.cell)}: skipped. {item.reason}" for item in list_impossible_cells(options)]
    return (
        time_table(options, predictions),
        parts_table(options, predictions),
        *(Text(text=text, tone="bad") for text in missing),
        *(Text(text=text, tone="unsure") for text in skipped),
        *(Text(text=f"Assumption: {text}") for text in list_assumptions(predictions)),
    )


def list_assumptions(predictions: Sequence[CellForecast]) -> tuple[str, ...]:
    """Return the assumptions of the predictions, each once."""
    texts = dict.fromkeys(
        text for prediction in predictions if prediction.time is not None for text in prediction.time.assumptions
    )
    texts.pop(NOTHING_SENT, None)
    ring = "All ranks form one ring, and each has one shard of every sequence."
    return tuple(dict.fromkeys((ring, *texts, f"Memory is {MEMORY_METHOD}.")))


def time_table(options: PredictionOptions, predictions: Sequence[CellForecast]) -> Table:
    """Return the prediction: times, speedups and efficiency with their intervals."""
    passes = "Forward and backward" if options.passes == "total" else "Forward"
    columns: dict[str, Callable[[CellForecast], Cell]] = {
        "shape": lambda prediction: name_cell(options, prediction.cell),
        "time": _time_cell,
        "speedup": lambda prediction: ratio_cell(prediction.speedup),
        "efficiency": lambda prediction: percent_cell(prediction.efficiency),
    }
    return build_table(
        f"{passes}, predicted over {options.link.name}{', weak scaling' if options.mode == 'weak' else ''}",
        predictions,
        columns,
        numeric=("time", "speedup", "efficiency"),
        tone=lambda prediction: CLAIM_TONES[judge_at_least(prediction.efficiency, options.required_efficiency)],
        note=f"Colour: efficiency against {format_percent(options.required_efficiency, digits=3)}.",
    )


def parts_table(options: PredictionOptions, predictions: Sequence[CellForecast]) -> Table:
    """Return the parts of each prediction, and the memory of a device."""

    def part(name: str) -> Callable[[CellForecast], Cell]:
        return lambda prediction: None if prediction.time is None else format_time(getattr(prediction.time, name) * 1e6)

    def memory(prediction: CellForecast) -> Cell:
        mib = prediction.memory_mib
        return format_value(mib.value, "MiB", mib.low, mib.high)

    columns: dict[str, Callable[[CellForecast], Cell]] = {
        "shape": lambda prediction: name_cell(options, prediction.cell),
        "shard": lambda prediction: prediction.shard,
        "computation": part("compute_s"),
        "transfers": part("communication_s"),
        "messages": lambda prediction: prediction.traffic.messages,
        "received": lambda prediction: format_scaled(prediction.traffic.received_bytes, BYTE_SCALES),
        "memory": memory,
        "measured peak, MiB": lambda prediction: prediction.peak_mib,
    }
    return build_table(
        "The busiest rank, in one call",
        predictions,
        columns,
        numeric=tuple(columns)[1:],
        note=(
            "Computation is measured alone; transfers are the link's time for the messages (none where every segment "
            "lies within a shard). Memory is a model; the measured peak is the allocator's for one shard (GPU only)."
        ),
    )


def build_figures(options: PredictionOptions, predictions: Sequence[CellForecast]) -> list[Element]:
    """Return time, efficiency and memory over the number of GPUs, with their intervals as bands."""
    if not predictions:
        return []
    times = [None if prediction.time is None else prediction.time.time_s for prediction in predictions]
    shares = [prediction.efficiency for prediction in predictions]
    figures: dict[tuple[str, str, str], tuple[Sequence[Estimate | None], float]] = {
        ("Predicted time of a call", "predicted_time", "time of a call, ms"): (times, 1e3),
        ("Predicted efficiency", "predicted_efficiency", "efficiency, %"): (shares, 100.0),
        ("Predicted memory of a rank", "predicted_memory", "memory of a rank, MiB"): (
            [prediction.memory_mib for prediction in predictions],
            1.0,
        ),
    }
    return [
        LinePlot(
            title=title,
            name=name,
            x_axis=f"{name_ranks(options)} in one ring over {options.link.name}",
            y_axis=y_axis,
            lines=_build_lines(predictions, [None if e is None else e.scaled("", times=scale) for e in estimates]),
            log_x=True,
            log_y=estimates is not shares,
            note="Bands: intervals from the link's speed, the possible overlap, and the measurement.",
        )
        for (title, name, y_axis), (estimates, scale) in figures.items()
        if any(estimate is not None for estimate in estimates)
    ]


def _build_lines(predictions: Sequence[CellForecast], estimates: Sequence[Estimate | None]) -> tuple[PlotLine, ...]:
    """Return a line over the number of GPUs for each number of tokens."""
    lines: dict[int, dict[int, Estimate | None]] = {}
    for prediction, estimate in zip(predictions, estimates, strict=True):
        lines.setdefault(prediction.cell.tokens, {})[prediction.cell.gpus] = estimate
    return tuple(
        PlotLine(
            label=f"{tokens:,} tokens",
            x=tuple(map(float, sorted(line))),
            y=tuple(None if (e := line[gpus]) is None else e.value for gpus in sorted(line)),
            low=tuple(None if (e := line[gpus]) is None else e.low for gpus in sorted(line)),
            high=tuple(None if (e := line[gpus]) is None else e.high for gpus in sorted(line)),
        )
        for tokens, line in sorted(lines.items())
    )


def _method_elements(
    options: PredictionOptions, predictions: Sequence[CellForecast], records: Records
) -> tuple[Element, ...]:
    labels = {trial.id: str(trial.settings["phase"]) for block in plan_blocks(options) for trial in block.trials}
    return (
        *(Text(text=f"Link {describe_link(options.link)}.") for _ in predictions[:1]),
        *monitor_table(records, labels),
    )
