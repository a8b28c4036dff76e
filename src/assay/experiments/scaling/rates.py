"""How much of what the devices can do is done: operations a second, against a data sheet and a measured matmul."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.results import Estimate
from assay.experiments.run.rates import facts_of
from assay.experiments.scaling.datasheet import peak_flop_per_s
from assay.experiments.scaling.numbers import Known
from assay.experiments.scaling.plan import ROLE, YARDSTICKS
from assay.experiments.times import told

if TYPE_CHECKING:
    from assay.core.plan import Subject
    from assay.experiments.scaling.options import ScalingOptions
    from assay.machine.model import Machine
    from assay.store.records import Records

SIDE = {"cuda": 8192, "cpu": 1024}
"""Of the square matrices that are multiplied: large enough for the device to reach what it can."""


def yardstick(subject: Subject, kind: str) -> Subject:
    """Return a large matmul of the same precision."""
    from assay.workloads import registry

    side = str(SIDE[kind])
    params = {"m": side, "n": side, "k": side, "dtype": str(subject.params.get("dtype", "float32"))}
    return registry.subject("gemm@torch", device_kind=kind, given=params)


def matmul_flop_per_s(options: ScalingOptions, records: Records) -> Known:
    """Return what the matmul of this run reached on one device."""
    if options.yardstick is None:
        return Known(reason="no matmul was measured in this run (--yardsticks measures one)")
    for record in records:
        if record.block != YARDSTICKS:
            continue
        time_us, facts = told(record, ROLE), facts_of([record], ROLE)
        if record.status != "ok" or time_us is None or facts is None or facts.flop is None:
            return Known(reason=f"the matmul could not be measured: {record.reason or 'no time was taken'}")
        scale = facts.flop * 1e6
        low, high = time_us.low, time_us.high
        return Known(
            time_us.model_copy(
                update={
                    "value": scale / time_us.value,
                    "low": None if high is None else scale / high,
                    "high": None if low is None else scale / low,
                    "unit": "FLOP/s",
                    "method": f"{options.yardstick.label} of {options.yardstick.params['m']}: {time_us.method}",
                }
            )
        )
    return Known(reason="the matmul was not measured")


def datasheet_flop_per_s(machine: Machine, options: ScalingOptions) -> Known:
    """Return what the data sheet says of one device, or why that is not known."""
    if options.kind != "cuda":
        return Known(reason="there is no data sheet of a group of cores here")
    indices = {int(device.partition(":")[2].partition("/")[0]) for device in options.devices}
    names = sorted({gpu.name for gpu in machine.gpus if gpu.index in indices})
    dtype = str(options.subject.params.get("dtype"))
    peaks = {peak_flop_per_s(name, dtype) for name in names}
    if len(peaks) != 1 or (peak := peaks.pop()) is None:
        return Known(reason=f"no data sheet is known here of {dtype} on {', '.join(names) or 'these devices'}")
    return Known(
        Estimate(value=peak, low=None, high=None, unit="FLOP/s", scope="machine", method="the data sheet", n=1)
    )
