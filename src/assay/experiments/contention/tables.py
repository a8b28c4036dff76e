"""The tables of ``assay contention run``.

Times and spreads by phase, device and worker; the noise budget; correlations; placement. And how ratios, intervals
and verdicts are formatted in them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assay.core.format import (
    UNINFORMATIVE_RATIO,
    format_percent,
    format_time,
    percent_cell,
    ratio_cell,
)
from assay.core.page import Column, Table
from assay.experiments.contention.effects import cv_table, level_table, median_table, typical_level
from assay.experiments.contention.findings import SIGNIFICANT_P
from assay.experiments.contention.noise import NOISE_PARTS
from assay.experiments.contention.options import BASELINE_PHASES, CONCURRENT_PHASES, PHASE_LABELS
from assay.experiments.contention.plan import role_name
from assay.experiments.reporting import EFFECT_TONES, isolation_text

if TYPE_CHECKING:
    from assay.core.page import Cell, Element, Tone
    from assay.experiments.contention.effects import ContentionEffect
    from assay.experiments.contention.findings import ContentionAnalysis
    from assay.experiments.contention.layout import WorkerSlot
    from assay.experiments.contention.options import ContentionOptions, Phase


def verdict_text(effect: ContentionEffect) -> str:
    """Write a verdict for a table."""
    return {"yes": "yes", "no": "no", "unsure": "not decided"}[effect.verdict]


def effect_cell(effect: ContentionEffect | None) -> str | None:
    """Write a ratio and its interval into one cell."""
    return None if effect is None else ratio_cell(effect.ratio)


def floor_cell(effect: ContentionEffect) -> str | None:
    """Write how far A/A strays."""
    if effect.floor is None:
        return None
    return f"±{format_percent(effect.floor)}" if effect.floor < UNINFORMATIVE_RATIO else "anything"


TIME_KINDS = {"busy_us": "kernels", "span_us": "first to last kernel", "call_us": "call"}
COMPARED_PHASES: tuple[Phase, ...] = (*CONCURRENT_PHASES, "again")


def times_table(analysis: ContentionAnalysis) -> Table:
    """Return the answer: what each phase does to time and spread, all places together."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    several = len(analysis.layout.quantities) > 1
    for quantity, comparisons in analysis.times.items():
        for phase in COMPARED_PHASES:
            if phase in comparisons:
                effect, spread = comparisons[phase].overall, analysis.spreads[quantity].get(phase)
                loss = analysis.losses.get(phase) if quantity == analysis.layout.quantity else None
                rows.append(
                    (
                        PHASE_LABELS[phase] if phase in CONCURRENT_PHASES else f"{PHASE_LABELS[phase]} (A/A)",
                        *((TIME_KINDS[quantity],) if several else ()),
                        effect_cell(effect),
                        floor_cell(effect),
                        verdict_text(effect),
                        ratio_cell(spread.overall.ratio) if spread is not None else None,
                        ratio_cell(loss.overall.ratio) if loss is not None else None,
                    )
                )
                tones.append(EFFECT_TONES[effect.verdict])
    words = ("phase", "time of") if several else ("phase",)
    titles = (*words, "time", "A/A shows", "differs", "spread", "picks")
    return Table(
        title="Each phase as a multiple of alone, all devices and workers together",
        columns=tuple(Column(title=t, numeric=t not in {"phase", "time of", "differs"}) for t in titles),
        rows=tuple(rows),
        tones=tuple(tones),
        note=(
            f"Ratios are taken within each block ({len(analysis.layout.blocks)} here). It differs where the interval "
            "excludes 1 and the ratio lies beyond what the same thing, measured twice alone (A/A), shows over as many. "
            "With 95 % intervals. Time: mean of a call; spread: coefficient of variation of repeats; picks: quiet time "
            "of what was picked."
        ),
    )


