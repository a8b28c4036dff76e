"""Copies of a worker: where a user's function forks and lets the child return, two processes go on with our work.

Each copy would make further ones, call by call, until the machine has no room left. So workers watch for forks
(`watch`), and what makes calls asks after each sample, outside the time that is measured, whether it runs in a copy
(`end_copy`): a copy tells the parent what happened, and ends.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

REASON = "the function forks, and the copy comes back from the call too; it must end itself: os._exit(0)"


class _This:
    """What is known of this process."""

    tell: Callable[[str], None]
    is_copy = False


def watch(tell: Callable[[str], None]) -> None:
    """From now on a process forked from this one is a copy; one that comes back from a call tells the reason."""
    if not hasattr(_This, "tell"):
        os.register_at_fork(after_in_child=_become_copy)
    _This.tell = tell


def end_copy() -> None:
    """Go no further in a copy; elsewhere this does nothing, in some 30 ns."""
    if _This.is_copy:
        try:
            _This.tell(REASON)
        finally:
            os._exit(1)


def _become_copy() -> None:
    _This.is_copy = True
