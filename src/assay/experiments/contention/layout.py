"""Arrange the records by slot, block and phase: the times of the fixed configuration, and the tuner's picks.

A **slot** is a subject on a device in one of the device's workers. In the baseline phases each device has one worker;
every concurrent worker of a device is compared with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.experiments.contention.options import BASELINE_PHASES, CONCURRENT_PHASES, PHASE_LABELS, PHASES
from assay.experiments.contention.plan import block_number, build_block, config_key
from assay.experiments.reporting import TIME_QUANTITIES, primary_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Record
    from assay.core.values import Params, Trial
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine
    from assay.store.records import Records

    Samples = NDArray[np.float64]


MIN_SAMPLE_US = 1e-6
"""What a sample counts at least, so that one that reads as nothing has a logarithm."""


@dataclass(frozen=True, order=True)
class WorkerSlot:
    """A subject, by its number among the options, on a device, in one of the device's workers."""

    subject: int
    device: str
    worker: int = 0

    @property
    def single_worker(self) -> WorkerSlot:
        """The same device with a single worker."""
        return WorkerSlot(self.subject, self.device, 0)


LevelTable = dict[tuple["Phase", "WorkerSlot"], dict[int, float]]
"""A logarithm for each phase and slot, by block."""


@dataclass(frozen=True, eq=False)
class LayoutCell:
    """The samples of one process: one slot in one phase of one block. ``at_s`` is the middle of the timing."""

    slot: WorkerSlot
    block: int
    phase: Phase
    quantity: str
    samples: Samples
    at_s: float
    trial: str

    @cached_property
    def level(self) -> float:
        """The logarithm of the mean time in microseconds.

        The mean and not the median: who shares a core is interrupted in some calls and not in others, and the median
        falls on either side of that. The mean is what all calls together take.
        """
        return math.log(max(float(self.samples.mean()), MIN_SAMPLE_US))

    @cached_property
    def logs(self) -> Samples:
        """The logarithms of the samples."""
        return np.log(np.maximum(self.samples, MIN_SAMPLE_US))

    @cached_property
    def mean_log(self) -> float:
        """The mean of the logarithms of the samples."""
        return float(self.logs.mean())

    @cached_property
    def median_log(self) -> float:
        """The median of the logarithms of the samples."""
        return float(np.median(self.logs))

    @cached_property
    def cv(self) -> float | None:
        """Standard deviation over mean of the repeats; null for a single one."""
        mean = float(self.samples.mean())
        return float(self.samples.std(ddof=1)) / mean if len(self.samples) > 1 and mean > 0 else None

    @property
    def log_cv(self) -> float | None:
        """The logarithm of the coefficient of variation; null where repeats do not vary."""
        return math.log(self.cv) if self.cv else None


@dataclass(frozen=True)
class TunerPick:
    """What the tuner chose in one process; without a configuration it found none, for ``reason``."""

    slot: WorkerSlot
    block: int
    phase: Phase
    config: Params | None
    reason: str | None
    time_us: float | None
    trial: str

    @cached_property
    def key(self) -> str | None:
        """The configuration as text that is the same for the same one; null where none was found."""
        return None if self.config is None else config_key(self.config)


@dataclass(frozen=True)
class MissingResult:
    """Something that was planned and gave nothing: where and when, and why, in words; and its trial."""

    where: str
    reason: str
    trial: str


@dataclass(frozen=True, eq=False)
class PhaseTrial:
    """One trial of a phase: what it was, and the record of it."""

    block: int
    phase: Phase
    trial: Trial
    record: Record


