"""Requests to a provider's HTTP API: one at a time, rate-limited, with typed outcomes; providers that have one."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from assay._version import __version__
from assay.core.errors import BadInput, MachineCannot
from assay.hosts.rented.provider import NoAnswer, Provider, connect_by_ssh

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import httpx
    from pydantic import JsonValue

    from assay.hosts.remote.connection import SshConnection
    from assay.hosts.rented.context import RentalClock
    from assay.hosts.rented.provider import RentedMachine

CONNECT_WITHIN_S, ANSWER_WITHIN_S = 10.0, 60.0
TRIES = 6
LONGEST_WAIT_S, USUAL_WAIT_S = 120.0, 5.0
LONGEST_ANSWER_BYTES = 8 << 20
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class ApiResponse:
    """A provider's response; ``body`` is its parsed JSON, null where there is none."""

    status: int
    body: JsonValue

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.status < 300

    def part(self, *names: str) -> Any:
        """Return a value of the body by its path of keys; null where the path does not exist."""
        value: Any = self.body
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value


@dataclass
class ProviderApi:
    """The HTTP API of one account: its address and the credential's variable, neither read before it is needed."""

    provider: str
    url: str
    key_variable: str
    url_variable: str
    clock: RentalClock
    apart_s: float = 0.0
    """Shortest interval between two requests."""

    transport: httpx.BaseTransport | None = None
    """Replaces the network in tests."""

    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _next_at: dict[str, datetime] = field(default_factory=dict, repr=False)
    _waited: Counter[str] = field(default_factory=Counter, repr=False)
    """By kind, how many waits are done whose request is not sent yet."""

    _client: httpx.Client | None = field(default=None, repr=False)

    def missing(self) -> str | None:
        """Return a clause that the credential is not set; null when it is."""
        return None if self._key() else f"{self.key_variable} is not set"

    @property
    def base(self) -> str:
        """The base URL: the provider's, or the one set in the environment.

        Raises:
            BadInput: The URL would send the key unencrypted, or contains credentials.
        """
        configured = os.environ.get(self.url_variable, "").strip().rstrip("/")
        if not configured:
            return self.url
        parts = urlsplit(configured)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            raise BadInput(f"{self.url_variable}={configured} is not https; over anything else the key could be read.")
        if parts.username or parts.password:
            raise BadInput(
                f"{self.url_variable} has a name or a password in it; credentials go into {self.key_variable}."
            )
        return configured

    @property
    def identity(self) -> str:
        """An identifier of this account at this address: a hash that does not reveal the key."""
        return hashlib.sha256(f"{self.base} {self._key()}".encode()).hexdigest()[:12]

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: Mapping[str, Any] | None = None,
        kind: str = "",
        apart_s: float = 0.0,
    ) -> ApiResponse:
        """Send a request; retry only where the provider did not process it (429).

        Args:
            method: HTTP method.
            path: Path below the base URL.
            params: Query parameters.
            content: Body, sent as JSON.
            kind: Name of a rate-limited kind of request.
            apart_s: Shortest interval between two requests of this kind.

        Raises:
            NoAnswer: No answer, or a server error.
            MachineCannot: The credential is missing or not accepted.
        """
        for attempt in range(TRIES):
            with self._lock:
                has_waited = not attempt and self._waited[kind] > 0
                self._waited[kind] -= has_waited
            if not has_waited:
                self._wait_for_turn(kind, apart_s)
            response = self._send(method, path, params, content)
            if response.status_code != 429:
                return self._answer(response)
            self.clock.sleep(_retry_after_s(response.headers, self.clock.now()))
        raise NoAnswer(f"{self.provider} asks for patience again and again (429)")

    def turn(self, kind: str, apart_s: float) -> None:
        """Wait until a request of a kind may be sent; the next one of this kind is then sent at once."""
        self._wait_for_turn(kind, apart_s)
        with self._lock:
            self._waited[kind] += 1

    def refused(self, what: str, answer: ApiResponse) -> str:
        """Return an error message on a refused request, with the provider's own."""
        return f"{self.provider} refuses {what}: {self.words(answer)} ({answer.status})."

    def words(self, answer: ApiResponse) -> str:
        """Return the provider's error message, shortened and without secrets."""
        paths = (("error", "message"), ("detail",), ("title",), ("message",))
        texts = [text for path in paths if isinstance(text := answer.part(*path), str) and text]
        return self._without_key(" ".join((texts or ["no reason given"])[0].split()))[:300].rstrip(".")

    def _key(self) -> str:
        return os.environ.get(self.key_variable, "").strip()

    def _without_key(self, text: str) -> str:
        return text.replace(self._key(), "…") if self._key() else text

    def _wait_for_turn(self, kind: str, apart_s: float) -> None:
        """Wait until the last request, and the last of this kind, are long enough ago; threads take turns."""
        with self._lock:
            now = self.clock.now()
            at = max([now, *(self._next_at[name] for name in {"", kind} if name in self._next_at)])
            at = min(at, now + timedelta(seconds=LONGEST_WAIT_S))  # in case the clock was set back
            self._next_at[""] = at + timedelta(seconds=self.apart_s)
            if kind:
                self._next_at[kind] = at + timedelta(seconds=apart_s)
        if at > now:
            self.clock.sleep((at - now).total_seconds())

    def _send(
        self, method: str, path: str, params: Mapping[str, str] | None, content: Mapping[str, Any] | None
    ) -> httpx.Response:
        import httpx

        key = self._key()
        if not key:
            raise MachineCannot(f"{self.provider} cannot be queried: {self.missing()}.")
        if re.fullmatch(r"[!-~]+", key) is None:  # httpx would show the key in its error
            raise BadInput(f"{self.provider} cannot be queried: {self.key_variable} has strange characters.")
        headers = {"Authorization": f"Bearer {key}", "Accept": "application/json", "User-Agent": f"assay/{__version__}"}
        with self._lock:
            if self._client is None:
                timeout = httpx.Timeout(ANSWER_WITHIN_S, connect=CONNECT_WITHIN_S)
                self._client = httpx.Client(timeout=timeout, transport=self.transport, follow_redirects=False)
        try:
            return self._client.request(method, f"{self.base}{path}", params=params, json=content, headers=headers)
        except httpx.LocalProtocolError:  # its message may show a header, and so the key
            raise BadInput(f"{self.provider} cannot be queried: {method} {path} is not a valid HTTP request.") from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            why = self._without_key(str(error)) or type(error).__name__
            raise NoAnswer(f"{self.provider} did not answer {method} {path}: {why}") from None
        except (httpx.InvalidURL, UnicodeError):
            raise BadInput(f"{self.provider} cannot be queried: {self.url_variable} has strange characters.") from None

    def _answer(self, response: httpx.Response) -> ApiResponse:
        status = response.status_code
        if status >= 500 or status == 408:
            raise NoAnswer(f"{self.provider} is in trouble ({status})")
        if 300 <= status < 400:
            raise MachineCannot(f"{self.provider} redirects elsewhere ({status}), and the key is not sent there.")
        body: JsonValue = None
        if response.content:
            try:
                body = response.json() if len(response.content) <= LONGEST_ANSWER_BYTES else None
            except (ValueError, RecursionError):
                if 200 <= status < 300:
                    raise NoAnswer(f"{self.provider} answered with what is no JSON ({status})") from None
        answer = ApiResponse(status, body)
        if status == 401:
            raise MachineCannot(
                f"{self.provider} does not accept {self.key_variable}: {self.words(answer)}; is the key complete, "
                "and still valid?"
            )
        return answer


