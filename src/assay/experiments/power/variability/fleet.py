"""Rows of the same work on the same model of GPU, as columns: a fleet, however small.

Different workloads, sizes, configurations, models, timing methods, isolation levels and origins are never mixed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from assay.stats.variance import encode_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from assay.core.results import Origin
    from assay.experiments.power.rows import GpuRow

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

IDLE_WORKLOAD = "idle"
"""The workload that does nothing: its time says nothing about a GPU."""


@dataclass(frozen=True, order=True)
class FleetKind:
    """What must be the same for GPUs to be peers."""

    workload: str
    params: tuple[tuple[str, object], ...]
    model: str
    quantity: str
    origin: Origin
    config: tuple[tuple[str, object], ...] = ()
    isolation: str = ""

    @property
    def work(self) -> str:
        """What was timed, in words."""
        named = (*self.params, *((f"config {name}", value) for name, value in self.config))
        return " ".join([self.workload, *(f"{name}={value}" for name, value in named)])

    @property
    def label(self) -> str:
        """What was timed, and on what."""
        return f"{self.work} on {self.model}"


@dataclass(frozen=True)
class LocatedGpu:
    """One GPU and where it sits."""

    uuid: str
    host: str
    rack: str | None
    slot: int
    device: str


@dataclass(frozen=True)
class GpuFleet:
    """All rows of one kind; ``gpu``, ``run`` and ``case`` are codes of each row, NaN is what was not measured."""

    kind: FleetKind
    gpus: tuple[LocatedGpu, ...]
    moved: int
    gpu: Codes
    run: Codes
    case: Codes
    cases: tuple[str, ...]
    rows: tuple[GpuRow, ...]

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The hosts, in the order they came."""
        return tuple(dict.fromkeys(gpu.host for gpu in self.gpus))

    @cached_property
    def host(self) -> Codes:
        """The host of each GPU, as its place in ``hosts``."""
        index_of = {name: index for index, name in enumerate(self.hosts)}
        return np.array([index_of[gpu.host] for gpu in self.gpus], dtype=np.intp)

    @cached_property
    def racks(self) -> tuple[str, ...]:
        """The racks that are known, in the order they came."""
        return tuple(dict.fromkeys(gpu.rack for gpu in self.gpus if gpu.rack is not None))

    @cached_property
    def rack(self) -> Codes:
        """The rack of each GPU, as its place in ``racks``; -1 where it is not known."""
        index_of = {name: index for index, name in enumerate(self.racks)}
        return np.array([-1 if gpu.rack is None else index_of[gpu.rack] for gpu in self.gpus], dtype=np.intp)

    @cached_property
    def slot(self) -> Codes:
        """The slot of each GPU."""
        return np.array([gpu.slot for gpu in self.gpus], dtype=np.intp)

    def column(self, name: str, *, log: bool = False) -> Samples:
        """Return a number of each row, or its logarithm; NaN where there is none."""
        values = np.array([_nan_if_null(getattr(row, name)) for row in self.rows])
        if not log:
            return np.where(np.isfinite(values), values, np.nan)
        usable = np.isfinite(values) & (values > 0)
        return np.log(np.where(usable, values, np.nan))

    @cached_property
    def neighbours(self) -> Samples:
        """How many GPUs beside it were busy, of each row."""
        return np.array([float(len(row.neighbours)) for row in self.rows])

    @cached_property
    def neighbour_temperature(self) -> Samples:
        """The mean temperature of the others of its host in the same run and case, of each row."""
        codes, _ = encode_labels((row.run, row.host, row.case, row.repeat) for row in self.rows)
        heat = self.column("temperature_c")
        finite = np.isfinite(heat)
        sums = np.bincount(codes, weights=np.where(finite, heat, 0.0))[codes] - np.where(finite, heat, 0.0)
        counts = np.bincount(codes, weights=finite)[codes] - finite
        return np.asarray(np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0))

    def name(self, gpu: int) -> str:
        """Return how one GPU is called: by its number on a single host, with the host on several."""
        one = self.gpus[gpu]
        own = f"GPU {one.slot}" if one.device == f"cuda:{one.slot}" else one.device
        return own if len(self.hosts) == 1 else f"{one.host} {own}"


@dataclass(frozen=True)
class GpuFleets:
    """The fleets that rows make, the largest first, and what of the rows is in none."""

    fleets: tuple[GpuFleet, ...]
    notes: tuple[str, ...]


