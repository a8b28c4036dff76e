"""What a run about power leaves for those who look at many runs: a row for each case and GPU, or point of a sweep.

Rows are written as JSON lines into the run folder and read back from as many folders as wanted, without their records:
a fleet of ten thousand GPUs is some ten thousand lines.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from assay.core.results import Origin
from assay.core.values import SCHEMA_VERSION, Scalar, Value

GPUS_FILE = "power/gpus.jsonl"
SWEEP_FILE = "power/sweep.jsonl"

Knob = Literal["power_limit_w", "sm_mhz", "size", "dtype", "batch", "duty"]


class Where(Value):
    """Which GPU it was, in which machine. Without GPUs, a group of cores: its name stands for the UUID."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    run: str = Field(description="The run folder's name.")
    started_at: str = Field(description="ISO 8601, UTC.")
    host: str = Field(description="Tells hosts apart; a name only where it was asked for.")
    rack: str | None = Field(default=None, description="Null: not known.")
    uuid: str
    slot: int = Field(description="The GPU's number on its host, which is where it sits.")
    device: str
    model: str
    origin: Origin = "real"


class Calls(Value):
    """What the timed calls took, spent and saw. Null: not measured, or not told."""

    n: int = Field(ge=1, description="Calls that were timed.")
    quantity: str = Field(default="span_us", description="Which time it is: of the kernels, or what a caller waits.")
    median_us: float
    low_us: float | None = None
    high_us: float | None = None
    quartiles_us: tuple[float, float, float]
    mean_us: float
    cv: float | None = Field(default=None, description="Of the calls, their order kept out of it.")
    restart_medians_us: tuple[float, ...] = Field(default=(), description="One per start of the worker.")
    energy_per_call_j: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    gflop_per_j: float | None = None
    power_w: float | None = None
    sm_mhz: float | None = None
    temperature_c: float | None = None
    utilisation_percent: float | None = None
    held_back: dict[str, float] = Field(default_factory=dict, description="Share of the time, by throttle reason.")


class GpuRow(Where, Calls):
    """One timed GPU in one case of one repeat; the content of ``power/gpus.jsonl``."""

    case: str
    repeat: int = Field(default=1, ge=1)
    workload: str = Field(description="Its label, as sgemm@torch.")
    params: dict[str, Scalar] = Field(default_factory=dict)
    config: dict[str, Scalar] = Field(default_factory=dict, description="A configuration that was chosen for it.")
    isolation: str | None = Field(default=None, description="As it was asked for; null: not recorded.")
    neighbours: tuple[str, ...] = Field(
        default=(), description="What ran on the other GPUs meanwhile, as cuda:1 resnet50@torch; none: nothing did."
    )
    idle_w: float | None = Field(default=None, description="Of this GPU when idle, in the same run.")


class SweepRow(Where, Calls):
    """One GPU at one setting; the content of ``power/sweep.jsonl``."""

    workload: str
    params: dict[str, Scalar] = Field(default_factory=dict)
    knob: Knob
    setting: Scalar = Field(description="Watts, MHz, elements, a dtype's name, a share; null: as it was found.")
    calls_per_s: float
    work_per_call: float | None = Field(default=None, description="In FLOP, or bytes where it computes nothing.")
