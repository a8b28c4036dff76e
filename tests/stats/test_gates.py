"""A gate's two wrong answers are as rare as it says, whenever it looks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.stats.gates import ERROR, FEWEST, MOST, judge, looks, restarts_needed

LIMIT = 0.02


def answered(worse: float, noise: float, *, series: int, first: int = 5, heavy: bool = False) -> dict[str, float]:
    """Return how often each answer is given, and how many restarts it took on average."""
    chance = np.random.default_rng(20261115)
    shape = (series, MOST)
    drawn = chance.standard_t(3, shape) / math.sqrt(3) if heavy else chance.standard_normal(shape)
    logs = math.log1p(worse) + noise * drawn
    found: dict[str, float] = {"worse": 0, "not worse": 0, "unsure": 0, "restarts": 0}
    for row in logs:
        for n in looks(first):
            said = judge(row[:n], LIMIT).verdict
            if said != "unsure":
                break
        found[said] += 1 / series
        found["restarts"] += n / series
    return found


@pytest.mark.parametrize("first", [FEWEST, 5])
def test_at_the_limit_either_answer_is_as_rare_as_promised(first: int) -> None:
    found = answered(LIMIT, 0.01, series=1500, first=first)
    slack = 3 * math.sqrt(ERROR * (1 - ERROR) / 1500)
    assert found["worse"] <= ERROR + slack
    assert found["not worse"] <= ERROR + slack


def test_heavy_tails_make_neither_error_more_frequent() -> None:
    found = answered(LIMIT, 0.01, series=1000, heavy=True)
    assert max(found["worse"], found["not worse"]) <= ERROR + 3 * math.sqrt(ERROR / 1000)


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.02])
def test_five_percent_is_caught_and_the_same_twice_passes(noise: float) -> None:
    slower, same = answered(0.05, noise, series=200), answered(0.0, noise, series=200)
    assert slower["worse"] >= 0.99
    assert same["not worse"] >= 0.99
    assert same["worse"] == 0
    assert max(slower["restarts"], same["restarts"]) < 16


def test_nothing_is_known_from_one_restart_or_none() -> None:
    assert judge([], LIMIT).verdict == judge([0.5], LIMIT).verdict == "unsure"
    assert judge([], LIMIT).ratio is None


def test_several_questions_at_once_are_each_asked_more_strictly() -> None:
    logs = [0.001, -0.002, 0.0, 0.003, -0.001]
    alone, among = judge(logs, LIMIT).ratio, judge(logs, LIMIT, questions=4).ratio
    assert alone is not None
    assert among is not None
    assert among.low is not None
    assert alone.low is not None
    assert among.low < alone.low


def test_looks_grow_and_end() -> None:
    assert looks(5) == [5, 7, 10, 14, 20, 28, 40, 56]
    assert looks(MOST) == [MOST]


def test_what_would_decide_is_foreseen() -> None:
    noisy = [0.03, -0.03, 0.02, -0.02, 0.0]
    needed = restarts_needed(noisy, LIMIT)
    assert needed is not None
    assert 5 < needed <= MOST
    assert restarts_needed([math.log1p(LIMIT) + x for x in noisy], LIMIT) is None
    assert restarts_needed([0.1], LIMIT) is None
