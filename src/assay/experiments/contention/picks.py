"""The tuner's picks: how often they differ (between blocks, concurrent and alone, GPUs), and what they cost.

The **regret** of a pick is its time alone over that of the best configuration that was picked anywhere. Every picked
configuration is timed once more, alone, interleaved in one process. The best configuration is selected in one half of
the time and the regret of the others is estimated in the other half, so that a configuration that looks best by chance
does not also look better than it is.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_uppercase
from typing import TYPE_CHECKING

import numpy as np

from assay.core.format import format_change, format_time
from assay.core.page import Column, Table, Text, build_table
from assay.core.results import Estimate
from assay.experiments.contention.layout import WorkerSlot
from assay.experiments.contention.options import CONCURRENT_PHASES, PHASE_LABELS
from assay.experiments.contention.plan import config_key, retiming_block
from assay.experiments.reporting import primary_time, table_columns
from assay.stats.intervals import CONFIDENCE, mean_interval
from assay.stats.numerics import t_quantile, winsorize
from assay.stats.ratios import Proportion, mcnemar_p

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from assay.core.page import Cell, Element
    from assay.core.results import Record, Verdict
    from assay.core.values import Role
    from assay.experiments.contention.findings import ContentionAnalysis
    from assay.experiments.contention.layout import LevelTable, TunerPick
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine
    from assay.store.records import Records

    Samples = NDArray[np.float64]


MAX_DIFFERENT_SHARE = 0.25
"""A "no" needs to know that it is so in fewer than this share of the picks."""
SIGNIFICANCE_LEVEL = 0.05

PickTable = dict[tuple["Phase", WorkerSlot], dict[int, str]]
"""The configuration that was picked, as its key, for each phase and slot by block."""


@dataclass(frozen=True)
class PickMismatch:
    """How often picks of a phase differ from those alone in the same block, and how often A/A picks do.

    ``only_in_phase`` counts blocks in which the concurrent pick differs though A/A agrees, ``only_in_baseline`` the
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
        """Whether contention changes what is picked, more often than measuring again does."""
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


def pick_mismatches(table: PickTable, phases: Sequence[Phase]) -> dict[Phase, PickMismatch]:
    """Return what contention does to the picks, for each concurrent phase of which any is known."""
    measured = {phase for phase, _ in table}
    same = baseline_mismatch(table)
    mismatches: dict[Phase, PickMismatch] = {}
    for phase in (phase for phase in CONCURRENT_PHASES if phase in phases and phase in measured):
        differs: list[bool] = []
        changes: list[tuple[bool, bool]] = []
        for (table_phase, slot), by_block in table.items():
            base, again = (table.get((alone, slot.single_worker), {}) for alone in ("baseline", "again"))
            if table_phase == phase:
                differs += [key != base[block] for block, key in by_block.items() if block in base]
                both = [block for block in by_block if block in base and block in again]
                changes += [(by_block[block] != base[block], again[block] != base[block]) for block in both]
        only_here = Proportion(sum(here and not there for here, there in changes), len(changes))
        only_same = sum(there and not here for here, there in changes)
        mismatches[phase] = PickMismatch(Proportion(sum(differs), len(differs)), same, only_here, only_same)
    return mismatches


def baseline_mismatch(table: PickTable) -> Proportion:
    """Return how often a pick alone differs from the other one alone in the same block: A/A."""
    differs = [
        key != base[block]
        for (phase, slot), by_block in table.items()
        if phase == "again" and (base := table.get(("baseline", slot), {}))
        for block, key in by_block.items()
        if block in base
    ]
    return Proportion(sum(differs), len(differs))


def changes_over_blocks(table: PickTable, phase: Phase) -> Proportion:
    """Return how often a pick of a phase differs from that of the block before, at the same slot."""
    return _changed_share([by_block[b] for b in sorted(by_block)] for (p, _), by_block in table.items() if p == phase)


