"""What came out: records of trials, estimates with their intervals, findings with their verdicts."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from assay.core.plan import Cache, Isolation
from assay.core.values import SCHEMA_VERSION, Params, Value

Scope = Literal["process", "run", "machine"]
STAND_IN = "ASSAY_STAND_IN"
"""Set where a machine only plays that of a provider: numbers from it are never called real."""

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
    digest: str | None = Field(default=None, description="SHA-256 of the file; null before it is written.")


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


class Parity(Value):
    """Whether a fast path gave what its reference gives, looked at before anything was timed.

    Errors are absolute; null where they are not finite, or nothing was compared.
    """

    passed: bool | None = Field(description="Null: not checked, which is not passed.")
    reason: str | None = Field(default=None, description="Why it did not pass, or was not checked.")
    measure: str = Field(description="What was compared with what, and over what.")
    mean_error: float | None = None
    mean_limit: float | None = None
    max_error: float | None = None
    max_limit: float | None = None
    dense_max_error: float | None = Field(
        default=None, description="Of attention with a mask in the same dtype; null for functions of the user's."
    )
    deterministic: bool | None = Field(default=None, description="Whether calls again gave the same bits; not judged.")
    rows_checked: int | None = Field(default=None, description="Of ``rows``: queries, or elements of an output.")
    rows: int | None = None

    @model_validator(mode="after")
    def _a_reason_unless_passed(self) -> Self:
        if not self.passed and not self.reason:
            raise ValueError("a parity that did not pass says why")
        return self


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
    measured: dict[str, float] | None = Field(
        default=None, description="What one untimed call was seen to do, by names that end in a unit; null: not looked."
    )
    parity: Parity | None = Field(
        default=None, description="Of a fast path with its reference, where its role asks for it; null: not asked."
    )
    left_out: str | None = Field(
        default=None, description="In pairs or stages: why it was not timed, where the others were."
    )
    reached: bool = Field(default=True, description="In pairs or stages: false where its turn never came.")
    refused: bool = Field(default=False, description="In stages: left out as the machine cannot, not as it failed.")
    senseless: bool = Field(default=False, description="In stages: left out as what it was told cannot be.")
    placement: dict[str, str] | None = Field(
        default=None, description="Which part of a model really lies on which device; null: it is not of parts."
    )
    dtype: str | None = Field(default=None, description="Of a model's weights, as they were loaded; null: not told.")
    notes: tuple[str, ...] = Field(default=(), description="What its user should know about how it was put in place.")


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
    load_s: float | None = Field(default=None, description="How long it was up.")
    load_cpu_s: float | None = Field(default=None, description="CPU time it used meanwhile.")
    log: str | None = Field(default=None, description="What the worker printed, within the run folder.")
    trace: str | None = Field(
        default=None, description="One call of each subject as PyTorch's profiler saw it, within the run folder."
    )


class Tried(Value):
    """A configuration that a tuner tried. Without a time it did not work, or the tuner did not say."""

    config: Params
    time_us: float | None = None
    reason: str | None = Field(default=None, description="Why it did not work.")


class Tuning(Value):
    """What a tuner chose in one process. Without a configuration it found none that works, for ``reason``."""

    role: str
    restart: int
    subject: int = 0
    tuner: str
    version: str | None = Field(default=None, description="Of the tuner; null: it is Assay's own, or does not say.")
    config: Params | None
    time_us: float | None = Field(description="Of the chosen configuration, as the tuner saw it.")
    tried: tuple[Tried, ...] = ()
    tuning_s: float
    start_ns: int
    end_ns: int
    reason: str | None = None
    notes: tuple[str, ...] = ()


class GpuSeen(Value):
    """What the monitor saw of a GPU while a trial was timed. Null: not offered, or not seen."""

    gpu: int
    uuid: str
    power_w: float | None = Field(default=None, description="Mean over time, of the reading that follows best.")
    power_max_w: float | None = None
    sm_mhz_low: float | None = None
    sm_mhz_high: float | None = None
    temperature_c: float | None = Field(default=None, description="The highest.")
    utilisation_percent: float | None = None
    utilisation_max_percent: float | None = None
    memory_used_mib: float | None = Field(default=None, description="The most.")
    throttled_s: float | None = Field(default=None, description="Held back by power, heat or a brake.")
    throttle_share: dict[str, float] = Field(default_factory=dict)
    pcie_mb_per_s: float | None = Field(default=None, description="Both ways together.")
    temperature_mean_c: float | None = None
    sm_mhz_mean: float | None = None
    energy: Estimate | None = Field(default=None, description="Of this GPU while the trial was timed; null: not told.")
    energy_note: str | None = Field(default=None, description="How the energy was told, or why it was not.")


class Settled(Value):
    """How a trial waited, under load, until clocks and heat were steady before anything was timed."""

    waited_s: float
    steady: bool = Field(description="False: the time allowed was up first.")
    temperature_c: dict[str, float] = Field(default_factory=dict, description="By GPU UUID, at the end.")
    drift_c: dict[str, float] = Field(default_factory=dict, description="By UUID, in °C a minute.")
    note: str | None = Field(default=None, description="What was not steady, or what could not be read.")


class Meanwhile(Value):
    """What the monitor saw while a trial was timed. Null: not seen."""

    seen_s: float
    samples: int
    gpus: tuple[GpuSeen, ...] = ()
    power_sum_max_w: float | None = Field(
        default=None, description="The most that all of these GPUs drew at one moment; null: not all of them say."
    )
    cpu_percent: float | None = Field(default=None, description="Of all CPUs' time: busy.")
    steal_percent: float | None = None
    context_switches_per_s: float | None = None
    pressure_cpu_percent: float | None = Field(default=None, description="Of the time: some thread waited for a CPU.")
    memory_used_mib: float | None = None
    complaints: tuple[str, ...] = Field(default=(), description="What of it is more than a measurement bears.")


class Stage(Value):
    """What was seen of one subject in stages while one process called it: its window, its watts and joules.

    Its samples are the series of the same role, subject and restart.
    """

    role: str
    subject: int
    restart: int
    start_ns: int
    end_ns: int
    calls: int = Field(ge=1)
    meanwhile: Meanwhile | None = Field(default=None, description="With the energy of each GPU; null: nobody watched.")
    energy: Estimate | None = Field(default=None, description="Of all GPUs together; null where it cannot be told.")
    energy_note: str | None = Field(default=None, description="How the energy was told, or why it was not.")
    host_energy: dict[str, Estimate] = Field(
        default_factory=dict, description="Of processors and memory, by RAPL's names: package-0, package-0/dram."
    )
    host_note: str | None = Field(default=None, description="How that was told, or why it was not.")


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
    take: int = Field(default=1, ge=1, description="Above 1: measured again, as the take before was disturbed.")
    window: Window
    series: tuple[Series, ...] = ()
    estimates: tuple[Summary, ...] = ()
    tunings: tuple[Tuning, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    disturbance: Disturbance | None = None
    gpus_before: tuple[GpuMoment, ...] = ()
    gpus_after: tuple[GpuMoment, ...] = ()
    energy: Estimate | None = Field(
        default=None, description="Of its devices while it was timed; null where that cannot be told."
    )
    energy_note: str | None = Field(default=None, description="How the energy was told, or why it was not.")
    sensors: str | None = Field(default=None, description="The monitor's file; null where none watched.")
    sensors_bytes: int | None = Field(default=None, ge=0, description="How long that file was by then.")
    sensors_digest: str | None = Field(default=None, description="SHA-256 of so many bytes of it.")
    meanwhile: Meanwhile | None = Field(default=None, description="Null where no monitor watched.")
    settled: Settled | None = Field(default=None, description="Null where steadiness was not waited for.")
    stages: tuple[Stage, ...] = Field(default=(), description="Of a role in stages; also of those before a failure.")
    disturbed: tuple[str, ...] = Field(
        default=(), description="By what, beyond what a measurement bears; empty: by nothing that was seen."
    )
    status: Status
    reason: str | None = None
    senseless: bool = Field(
        default=False, description="In stages: it failed as what it was told cannot be, so that trying again is no use."
    )
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
