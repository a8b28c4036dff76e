"""What takes samples: an instrument is set on one call and gives them in batches, each quantity by its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Call: TypeAlias = Callable[[], object]

Samples: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """What one go of an instrument gave.

    Attributes:
        quantities: Samples in the order they were taken: ``busy_us``, ``span_us``, ``call_us``, ``cycles``.
        mhz: The device's clock while the calls ran, in its own cycles per microsecond; null where it has none.
    """

    quantities: Mapping[str, Samples] = field(default_factory=dict)
    mhz: float | None = None


class Instrument(Protocol):
    """Takes samples of one call.

    Attributes:
        method: ``graph``, ``queue``, ``trace`` or ``wall``.
        primary: The quantity whose precision decides when it is enough.
        calls_per_sample: How many calls are averaged in one sample.
    """

    method: str
    primary: str
    calls_per_sample: int

    def take(self) -> Batch:
        """Take the next samples."""
        ...

    def replan(self) -> bool:
        """Put calls together anew where the last batch contradicts the plan; return whether anything changed."""
        ...

    def close(self) -> None:
        """Give back what is held on the device."""
        ...


@runtime_checkable
class Averaging(Protocol):
    """An instrument that gives each call as a sample, or averages all of a batch where calls are short."""

    typical_us: float

    def average_by(self, typical_us: float) -> None:
        """Decide it by how long a call takes."""
        ...


def joined(batches: list[Batch]) -> dict[str, Samples]:
    """Return all samples of several batches, quantity by quantity, in order."""
    names = list(dict.fromkeys(name for batch in batches for name in batch.quantities))
    return {
        name: np.concatenate([batch.quantities[name] for batch in batches if name in batch.quantities])
        for name in names
    }
