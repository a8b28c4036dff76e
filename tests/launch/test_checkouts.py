"""Revisions in worktrees of their own: what a worker in one sees, and that nothing of them is left."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.core import leases
from assay.core.errors import MachineCannot
from assay.core.values import Command, Counted, Metric, SourceCheckout, Subject
from assay.launch.checkouts import (
    Checkouts,
    Revision,
    check_out,
    checkout_environment,
    checkout_path,
    relocate_path,
    set_up_checkouts,
)
from assay.launch.worktrees import remove_checkout
from tests.repositories import commit, git, sample, worktrees
from tests.running import quickly, role

if TYPE_CHECKING:
    from tests.running import Measure

REPORTS = """import os, sys
def {name}(path):
    with open(path, "a") as file:
        file.write("{says} " + os.getcwd() + "\\n")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return sample(tmp_path / "repo")


def planned(repository: Path, *, setup: str | None = None, python: str | None = None) -> Checkouts:
    def revision(name: str) -> Revision:
        found = git(repository, "rev-parse", name)
        place = str(checkout_path("0123abcd", name))
        return Revision.model_validate(
            {"name": name, "ref": name, "commit": found, "checkout": place, "interpreter": sys.executable}
        )

    revisions = (revision("base"), revision("head"))
    return Checkouts(repository=str(repository), folder="", revisions=revisions, setup=setup, python=python)


def source(checkout: Path, **changes: str) -> SourceCheckout:
    return SourceCheckout.model_validate({"checkout": str(checkout), "interpreter": sys.executable, **changes})


def test_both_revisions_are_there_and_then_nothing_of_them(repository: Path, assay_home: Path) -> None:
    wanted = planned(repository)
    with check_out(wanted):
        texts = [Path(r.checkout, "src/sample/core.py").read_text() for r in wanted.revisions]
        assert ["MS = 20" in texts[0], "MS = 21" in texts[1]] == [True, True]
        assert len(worktrees(repository)) == 5
        assert len(list((assay_home / "leases").iterdir())) == 2
    assert worktrees(repository) == [f"worktree {repository}"]
    assert list((assay_home / "gates").iterdir()) == list((assay_home / "leases").iterdir()) == []


def test_hooks_of_the_repository_are_not_run(repository: Path) -> None:
    hook = repository / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {repository}/hooked\n")
    hook.chmod(0o755)
    with check_out(planned(repository)):
        pass
    assert not (repository / "hooked").exists()


