"""The published tables of dilated attention, from what was kept."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.attention_rivals import flop

if TYPE_CHECKING:
    from collections.abc import Sequence

Kept = dict[str, Any]
OURS, CUDNN, FLASH = "Assay", "strided cuDNN, eager merge", "strided flash, eager merge"
PASSES = ("forward", "forward + backward")
PARTS = ("output", "dq", "dk", "dv")
BATCH = 2
OPERATIONS = {PASSES[0]: 1.0, PASSES[1]: 3.5}
REACH = (("forward", CUDNN, 1.3), ("forward + backward", FLASH, 1.7))
CLAIMED_AT, SHORT, LEAST_SHARE = 65536, 16384, 0.85


def tables(raw: Kept) -> dict[str, str]:
    """Return all tables by name."""
    return {
        "times": times(raw["cells"], raw["skipped"]),
        "scale": times(raw["scale"], ()),
        "reach": reach(raw),
        "exactness": exactness(raw),
        "memory": memory(raw),
    }


def milliseconds(cell: Kept, name: str) -> float:
    """Return the median of a function's samples."""
    return float(statistics.median(cell["samples_us"][name])) / 1000


def tflops(cell: Kept, name: str) -> float:
    """Return what a function reaches, counting the operations of dilated attention."""
    return flop(BATCH, cell["sequence"]) * OPERATIONS[cell["passes"]] / milliseconds(cell, name) / 1e9


def times(cells: Sequence[Kept], skipped: Sequence[str]) -> str:
    """Return every function's time, and how many times ours it is."""
    rows = [
        "| sequence | passes | function | median, ms | TFLOP/s | times ours (95 %) | samples |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in sorted(cells, key=lambda c: (c["sequence"], PASSES.index(c["passes"]))):
        for name in cell["samples_us"]:
            ratio, low, high = cell["ratios"].get(name, (1.0, None, None))
            within = f"{ratio:.2f}" + (f" ({low:.2f}–{high:.2f})" if low is not None else "")
            work = "–" if name.startswith("full") else f"{tflops(cell, name):.0f}"
            rows.append(
                f"| {cell['sequence']} | {cell['passes']} | {name} | {milliseconds(cell, name):.3f} | {work} "
                f"| {within} | {len(cell['samples_us'][name])} |"
            )
        rows += [
            f"| {cell['sequence']} | {cell['passes']} | {name} | could not run: {reason.replace('|', '/')} | | | |"
            for name, reason in cell["failed"].items()
        ]
    rows += [f"| {name} | not measured: no time was left | | | | | |" for name in skipped]
    return "\n".join(rows)


def reach(raw: Kept) -> str:
    """Return what was wanted beside what was measured."""
    rows = ["| wanted | measured (95 %) |", "|---|---|"]
    cells = {(cell["sequence"], cell["passes"]): cell for cell in raw["cells"]}
    for passes, rival, least in REACH:
        cell = cells.get((CLAIMED_AT, passes))
        text = "not measured"
        if cell is not None and rival in cell["ratios"]:
            ratio, low, high = cell["ratios"][rival]
            text = f"{ratio:.2f} ({low:.2f}–{high:.2f})" if low is not None else f"{ratio:.2f}, without an interval"
        rows.append(f"| {passes} at {CLAIMED_AT}: at least {least} times as fast as {rival} | {text} |")
    for passes in PASSES:
        short, long = cells.get((SHORT, passes)), cells.get((CLAIMED_AT, passes))
        text = f"{tflops(short, OURS) / tflops(long, OURS):.0%}" if short and long else "not measured"
        rows.append(f"| {passes} at {SHORT}: at least {LEAST_SHARE:.0%} of the TFLOP/s at {CLAIMED_AT} | {text} |")
    worst = max((w for row in raw["exact"] for w in shares(row)), default=None)
    text = "not measured" if worst is None else f"{worst:.2f}"
    rows.append(f"| error against float64: at most 2 times that of dense attention in the same dtype | {text} |")
    return "\n".join(rows)


def shares(row: Kept) -> list[float]:
    """Return our distance from float64 over that of dense attention, for the output and each gradient."""
    return [ours / dense for ours, dense in zip(row["ours"], row["dense"], strict=True)]


def exactness(raw: Kept) -> str:
    """Return how far results are from float64, ours and dense attention's of the same dtype."""
    rows = [
        "| dtype | mask | " + " | ".join(f"{part}: ours, dense" for part in PARTS) + " | worst share |",
        "|---|---|" + "---|" * (len(PARTS) + 1),
    ]
    for row in raw["exact"]:
        pairs = " | ".join(f"{a:.1e}, {b:.1e}" for a, b in zip(row["ours"], row["dense"], strict=True))
        rows.append(f"| {row['dtype']} | {'causal' if row['causal'] else 'none'} | {pairs} | {max(shares(row)):.2f} |")
    return "\n".join(rows)


def memory(raw: Kept) -> str:
    """Return the peak of memory and what that is for a position."""
    rows = ["| positions (one sequence) | inputs, MiB | peak, MiB | peak, KiB a position |", "|---|---|---|---|"]
    for row in raw["memory"]:
        mib, kib_per_token = row["peak_bytes"] / 2**20, row["peak_bytes"] / 1024 / row["sequence"]
        rows.append(f"| {row['sequence']} | {row['held_bytes'] / 2**20:.0f} | {mib:.0f} | {kib_per_token:.2f} |")
    return "\n".join(rows)
