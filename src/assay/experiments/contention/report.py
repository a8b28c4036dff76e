"""The page of ``assay contention run``.

The answer in one sentence, the sections, and the figures (ratios, samples, timeline).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import format_duration, format_list, format_percent, format_ratio
from assay.core.page import Page, Section, StripPlot, StripRow, Text, Timeline, TimelineBar
from assay.experiments.budget import block_durations_s
from assay.experiments.contention.effects import baseline_differences, level_table
from assay.experiments.contention.noise import NOISE_PARTS
from assay.experiments.contention.options import BASELINE_PHASES, CONCURRENT_PHASES, PHASE_LABELS
from assay.experiments.contention.plan import WARM_UP, block_name, block_number, role_name, warm_up_trials
from assay.experiments.contention.regret import RETIMED, retiming_block
from assay.experiments.contention.tables import (
    devices_table,
    noise_table,
    placement_table,
    sensors_table,
    slots_table,
    times_table,
)
from assay.experiments.contention.tuner_agreement import pick_elements
from assay.experiments.estimates import TIME_AXES
from assay.experiments.reporting import (
    EFFECT_TONES,
    compose_page,
    group_notes,
    monitor_table,
    notes_table,
    sensor_axis,
    sensor_lines,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Element, Tone
    from assay.core.results import Findings
    from assay.core.values import Trial
    from assay.experiments.contention.effects import ContentionEffect
    from assay.experiments.contention.findings import ContentionAnalysis
    from assay.experiments.contention.layout import LayoutCell, WorkerSlot
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine
    from assay.stats.blocks import BlockRatio
    from assay.store.records import Records


REMEDIES = {
    "within": "longer timings and a quieter host average it out",
    "starts": "more restarts average it out (`assay run --restarts`)",
    "drift": "locked clocks and a `--cooldown` hold it",
    "neighbours": "isolation or measuring one after another removes it",
}
CALL_QUANTITY = "call_us"
CONCURRENCY_HINT = "`--workers-per-device 2` or `--aggressor cpu` asks what company does"


def headline(machine: Machine, options: ContentionOptions, analysis: ContentionAnalysis) -> str:
    """Return the answer."""
    if not analysis.layout.cells:
        return "Nothing could be measured."
    subjects = format_list([s.label for s in options.subjects])
    takes = f"{subjects} take{'s' if len(options.subjects) == 1 else ''}"
    if not options.has_concurrency:
        alone = f"Nothing runs side by side here, with one device and one worker; {_repeat_text(analysis, takes)}"
        return f"{alone}{_untuned_text(analysis)}; {CONCURRENCY_HINT}."
    naive, again = _overall_effect(analysis, "naive"), _overall_effect(analysis, "again")
    if naive is None or naive.ratio is None:
        unknown = "What side by side does is not known, as it could not be measured"
        return f"{unknown}; {_repeat_text(analysis, takes)}{_untuned_text(analysis)}."
    sentence = _call_sentence(machine, options, analysis, subjects)
    sentence = sentence or _kernel_sentence(machine, options, analysis, takes)
    return f"{sentence}{_untuned_text(analysis)}{_baseline_doubt(again)}."


def _untuned_text(analysis: ContentionAnalysis) -> str:
    """Say so where the tuner never found a configuration."""
    choices = analysis.layout.choices
    if not choices or any(choice.config is not None for choice in choices):
        return ""
    reason = (choices[0].reason or "it does not say why").rstrip(".")
    return f"; the tuner found no configuration in any of {len(choices)} tries ({reason})"


def _kernel_sentence(machine: Machine, options: ContentionOptions, analysis: ContentionAnalysis, takes: str) -> str:
    """Say what company does to the time that counts."""
    naive, isolated = _overall_effect(analysis, "naive"), _overall_effect(analysis, "isolated")
    if naive is None or naive.ratio is None:
        return ""
    long = f"{takes} {_effect_text(naive)} as long as alone on average{_spread_and_picks_text(analysis)}"
    if naive.verdict == "yes":
        return f"Noisy side by side: {long}{_cause_text(machine, options)}; {_isolation_text(options, naive, isolated)}"
    if naive.verdict == "no":
        return f"Not noisy side by side: {long}{_largest_noise_text(analysis)}"
    blocks = f"after {naive.ratio.blocks} block{'' if naive.ratio.blocks == 1 else 's'}"
    return f"Not decided {blocks}: side by side {long}{_largest_noise_text(analysis)}"


def _call_sentence(
    machine: Machine, options: ContentionOptions, analysis: ContentionAnalysis, subjects: str
) -> str | None:
    """Say what company does to who waits for a call, where kernels are spared it; null where that is not so."""
    if not only_calls_slow(analysis):
        return None
    kernels, waits = _overall_effect(analysis, "naive"), _overall_effect(analysis, "naive", CALL_QUANTITY)
    if kernels is None or waits is None:
        return None
    first = f"Noisy side by side for who waits: a call of {subjects} takes {_effect_text(waits)} as long as alone"
    cause = (
        f"{_cause_text(machine, options)}, while its kernels take "
        f"{_effect_text(kernels)}{_spread_and_picks_text(analysis)}"
    )
    return f"{first}{cause}; {_isolation_text(options, waits, _overall_effect(analysis, 'isolated', CALL_QUANTITY))}"


def only_calls_slow(analysis: ContentionAnalysis) -> bool:
    """Return whether calls take surely longer in company, and kernels do not."""
    if analysis.layout.quantity == CALL_QUANTITY:
        return False
    kernels, waits = _overall_effect(analysis, "naive"), _overall_effect(analysis, "naive", CALL_QUANTITY)
    return waits is not None and waits.verdict == "yes" and (kernels is None or kernels.verdict != "yes")


def _overall_effect(analysis: ContentionAnalysis, phase: Phase, quantity: str | None = None) -> ContentionEffect | None:
    comparisons = analysis.times.get(quantity or analysis.layout.quantity, {})
    return comparisons[phase].overall if phase in comparisons else None


def _effect_text(effect: ContentionEffect) -> str:
    ratio = effect.ratio
    return "–" if ratio is None else format_ratio(ratio.value, ratio.low, ratio.high)


def _repeat_text(analysis: ContentionAnalysis, takes: str) -> str:
    """Say what A/A shows."""
    again = _overall_effect(analysis, "again")
    if again is None or again.ratio is None:
        alone = [cell for cell in analysis.layout.cells if cell.phase in BASELINE_PHASES]
        return "nothing was measured twice alone" if alone else "alone nothing could be measured"
    blocks = f"in {again.ratio.blocks} block{'' if again.ratio.blocks == 1 else 's'}"
    return f"measured twice alone {blocks}, {takes} {_effect_text(again)} as long"


def _spread_and_picks_text(analysis: ContentionAnalysis) -> str:
    """Say what else company does: to the spread, and to what is picked."""
    parts = []
    spread = analysis.spreads.get(analysis.layout.quantity, {}).get("naive")
    if spread is not None and spread.overall.verdict == "yes" and spread.overall.ratio is not None:
        parts.append(f"repeats spread {spread.overall.ratio.value:.1f}× as much")
    mismatch, loss = analysis.mismatches.get("naive"), analysis.losses.get("naive")
    if loss is not None and loss.overall.verdict == "yes" and loss.overall.ratio is not None:
        parts.append(f"the picks lose {format_percent(loss.overall.ratio.value - 1)}")
    elif mismatch is not None and mismatch.verdict == "yes":
        parts.append(f"{mismatch.share.count} of {mismatch.share.n} picks are others")
    return "".join(f", {part}" for part in parts)


def _cause_text(machine: Machine, options: ContentionOptions) -> str:
    cores = len(machine.cores)
    loads = format_list(list(dict.fromkeys(load.subject.workload for load in options.aggressors)))
    if options.processes > cores:
        among = f", {loads} among them," if loads else ""
        return f", as {options.processes} processes{among} share {cores} core{'' if cores == 1 else 's'}"
    return f", beside {loads}" if loads else f", as {options.processes} processes run at once"


def _isolation_text(options: ContentionOptions, naive: ContentionEffect, isolated: ContentionEffect | None) -> str:
    if isolated is None or isolated.ratio is None or naive.ratio is None:
        return "what isolation would do could not be measured"
    if isolated.verdict == "yes" and isolated.ratio.value > 1:
        one = "one worker a device, or " if options.workers > 1 else ""
        return f"isolated it still takes {_effect_text(isolated)}: {one}measuring one after another, removes it"
    if isolated.verdict == "no" or (isolated.ratio.high or math.inf) < (naive.ratio.low or 0.0):
        return f"isolated it takes {_effect_text(isolated)}, so `--isolation full` mends it"
    return f"whether isolation mends it is not decided: isolated it takes {_effect_text(isolated)}"


def _largest_noise_text(analysis: ContentionAnalysis) -> str:
    budget = next((candidate for candidate in analysis.budgets if candidate.condition == "alone"), None)
    if budget is None or not budget.total:
        return ""
    part = budget.largest
    return (
        f"; most noise arises {NOISE_PARTS[part]}, a spread of {format_percent(budget.spread(part))}, and "
        f"{REMEDIES[part]}"
    )


def _baseline_doubt(again: ContentionEffect | None) -> str:
    """Say when the machine itself is not quiet: A/A differs."""
    if again is not None and again.verdict == "yes":
        return f"; but measured twice alone it takes {_effect_text(again)} too: this machine changes by itself"
    return ""


MAX_ROWS = 24
MAX_SAMPLES = 2000
"""Of one row, evenly taken: more cannot be told apart in a drawing."""


def ratio_figure(options: ContentionOptions, analysis: ContentionAnalysis) -> list[Element]:
    """Return every block's ratio to quiet, a row for each phase and place."""
    quantity = analysis.layout.quantity
    comparisons, table = analysis.times.get(quantity, {}), level_table(analysis.layout, quantity)
    strips: list[StripRow] = []
    phases: tuple[Phase, ...] = (*CONCURRENT_PHASES, "again")
    for phase in phases:
        slots = comparisons[phase].slots if phase in comparisons else {}
        for slot, effect in slots.items():
            logs = baseline_differences(table, phase, slot).values()
            if logs and effect.ratio is not None:
                label = f"{PHASE_LABELS[phase]}: {_slot_label(options, slot, several=len(options.subjects) > 1)}"
                strips.append(_ratio_strip(label, [math.exp(log) for log in logs], effect.ratio))
    if not strips:
        return []
    return [
        StripPlot(
            title="Time of each block over that alone",
            name="ratios",
            axis="time over that alone",
            unit="×",
            strips=tuple(strips[:MAX_ROWS]),
            centre=1.0,
            note="A dot a block. Alone again is over alone in the same block: what no neighbour causes.",
        )
    ]


