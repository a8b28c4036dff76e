"""The tables of a run: joules, speed, what held it back, modes side by side, what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Table, Text
from assay.experiments.energy.findings import COMPARED, ratio_of
from assay.experiments.energy.rows import FIGURES
from assay.experiments.energy.words import HOST_BOUND, number, reasons_of, share
from assay.experiments.notes import grouped
from assay.stats.metered import FEWEST_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.page import Cell as Shown
    from assay.core.page import Element, Tone
    from assay.experiments.energy.result import Study
    from assay.experiments.energy.rows import Cell, EnergyRow

TOKENS = {
    "decode_j_per_token": "decode, J/token",
    "prefill_j_per_token": "prefill, J/token",
    "j_per_output_token": "whole, J/output token",
    "j_per_total_token": "whole, J/token in or out",
    "host_j_per_output_token": "host, J/output token",
}
REQUESTS = {
    "j_per_request": "J/request",
    "wh_per_1000_requests": "Wh/1000 requests",
    "carbon_g_per_1000_requests": "g CO₂/1000 requests",
    "phases_share": "phases over whole",
}
POWER = {
    "power_w": "power, W",
    "idle_w": "idle, W",
    "idle_share": "of it idle",
    "tokens_per_s_per_w": "tokens/s/W",
}
SPEED = {
    "decode_tokens_per_s": "decode, tokens/s",
    "prefill_tokens_per_s": "prefill, tokens/s",
    "output_tokens_per_s": "whole, tokens/s",
    "requests_per_s": "requests/s",
}
WAITING = {
    "ttft_ms": "first token, ms",
    "tpot_ms": "per token, ms",
    "gap_p50_ms": "gap p50, ms",
    "gap_p95_ms": "gap p95, ms",
    "gap_p99_ms": "gap p99, ms",
}
SHARES = {
    "busy_share": "GPU busy while decoding",
    "bandwidth_share": "of memory's speed, decode",
    "compute_share": "of arithmetic's speed, prefill",
}
NOTE = (
    "GPU energy alone unless it says host; ± is half of a 95 % interval: how processes differ (of one process, how its "
    "calls do) and the sensor's statistical interval, added in squares. Beside it the sensor itself may be off by 5 %, "
    "which nothing here can show."
)
REQUESTS_NOTE = "Phases over whole: prefill and decode, measured apart."
POWER_NOTE = "All GPUs together, while whole requests run. Idle: with the model in place and nothing to do."
GRAVE = (
    "-bound",
    "stalled",
    "on average, not",
    "cut short",
    "left out",
    "failed",
    "apart take",
    "unbalanced",
    "do not make its tokens",
)
"""What tells a warning from a remark."""
PROCESS_NOTE = (
    f"Scope process: fewer than {FEWEST_PROCESSES} processes, and another one may differ by more than the interval."
)
HOST_NOTE = "Energy of the host is that of its processors and their memory, whoever used them meanwhile."


def energy(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the joules of tokens and of requests; nothing where none is told."""
    host = any(row.figures.get("host_j_per_output_token") for row in rows)
    few = any(
        estimate is not None and estimate.scope == "process"
        for row in rows
        for name in TOKENS
        for estimate in [row.figures.get(name)]
    )
    notes = [NOTE, *([HOST_NOTE] if host else []), *([PROCESS_NOTE] if few else [])]
    per_token = _figures("Energy of a token", rows, TOKENS, " ".join(notes))
    per_request = _figures("Energy of a request", rows, REQUESTS, REQUESTS_NOTE)
    return [*per_token, *per_request, *_figures("Power", rows, POWER, POWER_NOTE)]


