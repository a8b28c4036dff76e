"""The deadline that a rented machine keeps itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


def script(deadline_at: datetime) -> str:
    """Return a script of ``sh`` that makes a machine switch itself off at a deadline; it returns at once.

    Said again with a later deadline, the later one counts.
    """
    raise NotImplementedError
