"""Asks a change-point tool about series of times; runs in that tool's own environment, without Assay.

One JSON document on stdin, ``{"series": [[times…], …], "hosts": [[0, 1, …], …] or null, "from": 30}``; one on stdout:
the tool's version, and for each series the runs after which it would have shown a slow-down, every run judged with what
was known then. With hosts, a run is judged among the runs of its own host.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def asv() -> Callable[[list[float]], bool]:
    """Return what ``asv publish`` lists as a regression: steps as it finds them, and its threshold of 5 %."""
    module = import_module("asv.step_detect")
    return lambda times: module.detect_regressions(module.detect_steps(times), 0.05)[2] is not None


def otava() -> Callable[[list[float]], bool]:
    """Return whether Otava, as it comes, has a change point at which the mean goes up."""
    compute = import_module("otava.analysis").compute_change_points
    options = import_module("otava.series").AnalysisOptions()
    available = {name: getattr(options, name) for name in ("window_len", "max_pvalue", "min_magnitude")}
    return lambda times: any(point.stats.mean_2 > point.stats.mean_1 for point in compute(times, **available)[0])


TOOLS = {"asv": ("asv", asv), "otava": ("apache-otava", otava)}


def alarm_runs(
    slower: Callable[[list[float]], bool], times: list[float], hosts: list[int] | None, first: int
) -> list[int]:
    """Return the runs after which a series is said to have become slower."""
    results = []
    for run in range(first, len(times)):
        available = times[: run + 1]
        if hosts is not None:
            available = [time for time, host in zip(available, hosts, strict=False) if host == hosts[run]]
        if len(available) > 1 and slower(available):
            results.append(run)
    return results


def main() -> None:
    """Answer one question."""
    package, made = TOOLS[sys.argv[1]]
    requests, slower = json.load(sys.stdin), made()
    hosts = requests["hosts"] or [None] * len(requests["series"])
    answers = [
        alarm_runs(slower, times, on, requests["from"]) for times, on in zip(requests["series"], hosts, strict=True)
    ]
    json.dump({"version": version(package), "told": answers}, sys.stdout)


if __name__ == "__main__":
    main()
