"""How right are joules? Random loads of known energy on three kinds of simulated sensors, in virtual time.

python benchmarks/joules.py run       measure all of them (minutes, two processes), keep every outcome, print the table
python benchmarks/joules.py verify    compute the table again from the kept outcomes
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.joules.trials import LENGTHS, LOADS, SENSORS, Outcome, call_trial, model_of, window_trial

RESULTS = Path(__file__).parent / "results" / "joules.json"
WORKERS = 2
EACH = 204  # random loads of each kind of sensor: a multiple of the six kinds of load
OTHERS = 1200  # windows of the first kind that were not looked at while the way to measure was chosen
WINDOWS_S = (1.0, 3.0)
SHOWN = {
    "windows": ("begins with the window", "sensor's period"),
    "other windows": ("sensor's period",),
    "calls": ("10 µs", "sensor's period"),
}
Kept = dict[str, Any]


def planned_tasks() -> list[tuple[str, str, str, int]]:
    """Return what is measured: the sensor, windows or calls, which load or how long a call, and a seed."""
    windows = [("windows", LOADS[i % len(LOADS)], i) for i in range(EACH)]
    calls = [("calls", LENGTHS[i % len(LENGTHS)], i) for i in range(EACH)]
    others = [("other windows", LOADS[i % len(LOADS)], i) for i in range(OTHERS)]
    return [
        (sensor, about, which, zlib.crc32(f"{sensor} {about} {which} {i}".encode()))
        for index, sensor in enumerate(SENSORS)
        for about, which, i in windows + calls + (others if index == 0 else [])
    ]


def measure(task: tuple[str, str, str, int]) -> list[float | None]:
    """Return one outcome: value, low and high over the truth, and what simpler ways say over it."""
    sensor, about, which, seed = task
    model = model_of(sensor)
    if about != "calls":
        result = window_trial(sensor, model, which, seed, WINDOWS_S)  # type: ignore[arg-type]
    else:
        result = call_trial(sensor, model, which, seed)  # type: ignore[arg-type]
    summary = (result.ratio, result.low, result.high, result.difference, result.average)
    return [None if value is None else round(value, 5) for value in summary]


def run() -> Kept:
    """Return every outcome with its seed, by sensor and by what was measured."""
    begin = time.monotonic()
    tasks = planned_tasks()
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))  # matrices are small
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        outcomes = list(pool.map(measure, tasks, chunksize=17))
    saved: dict[str, list[Any]] = {}
    for (sensor, about, which, seed), outcome in zip(tasks, outcomes, strict=True):
        saved.setdefault(f"{sensor} | {about} | {which}", []).append([seed, *outcome])
    return {"took_s": round(time.monotonic() - begin), "windows_s": WINDOWS_S, "outcomes": saved}


def rate(k: int, n: int) -> str:
    """Return a share with its exact 95 % binomial interval, in percent."""
    bounds = stats.binomtest(k, n).proportion_ci()
    return f"{100 * k / n:.1f} ({100 * bounds.low:.1f}–{100 * bounds.high:.1f})"


def _percent(values: list[float], share: float) -> str:
    return f"{100 * float(np.quantile(np.abs(np.array(values) - 1), share)):.2f}"


def _row(sensor: str, about: str, which: str, rows: list[list[Any]]) -> str:
    outcomes = [Outcome(*row[1:]) for row in rows]
    ratios = [outcome.ratio for outcome in outcomes]
    holds = rate(sum(outcome.holds for outcome in outcomes), len(outcomes))
    width = 100 * max(outcome.width for outcome in outcomes)
    simpler = []
    for name in ("difference", "average"):
        output = [value for outcome in outcomes if (value := getattr(outcome, name)) is not None]
        simpler.append(f"{_percent(output, 0.5)} / {_percent(output, 1.0)}" if output else "–")
    cells = (
        sensor, about, which, str(len(rows)), _percent(ratios, 0.5), _percent(ratios, 0.95), _percent(ratios, 1.0),
        holds, f"{width:.1f}", *simpler,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def table(results: Kept) -> str:
    """Return the published table, of all loads and of the hardest; errors in percent of the truth."""
    titles = (
        "sensor", "measured", "load or call", "n", "error: median", "95 of 100", "largest", "bounds hold, %",
        "widest bounds, %", "reading the counter at both ends: median / largest",
        "polling average power: median / largest",
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for sensor, about in [(sensor, about) for sensor in SENSORS for about in SHOWN]:
        of = f"{sensor} | {about} | "
        loads = {key.removeprefix(of): rows for key, rows in results["outcomes"].items() if key.startswith(of)}
        if not loads:
            continue
        lines.append(_row(sensor, about, "all", [row for rows in loads.values() for row in rows]))
        lines += [_row(sensor, about, which, loads[which]) for which in SHOWN[about]]
    return "\n".join(lines)


def main() -> int:
    """Measure or verify."""
    if sys.argv[1:] == ["run"]:
        RESULTS.write_text(json.dumps(run(), separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")
    elif sys.argv[1:] != ["verify"]:
        print(__doc__)
        return 2
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
