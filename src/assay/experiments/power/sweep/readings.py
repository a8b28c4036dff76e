"""From records to readings.

What each device did at each step of each repeat, and the unit in which its work is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from assay.core.results import Missing
from assay.experiments.power.sweep.plan import visits_by_trial
from assay.experiments.reporting import primary_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Estimate, GpuWindowStats, Record, SubjectFacts
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.experiments.power.sweep.plan import SweepVisit
    from assay.store.records import Records


if TYPE_CHECKING:
    from collections.abc import Iterable

    Samples = NDArray[np.float64]

"""Energy that is told so includes the start of the workers, and says nothing of calls."""


@dataclass(frozen=True)
class SweepReading:
    """One device at one step in one repeat. Null: not measured, or not told.

    ``samples`` are times of a call in µs, an array for each start of the worker.
    """

    device: str
    point: int
    block: str
    trial: str
    quantity: str
    samples: tuple[Samples, ...]
    calls: int
    timed_s: float
    energy_j: Estimate | None
    energy_missing: Missing | None
    flop: float | None
    bytes_moved: float | None
    power_w: float | None
    sm_mhz: float | None
    temperature_c: float | None
    utilisation_percent: float | None
    held_back: dict[str, float] | None

    @property
    def calls_per_s(self) -> float:
        """Calls in a second of the time in which they followed one another, pauses of a duty included."""
        return self.calls / self.timed_s

    @property
    def energy_per_call_j(self) -> float | None:
        """What the device drew while one call was made, pauses included."""
        return None if self.power_w is None or self.energy_j is None else self.power_w / self.calls_per_s

    @property
    def median_us(self) -> float:
        """The median of its starts' medians."""
        return float(np.median([np.median(start_samples) for start_samples in self.samples]))


def match_records(options: SweepOptions, records: Records) -> list[tuple[SweepVisit, Record]]:
    """Return every record with the visit it is of, in the order they were taken."""
    visit_of_trial = visits_by_trial(options, options.repeat)
    return [(visit_of_trial[record.trial], record) for record in records if record.trial in visit_of_trial]


def read_records(pairs: Iterable[tuple[SweepVisit, Record]], records: Records) -> list[SweepReading]:
    """Return what each device did at each step in each repeat; trials without a result are left out."""
    return [
        reading
        for visit, record in pairs
        if record.status == "ok"
        for device in visit.devices
        if (reading := _build_reading(records, record, visit, device)) is not None
    ]


def _build_reading(records: Records, record: Record, visit: SweepVisit, device: str) -> SweepReading | None:
    quantity = primary_time([record], device)
    series = [s for s in record.series if (s.role, s.quantity) == (device, quantity) and s.n]
    timed_s = sum(s.end_ns - s.start_ns for s in series) / 1e9
    if not series or timed_s <= 0:
        return None
    stats = _gpu_stats(record, device)
    energy = _device_energy(record, visit, device, stats)
    energy_j = None if isinstance(energy, Missing) else energy
    facts = _subject_facts(record, device)
    observed_s = record.during.observed_s if record.during is not None else timed_s
    power_w = stats.power_w if stats is not None else None
    return SweepReading(
        device=device,
        point=visit.point,
        block=record.block,
        trial=record.trial,
        quantity=quantity,
        samples=tuple(records.samples(s) for s in series),
        calls=sum(s.n * s.calls_per_sample for s in series),
        timed_s=timed_s,
        energy_j=energy_j,
        energy_missing=energy if isinstance(energy, Missing) else None,
        flop=(facts.flop or None) if facts is not None else None,
        bytes_moved=(facts.bytes_moved or None) if facts is not None else None,
        power_w=energy_j.value / observed_s if energy_j is not None else power_w,
        sm_mhz=stats.sm_mhz_mean if stats is not None else None,
        temperature_c=stats.temperature_mean_c if stats is not None else None,
        utilisation_percent=stats.utilisation_percent if stats is not None else None,
        held_back=stats.throttle_share if stats is not None else None,
    )


def _gpu_stats(record: Record, device: str) -> GpuWindowStats | None:
    """Return what the monitor saw of a device; sensors belong to whole GPUs, so that instances have none."""
    kind, _, number = device.partition(":")
    gpus = record.during.gpus if record.during is not None else ()
    return next((stats for stats in gpus if kind == "cuda" and number == str(stats.gpu)), None)


def _device_energy(record: Record, visit: SweepVisit, device: str, stats: GpuWindowStats | None) -> Estimate | Missing:
    """Return the energy of a device while it was timed, or why there is none."""
    if device.startswith("cuda"):
        no_sensor = Missing(code="no_sensor", detail="no sensor of this GPU was read")
        return no_sensor if stats is None else stats.energy or stats.energy_missing or no_sensor
    if len(visit.devices) > 1:
        detail = "groups of cores that are timed at once share the processor's counters"
        return Missing(code="shared_counters", detail=detail)
    if record.energy is None or record.energy_window == "whole_trial":
        return record.energy_missing or Missing(code="not_watched", detail="no monitor watched")
    return record.energy


def _subject_facts(record: Record, device: str) -> SubjectFacts | None:
    return next((facts for evidence in record.evidence if evidence.role == device for facts in evidence.subjects), None)


WorkUnit = Literal["call", "FLOP", "byte", "item"]


def unit_of_work(options: SweepOptions, readings: Sequence[SweepReading]) -> WorkUnit | None:
    """Return in what the work of different steps can be compared; null where their calls do different things.

    Items are those of a batch. Work is floating-point operations where all calls tell theirs, else bytes.
    """
    if options.knob not in {"size", "batch"}:
        return "call"
    if readings and all(reading.flop for reading in readings):
        return "FLOP"
    if readings and all(reading.bytes_moved for reading in readings):
        return "byte"
    return "item" if options.knob == "batch" else None


def work_per_call(options: SweepOptions, reading: SweepReading, unit: WorkUnit) -> float:
    """Return how much work one call is, in that unit."""
    if unit == "FLOP" and reading.flop:
        return reading.flop
    if unit == "byte" and reading.bytes_moved:
        return reading.bytes_moved
    return float(str(options.points[reading.point].setting)) if unit == "item" else 1.0
