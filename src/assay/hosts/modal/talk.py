"""Ask the SDK, which speaks asyncio, from a thread of its own and for a limited time.

A signal is raised in the thread that waits here, never in a callback of a loop, which would swallow it. Whatever is
raised here cancels what was asked for, and is raised on when that has ended: the SDK takes back a sandbox that it had
not handed out yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Talk(Generic[T]):
    """One conversation in a thread that ends with it; it may tell the one who waits for it things meanwhile."""

    def __init__(self, make: Callable[[Talk[T]], Coroutine[object, object, T]], *, within_s: float | None) -> None:
        self._make = make
        self._within_s = within_s
        self._told: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
        self._done: Future[T] = Future()
        self._thread = Thread(target=self._run, name="assay-modal", daemon=True)

    def tell(self, what: Callable[[], object]) -> None:
        """Have something done in the thread that waits; called in the conversation."""
        self._told.put(what)

    def result(self) -> T:
        """Talk to the end, doing meanwhile what is told.

        Raises:
            TimeoutError: The time is over.
            Exception: Whatever the conversation or something told raised.
        """
        self._thread.start()
        try:
            while (what := self._told.get()) is not None:
                what()
        except BaseException:
            self._cancel()
            raise
        finally:
            self._thread.join()
        return self._done.result()

    def _cancel(self) -> None:
        with contextlib.suppress(CancelledError, RuntimeError):  # it never began, or has just ended by itself
            loop, task = self._begun.result()
            loop.call_soon_threadsafe(task.cancel)

    def _run(self) -> None:
        try:
            self._done.set_result(asyncio.run(self._bounded()))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._done.set_exception(error)
        finally:
            self._begun.cancel()
            self._told.put(None)

    async def _bounded(self) -> T:
        task: asyncio.Task[T] = asyncio.ensure_future(self._make(self))
        self._begun.set_result((asyncio.get_running_loop(), task))
        async with asyncio.timeout(self._within_s):
            return await task


def ask(make: Callable[[], Coroutine[object, object, T]], *, within_s: float) -> T:
    """Return the answer to one question.

    Raises:
        TimeoutError: It did not come in time.
    """
    return Talk(lambda _: make(), within_s=within_s).result()
