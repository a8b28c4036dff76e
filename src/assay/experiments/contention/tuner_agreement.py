"""How often the tuner's picks differ (between blocks, between concurrent and alone, between GPUs).

The tables of picks and their regret.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from string import ascii_uppercase
from typing import TYPE_CHECKING

from assay.core.format import format_change, format_time
from assay.core.page import Column, Table, Text
from assay.experiments.contention.layout import WorkerSlot
from assay.experiments.contention.options import CONCURRENT_PHASES, PHASE_LABELS
from assay.experiments.contention.regret import pick_regret
from assay.stats.ratios import Proportion, mcnemar_p

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.page import Cell, Element
    from assay.core.results import Estimate, Verdict
    from assay.experiments.contention.findings import ContentionAnalysis
    from assay.experiments.contention.layout import TunerPick
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.experiments.contention.regret import SlotRegrets


MAX_DIFFERENT_SHARE = 0.25
"""A "no" needs to know that it is so in fewer than this share of the picks."""
SIGNIFICANCE_LEVEL = 0.05

PickTable = dict[tuple["Phase", WorkerSlot], dict[int, str]]
"""The configuration that was picked, as its key, for each phase and place by block."""


@dataclass(frozen=True)
class PickMismatch:
    """How often picks of a phase differ from those alone in the same block, and how often A/A picks do.

    ``only_in_phase`` counts blocks in which the pick beside others differs though A/A agrees, ``only_same`` the
    reverse.
    """

    share: Proportion
    baseline_share: Proportion
    only_in_phase: Proportion
    only_in_baseline: int

    @property
    def p(self) -> float:
        """How often chance alone sets the two apart so far (McNemar, exact)."""
        return mcnemar_p(self.only_in_phase.count, self.only_in_baseline)

    @property
    def verdict(self) -> Verdict:
        """Whether company changes what is picked, more often than measuring again does."""
        if not self.only_in_phase.n:
            return "unsure"
        if self.p <= SIGNIFICANCE_LEVEL and self.only_in_phase.count > self.only_in_baseline:
            return "yes"
        interval = self.only_in_phase.interval()
        return "no" if interval is not None and interval[1] <= MAX_DIFFERENT_SHARE else "unsure"


def pick_table(choices: Iterable[TunerPick]) -> PickTable:
    """Return what was picked where and when; where nothing was found there is nothing to compare."""
    table: PickTable = {}
    for choice in choices:
        if choice.key is not None:
            table.setdefault((choice.phase, choice.slot), {})[choice.block] = choice.key
    return table


def mismatch_with_baseline(table: PickTable, phase: Phase) -> PickMismatch:
    """Return how often the picks of a phase differ from the baseline's of the same block, beside A/A."""
    share = only_here = Proportion(0, 0)
    same, only_same = baseline_mismatch(table), 0
    for (table_phase, slot), by_block in table.items():
        if table_phase != phase:
            continue
        base, again = table.get(("baseline", slot.single_worker), {}), table.get(("again", slot.single_worker), {})
        for block, key in by_block.items():
            if block not in base:
                continue
            share += Proportion(int(key != base[block]), 1)
            if block in again:
                here, there = key != base[block], again[block] != base[block]
                only_here += Proportion(int(here and not there), 1)
                only_same += int(there and not here)
    return PickMismatch(share, same, only_here, only_same)


def baseline_mismatch(table: PickTable) -> Proportion:
    """Return how often a pick alone differs from the other one alone in the same block: A/A."""
    share = Proportion(0, 0)
    for (phase, slot), by_block in table.items():
        if phase == "again":
            base = table.get(("baseline", slot), {})
            share = sum((Proportion(int(k != base[b]), 1) for b, k in by_block.items() if b in base), share)
    return share


def changes_over_blocks(table: PickTable, phase: Phase) -> Proportion:
    """Return how often a pick of a phase differs from that of the block before, at the same place."""
    rows = [
        [by_block[b] for b in sorted(by_block)] for (table_phase, _), by_block in table.items() if table_phase == phase
    ]
    return _changed_share(rows)


