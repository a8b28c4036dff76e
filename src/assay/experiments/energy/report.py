"""The page of ``assay energy run``: tables of joules, speed and GPUs, figures, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import format_duration, format_significant
from assay.core.page import (
    Column,
    LinePlot,
    Page,
    PlotLine,
    Section,
    StripPlot,
    StripRow,
    Table,
    Text,
    Timeline,
    TimelineBar,
)
from assay.core.values import Done
from assay.experiments.energy.compare import build_points, choose_phase, group_comparable, pareto_figures
from assay.experiments.energy.findings import (
    COMPARED_FIGURES,
    end_sentence,
    format_half_width,
    has_stalled,
    ratio_of_estimates,
    token_energy,
)
from assay.experiments.energy.plan import label_trials
from assay.experiments.energy.result import FIGURES, flatten_rows
from assay.experiments.energy.study import HOST_BOUND
from assay.experiments.reporting import (
    compose_page,
    group_notes,
    monitor_table,
    notes_table,
    sensor_axis,
    sensor_lines,
    table_columns,
)
from assay.stats.sensor_intervals import MIN_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.page import Cell as TableCell
    from assay.core.page import Element, Tone
    from assay.core.results import Estimate, Findings
    from assay.experiments.energy.options import EnergyOptions
    from assay.experiments.energy.result import EnergyCell, EnergyResult, EnergyRow, GpuStats
    from assay.experiments.energy.study import EnergyStudy
    from assay.machine.model import Machine
    from assay.store.records import Records


def build_page(
    machine: Machine, options: EnergyOptions, findings: Findings, study: EnergyStudy, records: Records
) -> Page:
    """Return the whole page."""
    rows = study.result.rows
    sections = {
        "Results": (
            *energy_tables(rows),
            *_no_energy_text(rows),
            *speed_tables(rows),
            *utilization_table(rows),
            *note_texts(rows),
            *mode_table(rows),
        ),
        "Joules over the load": (*energy_over_load(rows), *run_pareto_figures(study.result)),
        "GPUs": (*gpu_table(rows), *placement_table(rows)),
        "Every token": gap_strips(study),
        "What is missing": missing_tables(study.result),
        "Method and data quality": _method_elements(options, study, records),
    }
    doubtful = study.result.skipped or any(row.partial or has_stalled(row) for row in rows)
    return compose_page(
        machine,
        records,
        title=f"assay energy run: {study.result.model}",
        lead=findings.headline,
        lead_tone="bad" if not rows else "unsure" if doubtful else "plain",
        sections=[Section(title=title, elements=tuple(elements)) for title, elements in sections.items()],
        facts=_page_facts(machine, options, study),
    )


def _page_facts(machine: Machine, options: EnergyOptions, study: EnergyStudy) -> dict[str, str]:
    backend = options.config.backend
    metered = ", ".join(options.gpus) or "no GPU"
    return {
        "GPUs": study.result.gpu or f"none that is metered ({machine.gpu_note or 'none was named'})",
        "model": f"{backend.model}{f' ({backend.revision})' if backend.revision else ''}",
        "backend": f"{backend.type} on {backend.endpoint or ', '.join(options.devices)}",
        "metered": metered if options.monitored else "nothing: metrics.enabled is false",
        "processes": f"{options.restarts}, and as many of what was measured for longer",
        "window": f"{format_duration(options.stage_s)} at least ({options.stage_why})",
        "precision": f"±{100 * options.config.scenario.precision:.3g} %",
        "seed": str(options.seed),
    }


TOKEN_COLUMNS = {
    "decode_j_per_token": "decode, J/token",
    "prefill_j_per_token": "prefill, J/token",
    "j_per_output_token": "whole, J/output token",
    "j_per_total_token": "whole, J/token in or out",
    "host_j_per_output_token": "host, J/output token",
}
REQUEST_COLUMNS = {
    "j_per_request": "J/request",
    "wh_per_1000_requests": "Wh/1000 requests",
    "carbon_g_per_1000_requests": "g CO₂/1000 requests",
    "phases_share": "phases over whole",
}
POWER_COLUMNS = {
    "power_w": "power, W",
    "idle_w": "idle, W",
    "idle_share": "of it idle",
    "tokens_per_s_per_w": "tokens/s/W",
}
SPEED_COLUMNS = {
    "decode_tokens_per_s": "decode, tokens/s",
    "prefill_tokens_per_s": "prefill, tokens/s",
    "output_tokens_per_s": "whole, tokens/s",
    "requests_per_s": "requests/s",
}
LATENCY_COLUMNS = {
    "ttft_ms": "first token, ms",
    "tpot_ms": "per token, ms",
    "gap_p50_ms": "gap p50, ms",
    "gap_p95_ms": "gap p95, ms",
    "gap_p99_ms": "gap p99, ms",
}
SHARE_COLUMNS = {
    "busy_share": "GPU busy while decoding",
    "bandwidth_share": "% of peak bandwidth (decode)",
    "compute_share": "% of peak FLOP/s (prefill)",
}
FIGURE_TITLES = {
    **{name: title for name, (_, title) in FIGURES.items()},
    **TOKEN_COLUMNS,
    **REQUEST_COLUMNS,
    **SPEED_COLUMNS,
    **LATENCY_COLUMNS,
    **SHARE_COLUMNS,
}
ENERGY_NOTE = (
    "GPU energy alone unless it says host; ± is half of a 95 % interval: how processes differ (of one process, how its "
    "calls do) and the sensor's statistical interval, added in squares. In addition the sensor itself may be off by "
    "5 %, which nothing here can show."
)
REQUESTS_NOTE = "Phases over whole: prefill and decode, measured apart."
POWER_NOTE = "All GPUs together, while whole requests run. Idle: with the model in place and nothing to do."
PROCESS_NOTE = (
    f"Scope process: fewer than {MIN_PROCESSES} processes, and another one may differ by more than the interval."
)
HOST_NOTE = "Energy of the host is that of its processors and their memory, whoever used them meanwhile."
LATENCY_NOTE = "Times are of the host, when a token is really there; gaps are those between one token and the next."


def format_estimate(estimate: Estimate | None) -> str | None:
    """Write a number with its interval for a cell of a table: "1.23 ±1.2 %"; null where it was not measured."""
    if estimate is None:
        return None
    if not estimate.unit:
        return format_share(estimate)
    value = format_significant(estimate.value, 3)
    return value if estimate.relative_half_width is None else f"{value} {format_half_width(estimate)}"


def format_share(estimate: Estimate, *, rest: bool = False) -> str:
    """Write a share, or with ``rest`` its complement, with the bounds of its interval: "40 % (38–42)"."""
    value, low, high = (
        None if end is None else 100 * (max(0.0, 1 - end) if rest else end)
        for end in (estimate.value, estimate.low, estimate.high)
    )
    text = f"{value:.3g} %"
    if low is None or high is None:
        return text
    ends = [f"{end:.3g}" for end in sorted((low, high))]
    return text if ends[0] == ends[1] else f"{text} ({ends[0]}–{ends[1]})"


def energy_tables(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the joules of tokens and of requests, and the power; empty where there are none."""
    estimates = [estimate for row in rows for name in TOKEN_COLUMNS if (estimate := row.figures.get(name)) is not None]
    has_host = any(row.figures.get("host_j_per_output_token") for row in rows)
    is_few = any(estimate.scope == "process" for estimate in estimates)
    notes = [ENERGY_NOTE, *([HOST_NOTE] if has_host else []), *([PROCESS_NOTE] if is_few else [])]
    return [
        *_figure_table("Energy of a token", rows, TOKEN_COLUMNS, " ".join(notes)),
        *_figure_table("Energy of a request", rows, REQUEST_COLUMNS, REQUESTS_NOTE),
        *_figure_table("Power", rows, POWER_COLUMNS, POWER_NOTE),
    ]


