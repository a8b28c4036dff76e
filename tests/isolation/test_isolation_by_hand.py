"""Who gets which cores, and what still holds, on machines small enough to work it out by hand."""

from __future__ import annotations

import pytest

from assay.core.values import HOST
from assay.isolation import binding, probe
from assay.isolation.binding import HeldIsolation, recheck_isolation
from assay.isolation.placement import Allotment, allot_cores
from tests.machines import machine


@pytest.mark.parametrize(
    ("now", "beyond"), [((0, 1), ()), ((0,), ()), ((0, 1, 2), (2,)), ((2, 3), (2, 3)), ((1, 5, 3), (3, 5))]
)
def test_work_that_moved_beyond_its_cores_was_not_isolated(
    now: tuple[int, ...], beyond: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "process_cpus", lambda: now)
    held = recheck_isolation(HeldIsolation("cpu"), Allotment(device="cpu:0", level="cpu", cpus=(0, 1)))
    assert [(limit.code, limit.cpus) for limit in held.limits] == ([("cpus_changed", beyond)] if beyond else [])
    assert held.level == ("none" if beyond else "cpu")


def test_a_worker_whose_cores_are_not_its_own_keeps_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "process_cpus", lambda: (7,))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0")
    allotment = Allotment(device="cuda:0", level="cpu", cpus=(0,), gpu_uuid="GPU-0")
    assert recheck_isolation(HeldIsolation("cpu"), allotment).level == "gpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    assert recheck_isolation(HeldIsolation("cpu"), allotment).level == "none"


def test_the_host_gets_the_part_of_one_more_device() -> None:
    placement = allot_cores(machine(cores=(12,), gpus=(0, 0, 0)), ("cuda:0", "cuda:1", "cuda:2", HOST), "cpu")
    assert [len(placement.of(device).cpus or ()) for device in ("cuda:0", "cuda:1", "cuda:2", HOST)] == [3, 3, 3, 3]


def test_the_host_takes_from_the_node_that_has_the_most_for_each_worker() -> None:
    placement = allot_cores(machine(cores=(2, 6), gpus=(0, 1)), ("cuda:0", "cuda:1", HOST), "cpu")
    assert set(placement.of(HOST).cpus or ()) <= {2, 3, 4, 5, 6, 7}
    assert len(placement.of(HOST).cpus or ()) == 2
    assert (len(placement.of("cuda:0").cpus or ()), len(placement.of("cuda:1").cpus or ())) == (2, 4)


def test_what_can_hold_for_all_devices_is_the_lowest_that_holds_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        probe, "probe_full_isolation", lambda *_: [HeldIsolation("full"), HeldIsolation("cpu"), HeldIsolation("full")]
    )
    found, _ = probe.check_isolation(machine(cores=(8,), gpus=(0, 0, 0)))
    assert (found.verdict, found.facts["level"]) == ("no", "cpu")
