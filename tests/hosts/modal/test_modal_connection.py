"""A line into a sandbox: the programs are real, and so is what goes wrong with the line."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from assay.hosts.providers.modal import ModalProvider, SandboxConnection
from assay.hosts.remote.connection import RemoteConnectionLost
from tests.hosts.modal.test_modal_provider import wish
from tests.hosts.standins.modal.sandboxes import PREEMPTED

if TYPE_CHECKING:
    from tests.conftest import Eventually
    from tests.hosts.standins.modal.sandboxes import Sandbox
    from tests.hosts.standins.modal.server import ModalStandIn


@pytest.fixture
def sandbox(modal_stand_in: ModalStandIn) -> Sandbox:
    provider = ModalProvider(answer_within_s=20, launch_within_s=20)
    return modal_stand_in.sandboxes.all[provider.launch(wish(provider)).number]


@pytest.fixture
def line(sandbox: Sandbox) -> SandboxConnection:
    return SandboxConnection(sandbox.id, look_every_s=0.1)


def test_a_script_is_fed_and_read_and_its_exit_code_comes_back(line: SandboxConnection) -> None:
    said = line.do("echo begun >&2; cat; echo $PLAIN; exit 3", feed=[b"a\n", b"b" * 100, b"\n"])
    assert (said.code, said.err) == (3, b"begun\n")
    assert said.out == b"a\n" + b"b" * 100 + b"\nwords\n"
    killed = line.do("kill -9 $$")
    assert killed.code == 137


def test_megabytes_go_there_and_come_back(line: SandboxConnection) -> None:
    pieces = [bytes([each]) * 700_001 for each in range(4)]
    got: list[bytes] = []
    here = threading.current_thread()
    told_by = set()

    def take(data: bytes) -> None:
        told_by.add(threading.current_thread())
        got.append(data)

    said = line.do("cat", feed=iter(pieces), out=take)
    assert (said.code, said.out) == (0, b"")
    assert b"".join(got) == b"".join(pieces)
    assert told_by == {here}, "who listens is told in the thread that waits"


def test_a_program_need_not_read_what_it_is_fed(line: SandboxConnection) -> None:
    assert line.do("exit 0", feed=[b"x" * 300_000] * 2).code == 0


def test_what_takes_too_long_is_ended_there_and_said(line: SandboxConnection) -> None:
    with pytest.raises(RemoteConnectionLost, match=r"did not get done within 0\.3 s"):
        line.do("sleep 60", within_s=0.3)


def test_a_cut_connection_is_taken_up_where_it_was_lost(line: SandboxConnection, modal_stand_in: ModalStandIn) -> None:
    from tests.hosts.standins.modal.server import Fault

    modal_stand_in.fail("TaskExecStdioRead", Fault(cut=True), Fault())
    modal_stand_in.fail("TaskExecStart", Fault(after=True))
    said = line.do("echo once; sleep 0.1; echo twice")
    assert said.out == b"once\ntwice\n"


def test_a_machine_that_was_taken_away_ends_the_line_though_the_sdk_would_wait(
    line: SandboxConnection, sandbox: Sandbox, eventually: Eventually
) -> None:
    def take_away() -> None:
        eventually(lambda: any(path.stat().st_size for path in sandbox.folder.glob("out-*")))
        sandbox.end(PREEMPTED)

    taker = threading.Thread(target=take_away)
    taker.start()
    with pytest.raises(RemoteConnectionLost):
        line.do("echo here; sleep 60")
    taker.join()
    with pytest.raises(RemoteConnectionLost, match="was taken away"):
        line.do("true")


def test_errors_of_who_feeds_and_who_listens_are_not_the_line_s(line: SandboxConnection) -> None:
    def listen(data: bytes) -> None:
        raise BrokenPipeError("nobody reads this")

    with pytest.raises(BrokenPipeError, match="nobody reads"):
        line.do("echo hello; sleep 60", out=listen)

    with pytest.raises(FileNotFoundError):
        line.do("cat", feed=(path.encode() for path in [open("/nowhere/file").read()]))  # noqa: PTH123, SIM115
