"""Ctrl-C and its kin become an error once, and are then left alone until everything is cleaned up."""

from __future__ import annotations

import os
import signal

import pytest

from assay.core.errors import Stopped
from assay.core.lifeline import descendants
from assay.core.stopping import stop_on_signals


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_becomes_an_error_and_further_ones_do_not_disturb(sent: signal.Signals) -> None:
    before = signal.getsignal(sent)
    cleaned_up = False

    def stopped_while_cleaning_up() -> None:
        nonlocal cleaned_up
        with stop_on_signals():
            try:
                os.kill(os.getpid(), sent)
            finally:
                os.kill(os.getpid(), sent)
                cleaned_up = True

    with pytest.raises(Stopped, match=f"Stopped by {sent.name}"):
        stopped_while_cleaning_up()
    assert cleaned_up
    assert signal.getsignal(sent) is before


def test_descendants_of_another_process_can_be_listed() -> None:
    assert os.getpid() in descendants(os.getppid())
    assert os.getpid() not in descendants(os.getpid())
    assert descendants(2**22 + 1) == []
