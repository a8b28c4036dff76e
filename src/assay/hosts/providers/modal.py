"""Modal: a machine is a sandbox with a GPU, identified by name and tags; the SDK starts programs in it.

Modal itself terminates it at its time limit. SDK calls run with a timeout, each in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import math
import os
import re
import tomllib
from concurrent.futures import CancelledError, Future
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from assay.core.errors import AssayError, MachineCannot
from assay.hosts.offers import provider_prices
from assay.hosts.remote.connection import RemoteConnection, RemoteConnectionLost
from assay.hosts.rented.host import RentedHost
from assay.hosts.rented.provider import NoAnswer, NoCapacity, Provider, RentedMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    import modal

    from assay.hosts.base import Offer
    from assay.hosts.remote.connection import Take
    from assay.hosts.rented.provider import InstanceRequest


INSTALL = "the package modal is not installed; `pip install 'gpu-assay[modal]'` gets it"
GET_ONE = "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`, which writes them to the SDK's own file"
_PAIRS = (("TOKEN_ID", "TOKEN_SECRET"), ("OAUTH_REFRESH_TOKEN", "OAUTH_CLIENT_ID"))
_NAMES = (*(name for pair in _PAIRS for name in pair), "OAUTH_CLIENT_SECRET", "OAUTH_JWT_KEY")
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_TOKENS = re.compile(r"\ba[ks]-[A-Za-z0-9_-]{4,}")


def missing_credentials() -> str | None:
    """Return what is missing and how to get it, as a clause; null when nothing is."""
    if importlib.util.find_spec("modal") is None:
        return INSTALL
    try:
        settings = _settings()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return f"Modal's own file {_file()} cannot be read: {error}"
    if strange := [name for pair in _PAIRS for name in pair if re.fullmatch(r"[!-~]*", settings.get(name, "")) is None]:
        return f"MODAL_{strange[0]} has strange characters, such as a space or a line break"
    if any(settings.keys() >= set(pair) for pair in _PAIRS):
        return _reason_not_encrypted()
    half = [name for name in ("TOKEN_ID", "TOKEN_SECRET") if name in settings]
    if half:
        missing = "TOKEN_SECRET" if half == ["TOKEN_ID"] else "TOKEN_ID"
        return f"there is a MODAL_{half[0]} but no MODAL_{missing}; {GET_ONE}"
    return f"there are no credentials for Modal; {GET_ONE}"


def _server_urls() -> list[str]:
    return [url.strip() for url in (os.environ.get("MODAL_SERVER_URL") or "").split(",") if url.strip()]


def _reason_not_encrypted() -> str | None:
    """Return a clause that the token would be sent unencrypted; null when it would not."""
    for url in _server_urls():
        parts = urlsplit(url)
        if parts.scheme not in {"https", "unix"} and parts.hostname not in _LOOPBACK:
            return f"MODAL_SERVER_URL={url} is not https, and over anything else the token could be read"
    return None


def is_fake_server() -> bool:
    """Return whether Modal's address is on this machine: then a fake of Modal answers."""
    return any(urlsplit(url).hostname in _LOOPBACK for url in _server_urls())


def without_secrets(text: str) -> str:
    """Return a text without the credentials and without anything that looks like a Modal token."""
    for value in _settings().values():
        text = text.replace(value, "…")
    return _TOKENS.sub("…", text)


def _settings() -> dict[str, str]:
    """Return the credentials by variable name; the environment takes precedence over the profile in the SDK's file."""
    profile: dict[str, object] = {}
    if _file().exists():
        tables = tomllib.loads(_file().read_text())
        profiles = {name: values for name, values in tables.items() if isinstance(values, dict)}
        active = next((name for name, values in profiles.items() if values.get("active") is True), "default")
        profile = profiles.get(os.environ.get("MODAL_PROFILE") or active, {})
    settings = {name: os.environ.get(f"MODAL_{name}") or profile.get(name.lower()) for name in _NAMES}
    return {name: str(value) for name, value in settings.items() if value}