def sample_figures(options: ContentionOptions, analysis: ContentionAnalysis) -> list[Element]:
    """Return the samples of each phase and place over all blocks, a figure for each subject."""
    figures: list[Element] = []
    for index, subject in enumerate(options.subjects):
        cells = [c for c in analysis.layout.cells if c.slot.subject == index and c.quantity == analysis.layout.quantity]
        rows = _sample_rows(options, cells, by_worker=True)
        if len(rows) > MAX_ROWS:
            rows = _sample_rows(options, cells, by_worker=False)
        if rows:
            figures.append(
                StripPlot(
                    title=f"Samples of {subject.label}",
                    name=f"samples_{index}",
                    axis=TIME_AXES[analysis.layout.quantity],
                    unit="µs",
                    strips=tuple(StripRow(label=label, samples=_thin_samples(mine)) for label, mine in rows.items()),
                    note="All blocks together, the fixed configuration.",
                )
            )
    return figures


def _sample_rows(
    options: ContentionOptions, cells: Sequence[LayoutCell], *, by_worker: bool
) -> dict[str, list[LayoutCell]]:
    rows: dict[str, list[LayoutCell]] = {}
    for phase in options.phases:
        for cell in sorted((c for c in cells if c.phase == phase), key=lambda c: (c.slot, c.block)):
            who = role_name(cell.slot.device, cell.slot.worker, options.workers) if by_worker else cell.slot.device
            rows.setdefault(f"{who}, {PHASE_LABELS[phase]}", []).append(cell)
    return rows


