"""A recording as a table: one row a tick, every quantity of every GPU and of the host in a column of its own.

    t_ns  wall_time  tick …  gpu0_power_instant_w  gpu1_power_instant_w  host_cpu_percent  host_core_percent[0] …

The columns are fixed by the first row, so that no later row can be misaligned. A mark is a row of its own, and so is
the end. What has no place in a table is left out: who the processes are.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from assay.machine.sensors import GpuMeter, GpuReading, PcieRate
from assay.monitor.lines import (
    End,
    Ended,
    GpuMeterSample,
    GpuPcie,
    GpuProcesses,
    GpuSample,
    Header,
    HostSample,
    Mark,
    WatchedGpu,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from assay.monitor.lines import Line

Row: TypeAlias = dict[str, Any]

_TIME = (
    "t_ns",
    "wall_time",
    "tick",
    "interval_s",
    "host_every",
    "origin",
    "mark",
    "mark_start_ns",
    "mark_end_ns",
    "end",
)
_READINGS = tuple(GpuReading.model_fields)
_BESIDE: dict[type[GpuMeterSample | GpuProcesses | GpuPcie | Ended], dict[str, str]] = {
    GpuMeterSample: {"meter_t_ns": "t_ns", "meter_tick": "tick", **{name: name for name in GpuMeter.model_fields}},
    GpuProcesses: {"process_count": "count", "process_memory_mib": "memory_mib"},
    GpuPcie: {f"pcie_{name}": name for name in PcieRate.model_fields},
    Ended: {"ended": "reason"},
}
"""What is told of a GPU beside its samples: columns and what they hold, by the kind of line."""

_GPU = ("uuid", *_READINGS, *(column for names in _BESIDE.values() for column in names))
_BETWEEN = "; "
_UNHINDERED = "none"
_GPU_COLUMN = re.compile(r"gpu(\d+)_(\w+)")
_HOST_COLUMN = re.compile(r"host_(\w+?)(?:\[([^\]]+)\])?")


def columns(header: Header, host: HostSample | None) -> tuple[str, ...]:
    """Return the columns of a recording; ``host`` is a first look at it, if it is looked at."""
    gpus = [f"gpu{gpu.index}_{name}" for gpu in header.gpus for name in _GPU]
    return (*_TIME, *gpus, *([] if host is None else [name for name, _ in _host_cells(host)]))


def _host_cells(host: HostSample) -> Iterator[tuple[str, Any]]:
    for name in HostSample.model_fields:
        value = getattr(host, name)
        if isinstance(value, dict):
            yield from ((f"host_{name}[{key}]", cell) for key, cell in value.items())
        elif name != "kind":
            yield f"host_{name}", value


def rows(header: Header, lines: Sequence[Line], wall_offset_ns: int) -> Iterator[Row]:
    """Give the rows that the lines of one tick make: one of what was seen, and one for each mark.

    The row's time is that of the samples; what was seen beside the ticks came earlier.
    """
    merged: Row = {}
    at_ns: int | None = None
    for line in lines:
        if isinstance(line, Mark):
            marked = {"mark": line.name, "mark_start_ns": line.start_ns, "mark_end_ns": line.end_ns}
            yield {**_common(header, line.t_ns, wall_offset_ns), **marked}
        elif isinstance(line, End):
            yield {**_common(header, line.t_ns, wall_offset_ns), "end": line.reason}
        elif cells := _cells(line):
            at_ns = line.t_ns if at_ns is None else at_ns
            merged.update(cells)
    if at_ns is not None:
        yield {**_common(header, at_ns, wall_offset_ns), **merged}


def _common(header: Header, t_ns: int, wall_offset_ns: int) -> Row:
    wall = datetime.fromtimestamp((t_ns + wall_offset_ns) / 1e9, UTC)
    return {
        "t_ns": t_ns,
        "wall_time": wall.isoformat(timespec="milliseconds"),
        "interval_s": header.interval_s,
        "host_every": header.host_every,
        "origin": header.origin,
        **{f"gpu{gpu.index}_uuid": gpu.uuid for gpu in header.gpus},
    }


def _cells(line: Line) -> Row:
    if isinstance(line, HostSample):
        return dict(_host_cells(line))
    if isinstance(line, GpuSample):
        readings = {name: getattr(line, name) for name in _READINGS}
        if line.throttle is not None:
            readings["throttle"] = _BETWEEN.join(line.throttle) or _UNHINDERED
        return {"tick": line.tick, **{f"gpu{line.gpu}_{name}": value for name, value in readings.items()}}
    if isinstance(line, GpuMeterSample | GpuProcesses | GpuPcie | Ended):
        return {f"gpu{line.gpu}_{column}": getattr(line, name) for column, name in _BESIDE[type(line)].items()}
    return {}


def header_of(first: Row) -> Header:
    """Return what the first row tells about the recording; names of GPUs are not in a table."""
    gpus = [(int(match[1]), column) for column in first if (match := re.fullmatch(r"gpu(\d+)_uuid", column))]
    return Header(
        t_ns=first["t_ns"],
        wall_ns=_wall_ns(first),
        interval_s=first["interval_s"],
        host_every=first["host_every"] or None,
        gpus=tuple(WatchedGpu(index=index, uuid=first[column]) for index, column in gpus),
        origin=first["origin"],
    )


def _wall_ns(row: Row) -> int:
    return round(datetime.fromisoformat(row["wall_time"]).timestamp() * 1e9)


def lines_of(row: Row) -> list[Line]:
    """Return the lines that a row was made of; empty cells were not measured."""
    if row["mark"]:
        end_ns = row["mark_end_ns"] or None
        return [Mark(t_ns=row["t_ns"], name=row["mark"], start_ns=row["mark_start_ns"], end_ns=end_ns)]
    if row["end"]:
        return [End(t_ns=row["t_ns"], wall_ns=_wall_ns(row), reason=row["end"])]
    gpus: dict[int, Row] = {}
    host: Row = {}
    for column, cell in row.items():
        if cell == "":
            continue
        if match := _GPU_COLUMN.fullmatch(column):
            gpus.setdefault(int(match[1]), {})[match[2]] = cell
        elif (match := _HOST_COLUMN.fullmatch(column)) and column not in _TIME:
            _put(host, match[1], match[2], cell)
    lines = [line for index, cells in gpus.items() for line in _gpu_lines(row, index, cells)]
    return [*lines, HostSample(**host)] if host else lines


def _put(host: Row, name: str, key: str | None, cell: str) -> None:
    if key is None:
        host[name] = cell
    else:
        host.setdefault(name, {})[key] = cell


def _gpu_lines(row: Row, index: int, cells: Row) -> Iterator[Line]:
    reading: Row = {name: cells[name] for name in _READINGS if name in cells}
    if "throttle" in reading:
        reading["throttle"] = () if reading["throttle"] == _UNHINDERED else reading["throttle"].split(_BETWEEN)
    if reading:
        yield GpuSample(t_ns=row["t_ns"], tick=row["tick"], gpu=index, **reading)
    for kind, names in _BESIDE.items():
        fields = {name: cells[column] for column, name in names.items() if column in cells}
        if fields:
            yield kind.model_validate({"t_ns": row["t_ns"], "gpu": index, **fields})
