"""From records to rows: what each timed GPU did in each case of each repeat."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.power.characterize.plan import by_trial, is_idle
from assay.experiments.power.rows import GpuRow
from assay.experiments.times import decisive
from assay.isolation.targets import targets
from assay.stats.summary import summarise

if TYPE_CHECKING:
    from assay.core.results import Estimate, GpuSeen, Record, SubjectFacts
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.experiments.power.characterize.placing import Placed
    from assay.machine.model import Machine
    from assay.stats.summary import Samples
    from assay.store.records import Records


def rows_of(machine: Machine, options: CharacterizeOptions, records: Records) -> list[GpuRow]:
    """Return a row for each GPU that was timed well, in the order of the trials; idle watts stand beside."""
    cases = by_trial(machine, options, options.repeats)
    pairs = [(cases[r.trial], r) for r in records if r.trial in cases and r.status == "ok"]
    idle_w = _idle_watts(pairs)
    return [
        row
        for where, record in pairs
        for device in where.base
        if (row := _Timed(machine, records, record, where, device).row(idle_w.get((where.repeat, device)))) is not None
    ]


def _idle_watts(pairs: list[tuple[Placed, Record]]) -> dict[tuple[int, str], float]:
    """Return what each device drew when idle, by repeat; where a repeat has none, what the others say."""
    idle_watts: dict[tuple[int, str], float] = {}
    for where, record in pairs:
        for device in where.base if is_idle(where.case) else ():
            gpu = seen_of(record, device)
            power_w = None if gpu is None else power_of(record, gpu)
            if power_w is not None:
                idle_watts[where.repeat, device] = power_w
    repeats = {where.repeat for where, _ in pairs}
    for device in {device for _, device in idle_watts}:
        usual_w = float(np.mean([watts for (_, other), watts in idle_watts.items() if other == device]))
        for repeat in repeats:
            idle_watts.setdefault((repeat, device), usual_w)
    return idle_watts


def seen_of(record: Record, device: str) -> GpuSeen | None:
    """Return what the monitor saw of a device; sensors are of whole GPUs, so that a part of one has none."""
    kind, _, number = device.partition(":")
    gpus = record.meanwhile.gpus if record.meanwhile is not None else ()
    return next((stats for stats in gpus if kind == "cuda" and number == str(stats.gpu)), None)


def power_of(record: Record, seen: GpuSeen) -> float | None:
    """Return a GPU's mean power while it was timed: of its energy where that is told, else of its readings."""
    if seen.energy is not None and record.meanwhile is not None and record.meanwhile.seen_s > 0:
        return seen.energy.value / record.meanwhile.seen_s
    return seen.power_w


@dataclass(frozen=True)
class _Timed:
    """One timed device of one record."""

    machine: Machine
    records: Records
    record: Record
    where: Placed
    device: str

    def row(self, idle_w: float | None) -> GpuRow | None:
        """Return the row; null where no call was kept."""
        quantity = decisive([self.record], self.device)
        series = [s for s in self.record.series if (s.role, s.quantity) == (self.device, quantity) and s.n]
        if not series:
            return None
        samples = [self.records.samples(s) for s in series]
        calls = sum(s.n * s.calls_per_sample for s in series)
        summary = summarise(self.device, 0, quantity, "µs", samples)
        stats = seen_of(self.record, self.device)
        call_s = sum(s.end_ns - s.start_ns for s in series) / 1e9 / calls
        joules = self._joules(stats, call_s)
        flop = (facts.flop if (facts := self._facts()) is not None else None) or None
        subject, window = self.where.case.base.subject, self.record.window
        return GpuRow(
            run=self.records.run,
            started_at=window.started_at,
            host=self.machine.hostname or self.machine.host,
            **self._which(),
            origin=self.record.origin,
            case=self.where.case.name,
            repeat=self.where.repeat,
            workload=subject.label,
            params={**subject.params, **self._measured()},
            config=subject.config or {},
            isolation=next((e.isolation_asked for e in self.record.evidence if e.role == self.device), None),
            neighbours=self.where.company_of(self.device),
            n=calls,
            quantity=quantity,
            median_us=summary.estimate.value,
            low_us=summary.estimate.low,
            high_us=summary.estimate.high,
            quartiles_us=summary.quartiles,
            mean_us=summary.mean,
            cv=within_processes(samples),
            restart_medians_us=tuple(float(np.median(sample_set)) for sample_set in samples),
            energy_per_call_j=joules[0],
            energy_low_j=joules[1],
            energy_high_j=joules[2],
            gflop_per_j=flop / 1e9 / joules[0] if flop and joules[0] else None,
            power_w=power_of(self.record, stats) if stats is not None else None,
            sm_mhz=stats.sm_mhz_mean if stats is not None else None,
            temperature_c=stats.temperature_mean_c if stats is not None else None,
            utilisation_percent=stats.utilisation_percent if stats is not None else None,
            held_back=stats.throttle_share if stats is not None else {},
            idle_w=idle_w,
        )

    def _joules(self, seen: GpuSeen | None, call_s: float) -> tuple[float | None, float | None, float | None]:
        """Return the energy of one call and its interval, from that of all the time in which they followed another."""
        energy: Estimate | None = seen.energy if seen is not None else None
        if energy is None or self.record.meanwhile is None or is_idle(self.where.case):
            return None, None, None
        share = call_s / self.record.meanwhile.seen_s
        ends = [None if end is None else end * share for end in (energy.low, energy.high)]
        return energy.value * share, ends[0], ends[1]

    def _facts(self) -> SubjectFacts | None:
        facts_of_device = [
            facts for evidence in self.record.evidence if evidence.role == self.device for facts in evidence.subjects
        ]
        return facts_of_device[0] if facts_of_device else None

    def _measured(self) -> dict[str, float]:
        """Return what a parameter that the worker chose came to: a size that fills the card."""
        facts = self._facts()
        measured = facts.measured or {} if facts is not None else {}
        params = self.where.case.base.subject.params
        return {
            name: int(value) if value == int(value) else value for name, value in measured.items() if name in params
        }

    def _which(self) -> dict[str, str | int]:
        """Return which device it is: a GPU, an instance of one, or a group of cores."""
        target = targets(self.machine).get(self.device)
        number = int(self.device.partition(":")[2].partition("/")[0])
        return {
            "uuid": self.device if target is None else target.uuid,
            "slot": number,
            "device": self.device,
            "model": (self.machine.cpu_model or self.machine.architecture) if target is None else target.title,
        }


def within_processes(samples: list[Samples]) -> float | None:
    """Return the coefficient of variation of the same call, again and again in one process; over several, their RMS."""
    spreads = [float(s.std(ddof=1) / s.mean()) for s in samples if len(s) > 1 and s.mean() > 0]
    return math.sqrt(float(np.mean(np.square(spreads)))) if spreads else None
