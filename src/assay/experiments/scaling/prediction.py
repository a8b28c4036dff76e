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
from assay.core.format import format_percent, parse_duration_s
from assay.core.results import NO_INTERVAL, Estimate
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
"""No GPU link is outside these bounds; a number there is a typing error."""


class LinkModel(Value):
    """Latency ``alpha_s`` and bandwidth ``beta_bytes_per_s`` of a link, each within ±``uncertainty``."""

    name: str = Field(min_length=1)
    alpha_s: float = Field(ge=0, allow_inf_nan=False)
    beta_bytes_per_s: float = Field(gt=0, allow_inf_nan=False)
    uncertainty: float = Field(default=LINK_UNCERTAINTY, ge=0, lt=1)

    def time_s(self, messages: int, received_bytes: int) -> float:
        """Return the time of messages with this many bytes in total, one after another."""
        return messages * self.alpha_s + received_bytes / self.beta_bytes_per_s

    def fastest_s(self, messages: int, received_bytes: int) -> float:
        """Return the same for the fastest link within the uncertainty."""
        return self.time_s(messages, received_bytes) * (1 - self.uncertainty)

    def slowest_s(self, messages: int, received_bytes: int) -> float:
        """Return the same for the slowest link within the uncertainty."""
        return self.time_s(messages, received_bytes) * (1 + self.uncertainty)


class KnownLink(Value):
    """A link by name: the data sheet's bandwidth in one direction, and the share that programs reach."""

    title: str
    nominal_bytes_per_s: float
    share: float
    alpha_s: float


KNOWN_LINKS = {
    "nvlink4": KnownLink(title="NVLink 4 (H100, H200)", nominal_bytes_per_s=450e9, share=0.8, alpha_s=12e-6),
    "pcie5": KnownLink(title="PCIe 5.0 x16", nominal_bytes_per_s=63e9, share=0.8, alpha_s=14e-6),
    "eth400": KnownLink(
        title="400 Gbit/s Ethernet, one NIC per GPU", nominal_bytes_per_s=50e9, share=0.9, alpha_s=20e-6
    ),
}


def parse_link(text: str) -> LinkModel:
    """Parse ``--link``: a name, or ``ALPHA:BETA`` with units."""
    word = text.strip()
    known_link = KNOWN_LINKS.get(word.lower())
    if known_link is not None:
        bandwidth = known_link.share * known_link.nominal_bytes_per_s
        return LinkModel(name=word.lower(), alpha_s=known_link.alpha_s, beta_bytes_per_s=bandwidth)
    alpha, colon, beta = (part.strip() for part in word.partition(":"))
    if not colon:
        raise BadInput(
            f"Unknown link {text!r}: use one of {', '.join(KNOWN_LINKS)}, or ALPHA:BETA such as 5us:100GB/s."
            f"{suggest_nearest(word.lower(), KNOWN_LINKS)}"
        )
    if not _SECONDS.fullmatch(alpha):
        raise BadInput(f"Link {text!r}: the latency {alpha!r} must be a time with its unit, such as 5us.")
    alpha_s = parse_duration_s(alpha, zero_ok=True)
    return LinkModel(name=word, alpha_s=alpha_s, beta_bytes_per_s=_parse_beta_bytes_per_s(beta, text))


def describe_link(link: LinkModel) -> str:
    """Describe a link with its assumed bandwidth, latency and uncertainty."""
    rate = f"{link.beta_bytes_per_s / 1e9:.4g} GB/s per GPU and direction"
    start = f"{link.alpha_s * 1e6:.3g} µs per message"
    known_link = KNOWN_LINKS.get(link.name)
    nominal = ""
    if known_link is not None:
        share, most = format_percent(known_link.share), known_link.nominal_bytes_per_s / 1e9
        nominal = f", {share} of the {most:.3g} of {known_link.title}"
    return f"{link.name}: {rate}{nominal}; {start}; ±{format_percent(link.uncertainty)}"


