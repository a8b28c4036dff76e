"""What ``assay contention matrix`` was asked for: victims, aggressors, and how long each meeting lasts."""

from __future__ import annotations

from pydantic import Field

from assay.core.plan import Cache, StrangerPolicy, Subject
from assay.core.values import Value
from assay.experiments.aggressors import Aggressor


class MatrixOptions(Value):
    """Every victim on every device meets every aggressor, with and without isolation, once in each block."""

    victims: tuple[Subject, ...] = Field(min_length=1)
    aggressors: tuple[Aggressor, ...] = Field(min_length=1)
    devices: tuple[str, ...] = Field(min_length=1)
    in_turns: bool = Field(default=False, description="All victims of a device in one process, in turns.")
    duration_s: float = Field(default=2.0, gt=0)
    cooldown_s: float = Field(default=0.0, ge=0)
    repeat: int = Field(default=6, ge=1)
    budget_s: float | None = Field(default=None, gt=0, description="No block begins that would not fit any more.")
    minimum_effect: float = Field(default=0.02, gt=0, lt=1, description="Smaller slowdowns do not count.")
    strangers: StrangerPolicy = "warn"
    cache: Cache | None = None
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    seed: int = 0
