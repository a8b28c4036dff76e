"""A server under load as a workload, slice by slice; and the same server idle."""

from __future__ import annotations

import itertools
import math
import resource
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot, TrialFailed
from assay.core.results import Note
from assay.workloads.base import PreparedWorkload
from assay.workloads.generation.server import connection
from assay.workloads.generation.server.load import ServerLoad
from assay.workloads.generation.server.probe import probe_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.workloads.base import StageExtras
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.server.arrivals import TokenScale
    from assay.workloads.generation.server.probe import ServerProbe

SLICE_S = 0.5
IDLE_S = 0.1
SPARE_FILES = 64


def prepare_idle(generation: Generation, seed: int) -> PreparedWorkload:
    """Return an idle server, with its model loaded."""
    probe = probe_server(generation, seed, secrets.token_hex(8))
    return PreparedWorkload(call=partial(time.sleep, IDLE_S), synchronizes_itself=True, notes=probe.notes[:1])


def prepare_load(generation: Generation, seed: int) -> PreparedWorkload:
    """Return a server under load; a call is a slice of the load."""
    _check_open_files(generation.concurrency)
    probe = probe_server(generation, seed, secrets.token_hex(8))
    scale = probe.scale.restart()
    load = ServerLoad(
        probe.endpoint,
        generation.concurrency,
        request_maker(probe, generation.output_tokens, generation.concurrency),
        scale,
        timeout_s=generation.request_timeout_s,
        warm=max(1, generation.warmup),
    )
    try:
        steady_s, cpu_s = load.start()
    except BaseException:
        load.close()
        raise
    slices = LoadSlices(load)
    facts = {
        "client_cpu_share": cpu_s / steady_s,
        "steady_s": steady_s,
        "tokens_per_chunk": scale.tokens_per_chunk,
    }
    return PreparedWorkload(
        call=slices.call,
        measured=lambda: facts,
        close=load.close,
        agree_to_stop=slices.agree_to_stop,
        reports_extras=True,
        synchronizes_itself=True,
        notes=(*probe.notes, *cached_share(scale)),
    )


def request_maker(probe: ServerProbe, output_tokens: int, streams: int) -> Callable[[int, int], tuple[bytes, int]]:
    """Return a function for a stream's next request: the first for a share of the tokens, later ones for all."""
    start, numbers = connection.request_head(probe.endpoint, probe.request_format.path), itertools.count()
    whole = probe.request_format.body_around_prompt(output_tokens)

    def make(stream: int, number: int) -> tuple[bytes, int]:
        tokens = output_tokens if number else math.ceil(output_tokens * (stream + 1) / streams)
        before, after = whole if number else probe.request_format.body_around_prompt(tokens)
        return connection.make_request(
            start, b"".join((before, probe.prompt_source.as_json(next(numbers)), after))
        ), tokens

    return make


def cached_share(scale: TokenScale) -> tuple[Note, ...]:
    """Return how much of the prompts before the first slice a server did not have to read."""
    if not scale.cached or not scale.input:
        return ()
    share = scale.cached / scale.input
    message = f"the server had {100 * share:.0f} % of the prompts' tokens in its cache"
    return (Note(code="prefix_cache", message=message, params={"share": share}),)


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


def _check_open_files(streams: int) -> None:
    """Refuse more streams than this process may open connections."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and streams + SPARE_FILES > limit:
        raise MachineCannot(f"{streams} requests at once need as many open files, and {limit} are allowed (ulimit -n).")
