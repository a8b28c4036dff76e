"""The tables of times and spreads: all together, phase by phase, device by device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Table
from assay.core.units import format_time
from assay.experiments.contention.options import CROWDED, QUIET, WORDS
from assay.experiments.contention.plan import role_name
from assay.experiments.contention.slowdown import cv_table, level_table, median_table, typical
from assay.experiments.contention.written import (
    floor_cell,
    percent_cell,
    ratio_cell,
    verdict_of,
    whole_cell,
)

if TYPE_CHECKING:
    from assay.core.page import Cell, Element, Tone
    from assay.experiments.contention.analysis import Analysis
    from assay.experiments.contention.effects import Effect
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.experiments.contention.places import Place

KINDS = {"busy_us": "kernels", "span_us": "first to last kernel", "call_us": "call"}
TONES: dict[str, Tone] = {"yes": "bad", "no": "good", "unsure": "unsure"}
COMPARED: tuple[Phase, ...] = (*CROWDED, "again")


def times_table(found: Analysis) -> Table:
    """Return the answer: what each phase does to time and spread, all places together."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    several = len(found.layout.quantities) > 1
    for quantity, comparisons in found.times.items():
        for phase in COMPARED:
            if phase in comparisons:
                effect, spread = comparisons[phase].overall, found.spreads[quantity].get(phase)
                loss = found.losses.get(phase) if quantity == found.layout.quantity else None
                rows.append(
                    (
                        WORDS[phase] if phase in CROWDED else f"{WORDS[phase]} (A/A)",
                        *((KINDS[quantity],) if several else ()),
                        whole_cell(effect),
                        floor_cell(effect),
                        verdict_of(effect),
                        ratio_cell(spread.overall.ratio) if spread is not None else None,
                        ratio_cell(loss.overall.ratio) if loss is not None else None,
                    )
                )
                tones.append(TONES[effect.verdict])
    words = ("phase", "time of") if several else ("phase",)
    titles = (*words, "time", "A/A shows", "differs", "spread", "picks")
    return Table(
        title="Each phase as a multiple of alone, all devices and workers together",
        columns=tuple(Column(title=t, numeric=t not in {"phase", "time of", "differs"}) for t in titles),
        rows=tuple(rows),
        tones=tuple(tones),
        note=(
            f"Ratios are taken within each block ({len(found.layout.blocks)} here). It differs where the interval "
            "excludes 1 and the ratio lies beyond what the same thing, measured twice alone (A/A), shows over as many. "
            "With 95 % intervals. Time: mean of a call; spread: coefficient of variation of repeats; picks: quiet time "
            "of what was picked."
        ),
    )


def places_table(options: ContentionOptions, found: Analysis) -> Table:
    """Return the phases side by side for every subject, device and worker."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    several, labelled = len(found.layout.quantities) > 1, len(options.subjects) > 1
    for quantity in found.layout.quantities:
        levels, cvs = level_table(found.layout, quantity), cv_table(found.layout, quantity)
        medians = median_table(found.layout, quantity)
        for slot in sorted({slot for _, slot in levels}):
            for phase in options.phases:
                level, median = typical(levels, phase, slot), typical(medians, phase, slot)
                if level is None or median is None:
                    continue
                effect = _effect(found, quantity, phase, slot)
                rows.append(
                    (
                        _where(options, slot, phase, KINDS[quantity] if several else None),
                        format_time(median.value),
                        format_time(level.value),
                        whole_cell(effect),
                        percent_cell(typical(cvs, phase, slot)),
                    )
                )
                tones.append(TONES[effect.verdict] if effect is not None and phase in CROWDED else "plain")
    numbers = ("median", "mean", "mean × alone", "CV of repeats")
    return Table(
        title=f"{'Each workload' if labelled else options.subjects[0].label} on each device, phase by phase",
        columns=(Column(title="where and when"), *(Column(title=t, numeric=True) for t in numbers)),
        rows=tuple(rows),
        tones=tuple(tones),
        note=(
            "Typical over blocks, with 95 % intervals over them; “or any”: too few blocks to say. × alone is taken "
            "within each block, over the mean of alone and alone again; alone again is over alone."
        ),
    )


def _where(options: ContentionOptions, place: Place, phase: Phase, kind: str | None) -> str:
    """Name a row so that it can be told from all others by its first column."""
    subject = f"{options.subjects[place.subject].label} on " if len(options.subjects) > 1 else ""
    what = f", {kind}" if kind is not None else ""
    return f"{subject}{role_name(place.device, place.worker, options.workers)}{what}: {WORDS[phase]}"


def _effect(found: Analysis, quantity: str, phase: Phase, place: Place) -> Effect | None:
    comparisons = found.times.get(quantity, {})
    return comparisons[phase].places.get(place) if phase in comparisons else None


def devices_table(options: ContentionOptions, found: Analysis) -> list[Element]:
    """Return how far devices are apart."""
    if not found.agreements:
        return []
    rows = tuple(
        (
            options.subjects[agreement.subject].label,
            WORDS[agreement.phase],
            f"{agreement.slowest} over {agreement.fastest}",
            whole_cell(agreement.effect),
            floor_cell(agreement.effect),
            verdict_of(agreement.effect),
        )
        for agreement in found.agreements
    )
    titles = ("workload", "phase", "furthest apart", "ratio", "A/A shows", "differ")
    return [
        Table(
            title="Whether devices agree",
            columns=tuple(Column(title=t, numeric=t in {"ratio", "A/A shows"}) for t in titles),
            rows=rows,
            tones=tuple(TONES[agreement.effect.verdict] for agreement in found.agreements),
            note=f"Alone is the mean of {' and '.join(WORDS[phase] for phase in QUIET)}. Ratios with 95 % intervals.",
        )
    ]
