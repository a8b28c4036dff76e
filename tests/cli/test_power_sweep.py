"""``assay power sweep`` on GPUs that a fake NVML lists: what is measured, what is refused, and that all is restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.experiments.budget import DEFAULT_WORKER_START_S, TRIAL_OVERHEAD_S
from tests.fakes import fake_kernel
from tests.fakes.fake_nvml import FakeNvml, attached, hopper
from tests.running import survivors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fakes.plugin import MakeFakeNvml
    from tests.running import Assay

KERNEL = f"{Path(fake_kernel.__file__).resolve()}:call"


@pytest.fixture
def two_gpus(make_fake_nvml: MakeFakeNvml) -> FakeNvml:
    return make_fake_nvml([hopper(), hopper()], virtual=False)


@pytest.fixture
def sweep(two_gpus: FakeNvml, workplace: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., object]]:
    """The command in this process: it measures nothing in these tests."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["power", "sweep", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    with attached(two_gpus):
        yield run


@pytest.mark.full
def test_limits_are_stepped_on_two_gpus_measured_judged_and_restored(
    assay: Assay, two_gpus: FakeNvml, workplace: Path, assay_home: Path
) -> None:
    words = ("--gpus", "0,1", "--concurrent", "--limits", "250,650", "--apply", "--param", "watts=500")
    briefly = ("--duration", "2", "--settle", "0", "--repeat", 1, "--min-effect", "20%", "--json")
    ran = assay("power", "sweep", KERNEL, *words, *briefly, **two_gpus.env({}))
    assert ran.code == 0, ran.err
    assert {record["status"] for record in ran.data["records"]} == {"ok"}
    best = [f for f in ran.data["findings"] if f["kind"] == "best_energy"]
    assert [f["facts"]["device"] for f in best] == ["cuda:0", "cuda:1"]
    for finding in best:
        assert (finding["facts"]["setting"], finding["verdict"], finding["origin"]) == (250.0, "unsure", "fake")
        assert finding["facts"]["energy_ratio"] == pytest.approx(250 / 578 * 1980 / 1380, rel=0.1)
    binding = next(f for f in ran.data["findings"] if f["kind"] == "binding")
    assert (binding["facts"]["binds"], binding["facts"]["does_not_bind"]) == ("250 W", "650 W")
    rows = [json.loads(line) for line in (workplace / "runs/latest/power/sweep.jsonl").read_text().splitlines()]
    assert [(row["slot"], row["setting"]) for row in rows] == [(n, s) for n in (0, 1) for s in (None, 250, 650)]
    assert (workplace / "runs/latest/figures/sweep_energy.png").is_file()
    set_to = [call.arguments[0] / 1e3 for call in two_gpus.setting_calls() if call.gpu == 1]
    assert set(set_to) == {700.0, 250.0, 650.0}
    assert [two_gpus.gpu(index).power_limit_mw for index in range(2)] == [700_000, 700_000]
    assert not survivors(assay_home)
    assert list((assay_home / "leases").iterdir()) == []


