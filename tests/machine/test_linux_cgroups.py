"""Limits by control groups, where containers and kernels show them differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.machine.linux import allowed_cpus, read_limits
from assay.machine.model import ControlGroupLimits
from tests.fakes.trees import one_socket, write

if TYPE_CHECKING:
    from pathlib import Path

MOUNT = "sys/fs/cgroup"


def test_a_machine_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert read_limits(tmp_path) == ControlGroupLimits()


def test_a_group_that_only_the_host_can_name_is_looked_up_at_the_mount(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/docker/4f2a",
            f"{MOUNT}/cpu/cpu.cfs_quota_us": 50000,
            f"{MOUNT}/cpu/cpu.cfs_period_us": 100000,
        },
    )
    assert read_limits(tmp_path).cpu_quota == 0.5


@pytest.mark.parametrize("path", ["/", "/../../elsewhere"])
def test_a_group_outside_of_what_is_mounted_leaves_the_mount(path: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": f"0::{path}",
            f"{MOUNT}/cgroup.controllers": "cpu",
            f"{MOUNT}/cpu.max": "200000 100000",
            "sys/elsewhere/cpu.max": "1 100000",
        },
    )
    assert read_limits(tmp_path).cpu_quota == 2.0


def test_a_hybrid_machine_has_the_second_version_beside_the_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "1:cpuset:/\n0::/",
            f"{MOUNT}/cpuset/cpuset.cpus": "0-1",
            f"{MOUNT}/unified/memory.max": 2**30,
        },
    )
    assert read_limits(tmp_path) == ControlGroupLimits(cpus=(0, 1), memory_mib=1024.0)


@pytest.mark.parametrize("content", ["", "max", "max 100000", "nonsense", "1 2 3"])
def test_what_is_no_quota_is_no_limit(content: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        {"proc/self/cgroup": "0::/", f"{MOUNT}/cgroup.controllers": "cpu", f"{MOUNT}/cpu.max": content},
    )
    assert read_limits(tmp_path).cpu_quota is None


def test_a_group_that_would_leave_nothing_is_not_believed(tmp_path: Path) -> None:
    root = one_socket(tmp_path).root
    write(
        root,
        {
            "proc/self/cgroup": "0::/",
            f"{MOUNT}/cgroup.controllers": "cpuset",
            f"{MOUNT}/cpuset.cpus.effective": "64-95",
        },
    )
    assert allowed_cpus(root) == {0, 1, 2, 3}


@settings(deadline=None, max_examples=30)
@given(quotas=st.lists(st.floats(0.1, 64.0), min_size=1, max_size=5))
def test_the_lowest_quota_on_the_way_up_counts(quotas: list[float], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("tree")
    parts = [f"level{depth}" for depth in range(len(quotas))]
    write(root, {"proc/self/cgroup": f"0::/{'/'.join(parts)}", f"{MOUNT}/cgroup.controllers": "cpu"})
    for depth, quota in enumerate(quotas):
        folder = "/".join([MOUNT, *parts[: depth + 1]])
        write(root, {f"{folder}/cpu.max": f"{round(quota * 100000)} 100000"})
    assert read_limits(root).cpu_quota == min(round(quota * 100000) / 100000 for quota in quotas)
