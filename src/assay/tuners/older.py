"""Read what a tuner wrote in the form of the older analyser: its choice, its time, and the times of all it tried.

``all_benchmark_times`` may be a list of milliseconds, a list of ``{"config": …, "time_ms": …}``, or an object from
configurations to milliseconds.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from assay.core.errors import TrialFailed
from assay.core.results import Tried
from assay.tuners.base import Found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.values import Params

KEYS = (
    "kernel_name",
    "best_config",
    "best_time_ms",
    "all_benchmark_times",
    "num_configs_tested",
    "autotune_duration_seconds",
)
NO_TIME = "it has no time"


def read_found(text: str) -> Found:
    """Return what was found.

    Raises:
        TrialFailed: It is not of that form; what is wrong with it.
    """
    try:
        output = json.loads(text)
    except ValueError as error:
        raise TrialFailed(f"what the tuner wrote is not JSON: {error}") from None
    if not isinstance(output, dict):
        raise TrialFailed(f"what the tuner wrote is no object, but {type(output).__name__}")
    missing = [name for name in KEYS if name not in output]
    if missing:
        raise TrialFailed(f"what the tuner wrote lacks {', '.join(missing)}")
    tried = tuple(_all_tried(output["all_benchmark_times"]))
    notes = [f"kernel {output['kernel_name']}"]
    if output["num_configs_tested"] != len(tried):
        notes.append(f"it says that it tested {output['num_configs_tested']} configurations, and lists {len(tried)}")
    tuning_s = _number(output["autotune_duration_seconds"], "autotune_duration_seconds")
    if output["best_config"] is None:
        return Found(None, tried=tried, tuning_s=tuning_s, reason="it chose no configuration", notes=tuple(notes))
    best_us = 1000 * _number(output["best_time_ms"], "best_time_ms")
    return Found(as_params(output["best_config"]), best_us, tried, tuning_s=tuning_s, notes=tuple(notes))


def as_params(config: Any) -> Params:
    """Return a configuration as plain values: what is nested becomes JSON text, what has no names gets one."""
    if isinstance(config, str):
        try:
            read = json.loads(config)
        except ValueError:
            read = None
        config = read if isinstance(read, dict) else {"config": config}
    if not isinstance(config, dict):
        config = {"config": config}
    return {str(name): value if _is_plain(value) else json.dumps(value) for name, value in config.items()}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _number(value: Any, name: str) -> float:
    if not _is_time(value):
        raise TrialFailed(f"what the tuner wrote has a {name} of {value!r}, which is no time")
    return float(value)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _all_tried(times: Any) -> Iterator[Tried]:
    if isinstance(times, dict):
        yield from (_tried(as_params(config), time_ms) for config, time_ms in times.items())
    elif isinstance(times, list):
        for index, entry in enumerate(times):
            if isinstance(entry, dict):
                yield _tried(as_params(entry.get("config", {"number": index})), entry.get("time_ms"))
            else:
                yield _tried({"number": index}, entry)
    else:
        raise TrialFailed(f"what the tuner wrote has all_benchmark_times of type {type(times).__name__}")


def _tried(config: Params, time_ms: Any) -> Tried:
    if not _is_time(time_ms):
        return Tried(config=config, reason=NO_TIME)
    return Tried(config=config, time_us=1000 * float(time_ms))
