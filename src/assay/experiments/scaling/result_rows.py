"""One measured shape of a result, of a run or read from a file: for comparisons and the gate; and figures of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from assay.core.format import format_count
from assay.core.page import HeatMap, LinePlot, PlotLine
from assay.core.results import Estimate
from assay.experiments.scaling.plan import has_transfers
from assay.experiments.scaling.timings import is_over_starts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.results import Scope
    from assay.experiments.scaling.analysis import AnalysedShape, ScalingAnalysis
    from assay.experiments.scaling.plan import ScalingOptions

    RowValue = Callable[["ScalingRow"], Estimate | float | None]

DEVICE_SETTING = "device_model"
"""In a setting: the model of the GPUs, or of the host."""

RowSetting = tuple[tuple[str, str], ...]
"""What else must be the same for two times to be comparable: names and values."""

SETTING_KEYS = (
    "embed_dim", "num_heads", "num_kv_heads", "segment_lengths", "dilation_rates", "dtype", "causal", "offset",
    "backend", "isolation", DEVICE_SETTING,
)  # fmt: skip
"""What must be the same in two files, beside the batch, for their times to be comparable."""


def reported_estimate(
    value: float, unit: str, low: float | None = None, high: float | None = None, *, over_starts: bool = False
) -> Estimate:
    """Return a number as its source reports it; without an interval where the source has none."""
    scope: Scope = "run" if over_starts else "process"
    if low is None or high is None:
        low = high = None
    return Estimate(value=value, low=low, high=high, unit=unit, scope=scope, method="as the source reports it", n=1)


@dataclass(frozen=True)
class ScalingRow:
    """A sequence over ``world`` ranks, in rings of ``ring`` of them. Null: unknown, or the source does not say.

    Attributes:
        source: The file or run that says so.
        assay_version: The version of Assay that measured it; null for the older tool, whose attention was another
        function. setting: All else that makes two results comparable.
        tokens: Positions of the sequence that a ring works on; 0 of a workload that has none.
        batch: Sequences to a ring.
        world: Ranks.
        ring: Ranks to a ring.
        weak: Whether the work grows with the ranks.
        time_ms: Of a call, forward and backward: the slowest rank.
        throughput: Tokens a second of all rings together; of a workload without tokens, calls a second.
        speedup: Times as much work in the same time as one rank.
        efficiency: The same as a share of the ranks.
        communication_ms: Of the transfers by themselves.
        memory_gib: The allocator's peak on the rank that has most.
        note: What must be known of its speedup, or why it has none.
    """

    source: str
    assay_version: str | None
    setting: RowSetting
    tokens: int
    batch: int | None
    world: int
    ring: int
    weak: bool
    time_ms: Estimate
    throughput: Estimate | None = None
    speedup: Estimate | None = None
    efficiency: Estimate | None = None
    communication_ms: float | None = None
    memory_gib: float | None = None
    note: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What two measurements of the same shape have in common."""
        return (self.assay_version is None, self.setting, self.batch, self.tokens, self.world, self.ring, self.weak)

    @property
    def is_over_starts(self) -> bool:
        """Whether its efficiency has an interval over several starts; one start says nothing about the next."""
        return self.efficiency is not None and is_over_starts(self.efficiency)

    @property
    def rings(self) -> int:
        """How many rings there are."""
        return self.world // self.ring

    @property
    def requested_length(self) -> int:
        """The length as it was asked for: in weak scaling that of one rank."""
        return self.tokens // self.ring if self.weak else self.tokens

    @property
    def grouping(self) -> str:
        """How ranks are grouped, in words."""
        if self.world == 1:
            return "one rank"
        if self.ring == 1:
            return "each by itself"
        return "one ring" if self.ring == self.world else f"rings of {self.ring}"


def newest_rows(rows: Iterable[ScalingRow]) -> tuple[ScalingRow, ...]:
    """Return each shape once, as it was read last, in a plain order."""

    def order(row: ScalingRow) -> tuple[object, ...]:
        return (row.assay_version is None, row.setting, row.requested_length, row.batch or 0, row.world, row.ring)

    return tuple(sorted({row.key: row for row in rows}.values(), key=order))


def add_speedups(rows: Sequence[ScalingRow]) -> tuple[ScalingRow, ...]:
    """Return rows whose source has no speedups with those that the times say; no interval can be said of them."""
    return tuple(row if row.speedup is not None else _add_speedup(row, rows) for row in rows)


