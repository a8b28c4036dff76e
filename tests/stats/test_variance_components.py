"""Variances of nested designs whose truth is known: how often their intervals hold it, and what cannot be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.stats.variance import estimate_components
from tests.stats.chances import at_least, at_most

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Samples = NDArray[np.float64]
    Codes = NDArray[np.intp]

REPEATS = 120
TRUE = {"GPUs": 0.01, "runs": 0.005, "restarts": 0.003}


def nested(chance: np.random.Generator, gpus: int, *, even: bool) -> tuple[Samples, list[tuple[str, Codes]]]:
    """Make up a design of GPUs, three runs of each and three restarts of each of those; or as many as it happens."""
    codes: list[tuple[int, int]] = []
    values: list[float] = []
    for gpu in range(gpus):
        own = chance.normal(0, TRUE["GPUs"])
        for run in range(3 if even else int(chance.integers(1, 6))):
            day = own + chance.normal(0, TRUE["runs"])
            count = 3 if even else int(chance.integers(1, 6))
            values += list(day + chance.normal(0, TRUE["restarts"], count))
            codes += [(gpu, run)] * count
    of_gpu, of_run = (np.array(column) for column in zip(*codes, strict=True))
    return np.array(values), [("GPUs", of_gpu), ("runs", of_run), ("restarts", np.arange(len(values)))]


@pytest.mark.parametrize(("gpus", "even"), [(4, True), (4, False), (30, False)])
def test_intervals_hold_the_variance_of_every_level_as_often_as_they_say(gpus: int, even: bool) -> None:
    chance = np.random.default_rng(gpus)
    held = dict.fromkeys(TRUE, 0)
    estimates: dict[str, list[float]] = {name: [] for name in TRUE}
    for _ in range(REPEATS):
        for one in estimate_components(*nested(chance, gpus, even=even)):
            assert one.variance is not None
            assert one.low is not None
            assert one.high is not None
            held[one.level] += one.low <= TRUE[one.level] ** 2 <= one.high
            estimates[one.level].append(one.variance)
    for name, count in held.items():
        assert at_least(0.95, REPEATS) <= count <= at_most(0.975, REPEATS), name
        assert np.sqrt(np.mean(estimates[name])) == pytest.approx(TRUE[name], rel=0.2)


def test_a_level_whose_members_are_each_alone_is_part_of_the_one_above() -> None:
    values = np.array([1.0, 1.1, 2.0, 2.1, 3.0, 3.1])
    gpu = np.array([0, 0, 1, 1, 2, 2])
    host, each = np.zeros(6, dtype=np.intp), np.arange(6)
    found = {
        one.level: one
        for one in estimate_components(values, [("hosts", host), ("GPUs", gpu), ("runs", each), ("x", each)])
    }
    assert found["hosts"].variance is None
    assert found["hosts"].within is None
    assert found["x"].variance is None
    assert found["x"].within == "runs"
    assert found["GPUs"].variance == pytest.approx(1.0 - 0.005 / 2)
    assert found["runs"].variance == pytest.approx(0.005)


def test_members_of_the_same_number_under_other_parents_are_others() -> None:
    values = np.array([1.0, 2.0, 5.0, 6.0])
    gpu, run = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    (_, runs) = estimate_components(values, [("GPUs", gpu), ("runs", run)])
    assert runs.members == 4


def test_shares_add_up_and_variances_that_are_only_known_count_among_them() -> None:
    chance = np.random.default_rng(5)
    values, levels = nested(chance, 12, even=True)
    below = "calls", np.full(12, 0.02**2), np.arange(12)
    found = estimate_components(values, levels, below)
    assert [one.level for one in found] == ["GPUs", "runs", "restarts", "calls"]
    assert sum(one.share or 0.0 for one in found) == pytest.approx(1.0)
    assert found[-1].variance == pytest.approx(0.02**2)
    assert found[-1].share == pytest.approx(0.75, abs=0.15)


def test_of_one_value_nothing_can_be_told() -> None:
    zero = np.zeros(1, dtype=np.intp)
    assert [one.variance for one in estimate_components(np.ones(1), [("GPUs", zero), ("runs", zero)])] == [None, None]


def test_two_clusters_whose_variances_are_far_apart_leave_anything_open() -> None:
    below = "calls", np.array([1e-12, 1.0]), np.array([0, 1])
    found = estimate_components(np.arange(4.0), [("GPUs", np.array([0, 0, 1, 1])), ("runs", np.arange(4))], below)[-1]
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1e-3
    assert 1e3 < found.high < np.inf