def test_without_apply_it_says_what_would_be_and_changes_nothing(
    sweep: Callable[..., tuple[int, str, str]], two_gpus: FakeNvml, workplace: Path
) -> None:
    code, out, err = sweep("softmax", "--limits", "200:700:100", "--gpus", "1")
    assert (code, err) == (0, "")
    assert "cuda:1 (NVIDIA H200): power limit 700 W now, takes 200 to 700 W" in out
    assert "6 steps: 200, 300, 400, 500, 600 and 700 W" in out
    assert "Nothing was changed and nothing measured" in out
    code, out, _ = sweep("softmax", "--sm-clocks", "900:1980:540", "--dry-run", "--apply", "--json")
    told = json.loads(out)
    assert (code, told["changes"][0]["lowest"], told["changes"][0]["steps"]) == (0, 345, [900, 1440, 1980])
    assert two_gpus.setting_calls() == []
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--limits", "150:700:50"), 2, "150 W is out of range: GPU 0 (NVIDIA H200) takes 200 to 700 W"),
        (("--limits", "300,750", "--apply"), 2, "750 W is out of range"),
        (("--sm-clocks", "100"), 2, "An SM clock of 100 MHz is out of range: GPU 0 (NVIDIA H200) takes 345 to 1980"),
        (("--limits", "300", "--sizes", "64"), 2, "--limits and --sizes exclude each other; sweep one at a time."),
        ((), 2, "Nothing to sweep"),
        (("--sizes", "64", "--apply"), 2, "--sizes changes nothing on the GPU"),
        (("--limits", "300", "--size-param", "n"), 2, "--size-param needs --sizes"),
        (("--limits", "300", "--gpus", "7"), 3, "There is no GPU 7 here"),
        (("--limits", "300", "--device", "cpu:0"), 3, "cpu:0 is a group of cores"),
        (("--limits", "300:200:50"), 2, "runs backwards"),
        (("--batches", "8"), 2, "has no parameter 'batch'"),
        (("--sizes", "64", "--device", "cpu:0"), 2, "Name one with --size-param"),
        (("--duty", "50", "--device", "cpu:0"), 2, "for 50 percent write 50%"),
        (("--limits", "200:700:50", "--budget", "20"), 2, "--budget 20 s is too little for 36 trials"),
        (("--limits", "--apply"), 2, "--limits needs a value"),
    ],
)
def test_what_cannot_be_meant_or_done_is_said_in_one_line(
    sweep: Callable[..., tuple[int, str, str]],
    two_gpus: FakeNvml,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    ended, out, err = sweep("softmax", *arguments)
    assert (ended, words in err, out) == (code, True, ""), err
    assert len(err.strip().splitlines()) == 1
    assert two_gpus.setting_calls() == []


@pytest.mark.parametrize("steps", [("--limits", "300"), ("--sm-clocks", "1200")])
def test_without_the_right_nothing_is_measured_and_nothing_is_left(
    sweep: Callable[..., tuple[int, str, str]],
    two_gpus: FakeNvml,
    workplace: Path,
    assay_home: Path,
    steps: tuple[str, ...],
) -> None:
    two_gpus.privileged = False
    code, _, err = sweep("softmax", *steps, "--apply")
    assert (code, len(err.strip().splitlines())) == (3, 1)
    assert "needs administrator rights" in err
    assert not (workplace / "runs").exists()
    assert list((assay_home / "leases").glob("*.json")) == []


def test_a_budget_shortens_trials_and_the_wait_alike(sweep: Callable[..., tuple[int, str, str]]) -> None:
    words = ("gemm@numpy", "--sizes", "64,128", "--device", "cpu:0", "--settle", "10", "--dry-run", "--json")
    code, out, err = sweep(*words, "--budget", "60")
    assert code == 0, err
    method = json.loads(out)["block"]["trials"][0]["mode"]
    assert method["settle_s"] == pytest.approx((60 - 6 * (DEFAULT_WORKER_START_S + TRIAL_OVERHEAD_S)) / 6 / 2)
    assert method["duration_s"] == pytest.approx(method["settle_s"])


def test_a_refused_step_is_told_before_the_rest_is_measured(sweep: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = sweep("gemm@numpy", "--dtypes", "float32", "float17", "--device", "cpu:0", "--dry-run")
    assert code == 0
    assert err.startswith("dtype float17 is invalid: ")
    assert "1 trial" in out


def test_load_is_swept_on_cores_without_any_right(assay: Assay, workplace: Path) -> None:
    words = ("--sizes", "32,64", "--device", "cpu:0", "--duration", "0.3", "--settle", "0", "--repeat", 1)
    ran = assay("power", "sweep", "gemm@numpy", *words, "--no-monitor", "--json")
    assert ran.code == 0, ran.err
    finding = next(f for f in ran.data["findings"] if f["kind"] == "best_energy")
    assert (finding["estimate"], finding["verdict"]) == (None, "unsure")
    assert "does the most work at size 64" in ran.data["headline"]
    rows = [json.loads(line) for line in (workplace / "runs/latest/power/sweep.jsonl").read_text().splitlines()]
    assert [(row["setting"], row["params"]["m"], row["work_per_call"]) for row in rows] == [
        (32, 32, 2.0 * 32**3),
        (64, 64, 2.0 * 64**3),
    ]
