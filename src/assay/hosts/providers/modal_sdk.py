"""Modal's SDK: whether it and a token are available, and what its errors mean.

Also calls to it, with a timeout, in a thread of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import re
import tomllib
from concurrent.futures import CancelledError, Future
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import urlsplit

from assay.core.errors import AssayError, MachineCannot
from assay.hosts.rented.provider import NoAnswer, NoCapacity

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


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


def _reason_not_encrypted() -> str | None:
    """Return a clause that the token would be sent unencrypted; null when it would not."""
    server_url = os.environ.get("MODAL_SERVER_URL") or ""
    for url in filter(None, server_url.split(",")):
        parts = urlsplit(url.strip())
        if parts.scheme not in {"https", "unix"} and parts.hostname not in _LOOPBACK:
            return f"MODAL_SERVER_URL={url} is not https, and over anything else the token could be read"
    return None


def is_fake_server() -> bool:
    """Return whether Modal's address is on this machine: then a fake of Modal answers."""
    server_url = os.environ.get("MODAL_SERVER_URL") or ""
    return any(urlsplit(url.strip()).hostname in _LOOPBACK for url in server_url.split(","))


def account_hash() -> str:
    """Return an identifier of the account in use: a hash that does not reveal the token."""
    settings = _settings()
    identifying = (os.environ.get("MODAL_SERVER_URL", ""), *(settings.get(name, "") for name in _NAMES))
    return hashlib.sha256("\n".join(identifying).encode()).hexdigest()[:12]


def without_secrets(text: str) -> str:
    """Return a text without the credentials and without anything that looks like a Modal token."""
    for value in _settings().values():
        text = text.replace(value, "…")
    return _TOKENS.sub("…", text)


def _settings() -> dict[str, str]:
    """Return the credentials by variable name; the environment takes precedence over the file."""
    profile = _profile()
    settings = {name: os.environ.get(f"MODAL_{name}") or profile.get(name.lower()) for name in _NAMES}
    return {name: str(value) for name, value in settings.items() if value}


def _file() -> Path:
    return Path(os.environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")


def _profile() -> dict[str, object]:
    """Return the settings of the profile that the SDK would use; none when there is no file."""
    if not _file().exists():
        return {}
    profiles = {name: values for name, values in tomllib.loads(_file().read_text()).items() if isinstance(values, dict)}
    active = next((name for name, values in profiles.items() if values.get("active") is True), "default")
    return profiles.get(os.environ.get("MODAL_PROFILE") or active, {})


_LONGEST = 300


def translate_error(error: Exception, doing: str) -> AssayError:
    """Return the error to raise in place of an error of the SDK.

    ``doing`` is a clause: "when a sandbox was asked for". An error that is not a known refusal becomes `NoAnswer`, as
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

    return (
        (sdk.AuthError, MachineCannot, f"Modal does not accept the credentials: {{said}}; {GET_ONE}."),
        (
            sdk.PermissionDeniedError,
            MachineCannot,
            "Modal does not allow it {doing}: {said}; has the workspace a payment method?",
        ),
        (sdk.ResourceExhaustedError, NoCapacity, "Modal has no such machine free now: {said}."),
        (
            sdk.ResourceExhaustedError,
            MachineCannot,
            "A quota, spending or rate limit at Modal was reached {doing}: {said}; see the workspace's usage page.",
        ),
        (
            sdk.ImageBuildError,
            MachineCannot,
            "Modal could not build the image {doing}: {said}; name another with --image.",
        ),
        (sdk.AlreadyExistsError, NoAnswer, "Modal has a sandbox of that name already: {said}"),
        (
            (sdk.VersionError, sdk.UnimplementedError),
            MachineCannot,
            "Modal does not serve this version of its SDK {doing}: {said}; update the package modal.",
        ),
        (sdk.ConflictError, MachineCannot, "The sandbox at Modal ended by itself {doing}: {said}."),
        ((sdk.InvalidError, sdk.NotFoundError), MachineCannot, "Modal refuses what was asked {doing}: {said}."),
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
            self._cancel()
            raise
        finally:
            self._thread.join()
        return self._done.result()

    def _cancel(self) -> None:
        with contextlib.suppress(CancelledError, RuntimeError):  # it never started, or has just ended by itself
            loop, task = self._started.result()
            loop.call_soon_threadsafe(task.cancel)

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


def call_sdk(make: Callable[[], Coroutine[object, object, T]], *, within_s: float) -> T:
    """Return the result of one call.

    Raises:
        TimeoutError: It did not come in time.
    """
    return SdkCall(lambda _: make(), within_s=within_s).result()
