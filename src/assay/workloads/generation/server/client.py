"""Questions to a server before a load: what it serves, and one request at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from assay.core.errors import MachineCannot
from assay.workloads.generation.server import faults
from assay.workloads.generation.server.arrivals import Answer, Arrivals, Scale
from assay.workloads.generation.server.stream import DONE, Events, read

if TYPE_CHECKING:
    import ssl

    import httpx

    from assay.workloads.generation.server.endpoint import Endpoint
    from assay.workloads.generation.server.form import Form

LONGEST_ERROR = 64 << 10
NOT_OPENAI = "answers with what is no JSON, and does not speak OpenAI's protocol; is the address right?"


@dataclass(frozen=True)
class Model:
    """A model that a server lists; the longest text it reads and writes, and who owns it, where it says so."""

    name: str
    context_tokens: int | None = None
    owner: str = ""


@dataclass(frozen=True)
class Reply:
    """What a request brought: an answer, or a refusal with what was said."""

    status: int
    said: str = ""
    answer: Answer | None = None


class Client:
    """Asks a server, straight and without a proxy; whatever goes wrong on the way is one sentence."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        import httpx

        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._http = httpx.Client(
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, faults.CONNECT_WITHIN_S)),
            headers=endpoint.headers,
            verify=tls_context() if endpoint.tls else False,
            limits=httpx.Limits(max_keepalive_connections=0),  # a server may close one after a failure of its own
            follow_redirects=False,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._http.close()

    def models(self) -> tuple[Model, ...] | None:
        """Return the models that the server lists; none where it does not list any, null where the path is not known.

        Raises:
            MachineCannot: It is not there, lets us not in, or speaks something else.
        """
        response = self._get(f"{self.endpoint.url}/models")
        status, text = response.status_code, response.text[:LONGEST_ERROR]
        if status in {404, 405}:
            return None
        if status in {401, 403} or 300 <= status < 400:
            raise self.cannot(faults.of_status(status, text or response.headers.get("location", ""), self.endpoint))
        if faults.is_web_page(text) or (status == 200 and _json(response) is None):
            raise self.cannot(NOT_OPENAI)
        return _models(_json(response)) if status == 200 else ()

    def version(self) -> str:
        """Return the program that serves and its version, as far as it tells."""
        response = self._get(f"{self.endpoint.root}/version")
        body = _json(response)
        version = body.get("version") if isinstance(body, dict) and response.status_code == 200 else None
        return version if isinstance(version, str) else ""

    def ask(self, form: Form, prompt: str, tokens: int) -> Reply:
        """Ask for one answer and wait for its end.

        Raises:
            MachineCannot: The server is not there, stalls, breaks off, or answers with what is no answer.
        """
        import httpx

        body = form.body(prompt, tokens)
        answer = Answer(time.perf_counter_ns(), tokens, Scale())
        try:
            with self._http.stream("POST", f"{self.endpoint.url}{form.path}", json=body) as response:
                if response.status_code != 200:
                    return Reply(response.status_code, self._text(response))
                self._streams(response)
                ended = self._hear(response, answer)
        except httpx.ReadTimeout:
            raise self.cannot(f"{faults.silent(self.timeout_s)}; does it load a model?") from None
        except httpx.TransportError as error:
            raise self.cannot(faults.of_connection(error)) from None
        if answer.empty:
            raise self.cannot("answered without a token" if ended else "ended an answer before its first token")
        if not ended and answer.finish is None:
            raise self.cannot(faults.CLOSED)
        return Reply(200, answer=answer)

    def cannot(self, clause: str) -> MachineCannot:
        """Return an error that says of this server what is wrong."""
        end = "" if clause.endswith("?") else "."
        return MachineCannot(f"The server at {self.endpoint.url} {self.endpoint.clean(clause)}{end}")

    def _streams(self, response: httpx.Response) -> None:
        """Make sure that an answer comes as a stream."""
        kind = response.headers.get("content-type", "")
        if "html" in kind:
            raise self.cannot(NOT_OPENAI)
        if "json" in kind:
            raise self.cannot(f"does not stream its answers: {faults.message(self._text(response))}")

    def _hear(self, response: httpx.Response, answer: Answer) -> bool:
        """Take in an answer; return whether the server said that it was its end."""
        events, into, late_s = Events(), Arrivals(), time.monotonic() + self.timeout_s
        for piece in response.iter_raw():
            if time.monotonic() > late_s:
                raise self.cannot(faults.silent(self.timeout_s))
            for data in events.feed(piece):
                late_s = time.monotonic() + self.timeout_s
                if data == DONE:
                    return True
                chunk = read(data)
                if chunk.error is not None:
                    raise self.cannot(f"broke an answer off with {chunk.error!r}")
                answer.heard(time.perf_counter_ns(), chunk, into)
        return False

    def _get(self, url: str) -> httpx.Response:
        import httpx

        try:
            return self._http.get(url)
        except httpx.ReadTimeout:
            raise self.cannot(f"did not answer within {self.timeout_s:g} s (backend.request_timeout_s)") from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise self.cannot(faults.of_connection(error)) from None

    @staticmethod
    def _text(response: httpx.Response) -> str:
        text = b""
        for piece in response.iter_raw():
            text += piece
            if len(text) > LONGEST_ERROR:
                break
        return text.decode(errors="replace")


def tls_context() -> ssl.SSLContext:
    """Return whom we trust, as the environment has it."""
    import httpx

    return httpx.create_ssl_context()


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _models(told: Any) -> tuple[Model, ...]:
    rows = told.get("data") if isinstance(told, dict) else None
    entries = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return tuple(
        Model(
            row["id"],
            context if isinstance(context := row.get("max_model_len"), int) else None,
            owner if isinstance(owner := row.get("owned_by"), str) else "",
        )
        for row in entries
        if isinstance(row.get("id"), str)
    )
