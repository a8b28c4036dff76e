"""What was measured, laid out by place, block and phase: the times of the fixed configuration, and the picks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.contention.options import CROWDED, PHASES, QUIET, WORDS
from assay.experiments.contention.places import Cell, Choice, Missing, Place
from assay.experiments.contention.plan import block_number, block_of
from assay.experiments.times import TIMES, decisive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from assay.core.plan import Role, Trial
    from assay.core.results import Record, Series, Tuning
    from assay.experiments.contention.options import ContentionOptions, Phase
    from assay.machine.model import Machine
    from assay.store.records import Records


@dataclass(frozen=True, eq=False)
class Seen:
    """One trial of a phase: what it was, and the record of it."""

    block: int
    phase: Phase
    trial: Trial
    record: Record


@dataclass(frozen=True, eq=False)
class Layout:
    """Everything that the blocks gave, and what was planned and gave nothing."""

    cells: tuple[Cell, ...]
    choices: tuple[Choice, ...]
    seen: tuple[Seen, ...]
    missing: tuple[Missing, ...]
    quantity: str

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks of which anything is known, in order."""
        return tuple(sorted({phase_trial.block for phase_trial in self.seen}))

    @property
    def quantities(self) -> tuple[str, ...]:
        """The times that were taken, the one that counts first."""
        return tuple(q for q in TIMES if any(cell.quantity == q for cell in self.cells))

    def places(self, phase: Phase) -> tuple[Place, ...]:
        """Return the places that were timed in a phase, in order."""
        return tuple(sorted({cell.place for cell in self.cells if cell.phase == phase}))

    def of(self, phase: Phase, quantity: str, place: Place) -> dict[int, Cell]:
        """Return the cells of a place in a phase, by block."""
        return {c.block: c for c in self.cells if (c.phase, c.quantity, c.place) == (phase, quantity, place)}


def layout(machine: Machine, options: ContentionOptions, records: Records) -> Layout:
    """Lay out what the records of the blocks hold; trials that failed or were refused are named with their reason."""
    phase_trials = tuple(_seen(machine, options, records))
    good = [phase_trial for phase_trial in phase_trials if phase_trial.record.status == "ok"]
    timed = [(phase_trial, role, slot) for phase_trial in good for role, slot in _places(options, phase_trial.trial)]
    quantity = _decisive(good)
    cells = [
        Cell(slot, phase_trial.block, phase_trial.phase, s.quantity, samples, _middle_s(s), phase_trial.record.trial)
        for phase_trial, role, slot in timed
        for s in phase_trial.record.series
        if s.role == role.name and s.quantity in {quantity, "call_us"} and len(samples := records.samples(s))
    ]
    choices = [
        Choice(slot, phase_trial.block, phase_trial.phase, t.config, t.reason, t.time_us, phase_trial.record.trial)
        for phase_trial, role, slot in timed
        for t in _tunings(phase_trial.record, role)
    ]
    missing = [*_unmeasured(options, phase_trials), *_unchosen(options, choices)]
    return Layout(tuple(cells), tuple(choices), phase_trials, tuple(missing), quantity)


def _seen(machine: Machine, options: ContentionOptions, records: Iterable[Record]) -> Iterator[Seen]:
    planned: dict[int, dict[str, Trial]] = {}
    for record in records:
        number = block_number(record.block)
        if number is None:
            continue
        if number not in planned:
            planned[number] = {trial.id: trial for trial in block_of(machine, options, number).trials}
        trial = planned[number].get(record.trial)
        phase = _phase(trial) if trial is not None else None
        if trial is not None and phase is not None:
            yield Seen(number, phase, trial, record)


def _phase(trial: Trial) -> Phase | None:
    """Return the phase of a trial; null for one that only warms up."""
    return next((phase for phase in PHASES if trial.settings["phase"] == phase), None)


def _places(options: ContentionOptions, trial: Trial) -> Iterator[tuple[Role, Place]]:
    for role in trial.roles:
        if role.duty == "timed":
            yield role, Place(options.subjects.index(role.subjects[0]), role.devices[0], role.worker)


def _decisive(good: Sequence[Seen]) -> str:
    """Return the time that counts: the one that every trial took."""
    quantities = {
        decisive([phase_trial.record], role.name)
        for phase_trial in good
        for role in phase_trial.trial.roles
        if role.duty == "timed"
    }
    return quantities.pop() if len(quantities) == 1 else "call_us"


def _middle_s(series: Series) -> float:
    return (series.start_ns + series.end_ns) / 2e9


def _tunings(record: Record, role: Role) -> list[Tuning]:
    return [tuning for tuning in record.tunings if tuning.role == role.name]


def _unmeasured(options: ContentionOptions, seen: Sequence[Seen]) -> list[Missing]:
    return [
        Missing(
            f"block {phase_trial.block}, {WORDS[phase_trial.phase]}, {_what(options, phase_trial.trial)}",
            f"{phase_trial.record.status}, {(phase_trial.record.reason or 'and does not say why').rstrip('.')}",
            phase_trial.record.trial,
        )
        for phase_trial in seen
        if phase_trial.record.status != "ok"
    ]


def _what(options: ContentionOptions, trial: Trial) -> str:
    role = trial.roles[0]
    where = "all devices" if trial.settings["phase"] in CROWDED else " and ".join(r.devices[0] for r in trial.roles)
    return f"{options.subjects[options.subjects.index(role.subjects[0])].label} on {where}"


def _unchosen(options: ContentionOptions, choices: Sequence[Choice]) -> list[Missing]:
    return [
        Missing(
            f"block {c.block}, {WORDS[c.phase]}, {options.subjects[c.place.subject].label} on {c.place.device}",
            f"the tuner found no configuration ({(c.reason or 'it does not say why').rstrip('.')})",
            c.trial,
        )
        for c in choices
        if c.config is None
    ]


def quiet_levels(layout: Layout, quantity: str, place: Place) -> dict[int, float]:
    """Return the logarithm of a place's mean time alone, by block: of its two quiet phases, or the one there is."""
    by_phase = [layout.of(phase, quantity, place.alone) for phase in QUIET]
    blocks = sorted({block for cells in by_phase for block in cells})
    return {b: float(np.mean([cells[b].level for cells in by_phase if b in cells])) for b in blocks}
