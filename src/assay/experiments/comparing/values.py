"""What can be compared: a number, what it is of, and where it was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.results import Origin
    from assay.store.identity import Detail

View = Literal["times", "tunings", "shapes", "speed-ups", "rows", "findings"]
"""In which terms results are told: two results can be compared in terms that both have."""


@dataclass(frozen=True)
class Name:
    """What a number is of: the work in its implementation, what else must agree, the quantity, and the estimator.

    ``method`` is null where the source does not say how its numbers were obtained, or nothing was measured.
    """

    work: str
    details: tuple[Detail, ...]
    quantity: str
    method: str | None = None


@dataclass(frozen=True)
class Number:
    """One number that a result holds.

    Attributes:
        device: Tells devices of one model apart: a GPU's UUID. Null: not told.
        model: The model of the GPU, or of the host where there is none. Null: not told.
        value: Null where it was not measured, for ``reason``.
        low, high: Its interval; null where too little was measured.
        unit: As people write it.
        processes: How many processes the interval is over; 1: it is within one. Null: not told.
        draws: What each process gave, where that is all there is: the interval is then made of them.
    """

    name: Name
    device: str | None
    model: str | None
    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    processes: int | None = None
    draws: tuple[float, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Source:
    """A result that is there.

    Attributes:
        path: As the user wrote it.
        kind: What it is, in words.
        readers: By view, the one that tells most first, how its numbers are read.
        facts: What else is known of how it was measured: driver, versions, commit.
        origin: Whether a device was really there.
        notes: What must be known of it.
    """

    path: str
    kind: str
    readers: Mapping[View, Callable[[], Sequence[Number]]]
    facts: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = "real"
    notes: tuple[str, ...] = ()
