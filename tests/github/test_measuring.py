"""The job that holds the keys: a commit's code is sent and never run, its own thresholds and links go nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.hosts.remote import transfer as upload


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assay_home: Path) -> Path:
    """A commit beside the repository's own branch, and a command line that only notes what it is asked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY_SEND", "")
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    (tmp_path / "subject/bench").mkdir(parents=True)
    (tmp_path / "subject/bench/thresholds.yaml").write_text("thresholds: [../../../home/runner/.modal.toml]\n")
    (tmp_path / "trusted/bench").mkdir(parents=True)
    (tmp_path / "trusted/bench/thresholds.yaml").write_text("thresholds: []\n")

    def noted(words: list[str]) -> int:
        (assay_home / "rentals.jsonl").write_text("{}\n")
        assert os.environ["PYTHONSAFEPATH"] == "1"
        (tmp_path / "noted").write_text("\n".join([str(Path.cwd()), os.environ.get("ASSAY_SEND", ""), *words]))
        return 3

    monkeypatch.setattr("assay.cli.github.run_assay", noted)
    return tmp_path


def measure(*words: str) -> int:
    return main(["github", "measure", "subject", "--gpu-type", "L4", "--output", "out", *words])


def test_thresholds_are_those_of_the_repository_and_the_next_job_finds_what_came_of_it(folder: Path) -> None:
    assert measure("--thresholds", "bench/thresholds.yaml", "--trusted", "trusted") == 3
    assert (folder / "subject/bench/thresholds.yaml").read_text() == "thresholds: []\n"
    place, sent, *words = (folder / "noted").read_text().split("\n")
    assert (place, sent) == (str(folder / "subject"), "")
    assert words[:3] == ["threshold", "run", "bench/thresholds.yaml"]
    assert f"--output\n{folder / 'out/results.json'}" in "\n".join(words)
    assert (folder / "out/exit-code").read_text() == "3\n"
    assert (folder / "out/rentals.jsonl").read_text() == "{}\n"


@pytest.mark.parametrize("amount", ["nan", "inf", "-1", "much"])
def test_no_amount_of_money_is_refused(folder: Path, amount: str) -> None:
    assert measure("--max-cost", amount) == 2
    assert not (folder / "noted").exists()


def test_a_commit_of_assay_is_sent_as_it_is_and_only_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "subject/src/assay"
    (package / "cli").mkdir(parents=True)
    (package / "_version.py").write_text("raise SystemExit('it ran')\n")
    (package / "cli/main.py").write_text("raise SystemExit('it ran')\n")
    assert measure("--thresholds", "") == 3
    assert (folder / "noted").read_text().split("\n")[1:4] == [str(package), "threshold", "run"]
    monkeypatch.setenv("ASSAY_SEND", str(package))
    upload.wheel_contents.cache_clear()
    try:
        assert "assay/cli/main.py" in upload.wheel_contents()
        assert not any(name.startswith("assay/github") for name in upload.wheel_contents())
    finally:
        upload.wheel_contents.cache_clear()


@pytest.mark.parametrize(
    ("link", "words", "said"),
    [
        ("subject/kernels.py", (), "is a link, which could lead anywhere"),
        ("subject/bench/more", (), "is a link, which could lead anywhere"),
        (None, ("--thresholds", "../trusted/x.yaml"), "is no path of a configuration within"),
        (None, ("--thresholds", "bench/none.yaml", "--trusted", "trusted"), "does not exist"),
        (None, ("--gpu-type", "L4,A100"), "takes one GPU model here"),
        (None, ("--gpu-type", "L4; id"), "names no GPUs"),
        (None, ("--output", "subject"), "is not empty"),
    ],
)
def test_what_could_lead_out_of_the_commit_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], link: str | None, words: tuple[str, ...], said: str
) -> None:
    if link is not None:
        (folder / link).symlink_to("/proc/self/environ")
    assert measure(*words) == 2
    assert said in capsys.readouterr().err
    assert not (folder / "noted").exists()
    if link is not None:
        assert (folder / "out/exit-code").read_text() == "2\n"
