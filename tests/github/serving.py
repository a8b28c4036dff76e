"""The stand-in of GitHub behind a real client: in this process, or on loopback for a command of its own."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import httpx

from assay.github.api import GitHubApi
from tests.github.standin import REPOSITORY, TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.github.standin import GitHub

CUT = "the line was cut"


def api_of(github: GitHub, *, token: str = TOKEN, pauses: list[float] | None = None, now: float = 0.0) -> GitHubApi:
    """Return the real client of the stand-in; nobody waits."""

    def handle(request: httpx.Request) -> httpx.Response:
        answer = github.handle(request.method, str(request.url), dict(request.headers), request.read())
        if answer.status is None:
            raise httpx.RemoteProtocolError(CUT)
        return httpx.Response(answer.status, json=answer.content, headers=dict(answer.headers))

    kept: list[float] = [] if pauses is None else pauses
    return GitHubApi(REPOSITORY, token, pause=kept.append, now=lambda: now, transport=httpx.MockTransport(handle))


@contextmanager
def served(github: GitHub) -> Iterator[str]:
    """Give the address of the stand-in on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = github.handle(self.command, self.path, headers, body)
            if answer.status is None:
                self.close_connection = True
                return
            data = json.dumps(answer.content).encode()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = _do  # noqa: N815 - the server looks for these names

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
