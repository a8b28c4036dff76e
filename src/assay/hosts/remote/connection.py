"""Connections to other machines: what one must be able to do, and its implementation with the system's ``ssh``."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import shutil
import subprocess
import tempfile
import time
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import IO


class RemoteConnectionLost(MachineCannot):
    """The line broke, or never came to be; what was started there may go on."""


@dataclass(frozen=True)
class RemoteResult:
    """How a program there ended, and what it printed as far as nobody listened meanwhile."""

    code: int
    out: bytes
    err: bytes


class RemoteConnection(Protocol):
    """A way to start programs on another machine.

    One that leads to something that only plays a provider's machine has ``stand_in = True``: what is measured there is
    called fake.
    """

    where: str
    """For people: "gpu1", "runpod pod 8f2a"."""

    def do(
        self,
        script: str,
        *,
        feed: Iterable[bytes] = (),
        out: Callable[[bytes], None] | None = None,
        err: Callable[[bytes], None] | None = None,
        within_s: float | None = None,
    ) -> RemoteResult:
        """Run a script of ``sh`` there to its end.

        Args:
            script: What the shell is to do; no secret is in it.
            feed: Its standard input, piece by piece.
            out: Told what it prints as it comes; null: it is kept and returned.
            err: Likewise.
            within_s: Ended after this long; null: never.

        Raises:
            RemoteConnectionLost: The line broke, could not be had, or the time is over.
        """
        ...


CHUNK = 1 << 16
ERRORS_KEPT = 8000


class PumpTimeout(Exception):
    """The program took too long and was killed."""


class ProcessPump:
    """One program: what is fed to it, and who is told what it prints."""

    def __init__(
        self,
        command: list[str],
        *,
        after: bytes = b"",
        out: Callable[[bytes], None] | None = None,
        err: Callable[[bytes], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Set it up; its output counts ``after`` these bytes have come, as a login may print before it."""
        self._environment = environment
        self._command = command
        self._after = after
        self._before = b""
        self._out, self._err = out, err
        self._kept: dict[str, list[bytes]] = {"out": [], "err": []}
        self.errors = b""

    @property
    def kept_out(self) -> bytes:
        """What it printed, where nobody was told."""
        return b"".join(self._kept["out"])

    @property
    def kept_err(self) -> bytes:
        """Likewise of its errors."""
        return b"".join(self._kept["err"])

    def run(self, feed: Iterable[bytes], within_s: float | None) -> int:
        """Run it to its end; return its exit code. Whatever comes in between ends it.

        Raises:
            PumpTimeout: It took longer than ``within_s``.
            OSError: It could not be started.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=True,  # Ctrl-C is ours to hear
        )
        try:
            self._serve(process, iter(feed), deadline)
            return process.wait(None if deadline is None else max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise PumpTimeout from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def _serve(self, process: subprocess.Popen[bytes], feed: Iterator[bytes], deadline: float | None) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise AssertionError("all three are pipes")
        feeder = _Feeder(process.stdin, feed)
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ, self._print)
            waiting.register(process.stderr, selectors.EVENT_READ, self._complain)
            os.set_blocking(process.stdin.fileno(), False)
            waiting.register(process.stdin, selectors.EVENT_WRITE)
            while waiting.get_map():
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise PumpTimeout
                for key, _ in waiting.select(left_s):
                    if key.data is None:
                        if not feeder.push():
                            waiting.unregister(process.stdin)
                    elif data := os.read(key.fd, CHUNK):
                        key.data(data)
                    else:
                        waiting.unregister(key.fileobj)

    def _print(self, data: bytes) -> None:
        if self._after:
            self._before += data
            _, separator, data = self._before.partition(self._after)
            if not separator:
                return
            self._after = self._before = b""
        self._pass_on("out", self._out, data)

    def _complain(self, data: bytes) -> None:
        self.errors = (self.errors + data)[-ERRORS_KEPT:]
        self._pass_on("err", self._err, data)

    def _pass_on(self, name: str, callback: Callable[[bytes], None] | None, data: bytes) -> None:
        if data and callback is not None:
            callback(data)
        elif data:
            self._kept[name].append(data)


class _Feeder:
    """Writes piece after piece to a pipe as it takes them; closes it after the last."""

    def __init__(self, pipe: IO[bytes], feed: Iterator[bytes]) -> None:
        self._pipe = pipe
        self._feed = feed
        self._left = memoryview(b"")

    def push(self) -> bool:
        """Write as much as goes; return whether there is more to come."""
        try:
            while True:
                if not self._left:
                    piece = next(self._feed, None)
                    if piece is None:
                        self._pipe.close()
                        return False
                    self._left = memoryview(piece)
                    continue
                self._left = self._left[os.write(self._pipe.fileno(), self._left) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:  # it reads no further; its exit code says why
            with contextlib.suppress(OSError):
                self._pipe.close()
            return False


CONNECT_WITHIN_S = 20
SILENT_S, SILENCES = 5, 4
"""A connection that answers nothing for so long, so often, counts as lost."""

FOLDER = "assay-ssh-"
LONGEST = 40
SECRET_VARIABLES = re.compile(r"MODAL_|RUNPOD_|LAMBDA_|GITHUB_|GH_|ACTIONS_|HF_|ASSAY_|.*(PASSWORD|SECRET|TOKEN)")
LOST = 255
"""How ``ssh`` ends when it is not what was run there that ended."""

LOGIN_ERRORS = {
    r"Could not resolve hostname": "its name is not known",
    r"Permission denied|Too many authentication failures": "it does not let you in",
    r"REMOTE HOST IDENTIFICATION HAS CHANGED": "its host key is not the one that is known",
    r"Host key verification failed|No \S+ host key is known": "its host key is not known",
    r"Connection refused|No route to host|Network is unreachable": "it does not answer",
    r"[Cc]onnection timed out|Operation timed out|not responding": "it does not answer in time",
    r"Connection (closed|reset)|Broken pipe": "the connection was cut",
}
ADVICE = "`ssh {where}` has to work without asking anything"


class SshConnection:
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
            *(_host_key_options(known_hosts) if known_hosts is not None else ()),
            *options,
        )
        self._connection: _ControlMaster | None = None

    def do(
        self,
        script: str,
        *,
        feed: Iterable[bytes] = (),
        out: Callable[[bytes], None] | None = None,
        err: Callable[[bytes], None] | None = None,
        within_s: float | None = None,
    ) -> RemoteResult:
        """Run a script of ``sh`` there to its end."""
        begun = time.monotonic()
        connection = self._connected()
        left_s = None if within_s is None else max(0.1, within_s - (time.monotonic() - begun))
        mark = f"assay-{secrets.token_hex(8)}"
        command = [
            *("ssh", *self._words, *_settings("ControlMaster=no", f"ControlPath={connection.socket}")),
            *("--", self._destination, quote_for_any_shell(f"echo {mark}\n{script}")),
        ]
        pump = ProcessPump(command, after=f"{mark}\n".encode(), out=out, err=err, environment=ssh_environment())
        try:
            code = pump.run(feed, left_s)
        except PumpTimeout:
            raise RemoteConnectionLost(f"{self.where} gave no answer within {within_s:g} s.") from None
        except OSError as error:
            raise RemoteConnectionLost(f"ssh cannot be started: {error.strerror or error}.") from error
        if code == LOST or code < 0:
            self.close()
            raise self._lost(pump.errors)
        return RemoteResult(code, pump.kept_out, pump.kept_err)

    def open(self) -> None:
        """Make the connection now, unless it stands.

        Raises:
            RemoteConnectionLost: It cannot be had.
        """
        self._connected()

    def close(self) -> None:
        """Let the connection go; the next `do` makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> _ControlMaster:
        if self._connection is not None and not self._connection.alive:
            self.close()
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> _ControlMaster:
        connection = _ControlMaster()
        command = [
            *("ssh", *self._words, *_settings("ControlMaster=yes", "ControlPersist=no")),
            *(*_settings(f"ControlPath={connection.socket}"), "--", self._destination),
            quote_for_any_shell("echo assay-is-here; exec cat >/dev/null"),
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

    def _lost(self, error_text: bytes) -> RemoteConnectionLost:
        text = error_text.decode("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        what = next((words for pattern, words in LOGIN_ERRORS.items() if re.search(pattern, text)), "the line was lost")
        last = f" ({lines[-1].rstrip('.')})" if lines else ""
        advice = f"; {ADVICE.format(where=self._typed)}" if "let you in" in what or "host key" in what else ""
        return RemoteConnectionLost(f"{self.where} cannot be reached: {what}{last}{advice}.")


class _ControlMaster:
    """The ``ssh`` that holds the connection, in a private folder with the socket that the others share it by."""

    def __init__(self) -> None:
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=_socket_folder()))
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
                    env=ssh_environment(),
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


