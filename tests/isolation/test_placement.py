"""Laws of sharing cores out, over machines of every shape."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.isolation.placement import (
    LEVELS,
    Allotment,
    allot_cores,
    includes_level,
    list_devices,
    parse_level,
)
from assay.machine.devices import group_count
from tests.machines import machine, machines

if TYPE_CHECKING:
    from assay.core.values import Isolation
    from assay.isolation.placement import Placement
    from assay.machine.model import Core, Machine

PINNING: tuple[Isolation, ...] = ("cpu", "numa", "full")
pinning_levels = st.sampled_from(PINNING)
laws = settings(deadline=None, max_examples=60)


@st.composite
def gpu_cases(draw: st.DrawFn) -> tuple[Machine, tuple[str, ...]]:
    """Generate a machine and some of its GPUs, in any order."""
    made = draw(machines(least_gpus=1) | machines(least_gpus=4, most_cores=2))
    names = [f"cuda:{gpu.index}" for gpu in made.gpus]
    return made, tuple(draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))


@st.composite
def group_cases(draw: st.DrawFn) -> tuple[Machine, tuple[str, ...], int]:
    """Generate a machine parted into groups of cores, and some of them."""
    made = draw(machines())
    groups = draw(st.integers(1, len(made.cores)))
    names = [f"cpu:{group}" for group in range(groups)]
    return made, tuple(draw(st.lists(st.sampled_from(names), min_size=1, unique=True))), groups


def nodes_of(made: Machine, devices: tuple[str, ...]) -> dict[str, int | None]:
    """Return each device's memory node; if one is unknown, all are, as the cores of all are then shared out."""
    nodes = {device: made.gpus[int(device.partition(":")[2])].node for device in devices}
    return dict.fromkeys(devices) if None in nodes.values() else nodes


def suffices(made: Machine, devices: tuple[str, ...]) -> bool:
    """Return whether every GPU can have a core of its own where it belongs."""
    there = Counter(core.node for core in made.cores)
    wanted = Counter(nodes_of(made, devices).values())
    return all(count <= (len(made.cores) if node is None else there[node]) for node, count in wanted.items())


def cores_of(made: Machine, allotment: Allotment) -> list[Core]:
    """Return the physical cores that an allotment touches."""
    return [core for core in made.cores if set(core.cpus) & set(allotment.cpus or ())]


def assert_disjoint(placement: Placement) -> None:
    held = Counter(cpu for allotment in placement.allotments for cpu in allotment.cpus or ())
    held.update(placement.kept_cpus)
    assert set(held.values()) <= {1}


@laws
@given(gpu_cases(), pinning_levels)
def test_gpus_get_disjoint_cores_when_there_are_enough_and_a_note_says_when_there_are_not(
    case: tuple[Machine, tuple[str, ...]], level: Isolation
) -> None:
    made, devices = case
    placement = allot_cores(made, devices, level)
    assert all(allotment.cpus for allotment in placement.allotments)
    sharing = [note for note in placement.notes if note.code == "gpus_share_cores"]
    if suffices(made, devices):
        assert_disjoint(placement)
        assert not sharing
    else:
        assert sharing


@laws
@given(gpu_cases(), pinning_levels)
def test_every_device_gets_whole_physical_cores(case: tuple[Machine, tuple[str, ...]], level: Isolation) -> None:
    made, devices = case
    for allotment in allot_cores(made, devices, level).allotments:
        whole = sorted(cpu for core in cores_of(made, allotment) for cpu in core.cpus)
        assert whole == list(allotment.cpus or ())


@laws
@given(gpu_cases(), pinning_levels)
def test_a_gpu_gets_cores_of_its_own_node_where_the_nodes_are_known(
    case: tuple[Machine, tuple[str, ...]], level: Isolation
) -> None:
    made, devices = case
    placement, nodes = allot_cores(made, devices, level), nodes_of(made, devices)
    unknown = "gpu_node_unknown" in {note.code for note in placement.notes}
    assert unknown == (None in nodes.values() and len(made.nodes) > 1)
    for device, node in nodes.items():
        if node is not None:
            assert {core.node for core in cores_of(made, placement.of(device))} == {node}


