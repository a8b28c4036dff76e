"""Workflows and actions: nothing for zizmor to find, and the command line understands every call in them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from ruamel.yaml import YAML

from assay.cli.main import cli
from assay.github.measure import MeasureJob, threshold_command

if TYPE_CHECKING:
    from tests.telling import Telling

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTIONS = [ROOT / "action.yml", ROOT / ".github/actions/setup/action.yml"]
VALUES = {
    "BASE": "main", "COMMIT": "0123456789" * 4, "CONFIG": "configs/base.yaml", "GPU_TYPE": "L4", "GPU_TYPES": '["L4"]',
    "HOST": "auto", "LIMIT": "30m", "MAX_COST": "1", "PULL_REQUEST": "7", "THRESHOLDS": "",
}  # fmt: skip


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = YAML(typ="safe", pure=True).load(path)
    return content


def steps(path: Path) -> list[dict[str, Any]]:
    content = load(path)
    if "runs" in content:
        found: list[dict[str, Any]] = content["runs"]["steps"]
        return found
    return [step for job in content["jobs"].values() for step in job.get("steps", [])]


def context(arguments: list[str]) -> click.Context:
    """Parse a command line as the real one does, and run nothing."""
    group: click.Command = cli
    parent = click.Context(cli, info_name="assay")
    while isinstance(group, click.Group):
        name, *arguments = arguments
        found = group.get_command(parent, name)
        assert found is not None, name
        if not isinstance(found, click.Group):
            return found.make_context(name, arguments, parent)
        group, parent = found, click.Context(found, parent, info_name=name)
    raise AssertionError(arguments)


def test_zizmor_finds_nothing(telling: Telling) -> None:
    beside = Path(sys.executable).with_name("zizmor")
    program = str(beside) if beside.exists() else shutil.which("zizmor")
    if program is None:
        assert not os.environ.get("ASSAY_CI"), "zizmor is missing"
        pytest.skip("zizmor is not installed")
    done = subprocess.run(
        [program, "--offline", "--no-progress", "--color=never", "--persona=auditor", str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    for line in (done.stderr + done.stdout).splitlines():
        telling("zizmor --offline", line)
    assert done.returncode == 0, done.stdout
    assert "No findings to report" in done.stdout
    assert done.stderr.count("completed") == len(WORKFLOWS) + len(ACTIONS) + 1


def test_what_zizmor_is_told_to_leave_alone_is_one_line_with_its_reason() -> None:
    told = [line for path in (*WORKFLOWS, *ACTIONS) for line in path.read_text().splitlines() if "zizmor:" in line]
    assert len(told) == 1
    assert re.search(r"issue_comment: # zizmor: ignore\[dangerous-triggers\] \w.{20,}", told[0])


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_with_their_version_beside_them(path: Path) -> None:
    for line in path.read_text().splitlines():
        used = re.match(r"\s*(?:- )?uses: (.*)", line)
        if used and not used[1].startswith("$/"):
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used[1]), line


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=lambda path: path.stem)
def test_no_script_has_an_expression_in_it_and_no_checkout_keeps_a_token(path: Path) -> None:
    for step in steps(path):
        assert "${{" not in step.get("run", "")
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_permissions_are_given_job_by_job_and_keys_only_behind_an_environment(path: Path) -> None:
    content = load(path)
    assert content["permissions"] == {}
    assert content["concurrency"]
    for job in content["jobs"].values():
        assert "permissions" in job
        assert job["timeout-minutes"]
        writes = {name for name, value in job["permissions"].items() if value == "write"}
        keys = "secrets." in str(job)
        assert not keys or job["environment"].startswith("gpu-")
        assert not (keys and writes), "who holds the providers' keys may not write, and the other way round"


def test_the_job_that_decides_checks_nothing_out_and_the_one_that_writes_takes_no_code() -> None:
    jobs = load(ROOT / ".github/workflows/gpu-bench.yml")["jobs"]
    assert not any("checkout" in step.get("uses", "") for step in jobs["request"]["steps"])
    taken = [step["with"] for step in jobs["publish"]["steps"] if "checkout" in step.get("uses", "")]
    assert [each["ref"] for each in taken] == ["${{ github.event.repository.default_branch }}"]


def test_the_benchmark_can_be_asked_for_in_four_ways() -> None:
    on = load(ROOT / ".github/workflows/gpu-bench.yml")["on"]
    assert set(on) == {"workflow_dispatch", "issue_comment", "pull_request", "workflow_call"}
    for way in ("workflow_dispatch", "workflow_call"):
        assert {"gpu_type", "create_pr"} <= set(on[way]["inputs"])


def calls() -> list[tuple[str, str]]:
    return [
        (path.stem, line)
        for path in (*WORKFLOWS, *ACTIONS)
        for step in steps(path)
        for line in step.get("run", "").splitlines()
        if re.search(r"(^|/|\s)assay\s", line)
    ]


@pytest.mark.parametrize(("path", "line"), calls(), ids=lambda text: text[:40])
def test_every_call_in_a_workflow_is_one_that_the_command_line_understands(path: str, line: str) -> None:
    filled = re.sub(r"\$([A-Z_]+)", lambda found: VALUES[found[1]].replace('"', r"\""), line)
    program, *arguments = shlex.split(filled)
    assert program == "assay"
    context(arguments)


def test_there_are_such_calls() -> None:
    assert [" ".join(line.split()[:3]) for _, line in calls()] == [
        "assay github request",
        "assay github measure",
        "assay reap",
        "assay github pull-request",
        "assay github comment",
        "assay reap --json",
    ]


@pytest.mark.parametrize("thresholds", [None, "bench/thresholds.yaml"])
def test_what_measures_is_a_command_line_that_is_understood(thresholds: str | None, tmp_path: Path) -> None:
    found = context(threshold_command(MeasureJob(gpu="L4"), thresholds, tmp_path))
    assert (found.params["on"], found.params["gpu_type"], float(found.params["max_cost"])) == ("auto", "L4", 1.0)
    assert Path(found.params["output"]) == tmp_path / "results.json"


def test_the_installing_script_is_sound_and_refuses_strange_extras(tmp_path: Path) -> None:
    script = ROOT / ".github/actions/setup/install.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True, timeout=20)
    for extras in ("modal; id", "[x]", "../x", "$(id)", ",a"):
        done = subprocess.run(["bash", script, extras], capture_output=True, text=True, check=False, timeout=20)
        assert done.returncode == 2
        assert "extras are names" in done.stderr
