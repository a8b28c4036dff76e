"""An HTTP/1.1 connection with timestamps, and the server-sent events of a streamed answer.

Bytes are timestamped when they are read from the socket, and parsed later: when many streams have data at once, all of
them are timestamped before the first is parsed. In a test, a general client (httpx) took 150 µs of a core per chunk and
could not keep up with 64 streams of 125 tokens a second: it would have measured itself. This client takes 55 µs, and
keeps up with half a core.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.workloads.generation.server import protocol
from assay.workloads.generation.server.protocol import message_in_error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from assay.workloads.base import StageExtras
    from assay.workloads.generation.server.protocol import ServerEndpoint

StampedBytes = tuple[int, bytes]  # when bytes came, in nanoseconds of the performance counter, and the bytes


class ConnectionFault(Exception):
    """A fault of a server, as a clause."""


class StreamClosed(Exception):
    """The server has closed the connection, and all its data has been read."""


class StampedConnection(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self) -> None:
        self.last_activity_ns = time.perf_counter_ns()
        """When a request was sent, or a part of its answer came; the reader of answers updates it."""
        self._loop = asyncio.get_running_loop()
        self._closed = self._loop.create_future()
        self._pending: list[StampedBytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._fault: str | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; asyncio calls this."""
        self._transport = transport  # type: ignore[assignment]  # a stream's transport can be read and written

    def data_received(self, data: bytes) -> None:
        """Timestamp the data; asyncio calls this."""
        self._pending.append((time.perf_counter_ns(), data))
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Record the end; asyncio calls this."""
        if error is not None:
            self._fault = self._fault or protocol.connection_fault(error)
        self._closed.set_result(None)
        self._wake()

    @property
    def is_open(self) -> bool:
        """Whether a request can still be sent."""
        return self._transport is not None and not self._transport.is_closing() and not self._closed.done()

    def send(self, request: bytes) -> None:
        """Send a request."""
        if self._transport is not None:
            self.last_activity_ns = time.perf_counter_ns()
            self._transport.write(request)

    async def pieces(self) -> list[StampedBytes]:
        """Wait for data, and return all that came.

        Raises:
            ConnectionFault: The connection was aborted, or broke.
            StreamClosed: The server closed it, as it may after an answer.
        """
        if not self._pending and not self._closed.done() and self._fault is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._pending:
            pending, self._pending = self._pending, []
            return pending
        if self._fault is not None:
            raise ConnectionFault(self._fault)
        raise StreamClosed

    def fail(self, clause: str) -> None:
        """Make the reader raise this fault."""
        self._fault = clause
        self._wake()

    async def abort(self) -> None:
        """Abort the connection, and return once it is closed."""
        if self._transport is not None:
            self._transport.abort()
            await self._closed

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def open_connection(endpoint: ServerEndpoint, tls: ssl.SSLContext | None) -> StampedConnection:
    """Return a connection to a server, or raise a ``ConnectionFault``."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(protocol.CONNECT_WITHIN_S):
            _, connection = await loop.create_connection(StampedConnection, endpoint.host, endpoint.port, ssl=tls)
    except OSError as error:
        raise ConnectionFault(protocol.connection_fault(error)) from None
    return connection


_MAX_HEAD = 64 << 10


class NotHttpError(Exception):
    """The data is not an HTTP/1.1 response; the message is a clause."""


def request_head(endpoint: ServerEndpoint, path: str) -> bytes:
    """Return a request to a path of the server up to the value of its Content-Length."""
    headers = {"Host": endpoint.parts.netloc, **endpoint.headers, "Accept": "text/event-stream"}
    lines = [f"POST {endpoint.parts.path}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Content-Type: application/json", "Content-Length: "]).encode("ascii")


def make_request(start: bytes, body: bytes) -> bytes:
    """Return a complete request."""
    return b"%b%d\r\n\r\n%b" % (start, len(body), body)


