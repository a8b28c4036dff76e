"""Arrange the records by slot, block and phase: the times of the fixed configuration, and the tuner's picks.

A **slot** is a subject on a device in one of the device's workers. In the baseline phases each device has one worker;
every concurrent worker of a device is compared with it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.contention.options import BASELINE_PHASES, CONCURRENT_PHASES, PHASE_LABELS, PHASES
from assay.experiments.contention.plan import block_number, build_block
from assay.experiments.estimates import TIME_QUANTITIES, primary_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Record, Series, Tuning
    from assay.core.values import Params, Role, Trial
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine
    from assay.store.records import Records


if TYPE_CHECKING:
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


@dataclass(frozen=True, eq=False)
class LayoutCell:
    """The samples of one process: one place in one phase of one block. ``at_s`` is the middle of the timing."""

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
    def cv(self) -> float | None:
        """Standard deviation over mean of the repeats; null for a single one."""
        mean = float(self.samples.mean())
        return float(self.samples.std(ddof=1)) / mean if len(self.samples) > 1 and mean > 0 else None


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

    @property
    def key(self) -> str | None:
        """The configuration as text that is the same for the same one; null where none was found."""
        return None if self.config is None else config_key(self.config)


@dataclass(frozen=True)
class MissingResult:
    """Something that was planned and gave nothing: where and when, and why, in words; and its trial."""

    where: str
    reason: str
    trial: str


def config_key(config: Params) -> str:
    """Return a configuration as text, the same for the same one."""
    return json.dumps(config, sort_keys=True, separators=(",", ":"))


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

    def slots(self, phase: Phase) -> tuple[WorkerSlot, ...]:
        """Return the places that were timed in a phase, in order."""
        return tuple(sorted({cell.slot for cell in self.cells if cell.phase == phase}))

    def cells_by_block(self, phase: Phase, quantity: str, slot: WorkerSlot) -> dict[int, LayoutCell]:
        """Return the cells of a place in a phase, by block."""
        return {c.block: c for c in self.cells if (c.phase, c.quantity, c.slot) == (phase, quantity, slot)}


def build_layout(machine: Machine, options: ContentionOptions, records: Records) -> ContentionLayout:
    """Lay out what the records of the blocks hold; trials that failed or were refused are named with their reason."""
    phase_trials = tuple(_phase_trials(machine, options, records))
    good = [phase_trial for phase_trial in phase_trials if phase_trial.record.status == "ok"]
    timed = [
        (phase_trial, role, slot) for phase_trial in good for role, slot in _timed_roles(options, phase_trial.trial)
    ]
    quantity = _common_quantity(good)
    cells = [
        LayoutCell(
            slot, phase_trial.block, phase_trial.phase, s.quantity, samples, _middle_s(s), phase_trial.record.trial
        )
        for phase_trial, role, slot in timed
        for s in phase_trial.record.series
        if s.role == role.name and s.quantity in {quantity, "call_us"} and len(samples := records.samples(s))
    ]
    choices = [
        TunerPick(slot, phase_trial.block, phase_trial.phase, t.config, t.reason, t.time_us, phase_trial.record.trial)
        for phase_trial, role, slot in timed
        for t in _tunings(phase_trial.record, role)
    ]
    missing = [*_missing_timings(options, phase_trials), *_missing_picks(options, choices)]
    return ContentionLayout(tuple(cells), tuple(choices), phase_trials, tuple(missing), quantity)


def _phase_trials(machine: Machine, options: ContentionOptions, records: Iterable[Record]) -> Iterator[PhaseTrial]:
    planned: dict[int, dict[str, Trial]] = {}
    for record in records:
        number = block_number(record.block)
        if number is None:
            continue
        if number not in planned:
            planned[number] = {trial.id: trial for trial in build_block(machine, options, number).trials}
        trial = planned[number].get(record.trial)
        phase = _phase_of_trial(trial) if trial is not None else None
        if trial is not None and phase is not None:
            yield PhaseTrial(number, phase, trial, record)


def _phase_of_trial(trial: Trial) -> Phase | None:
    """Return the phase of a trial; null for one that only warms up."""
    return next((phase for phase in PHASES if trial.settings["phase"] == phase), None)


def _timed_roles(options: ContentionOptions, trial: Trial) -> Iterator[tuple[Role, WorkerSlot]]:
    for role in trial.roles:
        if role.duty == "timed":
            yield role, WorkerSlot(options.subjects.index(role.subjects[0]), role.devices[0], role.worker)


def _common_quantity(measured: Sequence[PhaseTrial]) -> str:
    """Return the time that counts: the one that every trial took."""
    quantities = {
        primary_time([phase_trial.record], role.name)
        for phase_trial in measured
        for role in phase_trial.trial.roles
        if role.duty == "timed"
    }
    return quantities.pop() if len(quantities) == 1 else "call_us"


def _middle_s(series: Series) -> float:
    return (series.start_ns + series.end_ns) / 2e9


def _tunings(record: Record, role: Role) -> list[Tuning]:
    return [tuning for tuning in record.tunings if tuning.role == role.name]


def _missing_timings(options: ContentionOptions, phase_trials: Sequence[PhaseTrial]) -> list[MissingResult]:
    return [
        MissingResult(
            f"block {phase_trial.block}, {PHASE_LABELS[phase_trial.phase]}, {_trial_text(options, phase_trial.trial)}",
            f"{phase_trial.record.status}, {(phase_trial.record.reason or 'and does not say why').rstrip('.')}",
            phase_trial.record.trial,
        )
        for phase_trial in phase_trials
        if phase_trial.record.status != "ok"
    ]


def _trial_text(options: ContentionOptions, trial: Trial) -> str:
    role = trial.roles[0]
    where = (
        "all devices"
        if trial.settings["phase"] in CONCURRENT_PHASES
        else " and ".join(r.devices[0] for r in trial.roles)
    )
    return f"{options.subjects[options.subjects.index(role.subjects[0])].label} on {where}"


def _missing_picks(options: ContentionOptions, choices: Sequence[TunerPick]) -> list[MissingResult]:
    return [
        MissingResult(
            f"block {c.block}, {PHASE_LABELS[c.phase]}, {options.subjects[c.slot.subject].label} on {c.slot.device}",
            f"the tuner found no configuration ({(c.reason or 'it does not say why').rstrip('.')})",
            c.trial,
        )
        for c in choices
        if c.config is None
    ]


def baseline_levels(layout: ContentionLayout, quantity: str, slot: WorkerSlot) -> dict[int, float]:
    """Return the logarithm of a place's mean time alone, by block: of its two quiet phases, or the one there is."""
    by_phase = [layout.cells_by_block(phase, quantity, slot.single_worker) for phase in BASELINE_PHASES]
    blocks = sorted({block for cells in by_phase for block in cells})
    return {b: float(np.mean([cells[b].level for cells in by_phase if b in cells])) for b in blocks}
