"""The server's address, the API key (sent in one header and nowhere else), and descriptions of what a server did wrong.

The descriptions follow "The server at http://… ".
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from assay._version import __version__
from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.workloads.generation.params import Generation


_API_PATHS = ("/chat/completions", "/completions", "/models")
_API_VERSION = re.compile(r"/v\d\w*$")
_LOOPBACK_HOSTS = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class ServerEndpoint:
    """A candidate URL of a server, with the API version: ``http://127.0.0.1:8000/v1``."""

    url: str
    key_variable: str = ""
    key: str = field(default="", repr=False)

    @property
    def tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.url.startswith("https:")

    @property
    def host(self) -> str:
        """The name or address of the machine."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The port, explicit or default."""
        return urlsplit(self.url).port or (443 if self.tls else 80)

    @property
    def path(self) -> str:
        """The path before ``/chat/completions``."""
        return urlsplit(self.url).path

    @property
    def authority(self) -> str:
        """Host and port as in the URL."""
        return urlsplit(self.url).netloc

    @property
    def root(self) -> str:
        """The URL without its version."""
        return _API_VERSION.sub("", self.url)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request, the API key among them."""
        headers = {"User-Agent": f"assay/{__version__}", "Accept-Encoding": "identity"}
        return {**headers, "Authorization": f"Bearer {self.key}"} if self.key else headers

    @property
    def sends_key_unencrypted(self) -> bool:
        """Whether the API key is sent unencrypted over a network."""
        return bool(self.key) and not self.tls and self.host not in _LOOPBACK_HOSTS

    def redact(self, text: str) -> str:
        """Return a server's text with the API key removed, in case it repeats it."""
        return text.replace(self.key, "…") if self.key else text


def candidate_urls(address: str) -> tuple[str, ...]:
    """Return the candidate URLs for an address with or without its version, the likeliest first.

    Raises:
        BadInput: It is not a URL of a server, or has a password in it.
    """
    text = address.strip()
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or not text.isascii() or any(sign.isspace() for sign in text) or parts.query or parts.fragment:
        raise BadInput(f"backend.endpoint: {address!r} is no address of a server, as http://127.0.0.1:8000/v1 is one.")
    if parts.username is not None or parts.password is not None:
        raise BadInput("backend.endpoint has a name or a password in it; backend.api_key_env names where the key is.")
    text = text.rstrip("/")
    for path in _API_PATHS:
        text = text.removesuffix(path)
    return (text,) if _API_VERSION.search(urlsplit(text).path) else (f"{text}/v1", text)


def candidate_endpoints(generation: Generation) -> tuple[ServerEndpoint, ...]:
    """Return the candidate endpoints of a generation's server, each with its API key.

    Raises:
        BadInput: The address is not valid, or the key has characters that are not allowed in a header.
        MachineCannot: The key's variable is not set.
    """
    variable = generation.api_key_env
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise MachineCannot(f"The server cannot be asked: {variable}, which should hold its key, is not set.")
    if key and re.fullmatch(r"[!-~]+", key) is None:
        raise BadInput(f"The server cannot be asked: {variable} has characters that no key has.")
    return tuple(ServerEndpoint(url, variable, key) for url in candidate_urls(generation.endpoint))


CONNECT_WITHIN_S = 10.0
_MAX_LENGTH = 200
_NO_TLS_MARKS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING")


def connection_fault(error: BaseException) -> str:
    """Return why a connection failed or broke; works on the errors of sockets, TLS and httpx."""
    causes = list(_error_causes(error))
    tls = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    if tls is not None:
        return _tls_fault(tls)
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return "is not there: nobody listens on that port (connection refused); is it started, and the port right?"
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return "is not known by that name; is the address right?"
    if any(isinstance(cause, TimeoutError) or type(cause).__name__ == "ConnectTimeout" for cause in causes):
        return f"did not take a connection within {CONNECT_WITHIN_S:g} s"
    if any(isinstance(cause, ConnectionError) or "isconnected" in str(cause) for cause in causes):
        return CLOSED_EARLY
    return f"cannot be spoken with: {_one_line(str(error)) or type(error).__name__}"


CLOSED_EARLY = "closed the connection in the middle of an answer"


def silence_fault(timeout_s: float) -> str:
    """Return that no part of an answer came within the timeout, though keep-alive lines may have."""
    return f"sent nothing of an answer for {timeout_s:g} s (backend.request_timeout_s)"


def status_fault(status: int, body: str, endpoint: ServerEndpoint) -> str:
    """Return the meaning of a status other than 200; ``body`` is the response's body."""
    reason = f"{status}: {error_message(body)}" if error_message(body) else str(status)
    if status in {401, 403}:
        hint = f"is the key in {endpoint.key_variable} right?" if endpoint.key_variable else "does it want a key?"
        return endpoint.redact(f"does not let us in ({reason}); {hint} backend.api_key_env names the variable of it")
    if status >= 500:
        return endpoint.redact(f"is in trouble ({reason})")
    if 300 <= status < 400:
        return endpoint.redact(f"points elsewhere ({reason}); give the address that it points to")
    return endpoint.redact(f"refuses the request ({reason})")


def error_message(body: str) -> str:
    """Return the first line of a server's error message: in OpenAI's format, another one, or plain text."""
    if is_web_page(body):
        return "a web page"
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return _one_line(body)
    return _one_line(message_in_error(parsed) or body)


def message_in_error(body: Any) -> str | None:
    """Return the message of an error object, or null where there is none."""
    if not isinstance(body, dict):
        return None
    error = body.get("error", body if body.get("object") == "error" else None)
    texts = (error, error.get("message") if isinstance(error, dict) else None, body.get("detail"))
    text = next((candidate for candidate in texts if isinstance(candidate, str) and candidate), None)
    if text is not None:
        return text
    for rest in (error, body.get("detail")):
        if rest:
            return json.dumps(rest)
    message = body.get("message")
    return message if isinstance(message, str) and "choices" not in body else None


def is_web_page(body: str) -> bool:
    """Return whether a response is an HTML page."""
    return body.lstrip()[:15].lower().startswith(("<!doctype", "<html"))


def _tls_fault(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted here: {_one_line(error.verify_message)}"
    reason = getattr(error, "reason", None) or str(error)
    if any(sign in reason for sign in _NO_TLS_MARKS):
        return "does not speak TLS on that port; is its address http:// and not https://?"
    return f"could not agree on TLS with us: {_one_line(reason)}"


def _error_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its chain of causes and contexts."""
    visited: list[BaseException] = []
    while error is not None and error not in visited:
        visited.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _one_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_MAX_LENGTH].rstrip(".") if lines else ""
