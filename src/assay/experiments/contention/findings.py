"""Analyse the records, and state every claim with its number, its verdict and the trials behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.format import format_count, format_percent
from assay.core.results import Finding
from assay.experiments.budget import overrun_text
from assay.experiments.contention.effects import (
    NOISE_PARTS,
    compare_phases,
    device_agreements,
    gpu_models,
    noise_budgets,
    sensor_correlations,
)
from assay.experiments.contention.layout import build_layout
from assay.experiments.contention.options import BASELINE_PHASES, CONCURRENT_PHASES, PHASE_LABELS
from assay.experiments.contention.picks import (
    changes_over_blocks,
    changes_over_devices,
    compute_regrets,
    pick_mismatches,
    pick_table,
    regret_table,
)
from assay.experiments.contention.plan import role_name
from assay.experiments.reporting import TIME_QUANTITIES, block_ratio_estimate, share_estimate
from assay.stats.blocks import average_units, ratio_over_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.values import Params
    from assay.experiments.contention.effects import (
        ContentionEffect,
        DeviceAgreement,
        NoiseBudget,
        PhaseComparisons,
        SensorCorrelation,
    )
    from assay.experiments.contention.layout import ContentionLayout, WorkerSlot
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.experiments.contention.picks import PickMismatch, PickTable, SlotRegrets
    from assay.machine.model import Machine
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
    """Analyse times, spreads, picks, devices and noise."""
    layout = build_layout(machine, options, records)
    table = pick_table(layout.choices)
    regrets = compute_regrets(machine, options, layout.choices, records)
    phases, minimum_effect, models = options.phases, options.minimum_effect, gpu_models(machine, options)
    incomparable = None
    if len(models) > 1:
        incomparable = f"the GPUs are of different models ({', '.join(models)}), and their times need not agree"
    return ContentionAnalysis(
        layout=layout,
        times={q: compare_phases(layout.table(q), phases, minimum_effect) for q in layout.quantities},
        spreads={q: compare_phases(layout.table(q, "log_cv"), phases, minimum_effect) for q in layout.quantities},
        picks=table,
        mismatches=pick_mismatches(table, phases),
        regrets=regrets,
        losses=compare_phases(regret_table(layout.choices, regrets), phases, minimum_effect),
        agreements=[] if incomparable is not None else device_agreements(layout, options),
        budgets=noise_budgets(layout),
        correlations=sensor_correlations(layout),
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
            f"side by side {options.processes} processes share {format_count(cores, 'core')}: "
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
SIGNIFICANT_P = 0.05


def build_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> tuple[Finding, ...]:
    """Return every finding, the ones that answer the question first."""
    return (
        *time_findings(options, analysis),
        *_spread_findings(options, analysis),
        *variation_findings(options, analysis),
        *_pick_findings(options, analysis),
        *regret_findings(options, analysis),
        *_device_findings(options, analysis),
        *_noise_findings(analysis),
        *_other_findings(analysis),
    )


def supporting_trials(analysis: ContentionAnalysis, *phases: str, slot: WorkerSlot | None = None) -> tuple[str, ...]:
    """Return the trials that a claim about phases, or about one slot in them, rests on."""
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


def _effect_finding(
    kind: str,
    claim: str,
    effect: ContentionEffect,
    options: ContentionOptions,
    *,
    records: tuple[str, ...],
    facts: Params,
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


def _overall_findings(
    kind: str,
    claim: str,
    options: ContentionOptions,
    analysis: ContentionAnalysis,
    comparisons: PhaseComparisons,
    **facts: str,
) -> Iterator[Finding]:
    """Yield a finding for each concurrent phase, and one for A/A, all slots together."""
    for phase, comparison in comparisons.items():
        prefix = "Alone, measured twice" if phase == "again" else PHASE_LABELS[phase].capitalize()
        records = supporting_trials(analysis, phase, *BASELINE_PHASES)
        details: Params = {**facts, "phase": phase}
        yield _effect_finding(kind, f"{prefix}, {claim}", comparison.overall, options, records=records, facts=details)


def time_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Yield whether times differ from those alone: all slots together, then each."""
    for quantity, comparisons in analysis.times.items():
        claim = f"{TIME_QUANTITIES[quantity].replace('median', 'mean')} is another than alone"
        yield from _overall_findings("time", claim, options, analysis, comparisons, quantity=quantity)
        for phase in CONCURRENT_PHASES:
            slots = comparisons[phase].slots if phase in comparisons else {}
            for slot, effect in slots.items() if len(slots) > 1 else ():
                label = options.subjects[slot.subject].label
                who = f"{label} on {role_name(slot.device, slot.worker, options.workers)}"
                trials = supporting_trials(analysis, phase, *BASELINE_PHASES, slot=slot)
                details: Params = {"quantity": quantity, "phase": phase, "workload": label}
                details |= {"device": slot.device, "worker": slot.worker}
                text = f"{who}, {PHASE_LABELS[phase]}: {claim}"
                yield _effect_finding("time", text, effect, options, records=trials, facts=details)


