"""What series of one kind have in common: numbers worked out beside the program, for kinds of one, two and many."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.stats.changepoint import RHO, NoisePrior, SeriesKinds

BEFORE = [0.15, 0.12, 0.16, 0.18, 0.19, 0.14, 0.06]
SURE = 1000.0


def fits_best(place: int, offset: float = 0.0) -> list[float]:
    """Return how well each resemblance fits a series that only one of them fits."""
    return [offset - (0.0 if each == place else SURE) for each in range(7)]


def kinds(*each: int) -> SeriesKinds:
    return SeriesKinds(np.array(each, dtype=np.int64))


def test_the_grid_of_resemblances_is_this() -> None:
    assert RHO.tolist() == [0.0, 0.15, 0.3, 0.45, 0.6, 0.72, 0.85]


def test_each_series_knows_how_many_are_of_its_kind() -> None:
    assert kinds(5, 2, 5, 9, 5, 9).sizes.tolist() == [3.0, 1.0, 3.0, 2.0, 3.0, 2.0]


def test_a_series_that_says_nothing_leaves_what_was_likely_before() -> None:
    assert kinds(0).rho(np.zeros((1, 7)))[0] == pytest.approx(BEFORE, rel=1e-12)


def test_what_was_likely_before_counts_for_three_series_of_each_kind() -> None:
    fits = np.array([fits_best(6, SURE), fits_best(0), fits_best(1, -SURE), fits_best(0), fits_best(2)])
    found = kinds(7, 3, 7, 9, 9).rho(fits)
    of_7 = [0.09, 0.272, 0.096, 0.108, 0.114, 0.084, 0.236]  # (3 x before + 1 at two places) / 5
    of_3 = [0.3625, 0.09, 0.12, 0.135, 0.1425, 0.105, 0.045]  # (3 x before + 1 at one place) / 4
    of_9 = [0.29, 0.072, 0.296, 0.108, 0.114, 0.084, 0.036]
    for row, expected in zip(found, [of_7, of_3, of_7, of_9, of_9], strict=True):
        assert row == pytest.approx(expected, rel=1e-12)


def test_a_large_kind_of_series_that_say_little_is_weighed_thirty_times() -> None:
    fits = np.repeat([[0.0] + 6 * [-math.log(2)]], 97, axis=0)
    found = kinds(*97 * [0]).rho(fits)
    assert found[40, :2] == pytest.approx([0.9492406228546, 0.0071660297146413], rel=1e-9)


def test_the_noise_of_a_kind_is_worth_the_fewer_runs_the_less_alike_its_series_are() -> None:
    freedom = np.array([[4.0], [4.0], [6.0], [8.0], [5.0], [8.0]])
    squares = np.array([[1.0], [1.0], [3.0], [6.0], [40.0], [6.0]])
    spikes = np.array([[2.0], [2.0], [4.0], [3.5], [1.5], [3.5]])
    plain = np.array([[38.0], [38.0], [96.0], [90.0], [60.0], [90.0]])
    found = kinds(2, 8, 4, 2, 2, 8).noise(freedom, squares, spikes, plain)
    unlike = (1.4326523168422434, 1.1758099137473772, -5 / 46)
    alike = (15.065107290162985, 7.708760883550343, 79 / 374)
    alone = (0.0, 0.0, 0.1)  # 4 spikes in 100 runs are 1.6 in 40
    for place, expected in enumerate([unlike, alike, alone, unlike, unlike, alike]):
        told = (found.freedom[place, 0], found.squares[place, 0], found.spikes[place, 0])
        assert told == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_hundred_series_that_are_alike_are_worth_two_hundred_runs_of_which_one_in_a_hundred_is_ones_own() -> None:
    full = np.ones((100, 2))
    found = kinds(*100 * [0]).noise(50 * full, 100 * full, 1.5 * full, 38.5 * full)
    assert found.freedom == pytest.approx(198 * full)
    assert found.squares == pytest.approx(402.03502482516046 * full, rel=1e-9)
    assert found.spikes == pytest.approx(0 * full, abs=1e-9)


def test_what_is_usual_is_nothing_until_it_is_kept_at_a_place() -> None:
    usual = NoisePrior.nothing(2, 3)
    one = NoisePrior(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]), np.array([7.0, 8.0, 9.0]))
    usual.put(1, one)
    assert (usual.freedom.tolist(), usual.squares.tolist(), usual.spikes.tolist()) == (
        [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]],
        [[0.0, 0.0, 0.0], [4.0, 5.0, 6.0]],
        [[0.0, 0.0, 0.0], [7.0, 8.0, 9.0]],
    )
    there = usual.of((1, 2))
    assert (float(there.freedom), float(there.squares), float(there.spikes)) == (3.0, 6.0, 9.0)
