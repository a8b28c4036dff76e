"""Detection of whole machines from their trees, with a fake NVML beside them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.machine.detect import detect
from assay.machine.linux import read_physical_cores
from assay.machine.model import Core, Machine, NumaNode, describe_differences
from tests.fakes import trees
from tests.fakes.fake_nvml import attached

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fakes.plugin import MakeFakeNvml
    from tests.fakes.trees import Tree
    from tests.machines import CpuTree

    Detect = Callable[[Callable[[Path], Tree]], Machine]

ALL = (
    trees.one_socket,
    trees.two_sockets_with_smt,
    trees.eight_gpus_on_two_nodes,
    trees.four_gpus_crossed,
    trees.gpu_without_a_node,
    trees.mig,
    trees.limited_by_cgroup_v1,
    trees.limited_by_cgroup_v2,
    trees.no_numa,
    trees.an_offline_core,
    trees.a_memoryless_node,
)


@pytest.fixture
def detected(tmp_path: Path, make_fake_nvml: MakeFakeNvml) -> Detect:
    """Detects the machine that a function of `trees` describes."""

    def look(describe: Callable[[Path], Tree]) -> Machine:
        tree = describe(tmp_path / "root")
        with attached(make_fake_nvml(tree.gpus)):
            return detect(tree.root)

    return look


def test_one_socket_is_four_cores_on_one_node(detected: Detect) -> None:
    there = detected(trees.one_socket)
    assert [core.cpus for core in there.cores] == [(0,), (1,), (2,), (3,)]
    assert there.nodes == (NumaNode(id=0, cpus=(0, 1, 2, 3), memory_mib=65536.0, distances=(10,)),)
    assert (there.cpu.packages, there.cpu.smt, there.cpu.offline_cpus) == (1, False, ())
    assert there.kernel == "6.1.0-described"


def test_two_sockets_with_smt_keep_siblings_together(detected: Detect) -> None:
    there = detected(trees.two_sockets_with_smt)
    assert there.cores[0] == Core(package=0, core=0, node=0, cpus=(0, 8))
    assert [core.cpus for core in there.cores if core.node == 1] == [(4, 12), (5, 13), (6, 14), (7, 15)]
    assert (there.cpu.packages, there.cpu.smt) == (2, True)
    assert [node.distances for node in there.nodes] == [(10, 21), (21, 10)]
    assert there.limits.cpus is None


def test_eight_gpus_hang_on_the_nodes_that_sysfs_gives(detected: Detect) -> None:
    there = detected(trees.eight_gpus_on_two_nodes)
    assert [gpu.node for gpu in there.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(there.links) == 8 * 7 // 2
    paths = {(link.gpus[0] // 4 == link.gpus[1] // 4, link.path) for link in there.links}
    assert paths == {(True, "node"), (False, "system")}


def test_gpus_in_crossed_order_are_not_counted_over_the_nodes(detected: Detect) -> None:
    assert [gpu.node for gpu in detected(trees.four_gpus_crossed).gpus] == [1, 0, 1, 0]


def test_a_gpu_without_a_node_has_none(detected: Detect) -> None:
    assert [gpu.node for gpu in detected(trees.gpu_without_a_node).gpus] == [None]


def test_a_gpu_cut_into_instances_lists_them_as_devices(detected: Detect) -> None:
    there = detected(trees.mig)
    cut, whole = there.gpus
    assert (cut.mig, whole.mig, whole.instances) == (True, False, ())
    assert [(one.number, one.profile, one.slices) for one in cut.instances] == [(0, "1g.18gb", 1), (1, "3g.71gb", 3)]
    assert [(one.parent, one.memory_mib) for one in cut.instances] == [(cut.uuid, 18432.0), (cut.uuid, 72704.0)]
    assert [(one.gpu_instance, one.compute_instance, one.multiprocessors) for one in cut.instances] == [
        (7, 0, 16),
        (8, 0, 60),
    ]
    assert all(one.uuid.startswith("MIG-") for one in cut.instances)


def test_the_first_version_of_control_groups_limits_cores_time_and_memory(detected: Detect) -> None:
    there = detected(trees.limited_by_cgroup_v1)
    assert there.cpus == (0, 1, 2, 3)
    assert [core.foreign_cpus for core in there.cores] == [(8,), (9,), (10,), (11,)]
    assert (there.limits.cpus, there.limits.cpu_quota, there.limits.memory_mib) == ((0, 1, 2, 3), 2.5, 8192.0)


def test_the_second_version_of_control_groups_limits_cores_time_and_memory(detected: Detect) -> None:
    there = detected(trees.limited_by_cgroup_v2)
    assert there.cpus == (8, 9, 10, 11)
    assert [core.foreign_cpus for core in there.cores] == [(0,), (1,), (2,), (3,)]
    assert (there.limits.cpu_quota, there.limits.memory_mib) == (1.5, 4096.0)


def test_without_numa_all_cores_count_as_one_node(detected: Detect) -> None:
    there = detected(trees.no_numa)
    assert there.nodes == ()
    assert {core.node for core in there.cores} == {0}
    assert len(there.cores) == 8


def test_a_core_that_is_switched_off_is_named_and_not_used(detected: Detect) -> None:
    there = detected(trees.an_offline_core)
    assert there.cpu.offline_cpus == (3, 11)
    assert len(there.cores) == 7
    assert not {3, 11} & set(there.cpus)


def test_a_node_without_memory_is_told_from_one_that_does_not_say(detected: Detect) -> None:
    there = detected(trees.a_memoryless_node)
    assert [node.memory_mib for node in there.nodes] == [65536.0, 0.0]


@pytest.mark.parametrize("describe", ALL)
def test_every_machine_is_the_same_after_being_written_and_read(
    describe: Callable[[Path], Tree], detected: Detect
) -> None:
    there = detected(describe)
    back = Machine.model_validate(json.loads(json.dumps(there.as_json())))
    assert back == there
    assert describe_differences(there, back) == []


@pytest.mark.full
@pytest.mark.parametrize("describe", ALL)
def test_every_machine_is_known_again_at_a_second_look(
    describe: Callable[[Path], Tree], tmp_path: Path, make_fake_nvml: MakeFakeNvml
) -> None:
    tree = describe(tmp_path / "root")
    with attached(make_fake_nvml(tree.gpus)):
        assert describe_differences(detect(tree.root), Machine.detect(tree.root)) == []


@st.composite
def described(draw: st.DrawFn) -> tuple[CpuTree, set[int], set[int] | None]:
    """Generate sockets, cores and threads, what the affinity allows of them, and what a control group does."""
    cpus = trees.sockets(draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 2)))
    some = st.sets(st.sampled_from(sorted(cpus)), min_size=1)
    return cpus, draw(some), draw(st.none() | some)


@settings(deadline=None, max_examples=25)
@given(case=described())
def test_cores_part_what_affinity_and_control_group_allow_and_name_their_other_siblings(
    case: tuple[CpuTree, set[int], set[int] | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    cpus, affinity, group = case
    root = trees.machine_tree(tmp_path_factory.mktemp("tree"), cpus, allowed=trees.cpu_list(sorted(affinity)))
    if group is not None:
        trees.write(root, {"proc/self/cgroup": "1:cpuset:/"})
        trees.write(root, {"sys/fs/cgroup/cpuset/cpuset.cpus": trees.cpu_list(sorted(group))})
    cores = read_physical_cores(root)
    allowed = (affinity & group if group is not None else affinity) or affinity
    assert sorted(cpu for core in cores for cpu in core.cpus) == sorted(allowed)
    for core in cores:
        whole = {cpu for cpu, place in cpus.items() if place == cpus[core.cpus[0]]}
        assert {*core.cpus, *core.foreign_cpus} == whole
        assert core.node == core.package == cpus[core.cpus[0]][0]
