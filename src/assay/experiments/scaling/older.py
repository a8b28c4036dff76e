"""The same results in the older tool's JSON: a row for each rank of each shape.

What its keys mean here: ``throughput_tokens_per_sec`` is batch · sequence / T of one ring, with T the slowest rank's
time; ``distributed_overhead_ms`` is T less an even share of one rank's time; ``communication_time_ms`` is of the run
that only transfers; ``memory_*_gb`` are peaks in 10⁹ bytes; ``effective_batch_size`` is the batch. Times are a rank's
own medians; ``backward_time_ms`` is total less forward. Null: not measured.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from assay._version import __version__
from assay.experiments.scaling.older_rows import written_shape
from assay.experiments.scaling.problem import length_of
from assay.experiments.scaling.rows import DEVICE
from assay.experiments.scaling.run_rows import rows_of
from assay.workloads.dilated_attention.problem import numbers

if TYPE_CHECKING:
    from pydantic import JsonValue

    from assay.experiments.scaling.analysis import Analysis, Scaled
    from assay.experiments.scaling.options import ScalingOptions
    from assay.experiments.scaling.timings import Timing

FILE = "older/scaling.json"
GB_OF_MIB = 2**20 / 1e9


def older_files(options: ScalingOptions, found: Analysis, model: str) -> dict[str, str]:
    """Return the text of the older file, by its path within the run folder; nothing of another workload."""
    if not options.is_attention or not found.laid.tried:
        return {}
    first = min(record.window.started_at for _, record in found.laid.tried)
    shapes = rows_of(options, found, FILE, __version__, model)
    content: dict[str, JsonValue] = {
        "assay": __version__,
        "assay_shapes": [written_shape(row) for row in shapes],
        "config": {**config(options), DEVICE: model},
        "world_size": max(1, *options.worlds),
        "timestamp": datetime.fromisoformat(first).strftime("%Y%m%d_%H%M%S"),
        "results": [row for result in found.all if result.facts is not None for row in rows(options, found, result)],
    }
    return {FILE: json.dumps(content, indent=2, ensure_ascii=False) + "\n"}


def config(options: ScalingOptions) -> dict[str, JsonValue]:
    """Return what was asked for, under the older tool's names."""
    params = options.subject.params
    heads, dim = params["heads"], params["dim"]
    return {
        "batch_size": params["batch"],
        "seq_lengths": list(options.sequences),
        "embed_dim": heads * dim if isinstance(heads, int) and isinstance(dim, int) else None,
        "num_heads": heads,
        "segment_lengths": list(numbers("segments", params["segments"])),
        "dilation_rates": list(numbers("rates", params["rates"])),
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


def rows(options: ScalingOptions, found: Analysis, each: Scaled) -> list[JsonValue]:
    """Return a row for each rank of a shape."""
    shape = each.shape
    timings = list(found.laid.of("ring", shape).values())
    alone = next(one for one in found.alone if one.shape == shape.alone)
    total_us, alone_us, batch = each["time"].value, alone["time"].value, options.subject.params["batch"]
    length = length_of(options, shape)
    divided = 1 if options.mode == "weak" else shape.ring
    whole: dict[str, JsonValue] = {
        "throughput_tokens_per_sec": None,
        "effective_batch_size": batch,
        "distributed_overhead_ms": None,
    }
    if total_us is not None and isinstance(batch, int):
        whole["throughput_tokens_per_sec"] = batch * length / (total_us / 1e6)
    if total_us is not None and alone_us is not None:
        whole["distributed_overhead_ms"] = (total_us - alone_us / divided) / 1e3
    memory = {m.rank: m for m in each.facts.memory} if each.facts is not None else {}
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
                "memory_allocated_gb": _gb(held.allocated_mib if held else None),
                "memory_reserved_gb": _gb(held.reserved_mib if held else None),
                **whole,
                "communication_time_ms": _communication_ms(timings, rank),
            }
        )
    return rank_rows


def _median_ms(timings: list[Timing], name: str, rank: int) -> float | None:
    """Return a rank's median over all repeats."""
    mine = [timing.by_rank[name][rank] for timing in timings if name in timing.by_rank]
    return float(np.median(np.concatenate(mine))) / 1e3 if mine else None


def _communication_ms(timings: list[Timing], rank: int) -> float | None:
    """Return a rank's median of transferring only; 0 where nothing is sent."""
    sent = any("communication" in timing.plan.names for timing in timings)
    return _median_ms(timings, "communication", rank) if sent else 0.0


def _gb(mib: float | None) -> float | None:
    return None if mib is None else mib * GB_OF_MIB