def changes_over_devices(table: PickTable, phase: Phase, devices: Sequence[str]) -> Proportion:
    """Return how often a pick of a phase differs from that of the device before, in the same block."""
    slots = {slot for p, slot in table if p == phase}
    rows = []
    for subject, worker in sorted({(slot.subject, slot.worker) for slot in slots}):
        columns = [table.get((phase, WorkerSlot(subject, device, worker)), {}) for device in devices]
        blocks = sorted({block for by_block in columns for block in by_block})
        rows += [[by_block[b] for by_block in columns if b in by_block] for b in blocks]
    return _changed_share(rows)


def pick_mismatches(table: PickTable, phases: Sequence[Phase]) -> dict[Phase, PickMismatch]:
    """Return what company does to the picks, for each phase with company of which any is known."""
    measured = {phase for phase, _ in table}
    return {
        phase: mismatch_with_baseline(table, phase)
        for phase in CONCURRENT_PHASES
        if phase in phases and phase in measured
    }


def _changed_share(rows: Iterable[Sequence[str]]) -> Proportion:
    pairs = [(a, b) for row in rows for a, b in pairwise(row)]
    return Proportion(sum(a != b for a, b in pairs), len(pairs))


def pick_elements(options: ContentionOptions, analysis: ContentionAnalysis) -> tuple[Element, ...]:
    """Return all that is known of the picks; nothing where nothing was tuned."""
    choices = analysis.layout.choices
    if not choices:
        return ()
    elements: list[Element] = []
    for index, subject in enumerate(options.subjects):
        mine = [choice for choice in choices if choice.slot.subject == index]
        if mine:
            names = pick_letters(mine)
            elements += [
                _configurations_table(options, subject.label, mine, names),
                *_regret_tables(options, analysis, index, names),
                _picks_table(options, analysis, subject.label, mine, names),
            ]
    return (*elements, *_share_elements(options, analysis))


def pick_letters(choices: Sequence[TunerPick]) -> dict[str, str]:
    """Return a short name for each configuration, A for the one that was picked most often."""
    counts: dict[str, int] = {}
    for choice in choices:
        if choice.key is not None:
            counts[choice.key] = counts.get(choice.key, 0) + 1
    ordered = sorted(counts, key=lambda key: (-counts[key], key))
    return {key: _letter(rank) for rank, key in enumerate(ordered)}


def _letter(rank: int) -> str:
    more, last = divmod(rank, len(ascii_uppercase))
    return (ascii_uppercase[more - 1] if more else "") + ascii_uppercase[last]


