"""Results as a file: the older tool's form, with what it lacked beside it. ``apply`` decides from it anew.

The older names: a row has ``branch``, ``sequence_length``, ``window_size``, ``speedup``, ``masked_ms`` (the reference)
and ``fa2_ms`` (the fast path). ``recommendation`` has a value for each key's last part; null: nothing to write.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from assay.core.values import SCHEMA_VERSION, Params, Scalar, Value
from assay.experiments.threshold.checked import Checked
from assay.experiments.threshold.options import DecideOn, Time
from assay.stats.crossover import Kind, State
from assay.store.identity import Identity

Size = int | float


class DeviceInfo(Value):
    """Where it was measured."""

    device_name: str | None
    torch_version: str | None
    cuda_version: str | None
    device: str | None = None
    uuid: str | None = None
    driver_version: str | None = None


class Timed(Value):
    """A point by one time: medians, the mean speed-up with its bounds, and every pair of every process."""

    speedup: float
    low: float | None = Field(description="Null before the first planned look.")
    high: float | None
    masked_ms: float
    fa2_ms: float
    log_speedups: tuple[tuple[float, ...], ...]


class Row(Value):
    """One point of a grid that was looked at; ``speedup`` and the times beside it are of the time that is worst."""

    threshold: str
    branch: str
    sequence_length: int | None
    window_size: int | None
    speedup: float | None
    masked_ms: float | None
    fa2_ms: float | None
    size: Size
    low: float | None
    high: float | None
    state: State | None
    parity: Checked
    parity_reason: str | None = None
    refused: str | None = Field(default=None, description="Why it could not be measured, and does not count.")
    cannot: str | None = Field(default=None, description="Why the fast path does not work there.")
    params: Params
    times: dict[Time, Timed] = Field(default_factory=dict)


class Placed(Value):
    """Where a threshold is by one time."""

    decision: Kind
    size: Size | None
    low: Size | None
    high: Size | None


class Entry(Value):
    """One threshold and its answer."""

    name: str
    key: str
    decision: Kind
    value: Scalar
    low: Size | None
    high: Size | None
    margin: float = Field(gt=1)
    decided_on: DecideOn
    never: Scalar
    axis: str
    branch: Literal["sliding", "compressed"] | None
    reference: str
    fast: str
    parity: Checked
    by_time: dict[Time, Placed]
    ranges: tuple[tuple[Size, Size], ...] = ()
    fit: tuple[tuple[Size, float], ...] = Field(default=(), description="Sizes and the nearest rising speed-ups.")
    why: tuple[str, ...] = ()
    unmeasured: tuple[Params, ...] = Field(default=(), description="Points of the grid that were not looked at.")
    unmeasured_sizes: tuple[Size, ...] = ()


class Results(Value):
    """The content of ``older/thresholds.json``."""

    schema_version: int = Field(
        default=SCHEMA_VERSION, le=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema"
    )
    assay: str
    measured_at: str | None
    device_info: DeviceInfo
    recommendation: dict[str, Scalar]
    parity_passed: bool
    identity: Identity | None = Field(
        default=None, description="What must agree for two results to be comparable, by aspect and name."
    )
    thresholds: tuple[Entry, ...] = Field(min_length=1)
    results: tuple[Row, ...]