def _thin_samples(cells: Sequence[LayoutCell]) -> tuple[float, ...]:
    together = np.concatenate([cell.samples for cell in cells])
    step = max(1, math.ceil(len(together) / MAX_SAMPLES))
    return tuple(together[::step].tolist())


def _slot_label(options: ContentionOptions, slot: WorkerSlot, *, several: bool) -> str:
    who = role_name(slot.device, slot.worker, options.workers)
    return f"{options.subjects[slot.subject].label} on {who}" if several else who


def _ratio_strip(label: str, values: list[float], ratio: BlockRatio) -> StripRow:
    return StripRow(label=label, samples=tuple(values), value=ratio.value, low=ratio.low, high=ratio.high)


def timeline_figure(analysis: ContentionAnalysis, records: Records) -> list[Element]:
    """Return when each trial ran, a lane a phase, with what the monitor saw above."""
    phases = {phase_trial.record.trial: phase_trial.phase for phase_trial in analysis.layout.phase_trials}
    shown = [record for record in records if record.trial in phases or record.block == RETIMED]
    if not shown:
        return []
    origin = min(record.window.start_ns for record in shown)
    bars = []
    for lane in (*(phase for phase in PHASE_LABELS if phase in phases.values()), RETIMED):
        bars += [
            TimelineBar(
                lane=PHASE_LABELS[lane],
                label=str(block_number(record.block) or ""),
                start_s=(record.window.start_ns - origin) / 1e9,
                end_s=(record.window.end_ns - origin) / 1e9,
                tone="plain" if record.status == "ok" else "bad",
            )
            for record in shown
            if phases.get(record.trial, RETIMED) == lane
        ]
    return [
        Timeline(
            title="When each trial ran",
            name="timeline",
            bars=tuple(bars),
            lines=sensor_lines(records, origin),
            lines_axis=sensor_axis(records),
            note="Numbers are blocks; the order of the phases within each is by lot, and balanced over blocks.",
        )
    ]


