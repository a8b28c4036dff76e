"""What the monitor saw, for the pages of all experiments: a table of the trials, and lines above a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.page import Column, Line, Table
from assay.monitor.lines import GpuSample, HostSample
from assay.monitor.quantities import POWERS
from assay.monitor.thinning import Thinned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.page import Cell, Element
    from assay.core.results import Estimate, GpuSeen, Record
    from assay.store.records import Records


def watched_table(records: Records, labels: Mapping[str, str]) -> list[Element]:
    """Return what was seen while each trial was timed, a row for each GPU; nothing where no monitor watched."""
    monitored = [record for record in records if record.meanwhile is not None]
    if not monitored:
        return []
    on_gpu = any(record.meanwhile.gpus for record in monitored if record.meanwhile is not None)
    titles = ("trial", "CPUs busy, %", "steal, %", "waited for a CPU, %", "energy, J")
    gpu_titles = ("GPU", "power, W", "SM clock, MHz", "held back, s", "temperature, °C") if on_gpu else ()
    rows = [row for record in monitored for row in _rows(record, labels.get(record.trial, record.block), on_gpu=on_gpu)]
    disturbed = [bool(record.disturbed) for record in monitored for _ in range(_height(record))]
    energy_notes = dict.fromkeys(record.energy_note for record in monitored if record.energy_note)
    return [
        Table(
            title="What the monitor saw while each trial was timed",
            columns=tuple(Column(title=t, numeric=t not in {"trial", "GPU"}) for t in (*titles, *gpu_titles)),
            rows=tuple(rows),
            tones=tuple("unsure" if is_disturbed else "plain" for is_disturbed in disturbed),
            note="; ".join(
                [
                    "Marked: disturbed beyond what a measurement bears",
                    *(f"energy {note}" for note in list(energy_notes)[:2]),
                ]
            )
            + ".",
        )
    ]


def _height(record: Record) -> int:
    return max(1, len(record.meanwhile.gpus) if record.meanwhile is not None else 0)


def _rows(record: Record, label: str, *, on_gpu: bool) -> list[tuple[Cell, ...]]:
    window = record.meanwhile
    if window is None:
        return []
    host = (
        label,
        _digits(window.cpu_percent, 0),
        _digits(window.steal_percent, 1),
        _digits(window.pressure_cpu_percent, 0),
        _energy(record.energy),
    )
    if not on_gpu:
        return [host]
    nothing: tuple[Cell, ...] = (None,) * 5
    return [(*host, *_gpu(gpu)) for gpu in window.gpus] or [(*host, *nothing)]


def _gpu(seen: GpuSeen) -> tuple[Cell, ...]:
    low, high = seen.sm_mhz_low, seen.sm_mhz_high
    clock = None if low is None or high is None else f"{low:.0f}" if low == high else f"{low:.0f}–{high:.0f}"
    return (
        f"GPU {seen.gpu}",
        _digits(seen.power_w, 0),
        clock,
        _digits(seen.throttled_s, 1),
        _digits(seen.temperature_c, 0),
    )


def _energy(energy: Estimate | None) -> str | None:
    if energy is None:
        return None
    half = energy.relative_half_width
    return f"{energy.value:.3g}" if half is None else f"{energy.value:.3g} ±{half:.0%}"


def _digits(value: float | None, places: int) -> str | None:
    return None if value is None else f"{value:.{places}f}"


def sensor_lines(records: Records, origin_ns: int) -> tuple[Line, ...]:
    """Return the power of each GPU, or without one how busy the CPUs were, over the seconds since a moment."""
    thinned: dict[str, Thinned] = {}
    for line in records.watched():
        at_s = (line.t_ns - origin_ns) / 1e9
        if isinstance(line, GpuSample):
            power = next((value for name in POWERS if (value := getattr(line, name)) is not None), None)
            if power is not None:
                thinned.setdefault(f"GPU {line.gpu}", Thinned()).add(at_s, power)
        elif isinstance(line, HostSample) and line.cpu_percent is not None:
            thinned.setdefault("CPUs", Thinned()).add(at_s, line.cpu_percent)
    shown = {name: series.points for name, series in thinned.items() if name != "CPUs"} or {
        name: series.points for name, series in thinned.items()
    }
    return tuple(
        Line(label=name, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))
        for name, points in shown.items()
        if len(points) > 1
    )


def sensor_axis(records: Records) -> str:
    """Return what the lines are of."""
    on_gpu = any(record.meanwhile is not None and record.meanwhile.gpus for record in records)
    return "power (W)" if on_gpu else "CPUs busy (%)"
