"""What is known of a GPU as an instrument, or assumed until it is found out."""

from __future__ import annotations

from pydantic import Field

from assay.core.values import Value

REFERENCE_NS = 2_000
"""The references spin for so long on the device's own timer: one in a single thread, one on all multiprocessors."""

REFERENCE_THREADS = 128

ERROR_US = {"graph": 0.3, "queue": 0.6}
"""How far a time by stamps may be from the activity trace's, on top of noise: as seen on H200s (docs/evidence.md)."""


class Known(Value):
    """What the stamps need to know of a GPU under a driver, in the convention of its activity trace."""

    gpu: str
    driver: str
    empty_us: float = Field(description="What the trace says a kernel takes that spins for no time.")
    reference_us: dict[str, float] = Field(
        description="What it says a reference takes, by kind and cache: 'wide cold'."
    )
    boundary_us: dict[str, float] = Field(description="Between two operations, by method and cache: 'graph cold'.")
    error_us: dict[str, float] = Field(description="How far a time may be off, on top of its interval, by method.")


ASSUMED = Known(
    gpu="any",
    driver="any",
    empty_us=0.6,
    reference_us={"spin cold": 2.6, "spin warm": 2.6, "wide cold": 3.4, "wide warm": 3.0},
    boundary_us={f"{method} {cache}": 0.0 for method in ("graph", "queue") for cache in ("cold", "warm")},
    error_us={method: 2 * error_us for method, error_us in ERROR_US.items()},
)
"""Where there is no trace to learn from: what H200s show, with twice the error."""
