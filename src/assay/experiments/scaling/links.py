"""Links between GPUs, by what a message over one takes: a start, and a time for each byte.

    time = α + bytes / β

``beta_bytes_per_s`` is of one direction of one GPU, as programs see it and not as data sheets print it;
docs/scaling.md says where the numbers come from.
"""

from __future__ import annotations

import re

from pydantic import Field

from assay.core.errors import BadInput, nearest
from assay.core.units import parse_duration_s
from assay.core.values import Value

UNCERTAINTY = 0.2
"""Published predictions of this kind err by 10 to 20 %; the larger is taken."""

_PREFIXES = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}
_NUMBER = r"[0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?"
_SPEED = re.compile(rf"({_NUMBER}) ?([kMGT]?)(i?)(B|bit)/s")
_SECONDS = re.compile(rf"{_NUMBER} ?(?:ns|us|µs|μs|ms|s)")
FASTEST_BYTES_PER_S, SLOWEST_BYTES_PER_S = 1e15, 1e3
"""Beyond these no link of a GPU is; a number there is a slip of the finger."""


class Link(Value):
    """How fast messages travel: ``alpha_s`` to start one, ``beta_bytes_per_s`` while it flows.

    What it takes lies within ``uncertainty`` of that, both ways.
    """

    name: str = Field(min_length=1)
    alpha_s: float = Field(ge=0, allow_inf_nan=False)
    beta_bytes_per_s: float = Field(gt=0, allow_inf_nan=False)
    uncertainty: float = Field(default=UNCERTAINTY, ge=0, lt=1)

    def time_s(self, messages: int, received_bytes: int) -> float:
        """Return what messages of so many bytes together take, one after another."""
        return messages * self.alpha_s + received_bytes / self.beta_bytes_per_s

    def fastest_s(self, messages: int, received_bytes: int) -> float:
        """Return the same at the link's fast end."""
        return self.time_s(messages, received_bytes) * (1 - self.uncertainty)

    def slowest_s(self, messages: int, received_bytes: int) -> float:
        """Return the same at the link's slow end."""
        return self.time_s(messages, received_bytes) * (1 + self.uncertainty)


class Known(Value):
    """A link by name: what its data sheet says of one direction, and the share of it that programs see."""

    title: str
    nominal_bytes_per_s: float
    share: float
    alpha_s: float


KNOWN = {
    "nvlink4": Known(title="NVLink 4 (H100, H200)", nominal_bytes_per_s=450e9, share=0.8, alpha_s=12e-6),
    "pcie5": Known(title="PCIe 5.0 x16", nominal_bytes_per_s=63e9, share=0.8, alpha_s=14e-6),
    "eth400": Known(
        title="400 Gbit/s Ethernet, a card for each GPU", nominal_bytes_per_s=50e9, share=0.9, alpha_s=20e-6
    ),
}


def link_of(text: str) -> Link:
    """Return the link that a user's words mean: one of the known, or ``ALPHA:BETA`` with units."""
    word = text.strip()
    if word.lower() in KNOWN:
        name = word.lower()
        known_link = KNOWN[name]
        return Link(
            name=name, alpha_s=known_link.alpha_s, beta_bytes_per_s=known_link.share * known_link.nominal_bytes_per_s
        )
    alpha, colon, beta = word.partition(":")
    if not colon:
        raise BadInput(
            f"There is no link {text!r}; there are {', '.join(KNOWN)}, or write ALPHA:BETA, such as 5us:100GB/s."
            f"{nearest(word.lower(), KNOWN)}"
        )
    return Link(
        name=word, alpha_s=_alpha_s(alpha.strip(), text), beta_bytes_per_s=_beta_bytes_per_s(beta.strip(), text)
    )


def told(link: Link) -> str:
    """Return a link in words, with what is assumed of it."""
    rate = f"{link.beta_bytes_per_s / 1e9:.4g} GB/s a GPU and direction"
    start = f"{link.alpha_s * 1e6:.3g} µs to start a message"
    known_link = KNOWN.get(link.name)
    of_it = (
        ""
        if known_link is None
        else f", {known_link.share:.0%} of the {known_link.nominal_bytes_per_s / 1e9:.3g} of {known_link.title}"
    )
    return f"{link.name}: {rate}{of_it}; {start}; ±{link.uncertainty:.0%}"


def _alpha_s(alpha: str, text: str) -> float:
    if not _SECONDS.fullmatch(alpha):
        raise BadInput(
            f"In the link {text!r}, {alpha!r} is no time to start a message; write it with its unit, as 5us."
        )
    return parse_duration_s(alpha, zero_ok=True)


def _beta_bytes_per_s(beta: str, text: str) -> float:
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