@dataclass(frozen=True, eq=False)
class ContentionLayout:
    """Everything that the blocks gave, and what was planned and gave nothing."""

    cells: tuple[LayoutCell, ...]
    choices: tuple[TunerPick, ...]
    phase_trials: tuple[PhaseTrial, ...]
    missing: tuple[MissingResult, ...]
    quantity: str

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks of which anything is known, in order."""
        return tuple(sorted({phase_trial.block for phase_trial in self.phase_trials}))

    @property
    def quantities(self) -> tuple[str, ...]:
        """The times that were taken, the one that counts first."""
        return tuple(q for q in TIME_QUANTITIES if any(cell.quantity == q for cell in self.cells))

    def table(self, quantity: str, of: Literal["level", "mean_log", "median_log", "log_cv"] = "level") -> LevelTable:
        """Return a logarithm of every cell: by default that of its mean time."""
        table: LevelTable = {}
        for cell in self.cells:
            if cell.quantity == quantity and (value := getattr(cell, of)) is not None:
                table.setdefault((cell.phase, cell.slot), {})[cell.block] = value
        return table


def baseline_levels(table: LevelTable, slot: WorkerSlot) -> dict[int, float]:
    """Return a slot's logarithm alone, by block: the mean of its two baseline phases, or of the one there is."""
    first, again = (table.get((phase, slot.single_worker), {}) for phase in BASELINE_PHASES)
    blocks = sorted(first.keys() | again.keys())
    return {b: (first.get(b, again.get(b, 0.0)) + again.get(b, first.get(b, 0.0))) / 2 for b in blocks}


def build_layout(machine: Machine, options: ContentionOptions, records: Records) -> ContentionLayout:
    """Lay out what the records of the blocks hold; trials that failed or were refused are named with their reason."""
    phase_trials = tuple(_phase_trials(machine, options, records))
    good = [phase_trial for phase_trial in phase_trials if phase_trial.record.status == "ok"]
    timed = [
        (phase_trial, role, WorkerSlot(options.subjects.index(role.subjects[0]), role.devices[0], role.worker))
        for phase_trial in good
        for role in phase_trial.trial.roles
        if role.duty == "timed"
    ]
    quantities = {primary_time([phase_trial.record], role.name) for phase_trial, role, _ in timed}
    quantity = quantities.pop() if len(quantities) == 1 else "call_us"  # the one that every trial took
    cells: list[LayoutCell] = []
    choices: list[TunerPick] = []
    for phase_trial, role, slot in timed:
        record, where = phase_trial.record, (slot, phase_trial.block, phase_trial.phase)
        for s in record.series:
            if s.role == role.name and s.quantity in {quantity, "call_us"} and len(samples := records.samples(s)):
                middle_s = (s.start_ns + s.end_ns) / 2e9
                cells.append(LayoutCell(*where, s.quantity, samples, middle_s, record.trial))
        choices += [
            TunerPick(*where, t.config, t.reason, t.time_us, record.trial)
            for t in record.tunings
            if t.role == role.name
        ]
    missing = tuple(_missing_results(options, phase_trials, choices))
    return ContentionLayout(tuple(cells), tuple(choices), phase_trials, missing, quantity)


def _phase_trials(machine: Machine, options: ContentionOptions, records: Iterable[Record]) -> Iterator[PhaseTrial]:
    """Yield the trials of the blocks with their phases; trials that only warm up have none."""
    planned: dict[int, dict[str, Trial]] = {}
    for record in records:
        number = block_number(record.block)
        if number is None:
            continue
        if number not in planned:
            planned[number] = {trial.id: trial for trial in build_block(machine, options, number).trials}
        trial = planned[number].get(record.trial)
        phase = None if trial is None else next((p for p in PHASES if trial.settings["phase"] == p), None)
        if trial is not None and phase is not None:
            yield PhaseTrial(number, phase, trial, record)


def _missing_results(
    options: ContentionOptions, phase_trials: Sequence[PhaseTrial], choices: Sequence[TunerPick]
) -> Iterator[MissingResult]:
    for phase_trial in phase_trials:
        trial, record = phase_trial.trial, phase_trial.record
        if record.status == "ok":
            continue
        label, devices = trial.roles[0].subjects[0].label, " and ".join(role.devices[0] for role in trial.roles)
        where = "all devices" if phase_trial.phase in CONCURRENT_PHASES else devices
        yield MissingResult(
            f"block {phase_trial.block}, {PHASE_LABELS[phase_trial.phase]}, {label} on {where}",
            f"{record.status}, {(record.reason or 'and does not say why').rstrip('.')}",
            record.trial,
        )
    for choice in choices:
        if choice.config is None:
            label = options.subjects[choice.slot.subject].label
            yield MissingResult(
                f"block {choice.block}, {PHASE_LABELS[choice.phase]}, {label} on {choice.slot.device}",
                f"the tuner found no configuration ({(choice.reason or 'it does not say why').rstrip('.')})",
                choice.trial,
            )
