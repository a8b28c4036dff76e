"""The batch script, as text and as the shell reads it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput
from assay.hosts.base import Job
from assay.hosts.slurm.script import batch_script, sbatch_options

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ("run", "it's $HOME.py:f", "--param", "a=b c", "--", "sh", "-c", 'echo "$X" `date`')


def order(**changes: Any) -> Job:
    told: dict[str, Any] = {
        "id": "0123456789abcdef",
        "words": WORDS,
        "cwd": "/shared/my work",
        "folder": "/shared/my work/runs/slurm-1",
        "output_dir": "/shared/my work/runs",
        "python": "/opt/py thon/bin/python",
        **changes,
    }
    return Job(**told)


def headers(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_whole_nodes_are_asked_for_under_a_name_of_ours_and_never_again_by_themselves() -> None:
    found = headers(batch_script(order(nodes=2, limit_s=90, host_place="gpu", arguments=("--account=a b",))))
    assert {"--job-name=assay-0123456789abcdef", "--nodes=2", "--ntasks-per-node=1", "--exclusive", "--no-requeue"} <= {
        *found
    }
    assert {"--partition=gpu", "--time=00:02:00", "--account='a b'", "--chdir='/shared/my work'"} <= {*found}
    assert sbatch_options(order(arguments=("--account=a b",)))[-1] == "--account=a b"


@pytest.mark.parametrize("argument", ["--exclusive=user", "--oversubscribe", "--cpus-per-task=4", "-c4"])
def test_who_says_how_much_of_a_node_is_wanted_gets_that(argument: str) -> None:
    assert "--exclusive" not in sbatch_options(order(arguments=(argument,)))


@pytest.mark.parametrize(
    "argument",
    ["-J x", "--job-name=x", "--output=x", "-o x", "--array=1-3", "-M other", "--wait", "--nodes=3", "-N3", "--outp=x"],
)
def test_what_would_hide_the_job_from_us_is_refused(argument: str) -> None:
    with pytest.raises(BadInput, match="is set by Assay"):
        batch_script(order(arguments=(argument,)))


def test_what_is_no_option_is_refused() -> None:
    with pytest.raises(BadInput, match="is no option of sbatch"):
        batch_script(order(arguments=("qos=high",)))


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\x1b", "\x7f", "\x85", "\u2028"])
def test_a_control_character_never_gets_into_a_script(character: str) -> None:
    bad = f"a{character}touch hacked"
    for changes in (
        {"words": ("run", bad)},
        {"host_place": bad},
        {"arguments": (f"--qos={bad}",)},
        {"cwd": f"/{bad}"},
        {"folder": f"/{bad}"},
        {"python": bad},
        {"python_path": bad},
    ):
        with pytest.raises(BadInput, match="holds the control character"):
            batch_script(order(**changes))


def carried_out(tmp_path: Path, wanted: Job) -> list[list[str]]:
    """Run a script with stand-ins for Slurm's commands and the interpreter; return how the latter was called."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tmp_path / "orders/nodes").mkdir(parents=True)
    stand_ins = {
        "scontrol": 'case "$2" in hostnames) printf "n7\\nn8\\n";; *) echo "NodeName=n7 NodeAddr=10.0.0.7 X=1";; esac',
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; SLURMD_NODENAME=n7 SLURM_NODEID=1 exec "$@"',
        "python": f'if [ "$1" = -c ]; then echo 4711; else printf "%s\\n" "$@" > "{tmp_path}/called"; exit 3; fi',
    }
    for name, text in stand_ins.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    script = tmp_path / "job.sh"
    moved = {"folder": str(tmp_path / "orders"), "python": str(tools / "python")}
    script.write_text(batch_script(wanted.model_copy(update=moved)))
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[7-8]"}
    done = subprocess.run(["sh", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    return [(tmp_path / "called").read_text().splitlines(), (tmp_path / "orders/ended").read_text().split()]


def test_one_process_is_started_as_it_is(tmp_path: Path) -> None:
    called, ended = carried_out(tmp_path, order())
    assert called == ["-m", "assay.cli.remote_rank", *WORDS]
    assert ended == ["3"]
    assert [path.name for path in (tmp_path / "orders/nodes").iterdir()] == ["n7"]


def test_several_meet_on_the_first_node(tmp_path: Path) -> None:
    called, ended = carried_out(tmp_path, order(nodes=2, processes=4))
    cut = called.index("-m", 2)
    assert called[cut:] == ["-m", "assay.cli.remote_rank", *WORDS]
    assert called[:cut] == [
        "-m", "assay.worker.rendezvous", f"{tmp_path}/orders/nodes/n7", "--nnodes", "2", "--node-rank", "1",
        "--nproc-per-node", "4",
        "--rdzv-conf", "timeout=120", "--master-addr", "10.0.0.7", "--master-port", "4711",
    ]  # fmt: skip
    assert ended == ["3"]


def test_the_path_of_modules_is_the_callers_or_none() -> None:
    assert "export PYTHONPATH='/a b/src'" in batch_script(order(python_path="/a b/src"))
    assert "unset PYTHONPATH" in batch_script(order())


def test_nothing_of_the_environment_is_in_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "planted-secret")
    assert "planted-secret" not in batch_script(order(nodes=2))
