"""A rented machine that is a real ssh server on loopback: its key, its line, a plan that really runs, and its end."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import MachineCannot
from assay.hosts.base import UploadedFile
from assay.hosts.providers.runpod import RunPodProvider
from assay.hosts.remote.remote_job import RemoteWork
from assay.hosts.rented.context import RentalClock, RentalTimeouts
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.journal import RentalJournal
from assay.hosts.run_job import run_job
from assay.store.run_folder import RunFolder
from tests.fakes.fake_nvml import hopper
from tests.hosts.ssh.ordering import QUICK, Listener, order_for
from tests.hosts.standins.answering import in_process
from tests.hosts.standins.cloud import Fate
from tests.hosts.standins.runpod import RunPodService, cloud

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from assay.hosts.remote.connection import RemoteConnection
    from tests.fakes.plugin import MakeFakeNvml
    from tests.hosts.ssh.server import Server


class Unarmed(RemoteWork):
    """The real work, but for the watchdog: what it would switch off is the machine of these tests."""

    def arm(self, line: RemoteConnection, deadline_at: datetime) -> None:
        assert line.do("id -u").code == 0


@pytest.fixture
def rented(
    gpu1: Server, tmp_path: Path, make_fake_nvml: MakeFakeNvml, monkeypatch: pytest.MonkeyPatch
) -> tuple[RentedHost, RunPodService]:
    """A host whose machines are all the ssh server, with an H200 that is none; each lets in its rental's key alone."""
    account = cloud(RentalClock())
    account.usual = Fate(up_s=0.0, gone_s=0.0)
    account.kinds["NVIDIA H200"] = replace(account.kinds["NVIDIA L4"])
    monkeypatch.setenv("RUNPOD_API_KEY", account.key)
    fake = make_fake_nvml([hopper()], virtual=False)
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in fake.env({}).items())
    door = tmp_path / "door"
    door.write_text(f'#!/bin/sh\n{exports}exec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    door.chmod(0o755)

    def let_in(content: dict[str, Any]) -> None:
        with (gpu1.folder / "authorized").open("a") as keys:
            keys.write(f'command="{door}" {content["env"]["PUBLIC_KEY"]}\n')

    service = RunPodService(account, port=gpu1.port, on_create=let_in)
    pace = RentalTimeouts(look_s=0.05, appears_within_s=1.0)
    return RentedHost(RunPodProvider(transport=in_process(service)), timeouts=pace, work=Unarmed()), service


def test_a_plan_really_runs_on_a_machine_that_was_rented_for_it(
    rented: tuple[RentedHost, RunPodService], tmp_path: Path, assay_home: Path
) -> None:
    host, service = rented
    listener = Listener()
    (tmp_path / "work.py").write_text("def fine():\n    return sum(range(1000))\n")
    files = (UploadedFile(local_path=str(tmp_path / "work.py"), remote_path="work.py"),)
    order = order_for(tmp_path, "run", "work.py:fine", *QUICK, "--json", gpu="H200", files=files)
    ended, folders = run_job(host, order, listener)
    assert (ended.exit_code, ended.reason) == (0, None), listener.said
    (run,) = folders
    (record,) = RunFolder.open(run).records()
    assert (record.status, record.origin) == ("ok", "real"), "a processor of this machine was timed"
    assert service.cloud.running() == []
    assert not (assay_home / "rentals" / order.id).exists(), "the rental's key goes with it"
    (rental,) = RentalJournal().rentals()
    assert rental.released_at is not None


def test_another_gpu_over_there_than_was_rented_measures_nothing(
    rented: tuple[RentedHost, RunPodService], tmp_path: Path
) -> None:
    host, service = rented
    order = order_for(tmp_path, "run", "softmax", *QUICK, gpu="L4")
    with pytest.raises(MachineCannot, match="L4"):
        run_job(host, order, Listener())
    assert service.cloud.running() == []
