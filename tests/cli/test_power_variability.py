"""``assay power variability`` and ``assay power budget`` on folders as users have them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.experiments.power.rows import GPUS_FILE, SWEEP_FILE
from tests.experiments.power.simulated_fleets import Setting, four_gpus, simulate, write
from tests.experiments.power.simulated_sweeps import sweep_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.running import Assay

    Said = tuple[int, str, str]
    Power = Callable[..., Said]


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Power:
    """The verbs in this process, without the drawing, which takes most of their time."""
    monkeypatch.chdir(tmp_path)
    write_report = "assay.reports.documents.write_report"
    monkeypatch.setattr(write_report, lambda _, folder: folder.mkdir(parents=True) or (folder,))

    def run(*arguments: object) -> Said:
        code = main(["power", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.full
def test_a_fleet_with_a_slow_gpu_in_a_hot_rack_is_reported(assay: Assay, workplace: Path) -> None:
    setting = Setting(nodes=25, hot_racks=1, slow=2, slow_in_hot_racks=1, hot=1, hungry=1)
    simulated = simulate(setting, 5)
    write(simulated, workplace / "runs")
    ran = assay("power", "variability", "runs", "--json")
    assert ran.code == 0, ran.err
    called = {f["facts"]["uuid"] for f in ran.data["findings"] if f["facts"].get("kind") == "slow"}
    assert called == simulated.slow
    assert ran.data["headline"].startswith("Of 200 GPUs 2 slow, 1 hot and 1 hungry stand out; 1 rack strays as a whole")
    folder = workplace / "runs" / "variability"
    assert "simulated source" in (folder / "report.html").read_text()
    assert (folder / "figures" / "frequency_temperature.png").is_file()
    lines = (folder / "gpus.csv").read_text().splitlines()
    assert len(lines) == 201
    assert sum(line.endswith("slow wasteful") for line in lines) == 2


def test_four_gpus_are_answered_in_a_sentence_and_the_older_question_is_too(power: Power, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f"{row.model_dump_json()}\n" for row in four_gpus(3)))
    code, out, err = power("variability", "rows.jsonl", "--min-effect", "0.5%", "--output", "report")
    assert code == 0
    assert "Report: report/report.html" in err
    text = " ".join(out.split())
    assert "Ask for GPU 3: it is the fastest of 4 GPUs with over 99 % confidence" in text
    assert "Can I save money by just asking for the 4th GPU always? Yes: on this host" in text
    assert "Of 1 host it cannot be told whether it is the slot or the GPU in it." in text
    assert (tmp_path / "report" / "gpus.csv").is_file()


def test_what_cannot_be_used_at_all_is_one_sentence(power: Power, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jsonl").write_text('{"run": 1}\n')
    (tmp_path / "runs" / "x" / GPUS_FILE).parent.mkdir(parents=True)
    (tmp_path / "runs" / "x" / GPUS_FILE).write_text("")
    for words, said in (
        (("variability",), "runs/latest is not there"),
        (("variability", "empty"), "empty holds no run with a power/gpus.jsonl"),
        (("variability", "runs"), "is empty"),
        (("variability", "bad.jsonl", "empty"), "bad.jsonl: line 1"),
        (("budget", "--watts", "100", "empty"), "empty holds no run with a power/sweep.jsonl"),
        (("budget", "empty"), "Missing option '--watts'"),
        (("budget", "--watts", "0", "empty"), "--watts"),
        (("budget", "--watts", "nan", "empty"), "--watts must be a finite number, not 'nan'"),
        (("budget", "--watts", "inf", "empty"), "--watts must be a finite number"),
        (("budget", "--watts", "900", "--overhead", "nan", "empty"), "--overhead must be a finite number"),
        (("variability", "--racks", "gone.csv", "empty"), "--racks gone.csv cannot be read"),
    ):
        code, out, err = power(*words)
        assert (code, out) == (2, ""), words
        assert said in err
        assert err.count("\n") == 1


def test_a_budget_prints_caps_and_commands_and_sets_nothing(power: Power, tmp_path: Path) -> None:
    file = tmp_path / "runs" / "sweep" / SWEEP_FILE
    file.parent.mkdir(parents=True)
    rows = [row for slot, knee in enumerate((200.0, 350.0)) for row in sweep_rows(slot, knee=knee, noise=0.002)]
    file.write_text("".join(f"{row.model_dump_json()}\n" for row in rows) + "{cut")
    code, out, err = power("budget", "--watts", 900, "--overhead", 100, "runs/sweep")
    assert code == 0
    assert "Report: runs/sweep/budget/report.html" in err
    assert "# Nothing was set. Run as root:\n# on n1\nnvidia-smi -i GPU-n1-0 -pl " in out
    assert "is cut off" in out
    code, out, _ = power("budget", "--watts", 900, "--overhead", 100, "runs", "--json", "--output", "other")
    data = json.loads(out)
    assert sum(cap["cap_w"] for cap in data["caps"]) <= 800
    assert data["commands"][1] == f"nvidia-smi -i GPU-n1-1 -pl {data['caps'][1]['cap_w']:.0f}"
    assert data["loss"]["low"] < data["loss"]["value"] < data["loss"]["high"]
    gpus = tmp_path / "gpus.jsonl"
    gpus.write_text(f"{simulate(Setting(nodes=1, gpus=1, runs=1), 1).all_rows[0].model_dump_json()}\n")
    code, out, _ = power("budget", "--watts", 900, file, gpus, "--json", "--output", "third")
    assert [cap["own_curve"] for cap in json.loads(out)["caps"]] == [True, True, False]
    assert power("budget", "--watts", 900, gpus)[0] == 2
    code, out, err = power("budget", "--watts", 450, "--overhead", 100, "runs")
    assert (code, out) == (3, "")
    assert err == (
        "assay: 450 W are not enough: 2 GPUs need 500 W at their lowest measured caps, including 100 W of overhead.\n"
    )
