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
    """Turn the first Ctrl-C, SIGTERM or hang-up into `Stopped`; further ones do not disturb the cleaning up."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the shape the signal module wants
        for each in _ENDING_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(f"Stopped by {signal.Signals(number).name}")

    before = {each: signal.signal(each, stop) for each in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
