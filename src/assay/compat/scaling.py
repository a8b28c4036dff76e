"""The JSON file of the older scaling suite, read and written, with intervals added.

    {"config": {"batch_size": 2, "segment_lengths": [...], ...}, "world_size": 4, "timestamp": "20231215_143052",
     "results": [{"seq_length": 16384, "ring_size": 4, "world_size": 4, "rank": 0, "total_time_ms": 43.68, …}, …]}

A file written by Assay has its version under ``assay`` and the numbers of each shape with their intervals under
``assay_shapes``. A file without a version was measured by the older tool, whose rings computed another function than
one rank did: its speedups are invalid. Keys: ``throughput_tokens_per_sec`` is batch · sequence / T of one ring, with
T the slowest rank's time; ``distributed_overhead_ms`` is T less an even share of one rank's time;
``communication_time_ms`` is the run that only transfers; ``memory_*_gb`` are peaks in 10⁹ bytes;
``effective_batch_size`` is the batch. Times are a rank's own medians; ``backward_time_ms`` is total less forward.
Null: not measured.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from assay._version import __version__
from assay.core.errors import BadInput
from assay.experiments.scaling import result_rows
from assay.experiments.scaling.plan import ring_length
from assay.experiments.scaling.result_rows import DEVICE_SETTING, ScalingRow, reported_estimate
from assay.workloads.dilated_attention.problem import parse_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import JsonValue

    from assay.core.results import Estimate
    from assay.experiments.scaling.analysis import AnalysedShape, ScalingAnalysis
    from assay.experiments.scaling.plan import ScalingOptions
    from assay.experiments.scaling.result_rows import RowSetting
    from assay.experiments.scaling.timings import ShapeTiming

    Entry = Mapping[str, JsonValue]

GIB_OF_GB = 1e9 / 2**30
SMALLEST_POSITIVE = math.ulp(0.0)
OLDER_NOTE = "of the older tool, whose rings computed another function than one rank: its speedup means nothing"
"""Said of every row that Assay did not measure."""


@dataclass(frozen=True)
class OlderScalingFile:
    """The content of a file: its shapes, still without speedups; when it was written; and what of it cannot be used."""

    rows: tuple[ScalingRow, ...]
    timestamp: str
    problems: tuple[str, ...]


def parse_results(content: JsonValue, source: str) -> OlderScalingFile:
    """Return the content of a file.

    Raises:
        BadInput: It is not such a file, or holds no time; the sentence has no file name.
    """
    if not isinstance(content, dict):
        raise BadInput("it holds no JSON object with results")
    results = content.get("results")
    if not isinstance(results, list):
        raise BadInput("it has no list of results")
    by_shape: dict[tuple[int, int, int], list[Entry]] = {}
    problems: dict[str, None] = {}
    for entry in results:
        parsed = _parse_shape(entry, content)
        if isinstance(parsed, str):
            problems[parsed] = None
        elif isinstance(entry, dict):
            by_shape.setdefault(parsed, []).append(entry)
    if not by_shape:
        raise BadInput("; ".join(problems) or "its list of results is empty")
    rows = tuple(_parse_row(shape, ranks, content, source) for shape, ranks in sorted(by_shape.items()))
    return OlderScalingFile(rows, str(content.get("timestamp", "")), tuple(problems))


def _parse_shape(entry: JsonValue, content: Entry) -> tuple[int, int, int] | str:
    """Return the shape of one result, or why it cannot be used."""
    if not isinstance(entry, dict):
        return "a result is no JSON object"
    tokens, ring = _parse_count(entry.get("seq_length")), _parse_count(entry.get("ring_size"))
    world = _parse_count(entry.get("world_size", content.get("world_size")))
    if tokens is None or ring is None or world is None:
        return "a result lacks a seq_length, ring_size or world_size of at least 1"
    if world % ring:
        return f"a result has rings of {ring} in a world of {world}"
    if _parse_number(entry.get("total_time_ms")) is None:
        return f"a result of {tokens} tokens over {world} ranks has no total_time_ms"
    return tokens, world, ring


def _parse_row(shape: tuple[int, int, int], ranks: Sequence[Entry], content: Entry, source: str) -> ScalingRow:
    tokens, world, ring = shape
    config = content.get("config")
    config = config if isinstance(config, dict) else {}
    by = content.get("assay")
    batch = _parse_count(config.get("batch_size")) or _parse_count(ranks[0].get("effective_batch_size"))
    time_ms = _slowest_time_ms(ranks, None if batch is None or not isinstance(by, str) else batch * tokens)
    memory = max(_rank_numbers(ranks, "memory_allocated_gb"), default=None)
    row = ScalingRow(
        source=source,
        assay_version=by if isinstance(by, str) else None,
        setting=config_setting(config),
        tokens=tokens,
        batch=batch,
        world=world,
        ring=ring,
        weak=config.get("mode") == "weak",
        time_ms=reported_estimate(time_ms, "ms"),
        throughput=None if batch is None else reported_estimate(world // ring * batch * tokens / time_ms * 1e3, "/s"),
        communication_ms=max(_rank_numbers(ranks, "communication_time_ms", least=0.0), default=None),
        memory_gib=None if memory is None else memory * GIB_OF_GB,
        note=None if isinstance(by, str) else OLDER_NOTE,
    )
    return _add_intervals(row, content) if isinstance(by, str) else row


def _add_intervals(row: ScalingRow, content: Entry) -> ScalingRow:
    """Return a row with the numbers and intervals that Assay wrote of its shape; as it is where there are none."""
    keys = {"seq_length": row.tokens, "world_size": row.world, "ring_size": row.ring}
    shapes = content.get("assay_shapes")
    for entry in shapes if isinstance(shapes, list) else []:
        if isinstance(entry, dict) and all(entry.get(name) == value for name, value in keys.items()):
            note = entry.get("note")
            return replace(
                row,
                time_ms=_parse_estimate(entry, "time_ms", "ms") or row.time_ms,
                throughput=_parse_estimate(entry, "throughput", "/s") or row.throughput,
                speedup=_parse_estimate(entry, "speedup", "×"),
                efficiency=_parse_estimate(entry, "efficiency", ""),
                note=note if isinstance(note, str) else None,
            )
    return row


def _parse_estimate(entry: Entry, name: str, unit: str) -> Estimate | None:
    """Return a number of a shape as ``estimate_to_json`` wrote it; null where it is missing."""
    content = entry.get(name)
    if not isinstance(content, dict) or (value := _parse_number(content.get("value"))) is None:
        return None
    low, high = (_parse_number(content.get(end), -math.inf) for end in ("low", "high"))
    return reported_estimate(value, unit, low, high, over_starts=entry.get("over_starts") is True)


def shape_to_json(row: ScalingRow) -> dict[str, JsonValue]:
    """Return what a row says of its shape beyond the older tool's keys."""
    return {
        "seq_length": row.tokens,
        "world_size": row.world,
        "ring_size": row.ring,
        "over_starts": row.is_over_starts,
        "note": row.note,
        **{name: estimate_to_json(getattr(row, name)) for name in ("time_ms", "throughput", "speedup", "efficiency")},
    }


