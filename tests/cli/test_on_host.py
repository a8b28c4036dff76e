"""What of a command line is sent to a host, and what is refused before anything is sent."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from assay.cli.host_flags import parse_job_time
from assay.cli.main import main
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands by name, so that there is a Slurm to write scripts for; none of them is called."""
    for name in ("sbatch", "squeue", "scancel", "sinfo", "scontrol"):
        path = tmp_path / "tools" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\nexit 9\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)


def dry(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the script that would be handed to Slurm."""
    assert main([*arguments, "--dry-run"]) == 0
    return capsys.readouterr().out


def words_in(script: str) -> list[str]:
    return shlex.split(script.replace("\\\n", ""))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(list(arguments))
    return code, capsys.readouterr().err


def test_everything_is_sent_but_what_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    script = dry(
        capsys, "run", "--on", "slurm", "--nodes=2", "softmax", "--nproc", "3", "--param", "rows=4", "--gpus", "0", "1",
        "--partition=gpu", "--account", "me", "--time", "90m", "--gres=gpu:3", "--sbatch_arg=--qos=high", "--json",
    )  # fmt: skip
    found = words_in(script)
    inner = found[found.index("assay.cli.remote_rank") + 1 :]
    assert inner == ["run", "softmax", "--param", "rows=4", "--gpus", "0", "1", "--json"]
    for option in ("--partition=gpu", "--account=me", "--time=01:30:00", "--gres=gpu:3", "--qos=high", "--nodes=2"):
        assert f"#SBATCH {option}" in script
    assert "--nproc-per-node 3" in script


def test_what_stands_behind_the_dashes_is_the_users_own(capsys: pytest.CaptureFixture[str]) -> None:
    script = dry_before_dashes(capsys, "run", "--on", "slurm", "--", "sh", "-c", "true", "--on", "mars", "--nodes", "7")
    found = words_in(script)
    inner = found[found.index("assay.cli.remote_rank") + 1 :]
    assert inner == ["run", "--", "sh", "-c", "true", "--on", "mars", "--nodes", "7"]


def dry_before_dashes(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    cut = arguments.index("--")
    assert main([*arguments[:cut], "--dry-run", *arguments[cut:]]) == 0
    return capsys.readouterr().out


def test_the_interpreter_and_its_path_are_ours_unless_another_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "src:/elsewhere")
    ours = dry(capsys, "run", "x.py:f", "--on", "slurm")
    assert f"python={shlex.quote(sys.executable)}" in ours
    assert f"export PYTHONPATH={tmp_path / 'src'}:/elsewhere" in ours
    other = dry(capsys, "run", "x.py:f", "--on", "slurm", "--remote-python", "/opt/python")
    assert "python=/opt/python" in other
    assert "unset PYTHONPATH" in other


@pytest.mark.parametrize(
    ("asked", "processes"),
    [
        (("--gpus-per-node", "4"), 4),
        (("--gpus-per-node", "a100:2"), 2),
        (("--gres", "gpu:8"), 8),
        (("--gres", "gpu:h100:3"), 3),
        (("--gres", "gpu:8", "--nproc", "2"), 2),
    ],
)
def test_a_node_has_as_many_processes_as_gpus_unless_told(
    asked: tuple[str, ...], processes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"--nproc-per-node {processes}" in dry(capsys, "run", "x.py:f", "--on", "slurm", *asked)


def test_one_process_needs_no_torchrun(capsys: pytest.CaptureFixture[str]) -> None:
    assert "torch" not in dry(capsys, "run", "x.py:f", "--on", "slurm")


def test_nothing_is_written_by_a_dry_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dry(capsys, "run", "x.py:f", "--on", "slurm", "--nodes", "2")
    assert [path.name for path in tmp_path.iterdir()] == ["tools"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--on", "slrm"), 2, "There is no host 'slrm'; --on takes local or auto or"),
        (("--nodes", "2"), 2, "--nodes needs a remote host: add --on"),
        (("--on", "local", "--time", "5m"), 2, "--time needs a remote host"),
        (("--on", "slurm", "--time", "30"), 2, "--time 30 has no unit; write 30m, 30s or HH:MM:SS."),
        (("--on", "slurm", "--time", "soon"), 2, "'soon' is not a duration"),
        (("--on", "slurm:a", "--partition", "b"), 2, "name different partitions"),
        (("--on", "slurm", "--sbatch-arg=-Jx", "--dry-run"), 2, "--job-name is set by Assay"),
        (("--on", "slurm", "--nodes", "0"), 2, "--nodes"),
        (("--on", "slurm"), 3, "Slurm does not answer: exit code 9"),
    ],
)
def test_what_cannot_be_meant_is_said(
    arguments: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, err = refused(capsys, "run", "x.py:f", *arguments)
    assert found == code, err
    assert said in err


def test_a_host_that_is_not_here_exits_with_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, err = refused(capsys, "run", "x.py:f", "--on", "slurm")
    assert code == 3
    assert "Slurm's commands are not installed (sbatch, squeue, scancel, sinfo, scontrol)" in err


def test_where_is_not_said_in_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text("on: slurm\n")
    code, err = refused(capsys, "run", "softmax@numpy", "--options", "options.yaml")
    assert code == 2
    assert "--on is accepted on the command line only" in err


def test_time_limits_are_read_with_units_or_as_slurm_writes_them() -> None:
    assert [parse_job_time(text) for text in ("90s", "2h", "00:30:00", "1-00:00:00", "1:30")] == [
        90, 7200, 1800, 86400, 90,
    ]  # fmt: skip
    with pytest.raises(BadInput, match="is not a duration"):
        parse_job_time("a:b")
