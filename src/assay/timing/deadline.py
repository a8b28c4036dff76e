"""Not waiting for ever: a limit on how long a call of the user's may take."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from assay.core.errors import TrialFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SOON_S = 1e-6


class _Late(BaseException):
    """The limit has passed; no plain exception, so that a call which swallows those does not swallow it."""


@contextmanager
def limited(limit_s: float, what: str) -> Iterator[None]:
    """Raise in the middle of a block that takes longer than the limit.

    By an alarm, so it works in the main thread only, and cannot stop a call that is stuck in foreign code: ``assay
    time`` runs in a process of its own, which can be killed. An alarm that somebody else has set goes before ours
    where it rings sooner, and otherwise rings when it would have.

    Raises:
        TrialFailed: The limit has passed.
    """
    left_s, every_s = signal.getitimer(signal.ITIMER_REAL)
    if threading.current_thread() is not threading.main_thread() or 0 < left_s <= limit_s:
        yield
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _Late

    begin = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    except _Late:
        raise TrialFailed(f"{what} has not returned within {limit_s:g} s.") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(SOON_S, left_s - (time.monotonic() - begin)), every_s)
