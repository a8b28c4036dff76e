"""Whether every shape is as efficient as was asked for, by its interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.experiments.scaling.shapes import words
from assay.experiments.scaling.written import share

if TYPE_CHECKING:
    from assay.core.results import Verdict
    from assay.experiments.scaling.analysis import Analysis
    from assay.experiments.scaling.numbers import Known
    from assay.experiments.scaling.options import ScalingOptions


FEWEST_REPEATS = 2
"""Starts that an interval takes: one is one draw, and says nothing of the next."""

GATE_REPEATS = 5
"""Starts that a gate plans: with two or three Student's t is so wide that hardly anything is sure."""


@dataclass(frozen=True)
class Gate:
    """The answer: no only where all of an interval lies below; yes where all of every interval lies above."""

    verdict: Verdict
    sentence: str


def judge(efficiency: Known, least: float) -> Verdict:
    """Return whether an efficiency is at least so much; without an interval nothing is sure."""
    if efficiency.ends is None:
        return "unsure"
    low, high = efficiency.ends
    return "no" if high < least else "yes" if low >= least else "unsure"


def refuse_blind(least: float | None, repeat: int | None) -> None:
    """Refuse a gate that could never say no, before anything is measured.

    Raises:
        BadInput: A gate is asked for with so few starts that there is no interval; null repeats: as many as it plans.
    """
    if least is not None and repeat is not None and repeat < FEWEST_REPEATS:
        raise BadInput(
            f"--min-efficiency could never say no: --repeat {repeat} gives no interval over starts. "
            f"--repeat {GATE_REPEATS} does, and is what a gate plans by itself."
        )


def judge_over_starts(efficiency: Known, least: float) -> Verdict:
    """Return a gate's answer for one shape: an interval within one start decides nothing."""
    return judge(efficiency, least) if efficiency.is_over_starts else "unsure"


def gate(options: ScalingOptions, found: Analysis) -> Gate | None:
    """Return the gate's answer; null where none was asked for."""
    least = options.min_efficiency
    if least is None:
        return None
    requirement = f"an efficiency of at least {least:.0%}"
    if not found.scaled:
        return Gate("unsure", f"Unsure of {requirement}: nothing was measured with more than one rank.")
    by_verdict: dict[str, list[str]] = {"no": [], "unsure": [], "yes": []}
    for result in found.scaled:
        number = result["efficiency"]
        value = share(number) if number.value is not None else (number.reason or "not measured")
        why = "" if number.value is None or number.is_over_starts else ", without an interval over starts"
        clause = f"{words(result.shape, is_attention=options.is_attention)}: {value}{why}"
        by_verdict[judge_over_starts(number, least)].append(clause)
    if by_verdict["no"]:
        return Gate("no", f"Below {requirement}: {'; '.join(by_verdict['no'])}.")
    if by_verdict["unsure"]:
        return Gate("unsure", f"Unsure of {requirement}: {'; '.join(by_verdict['unsure'])}.")
    return Gate("yes", f"Every shape has {requirement}.")
