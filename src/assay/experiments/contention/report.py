"""The page of ``assay contention run``: the answer in one sentence, the tables and the figures."""

from __future__ import annotations

import math
from statistics import median_high
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import (
    UNINFORMATIVE_RATIO,
    format_count,
    format_duration,
    format_list,
    format_percent,
    format_ratio,
    format_time,
    percent_cell,
    ratio_cell,
)
from assay.core.page import Column, Page, Section, StripPlot, StripRow, Table, Text, Timeline, TimelineBar, build_table
from assay.experiments.budget import block_durations_s
from assay.experiments.contention.effects import NOISE_PARTS, baseline_differences, typical_level
from assay.experiments.contention.findings import SIGNIFICANT_P
from assay.experiments.contention.options import BASELINE_PHASES, CONCURRENT_PHASES, PHASE_LABELS
from assay.experiments.contention.picks import pick_elements
from assay.experiments.contention.plan import (
    RETIMED,
    WARM_UP,
    block_name,
    block_number,
    retiming_block,
    role_name,
    warm_up_trials,
)
from assay.experiments.reporting import (
    EFFECT_TONES,
    TIME_AXES,
    TIME_LABELS,
    compose_page,
    group_notes,
    isolation_text,
    monitor_table,
    notes_table,
    sensor_axis,
    sensor_lines,
    table_columns,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Findings
    from assay.core.values import Trial
    from assay.experiments.contention.effects import ContentionEffect, DeviceAgreement
    from assay.experiments.contention.findings import ContentionAnalysis
    from assay.experiments.contention.layout import LayoutCell, WorkerSlot
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine
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
    doubt = ""
    if again is not None and again.verdict == "yes":
        doubt = f"; but measured twice alone it takes {_effect_text(again)} too: this machine changes by itself"
    return f"{sentence}{_untuned_text(analysis)}{doubt}."


def _untuned_text(analysis: ContentionAnalysis) -> str:
    """Say so where the tuner never found a configuration."""
    choices = analysis.layout.choices
    if not choices or any(choice.config is not None for choice in choices):
        return ""
    reason = (choices[0].reason or "it does not say why").rstrip(".")
    return f"; the tuner found no configuration in any of {len(choices)} tries ({reason})"


def _kernel_sentence(machine: Machine, options: ContentionOptions, analysis: ContentionAnalysis, takes: str) -> str:
    """Say what contention does to the time that counts."""
    naive, isolated = _overall_effect(analysis, "naive"), _overall_effect(analysis, "isolated")
    if naive is None or naive.ratio is None:
        return ""
    long = f"{takes} {_effect_text(naive)} as long as alone on average{_spread_and_picks_text(analysis)}"
    if naive.verdict == "yes":
        return f"Noisy side by side: {long}{_cause_text(machine, options)}; {_isolation_text(options, naive, isolated)}"
    if naive.verdict == "no":
        return f"Not noisy side by side: {long}{_largest_noise_text(analysis)}"
    blocks = f"after {format_count(naive.ratio.blocks, 'block')}"
    return f"Not decided {blocks}: side by side {long}{_largest_noise_text(analysis)}"


def _call_sentence(
    machine: Machine, options: ContentionOptions, analysis: ContentionAnalysis, subjects: str
) -> str | None:
    """Say what contention does to callers where kernels are spared it; null where that is not so."""
    kernels, calls = _overall_effect(analysis, "naive"), _overall_effect(analysis, "naive", CALL_QUANTITY)
    if not only_calls_slow(analysis) or kernels is None or calls is None:
        return None
    first = f"Noisy side by side for who waits: a call of {subjects} takes {_effect_text(calls)} as long as alone"
    spared = f"while its kernels take {_effect_text(kernels)}{_spread_and_picks_text(analysis)}"
    isolation = _isolation_text(options, calls, _overall_effect(analysis, "isolated", CALL_QUANTITY))
    return f"{first}{_cause_text(machine, options)}, {spared}; {isolation}"


def only_calls_slow(analysis: ContentionAnalysis) -> bool:
    """Return whether concurrent calls take surely longer, and kernels do not."""
    if analysis.layout.quantity == CALL_QUANTITY:
        return False
    kernels, calls = _overall_effect(analysis, "naive"), _overall_effect(analysis, "naive", CALL_QUANTITY)
    return calls is not None and calls.verdict == "yes" and (kernels is None or kernels.verdict != "yes")


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
    blocks = format_count(again.ratio.blocks, "block")
    return f"measured twice alone in {blocks}, {takes} {_effect_text(again)} as long"


def _spread_and_picks_text(analysis: ContentionAnalysis) -> str:
    """Say what else contention does: to the spread, and to what is picked."""
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
    loads = format_list(list(dict.fromkeys(load.subject.workload for load in options.aggressors)))
    if options.processes > len(machine.cores):
        among = f", {loads} among them," if loads else ""
        return f", as {options.processes} processes{among} share {format_count(len(machine.cores), 'core')}"
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
    spread = format_percent(budget.spread(part))
    return f"; most noise arises {NOISE_PARTS[part]}, a spread of {spread}, and {REMEDIES[part]}"


def build_page(
    machine: Machine, options: ContentionOptions, analysis: ContentionAnalysis, findings: Findings, records: Records
) -> Page:
    """Return the whole page."""
    some = bool(analysis.layout.cells)
    results = (_times_table(analysis), _slots_table(options, analysis)) if some else ()
    trial_labels = _trial_labels(machine, options, analysis)
    placement = (
        *_timeline(analysis, records),
        *((_placement_table(options, analysis),) if some else ()),
        *monitor_table(records, trial_labels),
        *notes_table(records, trial_labels),
    )
    sections = [
        Section(title="Results", elements=(*results, *_remarks(analysis))),
        Section(
            title="Every block, every sample",
            elements=(*_ratio_figure(options, analysis), *_sample_figures(options, analysis)),
        ),
        Section(title="What the tuner picked", elements=pick_elements(options, analysis)),
        Section(title="Where the noise comes from", elements=(*_noise_table(analysis), *_sensors_table(analysis))),
        Section(title="Devices beside each other", elements=_devices(options, analysis)),
        Section(title="Who ran where and when", elements=placement),
    ]
    comparisons = analysis.times.get(analysis.layout.quantity, {})
    tone: Tone = "plain" if some else "bad"
    if some and "naive" in comparisons:
        tone = "bad" if only_calls_slow(analysis) else EFFECT_TONES[comparisons["naive"].overall.verdict]
    used_s = sum(block_durations_s(records).values())
    return compose_page(
        machine,
        records,
        title=f"assay contention: {', '.join(dict.fromkeys(s.label for s in options.subjects))}",
        lead=findings.headline,
        lead_tone=tone,
        sections=sections,
        facts={
            "devices": f"{', '.join(options.devices)}, {format_count(options.workers, 'worker')} each",
            "aggressors": ", ".join(load.subject.label for load in options.aggressors) or "none",
            "tuner": options.tuner or "none",
            "blocks": "as many as fit" if options.repeat is None else str(options.repeat),
            "budget": f"{format_duration(options.budget_s)}; {format_duration(used_s)} were used",
            "per worker and trial": f"{options.timing_s:.2g} s timed, {options.tuning_s:.2g} s tuned",
            "seed": str(options.seed),
        },
    )


def _remarks(analysis: ContentionAnalysis) -> tuple[Element, ...]:
    remarks = [*analysis.remarks, *([analysis.overrun] if analysis.overrun else [])]
    texts = [Text(text=f"{remark[:1].upper()}{remark[1:]}.", tone="unsure") for remark in remarks]
    missing = group_notes((item.reason, item.where) for item in analysis.layout.missing)
    return (*texts, *(Text(text=f"Missing: {item.trial_names}: {item.text}.", tone="bad") for item in missing))


def _trial_labels(machine: Machine, options: ContentionOptions, analysis: ContentionAnalysis) -> dict[str, str]:
    """Return what each trial measures, when and where."""
    again = retiming_block(machine, options, analysis.layout.choices)
    trials = [(WARM_UP, trial) for trial in warm_up_trials(machine, options, block_name(1))]
    trials += [(PHASE_LABELS[RETIMED], trial) for trial in (again.trials if again else ())]
    labels = {trial.id: f"{when}, {_trial_text(trial)}" for when, trial in trials}
    for item in analysis.layout.phase_trials:
        when = f"block {item.block}, {PHASE_LABELS[item.phase]}"
        labels[item.record.trial] = f"{when}, {_trial_text(item.trial)}"
    return labels


def _trial_text(trial: Trial) -> str:
    devices = dict.fromkeys(device for role in trial.roles if role.duty == "timed" for device in role.devices)
    return f"{trial.roles[0].subjects[0].label} on {', '.join(devices)}"


def _floor_cell(effect: ContentionEffect) -> str | None:
    """Write how far A/A strays."""
    if effect.floor is None:
        return None
    return f"±{format_percent(effect.floor)}" if effect.floor < UNINFORMATIVE_RATIO else "anything"


VERDICT_CELLS = {"yes": "yes", "no": "no", "unsure": "not decided"}
COMPARED_PHASES: tuple[Phase, ...] = (*CONCURRENT_PHASES, "again")


def _times_table(analysis: ContentionAnalysis) -> Table:
    """Return the answer: what each phase does to time and spread, all slots together."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    several = len(analysis.layout.quantities) > 1
    for quantity, comparisons in analysis.times.items():
        for phase in (phase for phase in COMPARED_PHASES if phase in comparisons):
            effect, spread = comparisons[phase].overall, analysis.spreads[quantity].get(phase)
            loss = analysis.losses.get(phase) if quantity == analysis.layout.quantity else None
            rows.append(
                (
                    PHASE_LABELS[phase] if phase in CONCURRENT_PHASES else f"{PHASE_LABELS[phase]} (A/A)",
                    *((TIME_LABELS[quantity],) if several else ()),
                    ratio_cell(effect.ratio),
                    _floor_cell(effect),
                    VERDICT_CELLS[effect.verdict],
                    ratio_cell(spread.overall.ratio) if spread is not None else None,
                    ratio_cell(loss.overall.ratio) if loss is not None else None,
                )
            )
            tones.append(EFFECT_TONES[effect.verdict])
    titles = ("phase", *(("time of",) if several else ()), "time", "A/A shows", "differs", "spread", "picks")
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


def _slots_table(options: ContentionOptions, analysis: ContentionAnalysis) -> Table:
    """Return the phases side by side for every subject, device and worker."""
    rows: list[tuple[Cell, ...]] = []
    tones: list[Tone] = []
    layout = analysis.layout
    for quantity in layout.quantities:
        kind = f", {TIME_LABELS[quantity]}" if len(layout.quantities) > 1 else ""
        levels, medians = layout.table(quantity), layout.table(quantity, "median_log")
        cvs, comparisons = layout.table(quantity, "log_cv"), analysis.times.get(quantity, {})
        for slot in sorted({slot for _, slot in levels}):
            where = _slot_label(options, slot)
            for phase in options.phases:
                level, median = typical_level(levels, phase, slot), typical_level(medians, phase, slot)
                if level is None or median is None:
                    continue
                effect = comparisons[phase].slots.get(slot) if phase in comparisons else None
                rows.append(
                    (
                        f"{where}{kind}: {PHASE_LABELS[phase]}",
                        format_time(median.value),
                        format_time(level.value),
                        None if effect is None else ratio_cell(effect.ratio),
                        percent_cell(typical_level(cvs, phase, slot)),
                    )
                )
                marked = effect is not None and phase in CONCURRENT_PHASES
                tones.append(EFFECT_TONES[effect.verdict] if effect is not None and marked else "plain")
    what = "Each workload" if len(options.subjects) > 1 else options.subjects[0].label
    return Table(
        title=f"{what} on each device, phase by phase",
        columns=table_columns("where and when", "median", "mean", "mean × alone", "CV of repeats"),
        rows=tuple(rows),
        tones=tuple(tones),
        note=(
            "Typical over blocks, with 95 % intervals over them; “inconclusive”: too few blocks to say. × alone is "
            "taken within each block, over the mean of alone and alone again; alone again is over alone."
        ),
    )


def _slot_label(options: ContentionOptions, slot: WorkerSlot) -> str:
    who = role_name(slot.device, slot.worker, options.workers)
    return f"{options.subjects[slot.subject].label} on {who}" if len(options.subjects) > 1 else who


def _devices(options: ContentionOptions, analysis: ContentionAnalysis) -> tuple[Element, ...]:
    """Return how far devices are apart."""
    if analysis.incomparable is not None:
        return (Text(text=f"Devices are not compared with each other: {analysis.incomparable}.", tone="unsure"),)
    if not analysis.agreements:
        return ()

    def tone(agreement: DeviceAgreement) -> Tone:
        return EFFECT_TONES[agreement.effect.verdict]

    table = build_table(
        "Whether devices agree",
        analysis.agreements,
        {
            "workload": lambda agreement: options.subjects[agreement.subject].label,
            "phase": lambda agreement: PHASE_LABELS[agreement.phase],
            "furthest apart": lambda agreement: f"{agreement.slowest} over {agreement.fastest}",
            "ratio": lambda agreement: ratio_cell(agreement.effect.ratio),
            "A/A shows": lambda agreement: _floor_cell(agreement.effect),
            "differ": lambda agreement: VERDICT_CELLS[agreement.effect.verdict],
        },
        numeric=("ratio", "A/A shows"),
        tone=tone,
        note=(
            f"Alone is the mean of {' and '.join(PHASE_LABELS[phase] for phase in BASELINE_PHASES)}. "
            "Ratios with 95 % intervals."
        ),
    )
    return (table,)


def _noise_table(analysis: ContentionAnalysis) -> list[Element]:
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
            columns=table_columns("part", *conditions),
            rows=tuple(rows),
            note=(
                "Standard deviations; neighbours shift the level, and count with the size of the shift. Parts add up "
                "in squares. The rest is what these parts do not explain together."
            ),
        )
    ]


def _sensors_table(analysis: ContentionAnalysis) -> list[Element]:
    """Return what times correlate with, among all that was seen."""
    if not analysis.correlations:
        return []
    return [
        build_table(
            "What times go with",
            analysis.correlations,
            {
                "seen meanwhile": lambda sensor: sensor.metric,
                "Spearman's rho": lambda sensor: f"{sensor.correlation.rho:+.2f}",
                "trials": lambda sensor: sensor.correlation.n,
                "p": lambda sensor: f"{sensor.correlation.p:.2g}",
            },
            numeric=("Spearman's rho", "trials", "p"),
            tone=lambda sensor: "unsure" if sensor.correlation.p <= SIGNIFICANT_P else "plain",
            note="Over trials of all phases; p by shuffling, raised to hold for all rows (Holm). Marked: below 5 %.",
        )
    ]


def _placement_table(options: ContentionOptions, analysis: ContentionAnalysis) -> Table:
    """Return where the workers of each phase ran, over all blocks."""
    rows: list[tuple[Cell, ...]] = []
    for phase in options.phases:
        in_phase = [item.record for item in analysis.layout.phase_trials if item.phase == phase]
        evidence = [e for record in in_phase for e in record.evidence]
        for role in dict.fromkeys(e.role for e in evidence):
            mine = [e for e in evidence if e.role == role]
            switches = [e.involuntary_switches for e in mine if e.involuntary_switches is not None]
            rows.append(
                (
                    PHASE_LABELS[phase],
                    role,
                    "; ".join(dict.fromkeys(isolation_text(e) for e in mine)),
                    "; ".join(dict.fromkeys(" ".join(map(str, e.allowed_cores)) for e in mine)),
                    "; ".join(dict.fromkeys("–" if e.thread_limit is None else str(e.thread_limit) for e in mine)),
                    f"{median_high(switches)}" if switches else None,
                    f"{median_high(e.setup_s for e in mine):.2f}",
                )
            )
    titles = ("phase", "worker", "isolation held", "cores", "threads", "switches", "set-up, s")
    return Table(
        title="Where the workers ran, as they read it back",
        columns=table_columns(*titles, words=5),
        rows=tuple(rows),
        note="Switches: how often the kernel took the core away, in the middle process. Set-up likewise.",
    )


MAX_ROWS = 24
MAX_SAMPLES = 2000
"""Of one row, evenly taken: more cannot be told apart in a drawing."""


def _ratio_figure(options: ContentionOptions, analysis: ContentionAnalysis) -> list[Element]:
    """Return every block's ratio to the baseline, a row for each phase and slot."""
    comparisons = analysis.times.get(analysis.layout.quantity, {})
    table = analysis.layout.table(analysis.layout.quantity)
    strips: list[StripRow] = []
    for phase in (phase for phase in COMPARED_PHASES if phase in comparisons):
        for slot, effect in comparisons[phase].slots.items():
            logs, ratio = baseline_differences(table, phase, slot).values(), effect.ratio
            if logs and ratio is not None:
                label = f"{PHASE_LABELS[phase]}: {_slot_label(options, slot)}"
                samples = tuple(math.exp(log) for log in logs)
                strips.append(StripRow(label=label, samples=samples, value=ratio.value, low=ratio.low, high=ratio.high))
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


def _sample_figures(options: ContentionOptions, analysis: ContentionAnalysis) -> list[Element]:
    """Return the samples of each phase and slot over all blocks, a figure for each subject."""
    figures: list[Element] = []
    quantity = analysis.layout.quantity
    for index, subject in enumerate(options.subjects):
        cells = [c for c in analysis.layout.cells if c.slot.subject == index and c.quantity == quantity]
        rows = _sample_rows(options, cells, by_worker=True)
        if len(rows) > MAX_ROWS:
            rows = _sample_rows(options, cells, by_worker=False)
        if rows:
            figures.append(
                StripPlot(
                    title=f"Samples of {subject.label}",
                    name=f"samples_{index}",
                    axis=TIME_AXES[quantity],
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


def _timeline(analysis: ContentionAnalysis, records: Records) -> list[Element]:
    """Return when each trial ran, a lane a phase, with what the monitor saw above."""
    phases: dict[str, str] = {item.record.trial: item.phase for item in analysis.layout.phase_trials}
    shown = [record for record in records if record.trial in phases or record.block == RETIMED]
    if not shown:
        return []
    origin = min(record.window.start_ns for record in shown)
    lanes = list(PHASE_LABELS)
    shown.sort(key=lambda record: lanes.index(phases.get(record.trial, RETIMED)))
    bars = tuple(
        TimelineBar(
            lane=PHASE_LABELS[phases.get(record.trial, RETIMED)],
            label=str(block_number(record.block) or ""),
            start_s=(record.window.start_ns - origin) / 1e9,
            end_s=(record.window.end_ns - origin) / 1e9,
            tone="plain" if record.status == "ok" else "bad",
        )
        for record in shown
    )
    return [
        Timeline(
            title="When each trial ran",
            name="timeline",
            bars=bars,
            lines=sensor_lines(records, origin),
            lines_axis=sensor_axis(records),
            note="Numbers are blocks; the order of the phases within each is by lot, and balanced over blocks.",
        )
    ]
