"""Draws of iterations: the first is what was measured, intervals hold the truth, and too little is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.stats.intervals import (
    RESAMPLES,
    draw_indices,
    draws_interval,
    explain_no_process_interval,
    medians_of_draws,
    repeats_interval,
)
from tests.stats.chances import at_least


@given(n=st.integers(1, 60), seed=st.integers(0, 5))
def test_the_first_draw_is_all_samples_as_they_came(n: int, seed: int) -> None:
    samples = np.random.default_rng(seed).normal(100.0, 1.0, n)
    chosen = draw_indices(samples, seed)
    assert chosen.shape == (RESAMPLES + 1, n)
    assert (chosen[0] == np.arange(n)).all()
    assert ((chosen >= 0) & (chosen < n)).all()
    assert medians_of_draws(samples, chosen)[0] == np.median(samples)
    assert (chosen == draw_indices(samples, seed)).all(), "the same whenever it is looked at"


@pytest.mark.full
@pytest.mark.parametrize("n", [8, 10, 30])
def test_a_ratio_of_two_medians_lies_within_as_often_as_is_said(n: int) -> None:
    chance = np.random.default_rng(n)
    hits = tries = 0
    for seed in range(200):
        one, other = (np.exp(chance.normal(0.0, 0.05, n)) for _ in range(2))
        if explain_no_process_interval(one) or explain_no_process_interval(other):
            continue
        ends = draws_interval(
            medians_of_draws(one, draw_indices(one, 2 * seed))
            / medians_of_draws(other, draw_indices(other, 2 * seed + 1))
        )
        assert ends is not None
        tries += 1
        hits += ends[0] <= 1.0 <= ends[1]
    assert tries > 60
    assert hits >= at_least(0.95, tries)


def test_samples_that_resemble_their_neighbours_are_drawn_in_runs_and_widen_the_interval() -> None:
    chance = np.random.default_rng(1)
    slow = np.repeat(chance.normal(100.0, 1.0, 20), 10)
    mixed = chance.permutation(slow)
    widths = []
    for samples in (slow, mixed):
        ends = draws_interval(medians_of_draws(samples, draw_indices(samples, 0)))
        assert ends is not None
        widths.append(ends[1] - ends[0])
    assert widths[0] > 1.5 * widths[1]


def test_what_is_drawn_together_cancels_together() -> None:
    chance = np.random.default_rng(2)
    shared = chance.normal(0.0, 5.0, 30)
    full, compute = 110.0 + shared, 100.0 + shared
    chosen = draw_indices(full, 0)
    ends = draws_interval(medians_of_draws(full, chosen) - medians_of_draws(compute, chosen))
    assert ends == pytest.approx((10.0, 10.0))


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (np.ones(1), "1 sample of one process are too few"),
        (np.ones(5), "5 samples"),
        (np.tile(np.repeat([1.0, 2.0], 50), 6) * np.linspace(1, 1.01, 600), "two levels"),
    ],
)
def test_too_little_is_refused_with_the_reason(
    samples: np.ndarray[tuple[int], np.dtype[np.float64]], said: str
) -> None:
    assert said in (explain_no_process_interval(samples) or "")


def test_enough_is_not_refused() -> None:
    assert explain_no_process_interval(np.random.default_rng(0).normal(100.0, 1.0, 10)) is None


def test_a_draw_without_a_number_leaves_no_interval() -> None:
    assert draws_interval(np.array([1.0, 2.0, np.inf])) is None


def test_repeats_are_averaged_as_ratios_where_all_are_positive_and_as_they_are_otherwise() -> None:
    centre, low, high = repeats_interval(np.array([1.0, 4.0]))
    assert centre == pytest.approx(2.0)
    assert low < 1.0
    assert high > 4.0
    centre, low, high = repeats_interval(np.array([-1.0, 1.0, 3.0]))
    assert centre == pytest.approx(1.0)
    assert (low + high) / 2 == pytest.approx(1.0)