def speed(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return how fast tokens come in every cell, and how long they are waited for."""
    waiting = "Times are of the host, when a token is really there; gaps are those between one token and the next."
    return [
        *_figures("Speed", rows, SPEED, _without_interval(rows, SPEED)),
        *_figures("Waiting", rows, WAITING, f"{waiting} {_without_interval(rows, WAITING)}".rstrip()),
    ]


def _without_interval(rows: Sequence[EnergyRow], figures: Iterable[str]) -> str:
    """Say of a table what a number without an interval is, where only some have one: it looks the surest."""
    estimates = [estimate for row in rows for name in figures if (estimate := row.figures.get(name)) is not None]
    bare = sum(estimate.relative_half_width is None for estimate in estimates)
    return "Without ±: too little for an interval (more repeats)." if 0 < bare < len(estimates) else ""


def held_back(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return the shares of what the hardware could do, and how long the GPU waited for the host."""
    if not any(row.figures.get(name) for row in rows for name in SHARES):
        return []
    looked = any(row.figures.get("busy_share") for row in rows)
    busy = ("GPU busy, decode", "waited for the host") if looked else ()
    titles = ("cell", *busy, "of memory's speed, decode", "of arithmetic's, prefill")
    marked = f"Marked: busy for less than {100 * HOST_BOUND:.0f} % of the time, so that the GPU waited for the host."
    return [
        Table(
            title="How much of the hardware it uses",
            columns=tuple(Column(title=title, numeric=title != "cell") for title in titles),
            rows=tuple((names(rows)[row.cell], *_shares(row)[0 if looked else 2 :]) for row in rows),
            tones=tuple(_tone(row) for row in rows),
            note="What memory and arithmetic could do was measured on the same device: a large copy, a large matmul."
            + (f" {marked}" if looked else ""),
        )
    ]


def _shares(row: EnergyRow) -> tuple[Shown, ...]:
    busy = row.figures.get("busy_share")
    waited = None if busy is None else share(busy, rest=True)
    return number(busy), waited, *(number(row.figures.get(name)) for name in ("bandwidth_share", "compute_share"))


def _tone(row: EnergyRow) -> Tone:
    busy = row.figures.get("busy_share")
    return "unsure" if busy is not None and busy.value < HOST_BOUND else "plain"


def _figures(title: str, rows: Sequence[EnergyRow], figures: dict[str, str], note: str) -> list[Element]:
    """Return a table of some figures, those that no cell has left out; cells that are not whole are marked."""
    shown = {name: words for name, words in figures.items() if any(row.figures.get(name) for row in rows)}
    if not shown:
        return []
    partly = "Marked: not all of its processes, phases or tokens." if any(row.partial for row in rows) else ""
    return [
        Table(
            title=f"{title}{in_common(rows)}",
            columns=(Column(title="cell"), *(Column(title=words, numeric=True) for words in shown.values())),
            rows=tuple((names(rows)[row.cell], *(number(row.figures.get(name)) for name in shown)) for row in rows),
            tones=tuple("unsure" if row.partial else "plain" for row in rows),
            note=f"{note} {partly}".strip() or None,
        )
    ]


def in_common(rows: Sequence[EnergyRow]) -> str:
    """Say how many tokens go in and out, where it is the same in all cells; else nothing."""
    sizes = {(row.cell.input_tokens, row.cell.output_tokens) for row in rows}
    return "".join(f": {i} tokens in, {o} out" for i, o in sizes) if len(sizes) == 1 else ""


def names(rows: Sequence[EnergyRow]) -> dict[Cell, str]:
    """Return what each cell is called beside the others: how many tokens only where they differ."""
    short = bool(in_common(rows))
    return {row.cell: ", ".join(row.cell.name.split(", ")[:2]) if short else row.cell.name for row in rows}


def modes(rows: Sequence[EnergyRow]) -> list[Element]:
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
            rows=tuple(_side_by_side(eager, graphs) for eager, graphs in pairs),
            note="The ratio is graphs over eager: below 1 it takes less energy, above 1 it is faster.",
        )
    ]


def _side_by_side(eager: EnergyRow, graphs: EnergyRow) -> tuple[Shown, ...]:
    cells: list[Shown] = [graphs.cell.name.removeprefix("graphs, ")]
    for name in COMPARED:
        first, second = eager.figures.get(name), graphs.figures.get(name)
        cells += [number(first), number(second), number(ratio_of(first, second))]
    return tuple(cells)


def remarks(rows: Sequence[EnergyRow]) -> list[Element]:
    """Return what is to be known of cells, each sentence once with the cells it is of."""
    notes = grouped((note, names(rows)[row.cell]) for row in rows for note in row.notes)
    return [
        Text(text=f"{noted.said[:1].upper()}{noted.said[1:].rstrip('.')} ({noted.where}).", tone=_gravity(noted.said))
        for noted in notes
    ]


def _gravity(said: str) -> Tone:
    return "unsure" if any(word in said for word in GRAVE) else "plain"


def missing(study: Study) -> list[Element]:
    """Return the cells that gave nothing, and the figures that are not told, with the reasons."""
    result = study.result
    tables: list[Element] = []
    if result.left_out:
        tables.append(
            Table(
                title="Cells that are left out",
                columns=(Column(title="cell"), Column(title="why")),
                rows=tuple((name, why) for name, why in result.left_out.items()),
                tones=tuple("bad" for _ in result.left_out),
            )
        )
    missing_reasons = reasons_of(result.rows)
    if missing_reasons:
        tables.append(
            Table(
                title="Figures that are not told",
                columns=(Column(title="why"), Column(title="figures")),
                rows=tuple((why.said, "; ".join(_words(name) for name in why.trials)) for why in missing_reasons),
            )
        )
    return tables


def _words(name: str) -> str:
    return {**TOKENS, **REQUESTS, **SPEED, **WAITING, **SHARES}.get(name, FIGURES[name][1])
