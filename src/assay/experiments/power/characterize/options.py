"""What ``assay power characterize`` was asked for: cases with their workloads found, and the devices they share."""

from __future__ import annotations

from pydantic import Field

from assay.core.plan import Isolation, StrangerPolicy, Subject
from assay.core.values import Value
from assay.experiments.power.cases import Placement


class Part(Value):
    """A workload of a case, on so many devices at once (null: all that are left) or on named ones."""

    subject: Subject
    count: int | None = Field(default=1, ge=1)
    devices: tuple[str, ...] = ()


class NoisePart(Part):
    """A load beside what is timed; on the same devices, the count is null."""

    placement: Placement = "any"


class Case(Value):
    """What is timed together, beside what, for how long, and how often."""

    name: str
    base: Part
    noise: tuple[NoisePart, ...] = ()
    repeats: int = Field(default=3, ge=1)
    duration_s: float = Field(default=20.0, gt=0)
    settle_s: float | None = Field(default=None, gt=0)
    restarts: int = Field(default=1, ge=1)
    rotate: bool = True


class LeftOut(Value):
    """A case that cannot be measured here, and why."""

    case: str
    reason: str


class CharacterizeOptions(Value):
    """Every case once in each repeat, on every device in turn, in random order."""

    cases: tuple[Case, ...] = Field(min_length=1)
    left_out: tuple[LeftOut, ...] = ()
    devices: tuple[str, ...] = Field(min_length=1)
    source: str | None = Field(default=None, description="The case file.")
    isolation: Isolation = "full"
    minimum_effect: float = Field(default=0.01, gt=0, lt=1, description="Smaller changes do not count.")
    budget_s: float | None = Field(default=None, gt=0, description="No repeat begins that would not fit any more.")
    strangers: StrangerPolicy = "warn"
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    seed: int = 0

    @property
    def repeats(self) -> int:
        """Of the case that has most."""
        return max(case.repeats for case in self.cases)
