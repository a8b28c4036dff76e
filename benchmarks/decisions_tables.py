"""Tables about thresholds, from how often each outcome came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scipy import stats

from benchmarks.decisions_thresholds import AS_RUN, CURVES, LOOK_BY_LOOK, NOISES, RULES, SIZES, STEEP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TOO_LOW, NEAR, EXACT_IF_STEEP, PAIRS = 0.01, 0.95, 0.75, 20.0
"""What is asked: shares of decisions, and pairs a size on average."""
OURS = (AS_RUN, LOOK_BY_LOOK)
NAMES = ("n", "too_low", "exact", "near", "unsure", "holds")


def most(k: int, n: int) -> float:
    """Return the upper end of the exact 95 % binomial interval of a share."""
    return float(stats.binomtest(k, n).proportion_ci().high)


def rate(k: int, n: int) -> str:
    """Return a share with the upper end of its exact 95 % binomial interval, in percent."""
    return f"{100 * k / n:.1f} (≤ {100 * most(k, n):.1f})"


def marked(text: str, *, good: bool) -> str:
    """Return a cell that says where what is asked is not reached."""
    return text if good else f"{text} **no**"


@dataclass(frozen=True)
class Row:
    """How often a rule was too low, exact, exact or at the next size, and unsure; and the pairs it took.

    An answer that is unsure is neither exact nor next, but the truth may lie in what it leaves open (``holds``).
    """

    n: int
    too_low: int
    exact: int
    near: int
    unsure: int
    holds: int
    pairs: float

    @classmethod
    def of(cls, rule: str, outcomes: Mapping[str, Any]) -> Row:
        """Return the row of a rule, which must have the truth in its interval to be near, if it gives one."""
        counts = dict.fromkeys(NAMES, 0)
        for outcome, count in outcomes["counts"].items():
            parts = outcome.split()
            kind, truth, low, index = parts[1], int(parts[0]), int(parts[2]), int(parts[3])
            sure, holds = kind != "unsure", low <= truth or rule not in OURS
            counts["n"] += count
            counts["unsure"] += count * (not sure)
            counts["too_low"] += count * (sure and index < truth)
            counts["exact"] += count * (sure and index == truth)
            counts["holds"] += count * (low <= truth <= index)
            counts["near"] += count * (sure and holds and 0 <= index - truth <= 1)
        return cls(**counts, pairs=outcomes["pairs"] / counts["n"] / SIZES)

    @classmethod
    def together(cls, rows: Iterable[Row]) -> Row:
        """Return several rows as one."""
        all_ = list(rows)
        sums = {name: sum(getattr(row, name) for row in all_) for name in NAMES}
        return cls(**sums, pairs=sum(row.pairs for row in all_) / len(all_))


def _percent(k: int, n: int) -> str:
    return f"{100 * k / n:.1f}"


def _of_ours(rule: str, rows: Mapping[tuple[str, str, str], Row]) -> list[str]:
    titles = ("too low, %", "exact, %", "exact or next, %", "unsure, %", "truth within, %", "pairs a size")
    lines = [f"| {rule}: curve | noise | {' | '.join(titles)} |", f"|{(2 + len(titles)) * '---|'}"]
    for curve in CURVES:
        for noise in NOISES:
            row = rows[rule, curve, noise]
            cells = (
                marked(rate(row.too_low, row.n), good=row.too_low <= TOO_LOW * row.n),
                marked(_percent(row.exact, row.n), good=curve not in STEEP or row.exact >= EXACT_IF_STEEP * row.n),
                marked(_percent(row.near, row.n), good=row.near >= NEAR * row.n),
                _percent(row.unsure, row.n),
                _percent(row.holds, row.n),
                marked(f"{row.pairs:.1f}", good=row.pairs < PAIRS),
            )
            lines.append(f"| {curve} | {noise} | {' | '.join(cells)} |")
    return lines


def _of_simple(rows: Mapping[tuple[str, str, str], Row]) -> list[str]:
    rules = [rule for rule in RULES if rule not in OURS]
    titles = [f"{rule}: {what}" for rule in rules for what in ("too low, %", "exact, %", "or next, %")]
    lines = [f"| curve | noise | {' | '.join(titles)} |", f"|{(2 + len(titles)) * '---|'}"]
    for curve in CURVES:
        for noise in NOISES:
            cells = []
            for rule in rules:
                row = rows[rule, curve, noise]
                cells += [rate(row.too_low, row.n), _percent(row.exact, row.n), _percent(row.near, row.n)]
            lines.append(f"| {curve} | {noise} | {' | '.join(cells)} |")
    return lines


def _of_all(rows: Mapping[tuple[str, str, str], Row]) -> list[str]:
    titles = ("too low, %", "at worst", "steep: exact, %", "at worst", "exact or next, %", "at worst", "unsure, %")
    lines = [f"| rule | {' | '.join(titles)} | pairs a size |", f"|{(2 + len(titles)) * '---|'}"]
    for rule in RULES:
        own = {key[1:]: row for key, row in rows.items() if key[0] == rule}
        steep, all_ = [row for (curve, _), row in own.items() if curve in STEEP], list(own.values())
        whole, together = Row.together(all_), Row.together(steep)
        cells = (
            rate(whole.too_low, whole.n),
            f"{max(100 * row.too_low / row.n for row in all_):.1f}",
            _percent(together.exact, together.n),
            f"{min(100 * row.exact / row.n for row in steep):.1f}",
            _percent(whole.near, whole.n),
            f"{min(100 * row.near / row.n for row in all_):.1f}",
            _percent(whole.unsure, whole.n),
            f"{whole.pairs:.1f}",
        )
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return lines


def threshold_tables(outcomes: Mapping[str, Any]) -> list[str]:
    """Return all tables about thresholds: every rule at a glance, Assay row by row, the simple rules row by row."""
    rows = {}
    for key, saved in outcomes.items():
        rule, curve, noise = key.split(" | ")
        rows[rule, curve, noise] = Row.of(rule, saved)
    return [*_of_all(rows), "", *_of_ours(AS_RUN, rows), "", *_of_ours(LOOK_BY_LOOK, rows), "", *_of_simple(rows)]
