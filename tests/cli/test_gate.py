"""``assay gate``: what it answers between two commits of a repository, what it refuses, and that nothing is left."""

from __future__ import annotations

import re
import signal
import site
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from assay.cli.gate import path_from_checkout
from assay.cli.main import main
from assay.core.errors import BadInput
from tests.guardians import kill_with_guardian
from tests.repositories import commit, git, sample, worktrees
from tests.running import survivors, wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Assay
    from tests.telling import Telling

QUICKLY = ("--restarts", "3", "--duration", "0.3", "--budget", "60", "--device", "cpu:0", "--isolation", "none")
UNSEEN = ("--no-monitor", "--no-history")
GATE = ("gate", *QUICKLY, *UNSEEN)
SAID = "what the gate said"
BY_METRIC = ("--metric", "took_ms=took ([0-9.]+)", "--no-gate-time")
BENCH = ("--", sys.executable, "bench.py")


@pytest.fixture
def repository(workplace: Path) -> Path:
    """A repository in the folder that commands are run in."""
    return sample(workplace)


@pytest.fixture
def doubled(workplace: Path) -> Path:
    """The same with calls that are long, and differ by much, beside what a busy machine adds to them."""
    return sample(workplace, base_ms=150, head_ms=300)


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with functions that only its tag ``head`` has."""
    folder = sample(tmp_path_factory.mktemp("later") / "repo")
    (folder / "late.py").write_text("def work(n):\n    pass\n")
    (folder / "src/sample/late.py").write_text("def work():\n    pass\n")
    commit(folder, "later")
    git(folder, "tag", "--force", "head")
    return folder


def left(repository: Path, home: Path) -> list[object]:
    """Return what a gate should have removed."""
    folders = [path for name in ("gates", "leases") if (home / name).is_dir() for path in (home / name).iterdir()]
    return [*folders, *worktrees(repository)[1:], *survivors(home)]


@pytest.mark.full
def test_a_planted_slow_down_is_caught_in_a_package_under_src(
    doubled: Path, assay: Assay, assay_home: Path, telling: Telling
) -> None:
    (doubled / "src/sample/core.py").write_text("raise RuntimeError('not committed')")
    ran = assay(*GATE, "--duration", "2", "--base", "base", "--", "sample.core:work")
    assert ran.code == 1, ran.err + ran.out
    assert "✗ Fails: head against base, time of a call +" in ran.out
    telling(SAID, one_line(ran.out)[:300])
    assert "Note: the working tree has changes that are not committed, and they are not measured." in ran.err
    assert left(doubled, assay_home) == []


def test_a_base_that_does_not_install_is_told_with_the_end_of_what_it_printed(
    repository: Path, assay: Assay, assay_home: Path
) -> None:
    fails = "grep -q 'MS = 21' src/sample/core.py || { seq 100; echo cannot build >&2; exit 7; }"
    ran = assay(*GATE, "--base", "base", "--setup", fails, *BENCH)
    assert ran.code == 3
    assert "Setting up the base revision (base, " in ran.err
    assert "does not install: `grep" in ran.err
    assert "exited with 7:" in ran.err
    assert ran.err.endswith("  99\n  100\n  cannot build\n")
    assert "  85\n" not in ran.err
    assert not (repository / "runs").exists()
    assert left(repository, assay_home) == []


@pytest.mark.full
def test_the_same_commit_twice_passes_each_with_the_environment_that_its_set_up_made(
    doubled: Path, assay: Assay, assay_home: Path, telling: Telling
) -> None:
    packages = [path for path in sys.path if path.endswith("site-packages")] or site.getsitepackages()
    setup = (
        f"{sys.executable} -m venv --without-pip .venv && "
        f"printf '%s\\n' {' '.join(packages)} > $(echo .venv/lib/python3*/site-packages)/theirs.pth"
    )
    ran = assay(*GATE, "--duration", "2", "--base", "HEAD", "--setup", setup, "bench.py:work")
    assert ran.code == 0, ran.err
    assert "Note: base and head are the same commit" in ran.err
    assert re.search(r"(✓ Passes|\? Unsure).*: head against base, the same commit twice, ", one_line(ran.out))
    telling(SAID, one_line(ran.out)[:300])
    plan = (doubled / "runs/latest/plan.json").read_text()
    assert plan.count("-base/.venv/bin/python") == plan.count("-head/.venv/bin/python") == 1
    assert left(doubled, assay_home) == []


def one_line(text: str) -> str:
    """Return what was printed as if the screen were wide enough."""
    return " ".join(text.split())


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit code of a command line and the one sentence that it says."""
    code = main(list(arguments))
    printed = capsys.readouterr()
    assert printed.out == ""
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("assay: ")
    return code, last


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--base", "nowhere", "bench.py:work"], 2, "Revision 'nowhere' not found: bad revision 'nowhere'."),
        (["--base", "base..head", "bench.py:work"], 2, "it is not one commit"),
        (["--base", "--bare", "bench.py:work"], 2, "Revision '--bare' not found"),
        (["bench.py:work"], 2, "--base is missing"),
        (["--base", "base"], 2, "Nothing to measure"),
        (["--base", "base", "bench.py:work", "--", "true"], 2, "A gate measures one thing"),
        (["--base", "base", "softmax@numpy"], 2, "softmax@numpy is Assay's own"),
        (["--base", "base", "softmx"], 2, "Did you mean softmax"),
        (["--base", "base", "--python", "x", "bench.py:work"], 2, "--python needs --setup"),
        (["--base", "base", "--metric", "a=(b)", "bench.py:work"], 2, "--metric needs a command"),
        (["--base", "base", "--param", "n=1", "--", "true"], 2, "--param applies to workloads only"),
        (
            ["--base", "base", "--device", "cpu:0,cpu:1", "bench.py:work"],
            2,
            "measures one device, but 2 are named",
        ),
        (["--base", "base", "--no-gate-time", "bench.py:work"], 2, "nothing is judged"),
        (
            ["--base", "base", "--budget", "10s", "bench.py:work"],
            2,
            "The gate could never fail: 5 restarts of 3.0 s before the first look do not fit in a --budget of 10 s",
        ),
        (
            ["--base", "base", "--lower-is-better", "q", "--higher-is-better", "q", "--", "true"],
            2,
            "q is in both --lower-is-better and --higher-is-better",
        ),
        (["--base", "base", "--min-effect", "2", "bench.py:work"], 2, "for 2 percent write 2%"),
        (["--base", "base", "late.py:work"], 2, "There is no late.py in the base revision (base, "),
        (["--base", "head", "late.py:works"], 2, "late.py defines no 'works'. Did you mean work?"),
        (["--base", "head", "late.py:work"], 2, "late.py:work needs n; set it with --param n=VALUE"),
        (["--base", "base", "sample.late:work"], 2, "There is no sample.late in the base revision"),
        (["--base", "base", "--", "./gone.sh"], 2, "Command './gone.sh' not found in the base revision"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gets_one_line_and_its_exit_code(
    arguments: list[str],
    code: int,
    words: str,
    later: Path,
    assay_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(later)
    found, said = refused(capsys, "gate", *arguments)
    assert words in said
    assert found == code
    assert left(later, assay_home) == []
    assert not (later / "runs").exists()


def test_files_of_the_repository_are_those_of_each_checkout_and_others_are_taken_as_they_are(
    later: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(later / "src")
    seen = [path_from_checkout(spec, later) for spec in ("../bench.py:f", f"{later}/src/a.py:f", "a.b:f")]
    assert seen == ["../bench.py:f", "a.py:f", "a.b:f"]
    (tmp_path / "bench.py").touch()
    assert path_from_checkout(f"{tmp_path}/bench.py:f", later) == f"{tmp_path}/bench.py:f"
    with pytest.raises(BadInput, match=r"gone\.py cannot be read"):
        path_from_checkout(f"{tmp_path}/gone.py:f", later)


def test_outside_a_repository_there_is_nothing_to_hold_against(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refused(capsys, "gate", "--base", "main", "bad.py:fine")
    assert code == 2
    assert f"{workplace} is not in a git repository: not a git repository" in said


def test_in_a_shallow_clone_a_missing_revision_comes_with_the_way_out(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", "shallow")
    monkeypatch.chdir(tmp_path / "shallow")
    code, said = refused(capsys, "gate", "--base", "base", "bench.py:work")
    assert code == 2
    assert "`git fetch --unshallow` gets the rest" in said


@pytest.mark.full
def test_a_dry_run_looks_into_both_revisions_and_leaves_nothing(
    repository: Path, assay_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "inner").mkdir()
    (repository / "inner/.gitmodules").touch()
    (repository / ".gitmodules").touch()
    commit(repository, "with submodules")
    assert main(["gate", *QUICKLY, "--base", "base", "--dry-run", "bench.py:work"]) == 0
    printed = capsys.readouterr()
    assert "bench.py:work on cpu:0 in turns" in printed.out
    assert "submodules are not checked out; --setup 'git submodule update --init' does it." in printed.err
    monkeypatch.chdir(repository / "inner")
    assert main(["gate", *QUICKLY, "--base", "HEAD", "--dry-run", "--", "../bench.py:work"]) == 0
    assert main(["gate", *QUICKLY, "--base", "base", "--dry-run", "../bench.py:work"]) == 2
    assert "Folder inner does not exist in the base revision" in capsys.readouterr().err
    assert left(repository, assay_home) == []
    assert not (repository / "runs").exists()


LONG = (
    "gate",
    *UNSEEN,
    "--base",
    "base",
    "--budget",
    "3600",
    "--duration",
    "60",
    "--device",
    "cpu:0",
    "--",
    "bench.py:work",
)


def start(workplace: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "assay", *arguments],
        cwd=workplace,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def taken(home: Path) -> int:
    """Return how many leases are taken: one for each checkout, then one for each worker."""
    return len(list((home / "leases").glob("*.json"))) if (home / "leases").is_dir() else 0


@pytest.mark.full
def test_killed_while_setting_up_it_leaves_neither_checkouts_nor_processes(repository: Path, assay_home: Path) -> None:
    process = start(repository, *LONG[:-2], "--setup", "touch begun; sleep 1000", *LONG[-2:])
    wait_for(lambda: list((assay_home / "gates").glob("*-base/begun")))
    process.kill()
    process.communicate()
    wait_for(lambda: left(repository, assay_home) == [])


@pytest.mark.full
def test_reap_removes_what_a_gate_without_its_guardian_left(repository: Path, assay_home: Path, assay: Assay) -> None:
    process = start(repository, *LONG)
    wait_for(lambda: taken(assay_home) == 4)
    kill_with_guardian(process)
    assert len(worktrees(repository)) > 1
    reaped = assay("reap")
    assert reaped.code == 0
    assert "the checkout of the base revision (base, " in reaped.out
    assert left(repository, assay_home) == []


@pytest.mark.full
def test_stopped_by_ctrl_c_it_goes_on_later_and_names_the_planted_slow_down(
    repository: Path, assay_home: Path, assay: Assay
) -> None:
    process = start(repository, *GATE, *BY_METRIC, "--duration", "0.05", "--base", "base", *BENCH)
    wait_for((repository / "runs/latest/records.jsonl").is_file)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 4, err
    assert b"`assay resume runs/gate-" in err
    assert left(repository, assay_home) == []
    ran = assay("resume", "runs/latest", "--no-history", "--json")
    assert ran.code == ran.data["exit_code"] == 1, ran.err
    assert ran.data["headline"].startswith("Fails: head against base, took_ms +5.0 % (+5.0), the limit is")
    gate = ran.data["findings"][0]
    assert (gate["verdict"], gate["facts"]["answer"], gate["facts"]["restarts"]) == ("no", "fails", 3)
    assert gate["facts"]["base"] == git(repository, "rev-parse", "base")
    assert left(repository, assay_home) == []
