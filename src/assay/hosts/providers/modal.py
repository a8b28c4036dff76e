"""The provider Modal: a machine is a sandbox with a GPU, identified by name and tags.

Modal terminates it at its time limit; the SDK starts programs in it.
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
"""Bytes of standard input per write."""

LOOK_EVERY_S = 10.0
"""Polling interval of a sandbox while a program runs in it: the SDK waits forever for one that is gone."""


class SandboxConnection:
    """One sandbox; each `do` is a separate SDK call, so that a lost one affects no other."""

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
        """Run a ``sh`` script there to its end."""
        collected: tuple[list[bytes], list[bytes]] = ([], [])
        callbacks = (out or collected[0].append, err or collected[1].append)

        async def work(call: SdkCall[int]) -> int:
            return await self._work(script, feed, [_in_caller(call, take) for take in callbacks], within_s)

        try:
            code = SdkCall(work, within_s=within_s).result()
        except TimeoutError as error:
            limit = "in time" if within_s is None else f"within {within_s:g} s"
            raise RemoteConnectionLost(f"The {self.where} did not get done {limit}.") from error
        except (Exception, BaseExceptionGroup) as error:
            raise self._lost(error) from error
        return RemoteResult(code=code, out=b"".join(collected[0]), err=b"".join(collected[1]))

    def _lost(self, error: BaseException) -> BaseException:
        """Return the error for a failed call; errors of the caller's feed and callbacks are returned unchanged."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, _CallerError):
            return error.error
        if isinstance(error, RemoteConnectionLost):
            return RemoteConnectionLost(str(error))
        return RemoteConnectionLost(f"The line to the {self.where} is lost: {short_message(error)}.")

    async def _work(
        self, script: str, feed: Iterable[bytes], callbacks: list[Callable[[bytes], None]], within_s: float | None
    ) -> int:
        import modal

        sandbox = await modal.Sandbox.from_id.aio(self._number)
        try:
            self._check_running(sandbox.returncode)
            limit = None if within_s is None else math.ceil(within_s)
            program = await sandbox.exec.aio("sh", "-c", script, text=False, timeout=limit)
            async with asyncio.TaskGroup() as tasks:
                polling = tasks.create_task(self._poll_sandbox(sandbox))
                feeding = tasks.create_task(_feed(program, feed))
                reading = [
                    tasks.create_task(_read(stream, take))
                    for stream, take in zip((program.stdout, program.stderr), callbacks, strict=True)
                ]
                code = int(await program.wait.aio())
                await asyncio.wait(reading)
                feeding.cancel()
                polling.cancel()
        finally:
            await sandbox.detach.aio()
        if code < 0:
            raise TimeoutError
        return code

    async def _poll_sandbox(self, sandbox: modal.Sandbox) -> None:
        while True:
            await asyncio.sleep(self._look_every_s)
            self._check_running(await sandbox.poll.aio())

    def _check_running(self, code: int | None) -> None:
        if code is not None:
            raise RemoteConnectionLost(f"The {self.where} {describe_exit(code)}.")


def describe_exit(code: int) -> str:
    """Return how a sandbox ended, from the SDK's exit code of it."""
    return {124: "has reached its time limit", 137: "was terminated"}.get(code, f"was taken away (exit code {code})")


class _CallerError(Exception):
    """Wraps an error of the caller's feed or callbacks, which is not a fault of the connection."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _in_caller(call: SdkCall[int], take: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def take_data(data: bytes) -> None:
        try:
            take(data)
        except Exception as error:
            raise _CallerError(error) from error

    return lambda data: call.tell(lambda: take_data(data))


async def _feed(program: Any, feed: Iterable[bytes]) -> None:
    """Send a program its standard input and close it; a program that has ended need not have read it all."""
    from modal import exception

    try:
        for data in _guarded_callback(feed):
            for start in range(0, len(data), PIECE):
                program.stdin.write(data[start : start + PIECE])
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
"""Modal's names that rule out an upgrade to a better GPU; other types have the same name as in Assay."""

COUNTS = (1, 2, 4, 8)
LONGEST_S = 24 * 3600
"""Modal's longest time limit of a sandbox."""

CORES, MEMORY_MIB = 4.0, 16 * 1024
"""Resources of a sandbox beside the GPU; Modal's own default is an eighth of a core."""

