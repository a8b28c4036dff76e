"""A line into a sandbox: programs are started by the SDK, fed, and read as they print."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from assay.hosts.modal.credentials import at_a_stand_in
from assay.hosts.modal.errors import in_short
from assay.hosts.modal.talk import Talk
from assay.hosts.remote.line import LineLost, Said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import modal

PIECE = 1 << 20
"""Bytes of standard input that are sent at once."""

LOOK_EVERY_S = 10.0
"""How often a sandbox is looked at while something runs in it: the SDK waits for ever for one that is no more."""


class SandboxLine:
    """One sandbox. Each `do` is a conversation of its own, so that a lost one harms no other."""

    def __init__(self, number: str, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self.where = f"modal sandbox {number}"
        self.stand_in = at_a_stand_in()
        self._number = number
        self._look_every_s = look_every_s

    def do(
        self,
        script: str,
        *,
        feed: Iterable[bytes] = (),
        out: Callable[[bytes], None] | None = None,
        err: Callable[[bytes], None] | None = None,
        within_s: float | None = None,
    ) -> Said:
        """Run a script of ``sh`` there to its end."""
        collected: tuple[list[bytes], list[bytes]] = ([], [])
        takers = (out or collected[0].append, err or collected[1].append)

        async def work(talk: Talk[int]) -> int:
            return await self._work(script, feed, [_taker(talk, taker) for taker in takers], within_s)

        try:
            code = Talk(work, within_s=within_s).result()
        except TimeoutError as error:
            limit = "in time" if within_s is None else f"within {within_s:g} s"
            raise LineLost(f"The {self.where} did not get done {limit}.") from error
        except (Exception, BaseExceptionGroup) as error:
            raise self._lost(error) from error
        return Said(code=code, out=b"".join(collected[0]), err=b"".join(collected[1]))

    def _lost(self, error: BaseException) -> BaseException:
        """Return what a broken conversation means; what feeding and taking have raised is itself."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, _OurOwn):
            return error.what
        if isinstance(error, LineLost):
            return LineLost(str(error))
        return LineLost(f"The line to the {self.where} is lost: {in_short(error)}.")

    async def _work(
        self, script: str, feed: Iterable[bytes], takers: list[Callable[[bytes], None]], within_s: float | None
    ) -> int:
        import modal

        sandbox = await modal.Sandbox.from_id.aio(self._number)
        try:
            self._still_there(sandbox.returncode)
            limit = None if within_s is None else math.ceil(within_s)
            program = await sandbox.exec.aio("sh", "-c", script, text=False, timeout=limit)
            async with asyncio.TaskGroup() as together:
                looking = together.create_task(self._look_out(sandbox))
                feeding = together.create_task(_feed(program, feed))
                reading = [
                    together.create_task(_read(stream, taker))
                    for stream, taker in zip((program.stdout, program.stderr), takers, strict=True)
                ]
                code = int(await program.wait.aio())
                await asyncio.wait(reading)
                feeding.cancel()
                looking.cancel()
        finally:
            await sandbox.detach.aio()
        if code < 0:
            raise TimeoutError
        return code

    async def _look_out(self, sandbox: modal.Sandbox) -> None:
        while True:
            await asyncio.sleep(self._look_every_s)
            self._still_there(await sandbox.poll.aio())

    def _still_there(self, code: int | None) -> None:
        if code is not None:
            raise LineLost(f"The {self.where} {ended_words(code)}.")


def ended_words(code: int) -> str:
    """Return how a sandbox ended, by what the SDK gives as its exit code."""
    return {124: "has reached its time limit", 137: "was terminated"}.get(code, f"was taken away (exit code {code})")


class _OurOwn(Exception):
    """Something that was not the line's fault: it came from who feeds, or from who is told."""

    def __init__(self, what: BaseException) -> None:
        super().__init__()
        self.what = what


def _taker(talk: Talk[int], take: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def take_data(data: bytes) -> None:
        try:
            take(data)
        except Exception as error:
            raise _OurOwn(error) from error

    return lambda data: talk.tell(lambda: take_data(data))


async def _feed(program: Any, feed: Iterable[bytes]) -> None:
    """Send a program its standard input and close it; one that has ended need not have read it."""
    from modal import exception

    try:
        for data in _guarded(feed):
            for begin in range(0, len(data), PIECE):
                program.stdin.write(data[begin : begin + PIECE])
                await program.stdin.drain.aio()
        program.stdin.write_eof()
        await program.stdin.drain.aio()
    except (exception.ConflictError, exception.NotFoundError):
        if await program.poll.aio() is None:
            raise


def _guarded(feed: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from feed
    except Exception as error:
        raise _OurOwn(error) from error


async def _read(stream: Any, take: Callable[[bytes], None]) -> None:
    async for data in stream:
        take(data)
