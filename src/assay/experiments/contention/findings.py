"""Analyse the records, and state every claim with its number, its verdict and the trials behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.format import format_percent
from assay.core.results import Estimate, Finding
from assay.experiments.budget import overrun_text
from assay.experiments.contention.effects import (
    compare_phases,
    cv_table,
    device_agreements,
    gpu_models,
    incomparable_reason,
    slowdowns,
    spread_ratios,
)
from assay.experiments.contention.layout import build_layout
from assay.experiments.contention.noise import NOISE_PARTS, noise_budgets, sensor_correlations
from assay.experiments.contention.options import BASELINE_PHASES, CONCURRENT_PHASES, PHASE_LABELS
from assay.experiments.contention.plan import role_name
from assay.experiments.contention.regret import compute_regrets, regret_table
from assay.experiments.contention.tuner_agreement import (
    changes_over_blocks,
    changes_over_devices,
    pick_mismatches,
    pick_table,
)
from assay.experiments.estimates import TIME_QUANTITIES, share_estimate
from assay.stats.blocks import average_units, ratio_over_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.values import Params
    from assay.experiments.contention.effects import ContentionEffect, DeviceAgreement, PhaseComparisons
    from assay.experiments.contention.layout import ContentionLayout, WorkerSlot
    from assay.experiments.contention.noise import NoiseBudget, SensorCorrelation
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.experiments.contention.regret import SlotRegrets
    from assay.experiments.contention.tuner_agreement import PickMismatch, PickTable
    from assay.machine.model import Machine
    from assay.stats.ratios import Proportion
    from assay.store.records import Records


@dataclass(frozen=True, eq=False)
class ContentionAnalysis:
    """What is known of times, spreads, picks, devices and noise; times and spreads by quantity."""

    layout: ContentionLayout
    times: dict[str, PhaseComparisons]
    spreads: dict[str, PhaseComparisons]
    picks: PickTable
    mismatches: dict[Phase, PickMismatch]
    regrets: dict[WorkerSlot, SlotRegrets]
    losses: PhaseComparisons
    agreements: list[DeviceAgreement]
    budgets: list[NoiseBudget]
    correlations: list[SensorCorrelation]
    incomparable: str | None
    remarks: tuple[str, ...]
    overrun: str | None


def analyse(machine: Machine, options: ContentionOptions, records: Records) -> ContentionAnalysis:
    """Look at the records from every side."""
    laid = build_layout(machine, options, records)
    table = pick_table(laid.choices)
    regrets_by_slot = compute_regrets(machine, options, laid.choices, records)
    incomparable = incomparable_reason(machine, options)
    return ContentionAnalysis(
        layout=laid,
        times={q: slowdowns(laid, options.phases, q, options.minimum_effect) for q in laid.quantities},
        spreads={q: spread_ratios(laid, options.phases, q, options.minimum_effect) for q in laid.quantities},
        picks=table,
        mismatches=pick_mismatches(table, options.phases),
        regrets=regrets_by_slot,
        losses=compare_phases(regret_table(laid.choices, regrets_by_slot), options.phases, options.minimum_effect),
        agreements=[] if incomparable is not None else device_agreements(laid, options, laid.quantity),
        budgets=noise_budgets(laid, laid.quantity),
        correlations=sensor_correlations(laid, laid.quantity),
        incomparable=incomparable,
        remarks=machine_remarks(machine, options),
        overrun=overrun_text(options.budget_s, records) if options.keeps_to_budget else None,
    )


def machine_remarks(machine: Machine, options: ContentionOptions) -> tuple[str, ...]:
    """Return what must be known to read the results: too few cores, GPUs of different models, nothing to tune."""
    cores, models = len(machine.cores), gpu_models(machine, options)
    texts = []
    if options.processes > cores:
        texts.append(
            f"side by side {options.processes} processes share {cores} core{'' if cores == 1 else 's'}: "
            "isolation cannot give each its own"
        )
    if len(models) > 1:
        texts.append(f"the GPUs are of different models ({', '.join(models)}): times are compared on each by itself")
    plain = [s.label for s, tunable in zip(options.subjects, options.tunable, strict=True) if not tunable]
    if plain and options.tuner is not None:
        texts.append(f"{', '.join(plain)} has no configurations to choose from, and is only timed")
    return tuple(texts)


STEADY_CV = 0.05
"""A coefficient of variation that is called little."""


def supporting_trials(analysis: ContentionAnalysis, *phases: str, slot: WorkerSlot | None = None) -> tuple[str, ...]:
    """Return the trials that a claim about phases, or about one place in them, rests on."""
    ids = (
        cell.trial
        for cell in analysis.layout.cells
        if cell.phase in phases and (slot is None or cell.slot in {slot, slot.single_worker})
    )
    return tuple(dict.fromkeys(ids))


def effect_reason(effect: ContentionEffect, minimum_effect: float) -> str:
    """Return what a verdict rests on, in words."""
    ratio, floor = effect.ratio, effect.floor
    if ratio is None:
        return "it was not measured"
    if floor is None:
        return "there is no A/A control to hold it against"
    if ratio.low is None:
        return "one block has no interval; more --repeat or a longer --budget gives one"
    limit = f"the same thing measured twice differs by up to {format_percent(floor)} over {ratio.blocks} blocks"
    if effect.verdict == "yes":
        return f"the interval excludes 1, and {limit}"
    if effect.verdict == "no":
        return f"all of the interval lies within ±{format_percent(minimum_effect)}, or within what A/A shows; {limit}"
    return f"not decided: {limit}; more --repeat or a longer --budget narrows the interval"


def time_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Return whether times are others than alone: all places together, then each."""
    for quantity, comparisons in analysis.times.items():
        claim = f"{TIME_QUANTITIES[quantity].replace('median', 'mean')} is another than alone"
        facts: Params = {"quantity": quantity}
        yield from _overall_findings(options, analysis, comparisons, claim, facts, kind="time")
        for phase in CONCURRENT_PHASES:
            slots = comparisons[phase].slots if phase in comparisons else {}
            for slot, effect in slots.items() if len(slots) > 1 else ():
                label = options.subjects[slot.subject].label
                who = f"{label} on {role_name(slot.device, slot.worker, options.workers)}"
                where: Params = {"workload": label, "device": slot.device, "worker": slot.worker}
                yield _effect_finding(
                    f"{who}, {PHASE_LABELS[phase]}: {claim}",
                    effect,
                    options,
                    supporting_trials(analysis, phase, *BASELINE_PHASES, slot=slot),
                    {**facts, "phase": phase, **where},
                    kind="time",
                )


