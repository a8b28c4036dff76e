"""One measured shape of a result, of a run or read from a file: the input of figures, comparisons and the gate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.core.results import Estimate
from assay.experiments.scaling.plan import has_transfers
from assay.experiments.scaling.timings import is_over_starts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.results import Scope
    from assay.core.values import Params
    from assay.experiments.scaling.analysis import AnalysedShape, ScalingAnalysis
    from assay.experiments.scaling.plan import ScalingOptions

DEVICE_SETTING = "device_model"
"""In a setting: the model of the GPUs, or of the host."""

RowSetting = tuple[tuple[str, str], ...]
"""What else must be the same for two times to be held against each other: names and values."""

SETTING_KEYS = (
    "embed_dim", "num_heads", "num_kv_heads", "segment_lengths", "dilation_rates", "dtype", "causal", "offset",
    "backend", "isolation", DEVICE_SETTING,
)  # fmt: skip
"""What must be the same in two files, beside the batch, for their times to be held against each other."""


def reported_estimate(
    value: float, unit: str, low: float | None = None, high: float | None = None, *, over_starts: bool = False
) -> Estimate:
    """Return a number as its source reports it; without an interval where the source has none."""
    bounds = (low, high) if low is not None and high is not None else (None, None)
    scope: Scope = "run" if over_starts else "process"
    return Estimate(
        value=value, low=bounds[0], high=bounds[1], unit=unit, scope=scope, method="as the source reports it", n=1
    )


@dataclass(frozen=True)
class ScalingRow:
    """A sequence over so many ranks, in rings of ``ring`` of them. Null: the source does not say, or it cannot be said.

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
    last = {row.key: row for row in rows}
    return tuple(sorted(last.values(), key=_sort_key))


def _sort_key(row: ScalingRow) -> tuple[object, ...]:
    return (row.assay_version is None, row.setting, row.requested_length, row.batch or 0, row.world, row.ring)


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
    """Return what each row is of, whatever its ranks, in words: its length, and what else differs among the rows."""
    differing = [name for name in dict.fromkeys(n for row in rows for n, _ in row.setting) if _differs(name, rows)]
    several = len({row.batch for row in rows}) > 1
    return {row: _build_label(row, differing, several=several) for row in rows}


def label_with_ranks(row: ScalingRow, label: str) -> str:
    """Return a label with the ranks: "65,536 tokens on 4 ranks, rings of 2"."""
    ranks = f"{row.world} rank{'' if row.world == 1 else 's'}"
    return f"{label} on {ranks}{f', {row.grouping}' if row.ring < row.world else ''}"


def _differs(name: str, rows: Sequence[ScalingRow]) -> bool:
    return len({dict(row.setting).get(name) for row in rows}) > 1


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
    setting = (
        *_run_setting(options, options.subject.params),
        ("isolation", options.isolation),
        (DEVICE_SETTING, model),
    )
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
        memory_gib=_max_gib([] if result.facts is None else [m.allocated_mib for m in result.facts.memory]),
        note=None if one_rank else result.missing_reason("efficiency"),
    )


def _transfer_ms(options: ScalingOptions, result: AnalysedShape) -> float | None:
    """Return what the transfers take by themselves; 0 where nothing is sent, null where it is not known."""
    if options.is_attention and not has_transfers(options, result.shape):
        return 0.0
    communication = result["communication"]
    return None if communication is None else communication.value / US_OF_MS


def _max_gib(mib: Sequence[float | None]) -> float | None:
    return max((value / MIB_OF_GIB for value in mib if value is not None), default=None)


def _run_setting(options: ScalingOptions, params: Params) -> RowSetting:
    """Return the parameters by the names that the older files have for them; of another workload, all of them."""
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
