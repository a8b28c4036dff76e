"""Rows of the same work on the same model of GPU, as columns: a fleet, however small; and one number per GPU of them.

Different workloads, sizes, configurations, models, timing methods, isolation levels and origins are never mixed. Over
its runs each GPU has one number per measure; the variance of its times is attributed to levels from racks to calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy import special

from assay.experiments.power.rows import IDLE
from assay.stats.intervals import CONFIDENCE
from assay.stats.numerics import t_quantile
from assay.stats.variance import combine_codes, encode_labels, estimate_components, group_means, group_variances

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from assay.core.results import Origin
    from assay.experiments.power.rows import GpuRow
    from assay.stats.variance import VarianceComponent

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]


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
    gpu: Codes
    run: Codes
    case: Codes
    rows: tuple[GpuRow, ...]

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The hosts, in the order they came."""
        return tuple(dict.fromkeys(gpu.host for gpu in self.gpus))

    @cached_property
    def host(self) -> Codes:
        """The host of each GPU, as its place in ``hosts``."""
        return encode_labels(gpu.host for gpu in self.gpus)[0]

    @cached_property
    def racks(self) -> tuple[str, ...]:
        """The racks that are known, in the order they came."""
        return tuple(dict.fromkeys(gpu.rack for gpu in self.gpus if gpu.rack is not None))

    @cached_property
    def rack(self) -> Codes:
        """The rack of each GPU, as its place in ``racks``; -1 where it is not known."""
        index_of: dict[str | None, int] = {name: index for index, name in enumerate(self.racks)}
        return np.array([index_of.get(gpu.rack, -1) for gpu in self.gpus], dtype=np.intp)

    @cached_property
    def slot(self) -> Codes:
        """The slot of each GPU."""
        return np.array([gpu.slot for gpu in self.gpus], dtype=np.intp)

    def column(self, name: str, *, log: bool = False) -> Samples:
        """Return a number of each row, or its logarithm; NaN where there is none."""
        values = np.array([getattr(row, name) for row in self.rows], dtype=np.float64)
        usable = np.isfinite(values) & (values > 0) if log else np.isfinite(values)
        return np.log(np.where(usable, values, np.nan)) if log else np.where(usable, values, np.nan)

    def gpu_means(self, values: Samples) -> Samples:
        """Return the mean of the rows of each GPU; NaN where it has none."""
        there = np.isfinite(values)
        return group_means(values[there], self.gpu[there], len(self.gpus))

    def without_case_effects(self, values: Samples) -> Samples:
        """Return a column as if all rows were of one case."""
        there = np.isfinite(values)
        levelled = np.full(len(values), np.nan)
        if there.any():
            levelled[there] = remove_case_effects(values[there], self.gpu[there], self.case[there])
        return levelled

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
    """Split rows into fleets."""
    by_kind: dict[FleetKind, list[GpuRow]] = defaultdict(list)
    busy = [row for row in rows if row.workload.partition("@")[0] != IDLE]
    for row in busy:
        by_kind[_fleet_kind(row)].append(row)
    idle = len(rows) - len(busy)
    notes = [f"{idle} rows are of idle GPUs, whose time says nothing about them."] if idle else []
    fleets = [_build_fleet(kind, own, notes) for kind, own in by_kind.items()]
    fleets.sort(key=lambda fleet: -len(fleet.rows))
    return GpuFleets(tuple(fleets), (*_mixed_notes([fleet.kind for fleet in fleets]), *notes))


def _fleet_kind(row: GpuRow) -> FleetKind:
    params, config = (
        tuple(sorted((name, value) for name, value in named.items() if value is not None))
        for named in (row.params, row.config)
    )
    return FleetKind(row.workload, params, row.model, row.quantity, row.origin, config, row.isolation or "")


def _mixed_notes(kinds: Sequence[FleetKind]) -> list[str]:
    """Say that there are several models, isolation levels or origins."""
    models, origins = list(dict.fromkeys(k.model for k in kinds)), list(dict.fromkeys(k.origin for k in kinds))
    levels = list(dict.fromkeys(k.isolation or "not recorded" for k in kinds))
    notes = (
        (models, f"These are {len(models)} models, each looked at by itself: {', '.join(models)}."),
        (levels, f"Rows differ in isolation ({', '.join(levels)}); each is looked at by itself."),
        (origins, f"Rows are {' and '.join(origins)}; each is looked at by itself."),
    )
    return [note for several, note in notes if len(several) > 1]