def _socket_folder() -> str:
    """Return a folder for sockets, whose paths must not be long."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= LONGEST else "/tmp"  # noqa: S108 - what is made in it is private


def ssh_environment() -> dict[str, str]:
    """Return the environment of ``ssh`` without the accounts that Assay uses: a configuration may send variables on."""
    return {name: value for name, value in os.environ.items() if not SECRET_VARIABLES.match(name)}


def _sweep() -> None:
    """Remove the folders of those who were killed."""
    for path in Path(_socket_folder()).glob(f"{FOLDER}*"):
        pid = path.name.removeprefix(FOLDER).partition("-")[0]
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.geteuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(path, ignore_errors=True)


def quote_for_any_shell(script: str) -> str:
    """Return a script so that every login shell, csh and fish too, hands it to ``sh`` as it is."""
    return f"""sh -c 'eval "$(echo {b64encode(script.encode()).decode()} | base64 -d)"'"""


def _settings(*settings: str) -> tuple[str, ...]:
    return tuple(word for setting in settings for word in ("-o", setting))


def _host_key_options(path: Path) -> tuple[str, ...]:
    """Take the key that a machine shows the first time, and no other afterwards."""
    settings = (f"UserKnownHostsFile={path}", f"GlobalKnownHostsFile={os.devnull}", "StrictHostKeyChecking=accept-new")
    return _settings(*settings)
