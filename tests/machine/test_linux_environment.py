"""Virtual machines, containers, NVIDIA's multi-process service, and how cores are clocked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.machine.linux import detect_container, detect_hypervisor, detect_mps, read_cpu
from assay.machine.model import MpsStatus
from tests.fakes.trees import machine_tree, one_socket, sockets, write

if TYPE_CHECKING:
    from pathlib import Path

VIRTUAL, BARE = "flags\t\t: fpu vme hypervisor lahf_lm", "flags\t\t: fpu vme lahf_lm"


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({}, None),
        ({"proc/cpuinfo": BARE}, None),
        ({"proc/cpuinfo": VIRTUAL}, "unnamed"),
        ({"proc/cpuinfo": VIRTUAL, "sys/class/dmi/id/sys_vendor": "QEMU"}, "kvm"),
        ({"proc/cpuinfo": VIRTUAL, "sys/class/dmi/id/product_name": "VMware7,1"}, "vmware"),
        ({"proc/cpuinfo": VIRTUAL, "sys/hypervisor/type": "xen"}, "xen"),
        ({"proc/cpuinfo": BARE, "sys/class/dmi/id/sys_vendor": "Amazon EC2"}, None),
        ({"proc/cpuinfo": "Features\t: fp asimd", "sys/class/dmi/id/product_name": "KVM Virtual Machine"}, "kvm"),
        ({"proc/cpuinfo": "Features\t: fp asimd", "sys/class/dmi/id/sys_vendor": "NVIDIA"}, None),
    ],
)
def test_a_virtual_machine_is_known_by_the_processors_flag(
    files: dict[str, str], kind: str | None, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert detect_hypervisor(tmp_path) == kind


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({}, None),
        ({".dockerenv": ""}, "docker"),
        ({"run/.containerenv": "engine=podman"}, "podman"),
        ({"run/systemd/container": "lxc"}, "lxc"),
        ({".singularity.d/runscript": ""}, "apptainer"),
        ({"proc/self/cgroup": "0::/kubepods.slice/kubepods-burstable.slice/pod1"}, "kubernetes"),
        ({"proc/1/cgroup": "4:memory:/docker/4f2a"}, "docker"),
        ({"proc/self/cgroup": "0::/system.slice/docker.service"}, None),
        ({"proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope"}, None),
    ],
)
def test_a_container_is_known_by_what_it_leaves_lying_about(
    files: dict[str, str], kind: str | None, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert detect_container(tmp_path) == kind


@pytest.mark.parametrize(
    ("files", "variables", "found"),
    [
        ({"proc/17/comm": "bash"}, {}, None),
        ({"proc/17/comm": "nvidia-cuda-mps"}, {}, MpsStatus(daemon=True, pipe=False)),
        ({"tmp/nvidia-mps/control": ""}, {}, MpsStatus(daemon=False, pipe=True)),
        ({"tmp/nvidia-mps/control": ""}, {"CUDA_MPS_PIPE_DIRECTORY": "/run/mine"}, None),
        ({"run/mine/control": ""}, {"CUDA_MPS_PIPE_DIRECTORY": "/run/mine"}, MpsStatus(daemon=False, pipe=True)),
    ],
)
def test_the_multi_process_service_is_noticed_by_its_process_or_its_pipe(
    files: dict[str, str], variables: dict[str, str], found: MpsStatus | None, tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert detect_mps(tmp_path, variables) == found


@pytest.mark.parametrize(
    ("files", "turbo"),
    [
        ({}, None),
        ({"intel_pstate/no_turbo": "0"}, True),
        ({"intel_pstate/no_turbo": "1", "cpufreq/boost": "1"}, False),
        ({"cpufreq/boost": "1"}, True),
        ({"cpufreq/boost": "0"}, False),
        ({"cpufreq/boost": "nonsense"}, None),
    ],
)
def test_turbo_is_read_from_either_switch(files: dict[str, str], turbo: bool | None, tmp_path: Path) -> None:
    write(tmp_path, {f"sys/devices/system/cpu/{name}": content for name, content in files.items()})
    assert read_cpu(tmp_path).turbo is turbo


def test_the_governor_is_that_of_the_cores_this_process_may_use(tmp_path: Path) -> None:
    root = machine_tree(tmp_path, sockets(1, 4, 1), allowed="0-1")
    policies = {0: "performance", 1: "performance", 2: "powersave", 3: "powersave"}
    write(root, {f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor": word for cpu, word in policies.items()})
    assert read_cpu(root).governor == "performance"


def test_different_governors_are_all_named(tmp_path: Path) -> None:
    root = one_socket(tmp_path).root
    policies = {0: "powersave", 1: "performance"}
    write(root, {f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor": word for cpu, word in policies.items()})
    assert read_cpu(root).governor == "performance, powersave"


def test_cores_kept_from_the_scheduler_are_named(tmp_path: Path) -> None:
    root = one_socket(tmp_path).root
    assert read_cpu(root).isolated_cpus == ()
    write(root, {"sys/devices/system/cpu/isolated": "2-3"})
    assert read_cpu(root).isolated_cpus == (2, 3)


def test_cpus_that_could_be_plugged_in_are_not_called_switched_off(tmp_path: Path) -> None:
    root = one_socket(tmp_path).root
    write(root, {"sys/devices/system/cpu/offline": "4-127"})
    assert read_cpu(root).offline_cpus == ()


def test_siblings_are_known_by_their_list_where_core_numbers_repeat(tmp_path: Path) -> None:
    from assay.machine.linux import read_physical_cores

    root = machine_tree(tmp_path, {0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (0, 1)})
    for cpu in range(4):
        write(root, {f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list": cpu})
    assert [core.cpus for core in read_physical_cores(root)] == [(0,), (1,), (2,), (3,)]
    assert read_cpu(root).smt is False
