"""What is known of the energy sensors here, for the doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.checks import check
from assay.joules.kept import kept_model

if TYPE_CHECKING:
    from assay.core.results import Finding
    from assay.machine.model import Gpu, Machine


def checks(machine: Machine) -> list[Finding]:
    """Return for each GPU how its energy counter and power readings see, where that was found out."""
    return [_sensor(gpu, machine.driver or "unknown") for gpu in machine.gpus]


def _sensor(gpu: Gpu, driver: str) -> Finding:
    model = kept_model(gpu.uuid, driver)
    counter = model.counter if model is not None else None
    return check(
        f"GPU {gpu.index}'s energy counter is known: when it ticks, and how late",
        "unsure" if model is None else "yes" if counter is not None else "no",
        "not looked at yet: the first assay.energy on it does so, and keeps it" if model is None else model.in_words(),
        topic="gpus",
        counter_period_s=counter.period_s if counter is not None else None,
        counter_lag_s=counter.lag_s if counter is not None else None,
    )
