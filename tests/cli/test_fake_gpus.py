"""Commands on GPUs that a fake NVML lists: who sees which GPU, and that nobody takes it for real."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from assay.monitor.recording_file import read_recording
from assay.monitor.samples import GpuLost
from tests.fakes.fake_nvml import FakeNvml, hopper
from tests.running import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.plugin import MakeFakeNvml
    from tests.running import Assay

TELL = "import os; open('saw.txt', 'a').write(os.environ.get('CUDA_VISIBLE_DEVICES', 'all') + '\\n')"
COMMAND = ("--benchmark-runs", 2, "--json", "--", "python3", "-c", TELL)


@pytest.fixture
def two_gpus(make_fake_nvml: MakeFakeNvml) -> FakeNvml:
    return make_fake_nvml([hopper(), hopper()], virtual=False)


def fake_environment(fake: FakeNvml) -> dict[str, str]:
    return {name: value for name, value in fake.env({}).items() if name in {"LD_LIBRARY_PATH", "ASSAY_FAKE_NVML"}}


@pytest.mark.full
def test_each_worker_sees_only_its_own_gpu_and_the_record_says_fake(
    assay: Assay, two_gpus: FakeNvml, workplace: Path
) -> None:
    ran = assay("run", "--gpus", "0", "1", "--mode", "concurrent", *COMMAND, **fake_environment(two_gpus))
    assert ran.code == 0, ran.err
    (record,) = ran.data["records"]
    assert record["origin"] == "fake"
    assert len(record["gpus_before"]) == 2
    uuids = {two_gpus.gpu(index).uuid.decode() for index in range(2)}
    assert set((workplace / "saw.txt").read_text().split()) == uuids
    cores = [set(e["allowed_cores"]) for e in record["evidence"]]
    assert not cores[0] & cores[1]
    assert "fake" in (workplace / "runs/latest/report.md").read_text()


@pytest.mark.full
def test_a_gpu_lost_while_it_is_metered_makes_the_result_partial_and_is_named(
    assay: Assay, two_gpus: FakeNvml, workplace: Path
) -> None:
    """The command waits until the GPU is gone, and the monitor has noticed; then it goes on."""
    wait = "import os, time\nwhile not os.path.exists('gone'): time.sleep(0.02)"

    def lose() -> None:
        wait_for((workplace / "saw.txt").exists, within_s=60)
        two_gpus.lose(1)
        wait_for(lambda: any(has_ended(path) for path in workplace.glob("runs/*/monitor/*.jsonl")), within_s=60)
        (workplace / "gone").touch()

    losing = threading.Thread(target=lose)
    losing.start()
    command = ("--benchmark-runs", 2, "--json", "--", "python3", "-c", f"{TELL}\n{wait}")
    ran = assay("run", "--gpus", "0", "1", "--mode", "concurrent", *command, **fake_environment(two_gpus))
    losing.join()
    assert ran.code == 4, ran.err
    assert ran.data["exit_code"] == 4
    (record,) = ran.data["records"]
    assert [gpu["gpu"] for gpu in record["lost_gpus"]] == [1]
    assert "lost" in record["lost_gpus"][0]["reason"].lower()
    report = (workplace / "runs/latest/report.md").read_text()
    assert "GPU 1 was lost" in report
    assert "The result is partial" in report


def has_ended(recording: Path) -> bool:
    return any(isinstance(line, GpuLost) for line in read_recording(recording))


@pytest.mark.full
def test_without_isolation_every_gpu_is_visible(assay: Assay, two_gpus: FakeNvml, workplace: Path) -> None:
    ran = assay("run", "--gpus", "1", "--isolation", "none", *COMMAND, **fake_environment(two_gpus))
    assert ran.code == 0, ran.err
    assert set((workplace / "saw.txt").read_text().split()) == {"all"}


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "words"),
    [
        (("--gpus", "2"), {}, 3, "There is no GPU 2 here"),
        (("--gpus", "0,0"), {}, 2, "named twice"),
        (("--gpus", "0"), {"CUDA_VISIBLE_DEVICES": "1"}, 3, "CUDA_VISIBLE_DEVICES"),
        (("--gpus", "0"), {"CUDA_VISIBLE_DEVICES": ""}, 3, "CUDA_VISIBLE_DEVICES"),
        (("--gpus", "0"), {"CUDA_VISIBLE_DEVICES": "7"}, 3, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus_that_cannot_be_meant_are_refused_in_one_line(
    assay: Assay,
    two_gpus: FakeNvml,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    code: int,
    words: str,
) -> None:
    ran = assay("run", *arguments, "--", "true", **fake_environment(two_gpus), **environment)
    assert ran.code == code
    assert words in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_a_driver_that_is_gone_is_a_normal_answer(assay: Assay, two_gpus: FakeNvml) -> None:
    two_gpus.fail("nvmlInit_v2", 9)
    found: Any = assay("list", "devices", "--json", **fake_environment(two_gpus)).data
    assert {device["device"] for device in found["devices"]} == {"cpu:0", "cpu:1"}


ON_ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.execv(sys.executable, [sys.executable, "-m", "assay", *sys.argv[1:]])
"""


def on_one_core(workplace: Path, fake: FakeNvml, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command line that may use one core only, on GPUs that a fake lists."""
    return subprocess.run(
        [sys.executable, "-c", ON_ONE_CORE, *map(str, arguments)],
        cwd=workplace, env={**os.environ, **fake_environment(fake)},
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip


@pytest.mark.full
def test_more_gpus_at_once_than_cores_are_not_called_isolated(workplace: Path, two_gpus: FakeNvml) -> None:
    words = ("run", "--gpus", "0,1", "--mode", "concurrent", "--isolation", "full")
    ran = on_one_core(workplace, two_gpus, *words, *COMMAND)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    (record,) = told["records"]
    assert [e["isolation_held"] for e in record["evidence"]] == ["gpu", "gpu"]
    limits = [limit for e in record["evidence"] for limit in e["isolation_limits"]]
    assert [limit["shared_with"] for limit in limits if limit["code"] == "shared_cores"] == [["cuda:1"], ["cuda:0"]]
    (short,) = told["quality"]["isolation"]
    assert (short["requested"], short["held"], short["trials"]) == ("full", "gpu", 1)
    assert "shared_cores" in short["codes"]
    for name in ("report.md", "report.html"):
        first = (workplace / "runs/latest" / name).read_text().partition("Time of")[0]
        assert "Isolation full did not hold in 1 of 1 trial (gpu held)" in first
        assert told["quality"]["disturbed"] == 0 or "1 of 1 trial disturbed: " in first


@pytest.mark.full
def test_the_dry_run_and_the_doctor_say_beforehand_that_cores_are_too_few(workplace: Path, two_gpus: FakeNvml) -> None:
    words = ("run", "--gpus", "0,1", "--mode", "concurrent", "--isolation", "full", "--dry-run")
    text = on_one_core(workplace, two_gpus, *words, "--", "true").stdout
    assert "note: isolation full cannot hold, only gpu: cuda:0 shares core" in text
    (placed,) = json.loads(on_one_core(workplace, two_gpus, *words, "--json", "--", "true").stdout)["placements"]
    assert [each["can_hold"] for each in placed["isolation"]] == ["gpu", "gpu"]
    examined = json.loads(on_one_core(workplace, two_gpus, "doctor", "--json").stdout)["findings"]
    (full,) = [finding for finding in examined if "level" in finding["facts"]]
    assert (full["verdict"], full["facts"]["level"], full["facts"]["devices"]) == ("no", "gpu", 2)
