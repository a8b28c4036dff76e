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
from abc import ABC, abstractmethod
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import IO

    Take = Callable[[bytes], object]


class RemoteConnectionLost(MachineCannot):
    """The connection broke or could not be made; what was started there may still run."""


@dataclass(frozen=True)
class RemoteResult:
    """How a remote program ended, and the output that was not passed to a callback."""

    code: int
    out: bytes
    err: bytes


class RemoteConnection(ABC):
    """A way to start programs on another machine."""

    where: str
    """Display name: "gpu1", "runpod pod 8f2a"."""

    stand_in = False
    """True for a fake of a provider's machine: results measured there are marked as fake."""

    def do(
        self,
        script: str,
        *,
        feed: Iterable[bytes] = (),
        out: Take | None = None,
        err: Take | None = None,
        within_s: float | None = None,
    ) -> RemoteResult:
        """Run a ``sh`` script there to its end.

        Args:
            script: The script; it must not contain secrets.
            feed: Its standard input, in chunks.
            out: Receives its stdout as it comes; null: it is kept and returned.
            err: Likewise for stderr.
            within_s: Timeout; null: none.

        Raises:
            RemoteConnectionLost: The connection broke or could not be made, or the timeout expired.
        """
        kept_out: list[bytes] = []
        kept_err: list[bytes] = []
        code = self._run(script, feed, out or kept_out.append, err or kept_err.append, within_s)
        return RemoteResult(code, b"".join(kept_out), b"".join(kept_err))

    @abstractmethod
    def _run(self, script: str, feed: Iterable[bytes], out: Take, err: Take, within_s: float | None) -> int:
        """Run a script there to its end, pass on its output, and return its exit code; raises what `do` raises."""


CHUNK = 1 << 16
ERRORS_KEPT = 8000