def slots_table(options: ContentionOptions, analysis: ContentionAnalysis) -> Table:
    """Return the phases side by side for every subject, device and worker."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    several, labelled = len(analysis.layout.quantities) > 1, len(options.subjects) > 1
    for quantity in analysis.layout.quantities:
        levels, cvs = level_table(analysis.layout, quantity), cv_table(analysis.layout, quantity)
        medians = median_table(analysis.layout, quantity)
        for slot in sorted({slot for _, slot in levels}):
            for phase in options.phases:
                level, median = typical_level(levels, phase, slot), typical_level(medians, phase, slot)
                if level is None or median is None:
                    continue
                effect = _slot_effect(analysis, quantity, phase, slot)
                rows.append(
                    (
                        _row_label(options, slot, phase, TIME_KINDS[quantity] if several else None),
                        format_time(median.value),
                        format_time(level.value),
                        effect_cell(effect),
                        percent_cell(typical_level(cvs, phase, slot)),
                    )
                )
                tones.append(
                    EFFECT_TONES[effect.verdict] if effect is not None and phase in CONCURRENT_PHASES else "plain"
                )
    numbers = ("median", "mean", "mean × alone", "CV of repeats")
    return Table(
        title=f"{'Each workload' if labelled else options.subjects[0].label} on each device, phase by phase",
        columns=(Column(title="where and when"), *(Column(title=t, numeric=True) for t in numbers)),
        rows=tuple(rows),
        tones=tuple(tones),
        note=(
            "Typical over blocks, with 95 % intervals over them; “inconclusive”: too few blocks to say. × alone is "
            "taken within each block, over the mean of alone and alone again; alone again is over alone."
        ),
    )


def _row_label(options: ContentionOptions, slot: WorkerSlot, phase: Phase, kind: str | None) -> str:
    """Name a row so that it can be told from all others by its first column."""
    subject = f"{options.subjects[slot.subject].label} on " if len(options.subjects) > 1 else ""
    what = f", {kind}" if kind is not None else ""
    return f"{subject}{role_name(slot.device, slot.worker, options.workers)}{what}: {PHASE_LABELS[phase]}"


def _slot_effect(
    analysis: ContentionAnalysis, quantity: str, phase: Phase, slot: WorkerSlot
) -> ContentionEffect | None:
    comparisons = analysis.times.get(quantity, {})
    return comparisons[phase].slots.get(slot) if phase in comparisons else None


def devices_table(options: ContentionOptions, analysis: ContentionAnalysis) -> list[Element]:
    """Return how far devices are apart."""
    if not analysis.agreements:
        return []
    rows = tuple(
        (
            options.subjects[agreement.subject].label,
            PHASE_LABELS[agreement.phase],
            f"{agreement.slowest} over {agreement.fastest}",
            effect_cell(agreement.effect),
            floor_cell(agreement.effect),
            verdict_text(agreement.effect),
        )
        for agreement in analysis.agreements
    )
    titles = ("workload", "phase", "furthest apart", "ratio", "A/A shows", "differ")
    return [
        Table(
            title="Whether devices agree",
            columns=tuple(Column(title=t, numeric=t in {"ratio", "A/A shows"}) for t in titles),
            rows=rows,
            tones=tuple(EFFECT_TONES[agreement.effect.verdict] for agreement in analysis.agreements),
            note=(
                f"Alone is the mean of {' and '.join(PHASE_LABELS[phase] for phase in BASELINE_PHASES)}. "
                "Ratios with 95 % intervals."
            ),
        )
    ]


def noise_table(analysis: ContentionAnalysis) -> list[Element]:
    """Return where the spread of a single timing comes from."""
    if not analysis.budgets:
        return []
    conditions = [PHASE_LABELS.get(budget.condition, budget.condition) for budget in analysis.budgets]
    rows: list[tuple[Cell, ...]] = [
        (words, *(format_percent(budget.spread(part)) for budget in analysis.budgets))
        for part, words in NOISE_PARTS.items()
    ]
    rows.append(("all together", *(format_percent(math.expm1(math.sqrt(b.total))) for b in analysis.budgets)))
    return [
        Table(
            title="Noise budget: how far a single timing lies from the quiet level, in % of the time",
            columns=(Column(title="part"), *(Column(title=c, numeric=True) for c in conditions)),
            rows=tuple(rows),
            note=(
                "Standard deviations; neighbours shift the level, and count with the size of the shift. Parts add up "
                "in squares. The rest is what these parts do not explain together."
            ),
        )
    ]


def sensors_table(analysis: ContentionAnalysis) -> list[Element]:
    """Return what times go with, among all that was seen."""
    if not analysis.correlations:
        return []
    rows = tuple(
        (sensor.metric, f"{sensor.correlation.rho:+.2f}", sensor.correlation.n, f"{sensor.correlation.p:.2g}")
        for sensor in analysis.correlations
    )
    tones: tuple[Tone, ...] = tuple(
        "unsure" if sensor.correlation.p <= SIGNIFICANT_P else "plain" for sensor in analysis.correlations
    )
    return [
        Table(
            title="What times go with",
            columns=(
                Column(title="seen meanwhile"),
                Column(title="Spearman's rho", numeric=True),
                Column(title="trials", numeric=True),
                Column(title="p", numeric=True),
            ),
            rows=rows,
            tones=tones,
            note="Over trials of all phases; p by shuffling, raised to hold for all rows (Holm). Marked: below 5 %.",
        )
    ]


def placement_table(options: ContentionOptions, analysis: ContentionAnalysis) -> Table:
    """Return where the workers of each phase ran, over all blocks."""
    rows: list[tuple[Cell, ...]] = []
    for phase in options.phases:
        evidence = [
            e
            for phase_trial in analysis.layout.phase_trials
            if phase_trial.phase == phase
            for e in phase_trial.record.evidence
        ]
        for role in dict.fromkeys(e.role for e in evidence):
            mine = [e for e in evidence if e.role == role]
            switches = sorted(e.involuntary_switches for e in mine if e.involuntary_switches is not None)
            rows.append(
                (
                    PHASE_LABELS[phase],
                    role,
                    "; ".join(dict.fromkeys(isolation_text(e) for e in mine)),
                    "; ".join(dict.fromkeys(" ".join(map(str, e.allowed_cores)) for e in mine)),
                    "; ".join(dict.fromkeys("–" if e.thread_limit is None else str(e.thread_limit) for e in mine)),
                    f"{switches[len(switches) // 2]}" if switches else None,
                    f"{sorted(e.setup_s for e in mine)[len(mine) // 2]:.2f}",
                )
            )
    titles = ("phase", "worker", "isolation held", "cores", "threads", "switches", "set-up, s")
    return Table(
        title="Where the workers ran, as they read it back",
        columns=tuple(Column(title=t, numeric=t in {"switches", "set-up, s"}) for t in titles),
        rows=tuple(rows),
        note="Switches: how often the kernel took the core away, in the middle process. Set-up likewise.",
    )
