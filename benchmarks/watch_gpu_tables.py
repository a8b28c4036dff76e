"""What watching a GPU moves, from what was kept: pure functions of the quantiles of each block.

Blocks of one round lie next to each other, so each is held against the unwatched block of its own round: the logarithm
of the ratio, over rounds, with Student's t. "The same" is shown by two one-sided tests at 5 %: the whole 90 % interval
lies within the margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

ALONE, AGAIN = "nothing", "nothing, again"
"""The block that others are held against, and one just like it: what is found there is found where nothing moved."""
SHOWN = (("kernel", "p50"), ("kernel", "p99"), ("call", "p50"), ("call", "p99"))
MARGINS = {"p50": 0.005, "p99": 0.02}
FEWEST_ROUNDS = 3
Raw = dict[str, Any]
Verdict = Literal["same", "not the same", "unsure"]


@dataclass(frozen=True)
class Shift:
    """By how much a quantile moved, as a share, with its 95 % interval, and whether that is within the margin."""

    value: float
    low: float
    high: float
    verdict: Verdict


def shift(ratios: list[float], margin: float) -> Shift:
    """Return what ratios of several rounds say of a shift."""
    logs = np.log(np.array(ratios, dtype=np.float64))
    n, mean = len(logs), float(logs.mean())
    error = float(logs.std(ddof=1)) / np.sqrt(n)
    low, high = (float(np.expm1(mean + side * stats.t.ppf(0.975, n - 1) * error)) for side in (-1, 1))
    inner_low, inner_high = (float(np.expm1(mean + side * stats.t.ppf(0.95, n - 1) * error)) for side in (-1, 1))
    verdict: Verdict = "unsure"
    if -margin < inner_low and inner_high < margin:
        verdict = "same"
    elif inner_low > margin or inner_high < -margin:
        verdict = "not the same"
    return Shift(float(np.expm1(mean)), low, high, verdict)


def shifts(raw: Raw, condition: str) -> dict[tuple[str, str], Shift]:
    """Return the shift of each quantile under a condition; empty where too few rounds have both blocks."""
    pairs = [(blocks[condition], blocks[ALONE]) for blocks in _by_round(raw) if condition in blocks and ALONE in blocks]
    if len(pairs) < FEWEST_ROUNDS:
        return {}
    return {
        (what, which): shift([watched[what][which] / alone[what][which] for watched, alone in pairs], MARGINS[which])
        for what, which in SHOWN
    }


def _by_round(raw: Raw) -> list[dict[str, Raw]]:
    rounds: dict[int, dict[str, Raw]] = {}
    for block in raw["blocks"]:
        rounds.setdefault(block["round"], {})[block["condition"]] = block
    return list(rounds.values())


def table(raw: Raw) -> str:
    """Return the published table, and below it what the shifts are of."""
    titles = (
        "beside", "rounds", "of a core", "looks", "missed",
        *(f"{what}, {which}: moved by (95 %), within ±{100 * MARGINS[which]:g} %" for what, which in SHOWN),
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += [_row(raw, condition) for condition in raw["conditions"] if condition != ALONE]
    return "\n".join([*lines, "", *_below(raw)])


def _row(raw: Raw, condition: str) -> str:
    blocks = [block for block in raw["blocks"] if block["condition"] == condition]
    result = shifts(raw, condition)
    cells = [condition, str(len(blocks)), _cpu(blocks), _sum(blocks, "looks"), _sum(blocks, "missed")]
    cells += [_told(result[shown]) if shown in result else "–" for shown in SHOWN]
    return f"| {' | '.join(cells)} |"


def _told(moved: Shift) -> str:
    return f"{100 * moved.value:+.2f} % ({100 * moved.low:+.2f} – {100 * moved.high:+.2f}), {moved.verdict}"


def _cpu(blocks: list[Raw]) -> str:
    """Return the CPU time of the watching process over the time of all blocks."""
    values = [(block["cpu_s"], block["s"]) for block in blocks if block["cpu_s"] is not None]
    return f"{100 * sum(cpu_s for cpu_s, _ in values) / sum(s for _, s in values):.1f} %" if values else "–"


def _sum(blocks: list[Raw], what: str) -> str:
    counted = [block[what] for block in blocks if block[what] is not None]
    return str(sum(counted)) if counted else "–"


def _below(raw: Raw) -> list[str]:
    alone = [block for block in raw["blocks"] if block["condition"] == ALONE]
    output = []
    if alone:
        times = [f"{what} {which} {_median(alone, what, which):.2f} µs" for what, which in SHOWN]
        counts = [
            f"{round(float(np.median([block[what]['n'] for block in alone]))):,} {what}s" for what in ("kernel", "call")
        ]
        output.append(f"Beside nothing: {', '.join(times)}; {' and '.join(counts)} a block of {raw['block_s']:g} s.")
    output += [f"Left out: {condition} ({why})." for condition, why in raw["left_out"].items()]
    return output


def _median(blocks: list[Raw], what: str, which: str) -> float:
    return float(np.median([block[what][which] for block in blocks]))
