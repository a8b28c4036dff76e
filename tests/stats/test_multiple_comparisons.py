"""Conditions crossed with blocks: which may be the best, and how far each lies from one of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.stats.multiple_comparisons import dunnett_quantile, fit_crossed
from assay.stats.numerics import t_quantile


@pytest.mark.parametrize(
    ("others", "freedom", "one_sided", "two_sided"),
    [(1, 4, 2.132, 2.776), (3, 10, 2.34, 2.76), (9, 20, 2.60, 2.95), (5, 60, 2.28, 2.58)],
)
def test_dunnetts_quantile_is_that_of_the_published_tables(
    others: int, freedom: int, one_sided: float, two_sided: float
) -> None:
    assert dunnett_quantile(others, freedom, two_sided=False) == pytest.approx(one_sided, abs=0.01)
    assert dunnett_quantile(others, freedom) == pytest.approx(two_sided, abs=0.01)


@pytest.mark.parametrize("freedom", [1, 2, 30])
def test_of_a_single_difference_it_is_students(freedom: int) -> None:
    assert dunnett_quantile(1, freedom) == pytest.approx(t_quantile(0.95, freedom), rel=1e-3)


def test_what_is_common_to_a_block_is_taken_out_and_what_is_missing_shifts_nothing() -> None:
    table = np.add.outer([0.0, 1.0, 3.0], [0.0, 10.0, -20.0])
    table[1, 2] = table[0, 0] = np.nan
    found = fit_crossed(table)
    assert found.effects - found.effects[0] == pytest.approx([0.0, 1.0, 3.0])
    assert found.scatter == pytest.approx(0.0, abs=1e-9)
    assert found.freedom == 2
    assert found.may_be_lowest() == [0]


def test_one_block_tells_nothing_of_chance_and_one_never_measured_is_none() -> None:
    found = fit_crossed(np.array([[0.0], [1.0], [np.nan]]))
    assert (found.scatter, found.freedom, found.measured) == (None, 0, [0, 1])
    assert found.may_be_lowest() == [0, 1]
    assert found.against(0)[1][0] == pytest.approx(1.0)
    assert found.against(0)[1][1:] == (None, None)
    assert fit_crossed(np.full((2, 2), np.nan)).may_be_lowest() == []


def test_conditions_that_share_no_block_are_not_compared() -> None:
    nan = math.nan
    found = fit_crossed(np.array([[0.0, 0.1, nan, nan], [nan, nan, 5.0, 5.2]]))
    assert found.contrast(0, 1) is None
    assert found.may_be_lowest() == [0, 1]


@pytest.mark.parametrize("spread", ["even", "uneven"])
def test_the_lowest_is_among_those_that_may_be_and_bounds_hold_for_all_at_once(spread: str) -> None:
    chance = np.random.default_rng(20261115)
    truth = np.array([0.02, 0.004, 0.0, 0.001, 0.01, 0.03])
    noise = np.full(6, 0.01) if spread == "even" else np.linspace(0.02, 0.005, 6)
    runs, kept, held = 150, 0, 0
    for _ in range(runs):
        found = fit_crossed(truth[:, None] + chance.normal(0, 0.05, 3) + noise[:, None] * chance.normal(size=(6, 3)))
        kept += 2 in found.may_be_lowest()
        ends = found.against(5)
        held += all(low <= truth[row] - truth[5] <= high for row, (_, low, high) in ends.items() if low and high)
    assert kept / runs >= 0.95
    assert held / runs >= 0.92
