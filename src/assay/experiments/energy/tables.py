"""The tables of a run: joules, speed, hardware utilization, eager against graphs, GPUs, placement.

What is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Table, Text
from assay.experiments.energy.cell_notes import HOST_BOUND, format_estimate, format_share, group_missing_reasons
from assay.experiments.energy.findings import COMPARED_FIGURES, ratio_of_estimates
from assay.experiments.energy.result import FIGURES
from assay.experiments.reporting import group_notes
from assay.stats.sensor_intervals import MIN_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.page import Cell as Shown
    from assay.core.page import Element, Tone
    from assay.experiments.energy.result import EnergyCell, EnergyRow, GpuStats
    from assay.experiments.energy.study import EnergyStudy
    from assay.experiments.reporting import NoteGroup


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
    "bandwidth_share": "of memory's speed, decode",
    "compute_share": "of arithmetic's speed, prefill",
}
ENERGY_NOTE = (
    "GPU energy alone unless it says host; ± is half of a 95 % interval: how processes differ (of one process, how its "
    "calls do) and the sensor's statistical interval, added in squares. Beside it the sensor itself may be off by 5 %, "
    "which nothing here can show."
)
REQUESTS_NOTE = "Phases over whole: prefill and decode, measured apart."
POWER_NOTE = "All GPUs together, while whole requests run. Idle: with the model in place and nothing to do."
PROCESS_NOTE = (
    f"Scope process: fewer than {MIN_PROCESSES} processes, and another one may differ by more than the interval."
)
HOST_NOTE = "Energy of the host is that of its processors and their memory, whoever used them meanwhile."


def energy_tables(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the joules of tokens and of requests; nothing where none is told."""
    host = any(row.figures.get("host_j_per_output_token") for row in rows)
    few = any(
        estimate is not None and estimate.scope == "process"
        for row in rows
        for name in TOKEN_COLUMNS
        for estimate in [row.figures.get(name)]
    )
    notes = [ENERGY_NOTE, *([HOST_NOTE] if host else []), *([PROCESS_NOTE] if few else [])]
    per_token = _figure_table("Energy of a token", rows, TOKEN_COLUMNS, " ".join(notes))
    per_request = _figure_table("Energy of a request", rows, REQUEST_COLUMNS, REQUESTS_NOTE)
    return [*per_token, *per_request, *_figure_table("Power", rows, POWER_COLUMNS, POWER_NOTE)]


