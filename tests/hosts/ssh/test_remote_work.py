"""Work on a machine that shares no files, over a real sshd: shipped, run, followed, brought back, ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.hosts.base import Shipped
from assay.hosts.remote import work
from assay.hosts.remote.ssh_line import SshLine
from assay.store.runs import RunFolder
from tests.hosts.ssh.ordering import QUICK, Listener, order_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.hosts.ssh.server import Server


@pytest.fixture
def line(gpu1: Server) -> Iterator[SshLine]:
    made = SshLine("gpu1")
    yield made
    made.close()


def test_an_order_is_shipped_run_and_brought_back_and_nothing_is_left(
    line: SshLine, gpu1: Server, workplace: Path
) -> None:
    listener = Listener()
    files = (Shipped(here=str(workplace / "bad.py"), there="bad.py"),)
    order = order_for(workplace, "run", "bad.py:fine", *QUICK, "--json", files=files)
    ended = work.run(line, order, listener)
    assert (ended.exit_code, ended.reason) == (0, None), listener.said
    (run,) = work.collect(line, order)
    assert run.parent == workplace / "runs"
    assert (workplace / "runs" / "latest").resolve() == run
    assert json.loads(listener.printed)["run"] == str(run)
    folder = RunFolder.open(run)
    assert folder.plan.cwd == str(workplace)
    (record,) = folder.records()
    assert (record.status, record.origin) == ("ok", "real")
    assert f"Report: runs/{run.name}/report.html" in listener.said.decode() or "--json"
    work.end(line, order)
    work.clean(line, order)
    assert list((gpu1.cache / "orders").iterdir()) == []
