"""What came out: records of trials, estimates with their intervals, findings with their verdicts."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from assay.core.plan import Cache, Isolation
from assay.core.values import SCHEMA_VERSION, Params, Value

Scope = Literal["process", "run", "machine"]
Status = Literal["ok", "failed", "refused", "skipped"]
Origin = Literal["real", "fake", "simulated"]
Verdict = Literal["yes", "no", "unsure"]


class Estimate(Value):
    """A number with its unit, its interval and the way it was obtained.

    ``low`` and ``high`` are null when too little was measured to say how sure the value is.
    """

    value: FiniteFloat
    low: FiniteFloat | None
    high: FiniteFloat | None
    unit: str
    scope: Scope
    method: str
    confidence: float = 0.95
    n: int = Field(ge=1)

    @model_validator(mode="after")
    def _interval_is_whole(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has both ends or none")
        return self

    @property
    def relative_half_width(self) -> float | None:
        """Half the interval over the value: 0.01 is ±1 %. Null without an interval."""
        if self.low is None or self.high is None or self.value == 0:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


class Window(Value):
    """When and on which host a record was taken; monotonic nanoseconds count within one boot."""

    host: str
    boot_id: str
    start_ns: int
    end_ns: int
    started_at: str = Field(description="Wall-clock start, ISO 8601, UTC.")


class Series(Value):
    """Every sample of one quantity in the order it was taken, kept in ``samples/``."""

    role: str
    rank: int
    subject: int
    restart: int
    quantity: str
    unit: str
    file: str
    n: int
    calls_per_sample: int = 1
    start_ns: int
    end_ns: int


class Summary(Value):
    """What the samples of one subject say: the estimate, and the shape of the samples."""

    role: str
    subject: int
    quantity: str
    estimate: Estimate
    n: int
    mean: float
    quartiles: tuple[float, float, float]
    minimum: float
    maximum: float
    cv: float | None = Field(description="Standard deviation over mean of repeats; null for one sample.")
    autocorrelation: float | None = Field(description="Of neighbouring samples; null where undefined.")


class Check(Value):
    """How far a subject's output was from its float64 reference before anything was timed."""

    error: float
    tolerance: float
    measure: str

    @property
    def passed(self) -> bool:
        """Whether the output is right; NaN never passes."""
        return self.error <= self.tolerance


class HowTimed(Value):
    """By which method a subject is timed, and why; what it launches, and how far the method itself may be off."""

    method: str
    why: str
    cache: Cache
    operations: int | None = None
    instrument_error_us: float | None = None


class SubjectFacts(Value):
    """What a worker found out about a subject before timing it. Null: not stated, not checked."""

    subject: int
    flop: float | None = None
    bytes_moved: float | None = None
    check: Check | None = None
    backend: str | None = Field(default=None, description="Which library really did the work, seen in its kernels.")
    kernels: tuple[str, ...] | None = Field(default=None, description="The kernels one call launches, in order.")
    timed: HowTimed | None = Field(default=None, description="Null where calls are counted, or nothing is timed.")


class Evidence(Value):
    """What a worker read back about itself: where it really ran and what disturbed it."""

    role: str
    rank: int
    restart: int
    pid: int
    device: str
    isolation_asked: Isolation
    isolation_held: Isolation
    isolation_notes: tuple[str, ...] = ()
    allowed_cores: tuple[int, ...]
    thread_limit: int | None = Field(description="Threads allowed to OpenMP and BLAS; null: their default.")
    memory_nodes: tuple[int, ...] | None = Field(
        description="NUMA nodes memory is bound to; null: not bound, or the kernel would not say."
    )
    pages_by_node: dict[int, int] | None = Field(
        default=None, description="Where its memory lay at the end; null: the kernel would not say."
    )
    setup_s: float
    involuntary_switches: int | None = None
    voluntary_switches: int | None = None
    cpu_s: float | None = None
    peak_memory_mib: float | None = None
    subjects: tuple[SubjectFacts, ...] = ()
    load_calls: int | None = Field(default=None, description="Calls a load role made while others were timed.")
    log: str | None = Field(default=None, description="What the worker printed, within the run folder.")


class GpuMoment(Value):
    """What a GPU in use did just before or just after a trial. Null: not offered."""

    uuid: str
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] | None = Field(default=None, description="Why its clock was not higher, in words.")


class Disturbance(Value):
    """What others did while a trial ran, or while we listened. Null: cannot be known."""

    looked_s: float
    steal_share: float | None = Field(description="Of all CPU time: taken away by the hypervisor.")
    outside_cores: float | None = Field(description="CPUs' worth of load by processes not ours.")
    unseen_cores: float | None = Field(description="CPUs' worth of load that no process to be seen explains.")
    busiest: tuple[str, ...] = ()
    gpu_processes: tuple[str, ...] = Field(default=(), description="On the GPUs in use, and not ours.")
    complaints: tuple[str, ...] = Field(default=(), description="What of it is more than a measurement bears.")


class Record(Value):
    """One trial, measured once; appended and synced as it ends."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    trial: str
    block: str
    attempt: int = Field(ge=1)
    window: Window
    series: tuple[Series, ...] = ()
    estimates: tuple[Summary, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    disturbance: Disturbance | None = None
    gpus_before: tuple[GpuMoment, ...] = ()
    gpus_after: tuple[GpuMoment, ...] = ()
    energy: Estimate | None = Field(default=None, description="Null where nothing here can meter it.")
    sensors: str | None = Field(default=None, description="The monitor's file; null where none watched.")
    status: Status
    reason: str | None = None
    notes: tuple[str, ...] = ()
    stderr_tail: str | None = None
    origin: Origin = "real"

    @model_validator(mode="after")
    def _a_reason_unless_ok(self) -> Self:
        if self.status != "ok" and not self.reason:
            raise ValueError(f"a record that is {self.status} says why")
        return self


class Finding(Value):
    """A claim, judged: what is claimed, the number it rests on, the verdict, and the records behind it."""

    claim: str
    estimate: Estimate | None
    verdict: Verdict
    records: tuple[str, ...] = Field(description="Trial ids of the records it rests on.")
    reason: str | None = None
    facts: Params = Field(default_factory=dict)
    origin: Origin = "real"


class Findings(Value):
    """All that a run found; the content of ``findings.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    headline: str
    findings: tuple[Finding, ...] = ()
