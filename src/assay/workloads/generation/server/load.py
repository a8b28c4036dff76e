"""A steady load: concurrent streams in a closed loop, in a thread of their own, and their arrivals, slice by slice.

    stream 0  ▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒
    stream 1  ▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒
    stream 2  ▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒
    stream 3  ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒▒▒▒▒▒▒▒▒▒▒▒ │ ▒
                           │ steady: slices ├────┼────┼────┤

In each stream a request follows another as soon as its answer has ended. The first answers have different lengths, so
that the streams do not all prefill at once, and then all decode.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import resource
import secrets
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot, TrialFailed
from assay.core.results import Note
from assay.workloads.base import PreparedWorkload
from assay.workloads.generation.server import protocol
from assay.workloads.generation.server.probe import make_tls_context, probe_server
from assay.workloads.generation.server.streams import (
    DONE,
    ConnectionFault,
    EventParser,
    HttpReader,
    LoadArrivals,
    NotHttpError,
    StallDetector,
    StreamClosed,
    StreamedAnswer,
    make_request,
    open_connection,
    parse_event,
    request_head,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.workloads.base import StageExtras
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.server.probe import ServerProbe
    from assay.workloads.generation.server.protocol import ServerEndpoint
    from assay.workloads.generation.server.streams import StampedBytes, StampedConnection, TokenScale

MAX_ERROR_BYTES = 64 << 10
REST_TIMEOUT_S = 1.0  # timeout for the last bytes of HTTP after an answer's end; after that a new connection is cheaper


class RequestStream:
    """One stream of requests in a closed loop; it never ends by itself."""

    def __init__(self, owner: ServerLoad, index: int) -> None:
        self.answered = 0
        self.connection: StampedConnection | None = None
        self._owner = owner
        self._index = index
        self._request: _OpenRequest | None = None
        self._begin_ns = time.perf_counter_ns()

    @property
    def last_activity_ns(self) -> int:
        """When a part of an answer last came, or a request was last sent."""
        connection = self.connection
        return self._begin_ns if connection is None else max(self._begin_ns, connection.last_activity_ns)

    @property
    def waits_for_first(self) -> bool:
        """Whether it waits for the first token of its answer."""
        return self._request is None or not self._request.answer.chunks

    async def run(self) -> None:
        """Send requests until cancelled."""
        try:
            for number in itertools.count():
                try:
                    await self._send_request(*self._owner.next_request(self._index, number))
                except ConnectionFault as fault:
                    await self._disconnect()
                    self._owner.on_failure(str(fault))
                    await asyncio.sleep(0)
        finally:
            await self._disconnect()

    async def _send_request(self, request: bytes, tokens: int) -> None:
        """Send one request, over the existing connection, or a new one where the server has closed it meanwhile."""
        self._begin_ns = time.perf_counter_ns()
        answer = StreamedAnswer(self._begin_ns, tokens, self._owner.scale)
        open_request = self._request = _OpenRequest(self._owner, answer)
        if self.connection is not None and await self._exchange(self.connection, request, open_request):
            return
        await self._disconnect()
        self.connection = await open_connection(self._owner.endpoint, self._owner.tls)
        if not await self._exchange(self.connection, request, open_request):
            raise ConnectionFault("closed the connection without an answer")

    async def _exchange(self, connection: StampedConnection, request: bytes, open_request: _OpenRequest) -> bool:
        """Send a request and read its answer; return false where the connection was closed before it began."""
        connection.send(request)
        while not open_request.ended:
            try:
                pieces = await connection.pieces()
            except (StreamClosed, ConnectionFault) as error:
                if not open_request.received_any and not connection.is_open:
                    return False
                if isinstance(error, ConnectionFault):
                    raise
                open_request.connection_closed()
                break
            with self._owner.lock:
                self._owner.cpu_ns = time.thread_time_ns()
                if open_request.receive(pieces):
                    connection.last_activity_ns = pieces[-1][0]
        self.answered += 1
        self._owner.on_answer()
        with suppress(TimeoutError, StreamClosed, ConnectionFault, NotHttpError):
            async with asyncio.timeout(REST_TIMEOUT_S):
                while not open_request.reader.done:
                    for _, data in await connection.pieces():
                        open_request.reader.feed(data)
        if not open_request.reader.keeps_open:
            await self._disconnect()
        return True

    async def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.abort()


class _OpenRequest:
    """One request in progress: parses its bytes into events and counts them."""

    def __init__(self, owner: ServerLoad, answer: StreamedAnswer) -> None:
        self.reader = HttpReader()
        self.answer = answer
        self.received_any = False
        self.ended = False
        self._owner = owner
        self._events = EventParser()
        self._body = b""

    def receive(self, pieces: list[StampedBytes]) -> bool:
        """Process new data; return whether it had a part of an answer, and not only keep-alive lines."""
        self.received_any, any_events = True, False
        for stamp_ns, data in pieces:
            try:
                body = self.reader.feed(data)
            except NotHttpError as error:
                raise ConnectionFault(str(error)) from None
            if self.ended:
                continue
            if self.reader.status != 200 or not self._body:
                self._body = (self._body + body)[:MAX_ERROR_BYTES]
            if self.reader.status == 200:
                events = self._events.feed(body)
                any_events = any_events or bool(events)
                self._count(stamp_ns, events)
            if self.reader.done and not self.ended:
                self._finish(stamp_ns)
        return any_events

    def connection_closed(self) -> None:
        """Process the end of the connection."""
        if not self.reader.closed():
            raise ConnectionFault(protocol.CLOSED_EARLY)
        with self._owner.lock:
            self._finish(time.perf_counter_ns())

    def _count(self, stamp_ns: int, events: list[bytes]) -> None:
        for data in events:
            if data == DONE:
                self._end(stamp_ns)
                return
            chunk = parse_event(data)
            if chunk.error is not None:
                raise ConnectionFault(self._owner.endpoint.redact(f"broke an answer off with {chunk.error!r}"))
            self.answer.count_chunk(stamp_ns, chunk, self._owner.arrivals)

    def _finish(self, stamp_ns: int) -> None:
        """Process the end of the HTTP response where the answer had no end marker."""
        body = self._body.decode(errors="replace")
        if self.reader.status != 200:
            raise ConnectionFault(protocol.status_fault(self.reader.status, body, self._owner.endpoint))
        self._count(stamp_ns, self._events.end())
        if self.ended:
            return
        if protocol.is_web_page(body):
            raise ConnectionFault("answered with a web page")
        if self.answer.finish is None:
            raise ConnectionFault("ended an answer without saying that it was whole")
        self._end(stamp_ns)

    def _end(self, stamp_ns: int) -> None:
        if self.answer.empty:
            raise ConnectionFault("answered without a token")
        self.ended = True
        self.answer.end(stamp_ns, self._owner.arrivals)


FAILED_SHARE = 0.05
FAILED_IN_A_ROW = 3
CLOSE_TIMEOUT_S = 20.0
POLL_S = 0.02  # polling interval while stalled streams are awaited
STALL_CHECK_S = 1.0


def too_many_failures(errors: int, in_a_row: int, ended: int) -> bool:
    """Return whether too many of the ended requests have failed for a load to go on."""
    return in_a_row >= FAILED_IN_A_ROW or errors > max(1.0, FAILED_SHARE * ended)


class ServerLoad:
    """Concurrent streams against a server, from ``start`` to ``close``; they run in a thread of their own."""

    def __init__(
        self,
        endpoint: ServerEndpoint,
        streams: int,
        next_request: Callable[[int, int], tuple[bytes, int]],
        scale: TokenScale,
        *,
        timeout_s: float,
        warm: int = 1,
    ) -> None:
        self.endpoint = endpoint
        self.tls = make_tls_context() if endpoint.tls else None
        self.scale = scale
        self.next_request = next_request
        self.lock = threading.Lock()
        self.arrivals = LoadArrivals()
        self.cpu_ns = 0
        self._streams = streams
        self._timeout_s = timeout_s
        self._warm = warm
        self._stall_detector = StallDetector(streams)
        self._request_streams: list[RequestStream] = []
        self._requests = self._errors = self._in_a_row = 0
        self._failure: str | None = None
        self._was_silent = self._failure_reported = False
        self._defect: BaseException | None = None
        self._is_steady = self._has_begun = False
        self._wakeup = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close_requested: asyncio.Event | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="assay-load", daemon=True)
        self._slice_begin_ns = self._slice_begin_cpu_ns = 0

    def start(self) -> tuple[float, float]:
        """Start, and return once every stream has completed its warm-up answers.

        Return the seconds it took, and the load's CPU seconds.

        Raises:
            TrialFailed: Too many requests failed before.
        """
        begin_ns = time.perf_counter_ns()
        self._thread.start()
        self._wakeup.wait()
        self._raise_failure()
        _, cpu_s = self._start_slice()
        return (self._slice_begin_ns - begin_ns) / 1e9, cpu_s

    def next_slice(self, slice_s: float) -> tuple[LoadArrivals, float]:
        """Wait for a slice to pass; return its arrivals, and the load's CPU seconds.

        The first slice begins with the call, each later one where the previous ended: nothing is lost in between. A
        slice is extended while streams stall, until they send again. A slice in which the load fails ends there; the
        next one raises the failure.

        Raises:
            TrialFailed: Too many requests failed.
        """
        if not self._has_begun:
            self._has_begun = True
            self._start_slice()
        self._wakeup.wait(slice_s)
        silence_us = self._wait_for_stalls()
        if not self._is_usable():
            self._raise_failure()
        arrivals, cpu_s = self._start_slice()
        arrivals.silence_us += silence_us
        return arrivals, cpu_s

    def close(self) -> None:
        """Stop all streams, their connections and the thread; nothing is left when this returns."""
        self._closed = True
        with self.lock:
            if self._loop is not None and self._close_requested is not None:
                self._loop.call_soon_threadsafe(self._close_requested.set)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                raise TrialFailed(f"the load on {self.endpoint.url} did not end within {CLOSE_TIMEOUT_S:g} s")

    def on_answer(self) -> None:
        """Record a complete answer; a stream calls this."""
        self._requests += 1
        self._in_a_row = 0
        if not self._is_steady and all(stream.answered >= self._warm for stream in self._request_streams):
            self._is_steady = True
            self._wakeup.set()

    def on_failure(self, clause: str) -> None:
        """Record a failed request; a stream calls this."""
        with self.lock:
            self.arrivals.errors += 1
        self._errors += 1
        self._in_a_row += 1
        if too_many_failures(self._errors, self._in_a_row, self._requests + self._errors):
            often = f", {self._errors} of {self._requests + self._errors} requests failed" if self._errors > 1 else ""
            self._fail(f"{clause}{often}")

    def _fail(self, clause: str) -> None:
        """Record the first reason of the load's failure."""
        if self._failure is None:
            self._failure = f"The server at {self.endpoint.url} {clause} (after {self._requests} whole answers)."
            self._wakeup.set()
            if self._close_requested is not None:
                self._close_requested.set()

    def _wait_for_stalls(self) -> list[float]:
        """Wait until no stream stalls, or the load fails; return the silences of stalled streams, in us.

        If streams stall in turn without end, the wait is limited by the request timeout.
        """
        since: dict[RequestStream, int] = {}
        silence_us: list[float] = []
        until_ns = time.perf_counter_ns() + int((self._timeout_s + 2 * STALL_CHECK_S) * 1e9)
        while self._failure is None and self._defect is None and (now_ns := time.perf_counter_ns()) < until_ns:
            for stream, from_ns in list(since.items()):
                if (active_ns := stream.last_activity_ns) > from_ns:
                    silence_us.append((active_ns - from_ns) / 1e3)
                    del since[stream]
            activity = [(stream, stream.last_activity_ns) for stream in self._request_streams]
            late = self._stall_detector.late(
                ((now_ns - active_ns) / 1e9, stream.waits_for_first) for stream, active_ns in activity
            )
            since = {**dict(activity[index] for index in late), **since}
            if not since:
                break
            self._wakeup.wait(POLL_S)
        self._was_silent = self._was_silent or bool(since and self._failure)
        return [*silence_us, *((time.perf_counter_ns() - from_ns) / 1e3 for from_ns in since.values())]

    def _is_usable(self) -> bool:
        """Return whether the slice counts; after a failure only the first one does, and only without a stall."""
        if self._failure is None and self._defect is None:
            return True
        reported, self._failure_reported = self._failure_reported, True
        return not (reported or self._was_silent or self._defect) and self.arrivals.output_tokens > 0

    def _raise_failure(self) -> None:
        if self._defect is not None:
            raise self._defect
        if self._failure is not None:
            raise TrialFailed(self._failure)

    def _start_slice(self) -> tuple[LoadArrivals, float]:
        """Begin a new slice; return the last one's arrivals and its CPU time in s."""
        if self._failure is None:
            self._wakeup.clear()
        with self.lock:
            new_arrivals = LoadArrivals(input_tokens=None if self.scale.input_tokens is None else 0.0)
            arrivals, self.arrivals = self.arrivals, new_arrivals
            self._slice_begin_ns = time.perf_counter_ns()
            spent_ns, self._slice_begin_cpu_ns = self.cpu_ns - self._slice_begin_cpu_ns, self.cpu_ns
        self._stall_detector.learn(arrivals)
        return arrivals, spent_ns / 1e9

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except Exception as error:  # noqa: BLE001 - raised again by the next slice
            self._defect = error
        self._wakeup.set()

    async def _work(self) -> None:
        with self.lock:
            self._loop, self._close_requested = asyncio.get_running_loop(), asyncio.Event()
        self._request_streams = [RequestStream(self, index) for index in range(self._streams)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(stream.run()) for stream in self._request_streams if not self._closed]
                tasks.append(group.create_task(self._watch()))
                if not self._closed:
                    await self._close_requested.wait()
                for task in tasks:
                    task.cancel()
        finally:
            with self.lock:
                self._loop = None

    async def _watch(self) -> None:
        """Fail the connections on which nothing came within the timeout."""
        limit_ns = int(self._timeout_s * 1e9)
        while True:
            await asyncio.sleep(min(STALL_CHECK_S, self._timeout_s / 4))
            silent_since = time.perf_counter_ns() - limit_ns
            connections = [stream.connection for stream in self._request_streams if stream.connection is not None]
            late = [connection for connection in connections if connection.last_activity_ns < silent_since]
            self._was_silent = self._was_silent or bool(late)
            if late and len(late) == len(connections):
                self._fail(protocol.silence_fault(self._timeout_s))
            for stalled in late:
                stalled.fail(protocol.silence_fault(self._timeout_s))