def _parse_beta_bytes_per_s(beta: str, text: str) -> float:
    match = _SPEED.fullmatch(beta)
    if match is None:
        raise BadInput(f"Link {text!r}: the bandwidth {beta!r} must have its unit, such as 100GB/s or 400Gbit/s.")
    number, prefix, binary, of = match.groups()
    if binary and not prefix:
        raise BadInput(f"Link {text!r}: the bandwidth {beta!r} has a binary unit without a prefix; write, e.g., GiB/s.")
    speed = float(number) * (1024.0 if binary else 1000.0) ** _PREFIXES[prefix] / (1 if of == "B" else 8)
    if not SLOWEST_BYTES_PER_S <= speed <= FASTEST_BYTES_PER_S:
        raise BadInput(f"Link {text!r}: the bandwidth {beta} must be between 1 kB/s and 1 PB/s.")
    return speed


PREDICTION_METHOD = "α–β model, from full to no overlap of communication"
EQUAL_GPUS = (
    "Every GPU computes as fast as the one measured alone: no contention, no shared power limit, no stragglers."
)
NOTHING_SENT = "Nothing is sent: every segment lies within a shard."
EXCLUSIVE_LINKS = (
    "A GPU sends and receives at the same time, one message after another, on links without other traffic; "
    "where paths differ, the named link is the slowest."
)
PARTLY_HIDDEN = (
    "The value is halfway between full and no overlap of communication with computation; "
    "the interval reaches from full overlap on a fast link to no overlap on a slow one."
)


@dataclass(frozen=True)
class RankTraffic:
    """Messages that one rank receives in one call, and their bytes."""

    messages: int
    received_bytes: int


@dataclass(frozen=True)
class PredictedTime:
    """A predicted time, its parts, and its assumptions."""

    time_s: Estimate
    compute_s: float
    communication_s: float
    assumptions: tuple[str, ...]


def predict_time(compute_s: Estimate, traffic: RankTraffic, link: LinkModel) -> PredictedTime:
    """Predict the time of a call from its measured computation, in seconds, and its messages over a link.

    Without an interval of the computation, the prediction has none.
    """
    counts = (traffic.messages, traffic.received_bytes)
    communication_s = link.time_s(*counts)
    if not any(counts):
        return PredictedTime(compute_s, compute_s.value, 0.0, (EQUAL_GPUS, NOTHING_SENT))
    low = max(compute_s.low, link.fastest_s(*counts)) if compute_s.low is not None else None
    high = compute_s.high + link.slowest_s(*counts) if compute_s.high is not None else None
    overlapped, exposed = max(compute_s.value, communication_s), compute_s.value + communication_s
    no_interval = f"{NO_INTERVAL}the computation has none" if compute_s.bounds is None else ""
    update = {"value": (overlapped + exposed) / 2, "low": low, "high": high, "unit": "s", "scope": "machine"}
    time_s = compute_s.model_copy(update={**update, "method": f"{PREDICTION_METHOD}{no_interval}"})
    return PredictedTime(
        time_s, compute_s.value, communication_s, (EQUAL_GPUS, describe_link(link), EXCLUSIVE_LINKS, PARTLY_HIDDEN)
    )


def ring_traffic(costs: AttentionCosts, ranks: int, *, backward: bool) -> RankTraffic:
    """Return what the last rank of a ring receives in one call: with a causal mask no other receives more.

    A branch whose segments lie within a shard adds nothing.
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
    """Return the speedup, with the interval from the bounds of both; no interval where one has none."""
    return predict_efficiency(alone, together, 1)


def predict_efficiency(alone: Estimate, together: Estimate, share: int) -> Estimate:
    """Return the speedup per GPU; in weak scaling, where the work grows with the GPUs, ``share`` is 1."""
    low, high = None, None
    if alone.low is not None and alone.high is not None and together.low and together.high:
        low, high = alone.low / (share * together.high), alone.high / (share * together.low)
    method = f"T1 / ({share} T)" if share > 1 else "T1 / T"
    value, n = alone.value / (share * together.value), min(alone.n, together.n)
    update = {"value": value, "low": low, "high": high, "unit": "", "method": method, "n": n}
    return together.model_copy(update=update)
