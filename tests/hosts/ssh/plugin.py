"""The ssh server as a fixture."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.hosts.ssh.server import Server, missing
from tests.needing import need

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def ssh_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An ssh server for the whole session, ended with it; in CI a missing one fails."""
    need(missing(), "An ssh server")
    server = Server(tmp_path_factory.mktemp("ssh"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def gpu1(ssh_daemon: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, with the system's ssh finding it as ``gpu1``; what others left on it as on a rented one is gone."""
    shutil.rmtree(ssh_daemon.cache / "jobs", ignore_errors=True)
    monkeypatch.setenv("PATH", f"{ssh_daemon.bin}{os.pathsep}{os.environ['PATH']}")
    return ssh_daemon
