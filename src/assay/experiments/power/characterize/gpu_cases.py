"""From records to rows, one for each timed GPU of each trial.

From rows to estimates per GPU and case over repeats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Estimate
from assay.experiments.power.characterize.plan import is_idle
from assay.experiments.power.rows import GpuRow
from assay.experiments.reporting import primary_time
from assay.machine.cuda_devices import gpu_targets
from assay.stats.intervals import repeats_interval, restarts_interval, summarize_samples
from assay.stats.sensor_intervals import ProcessReading, estimate_joules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.results import GpuWindowStats, Record, SubjectFacts
    from assay.experiments.power.characterize.plan import PlacedCase
    from assay.machine.model import Machine
    from assay.stats.intervals import Samples
    from assay.store.records import Records


@dataclass(frozen=True)
class GpuCase:
    """One GPU in one case, over all repeats. Null: not measured, or not told."""

    case: str
    rows: tuple[GpuRow, ...]
    time: Estimate
    energy: Estimate | None

    @property
    def one(self) -> GpuRow:
        """Any of its rows, for what is the same in all of them."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """The GPU as people call it."""
        return gpu_name(self.one.device)

    @property
    def n(self) -> int:
        """Calls that were timed."""
        return sum(row.n for row in self.rows)

    @property
    def repeats(self) -> int:
        """In which it was measured."""
        return len({row.repeat for row in self.rows})

    @property
    def processes(self) -> int:
        """Fresh starts of its worker."""
        return sum(len(row.restart_medians_us) for row in self.rows)

    @property
    def cv(self) -> float | None:
        """Of the same call again and again in one process; over all of them, the root of the mean square."""
        spreads = [row.cv for row in self.rows if row.cv is not None]
        return math.sqrt(float(np.mean(np.square(spreads)))) if spreads else None

    @property
    def quartiles_us(self) -> tuple[float, float, float]:
        """The middle ones of its repeats."""
        first, middle, third = np.median([row.quartiles_us for row in self.rows], axis=0)
        return float(first), float(middle), float(third)

    def mean(self, quantity: str) -> float | None:
        """Return the mean of a quantity over the repeats that tell it."""
        values = [value for row in self.rows if (value := getattr(row, quantity)) is not None]
        return float(np.mean(values)) if values else None

    def held_back(self) -> dict[str, float]:
        """Return the share of the time that each reason kept the clock from being higher; idleness is none."""
        reasons = dict.fromkeys(reason for row in self.rows for reason in row.held_back)
        shares = {r: float(np.mean([row.held_back.get(r, 0.0) for row in self.rows])) for r in reasons}
        return {reason: share for reason, share in shares.items() if share > 0 and reason != "idle"}


def gpu_name(device: str) -> str:
    """Write a device as people call it: "GPU 0" for cuda:0; a group of cores as it is."""
    kind, _, number = device.partition(":")
    return f"GPU {number}" if kind == "cuda" else device


def gpu_cases_of(rows: Iterable[GpuRow]) -> list[GpuCase]:
    """Return each GPU in each case, in the order the cases were first measured, and GPUs by their slot."""
    grouped: dict[tuple[str, str], list[GpuRow]] = {}
    for row in sorted(rows, key=lambda row: row.slot):
        grouped.setdefault((row.case, row.uuid), []).append(row)
    return [
        GpuCase(case, tuple(case_rows), time_estimate(case_rows), energy_estimate(case_rows))
        for (case, _), case_rows in grouped.items()
    ]


def values_by_repeat(rows: Iterable[GpuRow], value: Callable[[GpuRow], float | None]) -> dict[int, float]:
    """Return a positive quantity in each repeat; of several trials in one, their geometric mean."""
    values_of_repeat: dict[int, list[float]] = {}
    for row in rows:
        number = value(row)
        if number is not None and number > 0:
            values_of_repeat.setdefault(row.repeat, []).append(number)
    return {repeat: math.exp(float(np.mean(np.log(values)))) for repeat, values in values_of_repeat.items()}


def typical_us(row: GpuRow) -> float:
    """Return the typical median of the processes of a row."""
    return math.exp(float(np.mean(np.log(row.restart_medians_us)))) if row.restart_medians_us else row.median_us


def time_estimate(rows: Sequence[GpuRow]) -> Estimate:
    """Return the median time of a call with its interval: over repeats, else over processes, else within the one."""
    n = sum(row.n for row in rows)
    repeats = list(values_by_repeat(rows, typical_us).values())
    if len(repeats) > 1:
        centre, low, high = repeats_interval(np.array(repeats))
        how = f"geometric mean of the medians of {len(repeats)} repeats, Student's t on their logarithms"
        return Estimate(value=centre, low=low, high=high, unit="µs", scope="run", method=how, n=n)
    processes = [median for row in rows for median in row.restart_medians_us]
    if len(processes) > 1:
        centre, low, high, how = restarts_interval(processes)
        return Estimate(value=centre, low=low, high=high, unit="µs", scope="run", method=how, n=n)
    one, how = rows[0], "median of one process, order statistics at the effective sample size, widened"
    return Estimate(value=one.median_us, low=one.low_us, high=one.high_us, unit="µs", scope="process", method=how, n=n)


def energy_estimate(rows: Sequence[GpuRow]) -> Estimate | None:
    """Return the energy of a call: the spread of repeats (of one, that of its times) and the sensor's interval."""
    measured = [row for row in rows if row.energy_per_call_j is not None]
    repeats = values_by_repeat(measured, lambda row: row.energy_per_call_j)
    if not repeats:
        return None
    estimate = estimate_joules(
        [_repeat_draw(value, [row for row in measured if row.repeat == repeat]) for repeat, value in repeats.items()]
    )
    method = f"the card's energy over the calls made meanwhile; {estimate.method}"
    return estimate.model_copy(update={"method": method, "n": len(measured)})


