"""Ratios of numbers that were not taken in pairs: they cover the truth, and few of many verdicts are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.stats.intervals import restarts_interval
from assay.stats.ratios import (
    DEFAULT_FREEDOM,
    LogEstimate,
    decide_ratios,
    divide_estimates,
    geometric_mean,
    log_estimate,
    log_estimate_of_draws,
    pooled_ratio,
)
from tests.stats.chances import at_least, at_most

REPEATS = 600


def measured(chance: np.random.Generator, log: float, spread: float, processes: int) -> LogEstimate:
    """A number as a run tells it: the medians of its processes, their mean and interval."""
    centre, low, high, _ = restarts_interval(np.exp(chance.normal(log, spread, processes)).tolist())
    found = log_estimate(centre, low, high, processes)
    assert found is not None
    return found


@pytest.mark.parametrize(("processes", "spreads"), [((5, 5), (0.02, 0.02)), ((3, 8), (0.01, 0.04))])
def test_the_interval_of_a_ratio_covers_the_truth(processes: tuple[int, int], spreads: tuple[float, float]) -> None:
    chance = np.random.default_rng(1)
    hits = 0
    for _ in range(REPEATS):
        found = divide_estimates(
            *(measured(chance, log, s, n) for log, s, n in zip((0.0, 0.1), spreads, processes, strict=True))
        )
        ends = found.interval()
        assert ends is not None
        hits += ends[0] < math.exp(0.1) < ends[1]
    assert at_least(0.94, REPEATS) <= hits


@pytest.mark.parametrize("truth", [0.0, 0.0199, -0.0199, 0.021, 0.05])
def test_of_many_verdicts_together_hardly_any_is_wrong(truth: float) -> None:
    chance, margin = np.random.default_rng(2), math.log1p(0.02)
    right = "same" if abs(truth) < margin else "slower"
    wrong = sum(
        any(
            verdict not in {right, "unsure"}
            for verdict in decide_ratios(
                [divide_estimates(measured(chance, 0.0, 0.01, 5), measured(chance, truth, 0.01, 5)) for _ in range(8)],
                0.02,
            )
        )
        for _ in range(REPEATS // 3)
    )
    assert wrong <= at_most(0.05, REPEATS // 3)


def test_a_sure_change_is_told_beside_others_that_are_not() -> None:
    quiet, unknown = LogEstimate(0.0, 0.001, 8), LogEstimate(0.3)
    said = decide_ratios(
        [LogEstimate(0.1, 0.005, 8), LogEstimate(-0.1, 0.005, 8), quiet, LogEstimate(0.02, 0.01, 8), unknown], 0.02
    )
    assert said == ["slower", "faster", "same", "unsure", "unsure"]
    assert decide_ratios([], 0.02) == []


def test_with_more_numbers_beside_it_a_change_must_be_surer() -> None:
    change, noise = LogEstimate(0.05, 0.012, 8), LogEstimate(0.02, 0.05, 8)
    assert decide_ratios([change], 0.02) == ["slower"]
    assert decide_ratios([change, *[noise] * 19], 0.02) == ["unsure"] * 20


def test_a_number_without_an_interval_or_a_logarithm_has_no_error() -> None:
    assert log_estimate(3.0, None, None, 5) == LogEstimate(math.log(3.0))
    assert log_estimate(0.0, None, None, 5) is None
    assert divide_estimates(LogEstimate(0.0), LogEstimate(1.0, 0.1, 3)).interval() is None


def test_where_processes_are_not_counted_the_interval_stands_and_its_tails_are_wide() -> None:
    one, other = log_estimate(1.0, 0.98, 1.0 / 0.98, None), log_estimate(1.0, 0.98, 1.0 / 0.98, 1000)
    assert one is not None
    assert other is not None
    assert one.degrees == DEFAULT_FREEDOM
    wide, narrow = divide_estimates(one, one).interval(), divide_estimates(other, other).interval()
    assert wide is not None
    assert narrow is not None
    assert wide[0] < narrow[0]


def test_devices_are_averaged_and_each_held_against_itself() -> None:
    logs = [LogEstimate(0.1, 0.02, 4), LogEstimate(0.3, 0.02, 4), LogEstimate(0.2, 0.02, 4)]
    found = geometric_mean(logs)
    assert found.log == pytest.approx(0.2)
    assert found.error == pytest.approx(0.02 / math.sqrt(3))
    apart = pooled_ratio([([1.0, 1.01], [1.2, 1.21]), ([3.0, 3.02], [3.6, 3.63])])
    assert apart is not None
    assert apart.value == pytest.approx(1.2, rel=0.01)
    assert apart.degrees == 5
    assert pooled_ratio([([1.0], [1.2])]) == LogEstimate(math.log(1.2))
    assert pooled_ratio([([], [1.2])]) is None
    assert log_estimate_of_draws([1.0, 4.0]).value == pytest.approx(2.0)
