"""The programs that try the timer on a real machine: their tables, from a few kept results."""

from __future__ import annotations

import math
from typing import Any

from benchmarks import self_comparison, time_coverage


def interval(value: float, half: float | None) -> dict[str, Any]:
    ends = (None, None) if half is None else (value * (1 - half), value * (1 + half))
    return {"value": value, "low": ends[0], "high": ends[1]}


RUNS = [
    {"estimate": interval(100.0, 0.05), "processes": [interval(98.0, 0.001), interval(102.0, 0.001)]},
    {"estimate": interval(108.0, 0.01), "processes": [interval(100.0, 0.01), interval(100.0, None)]},
]


def test_intervals_are_held_against_the_mean_of_all_processes() -> None:
    assert time_coverage.pooled(RUNS) == math.exp((math.log(98) + math.log(102) + 2 * math.log(100)) / 4)
    found = time_coverage.counted(RUNS)
    assert found["over the processes of a run"][:2] == (1, 2)
    assert found["of single processes"][:2] == (1, 4)
    shown = time_coverage.table({"target": "f", "budget_s": 3.0, "cores": 2, "runs": RUNS})
    assert "| over the processes of a run | 1 of 2 (50%) |" in shown


def test_a_function_called_different_from_itself_is_counted() -> None:
    tries = [
        {"size": "6 µs", "verdict": verdict, "rounds_us": [[1.0, 1.0], [ratio, ratio]]}
        for verdict, ratio in (("same", 1.0), ("slower", 1.02), ("unsure", 1.0))
    ]
    shown = self_comparison.table({"budget_s": 1.0, "neighbours": 2, "tries": tries})
    assert "| 6 µs | 3 | 1 | 1 | 1 | 1.0000 to 1.0180 |" in shown
    assert "| all | 3 | 1 | 1 | 1 |" in shown


def test_one_call_of_a_copy_is_slow_and_all_give_the_same() -> None:
    function = self_comparison.copy(10, slow_call=2)
    assert [function() for _ in range(3)] == [45, 45, 45]
