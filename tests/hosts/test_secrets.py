"""No credential is anywhere but in the environment and in the header that it is for.

Secrets are planted in the variables of every provider; then everything is done that is done with them, well and badly,
and all that was left, printed, sent, started or told to the machine is looked through.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from assay.cli.main import main
from assay.core.errors import AssayError
from assay.hosts.base import UploadedFile
from assay.hosts.remote.remote_job import RemoteWork
from assay.hosts.run_job import run_job
from tests.hosts.planting import Scan, made_up
from tests.hosts.ssh.ordering import QUICK, Listener
from tests.hosts.ssh.ordering import order_for as sent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from assay.hosts.base import Job, JobEnd, JobWatcher
    from assay.hosts.remote.connection import RemoteConnection
    from tests.hosts.ssh.server import Server
    from tests.hosts.standins.modal.server import ModalStandIn

TELLS_ALL = """
import os
from pathlib import Path

def fine():
    told = Path.home() / "told"
    if not told.exists():
        told.write_text(f"{dict(os.environ)} {Path('/proc/self/cmdline').read_text()}")
    return sum(range(1000))
"""


@pytest.fixture
def scan(monkeypatch: pytest.MonkeyPatch, assay_home: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Scan]:
    """Plant the secrets; in the end look at what the test has taken in, what was printed, and Assay's home."""
    scan = Scan(made_up())
    for name, secret in scan.planted.items():
        monkeypatch.setenv(name, secret)
    yield scan
    printed = capfd.readouterr()
    scan.text("stdout", printed.out)
    scan.text("stderr", printed.err)
    scan.folder("home", assay_home)
    assert scan.found() == []


class Watched(RemoteWork):
    """Work that is looked at while it is done: leases, journal and keys are on disk then, and processes run."""

    def __init__(self, work: Any, scan: Scan, home: Path) -> None:
        self._work, self._scan, self._home = work, scan, home

    def run(self, line: RemoteConnection, order: Job, watcher: JobWatcher) -> JobEnd:
        self._scan.folder("home meanwhile", self._home)
        self._scan.processes("processes meanwhile")
        assert any("leases" in where for where in self._scan.texts)
        ended: JobEnd = self._work.run(line, order, watcher)
        return ended

    def collect(self, line: RemoteConnection, order: Job) -> tuple[Path, ...]:
        folders: tuple[Path, ...] = self._work.collect(line, order)
        return folders

    def arm(self, line: RemoteConnection, deadline_at: datetime) -> None:
        self._work.arm(line, deadline_at)


def test_the_scan_finds_what_it_looks_for(tmp_path: Path) -> None:
    scan = Scan({"KEY": "planted0123456789"})
    hidden = [b"planted0123456789", base64.b64encode(b"id:planted0123456789"), b"planted0123456789".hex().encode()]
    for number, text in enumerate(hidden):
        (tmp_path / f"{number}").write_bytes(b"before " + text + b" after")
    scan.folder("here", tmp_path)
    scan.text("clean", "planted012345678")
    assert scan.found() == ["KEY in here: 0", "KEY in here: 1", "KEY in here: 2"]


@pytest.mark.full
def test_nothing_of_modal_s_token_leaves_its_header(
    modal_stand_in: ModalStandIn, scan: Scan, tmp_path: Path, assay_home: Path
) -> None:
    from grpclib import Status

    from assay.hosts.providers.modal import ModalProvider
    from assay.hosts.rented.host import RentedHost
    from tests.hosts.standins.modal.schedules import PACE
    from tests.hosts.standins.modal.server import Fault

    token, secret = modal_stand_in.token = (scan.planted["MODAL_TOKEN_ID"], scan.planted["MODAL_TOKEN_SECRET"])
    provider = ModalProvider(answer_within_s=30, launch_within_s=30)
    host = RentedHost(provider, timeouts=PACE, work=Watched(RemoteWork(), scan, assay_home))
    (tmp_path / "tells.py").write_text(TELLS_ALL)
    files = (UploadedFile(local_path=str(tmp_path / "tells.py"), remote_path="tells.py"),)
    listener = Listener()

    order = sent(tmp_path, "run", "tells.py:fine", *QUICK, files=files).model_copy(
        update={"offer": next(each for each in provider.offers() if each.gpu == "L4")}
    )
    ended, folders = run_job(host, order, listener)
    assert (ended.exit_code, len(folders)) == (0, 1), listener.said
    (sandbox,) = modal_stand_in.sandboxes.all.values()
    assert (sandbox.home / "told").exists()
    _refused(scan, host, order, listener, modal_stand_in, Fault(Status.RESOURCE_EXHAUSTED, f"{token} spent {secret}"))
    _refused(scan, host, order, listener, modal_stand_in, Fault(Status.PERMISSION_DENIED, f"not {secret}"))

    scan.folder("run", tmp_path / "runs")
    scan.folder("machine", sandbox.folder)
    scan.text("asked of Modal", b"\n".join(modal_stand_in.told))
    scan.text("listener", b"".join((listener.printed, listener.said, *(each.encode() for each in listener.told))))


