"""Requests to a provider's HTTP API: one at a time, rate-limited, with typed outcomes."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from assay._version import __version__
from assay.core.errors import BadInput, MachineCannot
from assay.hosts.rented.provider import NoAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import httpx
    from pydantic import JsonValue

    from assay.hosts.rented.context import RentalClock

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
    _waited: dict[str, int] = field(default_factory=dict, repr=False)
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
            if attempt or not self._had_turn(kind):
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
            self._waited[kind] = self._waited.get(kind, 0) + 1

    def _had_turn(self, kind: str) -> bool:
        with self._lock:
            waited = self._waited.get(kind, 0)
            self._waited[kind] = max(0, waited - 1)
        return waited > 0

    def refused(self, what: str, answer: ApiResponse) -> str:
        """Return an error message on a refused request, with the provider's own."""
        return f"{self.provider} refuses {what}: {self.words(answer)} ({answer.status})."

    def words(self, answer: ApiResponse) -> str:
        """Return the provider's error message, shortened and without secrets."""
        keys = (("error", "message"), ("detail",), ("title",), ("message",))
        message = next(
            (text for path in keys if isinstance(text := answer.part(*path), str) and text), "no reason told"
        )
        return self._clean(" ".join(message.split()))[:300].rstrip(".")

    def _key(self) -> str:
        return os.environ.get(self.key_variable, "").strip()

    def _clean(self, text: str) -> str:
        key = self._key()
        return text.replace(key, "…") if key else text

    def _wait_for_turn(self, kind: str, apart_s: float) -> None:
        """Wait until the last request, and the last of this kind, are long enough ago; threads take turns."""
        from datetime import timedelta

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
            raise MachineCannot(f"{self.provider} cannot be asked: {self.missing()}.")
        if re.fullmatch(r"[!-~]+", key) is None:  # httpx would show the key in its error
            raise BadInput(f"{self.provider} cannot be asked: {self.key_variable} has strange characters.")
        headers = {"Authorization": f"Bearer {key}"}
        try:
            return self._connection().request(
                method, f"{self.base}{path}", params=params, json=content, headers=headers
            )
        except httpx.LocalProtocolError:  # its message may show a header, and so the key
            raise BadInput(f"{self.provider} cannot be asked {method} {path}: that is no request of HTTP.") from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            why = self._clean(str(error)) or type(error).__name__
            raise NoAnswer(f"{self.provider} did not answer {method} {path}: {why}") from None
        except (httpx.InvalidURL, UnicodeError):
            raise BadInput(f"{self.provider} cannot be asked: {self.url_variable} has strange characters.") from None

    def _connection(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._client is None:
                self._client = httpx.Client(
                    timeout=httpx.Timeout(ANSWER_WITHIN_S, connect=CONNECT_WITHIN_S),
                    headers={"Accept": "application/json", "User-Agent": f"assay/{__version__}"},
                    transport=self.transport,
                    follow_redirects=False,
                )
            return self._client

    def _answer(self, response: httpx.Response) -> ApiResponse:
        status = response.status_code
        if status >= 500 or status == 408:
            raise NoAnswer(f"{self.provider} is in trouble ({status})")
        if 300 <= status < 400:
            raise MachineCannot(f"{self.provider} points elsewhere ({status}), and the key is not taken there.")
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