def _build_fleet(kind: FleetKind, rows: list[GpuRow], notes: list[str]) -> GpuFleet:
    """Return a fleet; what is to be known of its rows is added to ``notes``."""
    comparable = _comparable_cases(rows)
    left = dict.fromkeys(row.case for row in rows if row.case not in comparable)
    if left:
        notes.append(f"{kind.label}: {', '.join(left)} share no GPU with the other cases and are left out.")
        rows = [row for row in rows if row.case in comparable]
    rows_by_gpu: dict[tuple[str, ...], list[GpuRow]] = defaultdict(list)
    for row in rows:
        rows_by_gpu[_gpu_key(row)].append(row)
    moved = sum(len({(row.host, row.slot) for row in own}) > 1 for own in rows_by_gpu.values())
    if moved:
        notes.append(f"{moved} GPUs were seen in more than one place; each counts where it was last.")
    return GpuFleet(
        kind=kind,
        gpus=tuple(map(_latest_location, rows_by_gpu.values())),
        gpu=encode_labels(map(_gpu_key, rows))[0],
        run=encode_labels((row.run, row.host) for row in rows)[0],
        case=encode_labels(row.case for row in rows)[0],
        rows=tuple(rows),
    )


def _gpu_key(row: GpuRow) -> tuple[str, ...]:
    """Return what identifies a GPU; a group of cores has no number of its own and is identified by its host."""
    return (row.host, row.uuid) if row.uuid == row.device else (row.uuid,)


def _latest_location(rows: list[GpuRow]) -> LocatedGpu:
    last = max(rows, key=lambda row: row.started_at)
    racks = Counter(row.rack for row in rows if row.rack is not None and row.host == last.host)
    rack = racks.most_common(1)[0][0] if racks else None
    return LocatedGpu(last.uuid, last.host, rack, last.slot, last.device)


def _comparable_cases(rows: Sequence[GpuRow]) -> set[str]:
    """Return the cases of the largest set of rows in which every case shares a GPU with another."""
    cases, names = encode_labels(row.case for row in rows)
    gpus, keys = encode_labels(map(_gpu_key, rows))
    groups, previous = np.arange(len(names)), np.full(len(names), -1)
    while not np.array_equal(groups, previous):
        previous = groups
        least = np.full(len(keys), len(names))
        np.minimum.at(least, gpus, groups[cases])
        groups = groups.copy()
        np.minimum.at(groups, cases, least[gpus])
    largest = np.bincount(groups[cases]).argmax()
    return {str(name) for name, group in zip(names, groups, strict=True) if group == largest}


MIN_TEMPERATURE_DIFFERENCE_C = 3.0
"""The smallest difference in temperature that is reported."""
STEP_C = 0.5
"""Half of what a temperature sensor tells apart."""
STEP = 1e-4
"""A relative difference that no sensor tells apart."""
PRIOR_FREEDOM = 8
"""How many degrees of freedom the others' scatter counts beside a GPU's own, among many."""
MANY_UNITS = 10

ScatterUnit = Literal["runs", "repeats"]


@dataclass(frozen=True)
class GpuMeasure:
    """A number of each row, and what a GPU is called whose number is high or low."""

    name: str
    column: str
    high: str
    low: str
    title: str
    relative: bool = True

    @property
    def step(self) -> float:
        """Below this nothing is seen: relative, or in °C."""
        return STEP if self.relative else STEP_C

    def margin(self, minimum_effect: float) -> float:
        """Return the difference that counts, on the scale of the numbers: logarithms, or °C."""
        return float(np.log1p(minimum_effect)) if self.relative else MIN_TEMPERATURE_DIFFERENCE_C


TIME_MEASURE = GpuMeasure("time", "median_us", "slow", "fast", "time")
MEASURES = (
    TIME_MEASURE,
    GpuMeasure("temperature", "temperature_c", "hot", "cool", "temperature", relative=False),
    GpuMeasure("power", "power_w", "hungry", "frugal", "power"),
    GpuMeasure("energy", "energy_per_call_j", "wasteful", "thrifty", "energy a call"),
    GpuMeasure("idle", "idle_w", "hungry at rest", "frugal at rest", "power at rest"),
)


@dataclass(frozen=True)
class GpuNumbers:
    """One number of each GPU with its standard error; NaN where it was not measured, or was measured once.

    On the scale of logarithms where the measure is relative. ``unit`` is what scatters: null where nothing was measured
    twice.
    """

    measure: GpuMeasure
    value: Samples
    error: Samples
    freedom: Samples
    unit: ScatterUnit | None

    @property
    def measured(self) -> Codes:
        """The GPUs that have a number."""
        return np.flatnonzero(np.isfinite(self.value))

    def half_width(self, gpu: int) -> float:
        """Return half of the 95 % interval of a GPU's number."""
        return t_quantile(CONFIDENCE, max(1, round(float(self.freedom[gpu])))) * float(self.error[gpu])


