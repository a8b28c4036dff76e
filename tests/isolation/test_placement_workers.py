"""Several workers on a device, and loads on the host: who gets which cores."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.values import HOST
from assay.isolation.placement import Allotment, allot_cores
from tests.machines import machine, machines

if TYPE_CHECKING:
    from assay.core.values import Isolation
    from assay.isolation.placement import Placement
    from assay.machine.model import Machine

pinning_levels = st.sampled_from(("cpu", "numa", "full"))
laws = settings(deadline=None, max_examples=30)


def held(placement: Placement) -> Counter[int]:
    """Return how often each CPU is allotted or kept."""
    found = Counter(cpu for allotment in placement.allotments for cpu in allotment.cpus or ())
    found.update(placement.kept_cpus)
    return found


def nodes_of(made: Machine, allotment: Allotment) -> set[int]:
    """Return the nodes that an allotment's cores are on."""
    return {core.node for core in made.cores if set(core.cpus) & set(allotment.cpus or ())}


@pytest.mark.parametrize("level", ["cpu", "numa", "full"])
@pytest.mark.parametrize("gpus", [4, 8])
def test_two_workers_on_each_gpu_and_a_load_on_the_host_share_no_core(gpus: int, level: Isolation) -> None:
    made = machine(cores=(32, 32), smt=2, gpus=[n * 2 // gpus for n in range(gpus)])
    devices = tuple(f"cuda:{n}" for n in range(gpus))
    placement = allot_cores(made, (*devices, HOST), level, workers=dict.fromkeys(devices, 2))
    assert set(held(placement).values()) == {1}
    for n, device in enumerate(devices):
        workers = [placement.of(device, worker) for worker in range(2)]
        assert [nodes_of(made, each) for each in workers] == [{n * 2 // gpus}] * 2
        assert len({len(each.cpus or ()) for each in workers}) == 1
        assert all(each.gpu_uuid == f"GPU-{n}" for each in workers)
    host = placement.of(HOST)
    assert nodes_of(made, host) == {0, 1}
    assert host.gpu_uuid is None
    assert (host.nodes == (0, 1)) == (level != "cpu")


@laws
@given(machines(least_gpus=1), st.integers(1, 3), pinning_levels)
def test_workers_and_the_host_are_disjoint_where_there_is_a_core_for_each_and_else_a_note_says_so(
    made: Machine, count: int, level: Isolation
) -> None:
    devices = tuple(f"cuda:{gpu.index}" for gpu in made.gpus)
    placement = allot_cores(made, (*devices, HOST), level, workers=dict.fromkeys(devices, count))
    assert all(allotment.cpus for allotment in placement.allotments)
    assert len(placement.allotments) == count * len(devices) + 1
    shared = set(held(placement).values()) != {1}
    sharing = {note.code for note in placement.notes} & {"host_shares_cores", "gpus_share_cores", "workers_share_cores"}
    assert not shared or sharing


@laws
@given(machines(), st.integers(1, 4), pinning_levels)
def test_workers_of_a_group_of_cores_part_what_the_group_has(made: Machine, count: int, level: Isolation) -> None:
    whole = set(allot_cores(made, ("cpu:0",), "cpu").of("cpu:0").cpus or ())
    placement = allot_cores(made, ("cpu:0",), level, workers={"cpu:0": count})
    parts = [set(placement.of("cpu:0", worker).cpus or ()) for worker in range(count)]
    assert all(part and part <= whole for part in parts)
    if "workers_share_cores" not in {note.code for note in placement.notes}:
        assert sum(map(len, parts)) == len(set.union(*parts))


@laws
@given(machines(), pinning_levels)
def test_the_host_takes_cores_that_no_group_in_use_got(made: Machine, level: Isolation) -> None:
    placement = allot_cores(made, ("cpu:0", HOST), level)
    if len(made.cores) > 1:
        assert not set(placement.of(HOST).cpus or ()) & set(placement.of("cpu:0").cpus or ())
        assert placement.of("cpu:0") == allot_cores(made, ("cpu:0",), level).of("cpu:0")
    else:
        assert "host_shares_cores" in {note.code for note in placement.notes}


def test_on_two_cores_the_host_takes_the_one_that_the_device_did_not_get() -> None:
    placement = allot_cores(machine(cores=(2,)), ("cpu:0", HOST), "full")
    assert [placement.of(device).cpus for device in ("cpu:0", HOST)] == [(0,), (1,)]


def test_where_every_group_is_a_device_the_host_gets_one_more_group() -> None:
    placement = allot_cores(machine(cores=(8,)), ("cpu:0", "cpu:1", HOST), "full")
    assert [len(a.cpus or ()) for a in placement.allotments] == [2, 2, 2]
    assert set(held(placement).values()) == {1}
    assert len(placement.kept_cpus) == 2


def test_two_cores_for_two_devices_and_the_host_are_shared_and_a_note_says_so() -> None:
    placement = allot_cores(machine(cores=(2,)), ("cpu:0", "cpu:1", HOST), "cpu")
    assert placement.of(HOST).cpus == (0, 1)
    assert [(note.code, note.params) for note in placement.notes] == [("host_shares_cores", {"cores": 2})]


def test_two_workers_on_one_core_share_it_and_a_note_says_so() -> None:
    placement = allot_cores(machine(cores=(1, 3), gpus=(0, 1)), ("cuda:0", "cuda:1"), "cpu", workers={"cuda:0": 2})
    assert [placement.of("cuda:0", worker).cpus for worker in range(2)] == [(0,), (0,)]
    (note,) = placement.notes
    assert (note.code, note.params) == ("workers_share_cores", {"cores": 1, "workers": 2})


def test_a_core_is_not_kept_for_the_parent_at_the_price_of_a_worker() -> None:
    placement = allot_cores(machine(cores=(2,), gpus=(0,)), ("cuda:0",), "full", workers={"cuda:0": 2})
    assert [placement.of("cuda:0", worker).cpus for worker in range(2)] == [(0,), (1,)]
    assert placement.kept_cpus == ()


def test_each_worker_gets_as_many_threads_as_it_has_cores() -> None:
    placement = allot_cores(machine(cores=(9,), smt=2, gpus=(0,)), ("cuda:0",), "full", workers={"cuda:0": 2})
    assert [placement.of("cuda:0", worker).threads for worker in range(2)] == [4, 4]
    assert len(placement.kept_cpus) == 2


@pytest.mark.parametrize("level", ["none", "gpu"])
def test_below_the_level_of_cores_the_host_runs_anywhere(level: Isolation) -> None:
    placement = allot_cores(machine(gpus=(0,)), ("cuda:0", HOST), level, workers={"cuda:0": 2})
    assert placement.of(HOST) == Allotment(device=HOST, level=level)
    assert placement.of("cuda:0", 1).worker == 1
    assert placement.notes == ()
