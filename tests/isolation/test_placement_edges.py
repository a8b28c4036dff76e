"""Where allotments tip over: one level, one core or one node more or fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.values import HOST
from assay.isolation.placement import LEVELS, Allotment, allot_cores, includes_level, parse_level
from assay.machine.model import ControlGroupLimits, NumaNode
from tests.machines import machine

if TYPE_CHECKING:
    from assay.core.values import Isolation
    from assay.isolation.placement import Placement
    from assay.machine.model import Machine


def cpus(placement: Placement, *names: str) -> list[tuple[int, ...]]:
    """Return the CPUs of the first worker of some devices."""
    return [placement.of(name).cpus or () for name in names]


def test_levels_go_from_none_to_full() -> None:
    for at, level in enumerate(LEVELS):
        assert [includes_level(level, other) for other in LEVELS] == [True] * (at + 1) + [False] * (4 - at)
        assert parse_level(level) == level
    assert Allotment(device="cpu:0", level="none").worker == 0


def test_the_workers_of_a_device_are_told_apart() -> None:
    placement = allot_cores(machine(cores=(8,), gpus=(0, 0)), ("cuda:0", "cuda:1"), "cpu", workers={"cuda:1": 2})
    assert [(a.device, a.worker, a.cpus, a.gpu_uuid) for a in placement.allotments] == [
        ("cuda:0", 0, (0, 1, 2, 3), "GPU-0"),
        ("cuda:1", 0, (4, 5), "GPU-1"),
        ("cuda:1", 1, (6, 7), "GPU-1"),
    ]
    assert placement.of("cuda:1") == placement.allotments[1]
    assert placement.of("cuda:1", 1) == placement.allotments[2]


@pytest.mark.parametrize(("level", "uuid"), [("none", None), ("gpu", "GPU-0")])
def test_below_the_level_of_cores_nothing_but_a_gpu_is_ones_own(level: Isolation, uuid: str | None) -> None:
    placement = allot_cores(machine(gpus=(0,)), ("cuda:0", HOST), level, workers={"cuda:0": 2})
    assert [(a.device, a.worker, a.gpu_uuid) for a in placement.allotments] == [
        ("cuda:0", 0, uuid),
        ("cuda:0", 1, uuid),
        (HOST, 0, None),
    ]
    assert {a.cpus for a in placement.allotments} == {None}


def test_the_full_level_alone_keeps_a_core_and_limits_threads() -> None:
    there = machine(cores=(4,), smt=2)
    cpu, full = (allot_cores(there, ("cpu:0", "cpu:1"), level) for level in ("cpu", "full"))
    assert (cpus(cpu, "cpu:0", "cpu:1"), cpu.kept_cpus, cpu.notes) == ([(0, 1, 4, 5), (2, 3, 6, 7)], (), ())
    assert (cpus(full, "cpu:0", "cpu:1"), full.kept_cpus, full.notes) == ([(0, 4), (1, 5)], (2, 3, 6, 7), ())
    assert [(p.of("cpu:0").threads, p.of("cpu:0").nodes) for p in (cpu, full)] == [(None, None), (1, (0,))]


def test_where_no_core_is_left_for_the_parent_only_the_full_level_says_so() -> None:
    there = machine(cores=(2,))
    assert allot_cores(there, ("cpu:0", "cpu:1"), "numa").notes == ()
    full = allot_cores(there, ("cpu:0", "cpu:1"), "full")
    assert [note.code for note in full.notes] == ["no_parent_core"]
    assert full.kept_cpus == ()


def with_memory(*mib: float | None, distances: tuple[int, ...]) -> Machine:
    """Return a machine of three nodes of one core each, with so much memory and these distances from node 0."""
    far = (distances, (20, 10, 20), (20, 20, 10)) if distances else ((), (), ())
    nodes = tuple(NumaNode(id=n, cpus=(n,), memory_mib=mib[n], distances=far[n]) for n in range(3))
    return machine(cores=(1, 1, 1), gpus=(0,), nodes=nodes)


@pytest.mark.parametrize(
    ("mib", "distances", "home"),
    [
        ((0.0, 64.0, 64.0), (10, 32, 16), 2),
        ((0.0, 64.0, 64.0), (10, 16, 32), 1),
        ((0.0, 64.0, 1.0), (10, 32, 16), 2),
        ((0.0, 64.0, None), (10, 32, 16), 2),
        ((0.0, 64.0, 0.0), (10, 32, 16), 1),
        ((1.0, 64.0, 64.0), (10, 32, 16), None),
        ((None, 64.0, 64.0), (10, 32, 16), None),
        ((0.0, 0.0, 0.0), (10, 32, 16), None),
        ((0.0, 64.0, 64.0), (), None),
    ],
)
def test_memory_comes_from_the_nearest_node_that_has_some(
    mib: tuple[float | None, ...], distances: tuple[int, ...], home: int | None
) -> None:
    placement = allot_cores(with_memory(*mib, distances=distances), ("cuda:0",), "numa")
    assert placement.of("cuda:0").nodes == (home or 0,)
    homes = {note.params["node"]: note.params["memory_node"] for note in placement.notes}
    assert homes.get(0) == home
    assert not (1 in homes and mib[1])


@pytest.mark.parametrize(("quota", "said"), [(None, False), (4.0, False), (4.5, False), (3.99, True)])
def test_a_quota_of_exactly_the_allotted_cpus_is_enough(quota: float | None, said: bool) -> None:
    there = machine(cores=(4,), limits=ControlGroupLimits(cpu_quota=quota))
    notes = allot_cores(there, ("cpu:0", "cpu:1"), "cpu").notes
    assert [(note.code, note.params) for note in notes] == [("cpu_quota", {"quota": 3.99, "cpus": 4})] * said
