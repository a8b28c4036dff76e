"""The figures of a sweep: work, energy, power and what held the clock back, over the knob."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from assay.core.page import Line, Lines, Strip, Strips
from assay.experiments.power.sweep.binding import POWER_CAP
from assay.experiments.power.sweep.words import AXES, axis_value, setting_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from assay.core.page import Element
    from assay.core.results import Estimate
    from assay.experiments.power.sweep.curve import Curve, Step
    from assay.experiments.power.sweep.options import SweepOptions

WIDE = 8.0
"""From this ratio of the largest to the smallest size on, sizes stand on a logarithmic axis."""
SCALES = ((1e-12, "pJ"), (1e-9, "nJ"), (1e-6, "µJ"), (1e-3, "mJ"), (1.0, "J"))
BAND = "The band is the 95 % interval over the repeats."
MEAN = "Mean over the repeats."
PER = {"call": "call", "FLOP": "FLOP", "byte": "byte", "item": "item of the batch"}


class Drawn(NamedTuple):
    """A value with its ends; null: not measured."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Picture:
    """What one figure shows: its title, the name of its file, its axis, what it takes from a step, and a note."""

    title: str
    name: str
    axis: str
    value: Callable[[Step], Drawn]
    note: str


def figures(options: SweepOptions, curves: Sequence[Curve]) -> list[Element]:
    """Return a figure for each quantity that was measured, a line for each device."""
    draw = _strips if options.knob == "dtype" else _lines
    return [draw(options, curves, picture) for picture in _pictures(options, curves) if _shows(curves, picture)]


def _shows(curves: Sequence[Curve], picture: Picture) -> bool:
    return any(picture.value(step).value is not None for curve in curves for step in curve.steps)


def _pictures(options: SweepOptions, curves: Sequence[Curve]) -> list[Picture]:
    unit = next((curve.unit for curve in curves), None)
    scale, joules = _joules([step.cost_j for curve in curves for step in curve.steps])
    per = PER[unit] if unit is not None else "call"
    specs = [
        Picture("Work", "sweep_rate", _rate_axis(curves), _rate, BAND),
        Picture("Energy", "sweep_energy", f"energy of a {per} ({joules})", lambda s: _estimate(s.cost_j, scale), BAND),
        Picture("Power drawn", "sweep_power", "power (W)", lambda s: Drawn(s.mean("power_w")), MEAN),
        Picture("SM clock", "sweep_clock", "SM clock (MHz)", lambda s: Drawn(s.mean("sm_mhz")), MEAN),
    ]
    if options.capped:
        note = "Share of the time that the power cap held the clock back."
        specs.append(Picture("Held back by power", "sweep_throttle", "share of the time (%)", _held, note))
    return specs


def _joules(costs: Sequence[Estimate | None]) -> tuple[float, str]:
    """Return the unit of energy in which all costs read best."""
    largest = max((cost.value for cost in costs if cost is not None), default=1.0)
    return next(((scale, name) for scale, name in SCALES if largest < 1000 * scale), SCALES[-1])


def _rate_axis(curves: Sequence[Curve]) -> str:
    steps = [step for curve in curves for step in curve.steps]
    if all(step.readings[0].flop for step in steps):
        return "work (TFLOP/s)"
    return "work (GB/s)" if all(step.readings[0].bytes_moved for step in steps) else "work (calls/s)"


def _rate(step: Step) -> Drawn:
    reading = step.readings[0]
    if reading.flop:
        return _estimate(step.calls_per_s, 1e12 / reading.flop)
    return _estimate(step.calls_per_s, 1e9 / reading.bytes_moved if reading.bytes_moved else 1.0)


def _estimate(found: Estimate | None, scale: float) -> Drawn:
    if found is None:
        return Drawn(None)
    ends = (None if end is None else end / scale for end in (found.low, found.high))
    return Drawn(found.value / scale, *ends)


def _held(step: Step) -> Drawn:
    reported = any(reading.held_back is not None for reading in step.readings)
    return Drawn(100 * step.held_back().get(POWER_CAP, 0.0) if reported else None)


def _lines(options: SweepOptions, curves: Sequence[Curve], picture: Picture) -> Lines:
    alone = len(curves) == 1
    lines = [line for curve in curves for line in _of_curve(options, curve, picture.value, alone=alone)]
    xs = [x for line in lines for x in line.x]
    return Lines(
        title=f"{picture.title} over the {AXES[options.knob].partition(' (')[0]}",
        name=picture.name,
        x_axis=AXES[options.knob],
        y_axis=picture.axis,
        lines=tuple(lines),
        log_x=options.knob in {"size", "batch"} and max(xs) >= WIDE * min(xs),
        note=f"{picture.note} Flat: as it was found." if alone and options.reference is not None else picture.note,
    )


def _of_curve(options: SweepOptions, curve: Curve, value: Callable[[Step], Drawn], *, alone: bool) -> list[Line]:
    """Return a device's line; of a single device also the level at which it was found."""
    steps = sorted(curve.steps, key=lambda step: axis_value(options.knob, step.setting))
    values = [value(step) for step in steps]
    x = tuple(axis_value(options.knob, step.setting) for step in steps)
    banded = any(plotted.low is not None for plotted in values)
    lines = [
        Line(
            label=curve.device,
            x=x,
            y=tuple(plotted.value for plotted in values),
            low=tuple(plotted.low for plotted in values) if banded else None,
            high=tuple(plotted.high for plotted in values) if banded else None,
        )
    ]
    reference_value = value(curve.reference).value if alone and curve.reference is not None else None
    if reference_value is not None and len(x) > 1:
        lines.append(Line(label="as found", x=(x[0], x[-1]), y=(reference_value, reference_value)))
    return lines


def _strips(options: SweepOptions, curves: Sequence[Curve], picture: Picture) -> Strips:
    """Return the steps of a knob that has no order, a row each."""
    what, _, unit = picture.axis.rstrip(")").partition(" (")
    rows = []
    for curve in curves:
        for step in curve.steps:
            plotted = picture.value(step)
            where = f"{curve.device}, " if len(curves) > 1 else ""
            label = f"{where}{setting_text(options.knob, step.setting)}"
            rows.append(Strip(label=label, samples=(), value=plotted.value, low=plotted.low, high=plotted.high))
    title = f"{picture.title} by dtype"
    return Strips(title=title, name=picture.name, axis=what, unit=unit, strips=tuple(rows), note=picture.note)
