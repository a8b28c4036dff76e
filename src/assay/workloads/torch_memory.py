"""How much memory is free where tensors are to lie."""

from __future__ import annotations

from pathlib import Path

from assay.machine.cgroups import limits
from assay.workloads.torch_device import import_torch

ROOT = Path("/")
MIB = 2**20


def free_bytes(where: str) -> int:
    """Return the bytes that tensors may still take: of a GPU what the driver and PyTorch's own store have left."""
    if where == "cpu":
        return free_on_host(ROOT)
    cuda = import_torch().cuda
    unused = cuda.memory_reserved(where) - cuda.memory_allocated(where)
    return int(cuda.mem_get_info(where)[0]) + int(unused)


def free_on_host(root: Path) -> int:
    """Return what the kernel calls available, and no more than the control group allows this process at all."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    allowed = limits(root).memory_mib
    return available if allowed is None else min(available, int(allowed * MIB))
