"""Results: records of trials, estimates with their intervals, findings with their verdicts.

The checks of ``assay doctor``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from assay.core.values import SCHEMA_VERSION, Cache, Isolation, Params, Value

if TYPE_CHECKING:
    from assay.core.values import Scalar


Scope = Literal["process", "run", "machine"]
STAND_IN = "ASSAY_STAND_IN"
"""Set where a machine only stands in for that of a provider: its measurements are never marked as real."""

Status = Literal["ok", "failed", "refused", "skipped"]
Origin = Literal["real", "fake", "simulated"]
Verdict = Literal["yes", "no", "unsure"]
EnergyRefusal = Literal[
    "no_readings", "no_sensor", "counter_reset", "too_few_ticks", "not_covered", "too_wide", "no_energy", "no_calls"
]
"""Why the energy of a window is not reported: a longer window fixes `too_few_ticks` and `too_wide`."""

FailureCode = Literal["error", "out_of_memory", "machine_cannot", "bad_input", "peer_lost"]
"""Why a worker could not measure: `peer_lost` is what a rank sees when another one is gone."""

MISSING_ENERGY = "Why there is none, by an EnergyRefusal or not_watched, not_metered; null: there is."

NOT_REACHED = "not_reached"
"""The code of a subject in pairs or stages whose turn never came."""

NO_INTERVAL = "; no interval: "
"""In the method of an estimate, this precedes the reason why it has no interval."""

_COUNT = re.compile(r"\b\d+\b")


def method_key(method: str) -> str:
    """Return the part of a method that identifies it, for comparing methods.

    The number of processes, repeats or blocks does not make a different method, nor does a missing interval.
    """
    return _COUNT.sub("N", method.partition(NO_INTERVAL)[0])


class Missing(Value):
    """Why there is no number."""

    code: str = Field(description="For programs.")
    detail: str = Field(description="The same for people, as a clause.")


class Note(Value):
    """Something that a reader should know about a result."""

    code: str = Field(description="What it is about, for programs.")
    message: str = Field(description="The same for people, as a clause.")
    severity: Literal["remark", "warning"] = Field(
        default="remark", description="warning: numbers may mean something else than they seem to."
    )
    params: Params = Field(default_factory=dict, description="The numbers in the message; units in the names.")

    def __hash__(self) -> int:
        return hash((self.code, self.message))

    def __str__(self) -> str:
        return self.message

    @classmethod
    def remark(cls, code: str, message: str, **params: Scalar) -> Self:
        """Return a note on how something was measured."""
        return cls(code=code, message=message, params=params)

    @classmethod
    def warning(cls, code: str, message: str, **params: Scalar) -> Self:
        """Return a note on what may change the meaning of a number."""
        return cls(code=code, message=message, severity="warning", params=params)


class Estimate(Value):
    """A number with its unit, its interval and the method it was obtained with.

    ``low`` and ``high`` are null when too little was measured for an interval. Two estimates whose ``method_key``
    differs are not comparable: where an estimator changes, its ``method`` changes with it.
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
    def _check_interval(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has both ends or none")
        return self

    @property
    def method_key(self) -> str:
        """The method without counts, and without the reason for a missing interval."""
        return method_key(self.method)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval; null where there is none."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def scaled(self, unit: str, *, times: float = 1.0, over: float = 1.0) -> Self:
        """Return it in another unit: value and bounds times one positive factor, over another."""
        low, high = (None if end is None else end * times / over for end in (self.low, self.high))
        return self.model_copy(update={"value": self.value * times / over, "low": low, "high": high, "unit": unit})

    @property
    def relative_half_width(self) -> float | None:
        """Half the interval over the value: 0.01 is ±1 %. Null without an interval."""
        if self.low is None or self.high is None or self.value == 0:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


class Window(Value):
    """When and on which host a record was taken; monotonic nanoseconds are valid within one boot."""

    host: str
    boot_id: str
    start_ns: int
    end_ns: int
    started_at: str = Field(description="Wall-clock start, ISO 8601, UTC.")


class Series(Value):
    """Every sample of one quantity in the order it was taken, stored in ``samples/``."""

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
    """Summary of the samples of one subject: the estimate, and the shape of the samples."""

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
    """Error of a subject's output against its float64 reference, checked before anything was timed."""

    error: float
    tolerance: float
    measure: str

    @property
    def passed(self) -> bool:
        """Whether the output is right; NaN never passes."""
        return self.error <= self.tolerance


class Parity(Value):
    """Whether a fast path computes the same as its reference, checked before anything was timed.

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
        default=None, description="Of attention with a mask in the same dtype; null for user functions."
    )
    deterministic: bool | None = Field(
        default=None, description="Whether repeated calls gave the same bits; does not affect the verdict."
    )
    rows_checked: int | None = Field(default=None, description="Of ``rows``: queries, or elements of an output.")
    rows: int | None = None

    @model_validator(mode="after")
    def _check_reason(self) -> Self:
        if not self.passed and not self.reason:
            raise ValueError("a parity that did not pass says why")
        return self


class TimingMethod(Value):
    """How a subject is timed, and why; what it launches, and the error bound of the method itself."""

    method: str
    why: str
    cache: Cache
    operations: int | None = None
    instrument_error_us: float | None = None


class SubjectFacts(Value):
    """What a worker determined about a subject before timing it. Null: not stated, not checked."""

    subject: int
    flop: float | None = None
    bytes_moved: float | None = None
    check: Check | None = None
    backend: str | None = Field(
        default=None, description="Library that really did the work, detected from its kernels."
    )
    kernels: tuple[str, ...] | None = Field(default=None, description="The kernels one call launches, in order.")
    timed: TimingMethod | None = Field(default=None, description="Null where calls are counted, or nothing is timed.")
    measured: dict[str, float] | None = Field(
        default=None, description="Metrics of one untimed call, by names that end in a unit; null: not measured."
    )
    parity: Parity | None = Field(
        default=None, description="Of a fast path with its reference, if its role requests it; null: not requested."
    )
    skipped: Missing | None = Field(
        default=None,
        description="In pairs or stages: why it was not timed, where the others were; a FailureCode, or not_reached "
        "where its turn never came.",
    )
    placement: dict[str, str] | None = Field(
        default=None, description="Actual device of each part of a model; null: it has no parts."
    )
    dtype: str | None = Field(default=None, description="Of a model's weights, as loaded; null: unknown.")
    notes: tuple[Note, ...] = Field(default=(), description="What its user should know about how it was prepared.")

    @property
    def is_reached(self) -> bool:
        """Whether its turn came; always, unless it is one of pairs or stages."""
        return self.skipped is None or self.skipped.code != NOT_REACHED


IsolationCode = Literal[
    "pinning_refused",
    "cpus_missing",
    "cpus_changed",
    "memory_refused",
    "memory_unreadable",
    "memory_changed",
    "gpu_changed",
    "shared_cores",
    "shared_gpu",
]
"""Why a level of isolation did not hold: the kernel rejected it, the work undid it, or workers overlap."""


class IsolationLimit(Value):
    """One reason why no more than ``level`` held."""

    code: IsolationCode
    level: Isolation = Field(description="The most that can hold with this.")
    message: str
    shared_with: tuple[str, ...] = Field(
        default=(), description="Workers that ran at the same time on the same cores or GPU."
    )
    cpus: tuple[int, ...] = Field(default=(), description="Its logical CPUs concerned.")


class Evidence(Value):
    """What a worker read back about itself: where it really ran and what disturbed it."""

    role: str
    rank: int
    restart: int
    pid: int
    device: str
    isolation_asked: Isolation
    isolation_held: Isolation = Field(
        description="What was read back, and shared with no other worker that ran at the same time."
    )
    isolation_limits: tuple[IsolationLimit, ...] = Field(
        default=(), description="Why no more held; empty: the requested level held."
    )
    allowed_cores: tuple[int, ...]
    thread_limit: int | None = Field(description="Threads allowed to OpenMP and BLAS; null: their default.")
    memory_nodes: tuple[int, ...] | None = Field(
        description="NUMA nodes memory is bound to; null: not bound, or not reported by the kernel."
    )
    pages_by_node: dict[int, int] | None = Field(
        default=None, description="Pages on each NUMA node at the end; null: not reported by the kernel."
    )
    setup_s: float
    involuntary_switches: int | None = None
    voluntary_switches: int | None = None
    cpu_s: float | None = None
    peak_memory_mib: float | None = None
    subjects: tuple[SubjectFacts, ...] = ()
    load_calls: int | None = Field(default=None, description="Calls a load role made while others were timed.")
    load_s: float | None = Field(default=None, description="How long the load ran.")
    load_cpu_s: float | None = Field(default=None, description="CPU time it used in that time.")
    log: str | None = Field(default=None, description="What the worker printed, within the run folder.")
    trace: str | None = Field(
        default=None, description="One call of each subject traced by PyTorch's profiler, within the run folder."
    )


class TriedConfig(Value):
    """A configuration that a tuner tried. Without a time it failed, or the tuner did not report one."""

    config: Params
    time_us: float | None = None
    reason: str | None = Field(default=None, description="Why it failed.")


class Tuning(Value):
    """The configuration a tuner chose in one process. Without one it found none that works; see ``reason``."""

    role: str
    restart: int
    subject: int = 0
    tuner: str
    version: str | None = Field(default=None, description="Of the tuner; null: Assay's own, or not reported.")
    config: Params | None
    time_us: float | None = Field(description="Of the chosen configuration, as measured by the tuner.")
    tried: tuple[TriedConfig, ...] = ()
    tuning_s: float
    start_ns: int
    end_ns: int
    reason: str | None = None
    notes: tuple[str, ...] = ()


InterferenceKind = Literal[
    "processes", "kernel", "hypervisor", "gpu_processes", "gpu_throttled", "gpu_busy", "gpu_memory", "pcie"
]


class Interference(Value):
    """Something that disturbed a measurement beyond its tolerance."""

    kind: InterferenceKind
    source: str = Field(description="The source: a process's name, a GPU.")
    amount: float | None = Field(default=None, description="How much of it; null: not measured.")
    unit: str | None = Field(default=None, description='Of the amount: "cores", "%", "MiB" or "MB/s".')
    message: str = Field(description="The same as a clause.")

    @property
    def note(self) -> Note:
        """The same as a note on a trial."""
        return Note.warning(self.kind, f"interference: {self.message}", amount=self.amount, unit=self.unit)


class OutsideProcess(Value):
    """A process that is not ours, and the CPU load it caused, in cores."""

    pid: int
    name: str
    cores: float


class GpuWindowStats(Value):
    """What the monitor recorded of a GPU while a trial was timed. Null: not available, or not recorded."""

    gpu: int
    uuid: str
    samples: int | None = Field(default=None, description="Readings while the trial was timed.")
    power_samples: int | None = Field(default=None, description="Of these, how many had power.")
    power_w: float | None = Field(
        default=None, description="Mean over time, of the power reading that tracks power best."
    )
    power_max_w: float | None = None
    sm_mhz_low: float | None = None
    sm_mhz_high: float | None = None
    temperature_c: float | None = Field(default=None, description="The highest.")
    utilisation_percent: float | None = None
    utilisation_max_percent: float | None = None
    memory_used_mib: float | None = Field(default=None, description="The most.")
    throttled_s: float | None = Field(default=None, description="Throttled by power, heat or the power brake.")
    throttle_share: dict[str, float] = Field(default_factory=dict)
    pcie_mb_per_s: float | None = Field(default=None, description="Both ways together.")
    temperature_mean_c: float | None = None
    sm_mhz_mean: float | None = None
    energy: Estimate | None = Field(
        default=None, description="Of this GPU while the trial was timed; null: not reported."
    )
    energy_note: str | None = Field(default=None, description="How the energy was measured.")
    energy_missing: Missing | None = Field(default=None, description=MISSING_ENERGY)


class SettlingResult(Value):
    """How a trial waited, under load, until clocks and temperatures were steady before anything was timed."""

    waited_s: float
    steady: bool = Field(description="False: the time limit was reached first.")
    temperature_c: dict[str, float] = Field(default_factory=dict, description="By GPU UUID, at the end.")
    drift_c: dict[str, float] = Field(default_factory=dict, description="By UUID, in °C per minute.")
    note: str | None = Field(default=None, description="What was not steady, or what could not be read.")


class WindowStats(Value):
    """What the monitor recorded while a trial was timed. Null: not recorded."""

    observed_s: float
    samples: int
    gpus: tuple[GpuWindowStats, ...] = ()
    power_sum_max_w: float | None = Field(
        default=None, description="Maximum total power of these GPUs at one moment; null: not all of them report it."
    )
    cpu_percent: float | None = Field(default=None, description="Of all CPUs' time: busy.")
    steal_percent: float | None = None
    context_switches_per_s: float | None = None
    pressure_cpu_percent: float | None = Field(default=None, description="Of the time: some thread waited for a CPU.")
    memory_used_mib: float | None = None
    complaints: tuple[Interference, ...] = Field(
        default=(), description="What of it exceeds the tolerance of a measurement."
    )


class Stage(Value):
    """One subject of a role in stages while one process called it: its window, power and energy.

    Its samples are the series of the same role, subject and restart.
    """

    role: str
    subject: int
    restart: int
    start_ns: int
    end_ns: int
    calls: int = Field(ge=1)
    during: WindowStats | None = Field(
        default=None, description="With the energy of each GPU; null: no monitor was running."
    )
    energy: Estimate | None = Field(default=None, description="Of all GPUs together; null where it cannot be measured.")
    energy_note: str | None = Field(default=None, description="How the energy was measured.")
    energy_missing: Missing | None = Field(default=None, description=MISSING_ENERGY)
    host_energy: dict[str, Estimate] = Field(
        default_factory=dict, description="Of processors and memory, by RAPL's names: package-0, package-0/dram."
    )
    host_missing: Missing | None = Field(default=None, description=MISSING_ENERGY)


class GpuSnapshot(Value):
    """State of a GPU in use just before or just after a trial. Null: not available."""

    uuid: str
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] | None = Field(default=None, description="Why its clock was not higher, as text.")


class Disturbance(Value):
    """Activity of other processes during a trial or an observation period. Null: cannot be determined."""

    observed_s: float
    steal_share: float | None = Field(description="Share of all CPU time taken away by the hypervisor.")
    outside_cores: float | None = Field(description="CPUs' worth of load by processes not ours.")
    kernel_cores: float | None = Field(default=None, description="CPUs' worth of load by threads of the kernel.")
    unseen_cores: float | None = Field(description="CPUs' worth of load that no visible process explains.")
    busiest: tuple[OutsideProcess, ...] = ()
    gpu_processes: tuple[str, ...] = Field(default=(), description="Processes of others on the GPUs in use.")
    complaints: tuple[Interference, ...] = Field(
        default=(), description="What of it exceeds the tolerance of a measurement."
    )


class LostGpu(Value):
    """A metered GPU that stopped answering: its readings end there."""

    gpu: int
    uuid: str
    reason: str
    after_s: float = Field(description="Since the trial began; 0: it was lost before.")


class Record(Value):
    """One trial, measured once; appended and synced as it ends."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    trial: str
    block: str
    attempt: int = Field(ge=1)
    take: int = Field(default=1, ge=1, description="Above 1: measured again because the previous take was disturbed.")
    window: Window
    series: tuple[Series, ...] = ()
    estimates: tuple[Summary, ...] = ()
    tunings: tuple[Tuning, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    disturbance: Disturbance | None = None
    gpus_before: tuple[GpuSnapshot, ...] = ()
    gpus_after: tuple[GpuSnapshot, ...] = ()
    energy: Estimate | None = Field(
        default=None, description="Of its devices while it was timed; null where it cannot be measured."
    )
    energy_note: str | None = Field(default=None, description="How the energy was measured.")
    energy_missing: Missing | None = Field(default=None, description=MISSING_ENERGY)
    energy_window: Literal["timed", "whole_trial"] = Field(
        default="timed",
        description="whole_trial: start-up is included, as the timed windows alone gave no energy, for energy_missing.",
    )
    sensors: str | None = Field(default=None, description="The monitor's file; null where no monitor was running.")
    sensors_bytes: int | None = Field(default=None, ge=0, description="Size of that file at the end of the trial.")
    sensors_digest: str | None = Field(default=None, description="SHA-256 of its first ``sensors_bytes`` bytes.")
    during: WindowStats | None = Field(default=None, description="Null where no monitor was running.")
    lost_gpus: tuple[LostGpu, ...] = Field(
        default=(), description="Metered GPUs that stopped answering before the trial ended: it is partial."
    )
    settled: SettlingResult | None = Field(default=None, description="Null where steadiness was not waited for.")
    stages: tuple[Stage, ...] = Field(default=(), description="Of a role in stages; also of those before a failure.")
    disturbed: tuple[Interference, ...] = Field(
        default=(), description="Interference beyond the tolerance of a measurement; empty: none was detected."
    )
    status: Status
    reason: str | None = None
    invalid_request: bool = Field(
        default=False, description="In stages: the request was invalid, so it is not retried."
    )
    notes: tuple[Note, ...] = ()
    stderr_tail: str | None = None
    origin: Origin = "real"

    @model_validator(mode="after")
    def _check_reason(self) -> Self:
        if self.status != "ok" and not self.reason:
            raise ValueError(f"a record that is {self.status} says why")
        return self


class Finding(Value):
    """A claim with its verdict, the estimate it is based on, and the records behind it."""

    kind: str = Field(default="result", description="What kind of claim it is, within its experiment.")
    claim: str
    estimate: Estimate | None
    verdict: Verdict
    records: tuple[str, ...] = Field(description="Trial ids of the records it is based on.")
    reason: str | None = None
    facts: Params = Field(default_factory=dict)
    identity: dict[str, dict[str, str]] | None = Field(
        default=None,
        description="What its trials measured, by aspect (parameters, isolation …) and name; null: not of trials.",
    )
    gate: Literal["passed", "failed"] | None = Field(
        default=None, description="Of the finding that answers a gate: failed ends the command with exit code 1."
    )
    origin: Origin = "real"


class InterferenceSource(Value):
    """A source that disturbed trials of a run: in how many of them, and how much at most."""

    kind: InterferenceKind
    source: str
    trials: int = Field(ge=1)
    amount: float | None = Field(default=None, description="The most in one trial; null: not measured.")
    unit: str | None = None


class IsolationShortfall(Value):
    """A level of isolation that was requested and did not hold: in how many trials, and why."""

    requested: Isolation
    held: Isolation = Field(description="The lowest that held.")
    trials: int = Field(ge=1)
    codes: tuple[IsolationCode, ...]
    message: str = Field(description="The first reason, as a clause.")


class DataQuality(Value):
    """How far a run can be trusted: which trials were disturbed and by what, and which isolation held."""

    trials: int = Field(ge=0, description="Number of trials measured.")
    watched: int = Field(ge=0, description="Of these, the ones observed for interference.")
    disturbed: int = Field(ge=0)
    retaken: int = Field(default=0, ge=0, description="Trials measured again because a take before was disturbed.")
    sources: tuple[InterferenceSource, ...] = Field(default=(), description="The most frequent first.")
    isolation: tuple[IsolationShortfall, ...] = ()


class Findings(Value):
    """All findings of a run; the content of ``findings.json``."""

    schema_version: int = Field(default=SCHEMA_VERSION, serialization_alias="schema", validation_alias="schema")
    headline: str
    findings: tuple[Finding, ...] = ()
    quality: DataQuality | None = Field(
        default=None, description="Of the records it is based on; null: they are not from one run."
    )


def make_check(
    claim: str,
    verdict: Verdict,
    reason: str | None = None,
    *,
    fix: str | None = None,
    topic: str,
    estimate: Estimate | None = None,
    **facts: Scalar,
) -> Finding:
    """Return a finding about this machine; ``fix`` says what to do where the claim does not hold."""
    details: dict[str, Scalar] = {"topic": topic, "fix": fix, **facts}
    return Finding(claim=claim, estimate=estimate, verdict=verdict, reason=reason, records=(), facts=details)
