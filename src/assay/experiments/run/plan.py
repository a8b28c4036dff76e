"""What ``assay run`` was asked for, and the trials that follow from it."""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from assay.core.plan import Isolation, Method, Role, Subject, Trial
from assay.core.values import Value

START_UP_S = 1.0
"""What a trial may take beside its duration: its first worker's start and its last one's end."""


class RunOptions(Value):
    """What ``assay run`` was asked for."""

    subjects: tuple[Subject, ...] = Field(min_length=1)
    devices: tuple[str, ...] = Field(min_length=1)
    mode: Literal["sequential", "concurrent"] = "sequential"
    isolation: Isolation = "full"
    duration_s: float = Field(default=10.0, gt=0)
    cooldown_s: float = Field(default=0.0, ge=0)
    repeat: int = Field(default=1, ge=1)
    restarts: int = Field(default=5, ge=1)
    ranks: int = Field(default=1, ge=1)
    warmup_runs: int | None = Field(default=None, ge=0)
    benchmark_runs: int | None = Field(default=None, ge=1)
    precision: float = Field(default=0.01, gt=0, lt=1)
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    seed: int = 0


def role_names(options: RunOptions) -> tuple[str, ...]:
    """Return the roles that are timed: one per device, or one over all ranks."""
    return ("ranks",) if options.ranks > 1 else options.devices


def trials_of(options: RunOptions, block: str, repeat: int) -> tuple[Trial, ...]:
    """Return one repeat's trials in the order they are measured."""
    method = Method(
        duration_s=options.duration_s,
        warmup_runs=options.warmup_runs,
        benchmark_runs=options.benchmark_runs,
        precision=options.precision,
        timeout_s=options.timeout_s,
    )
    trials = [
        Trial(
            block=block,
            roles=roles,
            schedule="together" if options.mode == "concurrent" else "alone",
            method=method,
            restarts=1 if subject.command is not None else options.restarts,
            placed_with=options.devices,
            cpu_groups=options.cpu_groups,
            cooldown_s=options.cooldown_s,
            seed=options.seed + repeat - 1,
        )
        for subject in options.subjects
        for roles in _casts(options, subject)
    ]
    random.Random(f"{options.seed}/{block}").shuffle(trials)  # noqa: S311 - an order is no secret
    return tuple(trials)


def _casts(options: RunOptions, subject: Subject) -> list[tuple[Role, ...]]:
    """Return the sets of roles that one subject is measured with, one set a trial."""
    if options.ranks > 1:
        devices = tuple(options.devices[rank % len(options.devices)] for rank in range(options.ranks))
        role = Role(
            name="ranks", subjects=(subject,), ranks=options.ranks, devices=devices, isolation=options.isolation
        )
        return [(role,)]
    roles = tuple(
        Role(name=device, subjects=(subject,), devices=(device,), isolation=options.isolation)
        for device in options.devices
    )
    return [roles] if options.mode == "concurrent" else [(role,) for role in roles]