def estimate_to_json(estimate: Estimate | None) -> JsonValue:
    """Return a number and its interval as plain data; null where there is none."""
    return None if estimate is None else estimate.model_dump(include={"value", "low", "high"})


def config_setting(config: Entry) -> RowSetting:
    """Return what two results must have in common, as words."""

    def write(value: JsonValue) -> str:
        if isinstance(value, list):
            return "/".join(map(str, value))
        return value if isinstance(value, str) else json.dumps(value)

    return tuple((name, write(config[name])) for name in result_rows.SETTING_KEYS if config.get(name) is not None)


def _slowest_time_ms(ranks: Sequence[Entry], tokens: int | None) -> float:
    """Return the time of the slowest rank: in Assay's files, what its throughput was reckoned from.

    Each rank has its own median there, and the slowest is not the same in every call.
    """
    rates = _rank_numbers(ranks, "throughput_tokens_per_sec")
    return tokens / min(rates) * 1e3 if tokens is not None and rates else max(_rank_numbers(ranks, "total_time_ms"))


def _rank_numbers(ranks: Sequence[Entry], name: str, least: float = SMALLEST_POSITIVE) -> list[float]:
    """Return what ranks say of something, as far as it is a number of at least so much."""
    return [number for rank in ranks if (number := _parse_number(rank.get(name), least)) is not None]


def _parse_number(value: JsonValue, least: float = SMALLEST_POSITIVE) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= least else None


