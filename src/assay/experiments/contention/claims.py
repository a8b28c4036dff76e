"""Claims about effects: of company on times, on their spread and on what picks cost; and between devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate, Finding
from assay.experiments.contention.options import CROWDED, QUIET, WORDS
from assay.experiments.contention.plan import role_name
from assay.experiments.contention.slowdown import cv_table
from assay.experiments.times import TIMES
from assay.stats.blocks import ratio_of, together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.values import Params
    from assay.experiments.contention.analysis import Analysis
    from assay.experiments.contention.effects import Effect
    from assay.experiments.contention.options import ContentionOptions
    from assay.experiments.contention.places import Place
    from assay.experiments.contention.slowdown import Comparisons

STEADY = 0.05
"""A coefficient of variation that is called little."""


def trials_of(found: Analysis, *phases: str, place: Place | None = None) -> tuple[str, ...]:
    """Return the trials that a claim about phases, or about one place in them, rests on."""
    ids = (
        cell.trial
        for cell in found.layout.cells
        if cell.phase in phases and (place is None or cell.place in {place, place.alone})
    )
    return tuple(dict.fromkeys(ids))


def why_of(effect: Effect, minimum_effect: float) -> str:
    """Return what a verdict rests on, in words."""
    ratio, floor = effect.ratio, effect.floor
    if ratio is None:
        return "it was not measured"
    if floor is None:
        return "there is no A/A control to hold it against"
    if ratio.low is None:
        return "one block has no interval; more --repeat or a longer --budget gives one"
    limit = f"the same thing measured twice differs by up to {floor:.1%} over {ratio.blocks} blocks"
    if effect.verdict == "yes":
        return f"the interval excludes 1, and {limit}"
    if effect.verdict == "no":
        return f"all of the interval lies within ±{minimum_effect:.0%}, or within what A/A shows; {limit}"
    return f"not decided: {limit}; more --repeat or a longer --budget narrows the interval"


def of_times(options: ContentionOptions, found: Analysis) -> Iterator[Finding]:
    """Return whether times are others than alone: all places together, then each."""
    for quantity, comparisons in found.times.items():
        claim = f"{TIMES[quantity].replace('median', 'mean')} is another than alone"
        facts: Params = {"about": "time", "quantity": quantity}
        yield from _all_together(options, found, comparisons, claim, facts)
        for phase in CROWDED:
            slots = comparisons[phase].places if phase in comparisons else {}
            for slot, effect in slots.items() if len(slots) > 1 else ():
                label = options.subjects[slot.subject].label
                who = f"{label} on {role_name(slot.device, slot.worker, options.workers)}"
                where: Params = {"workload": label, "device": slot.device, "worker": slot.worker}
                yield _finding(
                    f"{who}, {WORDS[phase]}: {claim}",
                    effect,
                    options,
                    trials_of(found, phase, *QUIET, place=slot),
                    {**facts, "phase": phase, **where},
                )


def of_spreads(options: ContentionOptions, found: Analysis) -> Iterator[Finding]:
    """Return whether repeats of the same configuration spread otherwise than alone."""
    comparisons = found.spreads.get(found.layout.quantity, {})
    claim = "the coefficient of variation of repeats is another than alone"
    yield from _all_together(options, found, comparisons, claim, {"about": "spread"})


def of_variation(options: ContentionOptions, found: Analysis) -> Iterator[Finding]:
    """Return how much repeats of the same configuration vary in each phase, and whether that is little."""
    table = cv_table(found.layout, found.layout.quantity)
    for phase in options.phases:
        by_place = [by_block for (table_phase, _), by_block in table.items() if table_phase == phase]
        cv = ratio_of(together([[levels.get(block) for block in found.layout.blocks] for levels in by_place]))
        if cv is None:
            continue
        estimate = Estimate(
            value=100 * cv.value,
            low=None if cv.low is None else 100 * cv.low,
            high=None if cv.high is None else 100 * cv.high,
            unit="%",
            scope="run",
            method=f"coefficient of variation of repeats: geometric mean over {cv.blocks} blocks, Student's t",
            n=cv.blocks,
        )
        yield Finding(
            claim=f"{WORDS[phase].capitalize()}, repeats vary by less than {STEADY:.0%}",
            estimate=estimate,
            verdict="yes" if (cv.high or 1.0) < STEADY else "no" if (cv.low or 0.0) > STEADY else "unsure",
            records=trials_of(found, phase),
            facts={"about": "variation", "phase": phase},
        )


def of_losses(options: ContentionOptions, found: Analysis) -> Iterator[Finding]:
    """Return whether what is picked beside others is slower, timed in quiet, than what is picked alone."""
    claim = "what is picked takes another time, timed in quiet, than what is picked alone"
    for finding in _all_together(options, found, found.losses, claim, {"about": "regret"}):
        yield _unless_all_alike(finding)


def of_devices(options: ContentionOptions, found: Analysis) -> Iterator[Finding]:
    """Return whether devices differ from each other, or why that is not asked."""
    if found.incomparable is not None:
        reason = f"not compared: {found.incomparable}"
        claim, facts = "The devices take different times", {"about": "devices"}
        yield Finding(claim=claim, estimate=None, verdict="unsure", reason=reason, records=(), facts={**facts})
    for agreement in found.agreements:
        label = options.subjects[agreement.subject].label
        claim = f"{label}, {WORDS[agreement.phase]}: {agreement.slowest} takes another time than {agreement.fastest}"
        details: Params = {"about": "devices", "phase": agreement.phase, "workload": label}
        yield _finding(claim, agreement.effect, options, trials_of(found, agreement.phase), details)


def _all_together(
    options: ContentionOptions, found: Analysis, comparisons: Comparisons, claim: str, facts: Params
) -> Iterator[Finding]:
    """Return a finding for each phase with company, and one for A/A, all places together."""
    for phase, comparison in comparisons.items():
        prefix = "Alone, measured twice, " if phase == "again" else f"{WORDS[phase].capitalize()}, "
        records = trials_of(found, phase, *QUIET)
        yield _finding(f"{prefix}{claim}", comparison.overall, options, records, {**facts, "phase": phase})


def _finding(
    claim: str, effect: Effect, options: ContentionOptions, records: tuple[str, ...], facts: Params
) -> Finding:
    return Finding(
        claim=claim,
        estimate=effect.estimate,
        verdict=effect.verdict,
        reason=why_of(effect, options.minimum_effect),
        records=records,
        facts={**facts, "floor": effect.floor},
    )


def _unless_all_alike(finding: Finding) -> Finding:
    """Picks that never differed have no spread to judge by: that a few did not differ says little of the next."""
    estimate = finding.estimate
    if estimate is None or estimate.low is None or estimate.low != estimate.high:
        return finding
    reason = f"in {estimate.n} blocks every pick cost the same, which leaves no spread for an interval"
    without_interval = estimate.model_copy(update={"low": None, "high": None, "method": reason})
    return finding.model_copy(update={"estimate": without_interval, "verdict": "unsure", "reason": reason})