ANSWER_WITHIN_S = 60.0
LAUNCH_WITHIN_S = 900.0
"""The first launch builds the image, and each waits until the sandbox has a machine."""

MADE_BY = {"made-by": "assay"}
_TIME = "%Y%m%dT%H%M%SZ"

T = TypeVar("T")


class ModalProvider:
    """The Modal account whose token is in the environment or in the SDK's own file."""

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
        """Return a clause on the missing SDK or token and how to get it; null when both are here."""
        return credentials.missing_credentials()

    def account(self) -> str:
        """Return an identifier of the account; not a credential."""
        return credentials.account_hash()

    def offers(self) -> tuple[Offer, ...]:
        """Return Modal's GPUs at their listed prices: its API reports neither prices nor free machines."""
        return tuple(_offer(offer, count) for offer in prices.provider_prices(self.name) for count in COUNTS)

    def launch(self, request: InstanceRequest) -> RentedMachine:
        """Request a sandbox, once; Modal itself terminates it at the deadline."""
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
                creation.cancel()  # the SDK terminates a sandbox that it has not returned
                await asyncio.wait({creation})
                if creation.cancelled():
                    raise NoCapacity(f"Modal had no such machine free within {self._launch_within_s:g} s.")
            async with asyncio.timeout(0):
                sandbox = await creation
            await sandbox.detach.aio()
            return str(sandbox.object_id)

        within_s = self._launch_within_s + 2 * self._answer_within_s
        try:
            number = self._call(create, "when a sandbox was asked for", within_s=within_s)
        except NoAnswer:
            raise
        except MachineCannot as error:
            self._check_nothing_created(request.name, error)
            raise
        return _machine(number, tags)

    def ours(self) -> tuple[RentedMachine, ...]:
        """Return Assay's sandboxes that have not ended."""
        return self._call(self._list, "when its sandboxes were asked for")

    def look(self, number: str) -> RentedMachine | None:
        """Return a sandbox's current state, with how it ended; null when Modal does not know it."""

        async def fetch() -> RentedMachine | None:
            import modal
            from modal import exception

            try:
                sandbox = await modal.Sandbox.from_id.aio(number)
                return await _stage(sandbox)
            except exception.NotFoundError:
                return None

        return self._call(fetch, f"when the sandbox {number} was looked at")

    def end(self, number: str) -> None:
        """Request a sandbox's termination; do nothing when it has ended."""

        async def terminate() -> None:
            import modal
            from modal import exception

            with contextlib.suppress(exception.NotFoundError, exception.ConflictError):
                sandbox = await modal.Sandbox.from_id.aio(number)
                await sandbox.terminate.aio()
                await sandbox.detach.aio()

        self._call(terminate, f"when the sandbox {number} was to be ended")

    def line(self, machine: RentedMachine) -> SandboxConnection | None:
        """Return a connection to a sandbox; null when it has ended or is ending."""
        return SandboxConnection(machine.number) if machine.stage == "up" else None

    def billed_usd(self, machine: RentedMachine) -> float | None:
        """Return null: Modal bills by app and day, not by sandbox."""
        return None

    async def _list(self) -> tuple[RentedMachine, ...]:
        import modal
        from modal import exception

        try:
            app = await modal.App.lookup.aio(APP)
        except exception.NotFoundError:
            return ()
        return await _listed(app, MADE_BY)

    def _check_nothing_created(self, name: str, error: MachineCannot) -> None:
        """Check that a refusal left nothing: the SDK retries, and an earlier attempt may have created a sandbox.

        Raises:
            NoAnswer: There is a sandbox, or Modal does not answer.
        """
        try:
            created = any(machine.name == name for machine in self.ours())
        except NoAnswer:
            raise
        except MachineCannot:
            return
        if created:
            raise NoAnswer(f"{str(error).rstrip('.')}; yet there is a sandbox of that name") from error

    def _call(
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
    """Return Modal's name of a GPU, exact and with the count; null: none."""
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
    """Keep the SDK's log out of our output."""
    import logging

    import modal  # noqa: F401 - it sets its own level on import

    logging.getLogger("modal-client").setLevel(logging.CRITICAL)


HOST = RentedHost(ModalProvider())