def group_fleets(rows: Sequence[GpuRow]) -> GpuFleets:
    """Part rows into fleets."""
    parts: dict[FleetKind, list[GpuRow]] = defaultdict(list)
    idle = 0
    for row in rows:
        if row.workload.partition("@")[0] == IDLE_WORKLOAD:
            idle += 1
        else:
            parts[_fleet_kind(row)].append(row)
    notes = [f"{idle} rows are of idle GPUs, whose time says nothing about them."] if idle else []
    fleets = []
    for kind, own in parts.items():
        fleet, fleet_notes = _build_fleet(kind, own)
        fleets.append(fleet)
        notes += fleet_notes
    fleets.sort(key=lambda fleet: -len(fleet.rows))
    return GpuFleets(tuple(fleets), (*_mixed_notes(fleets), *notes))


def _fleet_kind(row: GpuRow) -> FleetKind:
    params, config = (
        tuple(sorted((name, value) for name, value in named.items() if value is not None))
        for named in (row.params, row.config)
    )
    return FleetKind(row.workload, params, row.model, row.quantity, row.origin, config, row.isolation or "")


def _mixed_notes(fleets: Iterable[GpuFleet]) -> list[str]:
    """Say that there are several models, or several origins."""
    kinds = [fleet.kind for fleet in fleets]
    models, origins = list(dict.fromkeys(k.model for k in kinds)), list(dict.fromkeys(k.origin for k in kinds))
    mixed_notes = (
        [f"These are {len(models)} models, each looked at by itself: {', '.join(models)}."] if len(models) > 1 else []
    )
    levels = list(dict.fromkeys(k.isolation or "not recorded" for k in kinds))
    if len(levels) > 1:
        mixed_notes.append(f"Rows differ in isolation ({', '.join(levels)}); each is looked at by itself.")
    return mixed_notes + (
        [f"Rows are {' and '.join(origins)}; each is looked at by itself."] if len(origins) > 1 else []
    )


def _build_fleet(kind: FleetKind, rows: list[GpuRow]) -> tuple[GpuFleet, list[str]]:
    cases, names = encode_labels(row.case for row in rows)
    gpus, keys = encode_labels(_gpu_key(row) for row in rows)
    notes = []
    comparable = _comparable_rows(gpus, cases)
    if not comparable.all():
        left = dict.fromkeys(row.case for row, keep in zip(rows, comparable, strict=True) if not keep)
        notes.append(f"{kind.label}: {', '.join(left)} share no GPU with the other cases and are left out.")
        rows = [row for row, keep in zip(rows, comparable, strict=True) if keep]
        cases, names = encode_labels(row.case for row in rows)
        gpus, keys = encode_labels(_gpu_key(row) for row in rows)
    rows_by_gpu: list[list[GpuRow]] = [[] for _ in keys]
    for row, gpu in zip(rows, gpus, strict=True):
        rows_by_gpu[gpu].append(row)
    moved = sum(len({(row.host, row.slot) for row in own}) > 1 for own in rows_by_gpu)
    if moved:
        notes.append(f"{moved} GPUs were seen in more than one place; each counts where it was last.")
    runs, _ = encode_labels((row.run, row.host) for row in rows)
    fleet = GpuFleet(
        kind=kind,
        gpus=tuple(_latest_location(own) for own in rows_by_gpu),
        moved=moved,
        gpu=gpus,
        run=runs,
        case=cases,
        cases=tuple(map(str, names)),
        rows=tuple(rows),
    )
    return fleet, notes


def _gpu_key(row: GpuRow) -> tuple[str, ...]:
    """Return what a GPU is known by; a group of cores has no number of its own and is known by its host."""
    return (row.host, row.uuid) if row.uuid == row.device else (row.uuid,)


def _latest_location(rows: list[GpuRow]) -> LocatedGpu:
    last = max(rows, key=lambda row: row.started_at)
    racks = Counter(row.rack for row in rows if row.rack is not None and row.host == last.host)
    rack = racks.most_common(1)[0][0] if racks else None
    return LocatedGpu(last.uuid, last.host, rack, last.slot, last.device)


def _comparable_rows(gpus: Codes, cases: Codes) -> NDArray[np.bool_]:
    """Return which rows belong to the largest part in which every case shares a GPU with another."""
    parts = np.arange(int(cases.max()) + 1)
    while True:
        least = np.full(int(gpus.max()) + 1, len(parts))
        np.minimum.at(least, gpus, parts[cases])
        new = parts.copy()
        np.minimum.at(new, cases, least[gpus])
        if (new == parts).all():
            break
        parts = new
    largest = np.bincount(parts[cases]).argmax()
    return np.asarray(parts[cases] == largest)


def _nan_if_null(value: float | None) -> float:
    return math.nan if value is None else float(value)