def _repeat_draw(value: float, rows: Sequence[GpuRow]) -> ProcessReading:
    """Return what one repeat gave; how far its calls leave energy open is what they leave open of its time."""
    halves = [_relative_half_width(row) for row in rows]
    present = [half for half in halves if half is not None]
    sensor = float(np.mean(present)) if len(present) == len(halves) else None
    spread = time_estimate(rows).relative_half_width
    return ProcessReading(value, sensor, sum(row.n for row in rows), spread)


def _relative_half_width(row: GpuRow) -> float | None:
    """Return half of the sensor's interval as a share of the energy; null where it has none."""
    if row.energy_per_call_j is None or row.energy_low_j is None or row.energy_high_j is None:
        return None
    return (row.energy_high_j - row.energy_low_j) / 2 / row.energy_per_call_j


def build_rows(machine: Machine, pairs: Sequence[tuple[PlacedCase, Record]], records: Records) -> list[GpuRow]:
    """Return a row for each GPU that was timed well, in the order of the trials; idle watts stand beside."""
    good = [(where, record) for where, record in pairs if record.status == "ok"]
    idle_w = _idle_watts(good)
    return [
        row
        for where, record in good
        for device in where.base
        if (row := _TimedDevice(machine, records, record, where, device).row(idle_w.get((where.repeat, device))))
        is not None
    ]


def _idle_watts(pairs: list[tuple[PlacedCase, Record]]) -> dict[tuple[int, str], float]:
    """Return what each device drew when idle, by repeat; where a repeat has none, what the others say."""
    idle_watts: dict[tuple[int, str], float] = {}
    for where, record in pairs:
        for device in where.base if is_idle(where.case) else ():
            gpu = gpu_stats_of(record, device)
            power_w = None if gpu is None else mean_power_w(record, gpu)
            if power_w is not None:
                idle_watts[where.repeat, device] = power_w
    repeats = {where.repeat for where, _ in pairs}
    for device in {device for _, device in idle_watts}:
        usual_w = float(np.mean([watts for (_, other), watts in idle_watts.items() if other == device]))
        for repeat in repeats:
            idle_watts.setdefault((repeat, device), usual_w)
    return idle_watts


def gpu_stats_of(record: Record, device: str) -> GpuWindowStats | None:
    """Return what the monitor saw of a device; sensors are of whole GPUs, so that a part of one has none."""
    kind, _, number = device.partition(":")
    gpus = record.during.gpus if record.during is not None else ()
    return next((stats for stats in gpus if kind == "cuda" and number == str(stats.gpu)), None)


def mean_power_w(record: Record, stats: GpuWindowStats) -> float | None:
    """Return a GPU's mean power while it was timed: of its energy where that is told, else of its readings."""
    if stats.energy is not None and record.during is not None and record.during.observed_s > 0:
        return stats.energy.value / record.during.observed_s
    return stats.power_w


@dataclass(frozen=True)
class _TimedDevice:
    """One timed device of one record."""

    machine: Machine
    records: Records
    record: Record
    where: PlacedCase
    device: str

    def row(self, idle_w: float | None) -> GpuRow | None:
        """Return the row; null where no call was kept."""
        quantity = primary_time([self.record], self.device)
        series = [s for s in self.record.series if (s.role, s.quantity) == (self.device, quantity) and s.n]
        if not series:
            return None
        samples = [self.records.samples(s) for s in series]
        calls = sum(s.n * s.calls_per_sample for s in series)
        summary = summarize_samples(self.device, 0, quantity, "µs", samples)
        stats = gpu_stats_of(self.record, self.device)
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
            neighbours=self.where.concurrent_with(self.device),
            n=calls,
            quantity=quantity,
            median_us=summary.estimate.value,
            low_us=summary.estimate.low,
            high_us=summary.estimate.high,
            quartiles_us=summary.quartiles,
            mean_us=summary.mean,
            cv=within_process_cv(samples),
            restart_medians_us=tuple(float(np.median(sample_set)) for sample_set in samples),
            energy_per_call_j=joules[0],
            energy_low_j=joules[1],
            energy_high_j=joules[2],
            gflop_per_j=flop / 1e9 / joules[0] if flop and joules[0] else None,
            power_w=mean_power_w(self.record, stats) if stats is not None else None,
            sm_mhz=stats.sm_mhz_mean if stats is not None else None,
            temperature_c=stats.temperature_mean_c if stats is not None else None,
            utilisation_percent=stats.utilisation_percent if stats is not None else None,
            held_back=stats.throttle_share if stats is not None else {},
            idle_w=idle_w,
        )

    def _joules(self, stats: GpuWindowStats | None, call_s: float) -> tuple[float | None, float | None, float | None]:
        """Return the energy of one call and its interval, from that of all the time in which they followed another."""
        energy: Estimate | None = stats.energy if stats is not None else None
        if energy is None or self.record.during is None or is_idle(self.where.case):
            return None, None, None
        share = call_s / self.record.during.observed_s
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
        target = gpu_targets(self.machine).get(self.device)
        number = int(self.device.partition(":")[2].partition("/")[0])
        return {
            "uuid": self.device if target is None else target.uuid,
            "slot": number,
            "device": self.device,
            "model": (self.machine.cpu_model or self.machine.architecture) if target is None else target.title,
        }


def within_process_cv(samples: list[Samples]) -> float | None:
    """Return the coefficient of variation of the same call, again and again in one process; over several, their RMS."""
    spreads = [float(s.std(ddof=1) / s.mean()) for s in samples if len(s) > 1 and s.mean() > 0]
    return math.sqrt(float(np.mean(np.square(spreads)))) if spreads else None