def _no_energy_text(rows: Sequence[EnergyRow]) -> list[Element]:
    """Say why there are no joules, where there are none."""
    if not rows or any(row.figures.get("j_per_output_token") for row in rows):
        return []
    reasons = [why for row in rows if (why := row.missing_reasons.get("j_per_output_token")) is not None]
    why = reasons[0] if reasons else "no counter to read"
    return [Text(text=end_sentence(f"No energy reported: {why}"), tone="unsure")]


def speed_tables(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the throughput of tokens in every cell, and their latency."""
    speed_note, latency_note = _no_interval_note(rows, SPEED_COLUMNS), _no_interval_note(rows, LATENCY_COLUMNS)
    return [
        *_figure_table("Speed", rows, SPEED_COLUMNS, speed_note),
        *_figure_table("Latency", rows, LATENCY_COLUMNS, f"{LATENCY_NOTE} {latency_note}".rstrip()),
    ]


def _no_interval_note(rows: Sequence[EnergyRow], figures: Iterable[str]) -> str:
    """Explain a number without an interval where only some have none: it looks the surest."""
    estimates = [estimate for row in rows for name in figures if (estimate := row.figures.get(name)) is not None]
    bare = sum(estimate.relative_half_width is None for estimate in estimates)
    return "Without ±: too little for an interval (more repeats)." if 0 < bare < len(estimates) else ""


def utilization_table(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the shares of what the hardware could do, and how long the GPU waited for the host."""
    if not any(row.figures.get(name) for row in rows for name in SHARE_COLUMNS):
        return []
    is_profiled = any(row.figures.get("busy_share") for row in rows)
    titles = ["cell", *(["GPU busy (decode)", "waited for the host"] if is_profiled else [])]
    note = "What memory and arithmetic could do was measured on the same device: a large copy, a large matmul."
    if is_profiled:
        note += f" Marked: busy for less than {100 * HOST_BOUND:.0f} % of the time, as the GPU waited for the host."
    lines: list[tuple[TableCell, ...]] = []
    tones: list[Tone] = []
    labels = label_cells(rows)
    for row in rows:
        busy = row.figures.get("busy_share")
        waited = None if busy is None else format_share(busy, rest=True)
        peaks = [format_estimate(row.figures.get(name)) for name in ("bandwidth_share", "compute_share")]
        lines.append((labels[row.cell], *([format_estimate(busy), waited] if is_profiled else []), *peaks))
        tones.append("unsure" if busy is not None and busy.value < HOST_BOUND else "plain")
    columns = table_columns(*titles, SHARE_COLUMNS["bandwidth_share"], SHARE_COLUMNS["compute_share"])
    return [Table(title="Hardware utilization", columns=columns, rows=tuple(lines), tones=tuple(tones), note=note)]


def _figure_table(title: str, rows: Sequence[EnergyRow], figures: dict[str, str], note: str) -> list[Element]:
    """Return a table of those figures that some cell has; partial cells are marked."""
    shown = {name: words for name, words in figures.items() if any(row.figures.get(name) for row in rows)}
    if not shown:
        return []
    partly = "Marked: not all of its processes, phases or tokens." if any(row.partial for row in rows) else ""
    labels = label_cells(rows)
    return [
        Table(
            title=f"{title}{common_sizes(rows)}",
            columns=table_columns("cell", *shown.values()),
            rows=tuple((labels[row.cell], *(format_estimate(row.figures.get(name)) for name in shown)) for row in rows),
            tones=tuple("unsure" if row.partial else "plain" for row in rows),
            note=f"{note} {partly}".strip() or None,
        )
    ]


def common_sizes(rows: Sequence[EnergyRow]) -> str:
    """Say how many tokens go in and out, where it is the same in all cells; else nothing."""
    sizes = {(row.cell.input_tokens, row.cell.output_tokens) for row in rows}
    return "".join(f": {i} tokens in, {o} out" for i, o in sizes) if len(sizes) == 1 else ""


def label_cells(rows: Sequence[EnergyRow]) -> dict[EnergyCell, str]:
    """Return the label of each cell beside the others: the number of tokens only where it differs."""
    short = bool(common_sizes(rows))
    return {row.cell: f"{row.cell.mode}, {row.cell.load}" if short else row.cell.name for row in rows}


def mode_table(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return eager and graphs side by side; empty where only one of them was measured."""
    by_cell = {row.cell: row for row in rows}
    lines: list[tuple[TableCell, ...]] = []
    for row in rows:
        eager = by_cell.get(row.cell.model_copy(update={"mode": "eager"}))
        if row.cell.mode != "graphs" or eager is None:
            continue
        pairs = [(eager.figures.get(name), row.figures.get(name)) for name in COMPARED_FIGURES]
        estimates = [estimate for pair in pairs for estimate in (*pair, ratio_of_estimates(*pair))]
        lines.append((row.cell.name.removeprefix("graphs, "), *map(format_estimate, estimates)))
    if not lines:
        return []
    titles = [f"{mode}, {unit}" for unit in ("J/token", "tokens/s") for mode in ("eager", "graphs", "ratio")]
    return [
        Table(
            title="Eager and graphs, decoding",
            columns=table_columns("sizes", *titles),
            rows=tuple(lines),
            note="The ratio is graphs over eager: below 1 it takes less energy, above 1 it is faster.",
        )
    ]


def note_texts(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the notes on cells, warnings first, each sentence once with its cells."""
    tones: dict[str, Tone] = {"warning": "unsure", "remark": "plain"}
    labels = label_cells(rows)
    return [
        Text(text=f"{group.text[:1].upper()}{group.text[1:].rstrip('.')} ({group.trial_names}).", tone=tone)
        for severity, tone in tones.items()
        for group in group_notes(
            (note.message, labels[row.cell]) for row in rows for note in row.notes if note.severity == severity
        )
    ]


def missing_tables(result: EnergyResult) -> list[Element]:
    """Return the cells without a result, and the figures that are missing, with the reasons."""
    tables: list[Element] = []
    if result.skipped:
        tables.append(
            Table(
                title="Cells that are left out",
                columns=(Column(title="cell"), Column(title="why")),
                rows=tuple(result.skipped.items()),
                tones=tuple("bad" for _ in result.skipped),
            )
        )
    reasons = group_notes(
        (row.missing_reasons[name].rstrip("."), FIGURE_TITLES[name])
        for name in FIGURES
        for row in result.rows
        if name in row.missing_reasons
    )
    if reasons:
        tables.append(
            Table(
                title="Not measured",
                columns=(Column(title="why"), Column(title="figures")),
                rows=tuple((reason.text, "; ".join(reason.trials)) for reason in reasons),
            )
        )
    return tables


def gpu_table(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the statistics of each GPU while whole requests ran, and of all of them together."""
    labels = label_cells(rows)
    lines: list[tuple[TableCell, ...]] = []
    for row in rows:
        lines += [(labels[row.cell], *_gpu_cells(gpu)) for gpu in row.gpus]
        if len(row.gpus) > 1:
            lines.append((labels[row.cell], *_total_cells(row)))
    if not lines:
        return []
    notes = group_notes(
        (f"GPU {gpu.gpu}: {gpu.note}", labels[row.cell]) for row in rows for gpu in row.gpus if gpu.note is not None
    )
    usage = ("busy, %", "most", "memory, MiB", "of it, %", "°C", "most", "power, W", "most", "J/request")
    return [
        Table(
            title="GPUs while whole requests ran",
            columns=table_columns("cell", "GPU", *usage, words=2),
            rows=tuple(lines),
            note="Means over time and the most beside them; memory is the most. Of all GPUs together the most is the "
            "peak of their sum at one moment. A dash: not reported by the GPU.",
        ),
        *(Text(text=f"{group.text} ({group.trial_names}).", tone="unsure") for group in notes),
    ]


def _gpu_cells(gpu: GpuStats) -> tuple[TableCell, ...]:
    values = (
        gpu.utilization_percent,
        gpu.utilization_percent_max,
        gpu.memory_used_mb,
        gpu.memory_percent,
        gpu.temperature_c,
        gpu.temperature_c_max,
        gpu.power_draw_w,
        gpu.power_draw_w_max,
    )
    return (f"GPU {gpu.gpu}", *map(_format_whole, values), format_estimate(gpu.energy_j_per_request))


def _total_cells(row: EnergyRow) -> tuple[TableCell, ...]:
    memory = [gpu.memory_used_mb for gpu in row.gpus if gpu.memory_used_mb is not None]
    power = [gpu.power_draw_w for gpu in row.gpus if gpu.power_draw_w is not None]
    memory_mb, power_w = (sum(part) if len(part) == len(row.gpus) else None for part in (memory, power))
    values = (None, None, memory_mb, None, None, None, power_w, row.peak_power_w)
    return (f"all {len(row.gpus)}", *map(_format_whole, values), format_estimate(row.figures.get("j_per_request")))


def _format_whole(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


PIPELINE_NOTE = " Layers on several GPUs follow one another (a naive pipeline): one GPU works while the others wait."
MAX_NAMED = 4


def placement_table(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return which part of the model lies on which device; empty where no part is named."""
    placed_parts = next((row.placement for row in rows if row.placement), None)
    if not placed_parts:
        return []
    devices: dict[str, list[str]] = {}
    for part, device in placed_parts.items():
        devices.setdefault(device, []).append(part or "all of it")
    several = sum(device.startswith("cuda") for device in devices) > 1
    return [
        Table(
            title="Where the model lies",
            columns=(Column(title="device"), Column(title="parts", numeric=True), Column(title="which")),
            rows=tuple((device, len(parts), _shorten_list(parts)) for device, parts in devices.items()),
            note=f"As the loaded model says.{PIPELINE_NOTE if several else ''}",
        )
    ]


def _shorten_list(parts: Sequence[str]) -> str:
    if len(parts) <= MAX_NAMED:
        return ", ".join(parts)
    return f"{', '.join(parts[: MAX_NAMED - 1])} … {parts[-1]}"


MAX_GAPS = 2000
"""Maximum number of dots in a strip: of more, as many evenly from the smallest to the largest."""
LOG_AXIS_FACTOR = 20.0
"""Numbers further apart than this factor are drawn on a logarithmic axis."""
MIN_POINTS = 2


def energy_over_load(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the joules of a token over batch sizes or requests at once, a line for each mode and length."""
    groups: dict[tuple[str, int, int], list[tuple[EnergyRow, Estimate]]] = {}
    for row in rows:
        if (energy := token_energy(row)) is not None:
            key = row.cell.mode, row.cell.input_tokens, row.cell.output_tokens
            groups.setdefault(key, []).append((row, energy))
    lengths = len({(i, o) for _, i, o in groups})
    lines = [
        PlotLine(
            label=f"{mode}, {i} in, {o} out" if lengths > 1 else mode,
            x=tuple(float(row.cell.sequences) for row, _ in points),
            y=tuple(energy.value for _, energy in points),
            low=tuple(energy.low for _, energy in points),
            high=tuple(energy.high for _, energy in points),
        )
        for (mode, i, o), points in groups.items()
        if len(points) >= MIN_POINTS
    ]
    if not lines:
        return []
    served = any(row.cell.mode == "server" for row in rows)
    values = [y for line in lines for y in line.y if y is not None]
    return [
        LinePlot(
            title="GPU energy of an output token" + ("" if served else ", while decoding"),
            name="joules_over_load",
            x_axis="requests at once" if served else "batch size",
            y_axis="J/token",
            lines=tuple(lines),
            log_x=True,
            log_y=max(values) > LOG_AXIS_FACTOR * min(values) > 0,
            note="Bands are 95 % intervals.",
        )
    ]


def run_pareto_figures(result: EnergyResult) -> list[Element]:
    """Return joules by speed, with the front; empty for fewer than two cells."""
    rows = flatten_rows(result)
    if len(rows) < MIN_POINTS:
        return []
    phase = choose_phase(rows)
    groups = group_comparable(build_points(rows, phase)).values()
    return [
        figure for number, group in enumerate(groups, 1) for figure in pareto_figures(group, phase, "batch", number)
    ]


def gap_strips(study: EnergyStudy) -> list[Element]:
    """Return the gaps between one token and the next, a strip for each cell, all processes together."""
    labels = label_cells(study.result.rows)
    strips = []
    for cell in study.cells:
        windows = cell.windows_with("gap_us", "decode")
        if windows:
            gaps = np.concatenate([window.samples("gap_us") for window in windows]) / 1e3
            shown = gaps if len(gaps) <= MAX_GAPS else np.quantile(gaps, np.linspace(0.0, 1.0, MAX_GAPS))
            row = StripRow(label=labels[cell.cell], samples=tuple(shown.tolist()), value=float(np.median(gaps)))
            strips.append(row)
    if not strips:
        return []
    return [
        StripPlot(
            title=f"Gaps between one token and the next{common_sizes(study.result.rows)}",
            name="gaps",
            axis="gap",
            unit="ms",
            strips=tuple(strips),
            note="All processes together; the mark stands at the median.",
        )
    ]


def _method_elements(options: EnergyOptions, study: EnergyStudy, records: Records) -> tuple[Element, ...]:
    labels, step = label_trials(study.progress.measured), study.progress.next_step
    return (
        *_windows_table(study),
        *_stage_timeline(study, records),
        *(Text(text=end_sentence(f"{note[:1].upper()}{note[1:]}"), tone="unsure") for note in options.notes),
        *monitor_table(records, labels),
        *notes_table(records, labels),
        *([Text(text=f"It ended as {step.why}.")] if isinstance(step, Done) else []),
    )


def _windows_table(study: EnergyStudy) -> list[Element]:
    """Return how often and how long each phase of each cell was measured."""
    windows = study.progress.observations.windows
    rows: list[tuple[TableCell, ...]] = []
    for phase in dict.fromkeys(window.cell_phase for window in windows):
        several = [window for window in windows if window.cell_phase == phase]
        processes = len({window.process for window in several})
        durations_s = [window.window_s for window in several]
        seconds = f"{min(durations_s):.1f} – {max(durations_s):.1f}"
        metered = sum(window.stage.energy is not None for window in several)
        calls = sum(window.stage.calls for window in several)
        rows.append((phase.name, processes, len(several), seconds, calls, metered))
    if not rows:
        return []
    columns = table_columns("phase", "processes", "windows", "seconds of each", "calls", "with energy")
    return [Table(title="What was measured", columns=columns, rows=tuple(rows))]


def _stage_timeline(study: EnergyStudy, records: Records) -> list[Element]:
    """Return when each stage was measured, and the watts above it."""
    windows = study.progress.observations.windows
    if not windows:
        return []
    origin_ns = min(window.stage.start_ns for window in windows)
    bars = tuple(
        TimelineBar(
            lane=window.cell_phase.phase,
            label="idle" if window.cell_phase.cell is None else window.cell_phase.cell.name,
            start_s=(window.stage.start_ns - origin_ns) / 1e9,
            end_s=(window.stage.end_ns - origin_ns) / 1e9,
            tone="plain" if window.record.status == "ok" else "unsure",
        )
        for window in windows
    )
    return [
        Timeline(
            title="When each phase was measured",
            name="stages",
            bars=bars,
            lines=sensor_lines(records, origin_ns),
            lines_axis=sensor_axis(records),
            note="Between the bars models are loaded, set up and warmed up, which is not measured.",
        )
    ]