@laws
@given(gpu_cases(), pinning_levels)
def test_gpus_of_one_node_get_equally_many_cores(case: tuple[Machine, tuple[str, ...]], level: Isolation) -> None:
    made, devices = case
    placement = allot_cores(made, devices, level)
    sizes: dict[int | None, set[int]] = {}
    for device, node in nodes_of(made, devices).items():
        sizes.setdefault(node, set()).add(len(cores_of(made, placement.of(device))))
    assert all(len(found) == 1 for found in sizes.values())


@laws
@given(group_cases(), pinning_levels)
def test_groups_of_cores_are_disjoint_whole_and_equal(
    case: tuple[Machine, tuple[str, ...], int], level: Isolation
) -> None:
    made, devices, groups = case
    placement = allot_cores(made, devices, level, cpu_groups=groups)
    assert_disjoint(placement)
    touched = [cores_of(made, allotment) for allotment in placement.allotments]
    assert len({len(cores) for cores in touched}) == 1
    for allotment, cores in zip(placement.allotments, touched, strict=True):
        assert cores
        assert sorted(cpu for core in cores for cpu in core.cpus) == list(allotment.cpus or ())


@laws
@given(group_cases(), pinning_levels)
def test_a_group_has_the_same_cores_whoever_runs_beside_it(
    case: tuple[Machine, tuple[str, ...], int], level: Isolation
) -> None:
    made, devices, groups = case
    together = allot_cores(made, devices, level, cpu_groups=groups)
    for device in devices:
        assert allot_cores(made, (device,), level, cpu_groups=groups).of(device) == together.of(device)


@laws
@given(gpu_cases(), st.booleans())
def test_only_the_full_level_keeps_cores_for_the_parent_and_says_when_there_are_none(
    case: tuple[Machine, tuple[str, ...]], on_gpus: bool
) -> None:
    made, devices = case if on_gpus else (case[0], tuple(f"cpu:{n}" for n in range(group_count(case[0], None))))
    for level in ("none", "gpu", "cpu", "numa"):
        assert allot_cores(made, devices, parse_level(level)).kept_cpus == ()
    full = allot_cores(made, devices, "full")
    used = {cpu for allotment in full.allotments for cpu in allotment.cpus or ()}
    assert not used & set(full.kept_cpus)
    assert used | set(full.kept_cpus) == set(made.cpus)
    assert ("no_parent_core" in {note.code for note in full.notes}) == (not full.kept_cpus)


@laws
@given(group_cases())
def test_a_core_is_kept_whenever_there_are_more_cores_than_groups(
    case: tuple[Machine, tuple[str, ...], int],
) -> None:
    made, _, groups = case
    everyone = tuple(f"cpu:{group}" for group in range(groups))
    assert bool(allot_cores(made, everyone, "full", cpu_groups=groups).kept_cpus) == (len(made.cores) > groups)


@laws
@given(gpu_cases())
def test_lower_levels_restrict_no_core_no_memory_and_no_thread(case: tuple[Machine, tuple[str, ...]]) -> None:
    made, devices = case
    for device in devices:
        uuid = made.gpus[int(device.partition(":")[2])].uuid
        assert allot_cores(made, devices, "none").of(device) == Allotment(device=device, level="none")
        assert allot_cores(made, devices, "gpu").of(device) == Allotment(device=device, level="gpu", gpu_uuid=uuid)
    for level in ("none", "gpu"):
        groups = allot_cores(made, ("cpu:0",), parse_level(level))
        assert groups.of("cpu:0") == Allotment(device="cpu:0", level=parse_level(level))
        assert (groups.kept_cpus, groups.notes) == ((), ())


