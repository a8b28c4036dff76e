"""The provider Modal: a machine is a sandbox with a GPU, found again by name and tags.

Ended by Modal at its time limit; programs are started in it by the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from assay.core.errors import MachineCannot
from assay.hosts import offers as prices
from assay.hosts.providers import modal_sdk as credentials
from assay.hosts.providers.modal_sdk import SdkCall, call_sdk, is_fake_server, short_message, translate_error
from assay.hosts.remote.connection import RemoteConnectionLost, RemoteResult
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.provider import NoAnswer, NoCapacity, RentedMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    import modal

    from assay.hosts.base import Offer
    from assay.hosts.rented.provider import InstanceRequest


PIECE = 1 << 20
"""Bytes of standard input that are sent at once."""

LOOK_EVERY_S = 10.0
"""How often a sandbox is looked at while something runs in it: the SDK waits for ever for one that is no more."""


class SandboxConnection:
    """One sandbox. Each `do` is a conversation of its own, so that a lost one harms no other."""

    def __init__(self, number: str, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self.where = f"modal sandbox {number}"
        self.stand_in = is_fake_server()
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
    ) -> RemoteResult:
        """Run a script of ``sh`` there to its end."""
        collected: tuple[list[bytes], list[bytes]] = ([], [])
        takers = (out or collected[0].append, err or collected[1].append)

        async def work(talk: SdkCall[int]) -> int:
            return await self._work(script, feed, [_taker(talk, taker) for taker in takers], within_s)

        try:
            code = SdkCall(work, within_s=within_s).result()
        except TimeoutError as error:
            limit = "in time" if within_s is None else f"within {within_s:g} s"
            raise RemoteConnectionLost(f"The {self.where} did not get done {limit}.") from error
        except (Exception, BaseExceptionGroup) as error:
            raise self._lost(error) from error
        return RemoteResult(code=code, out=b"".join(collected[0]), err=b"".join(collected[1]))

    def _lost(self, error: BaseException) -> BaseException:
        """Return what a broken conversation means; what feeding and taking have raised is itself."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, _CallerError):
            return error.what
        if isinstance(error, RemoteConnectionLost):
            return RemoteConnectionLost(str(error))
        return RemoteConnectionLost(f"The line to the {self.where} is lost: {short_message(error)}.")

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
            raise RemoteConnectionLost(f"The {self.where} {describe_exit(code)}.")


def describe_exit(code: int) -> str:
    """Return how a sandbox ended, by what the SDK gives as its exit code."""
    return {124: "has reached its time limit", 137: "was terminated"}.get(code, f"was taken away (exit code {code})")


class _CallerError(Exception):
    """Something that was not the line's fault: it came from who feeds, or from who is told."""

    def __init__(self, what: BaseException) -> None:
        super().__init__()
        self.what = what


