"""Predict the time on more GPUs: the measured computation of one rank, plus its messages by a link's α–β model.

                  fast link, all hidden             half hidden              slow link, nothing hidden
    time   max(compute low, link fastest)  …  between the two  …  compute high + link slowest

A message over a link takes α + bytes / β. ``beta_bytes_per_s`` is one direction of one GPU as programs see it, not as
data sheets print it; docs/scaling.md lists the sources of the numbers. Pure: values in, values out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.errors import BadInput, suggest_nearest
from assay.core.results import Estimate
from assay.core.units import parse_duration_s
from assay.core.values import Value
from assay.workloads.dilated_attention.schedule import RingPosition, ring_steps

if TYPE_CHECKING:
    from assay.workloads.dilated_attention.problem import AttentionCosts


LINK_UNCERTAINTY = 0.2
"""Published predictions of this kind err by 10 to 20 %; the larger is taken."""

_PREFIXES = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}
_NUMBER = r"[0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?"
_SPEED = re.compile(rf"({_NUMBER}) ?([kMGT]?)(i?)(B|bit)/s")
_SECONDS = re.compile(rf"{_NUMBER} ?(?:ns|us|µs|μs|ms|s)")
FASTEST_BYTES_PER_S, SLOWEST_BYTES_PER_S = 1e15, 1e3
"""Beyond these no link of a GPU is; a number there is a slip of the finger."""


class LinkModel(Value):
    """How fast messages travel: ``alpha_s`` to start one, ``beta_bytes_per_s`` while it flows.

    What it takes lies within ``uncertainty`` of that, both ways.
    """

    name: str = Field(min_length=1)
    alpha_s: float = Field(ge=0, allow_inf_nan=False)
    beta_bytes_per_s: float = Field(gt=0, allow_inf_nan=False)
    uncertainty: float = Field(default=LINK_UNCERTAINTY, ge=0, lt=1)

    def time_s(self, messages: int, received_bytes: int) -> float:
        """Return what messages of so many bytes together take, one after another."""
        return messages * self.alpha_s + received_bytes / self.beta_bytes_per_s

    def fastest_s(self, messages: int, received_bytes: int) -> float:
        """Return the same at the link's fast end."""
        return self.time_s(messages, received_bytes) * (1 - self.uncertainty)

    def slowest_s(self, messages: int, received_bytes: int) -> float:
        """Return the same at the link's slow end."""
        return self.time_s(messages, received_bytes) * (1 + self.uncertainty)


class KnownLink(Value):
    """A link by name: what its data sheet says of one direction, and the share of it that programs see."""

    title: str
    nominal_bytes_per_s: float
    share: float
    alpha_s: float


KNOWN_LINKS = {
    "nvlink4": KnownLink(title="NVLink 4 (H100, H200)", nominal_bytes_per_s=450e9, share=0.8, alpha_s=12e-6),
    "pcie5": KnownLink(title="PCIe 5.0 x16", nominal_bytes_per_s=63e9, share=0.8, alpha_s=14e-6),
    "eth400": KnownLink(
        title="400 Gbit/s Ethernet, a card for each GPU", nominal_bytes_per_s=50e9, share=0.9, alpha_s=20e-6
    ),
}


def parse_link(text: str) -> LinkModel:
    """Return the link that a user's words mean: one of the known, or ``ALPHA:BETA`` with units."""
    word = text.strip()
    if word.lower() in KNOWN_LINKS:
        name = word.lower()
        known_link = KNOWN_LINKS[name]
        return LinkModel(
            name=name, alpha_s=known_link.alpha_s, beta_bytes_per_s=known_link.share * known_link.nominal_bytes_per_s
        )
    alpha, colon, beta = word.partition(":")
    if not colon:
        raise BadInput(
            f"There is no link {text!r}; there are {', '.join(KNOWN_LINKS)}, or write ALPHA:BETA, such as 5us:100GB/s."
            f"{suggest_nearest(word.lower(), KNOWN_LINKS)}"
        )
    return LinkModel(
        name=word,
        alpha_s=_parse_alpha_s(alpha.strip(), text),
        beta_bytes_per_s=_parse_beta_bytes_per_s(beta.strip(), text),
    )


def describe_link(link: LinkModel) -> str:
    """Return a link in words, with what is assumed of it."""
    rate = f"{link.beta_bytes_per_s / 1e9:.4g} GB/s a GPU and direction"
    start = f"{link.alpha_s * 1e6:.3g} µs to start a message"
    known_link = KNOWN_LINKS.get(link.name)
    of_it = (
        ""
        if known_link is None
        else f", {known_link.share:.0%} of the {known_link.nominal_bytes_per_s / 1e9:.3g} of {known_link.title}"
    )
    return f"{link.name}: {rate}{of_it}; {start}; ±{link.uncertainty:.0%}"


