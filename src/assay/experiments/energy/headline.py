"""What a run found, in one or two sentences: joules per token where they are told, times where they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.units import significant
from assay.experiments.energy.answers import STALLED
from assay.experiments.energy.rows import HEADLINE
from assay.experiments.energy.words import HOST_BOUND, half_width, sentence
from assay.stats.metered import FEWEST_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Estimate
    from assay.experiments.energy.rows import Cell, EnergyResult, EnergyRow

NOTHING = "Nothing could be measured"
SERVED = "j_per_output_token"
"""What stands for a token's joules where a server is not taken apart."""


def headline(result: EnergyResult) -> str:
    """Return the answer."""
    if not result.rows:
        why = next(iter(result.left_out.values()), "")
        return sentence(f"{NOTHING}: {why}") if why else f"{NOTHING}."
    shown = ends_of(result.rows)
    energies = [(row, energy) for row in shown if (energy := energy_of(row)) is not None]
    where = f"{result.model} on {result.gpu}" if result.gpu else result.model
    first = sentence(f"{where}: {_energy(energies) if energies else _speed(shown)}")
    parts = [
        first,
        _few_processes(energies),
        _stalled(result.rows),
        _waiting(result.rows),
        _left_out(result),
        _fake(result.rows),
    ]
    return " ".join(part for part in parts if part)


def ends_of(rows: Sequence[EnergyRow]) -> list[EnergyRow]:
    """Return the first and the last cell of each mode: the smallest batch or load, and the largest."""
    modes = dict.fromkeys(row.cell.mode for row in rows)
    shown: list[EnergyRow] = []
    for mode in modes:
        mine = [row for row in rows if row.cell.mode == mode]
        shown += [mine[0]] if len(mine) == 1 else [mine[0], mine[-1]]
    return shown


def energy_of(row: EnergyRow) -> Estimate | None:
    """Return the joules of an output token: while decoding, or of whole requests."""
    return row.figures.get(main_of(row.cell))


def main_of(cell: Cell) -> str:
    """Return the figure that stands for a token's joules: where nothing is taken apart, that of whole requests."""
    return SERVED if cell.mode == "server" or cell.output_tokens == 1 else HEADLINE


def load_of(row: EnergyRow) -> str:
    """Say how much was asked at once: "batch 8", "16 at once"."""
    return f"{row.cell.concurrency} at once" if row.cell.mode == "server" else f"batch {row.cell.batch}"


def _energy(told: Sequence[tuple[EnergyRow, Estimate]]) -> str:
    """Write the joules of a token in each mode, with their interval; the unit stands once."""
    modes = dict.fromkeys(row.cell.mode for row, _ in told)
    clauses = []
    for number, mode in enumerate(modes):
        mine = [(row, energy) for row, energy in told if row.cell.mode == mode]
        parts = [
            f"{significant(energy.value, 3)}{_unit(row.cell) if (number, index) == (0, 0) else ''} at {load_of(row)} "
            f"({half_width(energy)}{', GPU only' if (number, index) == (0, 0) else ''})"
            for index, (row, energy) in enumerate(mine)
        ]
        named = f"in {mode} " if len(modes) > 1 else ""
        clauses.append(named + ", ".join(parts))
    return "; ".join(clauses)


def _unit(cell: Cell) -> str:
    return " J per output token" if main_of(cell) == SERVED else " J per output token decoding"


def _speed(rows: Sequence[EnergyRow]) -> str:
    """Write how fast tokens come, and why their energy is not told."""
    name = "output_tokens_per_s"
    parts = []
    for row in rows:
        speed = row.figures.get("decode_tokens_per_s") or row.figures.get(name)
        if speed is not None:
            parts.append(f"{significant(speed.value, 3)} tokens/s at {load_of(row)}, {row.cell.mode}")
    reasons = [why for row in rows if (why := row.why_not.get(main_of(row.cell)))]
    untold = f"; energy not told: {reasons[0].rstrip('.')}" if reasons else ""
    return f"{', '.join(parts) or 'no token came while it was measured'}{untold}"


def _few_processes(told: Sequence[tuple[EnergyRow, Estimate]]) -> str:
    """Say that joules are of too few processes to stand for a run."""
    few = [energy.n for _, energy in told if energy.scope == "process"]
    if not few:
        return ""
    named = "one process" if max(few) == 1 else f"{max(few)} processes"
    return (
        f"Joules are of {named}: other processes may differ by more than the interval "
        f"(scenario.repeats: {FEWEST_PROCESSES} or more cover that)."
    )


def _stalled(rows: Sequence[EnergyRow]) -> str:
    """Say that a server was silent for far longer than usual while it was measured."""
    some = sum(has_stalled(row) for row in rows)
    where = "" if len(rows) == 1 else f" in {some} of {len(rows)} cells"
    return f"The server stalled meanwhile{where}, and that time counts." if some else ""


def has_stalled(row: EnergyRow) -> bool:
    """Return whether a server was silent for far longer than usual while a cell was measured."""
    return any(note.startswith(STALLED) for note in row.notes)


def _waiting(rows: Sequence[EnergyRow]) -> str:
    """Say in which modes the GPU waited for the host."""
    waited: dict[str, list[float]] = {}
    for row in rows:
        busy = row.figures.get("busy_share")
        if busy is not None and busy.value < HOST_BOUND:
            waited.setdefault(row.cell.mode, []).append(100 * (1 - busy.value))
    clauses = [f"{mode} {_span(shares)}" for mode, shares in waited.items()]
    return f"Host-bound: the GPU waited for the host in {', in '.join(clauses)} of the time." if clauses else ""


def _span(shares: Sequence[float]) -> str:
    low, high = f"{min(shares):.0f}", f"{max(shares):.0f}"
    return f"{low} %" if low == high else f"{low}–{high} %"


def _left_out(result: EnergyResult) -> str:
    """Count the cells that gave nothing, or not all."""
    every = len(result.rows) + len(result.left_out)
    some = sum(row.partial for row in result.rows)
    parts = []
    if result.left_out:
        why = next(iter(result.left_out.values())).rstrip(".")
        parts.append(f"{len(result.left_out)} of {every} cells left out ({why})")
    parts += [f"{some} of {every} only in part"] if some else []
    return f"{' and '.join(parts)}." if parts else ""


def _fake(rows: Sequence[EnergyRow]) -> str:
    origin = next((row.origin for row in rows if row.origin != "real"), None)
    return (
        "" if origin is None else f"The numbers are of a {origin} device." if origin == "fake" else "It is simulated."
    )
