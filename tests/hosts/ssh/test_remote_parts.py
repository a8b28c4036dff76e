"""The parts of working elsewhere that need no machine elsewhere: parcels, frames, verdicts, what may come back."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.hosts.base import UploadedFile
from assay.hosts.remote import remote_job
from assay.hosts.remote.agent.bootstrap import missing_requirements
from assay.hosts.remote.agent.folder import unpack
from assay.hosts.remote.agent.job import wait_for_end, wrong_gpu
from assay.hosts.remote.connection import SshConnection, ssh_environment
from assay.hosts.remote.transfer import (
    FrameReader,
    LineTranslator,
    job_archive,
    prepare_environment,
    remote_runs_folder,
    start_folder,
    wheel,
    wheel_contents,
)
from assay.hosts.ssh import connection_to
from tests.hosts.ssh.ordering import HereLine, Listener, order_for
from tests.machines import machine
from tests.running import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_wheel_of_this_version_can_be_imported_and_is_always_the_same(tmp_path: Path) -> None:
    made = wheel()
    wheel_contents.cache_clear()
    assert wheel() == made
    path = tmp_path / "assay.whl"
    path.write_bytes(made)
    said = subprocess.run(
        [sys.executable, "-P", "-c", "import assay, assay.hosts.remote.agent.job as k; print(assay.__file__)"],
        env={"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.startswith(str(path))


def test_what_a_wheel_needs_and_is_not_installed_is_named(tmp_path: Path) -> None:
    (tmp_path / "assay.whl").write_bytes(wheel())
    shutil.unpack_archive(tmp_path / "assay.whl", tmp_path, "zip")
    assert missing_requirements(tmp_path) == []
    (described,) = tmp_path.glob("*.dist-info/METADATA")
    extra = "Requires-Dist: nowhere-to-be-found>=1.0\nRequires-Dist: click>=999\nRequires-Dist: numpy<1.0\n"
    described.write_text(described.read_text() + extra + "Requires-Dist: torch; extra == 'torch'\n")
    assert missing_requirements(tmp_path) == ["nowhere-to-be-found>=1.0", "click>=999", "numpy<1.0"]


def test_files_keep_their_places_even_above_the_folder_one_starts_in(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("d")
    (tmp_path / "here.py").write_text("h")
    files = (
        UploadedFile(local_path=str(tmp_path / "data.txt"), remote_path="../../data/data.txt"),
        UploadedFile(local_path=str(tmp_path / "here.py"), remote_path="src/here.py"),
    )
    start = start_folder(files)
    unpack(io.BytesIO(b"".join(job_archive(files, {"words": ["list"]}))), tmp_path / "order")
    assert (tmp_path / "order" / start / "src/here.py").read_text() == "h"
    place = Path(os.path.normpath(tmp_path / "order" / start / "../../data/data.txt"))
    assert place.read_text() == "d"
    assert place.is_relative_to(tmp_path / "order" / "work")


@pytest.mark.parametrize("name", ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "link"])
def test_what_leads_out_of_its_folder_is_not_unpacked(name: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        if name == "link":
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(entry)
    with pytest.raises(ValueError, match=r"leads out|neither a file"):
        unpack(io.BytesIO(buffer.getvalue()), tmp_path / "in")
    assert [path.name for path in tmp_path.rglob("*")] == ["in"]


@given(st.lists(st.integers(1, 40), max_size=20), st.sampled_from(["/home/me/project", "/", "/data"]))
def test_frames_are_put_together_and_paths_there_become_paths_here(cuts: list[int], cwd: str) -> None:
    listener = Listener()
    order = order_for(Path("/home/me/project"), cwd=cwd)
    runs = remote_runs_folder(order.id)
    said = f"Report: {runs}/run-1/report.html, whole /far/work/{runs}/run-1, in /far/work. Grüße".encode()
    stream = b"".join(b"%c%d\n%b" % (kind, len(data), data) for kind, data in [
        (b"f", b"/far"), (b".", b""), (b"e", said), (b"o", b"3\n"), (b"x", b'{"code": 0}'),
    ])  # fmt: skip
    frames = FrameReader(order, listener)
    for cut in cuts:
        frames.take(stream[:cut])
        stream = stream[cut:]
    frames.take(stream)
    frames.flush()
    short = "runs" if cwd == "/home/me/project" else "/home/me/project/runs"
    told = f"Report: {short}/run-1/report.html, whole /home/me/project/runs/run-1, in {cwd}. Grüße"
    assert (listener.said.decode(), listener.printed) == (told, b"3\n")
    assert (frames.at, frames.ended) == ({"e": len(said), "o": 2}, {"code": 0})


@pytest.mark.parametrize(
    ("ended", "code", "said"),
    [
        ({"code": 2, "why": None, "answered": True}, 2, None),
        ({"code": -9, "why": None, "answered": True}, 4, "killed on gpu7 (signal 9)"),
        (
            {"code": 1, "why": None, "answered": False, "log": "No module named 'x'"},
            3,
            "could not start on gpu7: No mod",
        ),
        ({"code": 4, "why": "time limit", "answered": True}, 4, "at its time limit of"),
        ({"code": 4, "why": "unattended", "answered": True}, 4, "no client had listened for 10"),
        ({"code": None, "why": "unsupervised", "answered": False}, 4, "its supervisor on gpu7 was killed"),
    ],
)
def test_how_an_order_ended_is_told(ended: dict[str, object], code: int, said: str | None) -> None:
    found = remote_job.job_end({"log": "", **ended}, order_for(Path("/"), limit_s=60.0), "gpu7")
    assert found.exit_code == code
    assert (found.reason is None) if said is None else said in str(found.reason)


def test_the_gpu_that_answers_has_to_be_the_one_that_was_asked_for() -> None:
    two = machine(gpus=[0, 0])
    one_kind = two.model_copy(update={"gpus": tuple(g.model_copy(update={"name": "NVIDIA L4"}) for g in two.gpus)})
    mixed = one_kind.model_copy(
        update={"gpus": (two.gpus[0].model_copy(update={"name": "Tesla T4"}), one_kind.gpus[1])}
    )
    assert wrong_gpu("L4", 2, one_kind) is None
    assert wrong_gpu("L4", 3, one_kind) == "there are only 2 NVIDIA L4"
    assert wrong_gpu("L40", 1, one_kind) == "there is NVIDIA L4"
    assert wrong_gpu("L4", 1, mixed) == "there is Tesla T4, NVIDIA L4"
    assert wrong_gpu("L4", 1, machine()) == "there is no GPU (NVML does not answer: no driver)"


def test_a_machine_switches_itself_off_at_the_last_deadline_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    line, now = HereLine(), datetime.now(UTC)
    assert line.do(remote_job.shutdown_script(now + timedelta(hours=1), off=f"touch {tmp_path}/early")).code == 0
    (first,) = tmp_path.glob("assay-watchdog.*")
    before = first.read_text().strip()
    assert line.do(remote_job.shutdown_script(now - timedelta(days=1), off=f"touch {tmp_path}/off")).code == 0
    wait_for((tmp_path / "off").exists)
    wait_for(lambda: not Path(f"/proc/{before}/cmdline").exists() or not Path(f"/proc/{before}/cmdline").read_bytes())
    assert not (tmp_path / "early").exists()


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine whose disk has room for almost nothing."""
    place = tmp_path / "full"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_there_is_told_as_such(full_disk: Path, workplace: Path) -> None:
    with pytest.raises(MachineCannot, match=r"Assay cannot be set up on gpu7: its disk is full \(.*No space left"):
        prepare_environment(HereLine(), order_for(workplace))
    assert not list(full_disk.glob("assay/env/*"))


