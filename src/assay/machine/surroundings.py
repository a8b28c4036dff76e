"""What this process runs inside of and beside: a virtual machine, a container, NVIDIA's multi-process service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay.machine.files import is_there, text_of
from assay.machine.model import Mps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

UNNAMED = "unnamed"

_VENDORS = {
    "qemu": "kvm",
    "kvm": "kvm",
    "vmware": "vmware",
    "virtualbox": "virtualbox",
    "innotek": "virtualbox",
    "xen": "xen",
    "microsoft": "hyper-v",
    "amazon ec2": "amazon",
    "google": "google",
    "openstack": "openstack",
    "parallels": "parallels",
    "bochs": "bochs",
}
"""What firmware calls itself → what people call the hypervisor; the first that is found counts."""

_GROUPS = {
    r"kubepods": "kubernetes",
    r"libpod-": "podman",
    r"/docker[/-]": "docker",
    r"cri-containerd|/containerd/": "containerd",
    r"crio-": "cri-o",
    r"/lxc[./]": "lxc",
}
"""What the name of a control group gives away."""

_MPS_COMMAND = "nvidia-cuda-mps"
"""The kernel keeps 15 characters of nvidia-cuda-mps-control and nvidia-cuda-mps-server."""


def hypervisor(root: Path) -> str | None:
    """Return whose virtual machine this is, "unnamed" where it does not say; null where nothing shows one.

    An x86 processor shows by a flag whether a hypervisor runs it. Firmware alone is believed only on others, as the
    bare-metal machines of a cloud carry its name too.
    """
    flags = re.search(r"^flags\s*:(.*)$", text_of(root / "proc/cpuinfo") or "", re.MULTILINE)
    if flags is not None and "hypervisor" not in flags[1].split():
        return None
    kind = text_of(root / "sys/hypervisor/type") or _firmware(root)
    return kind or (UNNAMED if flags is not None else None)


def _firmware(root: Path) -> str | None:
    folder = root / "sys/class/dmi/id"
    names = " ".join(text_of(folder / name) or "" for name in ("product_name", "sys_vendor", "bios_vendor")).lower()
    return next((name for word, name in _VENDORS.items() if word in names), None)


def container(root: Path) -> str | None:
    """Return which kind of container this is; null where nothing shows one."""
    if named := text_of(root / "run/systemd/container"):
        return named
    for mark, kind in ((".dockerenv", "docker"), ("run/.containerenv", "podman"), (".singularity.d", "apptainer")):
        if is_there(root / mark):
            return kind
    groups = " ".join(text_of(root / f"proc/{process}/cgroup") or "" for process in ("self", "1"))
    return next((kind for pattern, kind in _GROUPS.items() if re.search(pattern, groups)), None)


def mps(root: Path, environment: Mapping[str, str]) -> Mps | None:
    """Return the signs of NVIDIA's multi-process service; null where there is none."""
    folder = root / environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps").lstrip("/")  # noqa: S108 - CUDA's own default
    daemon = any(text_of(comm) == _MPS_COMMAND for comm in (root / "proc").glob("[0-9]*/comm"))
    status = Mps(daemon=daemon, pipe=is_there(folder / "control"))
    return status if status.daemon or status.pipe else None