def build_page(
    machine: Machine, options: ContentionOptions, analysis: ContentionAnalysis, findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    some = bool(analysis.layout.cells)
    sections = [
        Section(title="Results", elements=(*_results(options, analysis, some=some), *_remarks(analysis))),
        Section(
            title="Every block, every sample",
            elements=(*ratio_figure(options, analysis), *sample_figures(options, analysis)),
        ),
        Section(title="What the tuner picked", elements=pick_elements(options, analysis)),
        Section(title="Where the noise comes from", elements=(*noise_table(analysis), *sensors_table(analysis))),
        Section(title="Devices beside each other", elements=_devices(options, analysis)),
        Section(title="Who ran where and when", elements=_placement(machine, options, analysis, records, some=some)),
    ]
    return compose_page(
        machine,
        records,
        title=f"assay contention: {', '.join(dict.fromkeys(s.label for s in options.subjects))}",
        lead=findings.headline,
        lead_tone=_lead_tone(analysis) if some else "bad",
        sections=sections,
        facts=_page_facts(options, records),
    )


def _lead_tone(analysis: ContentionAnalysis) -> Tone:
    comparisons = analysis.times.get(analysis.layout.quantity, {})
    if "naive" not in comparisons:
        return "plain"
    return "bad" if only_calls_slow(analysis) else EFFECT_TONES[comparisons["naive"].overall.verdict]


def _results(options: ContentionOptions, analysis: ContentionAnalysis, *, some: bool) -> tuple[Element, ...]:
    return (times_table(analysis), slots_table(options, analysis)) if some else ()


def _remarks(analysis: ContentionAnalysis) -> tuple[Element, ...]:
    remarks = [*analysis.remarks, *([analysis.overrun] if analysis.overrun else [])]
    texts = [Text(text=f"{remark[:1].upper()}{remark[1:]}.", tone="unsure") for remark in remarks]
    missing = group_notes((item.reason, item.where) for item in analysis.layout.missing)
    return (*texts, *(Text(text=f"Missing: {item.trial_names}: {item.text}.", tone="bad") for item in missing))


def _devices(options: ContentionOptions, analysis: ContentionAnalysis) -> tuple[Element, ...]:
    if analysis.incomparable is not None:
        return (Text(text=f"Devices are not compared with each other: {analysis.incomparable}.", tone="unsure"),)
    return tuple(devices_table(options, analysis))


def _placement(
    machine: Machine, options: ContentionOptions, analysis: ContentionAnalysis, records: Records, *, some: bool
) -> tuple[Element, ...]:
    labels = _trial_labels(machine, options, analysis)
    return (
        *timeline_figure(analysis, records),
        *((placement_table(options, analysis),) if some else ()),
        *monitor_table(records, labels),
        *notes_table(records, labels),
    )


def _trial_labels(machine: Machine, options: ContentionOptions, analysis: ContentionAnalysis) -> dict[str, str]:
    """Return what each trial measures, when and where."""
    labels = {trial.id: f"{WARM_UP}, {_trial_text(trial)}" for trial in warm_up_trials(machine, options, block_name(1))}
    again = retiming_block(machine, options, analysis.layout.choices)
    labels |= {trial.id: f"{PHASE_LABELS[RETIMED]}, {_trial_text(trial)}" for trial in (again.trials if again else ())}
    for phase_trial in analysis.layout.phase_trials:
        labels[phase_trial.record.trial] = (
            f"block {phase_trial.block}, {PHASE_LABELS[phase_trial.phase]}, {_trial_text(phase_trial.trial)}"
        )
    return labels


def _trial_text(trial: Trial) -> str:
    devices = dict.fromkeys(device for role in trial.roles if role.duty == "timed" for device in role.devices)
    return f"{trial.roles[0].subjects[0].label} on {', '.join(devices)}"


def _page_facts(options: ContentionOptions, records: Records) -> dict[str, str]:
    loads = ", ".join(load.subject.label for load in options.aggressors)
    used = sum(block_durations_s(records).values())
    return {
        "devices": f"{', '.join(options.devices)}, {options.workers} worker{'s' if options.workers > 1 else ''} each",
        "aggressors": loads or "none",
        "tuner": options.tuner or "none",
        "blocks": "as many as fit" if options.repeat is None else str(options.repeat),
        "budget": f"{format_duration(options.budget_s)}; {format_duration(used)} were used",
        "per worker and trial": f"{options.timing_s:.2g} s timed, {options.tuning_s:.2g} s tuned",
        "seed": str(options.seed),
    }
