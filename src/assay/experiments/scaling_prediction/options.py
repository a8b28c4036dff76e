"""What ``assay scaling predict`` was asked for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from assay.core.plan import Isolation, StrangerPolicy, Subject
from assay.core.values import Value
from assay.experiments.scaling.links import Link

ENOUGH = 0.7
"""The efficiency that a prediction is held against unless told: what the older tool's recipe for CI asked for."""


class PredictionOptions(Value):
    """So many GPUs over a link, of which one is here: its share of each ring is measured alone."""

    subject: Subject = Field(description="The whole attention; sequence and ring are of each shape.")
    sequences: tuple[int, ...] = Field(min_length=1)
    counts: tuple[int, ...] = Field(min_length=1, description="GPUs, each count one ring.")
    link: Link
    mode: Literal["strong", "weak"] = "strong"
    passes: Literal["forward", "total"] = "total"
    device: str
    isolation: Isolation = "full"
    warmup_runs: int = Field(default=3, ge=0)
    benchmark_runs: int = Field(default=10, ge=1)
    enough: float = Field(default=ENOUGH, gt=0, lt=1, description="The efficiency that is asked about.")
    strangers: StrangerPolicy = "warn"
    retakes: int = Field(default=0, ge=0)
    timeout_s: float = Field(default=600.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    seed: int = 0
