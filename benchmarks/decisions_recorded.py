"""Series that nobody made up and in which nothing was changed: a hundred processes, and a hundred kernels of a GPU."""

from __future__ import annotations

import csv
import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.decisions_noise import RUNS, History

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = """
import json, random, statistics, time
random.seed(0)
numbers = [random.random() for _ in range(2000)]
document = {str(key): [key, str(key), None] for key in range(200)}
text = " ".join(map(str, numbers))
calls = {
    "sort 2,000 numbers": lambda: sorted(numbers),
    "write JSON": lambda: json.dumps(document),
    "split a text": lambda: text.split(),
}
def once(call):
    begin = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin
print(json.dumps({name: statistics.median(once(call) for _ in range(200)) / 1000 for name, call in calls.items()}))
"""
"""What each process does: the median of 200 calls of three functions, in microseconds."""

KERNELS = Path(__file__).parent / "results" / "h200" / "power_kernels.csv.xz"
CASES = {"sgemm, long": "sgemm on an H200", "memcpy": "memcpy on an H200", "ResNet-50": "ResNet-50 on an H200"}
"""Trials of an H200 whose every kernel is kept, each in one process with nothing beside it."""


def record() -> dict[str, list[float]]:
    """Return what a hundred processes measured, in microseconds, in their order."""
    runs = []
    for _ in range(RUNS):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
    return {name: [round(run[name], 3) for run in runs] for name in runs[0]}


def kernels() -> dict[str, list[float]]:
    """Return a hundred kernels, evenly over the first trial of each case, in microseconds, in their order."""
    results: dict[str, list[float]] = {case: [] for case in CASES}
    with lzma.open(KERNELS, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["case"] in CASES and row["repeat"] == "1":
                results[row["case"]].append(float(row["duration_us"]))
    positions = {case: np.linspace(0, len(times) - 1, RUNS).round().astype(int) for case, times in results.items()}
    return {CASES[case]: [results[case][position] for position in positions[case]] for case in CASES}


def as_history(series: Mapping[str, list[float]]) -> History:
    """Return series of one length as a history on one host."""
    logs = np.log(np.array(list(series.values())))
    return History(logs, np.zeros(logs.shape, dtype=np.int64))
