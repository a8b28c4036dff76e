"""A real PostgreSQL on this machine for the whole session, and both kinds of database as places for a history."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from assay.core.processes import die_with_parent
from tests.needing import need
from tests.running import Ran, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.store.history.database import HistoryLocation
    from tests.telling import Telling

PASSWORD = "correct-horse"  # noqa: S105 - of a server that lives as long as the tests
QUICKLY = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB")


def program(name: str) -> str | None:
    """Return where one of PostgreSQL's programs is; Debian keeps them off the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)]))


def missing() -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in ("initdb", "postgres") if program(name) is None]


class Server:
    """A server of our own, reached through a socket in its folder; it ends with the process that started it."""

    def __init__(self, settings: tuple[str, ...] = QUICKLY) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="assay-pg-", dir="/tmp"))  # reached by another user; a short name
        self._settings = [word for setting in ("listen_addresses=", *settings) for word in ("-c", setting)]
        self._as_user: dict[str, Any] = {"cwd": self.folder}
        (self.folder / "password").write_text(PASSWORD)
        if os.geteuid() == 0:  # as in CI; the server refuses to be root
            user = pwd.getpwnam("postgres")
            self._as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            for path in (self.folder, self.folder / "password"):
                os.chown(path, user.pw_uid, user.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make a cluster, and start it."""
        subprocess.run(
            [str(program("initdb")), "-D", "data", "-U", "postgres", "-A", "scram-sha-256", "--pwfile", "password",
             "-E", "UTF8", "--locale", "C", "--no-sync"],
            **self._as_user, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        parent = os.getpid()
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(program("postgres")), "-D", "data", "-k", str(self.folder), *self._settings],
                **self._as_user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - it ends with the tests
            )
        wait_for(lambda: "ready to accept connections" in (self.folder / "log").read_text(), within_s=60)

    def url(self, database: str, *, password: str = PASSWORD, user: str = "postgres") -> str:
        """Return how a database of this server is reached."""
        return f"postgresql://{user}:{password}@/{database}?host={self.folder}"

    def execute(self, words: str) -> None:
        """Have the server do something."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(words.encode())

    def version(self) -> str:
        """Return what the server says that it is."""
        import psycopg

        with psycopg.connect(self.url("postgres")) as connection:
            found = connection.execute("SELECT version()").fetchone()
        return str(found[0]).partition(",")[0] if found else ""

    def fresh(self) -> str:
        """Return a URL under which nothing is kept yet: a schema of its own, which is made quicker than a database."""
        name = f"history_{secrets.token_hex(4)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.url('postgres')}&options=-csearch_path%3D{name}"

    def stop(self) -> None:
        """End it at once, and leave nothing behind."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A server for the whole session; where PostgreSQL is missing the test is skipped, and in CI it fails."""
    need(missing(), "PostgreSQL")
    server = Server()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def history_place(
    request: pytest.FixtureRequest, assay_home: Path, monkeypatch: pytest.MonkeyPatch, telling: Telling
) -> HistoryLocation:
    """An empty history, once in a file and once on a server; ``ASSAY_HISTORY`` names the server."""
    from assay.store.history.database import file_location, parse_location

    if request.param == "sqlite":
        return file_location(assay_home / "history.sqlite")
    server: Server = request.getfixturevalue("postgres")
    telling("what ran on PostgreSQL", server.version())
    url = server.fresh()
    monkeypatch.setenv("ASSAY_HISTORY", url)
    return parse_location(url)


class Command(Protocol):
    """Runs a command line in this process."""

    def __call__(self, *arguments: object) -> Ran: ...


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line without a process of its own, for verbs that only look at what is there."""
    from assay.cli.main import main

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main(list(map(str, arguments)))
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run