def _add_speedup(row: ScalingRow, rows: Sequence[ScalingRow]) -> ScalingRow:
    alone = find_baseline_row(row, rows)
    if alone is None:
        missing = "one rank with as much work is not among the results"
        return replace(row, note=f"{row.note}; {missing}" if row.note else missing)
    per_rank = alone.time_ms.value / alone.tokens if alone.tokens else alone.time_ms.value
    work = row.rings * (row.tokens or 1)
    faster = work * per_rank / row.time_ms.value
    notes = [row.note] if row.note else []
    if alone.world > 1:
        notes.append(f"held against one of {alone.world} ranks side by side, as one alone was not measured")
    elif alone.source != row.source:
        notes.append(f"held against one rank of {alone.source}")
    return replace(
        row,
        speedup=reported_estimate(faster, "×"),
        efficiency=reported_estimate(faster / row.world, ""),
        note="; ".join(notes) or None,
    )


def find_baseline_row(row: ScalingRow, rows: Sequence[ScalingRow]) -> ScalingRow | None:
    """Return one rank with the same work: of the same source if it has it, alone rather than among others."""
    length = row.requested_length
    same = [
        other
        for other in rows
        if other.ring == 1
        and (other.assay_version is None) == (row.assay_version is None)
        and (other.setting, other.batch, other.tokens) == (row.setting, row.batch, length)
    ]
    return min(same, key=lambda other: (other.world > 1, other.source != row.source, other.world), default=None)


def label_rows(rows: Sequence[ScalingRow]) -> dict[ScalingRow, str]:
    """Return a label for each row without its ranks: its length, and what else differs among the rows."""
    names = dict.fromkeys(name for row in rows for name, _ in row.setting)
    differing = [name for name in names if len({dict(row.setting).get(name) for row in rows}) > 1]
    several = len({row.batch for row in rows}) > 1
    return {row: _build_label(row, differing, several=several) for row in rows}


def label_with_ranks(row: ScalingRow, label: str) -> str:
    """Return a label with the ranks: "65,536 tokens on 4 ranks, rings of 2"."""
    return f"{label} on {format_count(row.world, 'rank')}{f', {row.grouping}' if row.ring < row.world else ''}"


def _build_label(row: ScalingRow, differing: Sequence[str], *, several: bool) -> str:
    words = [f"{row.requested_length:,} tokens{' a rank' if row.weak else ''}"] if row.tokens else ["calls"]
    words += [f"batch {row.batch}"] if several and row.batch is not None else []
    words += [f"{name.replace('_', ' ')} {dict(row.setting)[name]}" for name in differing if name in dict(row.setting)]
    return ", ".join([*words, *(["older tool"] if row.assay_version is None else [])])


US_OF_MS = 1e3
MIB_OF_GIB = 1024.0


def build_run_rows(
    options: ScalingOptions, analysis: ScalingAnalysis, source: str, version: str, model: str
) -> tuple[ScalingRow, ...]:
    """Return a row for each shape that has a time; ``model`` is that of the devices."""
    setting = (*_run_setting(options), ("isolation", options.isolation), (DEVICE_SETTING, model))
    rows = (_build_row(options, result, source, version, setting) for result in analysis.all)
    return tuple(row for row in rows if row is not None)


def _build_row(
    options: ScalingOptions, result: AnalysedShape, source: str, version: str, setting: RowSetting
) -> ScalingRow | None:
    time = result["time"]
    if time is None:
        return None
    shape, params, weak = result.shape, options.subject.params, options.mode == "weak"
    one_rank = shape.world == 1
    batch = params.get("batch")
    sizes = [] if result.facts is None else [memory.allocated_mib for memory in result.facts.memory]
    return ScalingRow(
        source=source,
        assay_version=version,
        setting=setting,
        tokens=shape.sequence * (shape.ring if weak else 1),
        batch=batch if isinstance(batch, int) and options.is_attention else None,
        world=shape.world,
        ring=shape.ring,
        weak=weak,
        time_ms=time.scaled("ms", times=1 / US_OF_MS),
        throughput=result["throughput"],
        speedup=reported_estimate(1.0, "×", 1.0, 1.0) if one_rank else result["speedup"],
        efficiency=reported_estimate(1.0, "", 1.0, 1.0) if one_rank else result["efficiency"],
        communication_ms=_transfer_ms(options, result),
        memory_gib=max((size / MIB_OF_GIB for size in sizes if size is not None), default=None),
        note=None if one_rank else result.missing_reason("efficiency"),
    )


def _transfer_ms(options: ScalingOptions, result: AnalysedShape) -> float | None:
    """Return what the transfers take by themselves; 0 where nothing is sent, null where it is not known."""
    if options.is_attention and not has_transfers(options, result.shape):
        return 0.0
    communication = result["communication"]
    return None if communication is None else communication.value / US_OF_MS