def changes_over_devices(table: PickTable, phase: Phase, devices: Sequence[str]) -> Proportion:
    """Return how often a pick of a phase differs from that of the device before, in the same block."""
    rows: list[list[str]] = []
    for subject, worker in sorted({(slot.subject, slot.worker) for p, slot in table if p == phase}):
        columns = [table.get((phase, WorkerSlot(subject, device, worker)), {}) for device in devices]
        blocks = sorted({block for by_block in columns for block in by_block})
        rows += [[by_block[b] for by_block in columns if b in by_block] for b in blocks]
    return _changed_share(rows)


def _changed_share(rows: Iterable[Sequence[str]]) -> Proportion:
    pairs = [(a, b) for row in rows for a, b in pairwise(row)]
    return Proportion(sum(a != b for a, b in pairs), len(pairs))


TIME_PARTS = 24
"""Parts of the time that each process is cut into; configurations are compared part by part."""
MIN_PROCESSES = 3
"""With fewer, the interval is within processes and says so."""


@dataclass(frozen=True)
class SlotRegrets:
    """Of one subject on one device: the regret of each configuration by its key, 1 for the best; the best's time."""

    best: str
    best_us: float
    by_config: dict[str, Estimate]
    trial: str


def compute_regrets(
    machine: Machine, options: ContentionOptions, choices: Sequence[TunerPick], records: Records
) -> dict[WorkerSlot, SlotRegrets]:
    """Return the regrets at each slot that was timed again."""
    block = retiming_block(machine, options, choices)
    planned = {trial.id: trial for trial in block.trials} if block is not None else {}
    subjects = [candidate.model_copy(update={"config": None}) for candidate in options.subjects]
    by_slot: dict[WorkerSlot, SlotRegrets] = {}
    for record in records:
        trial = planned.get(record.trial)
        if trial is not None and record.status == "ok":
            role = trial.roles[0]
            slot_regrets = _record_regrets(records, record, role)
            if slot_regrets is not None:
                subject = subjects.index(role.subjects[0].model_copy(update={"config": None}))
                by_slot[WorkerSlot(subject, role.devices[0])] = slot_regrets
    return by_slot


def regret_table(choices: Sequence[TunerPick], regrets_by_slot: dict[WorkerSlot, SlotRegrets]) -> LevelTable:
    """Return the logarithm of each pick's regret, by phase, slot and block; picks not timed again are left out."""
    table: LevelTable = {}
    for choice in choices:
        regret = _pick_regret(choice, regrets_by_slot)
        if regret is not None:
            table.setdefault((choice.phase, choice.slot), {})[choice.block] = math.log(regret.value)
    return table


def _pick_regret(choice: TunerPick, regrets_by_slot: dict[WorkerSlot, SlotRegrets]) -> Estimate | None:
    """Return the regret of a pick; null where it was not timed again."""
    slot_regrets = regrets_by_slot.get(choice.slot.single_worker)
    return slot_regrets.by_config.get(choice.key) if slot_regrets is not None and choice.key is not None else None


def _record_regrets(records: Records, record: Record, role: Role) -> SlotRegrets | None:
    """Return the regrets from one record of configurations in turns; null where some have no samples."""
    quantity = primary_time([record], role.name)
    logs: list[Samples] = []  # processes × configurations × parts
    for restart in sorted({s.restart for s in record.series}):
        series = {s.subject: s for s in record.series if s.quantity == quantity and s.restart == restart}
        if len(series) == len(role.subjects):
            logs.append(_part_levels([records.samples(series[index]) for index in range(len(role.subjects))]))
    if not logs:
        return None
    ranked = np.concatenate([process[:, 0::2] for process in logs], axis=1)
    best = int(np.argmin(np.median(ranked, axis=1)))
    keys = [config_key(subject.config or {}) for subject in role.subjects]
    best_us = math.exp(float(np.median(np.concatenate([process[best] for process in logs]))))
    behind = {
        key: _regret_estimate([process[index, 1::2] - process[best, 1::2] for process in logs])
        for index, key in enumerate(keys)
    }
    return SlotRegrets(keys[best], best_us, behind, record.trial)


