"""Arrivals under load: tokens of answers in progress, counted as they arrive; and stall detection.

A server reports the number of tokens of an answer only at its end, and may send several at once. So each chunk counts,
on arrival, for the mean number of tokens per chunk of earlier answers (one, until the server reports otherwise), and at
an answer's end the count is corrected by the server's own. Over a steady load nothing is lost or counted twice. A
prompt counts when its first token arrives, in the same way.

     begin        first token                          end
       │ ……………………… │ ……… │ ……… │ ……… │ ………… │ ……… │ [DONE]
       ├ first_token_us ┤ gap_us
       ├──────────────── request_us ────────────────────┤

A window that ends while a server stalls would attribute the stall's energy to the tokens before it. So a slice is
extended until a stream that is silent for far longer than usual sends again. That costs time only, so a wrong decision
does no harm; only ``request_timeout_s`` ends a load.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.workloads.base import StageExtras
    from assay.workloads.generation.server.connection import AnswerChunk, TokenUsage


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
        extras: dict[str, float | list[float]] = {
            "output_tokens": self.output_tokens,
            "requests": float(self.requests),
            "short_requests": float(self.short_requests),
            "long_requests": float(self.long_requests),
            "uncounted_requests": float(self.uncounted_requests),
            "answer_tokens": self.answer_tokens,
            "errors": float(self.errors),
            "first_token_us": self.first_token_us,
            "gap_us": self.gap_us,
            "request_us": self.request_us,
            "tpot_us": self.tpot_us,
            "silence_us": self.silence_us,
        }
        return extras if self.input_tokens is None else {**extras, "input_tokens": self.input_tokens}


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
        """Add a complete answer."""
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
        if self.usage is not None:
            self._count_output(self.usage.output, into)
            self._count_input(self.usage.input, into)
        self._scale.learn(self.chunks, self.usage)
        into.requests += 1
        into.short_requests += self.short
        into.long_requests += self.usage is not None and self.usage.output > self.requested_tokens
        into.uncounted_requests += self.usage is None
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


MIN_SILENCE_S = 0.25
"""Shorter silences are never stalls."""
STALL_FACTOR = 3.0
"""A stream stalls when it is silent for this multiple of its usual maximum."""
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
        """Add the arrivals of an interval to the history."""
        self._first_us.extend(arrivals.first_token_us)
        self._gap_us.extend(arrivals.gap_us)
        self._first_s = _usual_gap_s(self._first_us)
        self._gap_s = _usual_gap_s(self._gap_us)

    def late(self, silences: Iterable[tuple[float, bool]]) -> list[int]:
        """Return the indices of stalled streams from each one's silence in s and whether it awaits its first token."""
        usual = [(silent_s, self._usual_s(first=first)) for silent_s, first in silences]
        if len(usual) > 1 and all(
            silent_s > max(MIN_SILENCE_S, STALL_FACTOR_ALL * usual_s) for silent_s, usual_s in usual
        ):
            return list(range(len(usual)))
        return [
            index
            for index, (silent_s, usual_s) in enumerate(usual)
            if silent_s > max(MIN_SILENCE_S, STALL_FACTOR * usual_s)
        ]

    def _usual_s(self, *, first: bool) -> float:
        """Return the usual maximum; for gaps without a history, that of the first token."""
        return self._first_s if first or not self._gap_us else self._gap_s


def _usual_gap_s(times_us: deque[float]) -> float:
    if not times_us:
        return math.inf
    return sorted(times_us)[math.ceil(USUAL_QUANTILE * len(times_us)) - 1] / 1e6
