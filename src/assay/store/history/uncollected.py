"""Reading much at once without Python's search for circles."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Keep Python from looking for circles in what is read: there are none, and all of it would be looked at."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
