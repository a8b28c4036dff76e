"""Renting from the command line, with a host that costs nothing: the choice, the refusals, several machines at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from tests.hosts import moon as moons
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.forking import Forking

ROOT = Path(__file__).resolve().parents[2]
OFFERS = [
    {"gpu": "T4", "usd_per_hour": 0.5},
    {"gpu": "L4", "usd_per_hour": 0.8, "ready_s": 60},
    {"gpu": "L4", "name": "full-L4", "usd_per_hour": 0.4, "ready_s": 60},
    {"gpu": "A100-80GB", "usd_per_hour": 2.0, "priced_on": "2026-08"},
    {"gpu": "H100-SXM", "name": "broken-H100", "usd_per_hour": 3.0},
    {"gpu": "A40", "name": "taken-A40", "usd_per_hour": 0.3},
    {"gpu": "A40", "usd_per_hour": 0.6},
    {"gpu": "H200", "name": "waits-H200", "usd_per_hour": 4.0},
    {"gpu": "B200", "name": "waits-B200", "usd_per_hour": 5.0},
]
RUN = ("run", "sliding_attention@flash")
AUTO = ("--on", "auto", "--gpu-type")


@pytest.fixture(autouse=True)
def moon(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host that rents, for this process and those it starts; the others have no credentials."""
    folder = workplace / "moon"
    moons.entry_point(folder / "path")
    (folder / "offers.json").write_text(json.dumps(OFFERS))
    monkeypatch.syspath_prepend(folder / "path")
    path = (folder / "path", ROOT, os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, path)))
    monkeypatch.setenv("MOON_FOLDER", str(folder))
    monkeypatch.setenv("MOON_KEY", "k")
    for name in (
        "RUNPOD_API_KEY",
        "LAMBDA_API_KEY",
        "MODAL_TOKEN_ID",
        "MODAL_TOKEN_SECRET",
        "ASSAY_MONTHLY_BUDGET_USD",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(folder / "none"))
    return folder


