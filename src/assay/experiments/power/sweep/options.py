"""What ``assay power sweep`` was asked for: one knob, its steps, and how each is measured."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from assay.core.plan import Isolation, StrangerPolicy, Subject
from assay.core.values import Scalar, Value
from assay.experiments.power.rows import Knob

CAPS: frozenset[Knob] = frozenset({"power_limit_w", "sm_mhz"})
"""Knobs that change the GPU and need a privilege; the others change only the work."""


class Point(Value):
    """One setting of the knob and what is timed there; a setting that the workload refuses has only the reason."""

    setting: Scalar = Field(description="Watts, MHz, elements, a dtype's name, a share; null: as it was found.")
    subject: Subject | None
    refused: str | None = None

    @model_validator(mode="after")
    def _timed_or_refused(self) -> Self:
        if (self.subject is None) == (self.refused is None):
            raise ValueError("a point has something to time, or a reason why it has not")
        return self


class SweepOptions(Value):
    """Every point on every device, once in each repeat, in random order."""

    knob: Knob
    points: tuple[Point, ...] = Field(min_length=1)
    workload: str = Field(description="What is timed, for people: sgemm@torch.")
    devices: tuple[str, ...] = Field(min_length=1)
    together: bool = Field(default=False, description="All devices at once; otherwise one after another.")
    isolation: Isolation = "full"
    strangers: StrangerPolicy = "warn"
    duration_s: float = Field(default=10.0, gt=0)
    settle_s: float | None = Field(default=30.0, gt=0, description="At most; null: steadiness is not waited for.")
    cooldown_s: float = Field(default=0.0, ge=0)
    repeat: int = Field(default=3, ge=1)
    restarts: int = Field(default=1, ge=1)
    max_slowdown: float = Field(default=0.05, gt=0, lt=1)
    minimum_effect: float = Field(default=0.01, gt=0, lt=1, description="Smaller differences in time do not count.")
    budget_s: float | None = Field(default=None, gt=0, description="No repeat begins that would not fit any more.")
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    seed: int = 0

    @property
    def capped(self) -> bool:
        """Whether the GPU itself is changed."""
        return self.knob in CAPS

    @property
    def reference(self) -> int | None:
        """The place of the point at which nothing is changed; null where there is none."""
        return next((n for n, point in enumerate(self.points) if point.setting is None), None)
