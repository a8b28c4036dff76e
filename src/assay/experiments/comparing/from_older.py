"""Numbers of results in the terms of older tools: tunings, shapes over ranks, speed-ups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from assay.experiments.comparing.values import Name, Number
from assay.experiments.scaling.rows import DEVICE
from assay.experiments.threshold.identity import shared_with
from assay.experiments.threshold.options import TIMES
from assay.experiments.variance.compare import best_times
from assay.store.identity import DTYPE, ISOLATION, Detail, as_identity, details_in, model_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import JsonValue

    from assay.experiments.scaling.rows import Row as Shape
    from assay.experiments.scaling.rows import Span
    from assay.experiments.threshold.form import Results, Row
    from assay.experiments.variance.older_format import Older
    from assay.store.identity import Identity

THRESHOLD = "threshold"
"""The quantity of a recommended threshold: a size, not a measured number."""


def of_tunings(found: Iterable[Older]) -> list[Number]:
    """Return the best time of each kernel on each device."""
    by_name: dict[tuple[Name, str | None], list[Older]] = {}
    for older in found:
        name, model = _tuned(older)
        by_name.setdefault((name, model), []).append(older)
    return [
        _drawn(name, device or None, model, times, "ms")
        for (name, model), several in by_name.items()
        for device, times in best_times(several).items()
    ]


def _tuned(older: Older) -> tuple[Name, str | None]:
    """Return what a tuning is of, as far as its file says, and the model of its device."""
    if older.identity is None:
        return Name(older.kernel, (), "best_time_ms"), None
    work = older.identity.get("workload", {}).get("workload", older.kernel)
    details = tuple(detail for detail in details_in(older.identity) if detail.aspect != "workload")
    return Name(work, details, "best_time_ms"), model_in(older.identity)


def of_shapes(rows: Iterable[Shape], model: str | None) -> list[Number]:
    """Return the time, the transfers and the memory of each shape."""
    return [number for row in rows for number in _shape(row, model)]


def _shape(row: Shape, model: str | None) -> Iterator[Number]:
    setting = dict(row.setting)
    work, model = setting.get("workload", "dilated attention"), setting.get(DEVICE, model)
    details = (
        *(_parameter(name, value) for name, value in row.setting if name not in {"workload", ISOLATION, DEVICE}),
        *([Detail("isolation", ISOLATION, setting[ISOLATION])] if ISOLATION in setting else []),
        *([_parameter("tokens", str(row.asked))] if row.tokens else []),
        _parameter("batch", str(row.batch)),
        Detail("conditions", "ranks", str(row.world)),
        Detail("conditions", "ring", str(row.ring)),
        Detail("conditions", "scaling", "weak" if row.weak else "strong"),
        Detail("conditions", "measured by", "the older tool" if row.by is None else "Assay"),
    )
    yield _spanned(Name(work, details, "time_ms"), model, row.time_ms, "ms")
    for quantity, value, unit in (
        ("communication_ms", row.communication_ms, "ms"),
        ("memory_gib", row.memory_gib, "GiB"),
    ):
        if value is not None and value > 0:
            yield Number(Name(work, details, quantity), None, model, value, unit=unit)


def _spanned(name: Name, model: str | None, span: Span, unit: str) -> Number:
    return Number(name, None, model, span.value, span.low, span.high, unit)


def of_speedups(found: Results) -> list[Number]:
    """Return the speed-up of every point by each time that was taken, from the pairs of each process."""
    where = found.device_info.uuid, found.device_info.device_name
    return [number for row in found.results for number in _speedups(row, *where, found.identity)]


def _speedups(row: Row, device: str | None, model: str | None, identity: Identity | None) -> Iterator[Number]:
    details = (*_details(row.params), *_of_thresholds(identity, row.threshold))
    for time, timed in row.times.items():
        draws = [math.exp(sum(logs) / len(logs)) for logs in timed.log_speedups if logs]
        yield _drawn(Name(row.threshold, details, f"speedup by {time}"), device, model, draws, "×")
    if not row.times:
        reason = row.refused or row.cannot or "not measured"
        for time in TIMES:
            name = Name(row.threshold, details, f"speedup by {time}")
            yield Number(name, device, model, None, unit="×", reason=reason)


def of_recommendation(content: Mapping[str, JsonValue], model: str | None) -> list[Number]:
    """Return the thresholds that a file recommends; without a value where it says never, or that it is not known."""
    entries = content.get("thresholds")
    decided = {
        str(entry.get("key")).rpartition(".")[2]: entry.get("decision")
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    }
    named = {
        str(entry.get("key")).rpartition(".")[2]: str(entry.get("name"))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    }
    identity = as_identity(content.get("identity"))
    recommended = content.get("recommendation")
    numbers: list[Number] = []
    for key, value in (recommended if isinstance(recommended, dict) else {}).items():
        last = key.rpartition(".")[2]
        name, decision = Name(last, _of_thresholds(identity, named.get(last)), THRESHOLD), decided.get(last)
        size = None if decision == "disable" else _positive(value)
        reason = "never" if decision == "disable" else "not known" if size is None else None
        numbers.append(Number(name, None, model, size, reason=reason))
    return numbers


def _of_thresholds(identity: Identity | None, name: str | None) -> tuple[Detail, ...]:
    """Return what must agree for a threshold to be comparable; nothing where the file does not say."""
    if identity is None:
        return ()
    return details_in(shared_with(identity, set() if name is None else {name}))


def of_rows(rows: Iterable[JsonValue], model: str | None) -> list[Number]:
    """Return the speed-up and the two times of every row of the older form; what else a row holds is left aside."""
    return [number for row in rows if isinstance(row, dict) for number in _row(row, model)]


def _row(row: Mapping[str, JsonValue], model: str | None) -> Iterator[Number]:
    params = row.get("params")
    own = params if isinstance(params, dict) else {}
    settings = {"S": row.get("sequence_length"), "w": row.get("window_size")}
    if settings["S"] is None:
        settings = own
    elif row.get("branch") == "compressed":
        sizes = {"l": ("block", 32), "d": ("stride", 16)}
        settings |= {name: row.get(name) or own.get(longer) or usual for name, (longer, usual) in sizes.items()}
    for quantity, unit in (("speedup", "×"), ("masked_ms", "ms"), ("fa2_ms", "ms")):
        value = _positive(row.get(quantity))
        name = Name(str(row.get("branch")), _details(settings), quantity)
        if value is not None:
            ends = (_positive(row.get("low")), _positive(row.get("high"))) if quantity == "speedup" else (None, None)
            yield Number(name, None, model, value, *(ends if None not in ends else (None, None)), unit=unit)


def _positive(value: JsonValue) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < math.inf else None


def _details(params: Mapping[str, object]) -> tuple[Detail, ...]:
    return tuple(_parameter(name, str(value)) for name, value in params.items() if value is not None)


def _parameter(name: str, value: str) -> Detail:
    return Detail("dtype" if name == DTYPE else "parameters", name, value)


def _drawn(name: Name, device: str | None, model: str | None, draws: Iterable[float], unit: str) -> Number:
    """Return the geometric mean of what several processes gave."""
    values = tuple(draws)
    value = math.exp(sum(map(math.log, values)) / len(values)) if values else None
    reason = None if values else "not measured"
    return Number(name, device, model, value, unit=unit, processes=len(values), draws=values, reason=reason)
