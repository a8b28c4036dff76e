"""Whole requests of a server under a steady load, slice by slice; and the same server with nothing to do."""

from __future__ import annotations

import itertools
import math
import resource
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot, TrialFailed
from assay.workloads.base import Prepared
from assay.workloads.generation.server import wire
from assay.workloads.generation.server.load import Load
from assay.workloads.generation.server.meeting import meet

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.workloads.base import StageExtras
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.server.arrivals import Scale
    from assay.workloads.generation.server.meeting import Met

SLICE_S = 0.5
IDLE_S = 0.1
SPARE_FILES = 64


def idle(generation: Generation, seed: int) -> Prepared:
    """Return a server that has its model in place and is asked for nothing."""
    probe = meet(generation, seed, secrets.token_hex(8))
    return Prepared(call=partial(time.sleep, IDLE_S), waits_itself=True, notes=probe.notes[:1])


def served(generation: Generation, seed: int) -> Prepared:
    """Return a server under its load; a call is a slice of it."""
    _enough_files(generation.concurrency)
    probe = meet(generation, seed, secrets.token_hex(8))
    scale = probe.scale.anew()
    load = Load(
        probe.endpoint,
        generation.concurrency,
        requests(probe, generation.output_tokens, generation.concurrency),
        scale,
        timeout_s=generation.request_timeout_s,
        warm=max(1, generation.warmup),
    )
    try:
        steady_s, cpu_s = load.start()
    except BaseException:
        load.close()
        raise
    slices = Slices(load)
    facts = {
        "client_cpu_share": cpu_s / steady_s,
        "steady_s": steady_s,
        "tokens_per_chunk": scale.tokens_per_chunk,
    }
    return Prepared(
        call=slices.call,
        measured=lambda: facts,
        close=load.close,
        agree=slices.agree,
        reports_extras=True,
        waits_itself=True,
        notes=(*probe.notes, *cached(scale)),
    )


def requests(met: Met, output_tokens: int, streams: int) -> Callable[[int, int], tuple[bytes, int]]:
    """Return what makes the next request of a stream: the first of each for a share of the tokens, then for all."""
    start, numbers = wire.head(met.endpoint, met.form.path), itertools.count()
    whole = met.form.around(output_tokens)

    def make(stream: int, number: int) -> tuple[bytes, int]:
        tokens = output_tokens if number else math.ceil(output_tokens * (stream + 1) / streams)
        before, after = whole if number else met.form.around(tokens)
        return wire.request(start, b"".join((before, met.wording.as_json(next(numbers)), after))), tokens

    return make


def cached(scale: Scale) -> tuple[str, ...]:
    """Return how much of the prompts before the first slice a server did not have to read."""
    if not scale.cached or not scale.input:
        return ()
    return (f"the server had {scale.cached / scale.input:.0%} of the prompts' tokens in its cache",)


class Slices:
    """A load slice by slice, as a stage takes it: its window must not end before a token came."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._came = 0.0
        self._has_some = False
        self._begun_ns: int | None = None
        self._last_ns = 0

    def call(self) -> StageExtras:
        """Wait for a slice to pass; return what arrived in it."""
        self._last_ns = time.perf_counter_ns()
        arrivals, cpu_s = self._load.take(SLICE_S)
        self._came = arrivals.output_tokens
        return {**arrivals.extras(), "client_cpu_s": cpu_s}

    def agree(self, done: int) -> bool:
        """Return whether the window ends with the slice before; it is asked after each slice that is measured.

        Raises:
            TrialFailed: It would end, and no token came in it.
        """
        self._begun_ns = self._last_ns if self._begun_ns is None else self._begun_ns
        self._has_some = self._has_some or self._came > 0
        if done and not self._has_some:
            window_s = (time.perf_counter_ns() - self._begun_ns) / 1e9
            raise TrialFailed(
                f"The server at {self._load.endpoint.url} answers, but no token came within the window of "
                f"{window_s:.2g} s: a first token may take longer than that; make scenario.window_s longer."
            )
        return bool(done)


def _enough_files(streams: int) -> None:
    """Refuse more streams than this process may have connections."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and streams + SPARE_FILES > most:
        raise MachineCannot(f"{streams} requests at once need as many open files, and {most} are allowed (ulimit -n).")
