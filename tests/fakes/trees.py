"""Machines as trees of sysfs and procfs, with the GPUs that a fake NVML should list beside them.

tree = eight_gpus_on_two_nodes(tmp_path / "root")
with attached(make_fake_nvml(tree.gpus)):
    machine = detect(tree.root)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.fakes.nvml_specs import GIB, Gpu, MigInstance, hopper
from tests.machines import write_tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.machines import CpuTree

NEAR, FAR = 10, 21
NODE_KIB = 64 * 2**20


@dataclass(frozen=True)
class Tree:
    """A described machine."""

    root: Path
    gpus: tuple[Gpu, ...] = ()


def write(root: Path, files: Mapping[str, object]) -> None:
    """Write files of one line each, with the folders they need."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def sockets(count: int, cores: int, threads: int) -> CpuTree:
    """Return CPUs as Linux numbers them: the first thread of every core, then the second ones."""
    whole = count * cores
    return {cpu: (cpu % whole // cores, cpu % cores) for cpu in range(whole * threads)}


def cpu_list(cpus: Sequence[int]) -> str:
    """Write CPUs one by one, as the kernel also reads them."""
    return ",".join(map(str, cpus))


def machine_tree(root: Path, cpus: CpuTree, *, nodes: bool = True, allowed: str | None = None) -> Path:
    """Write a machine whose sockets are its memory nodes, with 64 GiB on each."""
    everything = cpu_list(sorted(cpus))
    packages = sorted({package for package, _ in cpus.values()})
    lists = {p: cpu_list([cpu for cpu, (package, _) in cpus.items() if package == p]) for p in packages}
    write_tree(root, cpus, allowed=allowed or everything, nodes=lists if nodes else None, online=everything)
    write(root, {"sys/devices/system/cpu/present": everything, "proc/sys/kernel/osrelease": "6.1.0-described"})
    for cpu, place in cpus.items():
        siblings = cpu_list([other for other, there in cpus.items() if there == place])
        write(root, {f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": siblings})
    for node in packages if nodes else ():
        distances = " ".join(str(NEAR if other == node else FAR) for other in packages)
        set_memory(root, node, NODE_KIB)
        write(root, {f"sys/devices/system/node/node{node}/distance": distances})
    return root


def set_memory(root: Path, node: int, kib: int) -> None:
    """Give a node so much memory."""
    write(root, {f"sys/devices/system/node/node{node}/meminfo": f"Node {node} MemTotal:       {kib} kB"})


def with_gpus(root: Path, nodes: Sequence[int | None], *, gpu: Gpu | None = None, near: int | None = None) -> Tree:
    """Hang a GPU on each of the nodes named, null for one of which sysfs says -1 and NVML that all cores are near.

    Args:
        root: A tree with cores.
        nodes: The node of each GPU.
        gpu: What the GPUs are; Hoppers by default.
        near: How many CPUs NVML can name; by default the 16 of two sockets with SMT.
    """
    gpus = []
    for index, node in enumerate(nodes):
        bus = 0x1B + 0x10 * index
        write(root, {f"sys/bus/pci/devices/0000:{bus:02x}:00.0/numa_node": -1 if node is None else node})
        gpus.append(
            replace(
                gpu or hopper(),
                pci_bus_id=f"00000000:{bus:02X}:00.0",
                host_numa_node=node,
                cpus=tuple(range(near or 16)),
            )
        )
    return Tree(root, tuple(gpus))


def one_socket(root: Path) -> Tree:
    """Four cores of one thread each, on one node."""
    return Tree(machine_tree(root, sockets(1, 4, 1)))


def two_sockets_with_smt(root: Path) -> Tree:
    """Two packages of four cores of two threads: 16 CPUs, siblings eight apart, on two nodes."""
    return Tree(machine_tree(root, sockets(2, 4, 2)))


def eight_gpus_on_two_nodes(root: Path) -> Tree:
    """Four GPUs on each of two sockets, in order."""
    return with_gpus(two_sockets_with_smt(root).root, (0, 0, 0, 0, 1, 1, 1, 1))


def four_gpus_crossed(root: Path) -> Tree:
    """GPUs 0 and 2 on node 1, 1 and 3 on node 0: counting GPUs over nodes would get every one wrong."""
    return with_gpus(two_sockets_with_smt(root).root, (1, 0, 1, 0))


def gpu_without_a_node(root: Path) -> Tree:
    """Two sockets, and a GPU of which neither sysfs nor NVML knows where it hangs."""
    return with_gpus(two_sockets_with_smt(root).root, (None,))


def mig(root: Path) -> Tree:
    """A GPU cut into two instances on node 1, beside a whole one on node 0."""
    tree = with_gpus(two_sockets_with_smt(root).root, (1, 0))
    instances = (
        MigInstance(memory_total_bytes=18 * GIB, slices=1, multiprocessors=16),
        MigInstance(memory_total_bytes=71 * GIB, slices=3, multiprocessors=60),
    )
    return Tree(tree.root, (replace(tree.gpus[0], mig=instances), tree.gpus[1]))


def limited_by_cgroup_v1(root: Path) -> Tree:
    """16 CPUs of which the first version of control groups leaves 0-3, 2.5 CPUs' worth of time and 8 GiB."""
    tree = two_sockets_with_smt(root)
    mount, path = "sys/fs/cgroup", "batch/job7"
    write(
        root,
        {
            "proc/self/cgroup": f"9:name=systemd:/\n4:memory:/{path}\n3:cpuset:/{path}\n2:cpu,cpuacct:/{path}",
            f"{mount}/cpuset/{path}/cpuset.cpus": "0-3",
            f"{mount}/cpu,cpuacct/{path}/cpu.cfs_quota_us": -1,
            f"{mount}/cpu,cpuacct/{path}/cpu.cfs_period_us": 100000,
            f"{mount}/cpu,cpuacct/batch/cpu.cfs_quota_us": 250000,
            f"{mount}/cpu,cpuacct/batch/cpu.cfs_period_us": 100000,
            f"{mount}/memory/{path}/memory.limit_in_bytes": 8 * GIB,
            f"{mount}/memory/memory.limit_in_bytes": 9223372036854771712,
        },
    )
    return tree


def limited_by_cgroup_v2(root: Path) -> Tree:
    """16 CPUs of which the second version of control groups leaves 8-11, 1.5 CPUs' worth of time and 4 GiB."""
    tree = two_sockets_with_smt(root)
    mount, path = "sys/fs/cgroup", "user.slice/job7"
    write(
        root,
        {
            "proc/self/cgroup": f"0::/{path}",
            f"{mount}/cgroup.controllers": "cpuset cpu memory",
            f"{mount}/{path}/cpu.max": "max 100000",
            f"{mount}/{path}/memory.max": 4 * GIB,
            f"{mount}/user.slice/cpu.max": "150000 100000",
            f"{mount}/user.slice/cpuset.cpus.effective": "8-11",
            f"{mount}/user.slice/memory.max": "max",
            f"{mount}/cpuset.cpus.effective": "0-15",
        },
    )
    return tree


def no_numa(root: Path) -> Tree:
    """Two packages, and a kernel that was built without memory nodes."""
    return Tree(machine_tree(root, sockets(2, 4, 2), nodes=False))


def an_offline_core(root: Path) -> Tree:
    """Two sockets with SMT whose CPUs 3 and 11, one core, are switched off; the mask still allows them."""
    running = {cpu: place for cpu, place in sockets(2, 4, 2).items() if cpu not in {3, 11}}
    tree = Tree(machine_tree(root, running, allowed="0-15"))
    write(root, {"sys/devices/system/cpu/present": "0-15"})
    return tree


def a_memoryless_node(root: Path) -> Tree:
    """Two sockets of which the second has no memory, with a GPU on each."""
    tree = with_gpus(two_sockets_with_smt(root).root, (0, 1))
    set_memory(root, 1, 0)
    return tree
