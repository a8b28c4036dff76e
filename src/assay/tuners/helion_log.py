"""Read the log of Helion's auto-tuner: a line of CSV when a configuration is begun, another when it has its time.

    timestamp_s,config_index,generation,status,perf_ms,compile_time_s,config
    1.02,1,0,started,,0.83,"Config(block_sizes=[32], num_warps=4)"
    1.31,2,0,ok,0.015520,0.83,"Config(block_sizes=[32], num_warps=4)"

Later versions have other columns before these; they are found by their names.
"""

from __future__ import annotations

import ast
import csv
import io
import math
from typing import Any

from assay.core.errors import TrialFailed
from assay.core.results import Tried
from assay.workloads.helion_common import as_params

COLUMNS = ("status", "perf_ms", "config")
NEVER_ENDED = "it was begun and never had its time"


def read_log(text: str) -> tuple[Tried, ...]:
    """Return every configuration in the order it was first tried, each once, with its last time.

    The last line of a log that was cut off is left out.

    Raises:
        TrialFailed: It is not a log of Helion's.
    """
    rows = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        there = ", ".join(rows.fieldnames or ()) or "none"
        raise TrialFailed(f"Helion's log has no column {missing[0]!r}; those it has: {there}")
    configs: dict[str, Tried] = {}
    for row in rows:
        configs[row["config"]] = _tried(row)
    return tuple(configs.values())


def _tried(row: dict[str, str]) -> Tried:
    config = as_params(read_config(row["config"]))
    if row["status"] == "started":
        return Tried(config=config, reason=NEVER_ENDED)
    try:
        perf_ms = float(row["perf_ms"]) if row["perf_ms"] else math.inf
    except ValueError:
        raise TrialFailed(f"Helion's log has a time of {row['perf_ms']!r}") from None
    if not math.isfinite(perf_ms):
        return Tried(config=config, reason=f"Helion says {row['status']}: it failed, was wrong, or took too long")
    return Tried(config=config, time_us=1000 * perf_ms)


def read_config(text: str) -> dict[str, Any]:
    """Return the settings of a configuration as Helion writes it: ``Config(block_sizes=[32], num_warps=4)``."""
    unreadable = f"Helion's log has a configuration that cannot be read: {text[:80]!r}"
    try:
        call = ast.parse(text, mode="eval").body
        keywords = call.keywords if isinstance(call, ast.Call) else []
        settings = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    except (SyntaxError, ValueError):
        raise TrialFailed(unreadable) from None
    if not settings:
        raise TrialFailed(unreadable)
    return settings
