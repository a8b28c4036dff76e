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
    known = {name: getattr(options, name) for name in ("window_len", "max_pvalue", "min_magnitude")}
    return lambda times: any(point.stats.mean_2 > point.stats.mean_1 for point in compute(times, **known)[0])


TOOLS = {"asv": ("asv", asv), "otava": ("apache-otava", otava)}


def told(slower: Callable[[list[float]], bool], times: list[float], hosts: list[int] | None, first: int) -> list[int]:
    """Return the runs after which a series is said to have become slower."""
    found = []
    for run in range(first, len(times)):
        known = times[: run + 1]
        if hosts is not None:
            known = [time for time, host in zip(known, hosts, strict=False) if host == hosts[run]]
        if len(known) > 1 and slower(known):
            found.append(run)
    return found


def main() -> None:
    """Answer one question."""
    package, made = TOOLS[sys.argv[1]]
    asked, slower = json.load(sys.stdin), made()
    hosts = asked["hosts"] or [None] * len(asked["series"])
    answers = [told(slower, times, on, asked["from"]) for times, on in zip(asked["series"], hosts, strict=True)]
    json.dump({"version": version(package), "told": answers}, sys.stdout)


if __name__ == "__main__":
    main()
