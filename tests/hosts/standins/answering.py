"""A stand-in's answers, each request and each answer held against the OpenAPI description; faults in between."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from functools import cache, lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import httpx
from openapi_core import Config, OpenAPI
from openapi_core.exceptions import OpenAPIError
from openapi_core.testing import MockRequest, MockResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.hosts.standins.cloud import Cloud

FOLDER = Path(__file__).parent


class BadRequest(AssertionError):
    """A request, or an answer, that the description does not allow."""


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int
    said: Any = None
    kind: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def body(self) -> bytes:
        return b"" if self.said is None else json.dumps(self.said).encode()


class Service(Protocol):
    """A provider's API over a cloud."""

    cloud: Cloud
    description: str
    base: str

    def answer(self, method: str, path: str, query: dict[str, str], content: Any) -> Reply: ...

    def error(self, status: int, words: str) -> Reply: ...


@cache
def _api(description: str) -> OpenAPI:
    config = Config(extra_media_type_deserializers={"application/problem+json": json.loads})
    return OpenAPI.from_file_path(str(FOLDER / description), config=config)


@lru_cache(maxsize=4096)
def checked(
    description: str, method: str, path: str, query: str, body: bytes, status: int, kind: str, said: bytes
) -> None:
    """Hold a request and its answer against the description; the same ones need no second look."""
    sent = MockRequest(
        "http://localhost", method, path, args=dict(parse_qsl(query)), data=body, headers={"Authorization": "Bearer x"}
    )
    try:
        _api(description).validate_request(sent)
        _api(description).validate_response(sent, MockResponse(said, status_code=status, content_type=kind))
    except OpenAPIError as error:
        raise BadRequest(f"{method} {path}: {error} {error.__cause__ or ''} {body!r} {said!r}") from error


def answered(service: Service, method: str, target: str, headers: Any, body: bytes) -> Reply:
    """Return the answer to a request, checked."""
    parts = urlsplit(target)
    service.cloud.requests.append(f"{method} {parts.path}")
    service.cloud.told.append(target.encode() + b" " + body)
    path = parts.path.removeprefix(service.base)
    asked = f"{method} {path}"
    refused = next((why for start, why in service.cloud.refuses.items() if asked.startswith(start)), None)
    if headers.get("Authorization") != f"Bearer {service.cloud.key}":
        reply = service.error(401, "the key is not valid")
    elif refused is not None:
        reply = service.error(*refused)
    else:
        reply = service.answer(method, path, dict(parse_qsl(parts.query)), json.loads(body) if body else None)
    checked(service.description, method, parts.path, parts.query, body, reply.status, reply.kind, reply.body)
    return reply


TROUBLE = Reply(503, {"title": "out of order", "status": 503})
TOO_MANY = Reply(429, {"title": "slow down", "status": 429}, headers=(("Retry-After", "2"),))
GARBAGE = Reply(200, None)


def in_process(service: Service, hook: Callable[[str], None] = lambda when: None) -> httpx.MockTransport:
    """Return a transport that reaches the stand-in without a network; ``hook`` is called around each request."""

    def handle(request: httpx.Request) -> httpx.Response:
        target, method = request.url.raw_path.decode(), request.method
        fault = service.cloud.faults(method, urlsplit(target).path.removeprefix(service.base))
        hook("before")
        if fault == "drop_before":
            raise httpx.ConnectError("refused", request=request)
        if fault in {"trouble_before", "too_many"}:
            return _response(TROUBLE if fault == "trouble_before" else TOO_MANY)
        reply = answered(service, method, target, request.headers, request.content)
        hook("after")
        if fault == "drop_after":
            raise httpx.ReadTimeout("timed out", request=request)
        if fault == "trouble_after":
            return _response(TROUBLE)
        if fault == "garbage":
            return httpx.Response(200, content=b"<html>")
        return _response(reply)

    return httpx.MockTransport(handle)


def _response(reply: Reply) -> httpx.Response:
    return httpx.Response(reply.status, headers={"Content-Type": reply.kind, **dict(reply.headers)}, content=reply.body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that were killed while they spoke."""


class Served:
    """The stand-in as an HTTP server on loopback, for processes that are really killed."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with outer._lock:
                    path = urlsplit(self.path).path.removeprefix(service.base)
                    fault = service.cloud.faults(self.command, path)
                    reply = TROUBLE if fault == "trouble_before" else TOO_MANY
                    if fault not in {"trouble_before", "too_many", "drop_before"}:
                        try:
                            reply = answered(service, self.command, self.path, self.headers, body)
                        except BadRequest as error:
                            outer.wrong.append(str(error))
                            reply = service.error(422, str(error))
                if fault in {"drop_before", "drop_after"}:
                    self.close_connection = True
                    return
                self.send_response(503 if fault == "trouble_after" else reply.status)
                self.send_header("Content-Type", reply.kind)
                self.send_header("Content-Length", str(len(reply.body)))
                for name, value in reply.headers:
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 - the names that http.server calls

            def log_message(self, *args: object) -> None:
                pass

        self.wrong: list[str] = []
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.service.base}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
