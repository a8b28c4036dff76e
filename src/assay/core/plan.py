"""What to measure: subjects in roles, roles in trials, trials in blocks.

Block ──< Trial ──< Role ──< Subject
                    │
                    └─ one worker process per rank, started afresh for each restart
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from assay.core.values import Params, Value, content_id

MAX_LABEL_LENGTH = 40
HOST = "host"
"""Where a load runs that needs no device: on cores that no device's worker got, where cores are shared out."""

Duty = Literal["timed", "load"]
Schedule = Literal["alone", "together", "turns"]
InterferencePolicy = Literal["warn", "refuse", "wait"]
"""When others are busy before a trial: measure and say so, do not measure, or wait until they are done."""

Cache = Literal["cold", "warm"]
"""What a GPU's caches hold when a call begins: overwritten before each, or as the same call left them."""

Isolation = Literal["none", "gpu", "cpu", "numa", "full"]


class SourceCheckout(Value):
    """Another checkout to take a workload from, and the interpreter to do it with.

    A worker of it works in its ``folder`` and finds its ``src`` and itself first on the path.
    """

    LATER = frozenset({"folder", "instead_of"})

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
    """A command line to time, and what to read from its output."""

    argv: tuple[str, ...] = Field(min_length=1)
    metrics: tuple[Metric, ...] = ()


class Subject(Value):
    """One thing whose time is taken: a workload in one implementation, with its parameters."""

    workload: str
    impl: str
    params: Params = Field(default_factory=dict)
    config: Params | None = None
    command: Command | None = None
    digest: str | None = Field(default=None, description="Of the file a function is in, as it was planned.")
    source: SourceCheckout | None = None

    @property
    def label(self) -> str:
        """The name shown to people: ``softmax@numpy``, ``folder/file.py:function``, or the beginning of a command."""
        if self.impl == "python" and ":" in self.workload:
            return "/".join(self.workload.split("/")[-2:])
        if self.impl == "command":
            return (
                self.workload if len(self.workload) <= MAX_LABEL_LENGTH else f"{self.workload[: MAX_LABEL_LENGTH - 1]}…"
            )
        return f"{self.workload}@{self.impl}"


TunerName = Literal["pick", "triton", "helion", "command"]


class Tuner(Value):
    """Who chooses a configuration of a workload: Assay's own pick, another's auto-tuner, or a command.

    A command writes what it found as JSON to the file that stands for ``{output}`` in its words.
    """

    name: TunerName
    budget_s: float = Field(gt=0, description="At most about this long, where the tuner can be told.")
    command: Command | None = None

    @model_validator(mode="after")
    def _a_command_where_it_is_one(self) -> Self:
        if (self.name == "command") != (self.command is not None):
            raise ValueError("a command is given to the tuner named command, and to no other")
        return self