@laws
@given(gpu_cases())
def test_each_level_adds_to_the_one_below(case: tuple[Machine, tuple[str, ...]]) -> None:
    made, devices = case
    cpu, numa, full = (allot_cores(made, devices, level) for level in PINNING)
    for device in devices:
        cores = cores_of(made, full.of(device))
        assert numa.of(device).cpus == cpu.of(device).cpus
        assert (cpu.of(device).nodes, cpu.of(device).threads, numa.of(device).threads) == (None, None, None)
        assert numa.of(device).nodes == tuple(sorted({c.node for c in cores_of(made, numa.of(device))}))
        assert full.of(device).nodes == tuple(sorted({core.node for core in cores}))
        assert full.of(device).threads == len(cores)
        assert {p.of(device).gpu_uuid for p in (cpu, numa, full)} == {made.gpus[int(device[5:])].uuid}


@laws
@given(gpu_cases(), pinning_levels)
def test_the_same_question_has_the_same_answer(case: tuple[Machine, tuple[str, ...]], level: Isolation) -> None:
    made, devices = case
    assert allot_cores(made, devices, level) == allot_cores(made, devices, level)


def test_two_gpus_on_two_nodes_share_nothing() -> None:
    made = machine(cores=(2, 2), smt=2, gpus=(1, 0))
    placement = allot_cores(made, ("cuda:0", "cuda:1"), "full")
    assert placement.of("cuda:0") == Allotment(
        device="cuda:0", level="full", cpus=(2, 6), nodes=(1,), threads=1, gpu_uuid="GPU-0"
    )
    assert placement.of("cuda:1").cpus == (0, 4)
    assert placement.kept_cpus == (1, 3, 5, 7)


def test_the_note_about_too_few_cores_names_the_node_and_the_gpus() -> None:
    made = machine(cores=(1, 4), gpus=(0, 0, 1))
    notes = allot_cores(made, ("cuda:0", "cuda:1", "cuda:2"), "cpu").notes
    assert [str(note) for note in notes] == ["1 cores on node 0 for 2 GPUs: cuda:0, cuda:1 share cores"]


def test_a_gpu_on_a_node_whose_cores_this_process_may_not_use_still_gets_cores() -> None:
    made = machine(cores=(4,), gpus=(1,))
    placement = allot_cores(made, ("cuda:0",), "numa")
    assert placement.of("cuda:0").cpus == (0, 1, 2, 3)
    assert placement.of("cuda:0").nodes == (0,)


def test_gpus_and_groups_of_cores_are_not_placed_side_by_side() -> None:
    with pytest.raises(BadInput, match="their cores would overlap"):
        allot_cores(machine(gpus=(0,)), ("cuda:0", "cpu:0"), "cpu")


def test_there_are_two_groups_of_cores_unless_asked_otherwise_or_there_is_one_core() -> None:
    assert list_devices(machine(cores=(4,), gpus=(0, None))) == ("cuda:0", "cuda:1", "cpu:0", "cpu:1")
    assert list_devices(machine(cores=(1,))) == ("cpu:0",)
    assert list_devices(machine(cores=(4,)), cpu_groups=3) == ("cpu:0", "cpu:1", "cpu:2")


def test_groups_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadInput, match="0 groups of cores make no sense"):
        group_count(machine(), 0)
    with pytest.raises(
        MachineCannot, match="5 groups of cores need 5 physical cores; this process may use 4"
    ) as caught:
        group_count(machine(cores=(4,)), 5)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_read_in_any_case(level: Isolation) -> None:
    assert parse_level(level.upper()) == level
    assert includes_level(level, level)
    assert includes_level("full", level)
    assert includes_level(level, "none")


def test_an_unknown_level_is_answered_with_those_there_are() -> None:
    with pytest.raises(BadInput, match=r"there are none, gpu, cpu, numa, full\. Did you mean full\?") as caught:
        parse_level("ful")
    assert caught.value.exit_code == 2