def _file() -> Path:
    return Path(os.environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")


_LONGEST = 300


def translate_error(error: Exception, doing: str) -> AssayError:
    """Return the error to raise in place of an error of the SDK.

    ``doing`` is a clause: "when a sandbox was requested". An error that is not a known refusal becomes `NoAnswer`, as
    the request may have taken effect.
    """
    if isinstance(error, AssayError):
        return error
    message = short_message(error)
    for sdk_errors, our_error, template in _translations():
        if isinstance(error, sdk_errors):
            if our_error is NoCapacity and "capacity" not in message.lower():
                continue
            return our_error(template.format(doing=doing, said=message))
    return NoAnswer(f"Modal did not answer {doing}: {message}")


def _translations() -> tuple[tuple[type[Exception] | tuple[type[Exception], ...], type[AssayError], str], ...]:
    """Return the error to raise and its message template for each SDK error; the first match counts."""
    from modal import exception as sdk

    no_payment = "Modal does not allow it {doing}: {said}; has the workspace a payment method?"
    limit = "A quota, spending or rate limit at Modal was reached {doing}: {said}; see the workspace's usage page."
    no_image = "Modal could not build the image {doing}: {said}; name another with --image."
    old_sdk = "Modal does not serve this version of its SDK {doing}: {said}; update the package modal."
    return (
        (sdk.AuthError, MachineCannot, f"Modal does not accept the credentials: {{said}}; {GET_ONE}."),
        (sdk.PermissionDeniedError, MachineCannot, no_payment),
        (sdk.ResourceExhaustedError, NoCapacity, "Modal has no such machine free now: {said}."),
        (sdk.ResourceExhaustedError, MachineCannot, limit),
        (sdk.ImageBuildError, MachineCannot, no_image),
        (sdk.AlreadyExistsError, NoAnswer, "Modal has a sandbox of that name already: {said}"),
        ((sdk.VersionError, sdk.UnimplementedError), MachineCannot, old_sdk),
        (sdk.ConflictError, MachineCannot, "The sandbox at Modal ended by itself {doing}: {said}."),
        ((sdk.InvalidError, sdk.NotFoundError), MachineCannot, "Modal refuses the request {doing}: {said}."),
    )


def short_message(error: BaseException) -> str:
    """Return an error's message on one line, without credentials."""
    message = " ".join(without_secrets(str(error)).split()).rstrip(".")
    if not message:
        message = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]} …"


T = TypeVar("T")


class SdkCall(Generic[T]):
    """One SDK call in a thread of its own, which can run callbacks in the waiting thread meanwhile."""

    def __init__(self, make: Callable[[SdkCall[T]], Coroutine[object, object, T]], *, within_s: float | None) -> None:
        self._make = make
        self._within_s = within_s
        self._callbacks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
        self._done: Future[T] = Future()
        self._thread = Thread(target=self._run, name="assay-modal", daemon=True)

    def tell(self, callback: Callable[[], object]) -> None:
        """Run a callback in the waiting thread; called from the call's coroutine."""
        self._callbacks.put(callback)

    def result(self) -> T:
        """Run the call to its end, and its callbacks meanwhile; return its result.

        Raises:
            TimeoutError: The timeout expired.
            Exception: Whatever the call or a callback raised.
        """
        self._thread.start()
        try:
            while (callback := self._callbacks.get()) is not None:
                callback()
        except BaseException:
            with contextlib.suppress(CancelledError, RuntimeError):  # it never started, or has just ended by itself
                loop, task = self._started.result()
                loop.call_soon_threadsafe(task.cancel)
            raise
        finally:
            self._thread.join()
        return self._done.result()

    def _run(self) -> None:
        try:
            self._done.set_result(asyncio.run(self._bounded()))
        except BaseException as error:  # noqa: BLE001 - it is raised in the waiting thread
            self._done.set_exception(error)
        finally:
            self._started.cancel()
            self._callbacks.put(None)

    async def _bounded(self) -> T:
        task: asyncio.Task[T] = asyncio.ensure_future(self._make(self))
        self._started.set_result((asyncio.get_running_loop(), task))
        async with asyncio.timeout(self._within_s):
            return await task


PIECE = 1 << 20
"""Bytes of standard input per write."""

LOOK_EVERY_S = 10.0
"""Polling interval of a sandbox while a program runs in it: the SDK waits forever for one that is gone."""