def _part_levels(samples_by_config: Sequence[Samples]) -> Samples:
    """Return the logarithm of the median time of each configuration in each part of a process's time."""
    parts = min(TIME_PARTS, *(len(samples) for samples in samples_by_config))
    parts -= parts % 2 if parts > 1 else 0
    return np.array(
        [
            [math.log(max(float(np.median(part)), 1e-6)) for part in np.array_split(samples, parts)]
            for samples in samples_by_config
        ]
    )


def _regret_estimate(by_process: Sequence[Samples]) -> Estimate:
    """Return how far a configuration is behind the best: over processes where there are enough, else within them."""
    values = [winsorize(process) for process in by_process if len(process)] or [np.zeros(1)]
    means, bounds = np.array([float(process.mean()) for process in values]), None
    over_processes = len(means) >= MIN_PROCESSES
    if over_processes:
        centre, spread = float(means.mean()), float(means.std(ddof=1))
        half = t_quantile(CONFIDENCE, len(means) - 1) * spread / math.sqrt(len(means))
        bounds = (centre - half, centre + half)
        how = f"mean log-ratio in turns, Student's t over {len(means)} processes"
    else:
        pooled = np.concatenate(values)
        centre, bounds = float(pooled.mean()), mean_interval(pooled)
        how = f"mean log-ratio in turns, within {len(means)} process{'es' if len(means) > 1 else ''}"
    return Estimate(
        value=math.exp(centre),
        low=None if bounds is None else math.exp(bounds[0]),
        high=None if bounds is None else math.exp(bounds[1]),
        unit="×",
        scope="run" if over_processes else "process",
        method=how,
        n=sum(len(process) for process in values),
    )


def pick_elements(options: ContentionOptions, analysis: ContentionAnalysis) -> tuple[Element, ...]:
    """Return the tables of picks and regrets; nothing where nothing was tuned."""
    choices = analysis.layout.choices
    if not choices:
        return ()
    elements: list[Element] = []
    for index, subject in enumerate(options.subjects):
        mine = [choice for choice in choices if choice.slot.subject == index]
        if mine:
            names = _pick_letters(mine)
            elements += [
                _configurations_table(options, subject.label, mine, names),
                *_regret_tables(options, analysis, index, names),
                _picks_table(options, analysis, subject.label, mine, names),
            ]
    table = build_table(
        "How often picks differ",
        [(label, share, share.interval()) for label, share in _pick_shares(options, analysis)],
        {
            "picks": lambda row: row[0],
            "differ": lambda row: f"{row[1].count} of {row[1].n}" if row[1].n else None,
            "share": lambda row: None if row[1].value is None else f"{row[1].value:.0%}",
            "95 % interval": lambda row: None if row[2] is None else f"{row[2][0]:.0%} – {row[2][1]:.0%}",
        },
        numeric=("differ", "share", "95 % interval"),
        note="Exact (Clopper–Pearson) intervals, for comparisons that do not depend on each other.",
    )
    if analysis.incomparable is None:
        return (*elements, table)
    reason = f"Picks of different GPUs are not compared: {analysis.incomparable}."
    return (*elements, table, Text(text=reason, tone="unsure"))


def _pick_letters(choices: Sequence[TunerPick]) -> dict[str, str]:
    """Return a short name for each configuration, A for the one that was picked most often."""
    counts = Counter(choice.key for choice in choices if choice.key is not None)
    names: dict[str, str] = {}
    for rank, key in enumerate(sorted(counts, key=lambda key: (-counts[key], key))):
        more, last = divmod(rank, len(ascii_uppercase))
        names[key] = (ascii_uppercase[more - 1] if more else "") + ascii_uppercase[last]
    return names


def _configurations_table(
    options: ContentionOptions, label: str, choices: Sequence[TunerPick], names: dict[str, str]
) -> Table:
    configs, counts = {c.key: c.config for c in reversed(choices)}, Counter((c.key, c.phase) for c in choices)
    rows: list[tuple[Cell, ...]] = []
    for key, name in names.items():
        text = " ".join(f"{setting}={value}" for setting, value in (configs[key] or {}).items())
        rows.append((name, text, *(counts[key, phase] for phase in options.phases)))
    first = f"The tuner ran in the first {options.tuned_blocks} blocks only, which leaves time for more blocks."
    return Table(
        title=f"{label}: configurations that were picked, and how often in each phase",
        columns=table_columns("pick", "configuration", *(PHASE_LABELS[phase] for phase in options.phases), words=2),
        rows=tuple(rows),
        note=None if options.tuned_blocks is None else first,
    )