def _spread_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Return whether repeats of the same configuration spread otherwise than alone."""
    comparisons = analysis.spreads.get(analysis.layout.quantity, {})
    claim = "the coefficient of variation of repeats is another than alone"
    return _overall_findings("spread", claim, options, analysis, comparisons)


def variation_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Yield how much repeats of the same configuration vary in each phase, and whether that is little."""
    table = analysis.layout.table(analysis.layout.quantity, "log_cv")
    for phase in options.phases:
        by_slot = [by_block for (table_phase, _), by_block in table.items() if table_phase == phase]
        cv = ratio_over_blocks(
            average_units([[levels.get(block) for block in analysis.layout.blocks] for levels in by_slot])
        )
        if cv is None:
            continue
        method = f"coefficient of variation of repeats: geometric mean over {cv.blocks} blocks, Student's t"
        yield Finding(
            kind="variation",
            claim=f"{PHASE_LABELS[phase].capitalize()}, repeats vary by less than {format_percent(STEADY_CV)}",
            estimate=block_ratio_estimate(cv, method, unit="%", scale=100),
            verdict="yes" if (cv.high or 1.0) < STEADY_CV else "no" if (cv.low or 0.0) > STEADY_CV else "unsure",
            records=supporting_trials(analysis, phase),
            facts={"phase": phase},
        )


def regret_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Yield whether what is picked beside others is slower, timed alone, than what is picked alone.

    Picks that never differed have no spread to judge by: that a few did not differ says little of the next.
    """
    claim = "what is picked takes another time, timed in quiet, than what is picked alone"
    for finding in _overall_findings("regret", claim, options, analysis, analysis.losses):
        estimate = finding.estimate
        if estimate is None or estimate.low is None or estimate.low != estimate.high:
            yield finding
            continue
        reason = f"in {estimate.n} blocks every pick cost the same, which leaves no spread for an interval"
        without_interval = estimate.model_copy(update={"low": None, "high": None, "method": reason})
        yield finding.model_copy(update={"estimate": without_interval, "verdict": "unsure", "reason": reason})


def _device_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Yield whether devices differ from each other, or why that is not asked."""
    if analysis.incomparable is not None:
        reason = f"not compared: {analysis.incomparable}"
        claim = "The devices take different times"
        yield Finding(kind="devices", claim=claim, estimate=None, verdict="unsure", reason=reason, records=())
    for agreement in analysis.agreements:
        label, phase = options.subjects[agreement.subject].label, agreement.phase
        claim = f"{label}, {PHASE_LABELS[phase]}: {agreement.slowest} takes another time than {agreement.fastest}"
        details: Params = {"phase": phase, "workload": label}
        trials = supporting_trials(analysis, phase)
        yield _effect_finding("devices", claim, agreement.effect, options, records=trials, facts=details)


def _pick_findings(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[Finding]:
    for phase, mismatch in analysis.mismatches.items():
        when, same = PHASE_LABELS[phase].capitalize(), mismatch.baseline_share
        yield Finding(
            kind="mismatch",
            claim=f"{when}, the tuner picks otherwise than alone more often than it does alone",
            estimate=share_estimate(mismatch.share, "picks that differ from those alone in the same block"),
            verdict=mismatch.verdict,
            reason=(
                f"A/A picks differ in {same.count} of {same.n}; {mismatch.only_in_phase.count} times only here, "
                f"{mismatch.only_in_baseline} times only in A/A (McNemar p = {mismatch.p:.2g})"
            ),
            records=supporting_trials(analysis, phase, *BASELINE_PHASES),
            facts={"phase": phase, "same_count": same.count, "same_n": same.n},
        )
    for phase in options.phases:
        changes = {"block": changes_over_blocks(analysis.picks, phase)}
        if analysis.incomparable is None and len(options.devices) > 1:
            changes["device"] = changes_over_devices(analysis.picks, phase, options.devices)
        for of, share in changes.items():
            how = f"from one {of} to the next"
            estimate = share_estimate(share, f"picks that differ {how}")
            if estimate is not None:
                yield Finding(
                    kind=f"mismatch_over_{of}s",
                    claim=f"{PHASE_LABELS[phase].capitalize()}, the pick changes {how}",
                    estimate=estimate,
                    verdict="yes" if share.count else "unsure",
                    records=supporting_trials(analysis, phase),
                    reason=None if share.count else f"it never did in {format_count(share.n, 'comparison')}",
                    facts={"phase": phase},
                )


def _noise_findings(analysis: ContentionAnalysis) -> Iterator[Finding]:
    for budget in analysis.budgets:
        condition, largest = PHASE_LABELS.get(budget.condition, budget.condition), budget.largest
        parts: Params = {f"{part}_percent": 100 * budget.spread(part) for part in budget.parts}
        phases = BASELINE_PHASES if budget.condition == "alone" else (budget.condition,)
        yield Finding(
            kind="noise",
            claim=f"More than half of the noise of a timing, {condition}, arises {NOISE_PARTS[largest]}",
            estimate=None,
            verdict="yes" if budget.parts[largest] > budget.total / 2 else "no",
            records=supporting_trials(analysis, *phases),
            facts={"condition": budget.condition, **parts},
        )


def _other_findings(analysis: ContentionAnalysis) -> Iterator[Finding]:
    """Yield what correlates with the times, what is missing, and whether the run took longer than its budget."""
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
    for missing in analysis.layout.missing:
        claim, reason = "Every phase was measured as planned", f"{missing.where}: {missing.reason}"
        yield Finding(kind="missing", claim=claim, estimate=None, verdict="no", reason=reason, records=(missing.trial,))
    if analysis.overrun is not None:
        claim = "The run kept to its budget"
        yield Finding(kind="budget", claim=claim, estimate=None, verdict="no", reason=analysis.overrun, records=())