def run_process(
    command: list[str],
    *,
    feed: Iterable[bytes] = (),
    out: Take,
    err: Take,
    within_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a program to its end: feed its standard input, pass on its output, return its exit code.

    Any exception kills it.

    Raises:
        subprocess.TimeoutExpired: It took longer than ``within_s``.
        OSError: It could not be started.
    """
    deadline = None if within_s is None else time.monotonic() + within_s
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is for us to handle
    )
    try:
        _pump(process, iter(feed), out, err, deadline)
        return process.wait(None if deadline is None else max(0.1, deadline - time.monotonic()))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _pump(
    process: subprocess.Popen[bytes], feed: Iterator[bytes], out: Take, err: Take, deadline: float | None
) -> None:
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise AssertionError("all three are pipes")
    unwritten: memoryview | None = memoryview(b"")
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(process.args, left_s)
            for key, _ in selector.select(left_s):
                if key.data is None:
                    unwritten = _write_chunks(process.stdin, feed, unwritten or memoryview(b""))
                    if unwritten is None:
                        selector.unregister(process.stdin)
                elif data := os.read(key.fd, CHUNK):
                    key.data(data)
                else:
                    selector.unregister(key.fileobj)


def _write_chunks(pipe: IO[bytes], feed: Iterator[bytes], unwritten: memoryview) -> memoryview | None:
    """Write as much as possible without blocking; return the unwritten rest, null once the pipe is closed."""
    try:
        while True:
            if unwritten:
                unwritten = unwritten[os.write(pipe.fileno(), unwritten) :]
                continue
            chunk = next(feed, None)
            if chunk is None:
                break
            unwritten = memoryview(chunk)
    except BlockingIOError:
        return unwritten
    except BrokenPipeError:  # the program stopped reading; its exit code says why
        pass
    with contextlib.suppress(OSError):
        pipe.close()
    return None


def skip_to_marker(marker: bytes, out: Take) -> Take:
    """Return a callback that drops everything up to a marker, as a login shell may print before it."""
    before: bytes | None = b""

    def take(data: bytes) -> None:
        nonlocal before
        if before is not None:
            dropped, separator, data = (before + data).partition(marker)
            before = None if separator else dropped
        if data:
            out(data)

    return take


CONNECT_WITHIN_S = 20
SILENT_S, SILENCES = 5, 4
"""A connection is lost after this many keep-alive intervals, of so many seconds, without an answer."""

FOLDER = "assay-ssh-"
LONGEST = 40
SECRET_VARIABLES = re.compile(r"MODAL_|RUNPOD_|LAMBDA_|GITHUB_|GH_|ACTIONS_|HF_|ASSAY_|.*(PASSWORD|SECRET|TOKEN)")
LOST = 255
"""Exit code of ``ssh`` when it fails itself, not the remote program."""


class LoginError(NamedTuple):
    """What a message of ``ssh`` means."""

    pattern: str
    meaning: str
    needs_setup: bool = False
    """Whether the user has to set up the login, so that the message should say how to try it."""


LOGIN_ERRORS = (
    LoginError(r"Could not resolve hostname", "its name is not known"),
    LoginError(r"Permission denied|Too many authentication failures", "it rejects the login", needs_setup=True),
    LoginError(r"REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed", needs_setup=True),
    LoginError(r"Host key verification failed|No \S+ host key is known", "its host key is not known", needs_setup=True),
    LoginError(r"Connection refused|No route to host|Network is unreachable", "it does not answer"),
    LoginError(r"[Cc]onnection timed out|Operation timed out|not responding", "it does not answer in time"),
    LoginError(r"Connection (closed|reset)|Broken pipe", "the connection was cut"),
)
UNKNOWN_ERROR = LoginError("", "the connection was lost")


class SshConnection(RemoteConnection):
    """A machine that accepts a login without a prompt; all commands share one connection."""

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
        """Set the destination; nothing is connected yet.

        Args:
            destination: As ssh takes it: ``gpu1``, ``user@host``.
            port: Null: as in the ssh configuration.
            identity: The only key to use, for rented machines; null: the user's own keys.
            known_hosts: File for the host key that a rented machine first presents; null: the user's own file.
            options: Further ssh arguments, such as ``-F FILE``.
            where: Display name; null: the destination.
        """
        if not re.fullmatch(r"[^\s\-\x00-\x1f][^\s\x00-\x1f]*", destination):
            raise BadInput(f"{destination!r} is no name of a machine; write --on ssh:HOST or --on ssh:USER@HOST.")
        self.where = where or destination
        self._destination = destination
        self._typed = destination if port is None else f"-p {port} {destination}"
        self._ssh_options = (
            *_settings("BatchMode=yes", f"ConnectTimeout={CONNECT_WITHIN_S}", "LogLevel=ERROR", "RequestTTY=no"),
            *_settings("RemoteCommand=none", "ForwardAgent=no", "ForwardX11=no"),
            *_settings(f"ServerAliveInterval={SILENT_S}", f"ServerAliveCountMax={SILENCES}", "ClearAllForwardings=yes"),
            *(("-p", str(port)) if port is not None else ()),
            *(("-i", str(identity), *_settings("IdentitiesOnly=yes")) if identity is not None else ()),
            *(_settings(*_first_host_key(known_hosts)) if known_hosts is not None else ()),
            *options,
        )
        self._connection: _ControlMaster | None = None

    def _run(self, script: str, feed: Iterable[bytes], out: Take, err: Take, within_s: float | None) -> int:
        started_at = time.monotonic()
        connection = self._connected()
        left_s = None if within_s is None else max(0.1, within_s - (time.monotonic() - started_at))
        marker = f"assay-{secrets.token_hex(8)}"
        command = [
            *("ssh", *self._ssh_options, *_settings("ControlMaster=no", f"ControlPath={connection.socket}")),
            *("--", self._destination, quote_for_any_shell(f"echo {marker}\n{script}")),
        ]
        errors = bytearray()

        def take_err(data: bytes) -> None:
            errors[:] = (errors + data)[-ERRORS_KEPT:]
            err(data)

        take_out = skip_to_marker(f"{marker}\n".encode(), out)
        try:
            code = run_process(
                command, feed=feed, out=take_out, err=take_err, within_s=left_s, environment=ssh_environment()
            )
        except subprocess.TimeoutExpired:
            raise RemoteConnectionLost(f"{self.where} gave no answer within {within_s:g} s.") from None
        except OSError as error:
            raise RemoteConnectionLost(f"ssh cannot be started: {error.strerror or error}.") from error
        if code == LOST or code < 0:
            self.close()
            raise self._lost(bytes(errors))
        return code

    def close(self) -> None:
        """Close the connection; the next `do` opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> _ControlMaster:
        if self._connection is not None and not self._connection.alive:
            self.close()
        if self._connection is None:
            connection = _ControlMaster()
            command = [
                *("ssh", *self._ssh_options, *_settings("ControlMaster=yes", "ControlPersist=no")),
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
            self._connection = connection
        return self._connection

    def _lost(self, error_text: bytes) -> RemoteConnectionLost:
        text = error_text.decode("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        login_error = next((error for error in LOGIN_ERRORS if re.search(error.pattern, text)), UNKNOWN_ERROR)
        last = f" ({lines[-1].rstrip('.')})" if lines else ""
        advice = f"; `ssh {self._typed}` has to work without a prompt" if login_error.needs_setup else ""
        return RemoteConnectionLost(f"{self.where} cannot be reached: {login_error.meaning}{last}{advice}.")


class _ControlMaster:
    """The ``ssh`` process that holds the connection; its control socket is in a private folder."""

    def __init__(self) -> None:
        _remove_stale_folders()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=_socket_folder()))
        self._process: subprocess.Popen[bytes] | None = None
        self.socket = self._folder / "socket"

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return self._process is not None and self._process.poll() is None

    def open(self, command: list[str]) -> bytes | None:
        """Start it and wait until it is connected; return ssh's error output if it fails."""
        errors, pipe = self._folder / "stderr", subprocess.PIPE
        with errors.open("wb") as log:
            try:
                self._process = process = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, stderr=log, env=ssh_environment(), start_new_session=True
                )
            except OSError as error:
                return f"ssh cannot be started: {error.strerror or error}".encode()
        if process.stdout is None:
            raise AssertionError("its output is a pipe")
        with process.stdout as output:
            for line in output:  # ssh's own timeouts end this
                if line.rstrip() == b"assay-is-here":
                    return None
        process.wait()
        return errors.read_bytes()

    def close(self) -> None:
        """Kill it and remove its folder."""
        if self._process is not None:
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _socket_folder() -> str:
    """Return a folder for sockets, whose paths must be short."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= LONGEST else "/tmp"  # noqa: S108 - the folder created in it is private


def ssh_environment() -> dict[str, str]:
    """Return the environment for ``ssh`` without Assay's credentials: a configuration may forward variables."""
    return {name: value for name, value in os.environ.items() if not SECRET_VARIABLES.match(name)}


def _remove_stale_folders() -> None:
    """Remove the folders of killed processes."""
    for path in Path(_socket_folder()).glob(f"{FOLDER}*"):
        pid = path.name.removeprefix(FOLDER).partition("-")[0]
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.geteuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(path, ignore_errors=True)


def quote_for_any_shell(script: str) -> str:
    """Quote a script so that every login shell, csh and fish too, passes it to ``sh`` unchanged."""
    return f"""sh -c 'eval "$(echo {b64encode(script.encode()).decode()} | base64 -d)"'"""


def _settings(*settings: str) -> tuple[str, ...]:
    return tuple(word for setting in settings for word in ("-o", setting))


def _first_host_key(path: Path) -> tuple[str, ...]:
    """Return settings that accept the host key presented first, and no other afterwards."""
    return (f"UserKnownHostsFile={path}", f"GlobalKnownHostsFile={os.devnull}", "StrictHostKeyChecking=accept-new")