def gpu_numbers(fleet: GpuFleet, measure: GpuMeasure) -> GpuNumbers | None:
    """Return each GPU's number; null where none has any."""
    rows = fleet.column(measure.column, log=measure.relative)
    there = np.isfinite(rows)
    if not there.any():
        return None
    gpu, run = fleet.gpu[there], fleet.run[there]
    values = remove_case_effects(rows[there], gpu, fleet.case[there])
    unit, units = _scatter_units(gpu, run)
    by_unit = group_means(values, units, int(units.max()) + 1)
    owner = np.zeros(len(by_unit), dtype=np.intp)
    owner[units] = gpu
    n = len(fleet.gpus)
    counts = np.bincount(owner, minlength=n)
    spent = len(np.unique(fleet.case[there])) - 1
    if int(np.maximum(counts - 1, 0).sum()) <= spent:
        unit = None
    unknown = np.full(n, np.nan)
    scatter, freedom = _unit_variance(by_unit, owner, counts, spent) if unit else (unknown, unknown)
    error = np.sqrt(np.divide(scatter, counts, out=np.full(n, np.nan), where=counts > 0))
    return GpuNumbers(measure, group_means(by_unit, owner, n), error, freedom, unit)


def remove_case_effects(values: Samples, gpu: Codes, case: Codes) -> Samples:
    """Return the values as if all were of one case: what a case adds to all of its GPUs is taken out."""
    if not case.any():
        return values
    gpus, cases = int(gpu.max()) + 1, int(case.max()) + 1
    added = np.zeros(cases)
    for _ in range(200):
        own = np.nan_to_num(group_means(values - added[case], gpu, gpus))
        new = np.nan_to_num(group_means(values - own[gpu], case, cases))
        new -= float(new[case].mean())
        if float(np.abs(new - added).max()) < 1e-12:
            break
        added = new
    return np.asarray(values - added[case])


def _scatter_units(gpu: Codes, run: Codes) -> tuple[ScatterUnit | None, Codes]:
    """Return what scatters: runs where any GPU has several, else its rows, else nothing."""
    by_run = combine_codes(gpu, run)
    first = np.zeros(int(by_run.max()) + 1, dtype=np.intp)
    first[by_run] = gpu
    if np.bincount(first).max() > 1:
        return "runs", by_run
    return ("repeats" if np.bincount(gpu).max() > 1 else None), np.arange(len(gpu))


def _unit_variance(values: Samples, owner: Codes, counts: Codes, spent: int) -> tuple[Samples, Samples]:
    """Return the variance of one unit of each GPU, and the degrees of freedom that it is known with.

    Those that were ``spent`` on what cases add are gone. Among many GPUs the middle of their variances counts beside
    each one's own: one that scatters by itself is seen.
    """
    n = len(counts)
    own = group_variances(values, owner, n)
    freedom = np.maximum(counts - 1, 0).astype(np.float64)
    several = freedom > 0
    if several.sum() < MANY_UNITS:
        left = float(freedom.sum()) - spent
        pooled = float((own[several] * freedom[several]).sum() / left)
        return np.full(n, pooled), np.full(n, left)
    typical = 2 * special.gammaincinv(freedom[several] / 2, 0.5) / freedom[several]
    middle = float(np.median(own[several] / typical))
    prior = min(float(freedom.sum()), float(PRIOR_FREEDOM))
    mixed = (prior * middle + freedom * np.nan_to_num(own)) / (prior + freedom)
    return mixed, prior + freedom


MIDDLE_SHARE = 0.9
MIN_GPUS_FOR_MIDDLE = 20
SPREAD_DRAWS, SPREAD_SEED = 4000, 5


@dataclass(frozen=True)
class TimeSpread:
    """Ratios of times, 1 is none: slowest to fastest, and over the middle nine tenths; nulls where not known."""

    ratio: float
    low: float | None
    high: float | None
    slowest: int
    fastest: int
    middle: float | None
    middle_low: float | None
    middle_high: float | None


