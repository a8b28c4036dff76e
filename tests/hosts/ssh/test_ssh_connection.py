"""A line by the real ssh to a real sshd: what it carries, how it breaks, and what it says then."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import BadInput, StopRequested
from assay.core.processes import stop_on_signals
from assay.hosts.remote.connection import RemoteConnectionLost, SshConnection, run_process, skip_to_marker
from tests.running import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import StartPython
    from tests.hosts.ssh.server import Server


@pytest.fixture
def line(gpu1: Server) -> Iterator[SshConnection]:
    made = SshConnection("gpu1")
    yield made
    made.close()


def test_a_script_runs_there_with_its_input_output_and_exit_code(line: SshConnection) -> None:
    data = os.urandom(3_000_000)
    script = """sha256sum | cut -c 1-64; echo "it's \\$5" >&2; printf 'a\\nb'; exit 7"""
    said = line.do(script, feed=(data[:10], data[10:]))
    assert said.code == 7
    assert said.out.decode() == f"{hashlib.sha256(data).hexdigest()}\na\nb"
    assert said.err == b"it's $5\n"


def test_what_is_printed_is_told_as_it_comes_and_input_that_nobody_reads_harms_nothing(line: SshConnection) -> None:
    out: list[bytes] = []
    err: list[bytes] = []
    said = line.do(
        "echo one; echo two >&2; exec <&-; echo three", feed=[b"x" * 1_000_000], out=out.append, err=err.append
    )
    assert (said.code, said.out, said.err) == (0, b"", b"")
    assert (b"".join(out), b"".join(err)) == (b"one\nthree\n", b"two\n")


def test_one_connection_serves_all_and_a_cut_one_is_replaced(line: SshConnection, gpu1: Server) -> None:
    line.do("true")
    served = set(gpu1.sessions())
    line.do("true")
    assert set(gpu1.sessions()) == served
    cutter = threading.Timer(0.3, gpu1.cut)
    cutter.start()
    with pytest.raises(RemoteConnectionLost, match="gpu1 cannot be reached"):
        line.do("sleep 30")
    cutter.join()
    assert line.do("echo back").out == b"back\n"


def test_what_takes_too_long_is_ended_here(line: SshConnection) -> None:
    with pytest.raises(RemoteConnectionLost, match=r"gpu1 gave no answer within 0\.3 s"):
        line.do("sleep 30", within_s=0.3)
    assert line.do("echo on", within_s=20).out == b"on\n"


@pytest.mark.parametrize(
    ("destination", "said"),
    [
        ("down", "down cannot be reached: it does not answer"),
        ("nowhere.invalid", "nowhere.invalid cannot be reached: its name is not known"),
        ("stranger", "it rejects the login .*; `ssh stranger` has to work without a prompt"),
        ("root@localhost", "localhost cannot be reached"),
    ],
)
def test_why_there_is_no_line_is_said(destination: str, said: str, gpu1: Server) -> None:
    with pytest.raises(RemoteConnectionLost, match=said):
        SshConnection(destination).do("true", within_s=30)


def test_an_unknown_host_key_is_refused_unless_it_is_a_rented_machines_first(gpu1: Server, tmp_path: Path) -> None:
    unknown = ("-o", "UserKnownHostsFile=/dev/null")
    with pytest.raises(RemoteConnectionLost, match="its host key is not known"):
        SshConnection("gpu1", options=unknown).do("true")
    rented = SshConnection(
        f"{os.environ.get('USER', 'root')}@127.0.0.1",
        port=gpu1.port,
        identity=gpu1.folder / "user",
        known_hosts=tmp_path / "known",
        where="pod 7",
    )
    assert rented.do("echo in").out == b"in\n"
    rented.close()
    assert (tmp_path / "known").is_file()


@pytest.mark.parametrize("destination", ["-oProxyCommand=touch /tmp/x", "", "a b", "a\nb"])
def test_a_name_that_ssh_would_take_for_an_option_is_refused(destination: str) -> None:
    with pytest.raises(BadInput, match="no name of a machine"):
        SshConnection(destination)


def test_what_a_login_prints_before_the_script_is_left_out() -> None:
    out: list[bytes] = []
    command = ["sh", "-c", "echo Welcome to the machine; echo MARK; echo result"]
    assert run_process(command, out=skip_to_marker(b"MARK\n", out.append), err=out.append) == 0
    assert b"".join(out) == b"result\n"


def test_a_signal_is_heard_while_something_runs_there(line: SshConnection) -> None:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(StopRequested), stop_on_signals():
        line.do("sleep 30")


def test_no_ssh_is_left_when_we_are_killed_and_its_folder_goes_with_the_next(
    gpu1: Server, start_python: StartPython, line: SshConnection
) -> None:
    program = """
from assay.hosts.remote.connection import SshConnection
line = SshConnection("gpu1")
line.do("true")
print(line._connection._process.pid, line._connection._folder, flush=True)
line.do("while :; do echo .; sleep 0.1; done", out=lambda data: None)
"""
    process = start_python(program)
    assert process.stdout is not None
    pid, folder = process.stdout.readline().split()
    process.kill()
    process.wait()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    line.do("true")
    assert not Path(folder).exists()
