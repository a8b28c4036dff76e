"""Machines that are not there: as values, as generated values, and as trees of sysfs and procfs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from hypothesis import strategies as st

from assay.machine.model import Core, Gpu, Machine, NumaNode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CpuTree: TypeAlias = "Mapping[int, tuple[int, int]]"
"""Logical CPU → its package and its core."""


def machine(*, cores: Sequence[int] = (4,), smt: int = 1, gpus: Sequence[int | None] = (), **changes: Any) -> Machine:
    """Return a machine with so many cores on each node and a GPU on each of the nodes named, null for unknown."""
    nodes = [node for node, count in enumerate(cores) for _ in range(count)]
    told: dict[str, Any] = {
        "host": "0123456789abcdef",
        "boot_id": "a-boot",
        "architecture": "x86_64",
        "kernel": "6.1.0",
        "cpu_model": "Example 9000",
        "memory_mib": 65536.0,
        "cores": tuple(
            Core(package=node, core=number, node=node, cpus=tuple(number + s * len(nodes) for s in range(smt)))
            for number, node in enumerate(nodes)
        ),
        "nodes": tuple(NumaNode(id=node) for node in range(len(cores))),
        "gpus": tuple(Gpu(index=n, uuid=f"GPU-{n}", name="Example", node=node) for n, node in enumerate(gpus)),
        "gpu_note": None if gpus else "NVML does not answer: no driver",
    }
    return Machine(**{**told, **changes})


@st.composite
def machines(draw: st.DrawFn, *, least_gpus: int = 0, most_cores: int = 16) -> Machine:
    """Generate machines of 1 to 4 nodes with cores on each, with and without SMT and GPUs."""
    cores = draw(st.lists(st.integers(1, most_cores), min_size=1, max_size=4))
    node = st.one_of(st.none(), st.integers(0, len(cores) - 1))
    gpus = draw(st.lists(node, min_size=least_gpus, max_size=8))
    return machine(cores=cores, smt=draw(st.integers(1, 2)), gpus=gpus)


def write_tree(
    root: Path,
    cpus: CpuTree,
    *,
    allowed: str,
    nodes: Mapping[int, str] | None = None,
    online: str | None = None,
) -> Path:
    """Write the files that Linux shows for such cores; no nodes: a kernel that knows of none."""
    for cpu, (package, core) in cpus.items():
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "core_id").write_text(f"{core}\n")
    if online is not None:
        (root / "sys/devices/system/cpu/online").write_text(f"{online}\n")
    for node, cpulist in (nodes or {}).items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpulist}\n")
    status = root / "proc/self/status"
    status.parent.mkdir(parents=True)
    status.write_text(f"Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t0\n")
    return root