def _retry_after_s(headers: Mapping[str, str], now: datetime) -> float:
    """Return how long to wait before the next request, in seconds.

    A date is compared with the provider's own ``Date`` where there is one, as our clock may differ.
    """
    header = headers.get("Retry-After", "").strip()
    try:
        wait = float(header)
    except ValueError:
        try:
            date = headers.get("Date")
            wait = (parsedate_to_datetime(header) - (parsedate_to_datetime(date) if date else now)).total_seconds()
        except (TypeError, ValueError):
            wait = USUAL_WAIT_S
    return min(LONGEST_WAIT_S, max(0.1, wait)) if wait == wait else USUAL_WAIT_S  # noqa: PLR0124 - not a number


def response_rows(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list in a response; none where it is not a list."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def response_object(value: object) -> dict[str, Any]:
    """Return an object in a response; an empty one where it is not an object."""
    return value if isinstance(value, dict) else {}


class HttpProvider(Provider):
    """A provider with an HTTP API, an API key, and machines reached by ssh."""

    keyed = True
    noun: str
    """What the provider calls a machine."""

    keys_url: str

    def __init__(self, api: ProviderApi) -> None:
        self._api = api

    def missing(self) -> str | None:
        """Return a clause that the key is not set; null when it is."""
        why = self._api.missing()
        return None if why is None else f"{why}; create a key at {self.keys_url} and export it"

    def account(self) -> str:
        """Return an identifier of this account."""
        return self._api.identity

    def connect(self, machine: RentedMachine) -> SshConnection | None:
        """Return a connection to a machine; null while it has no address."""
        return connect_by_ssh(machine, f"{self._api.provider} {self.noun} {machine.number}")

    def _get(self, what: str, path: str, params: dict[str, str] | None = None) -> ApiResponse:
        """Return what is at a path; ``what`` describes it in the error for a refusal."""
        answer = self._api.ask("GET", path, params=params)
        if not answer.ok:
            raise self._refusal(answer, what)
        return answer

    def _find(self, path: str, number: str) -> ApiResponse | None:
        """Return what is at a machine's path; null when the provider does not know the machine."""
        answer = self._api.ask("GET", path)
        if answer.status == 404:
            return None
        if not answer.ok:
            raise MachineCannot(self._api.refused(f"the state of {self.noun} {number}", answer))
        return answer

    def _remove(self, what: str, method: str, path: str, content: Mapping[str, Any] | None = None) -> None:
        """Request a removal; what is gone already is not an error."""
        answer = self._api.ask(method, path, content=content)
        if not answer.ok and answer.status != 404:
            raise MachineCannot(self._api.refused(f"to end {what}", answer))

    def _refusal(self, answer: ApiResponse, what: str) -> MachineCannot:
        """Return the error for a refused query."""
        return MachineCannot(self._api.refused(what, answer))