@pytest.mark.parametrize(
    ("python", "said"),
    [("/nowhere/python", "gpu7 has no /nowhere/python; --remote-python names"), ("old", "gpu7 has Python 3.9.2")],
)
def test_an_interpreter_that_is_missing_or_too_old_is_told(
    python: str, said: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(workplace))
    monkeypatch.setenv("PATH", f"{workplace}{os.pathsep}{os.environ['PATH']}")
    (workplace / "old").write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.2\nexit 1\n')
    (workplace / "old").chmod(0o755)
    with pytest.raises(MachineCannot, match=said):
        prepare_environment(HereLine(), order_for(workplace, python=python))


def test_an_order_that_nobody_listens_to_any_more_is_ended(tmp_path: Path) -> None:
    (tmp_path / "heartbeat").touch()
    quiet, wake = os.pipe()
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert wait_for_end(child, tmp_path, quiet, limit_s=None, unattended_s=0.05) == "unattended"
        assert wait_for_end(child, tmp_path, quiet, limit_s=0.05, unattended_s=60.0) == "time limit"
        os.write(wake, b".")
        assert wait_for_end(child, tmp_path, quiet, limit_s=60.0, unattended_s=60.0) == "stop requested"
    finally:
        child.kill()
        child.wait()


def test_a_configuration_that_sends_variables_gets_none_of_our_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNPOD_API_KEY", "MODAL_TOKEN_ID", "GITHUB_TOKEN", "MY_SECRET", "ASSAY_HISTORY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    assert not {name for name, value in ssh_environment().items() if value == "x"}
    assert ssh_environment()["SSH_AUTH_SOCK"] == "/agent"


