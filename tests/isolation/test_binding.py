"""Binding a real process, and reading back from the kernel whether it held."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from assay.isolation.binding import THREAD_VARIABLES, allotment_environment, bind_memory, bound_nodes, pages_by_node
from assay.isolation.placement import Allotment, allot_cores
from assay.machine.detect import detect

if TYPE_CHECKING:
    from pathlib import Path

BIND = """
import json, os, sys
from assay.isolation.placement import Allotment
from assay.isolation.binding import bind_process, bound_nodes
before = sorted(os.sched_getaffinity(0))
held = bind_process(Allotment.model_validate_json(sys.argv[1]))
print(json.dumps({
    "level": held.level,
    "notes": [limit.message for limit in held.limits],
    "codes": [limit.code for limit in held.limits],
    "before": before,
    "cpus": sorted(os.sched_getaffinity(0)),
    "nodes": bound_nodes(),
}))
"""

NO_SUCH_CPU = 4095
NO_SUCH_NODE = 1000


def bound(allotment: Allotment) -> dict[str, Any]:
    """Bind a new process and return what it read back about itself."""
    told = [sys.executable, "-c", BIND, allotment.model_dump_json()]
    done = subprocess.run(told, capture_output=True, text=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def one_cpu() -> int:
    return min(os.sched_getaffinity(0))


def test_a_process_is_pinned_to_the_cores_it_was_allotted() -> None:
    allotment = allot_cores(detect(), ("cpu:0",), "cpu").of("cpu:0")
    said = bound(allotment)
    assert (said["level"], said["notes"]) == ("cpu", [])
    assert said["cpus"] == list(allotment.cpus or ())


@pytest.mark.parametrize("level", ["none", "gpu"])
def test_a_process_of_a_lower_level_is_left_where_it_was(level: str) -> None:
    said = bound(Allotment.model_validate({"device": "cpu:0", "level": level}))
    assert (said["level"], said["notes"]) == (level, [])
    assert said["cpus"] == said["before"]


def test_memory_is_bound_to_its_node_or_the_reason_is_said() -> None:
    allotment = allot_cores(detect(), ("cpu:0",), "full").of("cpu:0")
    said = bound(allotment)
    assert said["cpus"] == list(allotment.cpus or ())
    if said["level"] == "full":
        assert said["nodes"] == list(allotment.nodes or ())
        assert said["notes"] == []
    else:
        assert said["level"] == "cpu"
        assert "binding memory to nodes" in said["notes"][0]
        assert said["nodes"] is None


def test_a_core_that_does_not_exist_lowers_the_level_and_gives_the_reason() -> None:
    said = bound(Allotment(device="cpu:0", level="cpu", cpus=(NO_SUCH_CPU,)))
    assert said["level"] == "none"
    assert said["notes"] == [f"pinning to cores [{NO_SUCH_CPU}] was refused: Invalid argument"]
    assert said["cpus"] == said["before"]


def test_a_gpu_stays_the_processs_own_when_its_cores_are_refused() -> None:
    said = bound(Allotment(device="cuda:0", level="full", cpus=(NO_SUCH_CPU,), nodes=(0,), gpu_uuid="GPU-0"))
    assert said["level"] == "gpu"


def test_cores_that_the_kernel_silently_leaves_out_are_not_called_held() -> None:
    said = bound(Allotment(device="cpu:0", level="cpu", cpus=(one_cpu(), NO_SUCH_CPU)))
    assert said["cpus"] == [one_cpu()]
    assert said["level"] == "none"
    assert f"cores [{NO_SUCH_CPU}] were not given" in said["notes"][0]


def test_a_memory_node_that_does_not_exist_leaves_the_cores_held() -> None:
    said = bound(Allotment(device="cpu:0", level="full", cpus=(one_cpu(),), nodes=(NO_SUCH_NODE,)))
    assert said["level"] == "cpu"
    assert said["cpus"] == [one_cpu()]
    assert said["notes"][0].startswith(f"binding memory to nodes [{NO_SUCH_NODE}] was refused: ")
    assert said["nodes"] is None


def test_a_process_that_was_never_bound_has_no_nodes() -> None:
    assert bound_nodes() is None


def test_on_an_unknown_architecture_memory_is_not_bound_and_the_reason_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    assert bind_memory((0,)) == "the system call is not known on pdp11"
    assert bound_nodes() is None


def test_a_worker_is_born_with_its_thread_limits_and_its_gpu() -> None:
    born = allotment_environment(Allotment(device="cuda:0", level="full", cpus=(0, 1), threads=2, gpu_uuid="GPU-0"))
    assert born == {**dict.fromkeys(THREAD_VARIABLES, "2"), "CUDA_VISIBLE_DEVICES": "GPU-0"}
    assert {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"} <= set(born)


def test_without_a_thread_limit_libraries_keep_their_default() -> None:
    assert allotment_environment(Allotment(device="cpu:0", level="numa", cpus=(0,), nodes=(0,))) == {}
    assert allotment_environment(Allotment(device="cpu:0", level="none")) == {}


def test_pages_are_counted_by_node(tmp_path: Path) -> None:
    maps = tmp_path / "numa_maps"
    maps.write_text("55d0 default anon=2 dirty=2 N0=2 N1=5 kernelpagesize_kB=4\n7ff default stack N1=3\n7fe default\n")
    assert pages_by_node(maps) == {0: 2, 1: 8}
    assert pages_by_node(tmp_path / "absent") is None
