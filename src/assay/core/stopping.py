"""Ctrl-C, SIGTERM and hang-ups as an error that is cleaned up after, once."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from assay.core.errors import Stopped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or hang-up into `Stopped`; further ones do not disturb the cleaning up.

    Within another one it does nothing: the outer one has signals in hand until all is cleaned up.
    """
    if signal.getsignal(signal.SIGINT) is _stop:
        yield
        return
    before = {each: signal.signal(each, _stop) for each in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the shape the signal module wants
    for each in _ENDING_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Stopped(f"Stopped by {signal.Signals(number).name}")
