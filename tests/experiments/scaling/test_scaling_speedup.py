"""The arithmetic of scaling: what is put in comes out, and the factors of efficiency multiply up to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.experiments.scaling.analysis import (
    CommunicationTimes,
    compute_karp_flatt,
    compute_speedup,
    compute_throughput,
    split_efficiency,
)
from assay.experiments.scaling.timings import TimeVectors

positive = st.floats(1e-3, 1e6)


def arrays(*values: float) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    return [np.array([value]) for value in values]


def three(full: float, compute: float, communication: float) -> CommunicationTimes:
    one, other, last = arrays(full, compute, communication)
    return CommunicationTimes(one, other, last, sent=True)


def times(total: float, compute: float, mean: float, last: float, communication: float) -> TimeVectors:
    full, computing, average, end, transfers = arrays(total, compute, mean, last, communication)
    return TimeVectors(
        slowest={"total": full, "compute": computing, "communication": transfers},
        mean={"compute": average},
        last={"compute": end},
    )


@given(
    total=positive, compute=positive, mean=positive, last=positive, transfers=positive, alone=positive, share=positive,
    ring=st.integers(1, 512),
)  # fmt: skip
def test_the_factors_multiply_up_to_the_efficiency(
    total: float, compute: float, mean: float, last: float, transfers: float, alone: float, share: float, ring: int
) -> None:
    parts = split_efficiency(times(total, compute, mean, last, transfers), np.array([alone]), np.array([share]), ring)
    assert parts.product == pytest.approx(alone / (ring * total), rel=1e-9)
    assert (parts.exposed <= 1).all()
    assert (parts.balance == mean / compute).all()


@given(total=positive, alone=positive, ranks=st.integers(2, 512))
def test_ranks_that_each_do_as_much_as_one_alone_are_as_many_times_as_fast(
    total: float, alone: float, ranks: int
) -> None:
    same = compute_speedup(np.array([total]), 7.0 * ranks, np.array([total]), 7.0)
    assert same == pytest.approx(ranks)
    shared = compute_speedup(np.array([alone / ranks]), 7.0, np.array([alone]), 7.0)
    assert shared == pytest.approx(ranks)


@given(serial=st.floats(0.0, 1.0), ranks=st.integers(2, 512))
def test_karp_flatt_finds_the_serial_share_that_amdahl_put_in(serial: float, ranks: int) -> None:
    amdahl = 1 / (serial + (1 - serial) / ranks)
    assert compute_karp_flatt(np.array([amdahl]), ranks) == pytest.approx(serial, abs=1e-9)


@given(compute=positive, transfers=positive, hidden=st.floats(0.0, 1.0))
def test_overlap_is_the_share_of_the_transfers_that_does_not_show(
    compute: float, transfers: float, hidden: float
) -> None:
    full = compute + transfers * (1 - hidden)
    runs = three(full, compute, transfers)
    assert runs.exposed_us == pytest.approx(transfers * (1 - hidden), rel=1e-6, abs=1e-6 * full)
    assert runs.overlap == pytest.approx(hidden, abs=1e-6 * full / transfers)
    assert runs.exposed_share == pytest.approx(transfers * (1 - hidden) / full, abs=1e-6)


def test_what_takes_longer_than_computing_and_transfers_one_after_the_other_is_no_overlap_but_a_rest() -> None:
    slow = times(total=200, compute=100, mean=100, last=100, communication=20)
    parts = split_efficiency(slow, np.array([400.0]), np.array([100.0]), 4)
    assert parts.exposed == pytest.approx(100 / 120)
    assert parts.rest == pytest.approx(120 / 200)
    assert three(200, 100, 20).overlap == pytest.approx(-4)


def test_where_nothing_is_sent_computing_is_all_there_is() -> None:
    (total,) = arrays(120)
    only = TimeVectors(slowest={"total": total}, mean={"total": np.array([100.0])}, last={"total": np.array([120.0])})
    runs = CommunicationTimes.of(only)
    assert not runs.sent
    assert runs.exposed_us == 0
    parts = split_efficiency(only, np.array([400.0]), np.array([110.0]), 4)
    assert parts.exposed == 1
    assert parts.rest == 1
    assert parts.product == pytest.approx(400 / 4 / 120)


def test_work_a_second_is_work_over_the_time() -> None:
    assert compute_throughput(np.array([2e6]), 10.0) == pytest.approx(5.0)
