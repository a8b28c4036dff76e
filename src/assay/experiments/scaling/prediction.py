"""What more GPUs would take: measured computation of one rank, and what its messages take by a link's α and β.

                  fast link, all hidden             half hidden              slow link, nothing hidden
    time   max(compute low, link fastest)  …  between the two  …  compute high + link slowest

Pure: values in, values out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.results import Estimate
from assay.experiments.scaling.links import told
from assay.workloads.dilated_attention.steps import Seat, steps

if TYPE_CHECKING:
    from assay.experiments.scaling.links import Link
    from assay.workloads.dilated_attention.costs import Costs

METHOD = "α–β: between all communication hidden and none"
ALIKE = "Every GPU computes as fast as the one that was measured alone: no neighbours, no shared power, no stragglers."
NOTHING_SENT = "Nothing is sent: every segment lies within a shard."
ONE_WAY = (
    "A GPU sends and receives at once, message after message, on links that carry nothing else; "
    "where ways differ, the link named is the slowest."
)
HIDDEN = (
    "The value lies halfway between communication that is wholly hidden behind computation and none of it hidden; "
    "the interval reaches from the one over a fast link to the other over a slow one."
)


@dataclass(frozen=True)
class Traffic:
    """What one rank waits for in one call: messages, and the bytes that they bring it."""

    messages: int
    received_bytes: int


@dataclass(frozen=True)
class Predicted:
    """A time that was not measured, what it is made of, and what it takes for granted."""

    time_s: Estimate
    compute_s: float
    communication_s: float
    assumptions: tuple[str, ...]


def predict(compute_s: Estimate, traffic: Traffic, link: Link) -> Predicted:
    """Return what a call takes whose computation was measured, in seconds, and whose messages were not.

    Without an interval of the computation there is none of the prediction.
    """
    counts = (traffic.messages, traffic.received_bytes)
    communication_s = link.time_s(*counts)
    if not any(counts):
        return Predicted(compute_s, compute_s.value, 0.0, (ALIKE, NOTHING_SENT))
    has_interval = compute_s.low is not None and compute_s.high is not None
    low = max(compute_s.low, link.fastest_s(*counts)) if compute_s.low is not None else None
    high = compute_s.high + link.slowest_s(*counts) if compute_s.high is not None else None
    hidden, bare = max(compute_s.value, communication_s), compute_s.value + communication_s
    time_s = Estimate(
        value=(hidden + bare) / 2,
        low=low,
        high=high,
        unit="s",
        scope="machine",
        method=METHOD if has_interval else f"{METHOD}; no interval, as the computation has none",
        confidence=compute_s.confidence,
        n=compute_s.n,
    )
    return Predicted(time_s, compute_s.value, communication_s, (ALIKE, told(link), ONE_WAY, HIDDEN))


def traffic_of(costs: Costs, ranks: int, *, backward: bool) -> Traffic:
    """Return what reaches the last rank of a ring in one call: under a causal mask no other waits for more.

    A branch whose segments lie within a shard brings it nothing.
    """
    last = ranks - 1
    received = costs.received_bytes(last, ranks)
    received_steps = steps(costs.ladder, costs.sequence // ranks, Seat(last, ranks), causal=costs.causal)
    messages = sum(step.receive_from is not None for step in received_steps)
    if backward:
        received += costs.backward_received_bytes(last, ranks)
        messages = 2 * messages + sum(step.helper is not None for step in received_steps)
    return Traffic(messages, received)


def speedup(alone: Estimate, together: Estimate) -> Estimate:
    """Return how many times as fast it is together, the interval from the ends of both; null where one has none."""
    return _ratio(alone, together, 1.0, "T1 / T")


def efficiency(alone: Estimate, together: Estimate, share: int) -> Estimate:
    """Return the speedup as a share of the GPUs; of weak scaling, whose work grows with them, ``share`` is 1."""
    return _ratio(alone, together, float(share), f"T1 / ({share} T)" if share > 1 else "T1 / T")


def _ratio(alone: Estimate, together: Estimate, by: float, method: str) -> Estimate:
    low, high = None, None
    if alone.low is not None and alone.high is not None and together.low and together.high:
        low, high = alone.low / (by * together.high), alone.high / (by * together.low)
    return Estimate(
        value=alone.value / (by * together.value),
        low=low,
        high=high,
        unit="",
        scope=together.scope,
        method=method,
        confidence=together.confidence,
        n=min(alone.n, together.n),
    )
