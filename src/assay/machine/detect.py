"""Detect the machine: cores and nodes from sysfs, GPUs from their driver, versions, and the commit being measured."""

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
from assay.machine.linux import (
    detect_container,
    detect_hypervisor,
    detect_mps,
    read_cpu,
    read_limits,
    read_memory_nodes,
    read_number,
    read_physical_cores,
    read_text_or_none,
)
from assay.machine.model import Machine, NodeHint

if TYPE_CHECKING:
    from assay.machine.model import Gpu, NumaNode, Vendor

_PACKAGES = ("numpy", "scipy", "torch", "triton", "helion")


def detect(root: str | Path = "/", *, name_host: bool = False, vendor: Vendor = nvidia) -> Machine:
    """Return the machine; ``root`` may be a recorded tree of sysfs and procfs."""
    tree = Path(root)
    view = vendor.list_gpus()
    nodes = read_memory_nodes(tree)
    commit, dirty = _git_state()
    return Machine(
        host=host_id(),
        boot_id=boot_id(),
        hostname=platform.node() if name_host else None,
        architecture=platform.machine(),
        kernel=read_text_or_none(tree / "proc/sys/kernel/osrelease") or platform.release(),
        hypervisor=detect_hypervisor(tree),
        container=detect_container(tree),
        cpu_model=_cpu_model(tree),
        memory_mib=_memory_mib(tree),
        cpu=read_cpu(tree),
        limits=read_limits(tree),
        cores=read_physical_cores(tree),
        nodes=nodes,
        gpus=tuple(_add_node(gpu, view.hints.get(gpu.uuid, NodeHint()), nodes, tree) for gpu in view.gpus),
        lost=view.lost,
        links=view.links,
        gpu_note=view.note,
        driver=view.driver,
        cuda_driver=view.cuda_driver,
        mps=detect_mps(tree, os.environ),
        versions=_versions(),
        git_commit=commit,
        git_dirty=dirty,
    )


def _add_node(gpu: Gpu, hint: NodeHint, nodes: tuple[NumaNode, ...], root: Path) -> Gpu:
    """Add a GPU's memory node: as sysfs reports it (-1 means unknown), or else the driver."""
    reported = read_number(root / f"sys/bus/pci/devices/{gpu.pci_bus_id}/numa_node") if gpu.pci_bus_id else None
    node = reported if reported is not None and reported >= 0 else _node_from_hint(hint, nodes)
    return gpu.model_copy(update={"node": node})


def _node_from_hint(hint: NodeHint, nodes: tuple[NumaNode, ...]) -> int | None:
    """Return the one node that holds all cores near a GPU; else that of its own memory, if cores share it."""
    near = {node.id for node in nodes if not set(node.cpus).isdisjoint(hint.cpus)}
    if len(near) == 1:
        return near.pop()
    return next((node.id for node in nodes if node.id == hint.memory_node and node.cpus), None)


def _cpu_model(root: Path) -> str | None:
    match = re.search(
        r"^(?:model name|Model)\s*:\s*(.+)$", read_text_or_none(root / "proc/cpuinfo") or "", re.MULTILINE
    )
    return match[1].strip() if match else None


def _memory_mib(root: Path) -> float | None:
    match = re.search(r"^MemTotal:\s*(\d+) kB", read_text_or_none(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) / 1024 if match else None


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version(), "assay": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def _git_state() -> tuple[str | None, bool | None]:
    """Return the commit checked out in the working folder and whether it was changed; nulls outside of git."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        commit = _run_git(environment, "rev-parse", "HEAD")
        return commit, bool(_run_git(environment, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _run_git(environment: dict[str, str], *arguments: str) -> str:
    result = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True, timeout=10, env=environment
    )
    return result.stdout.strip()
