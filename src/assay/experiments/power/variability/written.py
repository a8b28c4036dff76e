"""Every GPU as a line of a CSV file: where it sits, its numbers, and what it is called for."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

import numpy as np

from assay.experiments.power.variability.measures import MEASURES, TIME
from assay.stats.longrun import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.experiments.power.variability.analysis import Looked
    from assay.experiments.power.variability.measures import Numbers

CSV = "gpus.csv"


def gpus_csv(all_looked: Sequence[Looked]) -> str:
    """Return all GPUs of all fleets; an empty cell was not measured."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["workload", "model", "uuid", "host", "rack", "slot", "rows"]
        + ["time_us", "time_low_us", "time_high_us", "against_fleet", "against_peers", "peers"]
        + [measure.column for measure in MEASURES if measure != TIME]
        + ["stands_out"]
    )
    for looked in all_looked:
        writer.writerows(_rows(looked))
    return buffer.getvalue()


def _rows(looked: Looked) -> list[list[object]]:
    fleet, times, centres = looked.fleet, looked.numbers[TIME.name], looked.centres[TIME.name]
    words: dict[int, list[str]] = {}
    for one in looked.outliers:
        words.setdefault(one.gpu, []).append(one.word if one.verdict == "yes" else f"{one.word}?")
    low, high = _ends(times)
    counts = np.bincount(fleet.gpu, minlength=len(fleet.gpus))
    others = [looked.numbers.get(measure.name) for measure in MEASURES if measure != TIME]
    rows: list[list[object]] = []
    for index, gpu in enumerate(fleet.gpus):
        value = float(times.value[index])
        rows.append(
            [
                *(fleet.kind.work, fleet.kind.model, gpu.uuid, gpu.host, gpu.rack or "", gpu.slot, int(counts[index])),
                *(_told(np.exp(log_time)) for log_time in (value, low[index], high[index])),
                _told(np.exp(value - centres.fleet)),
                _told(np.exp(value - centres.reference[index])),
                centres.against[index],
                *(_number(other, index) for other in others),
                " ".join(words.get(index, [])),
            ]
        )
    return rows


def _ends(
    numbers: Numbers,
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    if numbers.unit is None:
        nothing = np.full(len(numbers.value), np.nan)
        return nothing, nothing
    reach = np.array([quantile(0.95, max(1, round(float(degrees)))) for degrees in numbers.freedom])
    return numbers.value - reach * numbers.error, numbers.value + reach * numbers.error


def _number(numbers: Numbers | None, place: int) -> str:
    if numbers is None:
        return ""
    value = float(numbers.value[place])
    return _told(np.exp(value) if numbers.measure.relative else value)


def _told(value: float) -> str:
    return f"{float(value):.6g}" if np.isfinite(value) else ""
