"""Results that were never measured, in the format of an older tool: times of which the truth is known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ALONE_MS = 20.0
"""What one rank takes for 16384 tokens; twice as much for twice as many."""


def content(
    *,
    assay: str | None = "0.1.0",
    worlds: tuple[int, ...] = (1, 2, 4, 8),
    lengths: tuple[int, ...] = (16384, 32768),
    batch: int = 3,
    kept: float = 0.9,
    timestamp: str = "20260101_120000",
    known_to: float | None = None,
    **config: Any,
) -> dict[str, Any]:
    """Return a file in which each doubling of the ranks keeps so much of the efficiency.

    ``known_to``: with intervals over starts, half of which are so wide; null: a file without intervals.
    """
    rows = [
        row
        for world in worlds
        for length in lengths
        for row in ranks(length, world, world, time_ms(length, world, kept), batch)
    ]
    settings = {
        "batch_size": batch,
        "seq_lengths": list(lengths),
        "embed_dim": 768,
        "num_heads": 12,
        "segment_lengths": [2048, 4096, 8192],
        "dilation_rates": [1, 2, 4],
        "dtype": "float16",
        **config,
    }
    found = {"config": settings, "world_size": max(worlds), "timestamp": timestamp, "results": rows}
    if known_to is not None:
        found["assay_shapes"] = [shape(length, world, kept, known_to) for world in worlds for length in lengths]
    return found if assay is None else {"assay": assay, **found}


def shape(length: int, world: int, kept: float, known_to: float) -> dict[str, Any]:
    """Return what Assay writes of a shape beyond the older tool's keys."""
    share = kept ** (world.bit_length() - 1)

    def span(value: float) -> dict[str, float]:
        return {"value": value, "low": value * (1 - known_to), "high": value * (1 + known_to)}

    return {
        "seq_length": length, "world_size": world, "ring_size": world, "over_starts": True, "note": None,
        "time_ms": span(time_ms(length, world, kept)), "throughput": None, "speedup": span(world * share),
        "efficiency": span(share),
    }  # fmt: skip


def time_ms(length: int, world: int, kept: float) -> float:
    """Return what so many ranks take."""
    return ALONE_MS * length / 16384 / world / kept ** (world.bit_length() - 1)


def ranks(length: int, world: int, ring: int, taken_ms: float, batch: int = 3) -> list[dict[str, Any]]:
    """Return a row for each rank of a shape; all but the last are a little faster."""
    return [
        {
            "seq_length": length,
            "ring_size": ring,
            "world_size": world,
            "rank": rank,
            "forward_time_ms": taken_ms * 0.3,
            "backward_time_ms": taken_ms * 0.7,
            "total_time_ms": taken_ms * (1 if rank == world - 1 else 0.98),
            "memory_allocated_gb": 2.0 * length / 16384 / ring + 0.1 * rank,
            "memory_reserved_gb": 3.0,
            "throughput_tokens_per_sec": batch * length / taken_ms * 1e3,
            "effective_batch_size": batch,
            "distributed_overhead_ms": 0.1,
            "communication_time_ms": 0.0 if ring == 1 else taken_ms * 0.1,
        }
        for rank in range(world)
    ]


def write(path: Path, **told: Any) -> Path:
    """Write such a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content(**told)), encoding="utf-8")
    return path
