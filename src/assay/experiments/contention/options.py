"""The options of ``assay contention run``, its phases, and aggressors by the resource they load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot, suggest_nearest
from assay.core.values import HOST, Command, InterferencePolicy, Subject, TunerName, Value
from assay.stats.blocks import MINIMUM_EFFECT
from assay.workloads import registry
from assay.workloads.function import is_function_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

AggressorLocation = Literal["host", "device"]


class Aggressor(Value):
    """A load under the name it is called by: on the host's cores, or on the victim's own device."""

    name: str
    subject: Subject
    location: AggressorLocation


class NamedAggressor(NamedTuple):
    """An aggressor that has a short name: what it runs, and where."""

    workload: str
    location: AggressorLocation


NAMED_AGGRESSORS: dict[str, NamedAggressor] = {
    "cpu": NamedAggressor("cpu_hog@python", "host"),
    "memory": NamedAggressor("memory_hog@numpy", "host"),
    "pcie": NamedAggressor("pcie_copy@torch", "device"),
    "sm": NamedAggressor("gemm@torch", "device"),
    "hbm": NamedAggressor("triad@torch", "device"),
}
"""What each presses on: the cores, the host's memory, the bus to the GPU, its multiprocessors, its own memory."""

LOAD_WORKLOADS = {"cpu_hog": "cpu", "memory_hog": "memory", "pcie_copy": "pcie"}
"""Workloads that are nothing but loads, under the name of what they press on."""


def resolve_aggressors(words: Sequence[str], kind: str) -> tuple[Aggressor, ...]:
    """Return the named aggressors, each once; without a name, all that fit the kind of device."""
    names = words or [name for name, named in NAMED_AGGRESSORS.items() if kind == "cuda" or named.location == "host"]
    short = (LOAD_WORKLOADS.get(word.replace("-", "_").partition("@")[0], word) for word in names)
    return tuple(_resolve_aggressor(word, kind) for word in dict.fromkeys(short))


def _resolve_aggressor(word: str, kind: str) -> Aggressor:
    named = NAMED_AGGRESSORS.get(word)
    if named is None:
        return _workload_aggressor(word, kind)
    if named.location == "device" and kind != "cuda":
        raise MachineCannot(f"The aggressor {word} needs a GPU, and the victims are not on one.")
    subject = registry.resolve_subject(named.workload, device_kind="cpu" if named.location == "host" else kind)
    return Aggressor(name=word, subject=subject, location=named.location)


def _workload_aggressor(word: str, kind: str) -> Aggressor:
    """Return any workload as an aggressor: on the GPU where it can, otherwise on the host's cores."""
    names = {*NAMED_AGGRESSORS, *registry.ALIASES, *(entry.name for entry in registry.registered_workloads().values())}
    is_function = is_function_spec(word)
    name, _, impl = word.partition("@")
    if not is_function and name.replace("-", "_") not in names:
        raise BadInput(
            f"Unknown aggressor {word!r}; there are {', '.join(NAMED_AGGRESSORS)}, and every workload."
            f"{suggest_nearest(word, names)}"
        )
    on_gpu = kind == "cuda" and (is_function or not impl or "cuda" in registry.find_workload(name, impl).device_kinds)
    subject = registry.resolve_subject(word, device_kind="cpu" if kind == "cuda" and not on_gpu else kind)
    return Aggressor(name=word, subject=subject, location="device" if on_gpu else "host")


SMALL_SHAPE = {"rows": "64", "cols": "64"}
DEFAULT_VICTIMS: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    "cuda": (("softmax@torch", SMALL_SHAPE), ("gemm@torch", {}), ("triad@torch", {})),
    "cpu": (("softmax@numpy", {}),),
}
"""Who is timed when nobody is named: on a GPU a kernel bound by its launch, one by arithmetic, one by memory."""


def default_victims(kind: str) -> tuple[Subject, ...]:
    """Return who is timed on a kind of device when nobody is named."""
    return tuple(
        registry.resolve_subject(spec, device_kind=kind, explicit=params) for spec, params in DEFAULT_VICTIMS[kind]
    )


Phase = Literal["baseline", "naive", "isolated", "again"]
PHASES: tuple[Phase, ...] = get_args(Phase)
BASELINE_PHASES: tuple[Phase, ...] = ("baseline", "again")
CONCURRENT_PHASES: tuple[Phase, ...] = ("naive", "isolated")

PHASE_LABELS: dict[str, str] = {
    "baseline": "alone",
    "again": "alone again",
    "naive": "side by side",
    "isolated": "isolated",
    "retimed": "alone, re-timed",
}
"""The phases for people. Isolated is side by side too, each worker with cores, memory and threads of its own."""


class ContentionOptions(Value):
    """What ``assay contention run`` was asked for."""

    subjects: tuple[Subject, ...] = Field(min_length=1)
    tunable: tuple[bool, ...] = Field(description="Of each subject, whether the tuner has a choice in it.")
    devices: tuple[str, ...] = Field(min_length=1)
    workers: int = Field(default=1, ge=1, description="Processes on each device, side by side.")
    aggressors: tuple[Aggressor, ...] = ()
    tuner: TunerName | None = Field(default="pick", description="Null: nothing is tuned.")
    tuner_command: Command | None = None
    repeat: int | None = Field(default=None, ge=1, description="So many blocks; null: as many as fit the budget.")
    budget_s: float = Field(default=300.0, gt=0)
    keeps_to_budget: bool = Field(default=True, description="False: only a duration was asked for, however long it is.")
    timing_s: float = Field(default=1.0, gt=0, description="Of each worker in each trial, starting not counted.")
    tuning_s: float = Field(default=1.0, gt=0)
    search_s: float = Field(default=0.0, ge=0, description="Of a tuner that cannot be given a budget; 0: it can.")
    tuned_blocks: int | None = Field(default=None, ge=1, description="Blocks that tune as well; null: all of them.")
    started_together: bool = Field(
        default=False, description="Workers that are timed alone start at once, and all but one of them wait."
    )
    cooldown_s: float = Field(default=0.0, ge=0)
    minimum_effect: float = Field(default=MINIMUM_EFFECT, gt=0, lt=1)
    on_interference: InterferencePolicy = "warn"
    retakes: int = Field(default=0, ge=0)
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    seed: int = 0

    @property
    def has_concurrency(self) -> bool:
        """Whether anything runs side by side at all."""
        return len(self.devices) * self.workers > 1 or bool(self.aggressors)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a block; without company only the two quiet ones."""
        return PHASES if self.has_concurrency else BASELINE_PHASES

    @property
    def processes(self) -> int:
        """How many processes run at once when all run side by side."""
        return len(self.devices) * self.workers + sum(
            1 if load.location == "host" else len(self.devices) for load in self.aggressors
        )

    @property
    def placement_group(self) -> tuple[str, ...]:
        """Whose cores are shared out together, in every trial alike.

        Where loads on the host have cores of their own, devices lack them alone as well: what a device loses is then
        not taken for what its neighbours do. Several workers share what their device has alone, which is what is asked.
        """
        return (*self.devices, HOST) if any(load.location == "host" for load in self.aggressors) else self.devices

    def tunes(self, subject: int, block: int = 1) -> bool:
        """Return whether a configuration of a subject is chosen in each trial of a block."""
        return self.tuner is not None and self.tunable[subject] and block <= (self.tuned_blocks or block)