class HttpReader:
    """Parses one response: its status, its headers in lower case, and its body as it comes."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = False
        self._rest = b""
        self._left: int | None = None
        """Remaining bytes of a body with a Content-Length; null: not known."""
        self._chunked = False

    @property
    def keeps_open(self) -> bool:
        """Whether another request may follow on the same connection."""
        ends = self._chunked or self._left is not None
        return self.done and ends and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the body in new data.

        Raises:
            NotHttpError: The data is not valid HTTP/1.1.
        """
        self._rest += data
        while not self.status:
            if not self._read_head():
                return b""
        if self.done:
            return b""
        return self._chunks() if self._chunked else self._plain()

    def closed(self) -> bool:
        """Signal the end of the connection; return whether the response is complete."""
        if self.status and not self._chunked and self._left is None:
            self.done = True
        return self.done

    def _read_head(self) -> bool:
        """Parse the status and the headers once complete; skip interim (1xx) responses."""
        end = self._rest.find(b"\r\n\r\n")
        if end < 0:
            if len(self._rest) > _MAX_HEAD or (self._rest and not b"HTTP/1.".startswith(self._rest[:7])):
                raise NotHttpError("does not speak HTTP/1.1")
            return False
        first, *lines = self._rest[:end].decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
            raise NotHttpError("does not speak HTTP/1.1")
        self._rest = self._rest[end + 4 :]
        if not status.startswith("1"):
            pairs = (line.partition(":") for line in lines)
            self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            self.status = int(status[:3])
            self._expect()
        return True

    def _expect(self) -> None:
        """Determine how the end of the body is recognized."""
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise NotHttpError("compresses its answers though asked not to")
        length = self.headers.get("content-length", "")
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunked = True
        elif length:
            if not length.isdecimal():
                raise NotHttpError("does not speak HTTP/1.1")
            self._left = int(length)
        if self.status in {204, 304} or self._left == 0:
            self._left, self.done = 0, True

    def _plain(self) -> bytes:
        data, self._rest = self._rest, b""
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self.done = not self._left
        return data

    def _chunks(self) -> bytes:
        """Return the data of complete chunks; a chunk is a length, CRLF, that many bytes, CRLF."""
        chunks, rest, at = [], self._rest, 0
        while (end := rest.find(b"\r\n", at)) >= 0:
            try:
                size = int(rest[at:end].partition(b";")[0], 16)
            except ValueError:
                raise NotHttpError("garbles its chunks") from None
            if size == 0:
                finish = rest.find(b"\r\n\r\n", end)
                if finish >= 0:
                    self.done, at = True, finish + 4
                break
            if len(rest) < end + 4 + size:
                break
            if rest[end + 2 + size : end + 4 + size] != b"\r\n":
                raise NotHttpError("garbles its chunks")
            chunks.append(rest[end + 2 : end + 2 + size])
            at = end + 4 + size
        self._rest = rest[at:]
        return b"".join(chunks)


DONE = b"[DONE]"
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")
"""Fields of a delta with text: reasoning comes before the answer, and its tokens are generated too."""


class TokenUsage(NamedTuple):
    """Token counts reported by the server; null: not reported."""

    input: int | None
    output: int
    cached: int = 0


class AnswerChunk(NamedTuple):
    """One event: whether it has text (a role alone is none), and its other fields."""

    text: bool = False
    usage: TokenUsage | None = None
    finish: str | None = None
    model: str | None = None
    error: str | None = None


class EventParser:
    """Splits a byte stream into the data of events; skips comments and event names."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that are now complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def end(self) -> list[bytes]:
        """Return the last event, where no newline follows it."""
        return self.feed(b"\n")


def parse_event(data: bytes) -> AnswerChunk:
    """Parse an event; one that is not part of an answer is an error."""
    try:
        event: Any = json.loads(data)
    except (ValueError, RecursionError):
        return AnswerChunk(error=f"what is no JSON: {data[:80].decode(errors='replace')}")
    if not isinstance(event, dict):
        return AnswerChunk(error=f"what is no answer: {data[:80].decode(errors='replace')}")
    choices = event.get("choices")
    message = message_in_error(event) if choices is None else None
    if message is not None:
        return AnswerChunk(error=message)
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    finish, model, delta = choice.get("finish_reason"), event.get("model"), choice.get("delta")
    texts = [delta.get(name) for name in _TEXT_FIELDS] if isinstance(delta, dict) else [choice.get("text")]
    return AnswerChunk(
        text=any(texts),
        usage=_parse_usage(event.get("usage")),
        finish=finish if isinstance(finish, str) else None,
        model=model if isinstance(model, str) else None,
    )


def _parse_usage(usage: Any) -> TokenUsage | None:
    """Return a server's counts; invalid ones count as not reported."""
    output = _parse_count(usage, "completion_tokens")
    if output is None:
        return None
    cached = _parse_count(usage.get("prompt_tokens_details"), "cached_tokens")
    return TokenUsage(input=_parse_count(usage, "prompt_tokens") or None, output=output, cached=cached or 0)