SLICE_S = 0.5
IDLE_S = 0.1
SPARE_FILES = 64


def prepare_idle(generation: Generation, seed: int) -> PreparedWorkload:
    """Return an idle server, with its model loaded."""
    probe = probe_server(generation, seed, secrets.token_hex(8))
    return PreparedWorkload(call=partial(time.sleep, IDLE_S), synchronizes_itself=True, notes=probe.notes[:1])


def prepare_load(generation: Generation, seed: int) -> PreparedWorkload:
    """Return a server under load; a call is a slice of the load."""
    streams, (limit, _) = generation.concurrency, resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and streams + SPARE_FILES > limit:
        raise MachineCannot(f"{streams} requests at once need as many open files, and {limit} are allowed (ulimit -n).")
    probe = probe_server(generation, seed, secrets.token_hex(8))
    scale = probe.scale.restart()
    next_request = request_maker(probe, generation.output_tokens, streams)
    timeout_s, warm = generation.request_timeout_s, max(1, generation.warmup)
    load = ServerLoad(probe.endpoint, streams, next_request, scale, timeout_s=timeout_s, warm=warm)
    try:
        steady_s, cpu_s = load.start()
    except BaseException:
        load.close()
        raise
    slices, notes = LoadSlices(load), probe.notes
    if scale.cached and scale.input:
        share = scale.cached / scale.input
        message = f"the server had {100 * share:.0f} % of the prompts' tokens in its cache"
        notes = (*notes, Note(code="prefix_cache", message=message, params={"share": share}))
    facts = {"client_cpu_share": cpu_s / steady_s, "steady_s": steady_s, "tokens_per_chunk": scale.tokens_per_chunk}
    return PreparedWorkload(
        call=slices.call,
        measured=lambda: facts,
        close=load.close,
        agree_to_stop=slices.agree_to_stop,
        reports_extras=True,
        synchronizes_itself=True,
        notes=notes,
    )


