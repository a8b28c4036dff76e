"""Ctrl-C and its kin become a request once, which nothing loses, and are then left alone until all is cleaned up."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING

import pytest

from assay.core import processes
from assay.core.errors import AssayError, StopRequested
from assay.core.processes import (
    defer_stop,
    list_descendants,
    raise_if_stop_requested,
    stop_main_thread,
    stop_on_signals,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import StartPython

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
PATIENCE_S = 60.0


def send(sent: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), sent)


def go_on() -> None:
    """Do something else for as long as it takes; a request that was lost is raised within it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(0.01)


def request_in(block: Callable[[], object]) -> str:
    """Return which request comes of a block that is stopped on signals."""

    def run() -> None:
        with stop_on_signals():
            block()

    with pytest.raises(StopRequested) as raised:
        run()
    return str(raised.value)


class Finalised:
    def __del__(self) -> None:
        send()


class Node:
    pass


def in_a_finaliser() -> None:
    Finalised()


def in_a_weak_reference() -> None:
    node = Node()
    kept = weakref.ref(node, lambda _: send())
    del node
    assert kept() is None


def in_a_garbage_collection() -> None:
    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            send()

    gc.callbacks.append(collected)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(collected)


def in_a_c_callback() -> None:
    ctypes.CFUNCTYPE(None)(send)()


def in_a_bare_except() -> None:
    try:
        send()
        go_on()
    except BaseException:  # noqa: BLE001, S110 - as libraries do
        pass


def made_into_another_error() -> None:
    try:
        send()
        go_on()
    except BaseException as error:
        with contextlib.suppress(ValueError):
            raise ValueError("something else") from error


LOSSES = [
    in_a_finaliser,
    in_a_weak_reference,
    in_a_garbage_collection,
    in_a_c_callback,
    in_a_bare_except,
    made_into_another_error,
]


@pytest.mark.parametrize("sent", SIGNALS)
def test_a_signal_becomes_a_request_and_further_ones_do_not_disturb(sent: signal.Signals) -> None:
    before = signal.getsignal(sent)
    cleaned_up = False

    def stopped_while_cleaning_up() -> None:
        nonlocal cleaned_up
        with stop_on_signals():
            try:
                send(sent)
                go_on()
            finally:
                for further in SIGNALS:
                    send(further)
                with contextlib.suppress(AssayError):
                    send(sent)
                    raise AssayError("an error while cleaning up")
                cleaned_up = True

    with pytest.raises(StopRequested, match=f"Stopped by {sent.name}"):
        stopped_while_cleaning_up()
    assert cleaned_up
    assert signal.getsignal(sent) is before


@pytest.mark.parametrize("swallowed", [Exception, AssayError])
def test_no_error_handler_swallows_a_request(swallowed: type[Exception]) -> None:
    def block() -> None:
        with contextlib.suppress(swallowed):
            send()
            go_on()

    assert request_in(block) == "Stopped by SIGTERM"


@pytest.mark.parametrize("lose", LOSSES)
def test_a_request_that_is_lost_is_raised_again(lose: Callable[[], None], capfd: pytest.CaptureFixture[str]) -> None:
    hook = sys.unraisablehook
    ends: list[str] = []

    def block() -> None:
        lose()
        go_on()
        ends.append("went on to the end")

    assert request_in(block) == "Stopped by SIGTERM"
    assert ends == []
    assert capfd.readouterr().err == ""
    assert sys.unraisablehook is hook


@pytest.mark.parametrize("lose", LOSSES)
def test_a_lost_request_is_raised_at_the_next_check(lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_remind", lambda request: None)
    ends: list[str] = []

    def block() -> None:
        lose()
        ends.append("lost")
        raise_if_stop_requested()
        ends.append("went on")

    assert request_in(block) == "Stopped by SIGTERM"
    assert ends == ["lost"]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_lost_request_is_raised_at_the_end_of_the_block(
    lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_remind", lambda request: None)
    ends: list[str] = []

    def block() -> None:
        with stop_on_signals():
            lose()
            ends.append("lost")
        ends.append("went on")

    assert request_in(block) == "Stopped by SIGTERM"
    assert ends == ["lost"]


def test_other_errors_that_nobody_can_catch_are_told_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: told.append(lost.exc_type))

    class Broken:
        def __del__(self) -> None:
            raise ZeroDivisionError

    with stop_on_signals():
        Broken()
    assert told == [ZeroDivisionError]


def test_a_request_waits_for_what_is_done_whole_or_not_at_all() -> None:
    done: list[str] = []

    def block() -> None:
        with defer_stop():
            send()
            with defer_stop():
                time.sleep(0.5)
            done.append("undone")
        done.append("went on")

    assert request_in(block) == "Stopped by SIGTERM"
    assert done == ["undone"]


def test_nothing_that_is_deferred_is_held_up_by_the_request_it_is_a_part_of() -> None:
    done: list[str] = []

    def block() -> None:
        try:
            send()
            go_on()
        finally:
            with defer_stop():
                done.append("undone")

    assert request_in(block) == "Stopped by SIGTERM"
    assert done == ["undone"]


def test_a_thread_can_ask_the_main_thread_to_stop_even_while_it_sleeps() -> None:
    def block() -> None:
        threading.Thread(target=stop_main_thread, args=("the house is on fire",)).start()
        go_on()

    assert request_in(block) == "the house is on fire"
    assert not stop_main_thread("nobody listens")


def test_other_threads_neither_raise_nor_defer_a_request() -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            with stop_on_signals(), defer_stop():
                raise_if_stop_requested()
        except BaseException as error:  # noqa: BLE001 - whatever it is
            raised.append(error)

    def block() -> None:
        with defer_stop():
            send()
            other = threading.Thread(target=work)
            other.start()
            other.join()

    assert request_in(block) == "Stopped by SIGTERM"
    assert raised == []


def test_what_is_answered_is_not_raised_again() -> None:
    with stop_on_signals():
        try:
            send()
            go_on()
        except StopRequested:
            processes.acknowledge_stop()
        for sent in SIGNALS:
            send(sent)
        time.sleep(0.5)
        assert processes.stop_reason() == "Stopped by SIGTERM"
    assert processes.stop_reason() is None


def test_a_hang_up_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals():
            send(signal.SIGHUP)
            time.sleep(0.3)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("sent", SIGNALS)
def test_while_there_is_nothing_to_clean_up_a_signal_ends_the_process_at_once(
    sent: signal.Signals, start_python: StartPython
) -> None:
    program = start_python(
        "import time\nfrom assay.core.processes import exit_on_signals\n"
        "exit_on_signals()\nprint('up', flush=True)\n"
        "while True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass\n"
    )
    assert program.stdout is not None
    program.stdout.readline()
    program.send_signal(sent)
    assert program.wait(PATIENCE_S) == 4


def test_descendants_of_another_process_can_be_listed() -> None:
    assert os.getpid() in list_descendants(os.getppid())
    assert os.getpid() not in list_descendants(os.getpid())
    assert list_descendants(2**22 + 1) == []
