"""Values that cross a package boundary: their base class, and what to measure.

Block ──< Trial ──< Role ──< Subject
                    │
                    └─ one worker process per rank, a new one for each restart
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SCHEMA_VERSION = 1

Scalar: TypeAlias = bool | int | float | str | None
Params: TypeAlias = dict[str, Scalar]
"""Parameters or a configuration: names to plain values, in the order given."""


class Value(BaseModel):
    """A frozen value; unknown keys are errors, so that a misspelt one is never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    def as_json(self) -> dict[str, JsonValue]:
        """Return the value as plain JSON data, under the names it is read back by."""
        return self.model_dump(mode="json", by_alias=True)


PROBLEM_MESSAGES = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "json_invalid": "is not valid JSON",
    "union_tag_not_found": "does not say what kind of thing it is",
    "union_tag_invalid": "is of a kind that is not known",
    "string_too_short": "is empty",
    "string_too_long": "should have at most {max_length} characters",
    "string_type": "should be a valid string",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "int_type": "should be a valid integer",
    "int_parsing": "should be a valid integer",
    "int_parsing_size": "should be a smaller integer",
    "int_from_float": "should be a valid integer",
    "float_type": "should be a valid number",
    "float_parsing": "should be a valid number",
    "finite_number": "should be a finite number",
    "greater_than": "should be greater than {gt}",
    "greater_than_equal": "should be greater than or equal to {ge}",
    "less_than": "should be less than {lt}",
    "less_than_equal": "should be less than or equal to {le}",
    "literal_error": "should be {expected}",
    "enum": "should be {expected}",
    "too_long": "should have at most {max_length} items",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "model_type": "must map keys to values",
    "dict_type": "must map names to values",
}
"""What is wrong with a value, by pydantic's error type; the fields are those of its context."""


def explain_problem(problem: ErrorDetails) -> str:
    """Return what is wrong with a value, as a clause that follows its name: ``should be a valid integer``.

    Of a validator of ours, what it raised.
    """
    context = problem.get("ctx", {})
    if "error" in context and problem["type"] != "json_invalid":
        return str(context["error"])
    if problem["type"] == "too_short":
        return "holds nothing" if not context["actual_length"] else f"needs at least {context['min_length']} items"
    if problem["type"] not in PROBLEM_MESSAGES:
        return f"is not valid: {problem['msg']}"
    numbers = {name: int(x) if isinstance(x, float) and x.is_integer() else x for name, x in context.items()}
    return PROBLEM_MESSAGES[problem["type"]].format(**numbers)


def first_problem(error: ValidationError) -> str:
    """Return the first validation error with its location: ``options.seed should be a valid integer``."""
    problem = error.errors()[0]
    location = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "value_error":
        return f"{location or 'it'} {explain_problem(problem)}"
    return f"{location}: {explain_problem(problem)}" if location else explain_problem(problem)