def _run_setting(options: ScalingOptions) -> RowSetting:
    """Return the parameters by the names that the older files have for them; of another workload, all of them."""
    params = options.subject.params
    if not options.is_attention:
        config = ((f"config {name}", str(value)) for name, value in (options.subject.config or {}).items())
        return (("workload", options.subject.label), *((name, str(value)) for name, value in params.items()), *config)
    heads, dim = params["heads"], params["dim"]
    values = {
        "embed_dim": int(str(heads)) * int(str(dim)),
        "num_heads": heads,
        "num_kv_heads": None if params["key_heads"] == heads else params["key_heads"],
        "segment_lengths": str(params["segments"]).replace(",", "/"),
        "dilation_rates": str(params["rates"]).replace(",", "/"),
        "dtype": params["dtype"],
        "causal": str(params["causal"]).lower(),
        "offset": None if params["offset"] == "modulo" else params["offset"],
        "backend": params["backend"],
    }
    return tuple((name, str(values[name])) for name in SETTING_KEYS if values.get(name) is not None)


RANKS_AXIS = "ranks"
BANDS_NOTE = "Bands are 95 % intervals."
NO_BANDS_NOTE = "The sources have no intervals."
NOT_COMPARABLE = "Speedups of the older tool are invalid: its rings computed a different function than one rank."


class ScalingFigures(NamedTuple):
    """The figures of each sheet; a sheet without data has none."""

    scaling: tuple[LinePlot, ...]
    memory: tuple[LinePlot, ...]
    heat_maps: tuple[HeatMap, ...]

    @property
    def all(self) -> tuple[LinePlot | HeatMap, ...]:
        """Every figure."""
        return (*self.scaling, *self.memory, *self.heat_maps)


def draw_empty_figure(title: str, name: str) -> LinePlot:
    """Return a figure that says that there are no data."""
    nothing = PlotLine(label="", x=(1.0,), y=(None,))
    return LinePlot(
        title=title, name=name, x_axis=RANKS_AXIS, y_axis="", lines=(nothing,), note="No source has these numbers."
    )


def draw_figures(rows: Sequence[ScalingRow]) -> ScalingFigures:
    """Return the figures of rows, each shape once."""
    words, scale = _throughput_unit(rows)
    throughput, efficiency = partial(_scaled, "throughput", scale), partial(_scaled, "efficiency", 100.0)
    scaling = (
        _lines_over_ranks(rows, "Throughput", "throughput", words, throughput, log_y=True),
        _lines_over_ranks(rows, "Speedup", "speedup", "×", attrgetter("speedup"), log_y=True, with_ideal=True),
        _lines_over_ranks(rows, "Efficiency", "efficiency", "%", efficiency, with_ideal=True),
        _lines_over_ranks(rows, "Time of a call", "time", "ms", attrgetter("time_ms"), log_y=True),
    )
    memory = (
        _lines_over_ranks(rows, "Peak memory per rank", "memory", "GiB", attrgetter("memory_gib"), log_y=True),
        _lines_over_ranks(rows, "Peak memory per token of a rank", "memory_per_token", "KiB", _memory_per_token),
    )
    scaling_figures, memory_figures = (tuple(f for f in figures if f is not None) for figures in (scaling, memory))
    return ScalingFigures(scaling_figures, memory_figures, _draw_heat_maps(rows))


def _throughput_unit(rows: Sequence[ScalingRow]) -> tuple[str, float]:
    """Return a readable unit of throughput, and the factor from the plain one."""
    things = "tokens/s" if all(row.tokens for row in rows) else "calls/s"
    most = max((row.throughput.value for row in rows if row.throughput is not None), default=0.0)
    scale, word = next(((s, w) for s, w in ((1e6, "million "), (1e3, "thousand ")) if most >= 2 * s), (1.0, ""))
    return f"{word}{things}", 1 / scale


