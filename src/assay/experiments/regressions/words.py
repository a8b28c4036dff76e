"""Steps in words: the answer in one sentence, and what each step is."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from assay.stats.changes import SHORTEST

if TYPE_CHECKING:
    from assay.experiments.regressions.found import Found, Stepped

PLURAL = {
    "regression": ("regression", "regressions"),
    "confounded": (
        "step that a change of host or driver may explain",
        "steps that a change of host or driver may explain",
    ),
    "change": ("change", "changes"),
    "improvement": ("improvement", "improvements"),
    "taken back": ("step that was taken back", "steps that were taken back"),
    "small": ("that is small", "that are small"),
    "maybe chance": ("that may be chance", "that may be chance"),
}


def headline(found: Found) -> str:
    """Return the answer in a sentence or two."""
    looked = f"{found.series} series with {found.runs} runs were looked at"
    if not found.series:
        return f"Nothing can be told: {_why_nothing(found)}."
    if not found.steps:
        drift = f" {len(found.drifted)} moved slowly, without one." if found.drifted else ""
        return f"No step is told: {looked}.{drift}"
    counts = Counter(step.standing for step in found.steps)
    counts_text = ", ".join(f"{count} {PLURAL[name][count > 1]}" for name, count in counts.items())
    worst = next(iter(found.regressions), None)
    return f"{counts_text}; {looked}." if worst is None else f"{sentence(worst)}. In all: {counts_text}; {looked}."


def _why_nothing(found: Found) -> str:
    if not found.too_short:
        return "there are no such series in the history"
    zeros = f", without the {found.not_positive} that are not above zero" if found.not_positive else ""
    return f"no series has the {SHORTEST} runs{zeros} that it takes to tell a step from noise"


def sentence(step: Stepped) -> str:
    """Say what a step is, since which run and commit."""
    commit = f", commit {step.first_bad.code}" if step.first_bad.code else ""
    since = f"since run {step.first_bad.run} of {step.first_bad.began_at:%Y-%m-%d %H:%M}{commit}"
    return f"{step.what} ({step.details}) on {step.where} is {step.verdict}, {change(step)}, {since}"


def change(step: Stepped) -> str:
    """Write a ratio as the change it is, with its interval."""
    value, low, high = (
        100 * (ratio - 1) for ratio in (step.ratio.value, step.ratio.low or 0.0, step.ratio.high or 0.0)
    )
    return f"{value:+.1f} % ({low:+.1f} to {high:+.1f})"


def commits(step: Stepped) -> str | None:
    """Write the commits between which a step lies; null where none is known."""
    before, after = step.last_good.code, step.first_bad.code
    if before is None and after is None:
        return None
    return f"{before or '?'} → {after or '?'}" if before != after else f"{after} on both sides"
