"""Data that the configurations of one problem have in common, so that many of them fit into memory at once.

Inside ``with sharing():`` what several calls of ``prepare`` would each draw or set aside is made once. It is for
configurations that run one after another, as outputs are shared too.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

_T = TypeVar("_T")
_KEPT: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Share data until the end of the block; then nothing of it is held here any more."""
    before = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(before)


def shared(key: Hashable, make: Callable[[], _T]) -> _T:
    """Return what was made for this key in this block; made now where it was not, or nothing is shared."""
    store = _KEPT.get()
    if store is None:
        return make()
    if key not in store:
        store[key] = make()
    return cast("_T", store[key])
