"""The file that an older analyser read and nothing wrote: one kernel tuned on one device.

    {"kernel_name": "softmax", "best_config": {"block": 64}, "best_time_ms": 0.1,
     "all_benchmark_times": [{"config": {"block": 64}, "time_ms": 0.1, "repeats_ms": [0.1, 0.11]}, …],
     "num_configs_tested": 24, "autotune_duration_seconds": 3.2}

``all_benchmark_times`` of older files may hold bare numbers, each of another configuration. What Assay writes has
``repeats_ms`` (the same configuration timed in several processes), ``cv_of_samples`` (of each of these processes),
``timed_by``, ``picks`` (what each of several tunings chose), ``device`` and ``identity`` (parameters, isolation and all
else that must agree before two results may be compared) beside the six keys.
"""

from __future__ import annotations

import json
import math
from statistics import median
from typing import TYPE_CHECKING

from pydantic import JsonValue

from assay.core.errors import BadInput
from assay.core.values import Value
from assay.store.identity import Identity, as_identity

if TYPE_CHECKING:
    from collections.abc import Mapping

Config = dict[str, JsonValue]
"""A configuration as a tuner writes it; values may be lists."""

KEYS = (
    "kernel_name",
    "best_config",
    "best_time_ms",
    "all_benchmark_times",
    "num_configs_tested",
    "autotune_duration_seconds",
)


class Pick(Value):
    """What one tuning chose, and the time it saw. Null: it does not say."""

    config: Config | None
    time_ms: float | None
    tuning_s: float | None = None


class Repeats(Value):
    """One configuration timed in several processes: the time in each, and the scatter within each where it is known.

    ``by`` says who timed it: times of Assay's own instruments and of a tuner are not repeats of each other.
    """

    config: Config | None
    times_ms: tuple[float, ...]
    cvs: tuple[float, ...] = ()
    by: str | None = None


class Older(Value):
    """One kernel on one device, as a file tells it; ``notes`` say what of it could not be used.

    ``identity`` is what was measured: parameters, configuration, schedule and so on. Null: the file does not say.
    """

    kernel: str
    device: str | None = None
    picks: tuple[Pick, ...] = ()
    timed: tuple[Repeats, ...] = ()
    configs_tested: int | None = None
    identity: Identity | None = None
    notes: tuple[str, ...] = ()


def parse(content: JsonValue) -> Older:
    """Return what a file says.

    Raises:
        BadInput: It is not such a file, or holds nothing that can be used; the sentence has no file name.
    """
    if not isinstance(content, dict):
        raise BadInput("it holds no JSON object with the keys of a tuning result")
    kernel = content.get("kernel_name")
    if not isinstance(kernel, str) or not kernel:
        raise BadInput("it has no kernel_name" if "kernel_name" not in content else "its kernel_name is not a name")
    notes: list[str] = []
    missing = [key for key in KEYS if key not in content]
    if missing:
        notes.append(f"it lacks {', '.join(missing)}")
    picks = _picks(content, notes)
    timed = _timed(content.get("all_benchmark_times"), notes)
    if not picks and not timed:
        raise BadInput("; ".join([*notes, "nothing in it can be used"]))
    tested, device = content.get("num_configs_tested"), content.get("device")
    return Older(
        kernel=kernel,
        device=device if isinstance(device, str) else None,
        picks=picks,
        timed=timed,
        configs_tested=tested if isinstance(tested, int) else None,
        identity=as_identity(content.get("identity")),
        notes=tuple(notes),
    )


def _picks(content: Mapping[str, JsonValue], notes: list[str]) -> tuple[Pick, ...]:
    """Return every tuning that the file tells of; without a list of them, the one it is about."""
    several = content.get("picks")
    entries = several if isinstance(several, list) else [dict(content)]
    picks: list[Pick] = []
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        config, time_ms = entry.get("best_config"), _time(entry.get("best_time_ms"))
        if time_ms is None and entry.get("best_time_ms") is not None:
            notes.append(f"a best_time_ms of {entry['best_time_ms']!r} is no time")
        if config is not None and not isinstance(config, dict):
            notes.append("its best_config is not an object of names and values")
            config = None
        if config is not None or time_ms is not None:
            picks.append(Pick(config=config, time_ms=time_ms, tuning_s=_time(entry.get("autotune_duration_seconds"))))
    return tuple(picks)


def _timed(entries: JsonValue, notes: list[str]) -> tuple[Repeats, ...]:
    """Return the configurations with their times; bare numbers name no configuration and are only counted."""
    if entries is None:
        return ()
    if not isinstance(entries, list):
        notes.append("its all_benchmark_times is not a list")
        return ()
    bare = sum(isinstance(entry, int | float) for entry in entries)
    if bare > 1:
        notes.append(f"its {bare} times are of different configurations, and their scatter is no variance")
    results: list[Repeats] = []
    useless = 0
    for entry in entries:
        if isinstance(entry, dict):
            times = _times(entry.get("repeats_ms")) or _times([entry.get("time_ms")])
            config, by = entry.get("config"), entry.get("timed_by")
            useless += not times
            if times and (config is None or isinstance(config, dict)):
                cvs, by = _times(entry.get("cv_of_samples")), by if isinstance(by, str) else None
                results.append(Repeats(config=config, times_ms=times, cvs=cvs, by=by))
    if useless:
        notes.append(f"{useless} of its configurations have no time above zero")
    return tuple(results)


def _times(values: JsonValue) -> tuple[float, ...]:
    return tuple(t for value in values if (t := _time(value)) is not None) if isinstance(values, list) else ()


def _time(value: JsonValue) -> float | None:
    """Return a time that can be divided by; null for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < math.inf else None


def as_json(older: Older) -> dict[str, JsonValue]:
    """Return what the file holds; the first six keys are those of the older tool, summed up over several tunings."""
    best = typical(older.picks)
    timed: list[JsonValue] = [
        {
            "config": repeats.config,
            "time_ms": median(repeats.times_ms),
            "repeats_ms": list(repeats.times_ms),
            "cv_of_samples": list(repeats.cvs),
            "timed_by": repeats.by,
        }
        for repeats in older.timed
    ]
    durations = [pick.tuning_s for pick in older.picks if pick.tuning_s is not None]
    return {
        "kernel_name": older.kernel,
        "best_config": best.config if best else None,
        "best_time_ms": best.time_ms if best else median(older.timed[0].times_ms) if older.timed else None,
        "all_benchmark_times": timed,
        "num_configs_tested": older.configs_tested,
        "autotune_duration_seconds": median(durations) if durations else None,
        "device": older.device,
        "identity": None if older.identity is None else {name: dict(values) for name, values in older.identity.items()},
        "picks": [
            {"best_config": p.config, "best_time_ms": p.time_ms, "autotune_duration_seconds": p.tuning_s}
            for p in older.picks
        ],
    }


def typical(picks: tuple[Pick, ...]) -> Pick | None:
    """Return the configuration that was picked most often, with the median of its times; null where none was picked."""
    configs = [key_of(pick.config) for pick in picks if pick.config is not None]
    if not configs:
        return None
    most = max(dict.fromkeys(configs), key=configs.count)
    same = [pick for pick in picks if pick.config is not None and key_of(pick.config) == most]
    times = [pick.time_ms for pick in same if pick.time_ms is not None]
    return Pick(config=same[0].config, time_ms=median(times) if times else None)


def key_of(config: Config | None) -> str:
    """Return a text that is the same for the same configuration, whatever the order of its names."""
    return json.dumps(config, sort_keys=True)
