"""Look at the machine: cores and nodes from sysfs, GPUs from NVML, versions, the commit being measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from assay._version import __version__
from assay.core.processes import boot_id, host_id
from assay.machine import nvidia
from assay.machine.cores import node_of_cpu, physical_cores
from assay.machine.model import Machine

if TYPE_CHECKING:
    from assay.machine.model import Gpu

_PACKAGES = ("numpy", "scipy", "torch", "triton", "helion")


def detect(root: str | Path = "/", *, name_host: bool = False) -> Machine:
    """Return what is here; ``root`` may be a recorded tree of sysfs and procfs."""
    tree = Path(root)
    view = nvidia.look()
    commit, dirty = _git_state()
    return Machine(
        host=host_id(),
        boot_id=boot_id(),
        hostname=platform.node() if name_host else None,
        architecture=platform.machine(),
        kernel=platform.release(),
        cpu_model=_cpu_model(tree),
        memory_mib=_memory_mib(tree),
        cores=physical_cores(tree),
        nodes=tuple(sorted(set(node_of_cpu(tree).values()))),
        gpus=tuple(_with_node(gpu, tree) for gpu in view.gpus),
        gpu_note=view.note,
        driver=view.driver,
        versions=_versions(),
        git_commit=commit,
        git_dirty=dirty,
    )


def _with_node(gpu: Gpu, root: Path) -> Gpu:
    """Add the memory node that sysfs gives for the GPU's PCI address; -1 there means unknown."""
    if gpu.pci_bus_id is None:
        return gpu
    address = re.sub(r"^0000([0-9a-f]{4}:)", r"\1", gpu.pci_bus_id.lower())
    path = root / f"sys/bus/pci/devices/{address}/numa_node"
    node = int(path.read_text()) if path.exists() else -1
    return gpu.model_copy(update={"node": node if node >= 0 else None})


def _cpu_model(root: Path) -> str | None:
    path = root / "proc/cpuinfo"
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", path.read_text(), re.MULTILINE) if path.exists() else None
    return match[1].strip() if match else None


def _memory_mib(root: Path) -> float | None:
    path = root / "proc/meminfo"
    match = re.search(r"^MemTotal:\s*(\d+) kB", path.read_text(), re.MULTILINE) if path.exists() else None
    return int(match[1]) / 1024 if match else None


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version(), "assay": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _git_state() -> tuple[str | None, bool | None]:
    """Return the commit checked out in the working folder and whether it was changed; nulls outside of git."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        commit = _git(environment, "rev-parse", "HEAD")
        return commit, bool(_git(environment, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10, env=environment)
    return done.stdout.strip()
