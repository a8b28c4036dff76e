"""Loads for the host and for the bus: what they do, how much of it, and what they refuse."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import AssayError, BadInput
from assay.workloads import registry
from assay.workloads.ops import host_load
from assay.workloads.ops.host_load import CPU_HOG_PYTHON as CPU_HOG
from assay.workloads.ops.host_load import MEMORY_HOG_NUMPY as MEMORY_HOG
from assay.workloads.ops.memory import PCIE_COPY_TORCH as PCIE_COPY

if TYPE_CHECKING:
    from pathlib import Path


def test_all_threads_are_as_many_as_the_process_may_use_cpus() -> None:
    assert host_load.count_threads("all") == len(os.sched_getaffinity(0))
    assert host_load.count_threads("3") == host_load.count_threads(3) == 3


@pytest.mark.parametrize("value", ["none", "0", 0, -1, True, 1.5, None])
def test_threads_that_cannot_be_are_refused(value: str | float | None) -> None:
    with pytest.raises(BadInput, match="threads is all or a whole number of at least 1"):
        host_load.count_threads(value)


def test_a_cpu_hog_computes_in_as_many_threads_as_asked_and_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    meet = threading.Barrier(3)

    def compute(number: int) -> None:
        meet.wait(20)
        seen.add(threading.get_ident())

    monkeypatch.setattr("assay.workloads.ops.host_load.hash_rounds", compute)
    ready = CPU_HOG.prepare({"threads": "3"}, None, device="cpu", seed=0)
    ready.call()
    assert len(seen) == 3
    ready.close()
    assert not seen & {thread.ident for thread in threading.enumerate()}


def test_a_failing_thread_is_noticed() -> None:
    team = host_load.ThreadTeam(2)
    with pytest.raises(ZeroDivisionError):
        team.do(lambda number: 1 // number)
    team.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_memory_hog_writes_the_triad_everywhere_and_states_its_bytes(count: int) -> None:
    ready = MEMORY_HOG.prepare({"mib": 1, "threads": count}, None, device="cpu", seed=0)
    assert ready.check is not None
    assert ready.check().passed
    assert ready.bytes_moved == 5 * 2**20
    ready.close()


def cache(folder: Path, cpu: int, level: int, size: str, shared: str) -> None:
    place = folder / f"cpu{cpu}" / "cache" / f"index{level}"
    place.mkdir(parents=True)
    for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
        (place / name).write_text(f"{text}\n")


def test_its_arrays_are_larger_than_all_last_level_caches_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cpu, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        cache(tmp_path, cpu, 2, "2048K", str(cpu))
        cache(tmp_path, cpu, 3, "49152K", shared)
    assert host_load.last_level_cache_mib(tmp_path) == 96
    assert host_load.last_level_cache_mib(tmp_path / "none") == 0
    monkeypatch.setattr(host_load, "last_level_cache_mib", lambda: 96.0)
    assert MEMORY_HOG.defaults()["mib"] == 256


def test_loads_have_nothing_to_tune_and_take_no_unknown_words() -> None:
    assert all(not workload.configs(workload.defaults()) for workload in (CPU_HOG, MEMORY_HOG, PCIE_COPY))
    with pytest.raises(BadInput, match="pcie_copy has no direction 'up'; there are both, to, from"):
        registry.resolve_subject("pcie_copy", device_kind="cuda", explicit={"direction": "up"})
    with pytest.raises(BadInput, match=r"pcie_copy@torch runs on cuda, not on cpu"):
        registry.resolve_subject("pcie_copy", device_kind="cpu")


def test_a_copy_over_the_bus_needs_a_gpu() -> None:
    with pytest.raises(AssayError):
        PCIE_COPY.prepare(PCIE_COPY.defaults(), None, device="cpu:0", seed=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("direction", "ways"), [("both", 2), ("to", 1), ("from", 1)])
def test_a_copy_over_the_bus_arrives_and_states_its_bytes(direction: str, ways: int, cuda: str) -> None:
    ready = PCIE_COPY.prepare({"mib": 2, "direction": direction}, None, device=cuda, seed=0)
    assert ready.check is not None
    assert ready.check().passed
    assert ready.bytes_moved == ways * 2 * 2**20