def spread_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Return whether repeats of the same configuration spread otherwise than alone."""
    comparisons = analysis.spreads.get(analysis.layout.quantity, {})
    claim = "the coefficient of variation of repeats is another than alone"
    yield from _overall_findings(options, analysis, comparisons, claim, {}, kind="spread")


def variation_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Return how much repeats of the same configuration vary in each phase, and whether that is little."""
    table = cv_table(analysis.layout, analysis.layout.quantity)
    for phase in options.phases:
        by_place = [by_block for (table_phase, _), by_block in table.items() if table_phase == phase]
        cv = ratio_over_blocks(
            average_units([[levels.get(block) for block in analysis.layout.blocks] for levels in by_place])
        )
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
            kind="variation",
            claim=f"{PHASE_LABELS[phase].capitalize()}, repeats vary by less than {format_percent(STEADY_CV)}",
            estimate=estimate,
            verdict="yes" if (cv.high or 1.0) < STEADY_CV else "no" if (cv.low or 0.0) > STEADY_CV else "unsure",
            records=supporting_trials(analysis, phase),
            facts={"phase": phase},
        )


def regret_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Return whether what is picked beside others is slower, timed in quiet, than what is picked alone."""
    claim = "what is picked takes another time, timed in quiet, than what is picked alone"
    for finding in _overall_findings(options, analysis, analysis.losses, claim, {}, kind="regret"):
        yield _undecided_without_spread(finding)


def device_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Return whether devices differ from each other, or why that is not asked."""
    if analysis.incomparable is not None:
        reason = f"not compared: {analysis.incomparable}"
        claim = "The devices take different times"
        yield Finding(kind="devices", claim=claim, estimate=None, verdict="unsure", reason=reason, records=())
    for agreement in analysis.agreements:
        label = options.subjects[agreement.subject].label
        claim = (
            f"{label}, {PHASE_LABELS[agreement.phase]}: {agreement.slowest} takes another time than {agreement.fastest}"
        )
        details: Params = {"phase": agreement.phase, "workload": label}
        trials = supporting_trials(analysis, agreement.phase)
        yield _effect_finding(claim, agreement.effect, options, trials, details, kind="devices")


def _overall_findings(
    options: ContentionOptions,
    analysis: ContentionAnalysis,
    comparisons: PhaseComparisons,
    claim: str,
    facts: Params,
    *,
    kind: str,
) -> Iterator[Finding]:
    """Return a finding for each phase with company, and one for A/A, all places together."""
    for phase, comparison in comparisons.items():
        prefix = "Alone, measured twice, " if phase == "again" else f"{PHASE_LABELS[phase].capitalize()}, "
        records = supporting_trials(analysis, phase, *BASELINE_PHASES)
        yield _effect_finding(
            f"{prefix}{claim}", comparison.overall, options, records, {**facts, "phase": phase}, kind=kind
        )


def _effect_finding(
    claim: str,
    effect: ContentionEffect,
    options: ContentionOptions,
    records: tuple[str, ...],
    facts: Params,
    *,
    kind: str,
) -> Finding:
    return Finding(
        kind=kind,
        claim=claim,
        estimate=effect.estimate,
        verdict=effect.verdict,
        reason=effect_reason(effect, options.minimum_effect),
        records=records,
        facts={**facts, "floor": effect.floor},
    )


