"""Whether rows of results use their ranks well enough: by intervals over several starts, of runs and files alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Verdict
    from assay.experiments.scaling.rows import Row

ONE_START = "it has no interval over several starts; --repeat 5 measures one"


@dataclass(frozen=True)
class Judged:
    """A shape, whether it is efficient enough, and what must be known of that."""

    row: Row
    verdict: Verdict
    reason: str | None


def judge(row: Row, least: float) -> Judged:
    """Return whether a shape of several ranks is efficient enough; of the older tool's that cannot be told."""
    share = row.efficiency
    if row.by is None or share is None:
        return Judged(row, "unsure", row.note or "its efficiency is not known")
    if share.low is None or share.high is None or not row.over_starts:
        return Judged(row, "unsure", "; ".join([ONE_START, *([row.note] if row.note else [])]))
    return Judged(row, "yes" if share.low >= least else "no" if share.high < least else "unsure", row.note)


def can_decide(each: Sequence[Judged]) -> bool:
    """Return whether there is a shape that a gate can rest on, whatever its efficiency is."""
    return any(
        judged_row.row.by is not None
        and judged_row.row.over_starts
        and judged_row.row.efficiency is not None
        and judged_row.row.efficiency.low is not None
        for judged_row in each
    )


def judged(rows: Sequence[Row], least: float) -> tuple[Judged, ...]:
    """Return every shape of several ranks, judged."""
    return tuple(judge(row, least) for row in rows if row.world > 1)


def verdict_of(each: Sequence[Judged]) -> Verdict:
    """Return the verdict on all: one that is surely not enough decides; nothing to judge decides nothing."""
    verdicts = {judged_row.verdict for judged_row in each}
    if "no" in verdicts:
        return "no"
    return "unsure" if "unsure" in verdicts or not verdicts else "yes"