def content_id(value: Value, *, length: int = 12) -> str:
    """Return a short hash of a value's content: equal content has equal ids on any machine."""
    text = json.dumps(value.model_dump(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


MAX_LABEL_LENGTH = 40
HOST = "host"
"""Where a load without a device runs: on cores left over by the devices' workers, where cores are divided up."""

Duty = Literal["timed", "load"]
Schedule = Literal["alone", "together", "turns"]
InterferencePolicy = Literal["warn", "refuse", "wait"]
"""If other processes are busy before a trial: measure and report it, do not measure, or wait until they are done."""

Cache = Literal["cold", "warm"]
"""State of a GPU's caches when a call starts: overwritten before each, or as the same call left them."""

Isolation = Literal["none", "gpu", "cpu", "numa", "full"]


class SourceCheckout(Value):
    """Another checkout to take a workload from, and the interpreter to run it with.

    Its workers run in its ``folder``, with its ``src`` and the checkout itself first on the path.
    """

    checkout: str
    interpreter: str
    folder: str = Field(default="", description="Within the checkout; empty: the checkout itself.")
    instead_of: str | None = Field(
        default=None, description="The working tree it stands in for: nothing may be imported from there."
    )


class Metric(Value):
    """A number that a command prints: the first group of the pattern's last match in its output."""

    name: str = Field(min_length=1)
    pattern: str


class Command(Value):
    """A command line to time, and the metrics to read from its output."""

    argv: tuple[str, ...] = Field(min_length=1)
    metrics: tuple[Metric, ...] = ()


class Subject(Value):
    """A subject to measure: a workload in one implementation, with its parameters."""

    workload: str
    impl: str
    params: Params = Field(default_factory=dict)
    config: Params | None = None
    command: Command | None = None
    digest: str | None = Field(default=None, description="Of the file a function is in, as it was planned.")
    source: SourceCheckout | None = None

    @property
    def label(self) -> str:
        """The display name: ``softmax@numpy``, ``folder/file.py:function``, or the beginning of a command."""
        if self.impl == "python" and ":" in self.workload:
            return "/".join(self.workload.split("/")[-2:])
        if self.impl == "command":
            return (
                self.workload if len(self.workload) <= MAX_LABEL_LENGTH else f"{self.workload[: MAX_LABEL_LENGTH - 1]}…"
            )
        return f"{self.workload}@{self.impl}"


TunerName = Literal["pick", "triton", "helion", "command"]


class Tuner(Value):
    """What selects a configuration of a workload: Assay's own pick, another auto-tuner, or a command.

    A command writes its result as JSON to the file whose path replaces ``{output}`` in its arguments.
    """

    name: TunerName
    budget_s: float = Field(gt=0, description="Approximate upper limit, if the tuner supports one.")
    command: Command | None = None

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        if (self.name == "command") != (self.command is not None):
            raise ValueError("a command is given to the tuner named command, and to no other")
        return self


class Role(Value):
    """What one worker (or one per rank) does in a trial, and where.

    ``tuner`` also selects a configuration of the first subject, after it was timed, under the same schedule. Several
    roles may share a device; ``worker`` distinguishes them, and the device's cores are divided among them. A load may
    be on the ``host``: a process without a device.

    ``metered`` are further GPUs whose power counts: those that the worker of a GPU is spread over, which it then sees
    after its own, or those of a server that a worker on a CPU sends requests to.
    """

    name: str
    subjects: tuple[Subject, ...] = Field(min_length=1)
    duty: Duty = "timed"
    ranks: int = Field(default=1, ge=1)
    devices: tuple[str, ...] = Field(min_length=1)
    isolation: Isolation = "none"
    worker: int = Field(default=0, ge=0)
    tuner: Tuner | None = None
    metered: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        if len(self.devices) not in {1, self.ranks}:
            raise ValueError(f"role {self.name!r} has {self.ranks} ranks on {len(self.devices)} devices")
        if self.tuner is not None and (self.duty != "timed" or self.ranks > 1):
            raise ValueError(f"role {self.name!r} has a tuner, so that it is timed and has one rank")
        if HOST in self.devices and self.duty != "load":
            raise ValueError(f"role {self.name!r} is on the host, where only loads are")
        if set(self.metered) & set(self.devices):
            raise ValueError(f"role {self.name!r} meters a device of its own a second time")
        return self

    @property
    def watched(self) -> tuple[str, ...]:
        """Every device whose power counts."""
        return (*self.devices, *self.metered)

    @property
    def used(self) -> tuple[str, ...]:
        """Every device that its workers run on; metered ones belong to other processes if the role is on a CPU."""
        return self.watched if self.devices[0].startswith("cuda") else self.devices

    def device_of(self, rank: int) -> str:
        """Return the device that a rank runs on."""
        return self.devices[rank if len(self.devices) > 1 else 0]


class _BaseMode(Value):
    """What all modes of measuring have."""

    duration_s: float = Field(gt=0, description="Of the trial, over all restarts.")
    timeout_s: float = Field(default=120.0, gt=0, description="Maximum wait for one step of a worker beyond its time.")


class _RepeatedCalls(_BaseMode):
    """What modes have that call the same prepared subjects throughout."""

    warmup_runs: int | None = Field(default=None, ge=0, description="Null: for part of the time, until steady.")
    settle_s: float | None = Field(
        default=None, gt=0, description="Maximum duration of the untimed run until clocks and temperatures are steady."
    )


CacheChoice = Annotated[Cache | None, Field(description="Null: cold on a GPU, as the calls leave it on a CPU.")]


class Adaptive(_RepeatedCalls):
    """Sample until the result is precise enough, or the duration is over."""

    kind: Literal["adaptive"] = "adaptive"
    precision: float | None = Field(
        default=0.01, gt=0, lt=1, description="Relative half-width to stop at; null: sample for the whole duration."
    )
    cache: CacheChoice = None


class Counted(_RepeatedCalls):
    """Time a given number of calls, one by one by the wall clock; the duration is only an estimate."""

    kind: Literal["counted"] = "counted"
    runs: int = Field(ge=1)


class Continuous(_RepeatedCalls):
    """Call without a pause for the whole duration, so that power can be related to calls.

    Each sample has its start (``start_us``, since the start of its series).
    """

    kind: Literal["continuous"] = "continuous"
    duty: float = Field(default=1.0, gt=0, le=1, description="Share of the time that calls fill.")


class Paired(_BaseMode):
    """Compare the first subject with the second, the third with the fourth, and so on.

    Each pair is set up, timed interleaved and released before the next. A pair that fails is skipped, and the others
    continue.
    """

    kind: Literal["paired"] = "paired"
    rounds: int = Field(ge=4, description="Maximum number of rounds per pair.")
    parity: bool = Field(
        default=False, description="Compare the output of the second of each pair with the first's before timing."
    )
    cache: CacheChoice = None


class Staged(_BaseMode):
    """Call one subject repeatedly for its own period, then the next one, in the same process.

    Each has its own window and energy. One that fails is skipped, and the others continue.
    """

    kind: Literal["staged"] = "staged"
    stage_s: float = Field(gt=0, description="Duration of each stage.")
    min_calls: int = Field(default=1, ge=1, description="Minimum number of calls in each stage.")
    warmup_runs: int = Field(default=1, ge=0, description="Before each stage.")


Mode = Annotated[Adaptive | Counted | Continuous | Paired | Staged, Field(discriminator="kind")]
"""How the timed roles of a trial are measured."""


POWER_LIMIT_W, SM_MHZ = "power_limit_w", "sm_mhz"
"""Settings of a trial that change the GPUs of its timed roles, each held by a lease for the length of the trial."""


class Trial(Value):
    """Roles measured under one schedule; the smallest unit that is recorded."""

    block: str
    roles: tuple[Role, ...] = Field(min_length=1)
    schedule: Schedule = "alone"
    mode: Mode
    restarts: int = Field(default=1, ge=1)
    settings: Params = Field(default_factory=dict)
    on_interference: InterferencePolicy = "warn"
    placed_with: tuple[str, ...] = Field(
        default=(), description="Devices whose cores are divided together; one named twice has two workers."
    )
    cpu_groups: int | None = Field(default=None, ge=1)
    cooldown_s: float = Field(default=0.0, ge=0)
    retakes: int = Field(default=0, ge=0, description="Maximum number of repeated measurements if it is disturbed.")
    seed: int = 0
    profile: bool = Field(default=False, description="After timing, one call of each subject is traced on each rank.")

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        names = [role.name for role in self.roles]
        if len(set(names)) != len(names):
            raise ValueError(f"two roles of one trial share a name: {names}")
        timed = [role for role in self.roles if role.duty == "timed"]
        if not timed:
            raise ValueError("a trial needs a role whose time is taken")
        if self.schedule == "turns" and (len(timed) != 2 or any(role.ranks > 1 for role in timed)):
            raise ValueError("turns alternate between exactly two timed roles of one rank each")
        if self.schedule == "turns" and any(role.tuner is not None for role in timed):
            raise ValueError("a tuner is not stopped and started, so none has its turn: choose alone or together")
        loads = [r for r in self.roles if r.duty == "load" or (self.schedule == "together" and len(timed) > 1)]
        if any(role.ranks > 1 for role in loads):
            raise ValueError("ranks end their work together, so a role of several cannot be held as a load")
        return self

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if not isinstance(self.mode, Paired | Staged):
            return self
        timed = [role for role in self.roles if role.duty == "timed"]
        if self.schedule != "alone" or self.profile or any(role.tuner is not None for role in timed):
            raise ValueError(f"{self.mode.kind} subjects are prepared one after another: alone, not tuned, not traced")
        if isinstance(self.mode, Staged) and len(timed) > 1:
            raise ValueError("a staged trial has one timed role")
        if isinstance(self.mode, Paired) and any(role.ranks > 1 or not _is_paired(role.subjects) for role in timed):
            raise ValueError("a paired trial has roles of one rank whose subjects are functions or workloads, in pairs")
        return self

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device of its roles, without duplicates."""
        return tuple(dict.fromkeys(device for role in self.roles for device in role.devices))

    @property
    def watched(self) -> tuple[str, ...]:
        """Every device whose power counts, without duplicates."""
        return tuple(dict.fromkeys(device for role in self.roles for device in role.watched))

    @property
    def used(self) -> tuple[str, ...]:
        """Every device that its workers run on, without duplicates."""
        return tuple(dict.fromkeys(device for role in self.roles for device in role.used))

    @property
    def workers(self) -> dict[str, int]:
        """Number of workers that share the cores of each device, including devices it is placed with."""
        counts = {device: self.placed_with.count(device) for device in (*self.placed_with, *self.devices)}
        for role in self.roles:
            for device in role.devices:
                counts[device] = max(counts[device], role.worker + 1)
        return counts

    @property
    def target_precision(self) -> float | None:
        """The precision at which a block of samples ends early; null where it always runs its full duration."""
        return self.mode.precision if isinstance(self.mode, Adaptive) and self.schedule != "turns" else None

    @property
    def settle_s(self) -> float | None:
        """Maximum duration of the untimed run before timing; null where steadiness is not waited for."""
        return None if isinstance(self.mode, Paired | Staged) else self.mode.settle_s

    @property
    def id(self) -> str:
        """The hash of all of the trial's content; the same trial has the same id on any machine."""
        return content_id(self)


def _is_paired(subjects: tuple[Subject, ...]) -> bool:
    return len(subjects) % 2 == 0 and all(subject.command is None for subject in subjects)


class Block(Value):
    """Trials that belong together: all are measured in one go, or all again."""

    name: str
    why: str
    trials: tuple[Trial, ...] = Field(min_length=1)
    left_s: float | None = Field(
        default=None, description="Upper bound of the remaining time of the run, including this block."
    )
    prediction: dict[str, float] | None = Field(
        default=None, description="Predicted results, by names that end in a unit, recorded before measuring."
    )


class Done(Value):
    """The question is decided, or more trials would not help; ``why`` gives the reason."""

    why: str