def _regret_tables(
    options: ContentionOptions, analysis: ContentionAnalysis, subject: int, names: dict[str, str]
) -> list[Table]:
    slots = {device: WorkerSlot(subject, device) for device in options.devices}
    by_device = {device: analysis.regrets[slot] for device, slot in slots.items() if slot in analysis.regrets}
    if not by_device:
        return []
    rows: list[tuple[Cell, ...]] = []
    for key, name in names.items():
        cells: list[str | None] = []
        for regrets in by_device.values():
            estimate = regrets.by_config.get(key)
            change = None if estimate is None else format_change(estimate.value, estimate.low, estimate.high)
            cells.append("best" if estimate is not None and key == regrets.best else change)
        rows.append((name, *cells))
    fastest = "; ".join(f"{device} {format_time(regrets.best_us)}" for device, regrets in by_device.items())
    return [
        Table(
            title=f"{options.subjects[subject].label}: regret of each pick, timed once more in quiet",
            columns=table_columns("pick", *by_device),
            rows=tuple(rows),
            note=(
                "How much slower than the best of them, in turns, with 95 % intervals; which is the best was found in "
                f"the other half of the time. The best takes: {fastest}."
            ),
        )
    ]


def _picks_table(
    options: ContentionOptions,
    analysis: ContentionAnalysis,
    label: str,
    choices: Sequence[TunerPick],
    names: dict[str, str],
) -> Table:
    rows: list[tuple[str, int, list[TunerPick]]] = []
    for device in options.devices:
        for block in analysis.layout.blocks:
            here = [c for c in choices if c.slot.device == device and c.block == block]
            rows += [(device, block, here)] if here else []

    def pick_cell(here: list[TunerPick], phase: Phase) -> str | None:
        texts = []
        for choice in sorted((c for c in here if c.phase == phase), key=lambda c: c.slot):
            regret = _pick_regret(choice, analysis.regrets)
            lost = regret is not None and regret.low is not None and regret.low > 1
            behind = f" {regret.value - 1:+.1%}" if regret is not None and lost else ""
            name = "none" if choice.key is None else names[choice.key]
            worker = f"{choice.slot.worker + 1}: " if options.workers > 1 and phase in CONCURRENT_PHASES else ""
            texts.append(f"{worker}{name}{behind}")
        return "; ".join(texts) or None

    columns = ("device", "block", *(PHASE_LABELS[phase] for phase in options.phases))
    return Table(
        title=f"{label}: what was picked in each block",
        columns=tuple(Column(title=title, numeric=title == "block") for title in columns),
        rows=tuple(
            (device, block, *(pick_cell(here, phase) for phase in options.phases)) for device, block, here in rows
        ),
        note="Letters as above, with the regret where it is surely more than none; – was not measured.",
    )


def _pick_shares(options: ContentionOptions, analysis: ContentionAnalysis) -> Iterator[tuple[str, Proportion]]:
    """Yield between which picks, and how often they differ."""
    for phase, mismatch in analysis.mismatches.items():
        yield f"{PHASE_LABELS[phase]}, from alone in the same block", mismatch.share
    yield f"{PHASE_LABELS['again']}, from alone in the same block (A/A)", baseline_mismatch(analysis.picks)
    for phase in options.phases:
        yield f"{PHASE_LABELS[phase]}, from one block to the next", changes_over_blocks(analysis.picks, phase)
    if analysis.incomparable is None and len(options.devices) > 1:
        for phase in options.phases:
            share = changes_over_devices(analysis.picks, phase, options.devices)
            yield f"{PHASE_LABELS[phase]}, from one device to the next", share
