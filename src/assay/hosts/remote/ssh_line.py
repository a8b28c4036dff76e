"""A line by the system's own ``ssh``, with the user's own configuration.

One connection serves all that is done. Its process waits on a pipe from us: when we die, however we die, the pipe ends,
and the connection with it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.hosts.remote.line import LineLost, Said
from assay.hosts.remote.pumping import Pump, TimeIsOver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CONNECT_WITHIN_S = 20
SILENT_S, SILENCES = 5, 4
"""A connection that answers nothing for so long, so often, counts as lost."""

FOLDER = "assay-ssh-"
LONGEST = 40
NOT_SENT = re.compile(r"MODAL_|RUNPOD_|LAMBDA_|GITHUB_|GH_|ACTIONS_|HF_|ASSAY_|.*(PASSWORD|SECRET|TOKEN)")
LOST = 255
"""How ``ssh`` ends when it is not what was run there that ended."""

TELLING = {
    r"Could not resolve hostname": "its name is not known",
    r"Permission denied|Too many authentication failures": "it does not let you in",
    r"REMOTE HOST IDENTIFICATION HAS CHANGED": "its host key is not the one that is known",
    r"Host key verification failed|No \S+ host key is known": "its host key is not known",
    r"Connection refused|No route to host|Network is unreachable": "it does not answer",
    r"[Cc]onnection timed out|Operation timed out|not responding": "it does not answer in time",
    r"Connection (closed|reset)|Broken pipe": "the connection was cut",
}
ADVICE = "`ssh {where}` has to work without asking anything"


class SshLine:
    """A machine that can be logged in to without a question; one connection serves all that is done there."""

    def __init__(
        self,
        destination: str,
        *,
        port: int | None = None,
        identity: Path | None = None,
        known_hosts: Path | None = None,
        options: tuple[str, ...] = (),
        where: str | None = None,
    ) -> None:
        """Say where to; nothing is done yet.

        Args:
            destination: As ssh takes it: ``gpu1``, ``user@host``.
            port: Null: as the configuration has it.
            identity: The only key that is used, for machines that were rented with it; null: the user's own.
            known_hosts: Keeps the host key that a rented machine shows first; null: the user's own file.
            options: Further words for ssh, such as ``-F FILE``.
            where: For people; null: the destination.
        """
        if not re.fullmatch(r"[^\s\-\x00-\x1f][^\s\x00-\x1f]*", destination):
            raise BadInput(f"{destination!r} is no name of a machine; write --on ssh:HOST or --on ssh:USER@HOST.")
        self.where = where or destination
        self._destination = destination
        self._typed = destination if port is None else f"-p {port} {destination}"
        self._words = (
            *_settings("BatchMode=yes", f"ConnectTimeout={CONNECT_WITHIN_S}", "LogLevel=ERROR", "RequestTTY=no"),
            *_settings("RemoteCommand=none", "ForwardAgent=no", "ForwardX11=no"),
            *_settings(f"ServerAliveInterval={SILENT_S}", f"ServerAliveCountMax={SILENCES}", "ClearAllForwardings=yes"),
            *(("-p", str(port)) if port is not None else ()),
            *(("-i", str(identity), *_settings("IdentitiesOnly=yes")) if identity is not None else ()),
            *(_known(known_hosts) if known_hosts is not None else ()),
            *options,
        )
        self._connection: _Connection | None = None

    def do(
        self,
        script: str,
        *,
        feed: Iterable[bytes] = (),
        out: Callable[[bytes], None] | None = None,
        err: Callable[[bytes], None] | None = None,
        within_s: float | None = None,
    ) -> Said:
        """Run a script of ``sh`` there to its end."""
        begun = time.monotonic()
        connection = self._connected()
        left_s = None if within_s is None else max(0.1, within_s - (time.monotonic() - begun))
        mark = f"assay-{secrets.token_hex(8)}"
        command = [
            *("ssh", *self._words, *_settings("ControlMaster=no", f"ControlPath={connection.socket}")),
            *("--", self._destination, as_one_word(f"echo {mark}\n{script}")),
        ]
        pump = Pump(command, after=f"{mark}\n".encode(), out=out, err=err, environment=environment())
        try:
            code = pump.run(feed, left_s)
        except TimeIsOver:
            raise LineLost(f"{self.where} gave no answer within {within_s:g} s.") from None
        except OSError as error:
            raise LineLost(f"ssh cannot be started: {error.strerror or error}.") from error
        if code == LOST or code < 0:
            self.close()
            raise self._lost(pump.errors)
        return Said(code, pump.kept_out, pump.kept_err)

    def open(self) -> None:
        """Make the connection now, unless it stands.

        Raises:
            LineLost: It cannot be had.
        """
        self._connected()

    def close(self) -> None:
        """Let the connection go; the next `do` makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> _Connection:
        if self._connection is not None and not self._connection.alive:
            self.close()
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> _Connection:
        connection = _Connection()
        command = [
            *("ssh", *self._words, *_settings("ControlMaster=yes", "ControlPersist=no")),
            *(*_settings(f"ControlPath={connection.socket}"), "--", self._destination),
            as_one_word("echo assay-is-here; exec cat >/dev/null"),
        ]
        try:
            error_text = connection.open(command)
        except BaseException:
            connection.close()
            raise
        if error_text is not None:
            connection.close()
            raise self._lost(error_text)
        return connection

    def _lost(self, said: bytes) -> LineLost:
        text = said.decode("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        what = next((words for pattern, words in TELLING.items() if re.search(pattern, text)), "the line was lost")
        last = f" ({lines[-1].rstrip('.')})" if lines else ""
        advice = f"; {ADVICE.format(where=self._typed)}" if "let you in" in what or "host key" in what else ""
        return LineLost(f"{self.where} cannot be reached: {what}{last}{advice}.")


class _Connection:
    """The ``ssh`` that holds the connection, in a private folder with the socket that the others share it by."""

    def __init__(self) -> None:
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=_short()))
        self._process: subprocess.Popen[bytes] | None = None
        self.socket = self._folder / "line"

    @property
    def alive(self) -> bool:
        """Whether it still holds."""
        return self._process is not None and self._process.poll() is None

    def open(self, command: list[str]) -> bytes | None:
        """Wait until it stands; return what ssh said if it does not."""
        with (self._folder / "said").open("wb") as log:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment(),
                    start_new_session=True,
                )
            except OSError as error:
                return f"ssh cannot be started: {error.strerror or error}".encode()
        self._process = process
        if process.stdout is None:
            raise AssertionError("its output is a pipe")
        with process.stdout as output:
            for line in output:  # ends by ssh's own time-outs
                if line.rstrip() == b"assay-is-here":
                    return None
        process.wait()
        return (self._folder / "said").read_bytes()

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _short() -> str:
    """Return a folder for sockets, whose paths must not be long."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= LONGEST else "/tmp"  # noqa: S108 - what is made in it is private


def environment() -> dict[str, str]:
    """Return the environment of ``ssh`` without the accounts that Assay uses: a configuration may send variables on."""
    return {name: value for name, value in os.environ.items() if not NOT_SENT.match(name)}


def _sweep() -> None:
    """Remove the folders of those who were killed."""
    for path in Path(_short()).glob(f"{FOLDER}*"):
        pid = path.name.removeprefix(FOLDER).partition("-")[0]
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.geteuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(path, ignore_errors=True)


def as_one_word(script: str) -> str:
    """Return a script so that every login shell, csh and fish too, hands it to ``sh`` as it is."""
    return f"""sh -c 'eval "$(echo {b64encode(script.encode()).decode()} | base64 -d)"'"""


def _settings(*settings: str) -> tuple[str, ...]:
    return tuple(word for setting in settings for word in ("-o", setting))


def _known(path: Path) -> tuple[str, ...]:
    """Take the key that a machine shows the first time, and no other afterwards."""
    settings = (f"UserKnownHostsFile={path}", f"GlobalKnownHostsFile={os.devnull}", "StrictHostKeyChecking=accept-new")
    return _settings(*settings)
