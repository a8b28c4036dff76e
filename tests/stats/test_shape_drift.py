"""Windows that move are told from noise that forgets; the benchmark has the same counts in full."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.stats.sequential import decide_to_stop, plan_looks
from assay.stats.shape import (
    MIN_WANDER_SAMPLES,
    find_unsteadiness,
    is_unsettled,
    normal_scores,
    range_of_means,
    range_of_medians,
    relative_median_range,
    wanders,
)
from tests.stats.chances import at_least, at_most
from tests.stats.noise_families import NOISE, Slow, related, slow_path
from tests.stats.simulations import windows

REPEATS = 100


def moving(family: Slow, n: int, seed: int) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    rng = np.random.default_rng(seed)
    return list(np.exp(slow_path(family, rng, REPEATS, n) + NOISE * rng.standard_normal((REPEATS, n))))


def test_equal_samples_share_the_middle_of_their_ranks() -> None:
    scores = normal_scores(np.array([2.0, 1.0, 2.0, 3.0]))
    assert scores[0] == scores[2] == 0.0
    assert scores[1] == pytest.approx(-1.1503, abs=1e-4)  # an eighth of the normal distribution lies below
    assert scores[3] == pytest.approx(1.1503, abs=1e-4)


@pytest.mark.parametrize("rho", [0.0, 0.5])
@pytest.mark.parametrize("n", [MIN_WANDER_SAMPLES, 500])
def test_noise_that_forgets_seldom_wanders(rho: float, n: int) -> None:
    rows = related(np.random.default_rng(1), rho, 2 * REPEATS, n)
    assert sum(map(wanders, rows)) <= at_most(0.02, 2 * REPEATS)


@pytest.mark.parametrize("family", ["random walk", "thermal decay", "wave"])
def test_windows_that_move_wander(family: Slow) -> None:
    assert sum(map(wanders, moving(family, 500, 2))) >= at_least(0.95, REPEATS)


def test_a_random_walk_without_noise_is_seen_in_a_hundred_samples() -> None:
    rows = np.cumsum(np.random.default_rng(3).standard_normal((REPEATS, 100)), axis=1)
    assert sum(map(wanders, rows)) >= at_least(0.95, REPEATS)


def test_a_straight_drift_counts_only_where_it_is_asked_for() -> None:
    row = np.linspace(1.0, 1.2, 400) + 0.01 * np.random.default_rng(4).standard_normal(400)
    assert wanders(row)
    assert not wanders(row, straight=False)


@pytest.mark.parametrize("row", [np.ones(200), np.zeros(200), np.arange(63.0)])
def test_constant_and_short_series_do_not_wander(row: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    assert not wanders(row)


def test_the_range_of_medians_is_that_of_the_parts_of_the_window() -> None:
    assert range_of_medians(np.repeat([1.0, 5.0, 3.0, 2.0], 32)) == (1.0, 5.0)
    assert range_of_medians(np.append(np.ones(128), np.full(15, 9.0))) == (1.0, 9.0)  # the end is a part as well


def test_the_range_of_means_is_that_of_eighths() -> None:
    assert range_of_means(np.repeat(np.arange(8.0), 3)) == 7.0


def test_how_far_a_window_moved_is_a_share_of_its_median() -> None:
    assert relative_median_range(np.repeat([10.0, 11.0], 40)) == pytest.approx(1 / 10.5)
    assert relative_median_range(np.zeros(80)) == math.inf


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 5]), st.integers(64, 300))
def test_quantised_noise_is_not_called_unsteady_for_its_ties(seed: int, ticks: int, n: int) -> None:
    """Ties share a score: the order in which they came counts, and nothing else."""
    row = np.round(100 + ticks * np.random.default_rng(seed).standard_normal(n))
    assert np.isfinite(normal_scores(row)).all()
    assert wanders(row) == wanders(1000 * row)


def test_a_movement_too_small_to_matter_is_not_called_one() -> None:
    small, large = (1 + size * np.linspace(-1, 1, 500) ** 3 for size in (1e-4, 1e-2))
    assert find_unsteadiness(small) is None
    assert find_unsteadiness(large) == "drift"


def test_a_clock_that_dwells_is_called_switching() -> None:
    assert find_unsteadiness(
        np.tile(np.repeat([1.0, 1.1], 60), 4) + 0.01 * np.random.default_rng(5).standard_normal(480)
    ) == ("switching")


def test_a_few_samples_whose_neighbours_resemble_each_other_are_too_soon_to_stop() -> None:
    rng = np.random.default_rng(6)
    walks, noise = np.cumsum(rng.standard_normal((REPEATS, 32)), axis=1), rng.standard_normal((REPEATS, 32))
    assert sum(map(is_unsettled, walks)) >= at_least(0.9, REPEATS)
    assert sum(map(is_unsettled, noise)) <= at_most(0.12, REPEATS)
    assert not is_unsettled(np.ones(16))


@pytest.mark.parametrize("family", ["random walk", "dwell 50–500", "thermal decay"])
def test_intervals_of_windows_that_move_cover_their_medians_or_are_refused(family: Slow) -> None:
    counts = windows(family, 600, 80, seed=7).counts
    given = 80 - counts["refused"]
    assert counts["missed"] <= at_most(0.07, given)
    assert given - counts["level"] <= at_most(0.07, given)
    assert counts["unsteady"] >= at_least(0.95, 80)


@pytest.mark.parametrize("family", ["independent", "AR(1) 0.5"])
def test_intervals_of_windows_that_stand_still_are_given(family: str) -> None:
    counts = windows(family, 400, 80, seed=8).counts
    assert counts["refused"] <= at_most(0.02, 80)
    assert counts["missed"] <= at_most(0.05, 80)


def test_a_precise_look_at_a_window_that_moves_is_not_enough_before_the_last() -> None:
    rows, plan = moving("random walk", 600, 9), plan_looks(16, 600)
    for row in rows[:20]:
        for look in plan[:-1]:
            assert decide_to_stop(row, look, 0.05) == "more" or find_unsteadiness(row[: look.n]) is None
    assert any(decide_to_stop(row, plan[-1], 0.5) == "enough" for row in rows[:20])