def _parse_count(counts: Any, name: str) -> int | None:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@dataclass
class LoadArrivals:
    """What arrived within an interval.

    ``requests`` counts those that ended in it, with ``answer_tokens`` in total; some of them were shorter or longer
    than requested, or without the server's own count. ``silence_us``: the silences of streams that stalled.
    """

    output_tokens: float = 0.0
    input_tokens: float | None = None
    requests: int = 0
    short_requests: int = 0
    long_requests: int = 0
    uncounted_requests: int = 0
    answer_tokens: float = 0.0
    errors: int = 0
    first_token_us: list[float] = field(default_factory=list)
    gap_us: list[float] = field(default_factory=list)
    request_us: list[float] = field(default_factory=list)
    tpot_us: list[float] = field(default_factory=list)
    silence_us: list[float] = field(default_factory=list)

    def extras(self) -> StageExtras:
        """Return the extras of a call; input tokens are left out where the server does not count them."""
        return {
            name: float(value) if isinstance(value, int) else value
            for name, value in vars(self).items()
            if value is not None
        }


@dataclass
class TokenScale:
    """Tokens per chunk and per prompt of answers so far, by the server's counts; until there is one, as expected."""

    expected_per_chunk: float = 1.0
    expected_input: float | None = None
    chunks: int = 0
    output: int = 0
    prompts: int = 0
    input: int = 0
    cached: int = 0

    @property
    def tokens_per_chunk(self) -> float:
        """Mean tokens per chunk, as counted or else as expected."""
        return self.output / self.chunks if self.chunks and self.output else self.expected_per_chunk

    @property
    def input_tokens(self) -> float | None:
        """Mean tokens per prompt; null where the server does not count them."""
        return self.input / self.prompts if self.prompts else self.expected_input

    def restart(self) -> TokenScale:
        """Return an empty scale that expects this one's means."""
        return TokenScale(expected_per_chunk=self.tokens_per_chunk, expected_input=self.input_tokens)

    def learn(self, chunks: int, usage: TokenUsage | None) -> None:
        """Add a complete answer; null counts are ignored."""
        if usage is None:
            return
        self.chunks += chunks
        self.output += usage.output
        self.cached += usage.cached
        if usage.input is not None:
            self.prompts += 1
            self.input += usage.input


