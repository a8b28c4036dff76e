"""What is claimed of the records, each claim with its number, its verdict and the trials behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Finding
from assay.experiments.contention.choices import over_blocks, over_devices
from assay.experiments.contention.claims import of_devices, of_losses, of_spreads, of_times, of_variation, trials_of
from assay.experiments.contention.noise import PARTS
from assay.experiments.contention.options import QUIET, WORDS
from assay.experiments.shares import share_estimate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.values import Params
    from assay.experiments.contention.analysis import Analysis
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.stats.shares import Share

SIGNIFICANT = 0.05


def findings_of(options: ContentionOptions, found: Analysis) -> tuple[Finding, ...]:
    """Return every finding, the ones that answer the question first."""
    return (
        *of_times(options, found),
        *of_spreads(options, found),
        *of_variation(options, found),
        *_of_picks(options, found),
        *of_losses(options, found),
        *of_devices(options, found),
        *_of_noise(found),
        *_of_sensors(found),
        *_of_the_missing(found),
        *_of_the_budget(found),
    )


def _of_picks(options: ContentionOptions, found: Analysis) -> Iterator[Finding]:
    for phase, mismatch in found.mismatches.items():
        counts = f"{mismatch.only_here.count} times only here, {mismatch.only_same} times only in A/A"
        yield Finding(
            claim=f"{WORDS[phase].capitalize()}, the tuner picks otherwise than alone more often than it does alone",
            estimate=share_estimate(mismatch.share, "picks that differ from those alone in the same block"),
            verdict=mismatch.verdict,
            reason=f"A/A picks differ in {mismatch.same.count} of {mismatch.same.n}; {counts} "
            f"(McNemar p = {mismatch.p:.2g})",
            records=trials_of(found, phase, *QUIET),
            facts={"about": "mismatch", "phase": phase, "same_count": mismatch.same.count, "same_n": mismatch.same.n},
        )
    for phase in options.phases:
        yield from _changes(found, phase, over_blocks(found.picked, phase), "from one block to the next")
        if found.incomparable is None and len(options.devices) > 1:
            devices = over_devices(found.picked, phase, options.devices)
            yield from _changes(found, phase, devices, "from one device to the next")


def _changes(found: Analysis, phase: Phase, share: Share, how: str) -> Iterator[Finding]:
    estimate = share_estimate(share, f"picks that differ {how}")
    if estimate is not None:
        yield Finding(
            claim=f"{WORDS[phase].capitalize()}, the pick changes {how}",
            estimate=estimate,
            verdict="yes" if share.count else "unsure",
            records=trials_of(found, phase),
            reason=None if share.count else f"it never did in {share.n} comparison{'' if share.n == 1 else 's'}",
            facts={"about": f"mismatch {how}", "phase": phase},
        )


def _of_noise(found: Analysis) -> Iterator[Finding]:
    for budget in found.budgets:
        condition, largest = WORDS.get(budget.condition, budget.condition), budget.largest
        parts: Params = {f"{part}_percent": 100 * budget.spread(part) for part in budget.parts}
        yield Finding(
            claim=f"More than half of the noise of a timing, {condition}, arises {PARTS[largest]}",
            estimate=None,
            verdict="yes" if budget.parts[largest] > budget.total / 2 else "no",
            records=trials_of(found, *(QUIET if budget.condition == "alone" else (budget.condition,))),
            facts={"about": "noise", "condition": budget.condition, **parts},
        )


def _of_sensors(found: Analysis) -> Iterator[Finding]:
    for sensor in found.sensed:
        rho, n, p = sensor.found.rho, sensor.found.n, sensor.found.p
        yield Finding(
            claim=f"Times go with: {sensor.what}",
            estimate=None,
            verdict="yes" if p <= SIGNIFICANT else "unsure",
            records=tuple(phase_trial.record.trial for phase_trial in found.layout.seen),
            reason=f"Spearman's rho {rho:+.2f} over {n} trials, p = {p:.2g}, held to all that were looked at",
            facts={"about": "sensors", "rho": rho, "n": n, "p": p},
        )


def _of_the_missing(found: Analysis) -> Iterator[Finding]:
    for missing in found.layout.missing:
        claim = "Every phase was measured as planned"
        facts: Params = {"about": "missing"}
        reason = f"{missing.where}: {missing.why}"
        yield Finding(claim=claim, estimate=None, verdict="no", reason=reason, records=(missing.trial,), facts=facts)


def _of_the_budget(found: Analysis) -> Iterator[Finding]:
    if found.overrun is not None:
        facts: Params = {"about": "budget"}
        claim = "The run kept to its budget"
        yield Finding(claim=claim, estimate=None, verdict="no", reason=found.overrun, records=(), facts=facts)