def _refused(scan: Scan, host: Any, order: Job, listener: Listener, modal: ModalStandIn, fault: Any) -> None:
    """Have Modal say no, with the secret in its words."""
    modal.fail("SandboxCreate", fault)
    another = order.model_copy(update={"id": f"{order.id[:-4]}{len(scan.texts):04d}"})
    with pytest.raises(AssayError) as caught:
        run_job(host, another, listener)
    scan.text(f"error {fault.status}", str(caught.value))


@pytest.mark.full
@pytest.mark.parametrize("name", ["runpod", "lambda"])
def test_nothing_of_a_provider_s_key_leaves_its_header(
    name: str, scan: Scan, assay_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.hosts.standins.cloud import VirtualClock
    from tests.hosts.standins.wired import KEYS, PATHS, PretendWork, Quiet, host_of, order_for, service_of

    clock, quiet = VirtualClock(), Quiet()
    service = service_of(name, clock)
    service.cloud.key = key = scan.planted[KEYS[name]]
    work: Any = Watched(PretendWork(service.cloud, clock), scan, assay_home)
    host = host_of(name, service, clock, work=work)

    ended, _ = run_job(host, order_for(name), quiet)
    assert ended.exit_code == 0
    service.cloud.refuses[f"POST {PATHS[name]}"] = (403, f"{key} may not do that")
    with pytest.raises(AssayError) as refused:
        run_job(host, order_for(name, id="fedcba9876543210"), quiet)
    monkeypatch.setenv(KEYS[name], f"{key}x")
    scan.planted = {**scan.planted, "WRONG_KEY": f"{key}x"}
    with pytest.raises(AssayError) as wrong:
        host.list_ours()

    scan.text("errors", f"{refused.value} {wrong.value}")
    scan.text("asked of the provider", b"\n".join(service.cloud.told))
    scan.text("told", "\n".join(quiet.told))


def test_nothing_of_the_environment_goes_over_ssh(gpu1: Server, scan: Scan) -> None:
    from assay.hosts.remote.connection import SshConnection

    line = SshConnection("gpu1")
    try:
        said = line.do("env; cat /proc/$PPID/cmdline", feed=[b""])
        scan.processes("processes meanwhile")
    finally:
        line.close()
    assert b"HOME=" in said.out
    scan.text("environment there", said.out + said.err)


def test_nothing_of_github_s_token_is_in_what_is_written_there_or_here(
    scan: Scan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.github.measured import CONFIG, THRESHOLDS, journal, leave, results
    from tests.github.serving import served
    from tests.github.standin import REPOSITORY, TOKEN, GitHub

    scan.planted = {**scan.planted, "GITHUB_TOKEN": TOKEN}
    github = GitHub()
    github.commit("main", {"configs/base.yaml": CONFIG})
    (tmp_path / "thresholds.yaml").write_text(THRESHOLDS)
    leave(tmp_path / "results" / "results-L4", results())
    journal(tmp_path / "results" / "results-L4")
    how = (str(tmp_path / "results"), "--thresholds", str(tmp_path / "thresholds.yaml"), "--base", "main")
    with served(github) as url:
        for name, value in {"REPOSITORY": REPOSITORY, "TOKEN": TOKEN, "API_URL": url}.items():
            monkeypatch.setenv(f"GITHUB_{name}", value)
        assert main(["github", "pull-request", *how]) == 0
        assert main(["github", "comment", *how, "--pull-request", "1"]) == 0
        monkeypatch.setenv("GITHUB_TOKEN", scan.planted["GITHUB_TOKEN"].replace("ghs", "ghx"))
        scan.planted = {**scan.planted, "WRONG_TOKEN": scan.planted["GITHUB_TOKEN"].replace("ghs", "ghx")}
        assert main(["github", "pull-request", *how]) == 3
    assert github.pulls
    assert github.comments
    scan.folder("results", tmp_path)
    scan.text("GitHub", repr((github.pulls, github.comments, github.blobs, github.commits, github.refs)))
