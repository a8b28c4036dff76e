"""What ``assay scaling predict`` shows: the prediction with its intervals, what it is made of, and what it assumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Line, Lines, Page, Section, Table, Text
from assay.core.units import format_time, significant
from assay.experiments.scaling.links import told
from assay.experiments.scaling.memory import METHOD
from assay.experiments.scaling.numbers import Known
from assay.experiments.scaling.prediction import NOTHING_SENT
from assay.experiments.scaling.written import bytes_cell, cell, percent_cell, ratio_cell, time_cell
from assay.experiments.scaling_prediction.findings import in_us, judged, named, ranks
from assay.experiments.scaling_prediction.forecast import forecasts
from assay.experiments.scaling_prediction.plan import blocks_of, left_out
from assay.experiments.trouble import trouble
from assay.experiments.watched import watched_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Estimate, Findings, Verdict
    from assay.experiments.scaling_prediction.forecast import Forecast
    from assay.experiments.scaling_prediction.options import PredictionOptions
    from assay.machine.model import Machine
    from assay.store.records import Records

TONES: dict[Verdict, Tone] = {"yes": "good", "no": "bad", "unsure": "unsure"}


def page(machine: Machine, options: PredictionOptions, findings: Findings, records: Records) -> Page:
    """Return the whole page."""
    predictions = forecasts(options, records)
    timed = [prediction for prediction in predictions if prediction.time is not None]
    sections = [
        Section(title="Results", elements=_results(options, predictions)),
        Section(title="Over the number of GPUs", elements=tuple(figures(options, timed))),
        Section(title="What it rests on", elements=_grounds(options, predictions, records)),
        *trouble(records),
    ]
    return Page(
        title=f"assay scaling predict: {', '.join(map(str, options.counts))} {ranks(options)} over {options.link.name}",
        lead=findings.headline,
        lead_tone="plain" if timed else "bad",
        sections=tuple(section for section in sections if section.elements),
        facts=_facts(machine, options),
        origin=next((record.origin for record in records if record.origin != "real"), "real"),
    )


def _results(options: PredictionOptions, found: Sequence[Forecast]) -> tuple[Element, ...]:
    missing = [f"{named(options, item.cell)}: {item.reason}." for item in found if item.reason is not None]
    skipped = [f"{named(options, item.cell)}: skipped. {item.reason}" for item in left_out(options)]
    return (
        time_table(options, found),
        parts_table(options, found),
        *(Text(text=text, tone="bad") for text in missing),
        *(Text(text=text, tone="unsure") for text in skipped),
        *(Text(text=f"Assumed: {text}") for text in assumptions(found)),
    )


def assumptions(found: Sequence[Forecast]) -> tuple[str, ...]:
    """Return what the predictions take for granted, each once."""
    texts = dict.fromkeys(
        text for prediction in found if prediction.time is not None for text in prediction.time.assumptions
    )
    texts.pop(NOTHING_SENT, None)
    ring = "All of a count form one ring, and each has one shard of every sequence."
    return tuple(dict.fromkeys((ring, *texts, f"Memory is {METHOD}.")))


def time_table(options: PredictionOptions, found: Sequence[Forecast]) -> Table:
    """Return the prediction: times, speedups and efficiency with their intervals."""
    what = "Forward and backward" if options.passes == "total" else "Forward"
    grown = ", the work growing with them" if options.mode == "weak" else ""
    return Table(
        title=f"{what}, predicted over {options.link.name}{grown}",
        columns=(Column(title="shape"), *(Column(title=t, numeric=True) for t in ("time", "speedup", "efficiency"))),
        rows=tuple(_time_row(options, prediction) for prediction in found),
        tones=tuple(TONES[judged(prediction.efficiency, options.enough)] for prediction in found),
        note=f"Marked by whether at least {100 * options.enough:.0f} % efficiency is sure, surely missed, or neither.",
    )


def _time_row(options: PredictionOptions, each: Forecast) -> tuple[Cell, ...]:
    time = None if each.time is None else in_us(each.time.time_s)
    return (
        named(options, each.cell),
        time_cell(Known(time)),
        ratio_cell(Known(each.speedup)),
        percent_cell(Known(each.efficiency)),
    )


def parts_table(options: PredictionOptions, found: Sequence[Forecast]) -> Table:
    """Return what each prediction is made of, and what a device holds."""
    titles = ("shard", "computes", "transfers", "messages", "received", "memory, MiB", "peak alone, MiB")
    return Table(
        title="Of the busiest rank, in one call",
        columns=(Column(title="shape"), *(Column(title=title, numeric=True) for title in titles)),
        rows=tuple(_parts_row(options, prediction) for prediction in found),
        note=(
            "Computation is measured, alone; transfers are what the link would take for the messages, none where every "
            "segment lies within a shard. Memory is a model; the peak is what the allocator held where the share was "
            "measured, on a GPU only."
        ),
    )


def _parts_row(options: PredictionOptions, each: Forecast) -> tuple[Cell, ...]:
    time = each.time
    return (
        named(options, each.cell),
        each.shard,
        None if time is None else format_time(time.compute_s * 1e6),
        None if time is None else format_time(time.communication_s * 1e6),
        each.traffic.messages,
        bytes_cell(each.traffic.received_bytes),
        cell(Known(each.memory_mib), significant),
        each.peak_mib,
    )


def _ends(estimate: Estimate | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)


def figures(options: PredictionOptions, known: Sequence[Forecast]) -> list[Element]:
    """Return time, efficiency and memory over the number of GPUs, with their intervals as bands."""
    if not known:
        return []
    tokens = sorted({prediction.cell.tokens for prediction in known})
    time = [_line(known, t, [None if e.time is None else e.time.time_s for e in known], 1e3) for t in tokens]
    share = [_line(known, t, [e.efficiency for e in known], 100) for t in tokens]
    memory = [_line(known, t, [e.memory_mib for e in known], 1.0) for t in tokens]
    over = f"{ranks(options)} in one ring over {options.link.name}"
    shown: list[Element] = [
        _lines("Predicted time of a call", "predicted_time", over, "time of a call, ms", time, log_y=True)
    ]
    if any(y is not None for line in share for y in line.y):
        shown.append(_lines("Predicted efficiency", "predicted_efficiency", over, "efficiency, %", share))
    shown.append(
        _lines("Predicted memory of a rank", "predicted_memory", over, "memory of a rank, MiB", memory, log_y=True)
    )
    return shown


def _lines(title: str, name: str, x_axis: str, y_axis: str, lines: list[Line], *, log_y: bool = False) -> Lines:
    return Lines(
        title=title,
        name=name,
        x_axis=x_axis,
        y_axis=y_axis,
        lines=tuple(lines),
        log_x=True,
        log_y=log_y,
        note="The bands are intervals: of the link's speed, of how much is hidden, and of the measurement.",
    )


def _line(known: Sequence[Forecast], tokens: int, estimates: Sequence[Estimate | None], scale: float) -> Line:
    pairs = zip(known, estimates, strict=True)
    chosen = {
        prediction.cell.gpus: _ends(estimate) for prediction, estimate in pairs if prediction.cell.tokens == tokens
    }
    gpus = sorted(chosen)
    value, low, high = (tuple(_scaled(chosen[count][part], scale) for count in gpus) for part in range(3))
    return Line(label=f"{tokens:,} tokens", x=tuple(float(count) for count in gpus), y=value, low=low, high=high)


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _grounds(options: PredictionOptions, found: Sequence[Forecast], records: Records) -> tuple[Element, ...]:
    labels = {trial.id: str(trial.settings["phase"]) for block in blocks_of(options) for trial in block.trials}
    return (*(Text(text=f"Link {told(options.link)}.") for _ in found[:1]), *watched_table(records, labels))


def _facts(machine: Machine, options: PredictionOptions) -> tuple[tuple[str, str], ...]:
    params = options.subject.params
    return (
        ("measured on", f"{options.device} of {_device_name(machine, options.device)}"),
        (
            "attention",
            " ".join(f"{k}={v}" for k, v in params.items() if k not in {"sequence", "ring", "only", "passes"}),
        ),
        ("calls", f"{options.benchmark_runs} after {options.warmup_runs} to warm up"),
        ("isolation asked", options.isolation),
        ("seed", str(options.seed)),
        ("versions", ", ".join(f"{name} {v}" for name, v in machine.versions.items() if v)),
        ("commit", f"{machine.git_commit or 'none'}{' with changes' if machine.git_dirty else ''}"),
    )


def _device_name(machine: Machine, device: str) -> str:
    if device.startswith("cuda"):
        return ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus)) or "a GPU"
    return f"{machine.cpu_model or machine.architecture}, {len(machine.cores)} cores"