class Role(Value):
    """What one worker (or one per rank) does in a trial, and where.

    ``tuner`` also chooses a configuration of the first subject, after its time was taken, under the same schedule.
    Several roles may be on one device; ``worker`` tells them apart, and their device's cores are shared out to them.
    A load may be on the ``host``: a process with no device of its own.

    ``in_pairs`` has the first subject compared with the second, the third with the fourth, and so on: each pair is put
    in place, timed in turns and given back before the next. One that does not work is left out, and the others go on.

    ``parity`` has the second subject's output compared with the first's before they are timed, or that of each pair.

    ``in_stages`` has one subject called again and again for its own while, then the next one, in the same process: each
    has a window and an energy of its own. One that does not work is left out, and the others go on.

    ``metered`` are further GPUs whose watts count: those that the worker of a GPU is spread over, which it then sees
    behind its own, or those of a server that a worker on a CPU asks.
    """

    LATER = frozenset({"worker", "tuner", "in_pairs", "parity", "in_stages", "metered"})

    name: str
    subjects: tuple[Subject, ...] = Field(min_length=1)
    duty: Duty = "timed"
    ranks: int = Field(default=1, ge=1)
    devices: tuple[str, ...] = Field(min_length=1)
    isolation: Isolation = "none"
    worker: int = Field(default=0, ge=0)
    tuner: Tuner | None = None
    in_pairs: bool = False
    parity: bool = False
    in_stages: bool = False
    metered: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_device_or_one_per_rank(self) -> Self:
        if len(self.devices) not in {1, self.ranks}:
            raise ValueError(f"role {self.name!r} has {self.ranks} ranks on {len(self.devices)} devices")
        if self.tuner is not None and (self.duty != "timed" or self.ranks > 1):
            raise ValueError(f"role {self.name!r} has a tuner, so that it is timed and has one rank")
        if HOST in self.devices and self.duty != "load":
            raise ValueError(f"role {self.name!r} is on the host, where only loads are")
        return self

    @model_validator(mode="after")
    def _pairs_are_whole(self) -> Self:
        if self.in_pairs and (self.duty != "timed" or self.ranks > 1 or self.tuner is not None):
            raise ValueError(f"role {self.name!r} is in pairs, so that it is timed, by one rank, and does not tune")
        if self.in_pairs and (len(self.subjects) % 2 or any(subject.command for subject in self.subjects)):
            raise ValueError(f"role {self.name!r} is in pairs: its subjects are functions or workloads, two and two")
        return self

    @model_validator(mode="after")
    def _parity_is_of_two(self) -> Self:
        if self.parity and not self.in_pairs and (len(self.subjects) != 2 or self.ranks > 1):
            raise ValueError(f"role {self.name!r} asks for parity, so that it has two subjects and one rank")
        return self

    @model_validator(mode="after")
    def _stages_are_timed(self) -> Self:
        if self.in_stages and (self.duty != "timed" or self.in_pairs or self.tuner is not None or self.parity):
            raise ValueError(f"role {self.name!r} is in stages, so that it is timed, not in pairs, and does not tune")
        if set(self.metered) & set(self.devices):
            raise ValueError(f"role {self.name!r} meters a device of its own a second time")
        return self

    @property
    def watched(self) -> tuple[str, ...]:
        """Every device whose watts count."""
        return (*self.devices, *self.metered)

    @property
    def used(self) -> tuple[str, ...]:
        """Every device that its workers are on: metered ones are those of others where it is on a CPU itself."""
        return self.watched if self.devices[0].startswith("cuda") else self.devices

    def device_of(self, rank: int) -> str:
        """Return the device that a rank runs on."""
        return self.devices[rank if len(self.devices) > 1 else 0]


UNREACHABLE_PRECISION = 1e-6
"""A precision that no time is ever known to: every worker is timed for all of its time."""


class Method(Value):
    """How samples are taken. Given counts are obeyed exactly; otherwise it ends within the duration once precise.

    ``continuous`` is for power: calls follow one another without a pause for the whole share of the duration, each with
    its own start (``start_us``, since the start of its series), so that watts can be laid over calls.
    """

    LATER = frozenset({"continuous", "duty", "settle_s", "rounds", "stage_s", "stage_calls"})

    duration_s: float = Field(gt=0)
    warmup_runs: int | None = Field(default=None, ge=0)
    benchmark_runs: int | None = Field(default=None, ge=1)
    precision: float = Field(default=0.01, gt=0, lt=1)
    cache: Cache | None = Field(default=None, description="Null: cold on a GPU, as the calls leave it on a CPU.")
    timeout_s: float = Field(default=120.0, gt=0)
    continuous: bool = False
    duty: float = Field(default=1.0, gt=0, le=1, description="Of continuous calls: the share of the time they fill.")
    settle_s: float | None = Field(
        default=None, gt=0, description="All run untimed first, until clocks and heat are steady, at most so long."
    )
    rounds: int | None = Field(default=None, ge=4, description="Of subjects in pairs: of each pair at most so many.")
    stage_s: float | None = Field(default=None, gt=0, description="Of subjects in stages: each is called for so long.")
    stage_calls: int = Field(default=1, ge=1, description="Of subjects in stages: each is called at least so often.")

    @model_validator(mode="after")
    def _continuous_calls_are_not_counted(self) -> Self:
        if self.continuous and self.benchmark_runs is not None:
            raise ValueError("continuous calls are timed for a duration, and not counted")
        if self.duty < 1 and not self.continuous:
            raise ValueError("a duty is of continuous calls")
        return self