def _draw_heat_maps(rows: Sequence[ScalingRow]) -> tuple[HeatMap, ...]:
    words, scale = _throughput_unit(rows)
    own = any(row.assay_version is not None for row in rows)

    def efficiency(row: ScalingRow) -> Estimate | None:
        return _scaled("efficiency", 100.0, row) if row.assay_version or not own else None

    sheets: tuple[tuple[str, str, str, RowValue], ...] = (
        ("Throughput", "map_throughput", words, partial(_scaled, "throughput", scale)),
        ("Efficiency", "map_efficiency", "%", efficiency),
        ("Transfers alone", "map_transfers", "% of the time of a call", _transfer_percent),
        ("Peak memory per rank", "map_memory", "GiB", attrgetter("memory_gib")),
    )
    length_of = label_rows(rows)
    lengths = tuple(dict.fromkeys(label for _, label in sorted((row.requested_length, length_of[row]) for row in rows)))
    by_ranks = sorted(rows, key=lambda row: (row.world, -row.ring))
    columns = {(row.world, row.ring): _column_label(row) for row in by_ranks}
    cells = {(length_of[row], (row.world, row.ring)): row for row in rows}
    maps = []
    for title, name, unit, value in sheets:
        values = {position: _point(number)[0] for position, row in cells.items() if (number := value(row)) is not None}
        if values:
            maps.append(
                HeatMap(
                    title=f"{title}, by length and ranks",
                    name=name,
                    rows=lengths,
                    columns=tuple(columns.values()),
                    cells=tuple(tuple(values.get((length, ranks)) for ranks in columns) for length in lengths),
                    unit=unit,
                    note=" ".join(_older_notes(rows)) or None if name == "map_efficiency" and not own else None,
                )
            )
    return tuple(maps)


def _column_label(row: ScalingRow) -> str:
    ranks = format_count(row.world, "rank")
    return ranks if row.ring == row.world else f"{ranks}, {row.grouping}"


def _lines_over_ranks(
    rows: Sequence[ScalingRow],
    title: str,
    name: str,
    unit: str,
    value: RowValue,
    *,
    log_y: bool = False,
    with_ideal: bool = False,
) -> LinePlot | None:
    """Return lines over the number of ranks; null without any value.

    What is relative to one rank has an ideal line, and is invalid for rows of the older tool, as their labels say.
    """
    lines: list[PlotLine] = []
    for label, of_line in _group_rows(rows, with_ideal=with_ideal).items():
        points = {row.world: _point(number) for row in of_line if (number := value(row)) is not None}
        if points:
            y, low, high = zip(*(points[world] for world in sorted(points)), strict=True)
            lines.append(PlotLine(label=label, x=tuple(map(float, sorted(points))), y=y, low=low, high=high))
    if not lines:
        return None
    banded = any(
        low is not None and low != high
        for line in lines
        for low, high in zip(line.low or (), line.high or (), strict=True)
    )
    worlds = sorted({row.world for row in rows})
    if with_ideal:
        best = [100.0 if unit == "%" else float(world) for world in worlds]
        lines.append(PlotLine(label="ideal", x=tuple(map(float, worlds)), y=tuple(best)))
    return LinePlot(
        title=f"{title} over ranks",
        name=name,
        x_axis=RANKS_AXIS,
        y_axis=f"{title[0].lower()}{title[1:]}, {unit}",
        lines=tuple(lines),
        log_x=worlds[-1] > worlds[0],
        log_y=log_y,
        note=" ".join([BANDS_NOTE if banded else NO_BANDS_NOTE, *(_older_notes(rows) if with_ideal else ())]),
    )


def _group_rows(rows: Sequence[ScalingRow], *, with_ideal: bool) -> dict[str, list[ScalingRow]]:
    """Return the rows of each line by its label: one length and grouping of ranks, starting at one rank."""
    groups: dict[str, list[ScalingRow]] = {}
    names = label_rows(rows)
    ones = {names[row]: row for row in rows if row.world == 1}
    for row in rows:
        suffix = f", {row.grouping}" if row.ring < row.world else ""
        invalid = ": invalid" if with_ideal and row.assay_version is None else ""
        line = groups.setdefault(f"{names[row]}{suffix}{invalid}", [])
        line += [ones[names[row]]] if suffix and not line and names[row] in ones else []
        line.append(row)
    return groups


def _older_notes(rows: Sequence[ScalingRow]) -> tuple[str, ...]:
    return (NOT_COMPARABLE,) if any(row.assay_version is None for row in rows) else ()


def _scaled(name: str, factor: float, row: ScalingRow) -> Estimate | None:
    estimate: Estimate | None = getattr(row, name)
    return None if estimate is None else estimate.scaled("", times=factor)


def _point(number: Estimate | float) -> tuple[float, float | None, float | None]:
    return (number.value, number.low, number.high) if isinstance(number, Estimate) else (number, None, None)


def _transfer_percent(row: ScalingRow) -> float | None:
    return None if row.communication_ms is None else 100 * row.communication_ms / row.time_ms.value


def _memory_per_token(row: ScalingRow) -> float | None:
    if row.memory_gib is None or not row.tokens or row.batch is None:
        return None
    return row.memory_gib * 2**20 / (row.batch * row.tokens / row.ring)
