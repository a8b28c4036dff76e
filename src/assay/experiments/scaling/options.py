"""The options of ``assay scaling run``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from assay.core.values import InterferencePolicy, Isolation, Subject, Value
from assay.experiments.scaling.prediction import LinkModel

ScalingMode = Literal["strong", "weak"]
ATTENTION_WORKLOAD = "dilated_attention"


class UnavailableWorld(Value):
    """A number of ranks that was asked for and is not measured here, and why."""

    world: int
    reason: str


class ScalingOptions(Value):
    """What ``assay scaling run`` was asked for.

    Of dilated attention, ``sequences`` are the lengths to scale at and ``rings`` the ring sizes; ``subject`` has all
    else. Of any other workload there are none, and every rank does the same call, or its share of ``ranks_param``.
    """

    subject: Subject
    sequences: tuple[int, ...] = ()
    worlds: tuple[int, ...] = Field(min_length=1, description="How many ranks; one rank alone is measured in any case.")
    rings: tuple[int, ...] = Field(default=(1,), min_length=1)
    unavailable: tuple[UnavailableWorld, ...] = ()
    mode: ScalingMode = "strong"
    ranks_param: str | None = Field(default=None, description="Of strong scaling: the parameter that ranks share out.")
    devices: tuple[str, ...] = Field(min_length=1)
    local_ranks: int | None = Field(default=None, ge=1, description="On this machine; null: all of them.")
    isolation: Isolation = "full"
    repeat: int = Field(default=1, ge=1, description="All shapes again so often; intervals are over the repeats.")
    warmup_runs: int = Field(default=3, ge=0)
    benchmark_runs: int = Field(default=10, ge=1)
    matmul: Subject | None = Field(default=None, description="A large matmul that the arithmetic is held against.")
    energy: bool = Field(default=False, description="Whether each shape is also run for a while to meter its energy.")
    profile: bool = Field(default=False, description="Whether the first shape is also traced.")
    link: LinkModel | None = Field(default=None, description="Null: nothing is predicted.")
    min_efficiency: float | None = Field(default=None, gt=0, lt=1, description="Null: there is no gate.")
    on_interference: InterferencePolicy = "warn"
    retakes: int = Field(default=0, ge=0)
    timeout_s: float = Field(default=600.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    seed: int = 0

    @property
    def is_attention(self) -> bool:
        """Whether it is dilated attention, whose sequence is shared out and whose communication is known."""
        return self.subject.workload == ATTENTION_WORKLOAD

    def is_here(self, rank: int) -> bool:
        """Return whether a rank lives on this machine, where sensors are read."""
        return self.local_ranks is None or rank < self.local_ranks

    @property
    def local_rank_count(self) -> int:
        """The most ranks that are on this machine at once."""
        return min(max(self.worlds), self.local_ranks or max(self.worlds))

    @property
    def kind(self) -> str:
        """The kind of device: ``cpu`` or ``cuda``."""
        return self.devices[0].partition(":")[0]
