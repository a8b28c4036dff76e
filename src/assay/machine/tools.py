"""Programs that help beside Assay: which are here, and how this distribution installs the others."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.checks import check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from assay.core.results import Finding

_MANAGERS = {
    "debian": "apt-get install",
    "ubuntu": "apt-get install",
    "fedora": "dnf install",
    "rhel": "dnf install",
    "centos": "dnf install",
    "amzn": "dnf install",
    "suse": "zypper install",
    "arch": "pacman -S",
    "alpine": "apk add",
}


@dataclass(frozen=True)
class Tool:
    """A program, what it is good for here, and its package by distribution family."""

    name: str
    purpose: str
    packages: Mapping[str, str]
    needs_gpu: bool = False


TOOLS = (
    Tool(
        "nvidia-smi",
        "the NVIDIA driver: without it no GPU is seen",
        {
            "debian": "nvidia-driver",
            "ubuntu": "nvidia-driver-580-server",
            "fedora": "akmod-nvidia",
            "rhel": "nvidia-driver",
            "suse": "nvidia-open-driver-G06-signed",
            "arch": "nvidia-open",
        },
        needs_gpu=True,
    ),
    Tool(
        "nvcc",
        "the CUDA toolkit: builds CUDA C++",
        {
            "debian": "nvidia-cuda-toolkit",
            "ubuntu": "nvidia-cuda-toolkit",
            "fedora": "cuda-toolkit",
            "rhel": "cuda-toolkit",
            "suse": "cuda-toolkit",
            "arch": "cuda",
        },
        needs_gpu=True,
    ),
    Tool(
        "ncu",
        "Nsight Compute: reads hardware counters",
        {"debian": "nsight-compute", "ubuntu": "nsight-compute", "rhel": "cuda-nsight-compute-13-0", "arch": "cuda"},
        needs_gpu=True,
    ),
    Tool("numactl", "shows and sets memory nodes by hand; Assay binds without it", {"": "numactl"}),
    Tool("taskset", "pins by hand; Assay pins without it", {"": "util-linux"}),
)


def distribution(root: Path) -> tuple[str, ...]:
    """Return the distribution's own name and its relatives, nearest first; empty where it does not say."""
    path = root / "etc/os-release"
    if not path.exists():
        return ()
    fields = dict(line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    words = f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "").split()
    return tuple(word for word in words if word in _MANAGERS)


def install_command(tool: Tool, families: tuple[str, ...], *, root_user: bool) -> str | None:
    """Return what to type to install a tool here; null where we do not know its package."""
    for family in families:
        package = tool.packages.get(family) or tool.packages.get("")
        if package is not None:
            return f"{'' if root_user else 'sudo '}{_MANAGERS[family]} {package}"
    return None


def checks(root: Path, *, has_gpu_hardware: bool, find: Callable[[str], str | None] = shutil.which) -> list[Finding]:
    """Return which tools are here; those for GPUs only matter where there is one."""
    families = distribution(root)
    findings: list[Finding] = []
    for tool in TOOLS:
        path = find(tool.name)
        if path is None and tool.needs_gpu and not has_gpu_hardware:
            continue
        command = install_command(tool, families, root_user=os.geteuid() == 0)
        findings.append(
            check(
                f"{tool.name} is installed ({tool.purpose})",
                "yes" if path else "no",
                path or "it is not on the path",
                fix=None if path else command or f"install {tool.name} with your package manager",
                topic="tools",
            )
        )
    return findings


def nvidia_hardware(root: Path) -> bool:
    """Return whether an NVIDIA GPU is plugged in, as PCI tells it, with or without a driver."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor, kind = device / "vendor", device / "class"
        if vendor.exists() and kind.exists():
            is_display = kind.read_text().strip().startswith(("0x0300", "0x0302"))
            if vendor.read_text().strip() == "0x10de" and is_display:
                return True
    return False
