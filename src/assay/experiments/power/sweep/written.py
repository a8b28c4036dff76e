"""The files of a sweep: a row for each device and step, for people's own tools and for ``assay power budget``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.power.row_csv import as_csv
from assay.experiments.power.rows import SWEEP_FILE, SweepRow
from assay.experiments.power.sweep.curve import curves
from assay.isolation.targets import targets

if TYPE_CHECKING:
    from assay.experiments.power.sweep.curve import Step
    from assay.experiments.power.sweep.options import SweepOptions
    from assay.machine.model import Machine
    from assay.store.records import Records

SWEEP_CSV = "power/sweep.csv"


def files(machine: Machine, options: SweepOptions, records: Records) -> dict[str, str]:
    """Return the files by their paths within the run folder."""
    rows = rows_of(machine, options, records)
    return {SWEEP_FILE: "".join(f"{row.model_dump_json()}\n" for row in rows), SWEEP_CSV: as_csv(rows)}


def rows_of(machine: Machine, options: SweepOptions, records: Records) -> list[SweepRow]:
    """Return a row for each device and step that was measured, the device as it was found first."""
    return [
        _row(machine, options, records, curve.device, step)
        for curve in curves(options, records)
        for step in (*curve.all_reference, *curve.steps)
    ]


def _row(machine: Machine, options: SweepOptions, records: Records, device: str, step: Step) -> SweepRow:
    trials = {reading.trial for reading in step.readings}
    step_records = [record for record in records if record.trial in trials]
    subject = options.points[step.place].subject
    first = step.readings[0]
    pooled = np.concatenate([start_samples for reading in step.readings for start_samples in reading.samples])
    low, middle, high = np.quantile(pooled, [0.25, 0.5, 0.75])
    mean, energy = float(pooled.mean()), step.energy_j
    uuid, slot, model = _where(machine, device)
    return SweepRow(
        run=records.run,
        started_at=min(record.window.started_at for record in step_records),
        host=machine.host,
        uuid=uuid,
        slot=slot,
        device=device,
        model=model,
        origin=next((record.origin for record in step_records if record.origin != "real"), "real"),
        n=sum(reading.calls for reading in step.readings),
        quantity=first.quantity,
        median_us=step.time_us.value,
        low_us=step.time_us.low,
        high_us=step.time_us.high,
        quartiles_us=(float(low), float(middle), float(high)),
        mean_us=mean,
        cv=float(pooled.std(ddof=1)) / mean if len(pooled) > 1 and mean > 0 else None,
        restart_medians_us=tuple(
            float(np.median(start_samples)) for reading in step.readings for start_samples in reading.samples
        ),
        energy_per_call_j=energy.value if energy is not None else None,
        energy_low_j=energy.low if energy is not None else None,
        energy_high_j=energy.high if energy is not None else None,
        gflop_per_j=gflop_per_j(step),
        power_w=step.mean("power_w"),
        sm_mhz=step.mean("sm_mhz"),
        temperature_c=step.mean("temperature_c"),
        utilisation_percent=step.mean("utilisation_percent"),
        held_back=step.held_back(),
        workload=options.workload,
        params=dict(subject.params) if subject is not None else {},
        knob=options.knob,
        setting=step.setting,
        calls_per_s=step.calls_per_s.value,
        work_per_call=first.flop or first.bytes_moved,
    )


def gflop_per_j(step: Step) -> float | None:
    """Return the operations of a joule, in billions; null where either is not known."""
    flop = step.readings[0].flop
    return flop / step.energy_j.value / 1e9 if flop is not None and step.energy_j is not None else None


def _where(machine: Machine, device: str) -> tuple[str, int, str]:
    """Return UUID, slot and model of a device; a group of cores is known by its name."""
    target = targets(machine).get(device)
    if target is None:
        number = device.partition(":")[2]
        return device, int(number) if number.isdigit() else 0, machine.cpu_model or machine.architecture
    return target.uuid, int(device.partition(":")[2].partition("/")[0]), target.title
