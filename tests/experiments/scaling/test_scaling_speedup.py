"""The arithmetic of scaling: what is put in comes out, and the factors of efficiency multiply up to it."""

from __future__ import annotations

from types import SimpleNamespace as Made
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.results import Estimate, Missing, SubjectFacts
from assay.experiments.scaling import analysis
from assay.experiments.scaling.analysis import (
    CommunicationTimes,
    compute_karp_flatt,
    compute_speedup,
    compute_throughput,
    find_peak_flop_per_s,
    judge_prediction,
    split_efficiency,
    sum_measured,
)
from assay.experiments.scaling.plan import ScalingShape
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


def test_what_some_rank_did_not_measure_has_no_sum_and_nothing_has_none() -> None:
    def total(*values: float | None) -> float | None:
        told = [{} if value is None else {"n": value} for value in values]
        return sum_measured([SubjectFacts(subject=0, measured=measured) for measured in told], "n")

    assert (total(2.0), total(2.0, 3.0), total(0.0)) == (2.0, 5.0, 0.0)
    assert total() is total(None) is total(2.0, None) is total(None, None) is None
    assert sum_measured([SubjectFacts(subject=0), SubjectFacts(subject=0, measured={"n": 1.0})], "n") is None


def test_the_worst_check_of_all_ranks_and_repeats_is_kept_by_name() -> None:
    def timing(*errors: float | None, name: str = "total") -> Any:
        ranks = {n: Made(check=None if error is None else Made(error=error)) for n, error in enumerate(errors)}
        return Made(plan=Made(names=(name,)), facts={name: ranks}.__getitem__)

    found = analysis._worst_checks([timing(0.25, 0.75, None), timing(0.5), timing(None, name="share")])
    assert {name: check.error for name, check in found.items()} == {"total": 0.75}
    assert analysis._worst_checks([]) == {}


def test_bytes_and_predictions_are_held_against_what_they_should_be() -> None:
    def inflation(received: float | None, expected: float | None) -> float | None:
        missing = Missing(code="made", detail="made")
        return analysis.ShapeFacts({}, received, expected, None, (), missing, ()).byte_inflation

    assert (inflation(3.0, 2.0), inflation(0.0, 2.0)) == (1.5, 0.0)
    assert inflation(3.0, 0.0) is inflation(None, 2.0) is inflation(3.0, None) is None

    def told(value: float, low: float | None, high: float | None, unit: str) -> Estimate:
        return Estimate(value=value, low=low, high=high, unit=unit, scope="run", method="made", n=1)

    foreseen: Any = Made(time_s=told(3.0, 1.0, 4.0, "s"))
    shape = ScalingShape(64, 2, 2)
    assert analysis.PredictionScore(shape, foreseen, told(2e6, None, None, "us"), "within").error == pytest.approx(0.5)
    assert analysis.PredictionScore(shape, foreseen, None, "unknown").error is None
    bare = {0.99e6: "faster", 1e6: "within", 4e6: "within", 4.01e6: "slower"}
    assert {us: judge_prediction(foreseen.time_s, told(us, None, None, "us")) for us in bare} == bare
    assert judge_prediction(foreseen.time_s, told(0.6e6, 0.5e6, 1e6, "us")) == "within"
    assert judge_prediction(foreseen.time_s, told(5e6, 4e6, 6e6, "us")) == "within"
    assert judge_prediction(foreseen.time_s, None) == "unknown"
    assert judge_prediction(told(3.0, None, None, "s"), told(3e6, 2e6, 4e6, "us")) == "unknown"


def test_energy_is_not_known_where_the_last_rank_is_on_another_machine() -> None:
    unmeasured = Missing(code="not_measured", detail="made")
    timings: Any = Made(timings_of=lambda *_: {}, missing=lambda *_: unmeasured)

    def code(ranks_here: int, *, energy: bool = True) -> str:
        wanted: Any = Made(energy=energy, is_here=lambda rank: rank < ranks_here)
        found = analysis._energy_per_token(wanted, timings, ScalingShape(64, 4, 2))
        assert isinstance(found, Missing)
        return found.code

    assert [code(ranks) for ranks in (3, 4, 5)] == ["remote_ranks", "not_measured", "not_measured"]
    assert code(4, energy=False) == "not_requested"


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("NVIDIA B200", "bfloat16", 2250.0),
        ("NVIDIA B200", "float32", 75.0),
        ("NVIDIA B200", "float64", 37.0),
        ("NVIDIA H200", "float16", 989.4),
        ("NVIDIA H200", "float32", 66.9),
        ("NVIDIA H200", "float64", 66.9),
        ("NVIDIA H200 NVL", "bfloat16", 835.5),
        ("NVIDIA H200 NVL", "float32", 60.0),
        ("NVIDIA H200 NVL", "float64", 60.0),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 80GB HBM3", "float32", 66.9),
        ("NVIDIA H100 80GB HBM3", "float64", 66.9),
        ("NVIDIA H100 NVL", "bfloat16", 835.5),
        ("NVIDIA H100 NVL", "float32", 60.0),
        ("NVIDIA H100 NVL", "float64", 60.0),
        ("NVIDIA H100 PCIe", "bfloat16", 756.0),
        ("NVIDIA H100 PCIe", "float32", 51.2),
        ("NVIDIA H100 PCIe", "float64", 51.2),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312.0),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5),
        ("NVIDIA A100-SXM4-80GB", "float64", 19.5),
        ("NVIDIA L40S", "bfloat16", 362.0),
        ("NVIDIA L40S", "float32", 91.6),
        ("NVIDIA L40S", "float64", None),
        ("NVIDIA L4", "bfloat16", 121.0),
        ("NVIDIA L4", "float32", 30.3),
        ("NVIDIA A10", "bfloat16", 125.0),
        ("NVIDIA A10", "float32", 31.2),
        ("Tesla V100-SXM2-16GB", "float16", 125.0),
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("Tesla V100-SXM2-16GB", "float32", 15.7),
        ("Tesla V100-SXM2-16GB", "float64", 7.8),
        ("Tesla T4", "float16", 65.0),
        ("Tesla T4", "float32", 8.1),
        ("NVIDIA GeForce RTX 4090", "float32", None),
    ],
)
def test_peaks_are_those_of_the_data_sheets(name: str, dtype: str, tera: float | None) -> None:
    assert find_peak_flop_per_s(name, dtype) == (None if tera is None else pytest.approx(tera * 1e12))