def sends(path: Path) -> str:
    """Return a script that sends a folder as a run."""
    told = json.dumps({"start": "/far/work"})
    return f"tar -czf - -C {path.parent} {path.name} && echo '{told}' >&2"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("plan.json", "{}", "plan.json is not what this version of Assay writes"),
        ("records.jsonl", '{"trial": 7}\n', "holds a line that this version of Assay does not write"),
        ("findings.json", '{"schema": 1}', "findings.json is not what this version of Assay writes: headline"),
        ("plan.json", None, "holds no plan.json"),
    ],
)
def test_results_that_fail_their_schema_are_kept_but_not_believed(
    file: str, content: str | None, said: str, workplace: Path, a_run: Path
) -> None:
    from assay.hosts.remote.transfer import download_run

    if content is None:
        (a_run / file).unlink()
    else:
        (a_run / file).write_text(content)
    order = order_for(workplace)
    with pytest.raises(MachineCannot, match=said) as caught:
        download_run(HereLine(), order, sends(a_run))
    assert "What came back from gpu7 is not a run that can be believed" in str(caught.value)
    assert (Path(order.folder) / "brought.tar.gz").is_file()
    assert not (workplace / "runs" / a_run.name).exists()


def test_a_run_that_comes_again_replaces_its_older_state(workplace: Path, a_run: Path) -> None:
    from assay.hosts.remote.transfer import download_run

    order = order_for(workplace)
    (first,) = download_run(HereLine(), order, sends(a_run))
    (a_run / "report.md").write_text("newer")
    (again,) = download_run(HereLine(), order, sends(a_run))
    assert first == again == workplace / "runs" / a_run.name
    assert (again / "report.md").read_text() == "newer"
    assert json.loads((again / "plan.json").read_text())["cwd"] == str(workplace)
    assert sorted(path.name for path in (workplace / "runs").iterdir()) == [
        "latest",
        again.name,
        Path(order.folder).name,
    ]


@pytest.fixture
def a_run(tmp_path: Path) -> Path:
    """A run without records, as it lies on a machine elsewhere."""
    from assay.store.run_folder import RunFolder, RunPlan

    plan = RunPlan(
        experiment="run", options={}, seed=0, versions={}, cwd="/far/work", created_at="2026-11-15T10:00:00.000+00:00"
    )
    return RunFolder.create(tmp_path / "far", plan, machine()).path


@pytest.mark.parametrize(("why", "shown"), [("time limit", b"one\n"), (None, b"one\n" + b"%s")])
def test_how_to_go_on_there_is_not_said_where_it_was_ended_from_here(
    why: str | None, shown: bytes, workplace: Path
) -> None:
    hint = b"Stopped by SIGINT; 3 trials are kept, `assay resume runs/x` goes on.\n"
    told: list[bytes] = []
    lines = LineTranslator(told.append)
    lines.take(b"one\n" + hint[:20])
    lines.take(hint[20:])
    assert b"".join(told) == b"one\n"
    if why is not None:
        lines.drop_resume_hint()
    lines.flush()
    assert b"".join(told) == shown.replace(b"%s", hint)


@pytest.mark.parametrize("port", ["0", "99999"])
def test_a_port_that_is_none_is_bad_input(port: str) -> None:
    with pytest.raises(BadInput, match="a port is a number from 1 to 65535"):
        connection_to(f"gpu1:{port}")


def test_a_hint_keeps_the_port() -> None:
    told = SshConnection("me@gpu1", port=2222, where="me@gpu1:2222")._lost(b"Permission denied (publickey).")
    assert "`ssh -p 2222 me@gpu1` has to work" in str(told)
