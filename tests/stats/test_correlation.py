"""Rank correlations of known truth, also with something else held equal."""

from __future__ import annotations

import numpy as np
import pytest

from assay.stats.correlation import partial_correlation
from tests.stats.chances import at_least

REPEATS = 200


def test_intervals_hold_the_true_correlation_as_often_as_they_say() -> None:
    chance = np.random.default_rng(1)
    true = 6 / np.pi * np.arcsin(0.6 / 2)
    held = 0
    for _ in range(REPEATS):
        x, y = chance.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 25).T
        found = partial_correlation(x, y)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= true <= found.high
    assert held >= at_least(0.94, REPEATS)


def test_what_only_a_third_thing_explains_is_gone_when_that_is_held_equal() -> None:
    chance = np.random.default_rng(2)
    third = chance.standard_normal(500)
    x, y = third + 0.3 * chance.standard_normal(500), third + 0.3 * chance.standard_normal(500)
    plain, equal = partial_correlation(x, y), partial_correlation(x, y, [third])
    assert plain is not None
    assert plain.rho > 0.8
    assert equal is not None
    assert equal.low is not None
    assert equal.high is not None
    assert equal.low < 0 < equal.high


def test_too_few_what_never_changes_and_what_is_not_independent_have_no_interval() -> None:
    four = np.array([1.0, 2.0, 3.0, 4.0])
    found = partial_correlation(four, four**2)
    assert found is not None
    assert found.rho == pytest.approx(1.0)
    assert found.low is None
    assert partial_correlation(four, np.ones(4)) is None
    assert partial_correlation(four[:2], four[:2]) is None
    many = np.random.default_rng(3).standard_normal((2, 40))
    assert partial_correlation(many[0], many[1], independent=False) is not None
    dependent = partial_correlation(many[0], many[1], independent=False)
    assert dependent is not None
    assert dependent.low is None


def test_pairs_of_which_one_is_not_known_are_left_out() -> None:
    x = np.array([1.0, 2.0, np.nan, 4.0, 5.0])
    found = partial_correlation(x, np.arange(5.0))
    assert found is not None
    assert found.n == 4
