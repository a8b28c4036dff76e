"""ncu around the calls: its table is read, its refusals are told, and when it hangs nothing of it is left."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from assay.launch import tracing
from assay.launch.tracing import ProfilerCalls, run_ncu
from assay.monitor.kernel_trace.ncu import PERCENTAGES
from tests.fakes.fake_ncu import HANGS, fake_ncu, lacks, says
from tests.monitor import ncu_texts

if TYPE_CHECKING:
    from pathlib import Path

    from assay.launch.tracing import NcuResult
    from assay.worker.request import PhaseStarted

CALLS = ProfilerCalls(
    workload="my folder/it's.py:f",
    params={"n": "3", "text": "a b"},
    device="cuda:1",
    calls=5,
    warmup=2,
    visible="GPU-7",
)
DRAM = PERCENTAGES["dram_utilisation_percent"]


class Watcher:
    """Nobody who looks."""

    def begins(self, begins: PhaseStarted) -> None:
        assert begins.phase == "counting"

    def tick(self) -> None:
        pass


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(tmp_path, monkeypatch)


class Counted:
    """Counts with an ncu of the test's own on the path."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch

    def __call__(self, body: str, *, version: str = ncu_texts.VERSION, timeout_s: float = 20.0) -> NcuResult:
        programs = fake_ncu(self.folder / "bin", body, version=version)
        self._monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        return run_ncu(CALLS, self.folder, timeout_s=timeout_s, watcher=Watcher())

    @property
    def asked(self) -> list[str]:
        """The command lines that it was given, one a run."""
        return (self.folder / "bin/asked.txt").read_text().splitlines()


def test_the_table_of_an_ncu_that_works_is_read(counted: Counted) -> None:
    found = counted(says(ncu_texts.WIDE))
    assert [kernel.name for kernel in found.counted] == [ncu_texts.SOFTMAX, ncu_texts.GEMM, ncu_texts.ELEMENTWISE]
    assert (found.refusal, found.version, found.missing) == (None, "2025.3", ())
    assert "--clock-control none" in counted.asked[0]
    assert found.command is not None
    assert found.command.startswith("env CUDA_VISIBLE_DEVICES=GPU-7 ncu --csv ")


def test_an_ncu_that_may_not_read_counters_is_told_with_what_mends_it(counted: Counted) -> None:
    found = counted(says(ncu_texts.PERMISSION, code=1))
    assert found.refusal is not None
    assert "ERR_NVGPUCTRPERM" in found.refusal.reason
    assert "NVreg_RestrictProfilingToAdminUsers=0" in str(found.refusal.fix)


def test_a_table_in_which_nothing_could_be_read_is_no_table(counted: Counted) -> None:
    heading = ncu_texts.LONG.splitlines()[2]
    rows = [line for line in ncu_texts.LONG.splitlines() if "n/a" in line]
    found = counted(says("\n".join([heading, *rows])))
    assert found.refusal is not None


def test_an_ncu_that_hangs_is_ended_with_all_it_started(counted: Counted, assay_home: Path) -> None:
    found = counted(HANGS, timeout_s=0.2)
    assert found.refusal is not None
    assert "had not ended after 0.2 s" in found.refusal.reason
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert "sleep 1013" not in running
    assert list((assay_home / "leases").iterdir()) == []


def test_metrics_that_a_chip_lacks_are_left_out_the_second_time(counted: Counted) -> None:
    found = counted(lacks("dram__throughput", ncu_texts.UNKNOWN_METRIC, ncu_texts.WIDE))
    assert found.refusal is None
    assert found.missing == (DRAM,)
    assert [DRAM in line for line in counted.asked] == [True, False]


def test_an_ncu_that_is_too_old_is_not_asked(counted: Counted) -> None:
    found = counted(says(ncu_texts.WIDE), version=ncu_texts.OLD_VERSION)
    assert found.refusal is not None
    assert "too old: it is of 2019.5" in found.refusal.reason
    assert not (counted.folder / "bin/asked.txt").exists()


def test_without_ncu_it_is_told_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID=ubuntu\n")
    found = run_ncu(CALLS, tmp_path, timeout_s=1.0, watcher=Watcher(), root=tmp_path)
    assert found.refusal is not None
    assert "not on the path" in found.refusal.reason
    assert "apt-get install nsight-compute" in str(found.refusal.fix)


def test_command_lines_survive_a_shell_whatever_the_names_are() -> None:
    lines = tracing.profiler_commands(CALLS)
    assert len(lines) == 5
    for line in lines.values():
        assert "\n" not in line
    words = shlex.split(lines["the calls alone"])
    assert words[:2] == ["env", "CUDA_VISIBLE_DEVICES=GPU-7"]
    assert words[2:] == list(CALLS.argv)
    assert [sys.executable, "my folder/it's.py:f", "text=a b"] == [CALLS.argv[0], CALLS.argv[4], CALLS.argv[8]]


def test_on_a_cpu_there_is_no_profiler_to_name() -> None:
    lines = tracing.profiler_commands(CALLS.model_copy(update={"device": "cpu:0", "visible": None}))
    assert list(lines) == ["the calls alone"]
    assert not lines["the calls alone"].startswith("env ")
