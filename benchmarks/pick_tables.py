"""From what ``pick.py`` kept to its tables."""

from __future__ import annotations

import statistics
from typing import Any

from scipy import stats

TOLERANCE = 0.01


def tables(raw: dict[str, Any]) -> list[str]:
    """Return the table of regrets, and whether the stated probabilities are true."""
    return [regret_table(raw), probability_table(raw)]


def regrets(shape: dict[str, Any]) -> dict[str, float]:
    """Return how much slower than the best each candidate is, as a share.

    The best is ranked on the even rounds of the judge; it and the others are read off the odd ones.
    """
    rounds = [one for session in shape["judged"] for one in session]
    ranking, judging = (_medians(rounds[start::2]) for start in (0, 1))
    best = judging[min(ranking, key=lambda name: ranking[name])]
    return {name: us / best - 1 for name, us in judging.items()}


def _medians(rounds: list[dict[str, list[float]]]) -> dict[str, float]:
    return {name: statistics.median(us for one in rounds for us in one[name]) for name in rounds[0]}


def regret_table(raw: dict[str, Any]) -> str:
    """Return what each tuner picked under each condition, and what it cost."""
    lines = [
        "| matmul | condition | tuner | tries | different picks | median regret | worst regret | seconds a try |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for side, shape in raw.items():
        behind = regrets(shape)
        groups = dict.fromkeys((t["condition"], t["tuner"]) for t in shape["tries"])
        for condition, tuner in groups:
            tries = [t for t in shape["tries"] if (t["condition"], t["tuner"]) == (condition, tuner)]
            lost = [behind[t["pick"]] for t in tries]
            took = statistics.median(t["took_s"] for t in tries)
            picks = len({t["pick"] for t in tries})
            cells = (f"{100 * statistics.median(lost):.1f} %", f"{100 * max(lost):.1f} %", f"{took:.2f}")
            lines.append(f"| {side}³ | {condition} | {tuner} | {len(tries)} | {picks} | {' | '.join(cells)} |")
    return "\n".join(lines)


def probability_table(raw: dict[str, Any]) -> str:
    """Return how often a pick was within 1 % of the best, beside how often it was said to be."""
    lines = [
        "| matmul | condition | picks of Assay | said to be within 1 % of the best | were | 95 % bounds |",
        "|---|---|---|---|---|---|",
    ]
    for side, shape in raw.items():
        behind = regrets(shape)
        for condition in dict.fromkeys(t["condition"] for t in shape["tries"]):
            tries = [t for t in shape["tries"] if t["condition"] == condition and "probability" in t]
            right = sum(behind[t["pick"]] <= TOLERANCE for t in tries)
            bounds = stats.binomtest(right, len(tries)).proportion_ci()
            text = statistics.mean(t["probability"] for t in tries)
            lines.append(
                f"| {side}³ | {condition} | {len(tries)} | {100 * text:.0f} % | {100 * right / len(tries):.0f} % "
                f"| {100 * bounds.low:.0f}–{100 * bounds.high:.0f} % |"
            )
    return "\n".join(lines)