@pytest.fixture(scope="module")
def measured(forking: Forking, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in it."""
    folder = tmp_path_factory.mktemp("canned")
    (folder / "fine.py").write_text("def fine():\n    return sum(range(1000))\n")
    words = ["run", "fine.py:fine", "--device", "cpu:0", "--benchmark-runs", "3", "--restarts", "1", "--no-monitor"]
    environment = {**os.environ, "ASSAY_HOME": str(tmp_path_factory.mktemp("home"))}
    ran = forking.run(words, cwd=folder, environment=environment, timeout_s=110)
    assert ran.returncode == 0, ran.stderr
    return folder / "runs"


@pytest.fixture
def canned(moon: Path, measured: Path) -> None:
    """What the moon measures, measured before."""
    shutil.copytree(measured, moon / "canned", symlinks=True)


def did(moon: Path) -> list[str]:
    return (moon / "did").read_text().splitlines() if (moon / "did").exists() else []


def test_a_dry_run_shows_offers_choice_and_cost_and_rents_nothing(
    moon: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*RUN, *AUTO, "T4,L4,A100", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for said in (
        "FlashAttention-2 does not support it",
        "taken",
        "would do",
        "2026-08",
        "now",
        "$0.80",
        "RUNPOD_API_KEY",
    ):
        assert said in shown
    assert main([*RUN, *AUTO, "T4,L4", "--dry-run", "--json", "--max-cost", "2"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [kind["chosen"] and kind["chosen"]["offer"]["name"] for kind in data["kinds"]] == [None, "full-L4"]
    assert 0 < data["expected_usd"] <= data["most_usd"] <= 2
    assert main([*RUN, *AUTO, "L4,A100", "--dry-run", "--max-cost", "0.05"]) == 3, "an A100 costs more"
    assert did(moon) == []
    assert not (moon.parent / "runs").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--on", "moon", "--gpu-type", "T4"), 3, "run on a T4 is refused: FlashAttention-2 does not support it"),
        ((*AUTO, "L5"), 2, "There is no GPU type 'L5'. Did you mean L4 (modal, runpod, moon)?"),
        (("--on", "lambda", "--gpu-type", "A10"), 3, "lambda: LAMBDA_API_KEY is not set"),
        (("--on", "moon", "--gpu-type", "A10"), 3, "No A10 can be rented from here: moon: it has no A10."),
        ((*AUTO, "A100", "--max-cost", "nan"), 2, "--max-cost nan must be a positive amount in USD"),
        ((*AUTO, "A100", "--max-cost", "inf"), 2, "--max-cost inf must be a positive amount in USD"),
        ((*AUTO, "A100", "--max-cost", "0"), 2, "--max-cost 0 must be a positive amount in USD"),
        ((*AUTO, "A100", "--max-cost", "$0.01"), 3, "more than the $0.010 of --max-cost"),
        ((*AUTO, "A100", "--max-cost", "0.01"), 3, "more than the $0.010 of --max-cost"),
        ((*AUTO, "A100", "--time", "60s"), 3, "--time 1 min 0 s is less than the"),
        ((*AUTO, "L4,A100", "--max-cost", "0.01"), 3, "more than the $0.010 of --max-cost"),
        (("--on", "moon:far", "--gpu-type", "L4"), 2, "--on moon:far: moon has no regions to choose"),
        (("--on", "lambda", "--gpu-type", "A10", "--image", "x"), 2, "--image is not supported with --on lambda"),
        ((*AUTO, "L4", "--nodes", "2"), 2, "--nodes is not supported with --on auto"),
        (("--gpu-type", "L4"), 2, "--gpu-type needs a remote host"),
    ],
)
def test_what_cannot_be_rented_is_said_and_nothing_is(
    words: tuple[str, ...], code: int, said: str, moon: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, *words]) == code
    assert said in capsys.readouterr().err
    assert did(moon) == []


def test_what_only_one_result_can_have_is_refused_for_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["threshold", "run", *AUTO, "L4,A100", "--update-config"]) == 2
    assert "--update-config is for one result" in capsys.readouterr().err


@pytest.mark.full
def test_where_the_cheapest_is_not_free_the_next_is_rented(
    moon: Path, canned: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, *AUTO, "L4", "--max-cost", "1"]) == 0
    assert "The moon has no full-L4 free now." in capsys.readouterr().err
    assert did(moon) == ["create L4 gpu=L4 limit=960 most=1.0", "release L4"]
    assert len(list((moon.parent / "runs").glob("run-*/plan.json"))) == 1


def test_what_was_paid_for_once_is_not_begun_anew_elsewhere(moon: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, *AUTO, "A40", "--max-cost", "1"]) == 3
    assert "The machine was taken away, and no other is free." in capsys.readouterr().err
    assert [line.split()[:2] for line in did(moon)] == [["create", "taken-A40"], ["release", "taken-A40"]]


@pytest.mark.full
def test_several_kinds_are_rented_at_once_and_compared(
    moon: Path, canned: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, *AUTO, "T4,L4,A100,H100", "--json"]) == 4
    told = capsys.readouterr()
    data = json.loads(told.out)
    t4, l4, a100, h100 = data["runs"]
    assert (t4["state"], t4["exit_code"], t4["host"]) == ("refused", None, None)
    assert "FlashAttention-2" in t4["reason"]
    assert (l4["state"], l4["offer"], l4["usd_per_hour"]) == ("done", "L4", 0.8)
    assert (a100["state"], a100["gpu"], a100["priced_on"]) == ("done", "A100-80GB", "2026-08")
    assert (h100["state"], h100["exit_code"]) == ("failed", 4)
    assert "The machine broke down" in h100["reason"]
    assert data["comparison"]["others"] == ["A100"]
    folder = Path(data["folder"])
    report = (folder / "report.md").read_text()
    for said in ("FlashAttention-2 does not support it", "The machine broke down", "A100 against L4", "fine.py:fine"):
        assert said in report
    assert json.loads((folder / "compare.json").read_text()) == data["comparison"]
    assert (folder / l4["run"] / "plan.json").is_file()
    assert (folder / "L4" / "leg.out").read_text().startswith("run sliding_attention@flash")
    assert "A100: Renting moon A100-80GB" in told.err
    rented = sorted(line.split()[1] for line in did(moon) if line.startswith("create"))
    assert rented == sorted(line.split()[1] for line in did(moon) if line.startswith("release"))
    assert rented == ["A100-80GB", "L4", "broken-H100"]


@pytest.fixture
def stop_when_both_are_up(moon: Path) -> Iterator[None]:
    """Ask this process to stop once two machines are rented."""

    def stop() -> None:
        wait_for(lambda: sum(line.startswith("create") for line in did(moon)) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    yield
    thread.join()


@pytest.mark.full
def test_a_signal_gives_every_machine_back(
    moon: Path, stop_when_both_are_up: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, *AUTO, "H200,B200"]) == 4
    assert "Stopped by SIGTERM; every machine is gone." in capsys.readouterr().err
    assert sorted(line for line in did(moon) if line.startswith("release")) == [
        "release waits-B200",
        "release waits-H200",
    ]


@pytest.mark.full
def test_a_kill_leaves_no_process_behind(moon: Path, assay_home: Path) -> None:
    words = [sys.executable, "-m", "assay", *RUN, *AUTO, "H200,B200"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_for(lambda: sum(line.startswith("create") for line in did(moon)) == 2)
    process.kill()
    process.wait()
    wait_for(lambda: not survivors(assay_home))