def _parse_alpha_s(alpha: str, text: str) -> float:
    if not _SECONDS.fullmatch(alpha):
        raise BadInput(
            f"In the link {text!r}, {alpha!r} is no time to start a message; write it with its unit, as 5us."
        )
    return parse_duration_s(alpha, zero_ok=True)


def _parse_beta_bytes_per_s(beta: str, text: str) -> float:
    match = _SPEED.fullmatch(beta)
    if match is None:
        raise BadInput(
            f"In the link {text!r}, {beta!r} is no speed; write it with its unit: 100GB/s of bytes, 400Gbit/s of bits."
        )
    number, prefix, binary, of = match.groups()
    if binary and not prefix:
        raise BadInput(f"In the link {text!r}, {beta!r} is no speed; GiB/s has a letter before the i.")
    speed = float(number) * (1024.0 if binary else 1000.0) ** _PREFIXES[prefix] / (1 if of == "B" else 8)
    if not SLOWEST_BYTES_PER_S <= speed <= FASTEST_BYTES_PER_S:
        raise BadInput(f"In the link {text!r}, {beta} cannot be meant: it is between 1 kB/s and 1 PB/s.")
    return speed


PREDICTION_METHOD = "α–β: between all communication hidden and none"
EQUAL_GPUS = (
    "Every GPU computes as fast as the one that was measured alone: no neighbours, no shared power, no stragglers."
)
NOTHING_SENT = "Nothing is sent: every segment lies within a shard."
EXCLUSIVE_LINKS = (
    "A GPU sends and receives at once, message after message, on links that carry nothing else; "
    "where ways differ, the link named is the slowest."
)
PARTLY_HIDDEN = (
    "The value lies halfway between communication that is wholly hidden behind computation and none of it hidden; "
    "the interval reaches from the one over a fast link to the other over a slow one."
)


@dataclass(frozen=True)
class RankTraffic:
    """What one rank waits for in one call: messages, and the bytes that they bring it."""

    messages: int
    received_bytes: int


@dataclass(frozen=True)
class PredictedTime:
    """A time that was not measured, what it is made of, and what it takes for granted."""

    time_s: Estimate
    compute_s: float
    communication_s: float
    assumptions: tuple[str, ...]


def predict_time(compute_s: Estimate, traffic: RankTraffic, link: LinkModel) -> PredictedTime:
    """Return what a call takes whose computation was measured, in seconds, and whose messages were not.

    Without an interval of the computation there is none of the prediction.
    """
    counts = (traffic.messages, traffic.received_bytes)
    communication_s = link.time_s(*counts)
    if not any(counts):
        return PredictedTime(compute_s, compute_s.value, 0.0, (EQUAL_GPUS, NOTHING_SENT))
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
        method=PREDICTION_METHOD if has_interval else f"{PREDICTION_METHOD}; no interval, as the computation has none",
        confidence=compute_s.confidence,
        n=compute_s.n,
    )
    return PredictedTime(
        time_s, compute_s.value, communication_s, (EQUAL_GPUS, describe_link(link), EXCLUSIVE_LINKS, PARTLY_HIDDEN)
    )


def ring_traffic(costs: AttentionCosts, ranks: int, *, backward: bool) -> RankTraffic:
    """Return what reaches the last rank of a ring in one call: under a causal mask no other waits for more.

    A branch whose segments lie within a shard brings it nothing.
    """
    last = ranks - 1
    received = costs.received_bytes(last, ranks)
    received_steps = ring_steps(costs.schedule, costs.sequence // ranks, RingPosition(last, ranks), causal=costs.causal)
    messages = sum(step.receive_from is not None for step in received_steps)
    if backward:
        received += costs.backward_received_bytes(last, ranks)
        messages = 2 * messages + sum(step.helper is not None for step in received_steps)
    return RankTraffic(messages, received)


def predict_speedup(alone: Estimate, together: Estimate) -> Estimate:
    """Return how many times as fast it is together, the interval from the ends of both; null where one has none."""
    return _time_ratio(alone, together, 1.0, "T1 / T")


def predict_efficiency(alone: Estimate, together: Estimate, share: int) -> Estimate:
    """Return the speedup as a share of the GPUs; of weak scaling, whose work grows with them, ``share`` is 1."""
    return _time_ratio(alone, together, float(share), f"T1 / ({share} T)" if share > 1 else "T1 / T")


def _time_ratio(alone: Estimate, together: Estimate, by: float, method: str) -> Estimate:
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