class StreamedAnswer:
    """One answer in progress; times are nanoseconds of one clock."""

    def __init__(self, begin_ns: int, requested_tokens: int, scale: TokenScale) -> None:
        self.begin_ns = begin_ns
        self.requested_tokens = requested_tokens
        self.chunks = 0
        self.finish: str | None = None
        self.model: str | None = None
        self._scale = scale
        self._usage: TokenUsage | None = None
        self._first_ns: int | None = None
        self._last_ns = begin_ns
        self._counted = 0.0
        self._counted_input = 0.0

    def count_chunk(self, stamp_ns: int, chunk: AnswerChunk, into: LoadArrivals) -> None:
        """Count a chunk that arrived."""
        self._usage = chunk.usage or self._usage
        self.finish = chunk.finish or self.finish
        self.model = chunk.model or self.model
        if not chunk.text:
            return
        self.chunks += 1
        if self._first_ns is None:
            self._first_ns = stamp_ns
            into.first_token_us.append((stamp_ns - self.begin_ns) / 1e3)
            self._count_input(self._scale.input_tokens, into)
        else:
            into.gap_us.append((stamp_ns - self._last_ns) / 1e3)
        self._last_ns = stamp_ns
        counted = chunk.usage.output if chunk.usage is not None else 0
        self._count_output(counted or self._counted + self._scale.tokens_per_chunk, into)

    def end(self, stamp_ns: int, into: LoadArrivals) -> None:
        """Count a complete answer, and correct what was counted before."""
        usage = self.usage
        if usage is not None:
            self._count_output(usage.output, into)
            self._count_input(usage.input, into)
            self._scale.learn(self.chunks, usage)
        into.requests += 1
        into.short_requests += self.short
        into.long_requests += usage is not None and usage.output > self.requested_tokens
        into.uncounted_requests += usage is None
        into.answer_tokens += self._counted
        into.request_us.append((stamp_ns - self.begin_ns) / 1e3)
        after_first = self._counted * (self.chunks - 1) / self.chunks if self.chunks else 0.0
        if self._first_ns is not None and after_first > 0:
            into.tpot_us.append((self._last_ns - self._first_ns) / 1e3 / after_first)

    @property
    def usage(self) -> TokenUsage | None:
        """The server's last counts; null where there are none, or no tokens are counted although text came."""
        return None if self._usage is None or (self.chunks and not self._usage.output) else self._usage

    @property
    def empty(self) -> bool:
        """Whether no token came."""
        return not self.chunks and not (self.usage and self.usage.output)

    @property
    def short(self) -> bool:
        """Whether it has fewer tokens than requested."""
        if self.usage is not None:
            return self.usage.output < self.requested_tokens
        return self.finish == "stop" and self.chunks < self.requested_tokens

    def _count_output(self, tokens: float, into: LoadArrivals) -> None:
        into.output_tokens += tokens - self._counted
        self._counted = tokens

    def _count_input(self, tokens: float | None, into: LoadArrivals) -> None:
        if tokens is not None:
            into.input_tokens = (into.input_tokens or 0.0) + tokens - self._counted_input
            self._counted_input = tokens


MIN_SILENCE_S = 0.25  # shorter silences are never stalls
STALL_FACTOR = 3.0  # a stream stalls when it is silent for this multiple of its usual maximum
STALL_FACTOR_ALL = 1.5
"""All streams stall together when each is silent for this multiple: that does not happen by chance."""
USUAL_QUANTILE = 0.95
MIN_HISTORY = 64
HISTORY_PER_STREAM = 40
"""Size of the history per stream, large enough that a stall of all streams at once does not count as usual."""


class StallDetector:
    """Detects stalled streams from a load's recent times to the first token and gaps."""

    def __init__(self, streams: int) -> None:
        history = max(MIN_HISTORY, HISTORY_PER_STREAM * streams)
        self._first_us: deque[float] = deque(maxlen=history)
        self._gap_us: deque[float] = deque(maxlen=history)
        self._first_s = self._gap_s = math.inf

    def learn(self, arrivals: LoadArrivals) -> None:
        """Add the arrivals of an interval to the history; for gaps without one, that of the first token is used."""
        self._first_us.extend(arrivals.first_token_us)
        self._gap_us.extend(arrivals.gap_us)
        self._first_s = _usual_s(self._first_us)
        self._gap_s = _usual_s(self._gap_us) if self._gap_us else self._first_s

    def late(self, silences: Iterable[tuple[float, bool]]) -> list[int]:
        """Return the indices of stalled streams from each one's silence in s and whether it awaits its first token."""
        usual = [(silent_s, self._first_s if first else self._gap_s) for silent_s, first in silences]

        def stalled(factor: float) -> list[int]:
            limits = (max(MIN_SILENCE_S, factor * usual_s) for _, usual_s in usual)
            return [index for index, limit in enumerate(limits) if usual[index][0] > limit]

        together = stalled(STALL_FACTOR_ALL)
        return together if len(together) == len(usual) > 1 else stalled(STALL_FACTOR)


def _usual_s(times_us: deque[float]) -> float:
    """Return the usual maximum of times, in seconds."""
    return sorted(times_us)[math.ceil(USUAL_QUANTILE * len(times_us)) - 1] / 1e6 if times_us else math.inf