def _taker(talk: SdkCall[int], take: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def take_data(data: bytes) -> None:
        try:
            take(data)
        except Exception as error:
            raise _CallerError(error) from error

    return lambda data: talk.tell(lambda: take_data(data))


async def _feed(program: Any, feed: Iterable[bytes]) -> None:
    """Send a program its standard input and close it; one that has ended need not have read it."""
    from modal import exception

    try:
        for data in _guarded_callback(feed):
            for begin in range(0, len(data), PIECE):
                program.stdin.write(data[begin : begin + PIECE])
                await program.stdin.drain.aio()
        program.stdin.write_eof()
        await program.stdin.drain.aio()
    except (exception.ConflictError, exception.NotFoundError):
        if await program.poll.aio() is None:
            raise


def _guarded_callback(feed: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from feed
    except Exception as error:
        raise _CallerError(error) from error


async def _read(stream: Any, take: Callable[[bytes], None]) -> None:
    async for data in stream:
        take(data)


APP = "assay"
EXACT = {"H100-SXM": "H100!"}
"""How Modal is asked for a GPU where its plain name may become a better one; others are called as Assay calls them."""

COUNTS = (1, 2, 4, 8)
LONGEST_S = 24 * 3600
"""Modal keeps no sandbox longer."""

CORES, MEMORY_MIB = 4.0, 16 * 1024
"""What a measuring program needs beside the GPU; Modal's own default is an eighth of a core."""

ANSWER_WITHIN_S = 60.0
LAUNCH_WITHIN_S = 900.0
"""The image is built the first time, and a sandbox is handed out when it has a machine."""

MADE_BY = {"made-by": "assay"}
_TIME = "%Y%m%dT%H%M%SZ"

T = TypeVar("T")


class ModalProvider:
    """The account whose token is in the environment, or in the SDK's own file."""

    name = "modal"
    default_image = "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"

    def __init__(
        self,
        *,
        answer_within_s: float = ANSWER_WITHIN_S,
        launch_within_s: float = LAUNCH_WITHIN_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._answer_within_s = answer_within_s
        self._launch_within_s = launch_within_s
        self._now = now

    def missing(self) -> str | None:
        """Return whether the SDK or the token is missing, and how to get it; null when both are here."""
        return credentials.missing_credentials()

    def account(self) -> str:
        """Return what tells the account from another; no credential."""
        return credentials.account_hash()

    def offers(self) -> tuple[Offer, ...]:
        """Return Modal's GPUs at their listed price: Modal tells neither prices nor what is free."""
        return tuple(_offer(offer, count) for offer in prices.provider_prices(self.name) for count in COUNTS)

    def launch(self, request: InstanceRequest) -> RentedMachine:
        """Ask for a sandbox, once; Modal itself ends it at the deadline."""
        now = self._now()
        left_s = min(math.ceil((request.deadline_at - now).total_seconds()), LONGEST_S)
        if left_s <= 0:
            raise MachineCannot("No sandbox is asked for at Modal: the deadline has passed.")
        tags = {**MADE_BY, "name": request.name, "since": now.astimezone(UTC).strftime(_TIME)}
        if request.offer.usd_per_hour is not None:
            tags["usd-per-hour"] = f"{request.offer.usd_per_hour:g}"

        async def create() -> str:
            import modal

            app = await modal.App.lookup.aio(APP, create_if_missing=True)
            creation = asyncio.ensure_future(
                modal.Sandbox.create.aio(
                    "sleep",
                    str(2 * LONGEST_S),
                    app=app,
                    name=request.name,
                    tags=tags,
                    image=modal.Image.from_registry(request.image),
                    env=dict(request.environment) or None,
                    gpu=_gpu(request.offer),
                    cpu=CORES,
                    memory=MEMORY_MIB,
                    timeout=left_s,
                )
            )
            await asyncio.wait({creation}, timeout=self._launch_within_s)
            if not creation.done() and await _listed(app, tags):
                creation.cancel()  # the SDK takes back what it has not handed out
                await asyncio.wait({creation})
                if creation.cancelled():
                    raise NoCapacity(f"Modal had no such machine free within {self._launch_within_s:g} s.")
            async with asyncio.timeout(0):
                sandbox = await creation
            await sandbox.detach.aio()
            return str(sandbox.object_id)

        within_s = self._launch_within_s + 2 * self._answer_within_s
        try:
            number = self._asked(create, "when a sandbox was asked for", within_s=within_s)
        except NoAnswer:
            raise
        except MachineCannot as error:
            self._nothing_made(request.name, error)
            raise
        return _machine(number, tags)

    def ours(self) -> tuple[RentedMachine, ...]:
        """Return the sandboxes of Assay's that have not ended."""
        return self._asked(self._list, "when its sandboxes were asked for")

    def look(self, number: str) -> RentedMachine | None:
        """Return a sandbox as it is now; null when Modal knows of none. One that has ended says how."""

        async def see() -> RentedMachine | None:
            import modal
            from modal import exception

            try:
                sandbox = await modal.Sandbox.from_id.aio(number)
                return await _stage(sandbox)
            except exception.NotFoundError:
                return None

        return self._asked(see, f"when the sandbox {number} was looked at")

    def end(self, number: str) -> None:
        """Ask for a sandbox's end; nothing happens when it has ended."""

        async def terminate() -> None:
            import modal
            from modal import exception

            with contextlib.suppress(exception.NotFoundError, exception.ConflictError):
                sandbox = await modal.Sandbox.from_id.aio(number)
                await sandbox.terminate.aio()
                await sandbox.detach.aio()

        self._asked(terminate, f"when the sandbox {number} was to be ended")

    def line(self, machine: RentedMachine) -> SandboxConnection | None:
        """Return a line into a sandbox; null when it has ended, or is ending."""
        return SandboxConnection(machine.number) if machine.stage == "up" else None

    def billed_usd(self, machine: RentedMachine) -> float | None:
        """Return null: Modal accounts for apps and days, not for single sandboxes."""
        return None

    async def _list(self) -> tuple[RentedMachine, ...]:
        import modal
        from modal import exception

        try:
            app = await modal.App.lookup.aio(APP)
        except exception.NotFoundError:
            return ()
        return await _listed(app, MADE_BY)

    def _nothing_made(self, name: str, error: MachineCannot) -> None:
        """See that a refusal has left nothing: the SDK asks several times, and an earlier request may have been heard.

        Raises:
            NoAnswer: There is a sandbox, or it is not told.
        """
        try:
            made = any(machine.name == name for machine in self.ours())
        except NoAnswer:
            raise
        except MachineCannot:
            return
        if made:
            raise NoAnswer(f"{str(error).rstrip('.')}; yet there is a sandbox of that name") from error

    def _asked(
        self, make: Callable[[], Coroutine[object, object, T]], doing: str, *, within_s: float | None = None
    ) -> T:
        _silence_logging()
        try:
            return call_sdk(make, within_s=within_s or self._answer_within_s)
        except Exception as error:
            raise translate_error(error, doing) from error


def _offer(offer: Offer, count: int) -> Offer:
    price = None if offer.usd_per_hour is None else offer.usd_per_hour * count
    name = EXACT.get(offer.gpu or "", offer.name)
    return offer.model_copy(
        update={
            "name": name if count == 1 else f"{name}:{count}",
            "gpus": f"{count} × {offer.gpu}",
            "gpu_count": count,
            "usd_per_hour": price,
            "longest_s": float(LONGEST_S),
        }
    )


def _gpu(offer: Offer) -> str | None:
    """Return a GPU as Modal is asked for it: the exact one, and how many."""
    if offer.gpu is None:
        return None
    count = offer.gpu_count or 1
    name = EXACT.get(offer.gpu, offer.gpu)
    return name if count == 1 else f"{name}:{count}"


async def _listed(app: modal.App, tags: dict[str, str]) -> tuple[RentedMachine, ...]:
    import modal

    machines = [await _stage(sandbox) async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, tags=tags)]
    return tuple(machine for machine in machines if machine.stage != "gone")


async def _stage(sandbox: modal.Sandbox) -> RentedMachine:
    tags = await sandbox.get_tags.aio()
    code = sandbox.returncode
    machine = _machine(str(sandbox.object_id), tags)
    await sandbox.detach.aio()
    return machine if code is None else machine.model_copy(update={"stage": "gone", "status_text": describe_exit(code)})


def _machine(number: str, tags: dict[str, str]) -> RentedMachine:
    since, price = tags.get("since"), tags.get("usd-per-hour")
    return RentedMachine(
        name=tags.get("name", ""),
        number=number,
        stage="up",
        status_text="running",
        usd_per_hour=float(price) if price else None,
        since=datetime.strptime(since, _TIME).replace(tzinfo=UTC) if since else None,
    )


def _silence_logging() -> None:
    """Keep the SDK from logging beside what is said here in words."""
    import logging

    import modal  # noqa: F401 - sets its own level when it is loaded

    logging.getLogger("modal-client").setLevel(logging.CRITICAL)


HOST = RentedHost(ModalProvider())
