"""``assay contention matrix`` with real processes on the cores that are there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.cli.contention import AGGRESSORS
from assay.cli.main import main
from assay.experiments.budget import TRIAL_OVERHEAD_S
from assay.experiments.contention.options import NAMED_AGGRESSORS
from tests.running import survivors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.running import Assay

MATRIX = ("contention", "matrix")
TINY = ("--device", "cpu:0", "--duration", "0.2", "--repeat", 1, "--no-monitor")


@pytest.mark.full
def test_a_matrix_is_measured_judged_and_drawn_and_a_dead_aggressor_leaves_the_rest(
    assay: Assay, workplace: Path, assay_home: Path
) -> None:
    ran = assay(*MATRIX, *TINY, "--victim", "bad.py:fine", "--aggressor", "cpu", "bad.py:killed", "--json")
    assert ran.code == 4, ran.err
    cells = {
        (f["facts"]["aggressor"], f["facts"]["measure"]): f for f in ran.data["findings"] if "measure" in f["facts"]
    }
    alive, dead = cells["cpu", "median"], cells["bad.py:killed", "median"]
    assert alive["estimate"]["n"] == 1
    assert alive["facts"]["naive_cores"] > 0
    assert alive["facts"]["isolated"] is not None
    assert (dead["estimate"], dead["facts"]["outcome"]) == (None, "not known")
    assert any("can be timed beside bad.py:killed" in f["claim"] for f in ran.data["findings"])
    assert "bad.py:killed" in ran.data["headline"]
    run = workplace / "runs/latest"
    assert {"matrix_median.png", "samples_0.png"} <= {path.name for path in (run / "figures").iterdir()}
    assert "What went wrong" in (run / "report.md").read_text()
    (block,) = (json.loads(line)["block"] for line in (run / "blocks.jsonl").read_text().splitlines())
    phases = [trial["settings"]["phase"] for trial in block["trials"]]
    assert sorted(phases) == ["again", "alone", "bare", "isolated", "isolated", "naive", "naive"]
    assert not survivors(assay_home)


@pytest.fixture
def matrix(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command in this process: it measures nothing in these tests."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["contention", "matrix", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_dry_run_shows_who_would_meet_whom_where(matrix: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = matrix("--device", "cpu:0", "--victim", "softmax@numpy", "--aggressor", "cpu,memory", "--dry-run")
    assert code == 0, err
    assert "aggressor: load, isolation full, cores" in out
    assert "victim: timed, isolation gpu, unpinned" in out
    assert "First block: block-1 (every victim beside every aggressor, 1 of 6), 7 trials" in out


@pytest.mark.parametrize("verb", ["run", "matrix"])
def test_aggressors_have_the_same_names_in_help_and_in_errors(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ", ".join(NAMED_AGGRESSORS) == AGGRESSORS
    assert main(["contention", verb, "--help"]) == 0
    assert f"{AGGRESSORS}, or any workload" in " ".join(capsys.readouterr().out.split())
    assert main(["contention", verb, "--device", "cpu", "--aggressor", "nonesuch"]) == 2
    assert f"there are {AGGRESSORS}, and every workload" in capsys.readouterr().err


def test_a_load_is_the_same_aggressor_by_its_workload_s_name(matrix: Callable[..., tuple[int, str, str]]) -> None:
    said = [
        matrix("--device", "cpu:0", "--victim", "softmax@numpy", "--aggressor", name, "--dry-run")
        for name in ("cpu", "cpu_hog", "cpu-hog@python")
    ]
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--aggressor", "pcie", "--device", "cpu"), 3, "The aggressor pcie needs a GPU"),
        (("--aggressor", "cpuu", "--device", "cpu"), 2, "Unknown aggressor 'cpuu'"),
        (("--aggressor", "--dry-run"), 2, "--aggressor needs a value, but is followed by the option --dry-run"),
        (("--victim", "sofmax", "--device", "cpu"), 2, "Unknown workload 'sofmax'"),
        (("--budget", "1", "--device", "cpu:0"), 2, "--budget 1 s is too little for 21 trials"),
        (("--param", "rows=3", "--device", "cpu:0"), 2, "--param needs --victim"),
        (("--gpus", "0"), 3, "There is no GPU 0 here"),
        (("--repeat", "0"), 2, "--repeat"),
        (("--cache", "cold", "--device", "cpu"), 2, "--cache cold applies to GPUs only"),
    ],
)
def test_what_cannot_be_meant_or_done_is_said_in_one_line(
    matrix: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...], code: int, words: str
) -> None:
    ended, _, err = matrix(*arguments)
    assert (ended, words in err) == (code, True), err
    assert len(err.strip().splitlines()) == 1


def test_a_duration_that_is_shortened_to_fit_the_budget_is_said(matrix: Callable[..., tuple[int, str, str]]) -> None:
    words = ("--device", "cpu:0", "--victim", "softmax@numpy", "--aggressor", "cpu", "--budget", "30", "--dry-run")
    code, _, err = matrix(*words, "--duration", "20")
    assert code == 0
    assert err.startswith("--duration 20 s is shortened to ")
    assert err.endswith(" s, so that 3 blocks fit --budget 30 s.\n")
    assert matrix(*words)[2] == ""


def test_options_come_from_a_file_and_the_command_line_wins(
    matrix: Callable[..., tuple[int, str, str]], workplace: Path
) -> None:
    (workplace / "m.yaml").write_text("device: cpu:0\nvictim: [softmax@numpy]\naggressor: [cpu, memory]\nrepeat: 4\n")
    code, out, err = matrix("--options", "m.yaml", "--repeat", "3", "--dry-run")
    assert code == 0, err
    assert "1 of 3), 7 trials" in out


def test_a_budget_shortens_the_trials_until_three_blocks_fit(matrix: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = matrix("--device", "cpu:0", "--aggressor", "cpu", "--budget", "21", "--dry-run", "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert len(plan["block"]["trials"]) == 5
    assert plan["block"]["trials"][0]["mode"]["duration_s"] == pytest.approx(21 / 15 - TRIAL_OVERHEAD_S)
    assert plan["at_most_s"] == pytest.approx(21.0)
