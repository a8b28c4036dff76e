"""A small server that speaks OpenAI's protocol, and does what a test tells it, request by request."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from assay.workloads.generation.params import Generation

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from assay.workloads.base import PreparedWorkload

AROUND = 7
"""Tokens of the chat template."""


class Talk:
    """One request, and all that the server may do with it."""

    def __init__(self, handler: Handler, number: int, body: dict[str, Any]) -> None:
        self.number = number
        self.path = handler.path
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        self.body = body
        self.tokens_sent = 0
        self.chunks_sent = 0
        self.before = handler.answered
        """How many requests of a load came before it on the same connection."""
        self._handler = handler
        self._server = handler.fake
        self._started = False

    @property
    def of_load(self) -> bool:
        """Whether it is of the load, and not of the meeting before it."""
        return self.headers.get("accept") == "text/event-stream"

    @property
    def asked(self) -> int:
        """Tokens of the answer that is asked for."""
        return int(self.body.get("max_tokens") or self.body["max_completion_tokens"])

    @property
    def prompt(self) -> str:
        return str(self.body["messages"][0]["content"] if "messages" in self.body else self.body["prompt"])

    @property
    def prompt_tokens(self) -> int:
        return AROUND + round(self._server.per_word * len(self.prompt.split()))

    def start(self, status: int = 200, kind: str = "text/event-stream", *, length: int | None = None) -> None:
        self._handler.send_response(status)
        self._handler.send_header("Content-Type", kind)
        if length is None:
            self._handler.send_header("Transfer-Encoding", "chunked")
        else:
            self._handler.send_header("Content-Length", str(length))
        self._handler.end_headers()
        self._started = True

    def refuse(self, status: int, said: object, kind: str = "application/json") -> None:
        body = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        self.start(status, kind, length=len(body))
        self._handler.wfile.write(body)

    def line(self, text: str) -> None:
        """Send a line of the stream, in an HTTP chunk of its own."""
        if not self._started:
            self.start()
        data = f"{text}\n\n".encode()
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def raw(self, data: bytes) -> None:
        self._handler.wfile.write(data)
        self._handler.wfile.flush()

    def event(self, **said: object) -> None:
        told = {"id": "x", "object": "chat.completion.chunk", "model": self._server.served(self.body["model"]), **said}
        self.line(f"data: {json.dumps(told)}")

    def role(self) -> None:
        self.event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def token(self, text: str = "tok ", tokens: int = 1, **more: object) -> None:
        self.tokens_sent += tokens
        self.chunks_sent += 1
        self._server.count(tokens)
        delta = {"text": text} if self.path.endswith("/v1/completions") else {"delta": {"content": text}}
        self.event(choices=[{"index": 0, **delta, "finish_reason": None}], **more)

    def finish(self, reason: str = "length") -> None:
        self.event(choices=[{"index": 0, "delta": {}, "finish_reason": reason}])

    @property
    def usage(self) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens_sent}}

    def done(self) -> None:
        self.line("data: [DONE]")
        self.raw(b"0\r\n\r\n")

    def whole(self, tokens: int | None = None) -> None:
        """Answer as a good server does."""
        self.role()
        for _ in range(self.asked if tokens is None else tokens):
            self.token()
        self.finish("length" if tokens is None else "stop")
        if self.body.get("stream_options"):
            self.event(choices=[], **self.usage)
        self.done()

    def hold(self, gate: threading.Event | None) -> None:
        """Wait until a gate is open, or the server closes."""
        while not self._server.closing.is_set():
            if gate is None or gate.wait(0.01):
                return
        raise ConnectionAbortedError

    def pause(self, seconds: float) -> None:
        """Let time pass; the server's closing ends it."""
        self._server.closing.wait(seconds)

    def drop(self) -> None:
        """Close the connection now."""
        raise ConnectionAbortedError


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fake: FakeServer
    answered = 0

    def do_GET(self) -> None:
        self.fake.paths.append(self.path)
        talk = Talk(self, -1, {})
        if self.path == "/v1/models" and self.fake.models is not None:
            self.fake.models(talk)
        else:
            talk.refuse(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        talk = self.fake.heard(self, body)
        self.answered += talk.of_load
        try:
            self.fake.answer(talk)
        except (ConnectionError, OSError):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None: ...


class FakeServer(ThreadingHTTPServer):
    """Answers each request by ``answer``, which a test may change at any time."""

    daemon_threads = True
    block_on_close = True
    request_queue_size = 128

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        handler = type("OurHandler", (Handler,), {"fake": self})
        super().__init__(("127.0.0.1", 0), handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.scheme = "http" if tls is None else "https"
        self.answer: Callable[[Talk], None] = Talk.whole
        self.models: Callable[[Talk], None] | None = lists("tiny")
        self.served: Callable[[str], str] = str
        self.per_word = 1.0
        self.closing = threading.Event()
        self.requests: list[Talk] = []
        self.paths: list[str] = []
        self.tokens = 0
        self.connections = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"

    @property
    def open_connections(self) -> int:
        with self._lock:
            return len(self._open)

    def heard(self, handler: Handler, body: dict[str, Any]) -> Talk:
        with self._lock:
            talk = Talk(handler, len(self.requests), body)
            self.requests.append(talk)
            return talk

    def count(self, tokens: int) -> None:
        with self._lock:
            self.tokens += tokens

    def generation(self, **changes: Any) -> Generation:
        """What a worker is told that should ask this server; small, unless changed."""
        told = {"model": "tiny", "phase": "served", "endpoint": self.url, "input_tokens": 24, "output_tokens": 4}
        return Generation.model_validate({**told, "request_timeout_s": 20.0, **changes})

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
            self.connections += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        with self._lock:
            left = list(self._open)
        for each in left:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()
        self._thread.join()


def lists(*names: str, **more: object) -> Callable[[Talk], None]:
    """List models by their names."""
    rows = [{"id": name, "object": "model", "owned_by": "someone", **more} for name in names]
    return lambda talk: talk.refuse(200, {"object": "list", "data": rows})


@contextlib.contextmanager
def under_load(server: FakeServer) -> Iterator[Callable[..., PreparedWorkload]]:
    """Give what puts a server under its load; every load ends with the block, and nothing of it is left."""
    from assay.workloads.generation.workloads import GENERATE_OPENAI

    begun: list[PreparedWorkload] = []

    def prepare(**changes: Any) -> PreparedWorkload:
        params = server.generation(**changes).as_params()
        begun.append(GENERATE_OPENAI.prepare(params, None, device="cpu:0", seed=1))
        return begun[-1]

    yield prepare
    for each in begun:
        each.close()
    assert "assay-load" not in {thread.name for thread in threading.enumerate()}
