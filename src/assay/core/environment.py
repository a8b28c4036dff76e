"""A variable of this process's environment, set for a while: what libraries read there has no other way in."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set a variable within a block; afterwards it is as it was, for us and for what we start later."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