def time_spread(numbers: GpuNumbers) -> TimeSpread | None:
    """Return how far GPUs are apart in a relative measure; null for fewer than two.

    The interval of the largest difference is the one that holds for all differences at once (Tukey). That of the middle
    is over GPUs drawn anew; it includes what measuring adds.
    """
    measured = numbers.measured
    if len(measured) < 2:
        return None
    values, errors = numbers.value[measured], numbers.error[measured]
    slowest, fastest = int(values.argmax()), int(values.argmin())
    apart = float(values[slowest] - values[fastest])
    low = high = None
    if numbers.unit is not None:
        freedom = round(float(np.min(numbers.freedom[measured])))
        pair = float(np.sqrt((errors[slowest] ** 2 + errors[fastest] ** 2) / 2))
        reach = _studentised_range(len(measured), freedom) * pair
        low, high = float(np.exp(max(apart - reach, 0.0))), float(np.exp(apart + reach))
    return TimeSpread(
        float(np.exp(apart)), low, high, int(measured[slowest]), int(measured[fastest]), *_middle_spread(values)
    )


@cache
def _studentised_range(n: int, freedom: int) -> float:
    """Return how far apart the ends of n equal numbers seldom are, in their standard errors: the studentised range."""
    chance = np.random.default_rng(SPREAD_SEED)
    draws = 20_000 if n <= 50 else 2000 if n <= 500 else 300
    noise = chance.standard_normal((draws, n))
    ranges = (noise.max(axis=1) - noise.min(axis=1)) / np.sqrt(chance.chisquare(freedom, draws) / freedom)
    return float(np.quantile(ranges, CONFIDENCE))


def _middle_spread(values: Samples) -> tuple[float | None, float | None, float | None]:
    n = len(values)
    if n < MIN_GPUS_FOR_MIDDLE:
        return None, None, None
    tails = [(1 - MIDDLE_SHARE) / 2, (1 + MIDDLE_SHARE) / 2]
    first, last = max(1, round(tails[0] * n)), round(tails[1] * n)
    chance = np.random.default_rng(SPREAD_SEED)
    # Where the two quantiles of a new draw of all GPUs lie among these: order statistics of uniform numbers.
    below = chance.beta(first, n - first + 1, SPREAD_DRAWS)
    above = below + (1 - below) * chance.beta(last - first, n - last + 1, SPREAD_DRAWS)
    ordered = np.sort(values)
    draws = ordered[(above * (n - 1)).round().astype(np.intp)] - ordered[(below * (n - 1)).round().astype(np.intp)]
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    own = float(np.diff(np.quantile(values, tails))[0])
    return float(np.exp(own)), float(np.exp(low)), float(np.exp(high))


def variance_components(fleet: GpuFleet, without: frozenset[int] = frozenset()) -> tuple[VarianceComponent, ...]:
    """Return the variance of the logarithm of a call's time that each level adds; some GPUs may be left out.

    What a case adds to all of its GPUs is taken out first. Racks that are not known are a level of one member.
    """
    gone = np.zeros(len(fleet.gpus), dtype=np.bool_)
    gone[list(without)] = True
    rows = np.flatnonzero(~gone[fleet.gpu])
    if not len(rows):
        return ()
    times = fleet.column("median_us", log=True)[rows]
    adjusted = remove_case_effects(times, fleet.gpu[rows], fleet.case[rows])
    leaves, of_row = _restart_log_times(fleet, rows)
    values = leaves - (times - adjusted)[of_row]
    gpu = fleet.gpu[rows][of_row]
    rack = fleet.rack if (fleet.rack >= 0).all() else np.zeros(len(fleet.gpus), dtype=np.intp)
    design = [
        ("racks", rack[gpu]),
        ("hosts", fleet.host[gpu]),
        ("GPUs", gpu),
        ("runs", fleet.run[rows][of_row]),
        ("repeats", of_row),
        ("restarts", np.arange(len(values))),
    ]
    spread = fleet.column("cv")[rows]
    finite = np.isfinite(spread)
    calls = ("calls", np.log1p(spread[finite] ** 2), combine_codes(fleet.gpu[rows][finite])) if finite.any() else None
    return estimate_components(values, design, calls, spent={"repeats": len(np.unique(fleet.case[rows])) - 1})


def _restart_log_times(fleet: GpuFleet, rows: Codes) -> tuple[Samples, Codes]:
    """Return the logarithm of each restart's median, or of the row's where they are missing; and the row of each."""
    medians = []
    for row in (fleet.rows[index] for index in rows):
        restarts = np.array(row.restart_medians_us)
        valid = len(restarts) > 0 and bool(((restarts > 0) & np.isfinite(restarts)).all())
        medians.append(restarts if valid else np.array([row.median_us]))
    return np.log(np.concatenate(medians)), np.repeat(np.arange(len(rows)), list(map(len, medians)))
