"""What a server did wrong, in words that follow "The server at http://… "."""

from __future__ import annotations

import json
import socket
import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.workloads.generation.server.endpoint import Endpoint

CONNECT_WITHIN_S = 10.0
_LONGEST = 200
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING")


def of_connection(error: BaseException) -> str:
    """Return why no connection came about, or what broke it, whoever noticed it."""
    causes = list(_causes(error))
    tls = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    if tls is not None:
        return _of_tls(tls)
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return "is not there: nobody listens on that port (connection refused); is it started, and the port right?"
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return "is not known by that name; is the address right?"
    if any(isinstance(cause, TimeoutError) or type(cause).__name__ == "ConnectTimeout" for cause in causes):
        return f"did not take a connection within {CONNECT_WITHIN_S:g} s"
    if any(isinstance(cause, ConnectionError) or "isconnected" in str(cause) for cause in causes):
        return CLOSED
    return f"cannot be spoken with: {_line(str(error)) or type(error).__name__}"


CLOSED = "closed the connection in the middle of an answer"


def silent(timeout_s: float) -> str:
    """Return that no part of an answer came for so long, though signs of life may have."""
    return f"sent nothing of an answer for {timeout_s:g} s (backend.request_timeout_s)"


def of_status(status: int, said: str, endpoint: Endpoint) -> str:
    """Return what an answer other than 200 means; ``said`` is its body."""
    words = f"{status}: {message(said)}" if message(said) else str(status)
    if status in {401, 403}:
        hint = f"is the key in {endpoint.key_variable} right?" if endpoint.key_variable else "does it want a key?"
        return endpoint.clean(f"does not let us in ({words}); {hint} backend.api_key_env names the variable of it")
    if status >= 500:
        return endpoint.clean(f"is in trouble ({words})")
    if 300 <= status < 400:
        return endpoint.clean(f"points elsewhere ({words}); give the address that it points to")
    return endpoint.clean(f"refuses the request ({words})")


def message(said: str) -> str:
    """Return the first line of what a server says of an error: in OpenAI's form, another's, or plain text."""
    if is_web_page(said):
        return "a web page"
    try:
        parsed = json.loads(said)
    except (ValueError, RecursionError):
        return _line(said)
    return _line(in_error(parsed) or said)


def in_error(found: Any) -> str | None:
    """Return the message of an error object, or null where there is none."""
    if not isinstance(found, dict):
        return None
    error = found.get("error", found if found.get("object") == "error" else None)
    texts = (error, error.get("message") if isinstance(error, dict) else None, found.get("detail"))
    text = next((candidate for candidate in texts if isinstance(candidate, str) and candidate), None)
    if text is not None:
        return text
    for rest in (error, found.get("detail")):
        if rest:
            return json.dumps(rest)
    message = found.get("message")
    return message if isinstance(message, str) and "choices" not in found else None


def is_web_page(said: str) -> bool:
    """Return whether an answer is for a browser."""
    return said.lstrip()[:15].lower().startswith(("<!doctype", "<html"))


def _of_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted here: {_line(error.verify_message)}"
    reason = getattr(error, "reason", None) or str(error)
    if any(sign in reason for sign in _NOT_TLS):
        return "does not speak TLS on that port; is its address http:// and not https://?"
    return f"could not agree on TLS with us: {_line(reason)}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Return an error and what it came from, also where one hid the other."""
    visited: list[BaseException] = []
    while error is not None and error not in visited:
        visited.append(error)
        yield error
        error = error.__cause__ or error.__context__


def _line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_LONGEST].rstrip(".") if lines else ""