def test_within_a_hook_git_is_asked_about_the_checkout(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", "elsewhere")
    wanted = planned(repository, setup="git rev-parse --show-toplevel > told")
    with check_out(wanted) as marked:
        set_up_checkouts(wanted, marked)
        for revision in wanted.revisions:
            assert Path(revision.checkout, "told").read_text().strip() == str(Path(revision.checkout).resolve())


def test_a_checkout_that_was_cut_off_in_the_making_is_undone_twice_without_harm(
    repository: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    git(repository, "worktree", "add", "--detach", "--quiet", str(mine))
    mine.rename(tmp_path / "out of sight")
    cut_off = repository / ".git/worktrees/0123abcd-base"
    cut_off.mkdir(parents=True)
    (cut_off / "locked").write_text("initializing")
    checkout = checkout_path("0123abcd", "base")
    checkout.mkdir(parents=True)
    for _ in range(2):
        remove_checkout("a-token", str(repository), str(checkout))
    assert not checkout.exists()
    assert [path.name for path in (repository / ".git/worktrees").iterdir()] == ["mine"]
    remove_checkout("a-token", str(tmp_path / "gone"), str(checkout))


def test_a_lease_removes_a_checkout_whose_repository_is_gone(repository: Path) -> None:
    with check_out(planned(repository)):
        repository.rename(repository.with_name("moved"))
    assert not any(checkout_path("0123abcd", name).exists() for name in ("base", "head"))


def test_a_revision_that_cannot_be_checked_out_is_named_with_the_words_of_git(repository: Path) -> None:
    wanted = planned(repository)
    lost = wanted.revisions[1].model_copy(update={"commit": "1" * 40})
    wanted = wanted.model_copy(update={"revisions": (wanted.revisions[0], lost)})
    with pytest.raises(MachineCannot, match=r"The head revision \(head, 1{10}\) cannot be checked out: .*1{40}"):
        enter(wanted)
    assert worktrees(repository) == [f"worktree {repository}"]


def test_what_stands_where_a_checkout_belongs_is_left_alone(repository: Path) -> None:
    wanted = planned(repository)
    in_the_way = Path(wanted.revisions[1].checkout, "mine")
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    with pytest.raises(MachineCannot, match=r"-head is there already; `assay reap` removes"):
        enter(wanted)
    assert in_the_way.exists()


def enter(wanted: Checkouts) -> None:
    with check_out(wanted):
        pass


def test_an_interpreter_that_cannot_run_a_worker_says_what_it_lacks(repository: Path) -> None:
    bare = planned(repository, setup=f"{sys.executable} -m venv --without-pip .venv")
    with check_out(bare) as marked:
        with pytest.raises(MachineCannot, match=r"of the base revision .* cannot import numpy, .*--setup install"):
            set_up_checkouts(bare, marked)
        elsewhere = bare.model_copy(update={"setup": None, "python": "env/bin/python"})
        with pytest.raises(MachineCannot, match="no interpreter env/bin/python in the base revision"):
            set_up_checkouts(elsewhere, marked)


def test_what_a_set_up_leaves_running_ends_with_its_checkout(repository: Path) -> None:
    wanted = planned(repository, setup="sleep 1000 & echo $! > pid")
    with check_out(wanted) as marked:
        set_up_checkouts(wanted, marked)
        pids = [int(Path(revision.checkout, "pid").read_text()) for revision in wanted.revisions]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(_runs(pid) for pid in pids)
    assert leases.reap_leases() == []


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_paths_into_the_working_tree_lead_into_the_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "c"
    (checkout / "src").mkdir(parents=True)
    (checkout / "env/bin").mkdir(parents=True)
    (checkout / "env/pyvenv.cfg").touch()
    at = source(checkout, instead_of="/repo", interpreter=str(checkout / "env/bin/python"))
    given = {"PYTHONPATH": "/repo/lib:/elsewhere", "PATH": "/bin", "GIT_DIR": "/repo/.git", "HOME": "/h"}
    assert checkout_environment(at, given) == {
        "PYTHONPATH": f"{checkout}/src:{checkout}:{checkout}/lib:/elsewhere",
        "PATH": f"{checkout}/env/bin:/bin",
        "VIRTUAL_ENV": f"{checkout}/env",
        "HOME": "/h",
    }
    assert relocate_path(Path("/repository"), at) == Path("/repository")


@pytest.mark.full
def test_a_worker_of_a_checkout_runs_our_code_on_its_modules_in_its_folder(measure: Measure, workplace: Path) -> None:
    report = workplace / "seen.txt"
    for name in ("old", "new"):
        checkout = workplace / name
        (checkout / "src/assay/worker").mkdir(parents=True)
        (checkout / "src/assay/__init__.py").write_text("raise RuntimeError('another Assay')")
        (checkout / "inner").mkdir()
        (checkout / "src/mine.py").write_text(REPORTS.format(name="work", says=name))
    (workplace / "mine.py").write_text(REPORTS.format(name="work", says="working tree"))
    roles = [
        role(
            name,
            Subject(
                workload="mine:work",
                impl="python",
                params={"path": str(report)},
                source=source(workplace / name, folder="inner", instead_of=str(workplace)),
            ),
        )
        for name in ("old", "new")
    ]
    outcome = measure(*roles, schedule="turns", mode=quickly(Counted, warmup_runs=0, runs=2))
    assert outcome.status == "ok", outcome.reason
    assert report.read_text().splitlines() == [f"{name} {workplace}/{name}/inner" for name in ("old", "new")] * 2


def test_code_of_the_working_tree_is_not_timed_in_the_place_of_a_revision(measure: Measure, workplace: Path) -> None:
    (workplace / "checkout").mkdir()
    (workplace / "removed_since.py").write_text("def work(path=None):\n    pass\n")
    (workplace / "checkout/bench.py").write_text(
        f"import sys\nsys.path.append({str(workplace)!r})\nimport removed_since\nwork = removed_since.work\n"
    )
    subject = Subject(
        workload="bench.py:work",
        impl="python",
        source=source(workplace / "checkout", instead_of=str(workplace)),
    )
    outcome = measure(role("head", subject))
    assert outcome.status == "refused"
    assert "removed_since was imported from" in (outcome.reason or "")
    assert "and not from the checkout" in (outcome.reason or "")


@pytest.mark.full
def test_a_command_of_a_checkout_runs_in_it_and_imports_from_it(measure: Measure, workplace: Path) -> None:
    repository = sample(workplace / "repo", base_ms=5, head_ms=8)
    (repository / "src/sample/core.py").write_text("MS = 1000\n")
    commit(repository, "neither")
    with check_out(planned(repository)):
        argv = (sys.executable, "bench.py")
        metric = Metric(name="took_ms", pattern="took ([0-9.]+)")
        roles = [
            role(
                r.name,
                Subject(
                    workload="python bench.py",
                    impl="command",
                    command=Command(argv=argv, metrics=(metric,)),
                    source=planned(repository).source(r),
                ),
            )
            for r in planned(repository).revisions
        ]
        outcome = measure(*roles, schedule="turns", mode=quickly(Counted, runs=1, duration_s=0.2))
    assert outcome.status == "ok", outcome.reason
    told = {s.role: memoryview(s.data).cast("d").tolist() for s in outcome.series if s.quantity == "took_ms"}
    assert told == {"base": [5.0], "head": [8.0]}


@pytest.mark.full
def test_turns_that_take_longer_than_their_share_are_fewer(measure: Measure, workplace: Path) -> None:
    (workplace / "slow.py").write_text("import time\ndef work():\n    time.sleep(0.1)\n")
    slow = Subject(workload="slow.py:work", impl="python")
    outcome = measure(role("a", slow), role("b", slow), schedule="turns", mode=quickly(duration_s=0.5))
    assert outcome.status == "ok", outcome.reason
    counts = [len(s.data) // 8 for s in outcome.series if s.quantity == "call_us"]
    assert len(counts) == 2
    assert max(counts) < 10
