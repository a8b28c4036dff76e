"""Looking at a machine: this one, and those that are only described."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from assay.machine.detect import detect
from assay.machine.model import describe_differences
from tests.fakes.fake_nvml import attached, hopper
from tests.machines import write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.plugin import MakeFakeNvml


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the dynamic loader find no libnvidia-ml."""
    import pynvml

    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "CDLL", refuse)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)


@pytest.fixture
def outside_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that belongs to no repository, whatever lies above it."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_this_machine_is_described() -> None:
    here = detect()
    assert here.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert here.architecture == platform.machine()
    assert here.memory_mib is not None
    assert here.memory_mib > 16
    assert here.versions["python"] == platform.python_version()
    assert here.versions["numpy"]
    assert here.versions["helion"] is None or isinstance(here.versions["helion"], str)


def test_two_looks_at_this_machine_show_the_same_machine() -> None:
    assert describe_differences(detect(), detect()) == []


def test_the_host_is_not_named_unless_the_user_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "my-secret-host-17")
    assert "my-secret-host-17" not in detect().model_dump_json()
    assert detect().hostname is None
    assert detect(name_host=True).hostname == "my-secret-host-17"


def test_nothing_of_the_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "tok-5f9d2c7a")
    assert "tok-5f9d2c7a" not in detect().model_dump_json()


def test_a_described_machine_is_read_from_its_tree(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {0: (0, 0), 1: (1, 0)}, allowed="0-1", nodes={0: "0", 1: "1"})
    (root / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Example 9000 @ 3 GHz\nmodel name\t: other\n")
    (root / "proc/meminfo").write_text("MemTotal:        2097152 kB\nMemFree:  1 kB\n")
    there = detect(root)
    assert (there.cpu_model, there.memory_mib) == ("Example 9000 @ 3 GHz", 2048.0)
    assert [node.id for node in there.nodes] == [0, 1]
    assert [core.cpus for core in there.cores] == [(0,), (1,)]


def test_what_a_tree_does_not_say_is_not_known(tmp_path: Path) -> None:
    there = detect(write_tree(tmp_path, {}, allowed="0"))
    assert (there.cpu_model, there.memory_mib, there.nodes) == (None, None, ())


def test_the_commit_being_measured_is_noticed_and_whether_it_was_changed(outside_git: Path) -> None:
    git(outside_git, "init", "--quiet")
    (outside_git / "kernel.py").write_text("pass\n")
    git(outside_git, "add", ".")
    git(outside_git, "commit", "--quiet", "-m", "one")
    clean = detect()
    assert clean.git_commit == git(outside_git, "rev-parse", "HEAD")
    assert clean.git_dirty is False
    (outside_git / "notes.txt").write_text("untracked files change nothing\n")
    assert detect().git_dirty is False
    (outside_git / "kernel.py").write_text("fast = True\n")
    assert detect().git_dirty is True


def test_outside_of_git_there_is_no_commit(outside_git: Path) -> None:
    assert (detect().git_commit, detect().git_dirty) == (None, None)


def test_a_repository_without_a_commit_has_none(outside_git: Path) -> None:
    git(outside_git, "init", "--quiet")
    assert (detect().git_commit, detect().git_dirty) == (None, None)


def test_a_machine_without_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (detect().git_commit, detect().git_dirty) == (None, None)


@pytest.mark.usefixtures("no_nvml")
def test_no_nvml_library_is_a_normal_answer_with_a_note() -> None:
    here = detect()
    assert (here.gpus, here.driver) == ((), None)
    assert here.gpu_note is not None
    assert here.gpu_note.startswith("NVML does not answer: ")
    assert "Not Found" in here.gpu_note


def test_a_driver_that_lists_no_gpu_is_a_normal_answer_with_a_note(make_fake_nvml: MakeFakeNvml) -> None:
    with attached(make_fake_nvml([])):
        here = detect()
    assert here.gpus == ()
    assert here.gpu_note == "the driver lists no GPU"


def test_gpus_are_described_and_a_fake_is_known_as_one(make_fake_nvml: MakeFakeNvml) -> None:
    with attached(make_fake_nvml([replace(hopper(), uuid="GPU-aa"), hopper()])):
        here = detect()
    assert [gpu.index for gpu in here.gpus] == [0, 1]
    assert here.gpus[0].uuid == "GPU-aa"
    assert here.gpus[0].name == "NVIDIA H200"
    assert here.gpus[0].memory_mib == hopper().memory_total_bytes / 2**20
    assert here.gpu_note is None
    assert here.has_fake_driver


def test_a_gpu_hangs_on_the_node_that_sysfs_gives_for_its_address(tmp_path: Path, make_fake_nvml: MakeFakeNvml) -> None:
    root = write_tree(tmp_path / "root", {}, allowed="0")
    addresses = ["00000000:3B:00.0", "00000000:AF:00.0", "00000001:00:00.0"]
    for address, node in (("0000:3b:00.0", 1), ("0000:af:00.0", -1)):
        folder = root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    with attached(make_fake_nvml([replace(hopper(), pci_bus_id=address) for address in addresses])):
        there = detect(root)
    assert [gpu.node for gpu in there.gpus] == [1, None, None]


def test_a_gpu_without_memory_of_its_own_is_there_all_the_same(make_fake_nvml: MakeFakeNvml) -> None:
    with attached(make_fake_nvml([replace(hopper(), unsupported=("nvmlDeviceGetMemoryInfo",))])):
        here = detect()
    assert [gpu.memory_mib for gpu in here.gpus] == [None]


def test_a_gpu_that_falls_off_the_bus_meanwhile_is_said_in_the_note(make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml()
    fake.fail("nvmlDeviceGetUUID", 15)
    with attached(fake):
        here = detect()
    assert here.gpus == ()
    assert here.gpu_note is not None
    assert here.gpu_note.startswith("NVML stopped answering: ")