def _configurations_table(
    options: ContentionOptions, label: str, choices: Sequence[TunerPick], names: dict[str, str]
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for key, name in names.items():
        config = next(c.config for c in choices if c.key == key) or {}
        text = " ".join(f"{setting}={value}" for setting, value in config.items())
        rows.append(
            (name, text, *(sum(c.key == key and c.phase == phase for c in choices) for phase in options.phases))
        )
    return Table(
        title=f"{label}: configurations that were picked, and how often in each phase",
        columns=(
            Column(title="pick"),
            Column(title="configuration"),
            *(Column(title=PHASE_LABELS[phase], numeric=True) for phase in options.phases),
        ),
        rows=tuple(rows),
        note=_tuned_blocks_note(options),
    )


def _tuned_blocks_note(options: ContentionOptions) -> str | None:
    if options.tuned_blocks is None:
        return None
    return f"The tuner ran in the first {options.tuned_blocks} blocks only, which leaves time for more blocks."


def _regret_tables(
    options: ContentionOptions, analysis: ContentionAnalysis, subject: int, names: dict[str, str]
) -> list[Table]:
    by_device = {
        d: analysis.regrets[WorkerSlot(subject, d)]
        for d in options.devices
        if WorkerSlot(subject, d) in analysis.regrets
    }
    if not by_device:
        return []
    rows = tuple((name, *(_regret_cell(regrets, key) for regrets in by_device.values())) for key, name in names.items())
    fastest = "; ".join(f"{device} {format_time(regrets.best_us)}" for device, regrets in by_device.items())
    return [
        Table(
            title=f"{options.subjects[subject].label}: regret of each pick, timed once more in quiet",
            columns=(Column(title="pick"), *(Column(title=device, numeric=True) for device in by_device)),
            rows=rows,
            note=(
                "How much slower than the best of them, in turns, with 95 % intervals; which is the best was found in "
                f"the other half of the time. The best takes: {fastest}."
            ),
        )
    ]


def _regret_cell(regrets: SlotRegrets, key: str) -> str | None:
    estimate = regrets.by_config.get(key)
    if estimate is None:
        return None
    return "best" if key == regrets.best else regret_text(estimate)


def regret_text(estimate: Estimate) -> str:
    """Write a regret in percent, with its interval."""
    return format_change(estimate.value, estimate.low, estimate.high)


def _picks_table(
    options: ContentionOptions,
    analysis: ContentionAnalysis,
    label: str,
    choices: Sequence[TunerPick],
    names: dict[str, str],
) -> Element:
    rows: list[tuple[Cell, ...]] = []
    for device in options.devices:
        for block in analysis.layout.blocks:
            here = [c for c in choices if c.slot.device == device and c.block == block]
            if here:
                cells = [_pick_cell(analysis, options, here, phase, names) for phase in options.phases]
                rows.append((device, block, *cells))
    return Table(
        title=f"{label}: what was picked in each block",
        columns=(
            Column(title="device"),
            Column(title="block", numeric=True),
            *(Column(title=PHASE_LABELS[phase]) for phase in options.phases),
        ),
        rows=tuple(rows),
        note="Letters as above, with the regret where it is surely more than none; – was not measured.",
    )


def _pick_cell(
    analysis: ContentionAnalysis,
    options: ContentionOptions,
    here: Sequence[TunerPick],
    phase: Phase,
    names: dict[str, str],
) -> str | None:
    texts = []
    for choice in sorted((c for c in here if c.phase == phase), key=lambda c: c.slot):
        regret = pick_regret(choice, analysis.regrets)
        lost = regret is not None and regret.low is not None and regret.low > 1
        behind = f" {regret.value - 1:+.1%}" if regret is not None and lost else ""
        name = "none" if choice.key is None else names[choice.key]
        worker = f"{choice.slot.worker + 1}: " if options.workers > 1 and phase in {"naive", "isolated"} else ""
        texts.append(f"{worker}{name}{behind}")
    return "; ".join(texts) or None


def _share_elements(options: ContentionOptions, analysis: ContentionAnalysis) -> list[Element]:
    rows: list[tuple[Cell, ...]] = [
        (f"{PHASE_LABELS[phase]}, from alone in the same block", *share_cells(mismatch.share))
        for phase, mismatch in analysis.mismatches.items()
    ]
    rows.append(
        (
            f"{PHASE_LABELS['again']}, from alone in the same block (A/A)",
            *share_cells(baseline_mismatch(analysis.picks)),
        )
    )
    rows += [
        (f"{PHASE_LABELS[phase]}, from one block to the next", *share_cells(changes_over_blocks(analysis.picks, phase)))
        for phase in options.phases
    ]
    if analysis.incomparable is None and len(options.devices) > 1:
        rows += [
            (
                f"{PHASE_LABELS[p]}, from one device to the next",
                *share_cells(changes_over_devices(analysis.picks, p, options.devices)),
            )
            for p in options.phases
        ]
    table = Table(
        title="How often picks differ",
        columns=(
            Column(title="picks"),
            Column(title="differ", numeric=True),
            Column(title="share", numeric=True),
            Column(title="95 % interval", numeric=True),
        ),
        rows=tuple(rows),
        note="Exact (Clopper–Pearson) intervals, for comparisons that do not depend on each other.",
    )
    if analysis.incomparable is not None:
        return [table, Text(text=f"Picks of different GPUs are not compared: {analysis.incomparable}.", tone="unsure")]
    return [table]


def share_cells(share: Proportion) -> tuple[Cell, Cell, Cell]:
    """Return a share for three cells: how many of how many, in percent, and the interval."""
    value, interval = share.value, share.interval()
    if value is None or interval is None:
        return None, None, None
    return f"{share.count} of {share.n}", f"{value:.0%}", f"{interval[0]:.0%} – {interval[1]:.0%}"
