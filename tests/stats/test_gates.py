"""A gate's two wrong answers are as rare as it says, whenever it looks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.stats.blocks import (
    MAX_RESTARTS,
    MIN_RESTARTS,
    TOTAL_ERROR,
    decide_limit,
    estimate_restarts_needed,
    plan_gate_looks,
)

LIMIT = 0.02


def answered(worse: float, noise: float, *, series: int, first: int = 5, heavy: bool = False) -> dict[str, float]:
    """Return how often each answer is given, and how many restarts it took on average."""
    chance = np.random.default_rng(20261115)
    shape = (series, MAX_RESTARTS)
    drawn = chance.standard_t(3, shape) / math.sqrt(3) if heavy else chance.standard_normal(shape)
    logs = math.log1p(worse) + noise * drawn
    found: dict[str, float] = {"worse": 0, "not worse": 0, "unsure": 0, "restarts": 0}
    for row in logs:
        for n in plan_gate_looks(first):
            said = decide_limit(row[:n], LIMIT).verdict
            if said != "unsure":
                break
        found[said] += 1 / series
        found["restarts"] += n / series
    return found


@pytest.mark.parametrize("first", [MIN_RESTARTS, 5])
def test_at_the_limit_either_answer_is_as_rare_as_promised(first: int) -> None:
    found = answered(LIMIT, 0.01, series=1500, first=first)
    slack = 3 * math.sqrt(TOTAL_ERROR * (1 - TOTAL_ERROR) / 1500)
    assert found["worse"] <= TOTAL_ERROR + slack
    assert found["not worse"] <= TOTAL_ERROR + slack


def test_heavy_tails_make_neither_error_more_frequent() -> None:
    found = answered(LIMIT, 0.01, series=1000, heavy=True)
    assert max(found["worse"], found["not worse"]) <= TOTAL_ERROR + 3 * math.sqrt(TOTAL_ERROR / 1000)


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.02])
def test_five_percent_is_caught_and_the_same_twice_passes(noise: float) -> None:
    slower, same = answered(0.05, noise, series=200), answered(0.0, noise, series=200)
    assert slower["worse"] >= 0.99
    assert same["not worse"] >= 0.99
    assert same["worse"] == 0
    assert max(slower["restarts"], same["restarts"]) < 16


def test_nothing_is_known_from_one_restart_or_none() -> None:
    assert decide_limit([], LIMIT).verdict == decide_limit([0.5], LIMIT).verdict == "unsure"
    assert decide_limit([], LIMIT).ratio is None


def test_several_questions_at_once_are_each_asked_more_strictly() -> None:
    logs = [0.001, -0.002, 0.0, 0.003, -0.001]
    alone, among = decide_limit(logs, LIMIT).ratio, decide_limit(logs, LIMIT, questions=4).ratio
    assert alone is not None
    assert among is not None
    assert among.low is not None
    assert alone.low is not None
    assert among.low < alone.low


def test_looks_grow_and_end() -> None:
    assert plan_gate_looks(5) == [5, 7, 10, 14, 20, 28, 40, 56]
    assert plan_gate_looks(MAX_RESTARTS) == [MAX_RESTARTS]


def test_what_would_decide_is_foreseen() -> None:
    noisy = [0.03, -0.03, 0.02, -0.02, 0.0]
    needed = estimate_restarts_needed(noisy, LIMIT)
    assert needed is not None
    assert 5 < needed <= MAX_RESTARTS
    assert estimate_restarts_needed([math.log1p(LIMIT) + x for x in noisy], LIMIT) is None
    assert estimate_restarts_needed([0.1], LIMIT) is None
