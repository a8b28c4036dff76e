"""``assay threshold run`` and ``apply`` as a user meets them, on a CPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.cli import threshold
from assay.cli.main import main
from assay.experiments.threshold.results_file import SavedThresholds, ThresholdDevice
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Assay

CONFIG = "# ours\nruntime:\n  min_len: 1  # a guess\n  other: 7\n"
THRESHOLDS = """
thresholds:
  - name: spins
    reference: spins.py:plain
    fast: spins.py:{fast}
    axes: {{n: [1, 2, 4]}}
    size: n
    key: runtime.min_len
    never: 1000000000
"""
SPINS = """
import time

def spin(us):
    end = time.perf_counter_ns() + int(us * 1000)
    while time.perf_counter_ns() < end:
        pass

def plain(n):
    spin(100 * n)
    return n

def from_two_on(n):
    spin(100 if n == 1 else 20 * n)
    return n

def never(n):
    spin(100 * n)
    return n

def wrong(n):
    spin(10 * n)
    return n + 1
"""
HOW = ("--device", "cpu", "--quick", "--no-monitor", "--isolation", "none", "--no-history")
TO_CONFIG = ("--config", "config.yaml")


@pytest.fixture
def spins(workplace: Path) -> Path:
    (workplace / "spins.py").write_text(SPINS)
    (workplace / "config.yaml").write_text(CONFIG)
    (workplace / "bare.yaml").write_text("runtime: {}\n")
    for fast in ("from_two_on", "never", "wrong"):
        (workplace / f"{fast}.yaml").write_text(THRESHOLDS.format(fast=fast))
    return workplace


def test_it_finds_the_size_and_changes_one_value_and_its_files_decide_again(
    assay: Assay, spins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--update-config", *TO_CONFIG, "--output", "results.json", "--report", "report.md")
    ran = assay("threshold", "run", "from_two_on.yaml", *HOW, *words)
    assert ran.code == 0, ran.err
    assert "+  min_len: 2  # Updated by benchmark; a guess" in ran.out
    assert (spins / "config.yaml").read_text() == CONFIG.replace("1  # a guess", "2  # Updated by benchmark; a guess")
    assert json.loads((spins / "results.json").read_text())["recommendation"] == {"min_len": 2}
    report = (spins / "report.md").read_text()
    assert "spins: from 2 on" in report
    (figure,) = {line.partition("](")[2].rstrip(")") for line in report.splitlines() if line.startswith("![")}
    assert (spins / figure).is_file()
    propose_it(spins, capsys)
    apply_it(spins, capsys)
    hold_it_against_another(spins, capsys)


def propose_it(spins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results of a run are the body of a pull request, held against the configuration as it was."""
    (spins / "config.yaml").write_text(CONFIG)
    words = ("results.json", *TO_CONFIG, "--thresholds", "from_two_on.yaml", "--dry-run")
    assert main(["github", "pull-request", *words]) == 0
    body = capsys.readouterr().out
    assert "| `runtime.min_len` | `1` | **`2`** |" in body
    assert "+  min_len: 2  # Updated by benchmark; a guess" in body


def apply_it(spins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Saved results are decided anew, and written only where that is meant."""
    (spins / "config.yaml").write_text(CONFIG)
    capsys.readouterr()
    assert main(["threshold", "apply", "results.json", *TO_CONFIG, "--dry-run"]) == 0
    assert "+  min_len: 2" in capsys.readouterr().out
    assert (spins / "config.yaml").read_text() == CONFIG
    assert main(["threshold", "apply", "runs/latest", *TO_CONFIG, "--safety-margin", "50"]) == 0
    assert "min_len: 1000000000  # Updated by benchmark" in (spins / "config.yaml").read_text()
    capsys.readouterr()
    assert main(["threshold", "apply", "results.json", *TO_CONFIG, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["thresholds"][0]["decision"] == "threshold"
    assert main(["threshold", "apply", "results.json", "--config", "bare.yaml"]) == 2
    assert "min_len" in capsys.readouterr().err
    assert main(["threshold", "apply", "results.json", *TO_CONFIG, "--safety-margin", "1"]) == 2


def hold_it_against_another(spins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A baseline of another device is refused before anything is measured."""
    content = json.loads((spins / "results.json").read_text())
    content["device_info"]["device_name"] = "NVIDIA L4"
    (spins / "elsewhere.json").write_text(json.dumps(content))
    assert main(["threshold", "run", "from_two_on.yaml", *HOW, "--baseline", "elsewhere.json"]) == 2
    assert "was measured on NVIDIA L4" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("never.yaml", "--baseline", "before.json", "--safety-margin", "3"),
            "Baseline: spins was from 2 on, and is never: it rose.",
        ),
        (("wrong.yaml", "--json"), "Parity: spins: Nothing is recommended, as the fast path did not pass at n 1"),
    ],
)
def test_a_gate_that_says_no_exits_1_and_writes_nothing(
    assay: Assay, spins: Path, words: tuple[str, ...], said: str
) -> None:
    (spins / "before.json").write_text('{"min_len": 2}')
    ran = assay("threshold", "run", *words, *HOW, "--update-config", *TO_CONFIG)
    assert ran.code == 1, ran.err
    assert said in ran.err
    assert (spins / "config.yaml").read_text() == CONFIG


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--provider", "runpod", "--gpu", "L4"), 3, "RUNPOD_API_KEY is not set"),
        (("--provider", "runpod", "--on", "slurm"), 2, "name different hosts"),
        (("--on", "runpod"), 3, "RUNPOD_API_KEY is not set"),
        (("--gpu", "T4"), 2, "needs --on with a host that rents GPUs"),
        (("--safety-margin", "1.0"), 2, "above 1"),
        (("--decide-on", "span"), 2, "applies to GPUs only"),
        (("--update-config",), 2, "configs/base.yaml"),
        (("--update-config", "--config", "bare.yaml"), 2, "min_len"),
        (("--output", "nowhere/o.json"), 2, "its folder does not exist"),
        (("--baseline", "nowhere.json"), 2, "does not exist"),
        (
            ("--device", "cpu:0", "cpu:1", "--cpu-groups", "2"),
            2,
            "measures one device, but 2 are named",
        ),
        (("--grid", "large"), 2, "has one grid"),
        (("--processes", "1"), 2, "processes"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_measured(
    spins: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    given = words if "--device" in words else (*words, "--device", "cpu")
    assert main(["threshold", "run", "never.yaml", *given]) == code
    assert said in capsys.readouterr().err
    assert not (spins / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--baseline", "nowhere.json"), "nowhere.json"),
        (("--output", "nowhere/o.json"), "its folder does not exist"),
        (("--update-config", "--config", "nowhere.yaml"), "nowhere.yaml does not exist"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(
    words: tuple[str, ...], said: str, spins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["threshold", "run", "never.yaml", *HOW, "--dry-run", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_measures_nothing(spins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["threshold", "run", "never.yaml", *HOW, "--dry-run", "--provider", "local"]) == 0
    assert "3 sizes of spins" in capsys.readouterr().out
    assert not (spins / "runs").exists()


def test_results_of_another_gpu_are_told_to_be_such(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ThresholdDevice(device_name="NVIDIA L4", torch_version=None, cuda_version=None)
    saved = SavedThresholds(device, (), "call", None, None)
    monkeypatch.setattr("assay.machine.detect.detect", lambda: machine(gpus=(0,)))
    assert threshold.result_notes(saved)[0] == "Measured on NVIDIA L4."
    assert "thresholds of another device may not hold here" in threshold.result_notes(saved)[1]
