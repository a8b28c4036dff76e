"""What the calls of a sweep are counted in: calls where all do the same, else the work that they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.power.sweep.options import SweepOptions
    from assay.experiments.power.sweep.readings import Reading

Unit = Literal["call", "FLOP", "byte", "item"]


def unit_of_work(options: SweepOptions, readings: Sequence[Reading]) -> Unit | None:
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


def work_per_call(options: SweepOptions, reading: Reading, unit: Unit) -> float:
    """Return how much work one call is, in that unit."""
    if unit == "FLOP" and reading.flop:
        return reading.flop
    if unit == "byte" and reading.bytes_moved:
        return reading.bytes_moved
    return float(str(options.points[reading.point].setting)) if unit == "item" else 1.0