def _parse_count(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


RESULTS_FILE = "older/scaling.json"
GB_OF_MIB = 2**20 / 1e9


def build_files(options: ScalingOptions, analysis: ScalingAnalysis, model: str) -> dict[str, str]:
    """Return the text of the older file, by its path within the run folder; nothing of another workload."""
    if not options.is_attention or not analysis.timings.attempts:
        return {}
    first = min(record.window.started_at for _, record in analysis.timings.attempts)
    shapes = result_rows.build_run_rows(options, analysis, RESULTS_FILE, __version__, model)
    content: dict[str, JsonValue] = {
        "assay": __version__,
        "assay_shapes": [shape_to_json(row) for row in shapes],
        "config": {**older_config(options), DEVICE_SETTING: model},
        "world_size": max(1, *options.worlds),
        "timestamp": datetime.fromisoformat(first).strftime("%Y%m%d_%H%M%S"),
        "results": [
            row for result in analysis.all if result.facts for row in older_rank_rows(options, analysis, result)
        ],
    }
    return {RESULTS_FILE: json.dumps(content, indent=2, ensure_ascii=False) + "\n"}


def older_config(options: ScalingOptions) -> dict[str, JsonValue]:
    """Return what was asked for, under the older tool's names."""
    params = options.subject.params
    heads, dim = params["heads"], params["dim"]
    return {
        "batch_size": params["batch"],
        "seq_lengths": list(options.sequences),
        "embed_dim": heads * dim if isinstance(heads, int) and isinstance(dim, int) else None,
        "num_heads": heads,
        "segment_lengths": list(parse_numbers("segments", params["segments"])),
        "dilation_rates": list(parse_numbers("rates", params["rates"])),
        "ring_sizes": list(options.rings),
        "warmup_runs": options.warmup_runs,
        "benchmark_runs": options.benchmark_runs,
        "use_flash_attention": params["backend"] != "math",
        "backend": params["backend"],
        "isolation": options.isolation,
        "num_kv_heads": None if params["key_heads"] == heads else params["key_heads"],
        "offset": None if params["offset"] == "modulo" else params["offset"],
        "dtype": params["dtype"],
        "profile": options.profile,
        "causal": params["causal"],
        "mode": options.mode,
        "repeat": options.repeat,
    }


def older_rank_rows(options: ScalingOptions, analysis: ScalingAnalysis, result: AnalysedShape) -> list[JsonValue]:
    """Return a row for each rank of a shape."""
    shape = result.shape
    timings = list(analysis.timings.timings_of("ring", shape).values())
    alone = next(one for one in analysis.alone if one.shape == shape.alone)
    slowest, whole_time, batch = result["time"], alone["time"], options.subject.params["batch"]
    length = ring_length(options, shape)
    divided = 1 if options.mode == "weak" else shape.ring
    whole: dict[str, JsonValue] = {
        "throughput_tokens_per_sec": None,
        "effective_batch_size": batch,
        "distributed_overhead_ms": None,
    }
    if slowest is not None and isinstance(batch, int):
        whole["throughput_tokens_per_sec"] = batch * length / (slowest.value / 1e6)
    if slowest is not None and whole_time is not None:
        whole["distributed_overhead_ms"] = (slowest.value - whole_time.value / divided) / 1e3
    memory = {m.rank: m for m in result.facts.memory} if result.facts is not None else {}
    sent = any("communication" in timing.plan.names for timing in timings)
    rank_rows: list[JsonValue] = []
    for rank in range(shape.world):
        forward, total = _median_ms(timings, "forward", rank), _median_ms(timings, "total", rank)
        held = memory.get(rank)
        rank_rows.append(
            {
                "seq_length": length,
                "ring_size": shape.ring,
                "world_size": shape.world,
                "rank": rank,
                "forward_time_ms": forward,
                "backward_time_ms": None if forward is None or total is None else total - forward,
                "total_time_ms": total,
                "memory_allocated_gb": _mib_to_gb(held.allocated_mib if held else None),
                "memory_reserved_gb": _mib_to_gb(held.reserved_mib if held else None),
                **whole,
                "communication_time_ms": _median_ms(timings, "communication", rank) if sent else 0.0,
            }
        )
    return rank_rows


def _median_ms(timings: list[ShapeTiming], name: str, rank: int) -> float | None:
    """Return a rank's median over all repeats."""
    mine = [timing.by_rank[name][rank] for timing in timings if name in timing.by_rank]
    return float(np.median(np.concatenate(mine))) / 1e3 if mine else None


def _mib_to_gb(mib: float | None) -> float | None:
    return None if mib is None else mib * GB_OF_MIB
