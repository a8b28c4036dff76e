"""Orders carried out at Modal's stand-in, where the same Assay really runs: shipped, measured, brought back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.core.errors import MachineCannot
from assay.hosts.providers.modal import ModalProvider
from assay.hosts.rented.host import RentedHost
from assay.hosts.run_job import run_job
from assay.store.run_folder import RunFolder
from tests.fakes.fake_nvml import hopper
from tests.hosts.ssh.ordering import QUICK, Listener, order_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Eventually, StartPython
    from tests.fakes.plugin import MakeFakeNvml
    from tests.hosts.standins.modal.server import ModalStandIn

pytestmark = pytest.mark.full


@pytest.fixture
def with_a_hopper(modal_stand_in: ModalStandIn, make_fake_nvml: MakeFakeNvml) -> ModalStandIn:
    """Give every sandbox an H200 that is not there."""
    fake = make_fake_nvml([hopper()], virtual=False)
    modal_stand_in.on_create = lambda sandbox: sandbox.environment.update(fake.env({}))
    return modal_stand_in


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> RentedHost:
    """Modal as the command line finds it, but that it does not wait as long."""
    from tests.hosts.standins.modal.schedules import PACE

    found = RentedHost(ModalProvider(answer_within_s=30, launch_within_s=30), timeouts=PACE)
    monkeypatch.setattr("assay.hosts.providers.modal.HOST", found)
    return found


def test_a_run_at_modal_comes_back_and_its_sandbox_is_gone(
    with_a_hopper: ModalStandIn, host: RentedHost, workplace: Path, assay_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "bad.py:fine", "--on", "modal", "--gpu-type", "H200", *QUICK]) == 0
    printed = capfd.readouterr()
    assert "bad.py:fine takes" in printed.out
    assert "Renting modal H200 at $4.54 an hour (listed 2026-06)" in printed.err
    run = (workplace / "runs" / "latest").resolve()
    (record,) = RunFolder.open(run).records()
    assert (record.status, record.origin) == ("ok", "fake"), "what answers is not Modal"
    assert RunFolder.open(run).machine.has_fake_driver
    (sandbox,) = with_a_hopper.sandboxes.all.values()
    assert (sandbox.gpu, sandbox.status != 0) == ("H200:1", True)
    assert not list((assay_home / "leases").glob("*.json"))


def test_another_gpu_than_the_one_asked_for_measures_nothing(
    with_a_hopper: ModalStandIn, host: RentedHost, tmp_path: Path
) -> None:
    order = order_for(tmp_path, "run", "true", *QUICK, gpu="L4")
    with pytest.raises(MachineCannot, match="L4"):
        run_job(host, order, Listener())
    assert not with_a_hopper.sandboxes.running()
    assert not list((tmp_path / "runs").glob("run-*"))


CLIENT = """
import sys
from pathlib import Path
from assay.hosts.run_job import run_job
from assay.hosts.providers.modal import HOST
from tests.hosts.ssh.ordering import Listener, order_for

class Work:
    def run(self, line, order, watcher):
        line.do("echo works", out=lambda data: print(data.decode(), end="", flush=True))
        line.do("sleep 600")

HOST._work = Work()
run_job(HOST, order_for(Path(sys.argv[1]), "list", gpu="L4"), Listener())
"""


def test_a_client_that_is_killed_leaves_no_sandbox(
    modal_stand_in: ModalStandIn, tmp_path: Path, assay_home: Path, start_python: StartPython, eventually: Eventually
) -> None:
    client = start_python(CLIENT, tmp_path)
    assert client.stdout is not None
    assert client.stdout.readline() == "works\n"
    assert len(modal_stand_in.sandboxes.running()) == 1
    client.kill()
    eventually(lambda: not modal_stand_in.sandboxes.running(), within_s=60)
    eventually(lambda: not list((assay_home / "leases").glob("*.json")), within_s=60)