def speed_tables(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return how fast tokens come in every cell, and how long they are waited for."""
    waiting = "Times are of the host, when a token is really there; gaps are those between one token and the next."
    return [
        *_figure_table("Speed", rows, SPEED_COLUMNS, _no_interval_note(rows, SPEED_COLUMNS)),
        *_figure_table(
            "Waiting", rows, LATENCY_COLUMNS, f"{waiting} {_no_interval_note(rows, LATENCY_COLUMNS)}".rstrip()
        ),
    ]


def _no_interval_note(rows: Sequence[EnergyRow], figures: Iterable[str]) -> str:
    """Say of a table what a number without an interval is, where only some have one: it looks the surest."""
    estimates = [estimate for row in rows for name in figures if (estimate := row.figures.get(name)) is not None]
    bare = sum(estimate.relative_half_width is None for estimate in estimates)
    return "Without ±: too little for an interval (more repeats)." if 0 < bare < len(estimates) else ""


def utilization_table(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the shares of what the hardware could do, and how long the GPU waited for the host."""
    if not any(row.figures.get(name) for row in rows for name in SHARE_COLUMNS):
        return []
    looked = any(row.figures.get("busy_share") for row in rows)
    busy = ("GPU busy, decode", "waited for the host") if looked else ()
    titles = ("cell", *busy, "of memory's speed, decode", "of arithmetic's, prefill")
    marked = f"Marked: busy for less than {100 * HOST_BOUND:.0f} % of the time, so that the GPU waited for the host."
    return [
        Table(
            title="How much of the hardware it uses",
            columns=tuple(Column(title=title, numeric=title != "cell") for title in titles),
            rows=tuple((label_cells(rows)[row.cell], *_utilization_cells(row)[0 if looked else 2 :]) for row in rows),
            tones=tuple(_utilization_tone(row) for row in rows),
            note="What memory and arithmetic could do was measured on the same device: a large copy, a large matmul."
            + (f" {marked}" if looked else ""),
        )
    ]


def _utilization_cells(row: EnergyRow) -> tuple[Shown, ...]:
    busy = row.figures.get("busy_share")
    waited = None if busy is None else format_share(busy, rest=True)
    return (
        format_estimate(busy),
        waited,
        *(format_estimate(row.figures.get(name)) for name in ("bandwidth_share", "compute_share")),
    )


def _utilization_tone(row: EnergyRow) -> Tone:
    busy = row.figures.get("busy_share")
    return "unsure" if busy is not None and busy.value < HOST_BOUND else "plain"


def _figure_table(title: str, rows: Sequence[EnergyRow], figures: dict[str, str], note: str) -> list[Element]:
    """Return a table of some figures, those that no cell has left out; cells that are not whole are marked."""
    shown = {name: words for name, words in figures.items() if any(row.figures.get(name) for row in rows)}
    if not shown:
        return []
    partly = "Marked: not all of its processes, phases or tokens." if any(row.partial for row in rows) else ""
    return [
        Table(
            title=f"{title}{common_sizes(rows)}",
            columns=(Column(title="cell"), *(Column(title=words, numeric=True) for words in shown.values())),
            rows=tuple(
                (label_cells(rows)[row.cell], *(format_estimate(row.figures.get(name)) for name in shown))
                for row in rows
            ),
            tones=tuple("unsure" if row.partial else "plain" for row in rows),
            note=f"{note} {partly}".strip() or None,
        )
    ]


def common_sizes(rows: Sequence[EnergyRow]) -> str:
    """Say how many tokens go in and out, where it is the same in all cells; else nothing."""
    sizes = {(row.cell.input_tokens, row.cell.output_tokens) for row in rows}
    return "".join(f": {i} tokens in, {o} out" for i, o in sizes) if len(sizes) == 1 else ""


def label_cells(rows: Sequence[EnergyRow]) -> dict[EnergyCell, str]:
    """Return what each cell is called beside the others: how many tokens only where they differ."""
    short = bool(common_sizes(rows))
    return {row.cell: ", ".join(row.cell.name.split(", ")[:2]) if short else row.cell.name for row in rows}


def mode_table(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return eager and graphs side by side; nothing where only one of them was measured."""
    by_cell = {row.cell: row for row in rows}
    pairs = [
        (eager, row)
        for row in rows
        if row.cell.mode == "graphs"
        and (eager := by_cell.get(row.cell.model_copy(update={"mode": "eager"}))) is not None
    ]
    if not pairs:
        return []
    titles = (
        "sizes",
        *(f"{mode}, {unit}" for unit in ("J/token", "tokens/s") for mode in ("eager", "graphs", "ratio")),
    )
    return [
        Table(
            title="Eager and graphs, decoding",
            columns=tuple(Column(title=t, numeric=t != "sizes") for t in titles),
            rows=tuple(_mode_row(eager, graphs) for eager, graphs in pairs),
            note="The ratio is graphs over eager: below 1 it takes less energy, above 1 it is faster.",
        )
    ]


def _mode_row(eager: EnergyRow, graphs: EnergyRow) -> tuple[Shown, ...]:
    cells: list[Shown] = [graphs.cell.name.removeprefix("graphs, ")]
    for name in COMPARED_FIGURES:
        first, second = eager.figures.get(name), graphs.figures.get(name)
        cells += [format_estimate(first), format_estimate(second), format_estimate(ratio_of_estimates(first, second))]
    return tuple(cells)


def note_texts(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return what is to be known of cells, warnings first, each sentence once with the cells it is of."""
    tones: dict[str, Tone] = {"warning": "unsure", "remark": "plain"}
    return [
        Text(text=f"{group.text[:1].upper()}{group.text[1:].rstrip('.')} ({group.trial_names}).", tone=tone)
        for severity, tone in tones.items()
        for group in group_notes(
            (note.message, label_cells(rows)[row.cell])
            for row in rows
            for note in row.notes
            if note.severity == severity
        )
    ]


def missing_tables(study: EnergyStudy) -> list[Element]:
    """Return the cells that gave nothing, and the figures that are not told, with the reasons."""
    result = study.result
    tables: list[Element] = []
    if result.skipped:
        tables.append(
            Table(
                title="Cells that are left out",
                columns=(Column(title="cell"), Column(title="why")),
                rows=tuple((name, why) for name, why in result.skipped.items()),
                tones=tuple("bad" for _ in result.skipped),
            )
        )
    missing_reasons = group_missing_reasons(result.rows)
    if missing_reasons:
        tables.append(
            Table(
                title="Figures that are not told",
                columns=(Column(title="why"), Column(title="figures")),
                rows=tuple(
                    (why.text, "; ".join(_figure_title(name) for name in why.trials)) for why in missing_reasons
                ),
            )
        )
    return tables


def _figure_title(name: str) -> str:
    return {**TOKEN_COLUMNS, **REQUEST_COLUMNS, **SPEED_COLUMNS, **LATENCY_COLUMNS, **SHARE_COLUMNS}.get(
        name, FIGURES[name][1]
    )


PIPELINE_NOTE = " Layers on several GPUs follow one another (a naive pipeline): one GPU works while the others wait."
MAX_NAMED = 4


def gpu_table(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return what each GPU did while whole requests ran, and all of them together."""
    lines: list[tuple[Shown, ...]] = []
    for row in rows:
        lines += [(label_cells(rows)[row.cell], *_gpu_cells(gpu)) for gpu in row.gpus]
        lines += [(label_cells(rows)[row.cell], *_total_cells(row))] if len(row.gpus) > 1 else []
    if not lines:
        return []
    titles = (
        "cell",
        "GPU",
        "busy, %",
        "most",
        "memory, MiB",
        "of it, %",
        "°C",
        "most",
        "power, W",
        "most",
        "J/request",
    )
    return [
        Table(
            title="GPUs while whole requests ran",
            columns=tuple(Column(title=t, numeric=index > 1) for index, t in enumerate(titles)),
            rows=tuple(lines),
            note="Means over time and the most beside them; memory is the most. Of all GPUs together the most is the "
            "peak of their sum at one moment. A dash: the GPU does not say.",
        ),
        *(Text(text=f"{noted.text} ({noted.trial_names}).", tone="unsure") for noted in gpu_notes(rows)),
    ]


def gpu_notes(rows: Sequence[EnergyRow]) -> list[NoteGroup]:
    """Return what is to be known of GPUs, each sentence once with the cells it is of."""
    notes = [(gpu, label_cells(rows)[row.cell]) for row in rows for gpu in row.gpus if gpu.note is not None]
    return group_notes((f"GPU {gpu.gpu}: {gpu.note}", cell) for gpu, cell in notes)


def _gpu_cells(gpu: GpuStats) -> tuple[Shown, ...]:
    return (
        f"GPU {gpu.gpu}",
        _format_whole(gpu.utilization_percent),
        _format_whole(gpu.utilization_percent_max),
        _format_whole(gpu.memory_used_mb),
        _format_whole(gpu.memory_percent),
        _format_whole(gpu.temperature_c),
        _format_whole(gpu.temperature_c_max),
        _format_whole(gpu.power_draw_w),
        _format_whole(gpu.power_draw_w_max),
        format_estimate(gpu.energy_j_per_request),
    )


def _total_cells(row: EnergyRow) -> tuple[Shown, ...]:
    def total(name: str) -> float | None:
        values = [getattr(gpu, name) for gpu in row.gpus]
        return None if None in values else sum(values)

    return (
        f"all {len(row.gpus)}",
        *(None, None, _format_whole(total("memory_used_mb")), None, None, None),
        _format_whole(total("power_draw_w")),
        _format_whole(row.peak_power_w),
        format_estimate(row.figures.get("j_per_request")),
    )


def _format_whole(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def placement_table(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return which part of the model lies on which device; nothing where it is all on one and no part is named."""
    placed_parts = next((row.placement for row in rows if row.placement), None)
    if not placed_parts:
        return []
    devices: dict[str, list[str]] = {}
    for part, device in placed_parts.items():
        devices.setdefault(device, []).append(part or "all of it")
    return [
        Table(
            title="Where the model lies",
            columns=(Column(title="device"), Column(title="parts", numeric=True), Column(title="which")),
            rows=tuple((device, len(parts), _shorten_list(parts)) for device, parts in devices.items()),
            note=f"As the loaded model says.{PIPELINE_NOTE if sum(map(_is_gpu, devices)) > 1 else ''}",
        )
    ]


def _is_gpu(device: str) -> bool:
    return device.startswith("cuda")


def _shorten_list(parts: Sequence[str]) -> str:
    if len(parts) <= MAX_NAMED:
        return ", ".join(parts)
    return f"{', '.join(parts[: MAX_NAMED - 1])} … {parts[-1]}"
