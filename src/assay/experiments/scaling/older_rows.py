"""The JSON of an older tool, as it and Assay write it: a row to a rank of each shape.

    {"config": {"batch_size": 2, "segment_lengths": [...], ...}, "world_size": 4, "timestamp": "20231215_143052",
     "results": [{"seq_length": 16384, "ring_size": 4, "world_size": 4, "rank": 0, "total_time_ms": 43.68, …}, …]}

What Assay wrote has its version under ``assay``, and the numbers of each shape with their intervals under
``assay_shapes``, so that a file says the same as the run it is of. What has no version was measured by the older tool,
whose rings computed another function than one rank did: its speedups mean nothing. Pure: from JSON values to rows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.experiments.scaling.rows import DEVICE, Row, Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import JsonValue

    from assay.experiments.scaling.rows import Setting

    Entry = Mapping[str, JsonValue]

SETTING = (
    "embed_dim", "num_heads", "num_kv_heads", "segment_lengths", "dilation_rates", "dtype", "causal", "offset",
    "backend", "isolation", DEVICE,
)  # fmt: skip
"""What must be the same in two files, beside the batch, for their times to be held against each other."""

GIB_OF_GB = 1e9 / 2**30
MORE_THAN_0 = math.ulp(0.0)
OLDER = "of the older tool, whose rings computed another function than one rank: its speedup means nothing"
"""Said of every row that Assay did not measure."""


@dataclass(frozen=True)
class Read:
    """What a file tells: its shapes, still without speedups; when it was written; and what of it cannot be used."""

    rows: tuple[Row, ...]
    timestamp: str
    problems: tuple[str, ...]


def parse(content: JsonValue, source: str) -> Read:
    """Return what a file tells.

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
        parsed = _shape(entry, content)
        if isinstance(parsed, str):
            problems[parsed] = None
        elif isinstance(entry, dict):
            by_shape.setdefault(parsed, []).append(entry)
    if not by_shape:
        raise BadInput("; ".join(problems) or "its list of results is empty")
    rows = tuple(_row(shape, ranks, content, source) for shape, ranks in sorted(by_shape.items()))
    return Read(rows, str(content.get("timestamp", "")), tuple(problems))


def _shape(entry: JsonValue, content: Entry) -> tuple[int, int, int] | str:
    """Return the shape of one result, or why it cannot be used."""
    if not isinstance(entry, dict):
        return "a result is no JSON object"
    tokens, ring = _count(entry.get("seq_length")), _count(entry.get("ring_size"))
    world = _count(entry.get("world_size", content.get("world_size")))
    if tokens is None or ring is None or world is None:
        return "a result lacks a seq_length, ring_size or world_size of at least 1"
    if world % ring:
        return f"a result has rings of {ring} in a world of {world}"
    if _number(entry.get("total_time_ms")) is None:
        return f"a result of {tokens} tokens over {world} ranks has no total_time_ms"
    return tokens, world, ring


def _row(shape: tuple[int, int, int], ranks: Sequence[Entry], content: Entry, source: str) -> Row:
    tokens, world, ring = shape
    config = content.get("config")
    config = config if isinstance(config, dict) else {}
    by = content.get("assay")
    batch = _count(config.get("batch_size")) or _count(ranks[0].get("effective_batch_size"))
    time_ms = _time_ms(ranks, None if batch is None or not isinstance(by, str) else batch * tokens)
    memory = max(_numbers(ranks, "memory_allocated_gb"), default=None)
    row = Row(
        source=source,
        by=by if isinstance(by, str) else None,
        setting=setting_of(config),
        tokens=tokens,
        batch=batch,
        world=world,
        ring=ring,
        weak=config.get("mode") == "weak",
        over_starts=False,
        time_ms=Span(time_ms),
        throughput=None if batch is None else Span(world // ring * batch * tokens / time_ms * 1e3),
        communication_ms=max(_numbers(ranks, "communication_time_ms", least=0.0), default=None),
        memory_gib=None if memory is None else memory * GIB_OF_GB,
        note=None if isinstance(by, str) else OLDER,
    )
    return _with_intervals(row, content) if isinstance(by, str) else row


def _with_intervals(row: Row, content: Entry) -> Row:
    """Return a row with the numbers and intervals that Assay wrote of its shape; as it is where there are none."""
    keys = {"seq_length": row.tokens, "world_size": row.world, "ring_size": row.ring}
    shapes = content.get("assay_shapes")
    for entry in shapes if isinstance(shapes, list) else []:
        if isinstance(entry, dict) and all(entry.get(name) == value for name, value in keys.items()):
            note = entry.get("note")
            return replace(
                row,
                over_starts=entry.get("over_starts") is True,
                time_ms=_span(entry.get("time_ms")) or row.time_ms,
                throughput=_span(entry.get("throughput")) or row.throughput,
                speedup=_span(entry.get("speedup")),
                efficiency=_span(entry.get("efficiency")),
                note=note if isinstance(note, str) else None,
            )
    return row


def _span(content: JsonValue) -> Span | None:
    """Return a number and its interval as ``written_span`` wrote them; null where they are not there."""
    if not isinstance(content, dict) or (value := _number(content.get("value"))) is None:
        return None
    low, high = (_number(content.get(end), -math.inf) for end in ("low", "high"))
    return Span(value) if low is None or high is None else Span(value, low, high)


def written_shape(row: Row) -> dict[str, JsonValue]:
    """Return what a row says of its shape beyond the older tool's keys."""
    return {
        "seq_length": row.tokens,
        "world_size": row.world,
        "ring_size": row.ring,
        "over_starts": row.over_starts,
        "note": row.note,
        **{name: written_span(getattr(row, name)) for name in ("time_ms", "throughput", "speedup", "efficiency")},
    }


def written_span(span: Span | None) -> JsonValue:
    """Return a number and its interval as plain data; null where there is none."""
    return None if span is None else {"value": span.value, "low": span.low, "high": span.high}


def setting_of(config: Entry) -> Setting:
    """Return what two results must have in common, as words."""
    values = {name: config[name] for name in SETTING if config.get(name) is not None}
    return tuple((name, _written(value)) for name, value in values.items())


def _written(value: JsonValue) -> str:
    if isinstance(value, list):
        return "/".join(str(item) for item in value)
    return value if isinstance(value, str) else json.dumps(value)


def _time_ms(ranks: Sequence[Entry], tokens: int | None) -> float:
    """Return the time of the slowest rank: in Assay's files, what its throughput was reckoned from.

    Each rank has its own median there, and the slowest is not the same in every call.
    """
    rates = _numbers(ranks, "throughput_tokens_per_sec")
    return tokens / min(rates) * 1e3 if tokens is not None and rates else max(_numbers(ranks, "total_time_ms"))


def _numbers(ranks: Sequence[Entry], name: str, least: float = MORE_THAN_0) -> list[float]:
    """Return what ranks say of something, as far as it is a number of at least so much."""
    return [number for rank in ranks if (number := _number(rank.get(name), least)) is not None]


def _number(value: JsonValue, least: float = MORE_THAN_0) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= least else None


def _count(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None
