"""``assay power characterize`` with real processes: on the cores that are there, and on GPUs that a fake NVML lists."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.experiments.power.rows import GpuRow
from tests.fakes import fake_kernel
from tests.fakes.fake_nvml import hopper
from tests.running import survivors

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.plugin import MakeFakeNvml
    from tests.running import Assay

CHARACTERIZE = ("power", "characterize")
KERNEL = f"{Path(fake_kernel.__file__).resolve()}:call"

TINY = """
defaults: {base: {workload: "bad.py:fine"}, settle: none}
cases:
  - {name: fine}
  - {name: "fine beside {noise}", noise: {workload: "bad.py:killed"}}
  - {name: fine on 9, base: {gpus: 9}}
"""

LOST_LAST = 0
"""A seed by whose lot the case that loses a GPU comes last."""

LOSES = """
import sys
sys.path.insert(0, {root!r})
from tests.fakes.fake_nvml import FakeNvml
import time

def call():
    FakeNvml.from_env().lose(1)
    time.sleep(0.02)
"""


def test_cases_are_measured_judged_and_drawn_and_noise_that_dies_leaves_the_rest(
    assay: Assay, workplace: Path, assay_home: Path
) -> None:
    (workplace / "tiny.yaml").write_text(TINY)
    ran = assay(*CHARACTERIZE, "tiny.yaml", "--device", "cpu", "--quick", "--duration", "0.2", "--json")
    assert ran.code == 4, ran.err
    about = {(f["kind"], f["facts"]["case"]): f for f in ran.data["findings"]}
    assert about["gpu", "fine"]["estimate"]["value"] > 0
    died = about["case", "fine beside bad.py:killed"]
    assert died["facts"]["status"] == "failed"
    assert "bad.py:killed on cpu:1: the worker died of SIGKILL" in died["reason"]
    skipped = about["case", "fine on 9"]
    assert (skipped["facts"]["status"], skipped["reason"]) == (
        "skipped", "it needs 9 groups of cores, and there are 2"
    )  # fmt: skip
    run = workplace / "runs/latest"
    (block,) = (json.loads(line)["block"] for line in (run / "blocks.jsonl").read_text().splitlines())
    assert {trial["settings"]["phase"] for trial in block["trials"]} == {"idle", "fine", "fine beside bad.py:killed"}
    rows = [GpuRow.model_validate_json(line) for line in (run / "power/gpus.jsonl").read_text().splitlines()]
    assert {(row.case, row.run) for row in rows} == {("idle", run.resolve().name), ("fine", run.resolve().name)}
    kernels = list(csv.DictReader((run / "power/kernels.csv").read_text().splitlines()))
    starts = [int(row["start_ns"]) for row in kernels if row["case"] == "fine"]
    assert starts == sorted(starts)
    assert len(starts) == sum(record["series"][0]["n"] for record in ran.data["records"] if _is(record, block, "fine"))
    assert "Groups of cores have no sensors of their own" in (run / "report.md").read_text()
    assert not survivors(assay_home)


@pytest.mark.full
def test_where_nothing_but_idleness_was_measured_nothing_was(assay: Assay, workplace: Path) -> None:
    huge = "cases: [{name: huge, base: {workload: sgemm, params: {n: 100000000}}}]"
    (workplace / "huge.yaml").write_text(huge)
    ran = assay(*CHARACTERIZE, "huge.yaml", "--device", "cpu", "--quick", "--duration", "0.2", "--json")
    assert ran.code == 3, ran.err
    assert {record["status"] for record in ran.data["records"]} == {"ok", "refused"}
    assert ran.data["headline"] == "Nothing could be measured."


def _is(record: dict[str, str], block: dict[str, list[dict[str, dict[str, str]]]], case: str) -> bool:
    from assay.core.values import Trial

    trials = [Trial.model_validate(trial) for trial in block["trials"]]
    return any(trial.id == record["trial"] and trial.settings["phase"] == case for trial in trials)


@pytest.mark.full
def test_on_gpus_a_kernel_has_its_joules_within_the_interval_and_a_lost_gpu_costs_only_its_own_case(
    assay: Assay, workplace: Path, make_fake_nvml: MakeFakeNvml
) -> None:
    fake = make_fake_nvml([hopper(), hopper()], virtual=False)
    (workplace / "lose.py").write_text(LOSES.format(root=str(Path(__file__).resolve().parents[2])))
    (workplace / "cases.yaml").write_text(
        f"""
        defaults: {{settle: none, duration: 2.5s, repeats: 1}}
        cases:
          - {{name: idle, base: {{workload: idle, params: {{context: false}}}}, duration: 1s}}
          - {{name: kernel, base: {{workload: "{KERNEL}", params: {{watts: 400}}, devices: [0]}}}}
          - {{name: lost, base: {{workload: "lose.py:call", devices: [1]}}, duration: 0.5s}}
        """
    )
    environment = {n: v for n, v in fake.env({}).items() if n in {"LD_LIBRARY_PATH", "ASSAY_FAKE_NVML"}}
    ran = assay(*CHARACTERIZE, "cases.yaml", "--seed", LOST_LAST, "--isolation", "gpu", "--json", **environment)
    assert ran.code == 4, ran.err
    about = {(f["kind"], f["facts"]["case"]): f for f in ran.data["findings"]}
    assert about["case", "lost"]["facts"]["status"] == "failed"
    assert "lost" in about["case", "lost"]["reason"]
    kernel = about["gpu", "kernel"]
    assert kernel["origin"] == "fake"
    record = next(r for r in ran.data["records"] if r["trial"] in kernel["records"])
    calls = next(s for s in record["series"] if s["quantity"] == "call_us")
    spent_j = fake.true_energy_j(0, calls["start_ns"] / 1e9, calls["end_ns"] / 1e9)
    low_j, high_j = kernel["facts"]["energy_low_j"], kernel["facts"]["energy_high_j"]
    metered = next(gpu for gpu in record["during"]["gpus"] if gpu["gpu"] == 0)
    if low_j is None:  # on a busy machine the recorder may miss too many ticks of the sensor
        assert metered["energy_missing"]["code"] in {"not_covered", "too_few_ticks", "too_wide"}
    else:
        assert low_j <= spent_j / calls["n"] <= high_j
    rest = next(r for r in ran.data["records"] if r["trial"] in about["gpu", "idle"]["records"])
    seen = next(gpu for gpu in rest["during"]["gpus"] if gpu["gpu"] == 0)
    windows = [s for s in rest["series"] if (s["role"], s["quantity"]) == ("cuda:0", "call_us")]
    rested_j = sum(fake.true_energy_j(0, s["start_ns"] / 1e9, s["end_ns"] / 1e9) for s in windows)
    assert seen["energy"] is None or seen["energy"]["low"] <= rested_j <= seen["energy"]["high"]
    assert hopper().idle_w * 0.9 < kernel["facts"]["idle_w"] < kernel["facts"]["power_w"] / 2
    run = workplace / "runs/latest"
    trace = (run / "power/kernels.csv").read_text().splitlines()
    rows = [row for row in csv.DictReader(trace) if row["case"] == "kernel"]
    assert len(rows) == calls["n"]
    assert {row["uuid"] for row in rows} == {fake.gpu(0).uuid.decode()}
    assert statistics.median(float(row["power_instant_w"]) for row in rows) > 300
    assert statistics.median(float(row["sm_mhz"]) for row in rows) > 1000
    assert {"power_time.png", "clock_time.png", "run.png"} <= {path.name for path in (run / "figures").iterdir()}


@pytest.fixture
def characterize(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command in this process: it measures nothing in these tests."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*CHARACTERIZE, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_dry_run_of_the_cases_that_come_with_it_shows_places_time_and_what_is_skipped(
    characterize: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, err = characterize("--device", "cpu", "--dry-run")
    assert code == 0, err
    assert "idle: idle@python on cpu:0 and cpu:1 together" in out
    assert "First block: repeat-1 (every case, every device in turn, 1 of 3)" in out
    assert "The whole run takes at most" in out
    assert "Skipped: sgemm on 4 at once: it needs 4 groups of cores, and there are 2." in out
    assert "Skipped: sgemm beside 1 copying: pcie_copy@torch runs on cuda, not on cpu." in out


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("none.yaml",), 2, "none.yaml does not exist"),
        (("--case", "sgem on 1 at once"), 2, "--case 'sgem on 1 at once'.*Did you mean sgemm on 1 at once"),
        (("--settle", "5s", "--no-settle"), 2, "--settle and --no-settle exclude each other"),
        (("--budget", "3s"), 2, "--budget 3.0 s is too little for a repeat of"),
        (("--gpus", "0"), 3, "There is no GPU 0 here"),
        (
            ("--case", "*copying"),
            3,
            "No case can be measured here; 'sgemm beside 1 copying': pcie_copy@torch runs on cuda",
        ),
        (("--nodes", "2"), 2, "--nodes needs a remote host"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    characterize: Callable[..., tuple[int, str, str]], words: tuple[str, ...], code: int, said: str
) -> None:
    import re

    device = () if "--gpus" in words else ("--device", "cpu")
    ended, _, err = characterize(*words, *device, "--dry-run")
    assert ended == code
    assert re.search(said, err)
    assert len(err.strip().splitlines()) == 1


def test_flags_win_over_the_file_and_patterns_choose_cases(characterize: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = characterize(
        "--device", "cpu", "--case", "SGEMM on*", "--repeat", "7", "--duration", "3s", "--json", "--dry-run"
    )
    assert code == 0
    block = json.loads(out)["block"]
    assert "1 of 7" in block["why"]
    assert {trial["settings"]["phase"] for trial in block["trials"]} == {
        "idle", "sgemm on 1 at once", "sgemm on 2 at once"
    }  # fmt: skip
    assert {round(trial["mode"]["duration_s"], 1) for trial in block["trials"]} == {3.0}
    assert all(trial["mode"]["kind"] == "continuous" for trial in block["trials"])