class SandboxConnection(RemoteConnection):
    """One sandbox; each `do` is a separate SDK call, so that a lost one affects no other."""

    def __init__(self, number: str, *, look_every_s: float = LOOK_EVERY_S) -> None:
        self.where = f"modal sandbox {number}"
        self.stand_in = is_fake_server()
        self._number = number
        self._look_every_s = look_every_s

    def _run(self, script: str, feed: Iterable[bytes], out: Take, err: Take, within_s: float | None) -> int:
        async def work(call: SdkCall[int]) -> int:
            return await self._work(script, feed, [_in_caller(call, take) for take in (out, err)], within_s)

        try:
            return SdkCall(work, within_s=within_s).result()
        except TimeoutError as error:
            limit = "in time" if within_s is None else f"within {within_s:g} s"
            raise RemoteConnectionLost(f"The {self.where} did not get done {limit}.") from error
        except (Exception, BaseExceptionGroup) as error:
            raise self._lost(error) from error

    def _lost(self, error: BaseException) -> BaseException:
        """Return the error for a failed call; errors of the caller's feed and callbacks are returned unchanged."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, _CallerError):
            return error.error
        if isinstance(error, RemoteConnectionLost):
            return RemoteConnectionLost(str(error))
        return RemoteConnectionLost(f"The connection to the {self.where} is lost: {short_message(error)}.")

    async def _work(self, script: str, feed: Iterable[bytes], callbacks: list[Take], within_s: float | None) -> int:
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


def _in_caller(call: SdkCall[int], take: Take) -> Take:
    def take_data(data: bytes) -> None:
        try:
            take(data)
        except Exception as error:
            raise _CallerError(error) from error

    return lambda data: call.tell(lambda: take_data(data))


async def _feed(program: Any, feed: Iterable[bytes]) -> None:
    """Send a program its standard input and close it; a program that has ended need not have read it all."""
    from modal import exception

    chunks = iter(feed)
    try:
        while (data := _next_chunk(chunks)) is not None:
            for start in range(0, len(data), PIECE):
                program.stdin.write(data[start : start + PIECE])
                await program.stdin.drain.aio()
        program.stdin.write_eof()
        await program.stdin.drain.aio()
    except (exception.ConflictError, exception.NotFoundError):
        if await program.poll.aio() is None:
            raise


def _next_chunk(chunks: Iterator[bytes]) -> bytes | None:
    try:
        return next(chunks, None)
    except Exception as error:
        raise _CallerError(error) from error


async def _read(stream: Any, take: Take) -> None:
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


class ModalProvider(Provider):
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
        """Return a clause on the missing SDK or token and how to get it; null when both are available."""
        return missing_credentials()

    def account(self) -> str:
        """Return an identifier of the account: a hash that does not reveal the token."""
        settings = _settings()
        identifying = (os.environ.get("MODAL_SERVER_URL", ""), *(settings.get(name, "") for name in _NAMES))
        return hashlib.sha256("\n".join(identifying).encode()).hexdigest()[:12]

    def offers(self) -> tuple[Offer, ...]:
        """Return Modal's GPUs at their listed prices: its API reports neither prices nor free machines."""
        return tuple(
            offer.model_copy(
                update={
                    "name": _gpu_name(offer.gpu or offer.name, count),
                    "gpus": f"{count} × {offer.gpu}",
                    "gpu_count": count,
                    "usd_per_hour": None if offer.usd_per_hour is None else offer.usd_per_hour * count,
                    "longest_s": float(LONGEST_S),
                }
            )
            for offer in provider_prices(self.name)
            for count in COUNTS
        )

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
                    gpu=_gpu_name(request.offer.gpu, request.offer.gpu_count or 1) if request.offer.gpu else None,
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
            number = self._call(create, "when a sandbox was requested", within_s=within_s)
        except NoAnswer:
            raise
        except MachineCannot as error:
            self._check_nothing_created(request.name, error)
            raise
        return _machine(number, tags)

    def list_ours(self) -> tuple[RentedMachine, ...]:
        """Return Assay's sandboxes that have not ended."""

        async def fetch() -> tuple[RentedMachine, ...]:
            import modal
            from modal import exception

            try:
                app = await modal.App.lookup.aio(APP)
            except exception.NotFoundError:
                return ()
            return await _listed(app, MADE_BY)

        return self._call(fetch, "when its sandboxes were listed")

    def find(self, number: str) -> RentedMachine | None:
        """Return a sandbox's current state, with how it ended; null when Modal does not know it."""

        async def fetch() -> RentedMachine | None:
            import modal
            from modal import exception

            try:
                sandbox = await modal.Sandbox.from_id.aio(number)
                return await _stage(sandbox)
            except exception.NotFoundError:
                return None

        return self._call(fetch, f"when the sandbox {number} was queried")

    def terminate(self, number: str) -> None:
        """Request a sandbox's termination; do nothing when it has ended."""

        async def stop() -> None:
            import modal
            from modal import exception

            with contextlib.suppress(exception.NotFoundError, exception.ConflictError):
                sandbox = await modal.Sandbox.from_id.aio(number)
                await sandbox.terminate.aio()
                await sandbox.detach.aio()

        self._call(stop, f"when the sandbox {number} was terminated")

    def connect(self, machine: RentedMachine) -> SandboxConnection | None:
        """Return a connection to a sandbox; null when it has ended or is ending."""
        return SandboxConnection(machine.number) if machine.stage == "up" else None

    def _check_nothing_created(self, name: str, error: MachineCannot) -> None:
        """Check that a refusal left nothing: the SDK retries, and an earlier attempt may have created a sandbox.

        Raises:
            NoAnswer: There is a sandbox, or Modal does not answer.
        """
        try:
            created = any(machine.name == name for machine in self.list_ours())
        except NoAnswer:
            raise
        except MachineCannot:
            return
        if created:
            raise NoAnswer(f"{str(error).rstrip('.')}; yet there is a sandbox of that name") from error

    def _call(
        self, make: Callable[[], Coroutine[object, object, T]], doing: str, *, within_s: float | None = None
    ) -> T:
        import logging

        import modal  # noqa: F401 - it sets its own log level on import

        logging.getLogger("modal-client").setLevel(logging.CRITICAL)  # the SDK's log stays out of our output
        try:
            return SdkCall(lambda _: make(), within_s=within_s or self._answer_within_s).result()
        except Exception as error:
            raise translate_error(error, doing) from error


def _gpu_name(gpu: str, count: int) -> str:
    """Return Modal's name of a GPU, exact and with the count."""
    name = EXACT.get(gpu, gpu)
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


HOST = RentedHost(ModalProvider())