POWER_LIMIT_W, SM_MHZ = "power_limit_w", "sm_mhz"
"""Settings of a trial that change the GPUs of its timed roles, each held by a lease for as long as the trial lasts."""


class Trial(Value):
    """Roles measured under one schedule; the smallest thing that is recorded."""

    LATER = frozenset({"profile", "retakes"})

    block: str
    roles: tuple[Role, ...] = Field(min_length=1)
    schedule: Schedule = "alone"
    method: Method
    restarts: int = Field(default=1, ge=1)
    settings: Params = Field(default_factory=dict)
    on_interference: InterferencePolicy = "warn"
    placed_with: tuple[str, ...] = Field(
        default=(), description="Devices whose cores are shared out together; one named twice has two workers."
    )
    cpu_groups: int | None = Field(default=None, ge=1)
    cooldown_s: float = Field(default=0.0, ge=0)
    retakes: int = Field(default=0, ge=0, description="Where it was disturbed, measured again at most so often.")
    seed: int = 0
    profile: bool = Field(default=False, description="After timing, one call of each subject is traced on each rank.")

    @model_validator(mode="after")
    def _roles_fit_the_schedule(self) -> Self:
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
        if any(role.in_pairs for role in timed) and (self.schedule != "alone" or self.profile):
            raise ValueError("pairs are put in place one after another, so that they are timed alone, and not traced")
        if any(role.in_pairs for role in timed) != (self.method.rounds is not None):
            raise ValueError("rounds are those of a role in pairs, which needs them")
        if any(role.in_stages for role in timed) and (self.schedule != "alone" or self.profile or len(timed) > 1):
            raise ValueError("stages follow one another, so that one role is timed, alone, and not traced")
        if any(role.in_stages for role in timed) != (self.method.stage_s is not None):
            raise ValueError("the length of a stage is that of a role in stages, which needs it")
        loads = [r for r in self.roles if r.duty == "load" or (self.schedule == "together" and len(timed) > 1)]
        if any(role.ranks > 1 for role in loads):
            raise ValueError("ranks end their work together, so a role of several cannot be held as a load")
        return self

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device of its roles, each once."""
        return tuple(dict.fromkeys(device for role in self.roles for device in role.devices))

    @property
    def watched(self) -> tuple[str, ...]:
        """Every device whose watts count, each once."""
        return tuple(dict.fromkeys(device for role in self.roles for device in role.watched))

    @property
    def used(self) -> tuple[str, ...]:
        """Every device that its workers are on, each once."""
        return tuple(dict.fromkeys(device for role in self.roles for device in role.used))

    @property
    def in_stages(self) -> bool:
        """Whether its subjects are measured one after another, each with a window of its own."""
        return any(role.in_stages for role in self.roles)

    @property
    def workers(self) -> dict[str, int]:
        """How many workers share the cores of each device, those it is placed with included."""
        counts = {device: self.placed_with.count(device) for device in (*self.placed_with, *self.devices)}
        for role in self.roles:
            for device in role.devices:
                counts[device] = max(counts[device], role.worker + 1)
        return counts

    @property
    def target_precision(self) -> float | None:
        """The precision at which a stretch ends before its time; null where none does."""
        lasts = self.schedule == "turns" or self.method.continuous or self.method.precision <= UNREACHABLE_PRECISION
        return None if lasts else self.method.precision

    @property
    def id(self) -> str:
        """The hash of all that the trial is; the same trial has the same id on any machine."""
        return content_id(self)


class Block(Value):
    """Trials that belong together: all are measured in one go, or all again."""

    name: str
    why: str
    trials: tuple[Trial, ...] = Field(min_length=1)
    left_s: float | None = Field(default=None, description="At most this long until the run is done, this included.")
    prediction: dict[str, float] | None = Field(
        default=None, description="What will be found, by names that end in a unit, said before it is measured."
    )


class Done(Value):
    """The question is decided, or nothing more can be learnt; why."""

    why: str