def request_maker(probe: ServerProbe, output_tokens: int, streams: int) -> Callable[[int, int], tuple[bytes, int]]:
    """Return a function for a stream's next request: the first for a share of the tokens, later ones for all."""
    start, numbers = request_head(probe.endpoint, probe.request_format.path), itertools.count()
    whole = probe.request_format.body_around_prompt(output_tokens)

    def make(stream: int, number: int) -> tuple[bytes, int]:
        tokens = output_tokens if number else math.ceil(output_tokens * (stream + 1) / streams)
        before, after = whole if number else probe.request_format.body_around_prompt(tokens)
        return make_request(start, before + probe.prompt_source.as_json(next(numbers)) + after), tokens

    return make


class LoadSlices:
    """A load in slices, as a stage calls it; its window must not end before a token came."""

    def __init__(self, load: ServerLoad) -> None:
        self._load = load
        self._arrived_tokens = 0.0
        self._any_tokens = False
        self._begin_ns: int | None = None
        self._last_ns = 0

    def call(self) -> StageExtras:
        """Wait for a slice to pass; return its arrivals."""
        self._last_ns = time.perf_counter_ns()
        arrivals, cpu_s = self._load.next_slice(SLICE_S)
        self._arrived_tokens = arrivals.output_tokens
        return {**arrivals.extras(), "client_cpu_s": cpu_s}

    def agree_to_stop(self, done: int) -> bool:
        """Return whether the window ends with the previous slice; called after each measured slice.

        Raises:
            TrialFailed: The window would end, and no token came in it.
        """
        self._begin_ns = self._last_ns if self._begin_ns is None else self._begin_ns
        self._any_tokens = self._any_tokens or self._arrived_tokens > 0
        if done and not self._any_tokens:
            window_s = (time.perf_counter_ns() - self._begin_ns) / 1e9
            raise TrialFailed(
                f"The server at {self._load.endpoint.url} answers, but no token came within the window of "
                f"{window_s:.2g} s: a first token may take longer than that; make scenario.window_s longer."
            )
        return bool(done)