def _undecided_without_spread(finding: Finding) -> Finding:
    """Picks that never differed have no spread to judge by: that a few did not differ says little of the next."""
    estimate = finding.estimate
    if estimate is None or estimate.low is None or estimate.low != estimate.high:
        return finding
    reason = f"in {estimate.n} blocks every pick cost the same, which leaves no spread for an interval"
    without_interval = estimate.model_copy(update={"low": None, "high": None, "method": reason})
    return finding.model_copy(update={"estimate": without_interval, "verdict": "unsure", "reason": reason})


SIGNIFICANT_P = 0.05


def build_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> tuple[Finding, ...]:
    """Return every finding, the ones that answer the question first."""
    return (
        *time_findings(options, analysis),
        *spread_findings(options, analysis),
        *variation_findings(options, analysis),
        *_pick_findings(options, analysis),
        *regret_findings(options, analysis),
        *device_findings(options, analysis),
        *_noise_findings(analysis),
        *_sensor_findings(analysis),
        *_missing_findings(analysis),
        *_budget_findings(analysis),
    )


def _pick_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    for phase, mismatch in analysis.mismatches.items():
        counts = f"{mismatch.only_in_phase.count} times only here, {mismatch.only_in_baseline} times only in A/A"
        yield Finding(
            kind="mismatch",
            claim=(
                f"{PHASE_LABELS[phase].capitalize()}, the tuner picks otherwise than alone more often than "
                "it does alone"
            ),
            estimate=share_estimate(mismatch.share, "picks that differ from those alone in the same block"),
            verdict=mismatch.verdict,
            reason=f"A/A picks differ in {mismatch.baseline_share.count} of {mismatch.baseline_share.n}; {counts} "
            f"(McNemar p = {mismatch.p:.2g})",
            records=supporting_trials(analysis, phase, *BASELINE_PHASES),
            facts={
                "phase": phase,
                "same_count": mismatch.baseline_share.count,
                "same_n": mismatch.baseline_share.n,
            },
        )
    for phase in options.phases:
        yield from _pick_change_findings(
            analysis, phase, changes_over_blocks(analysis.picks, phase), "mismatch_over_blocks"
        )
        if analysis.incomparable is None and len(options.devices) > 1:
            devices = changes_over_devices(analysis.picks, phase, options.devices)
            yield from _pick_change_findings(analysis, phase, devices, "mismatch_over_devices")


PICK_CHANGES = {
    "mismatch_over_blocks": "from one block to the next",
    "mismatch_over_devices": "from one device to the next",
}
"""The kinds of findings on picks that change, and between what."""


def _pick_change_findings(
    analysis: ContentionAnalysis, phase: Phase, share: Proportion, kind: str
) -> Iterator[Finding]:
    how = PICK_CHANGES[kind]
    estimate = share_estimate(share, f"picks that differ {how}")
    if estimate is not None:
        yield Finding(
            kind=kind,
            claim=f"{PHASE_LABELS[phase].capitalize()}, the pick changes {how}",
            estimate=estimate,
            verdict="yes" if share.count else "unsure",
            records=supporting_trials(analysis, phase),
            reason=None if share.count else f"it never did in {share.n} comparison{'' if share.n == 1 else 's'}",
            facts={"phase": phase},
        )


def _noise_findings(analysis: ContentionAnalysis) -> Iterator[Finding]:
    for budget in analysis.budgets:
        condition, largest = PHASE_LABELS.get(budget.condition, budget.condition), budget.largest
        parts: Params = {f"{part}_percent": 100 * budget.spread(part) for part in budget.parts}
        yield Finding(
            kind="noise",
            claim=f"More than half of the noise of a timing, {condition}, arises {NOISE_PARTS[largest]}",
            estimate=None,
            verdict="yes" if budget.parts[largest] > budget.total / 2 else "no",
            records=supporting_trials(
                analysis, *(BASELINE_PHASES if budget.condition == "alone" else (budget.condition,))
            ),
            facts={"condition": budget.condition, **parts},
        )


def _sensor_findings(analysis: ContentionAnalysis) -> Iterator[Finding]:
    for sensor in analysis.correlations:
        rho, n, p = sensor.correlation.rho, sensor.correlation.n, sensor.correlation.p
        yield Finding(
            kind="sensors",
            claim=f"Times go with: {sensor.metric}",
            estimate=None,
            verdict="yes" if p <= SIGNIFICANT_P else "unsure",
            records=tuple(phase_trial.record.trial for phase_trial in analysis.layout.phase_trials),
            reason=f"Spearman's rho {rho:+.2f} over {n} trials, p = {p:.2g}, held to all that were looked at",
            facts={"rho": rho, "n": n, "p": p},
        )


def _missing_findings(analysis: ContentionAnalysis) -> Iterator[Finding]:
    for missing in analysis.layout.missing:
        claim = "Every phase was measured as planned"
        reason = f"{missing.where}: {missing.reason}"
        yield Finding(kind="missing", claim=claim, estimate=None, verdict="no", reason=reason, records=(missing.trial,))


def _budget_findings(analysis: ContentionAnalysis) -> Iterator[Finding]:
    if analysis.overrun is not None:
        claim = "The run kept to its budget"
        yield Finding(kind="budget", claim=claim, estimate=None, verdict="no", reason=analysis.overrun, records=())
