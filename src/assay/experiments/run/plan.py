"""What ``assay run`` was asked for, and the trials that follow from it."""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from assay.core.plan import Block, Cache, Isolation, Method, Role, StrangerPolicy, Subject, Trial
from assay.core.values import Value
from assay.launch.watch import WAIT_AT_MOST_S

YARDSTICKS = "yardsticks"
YARDSTICK_S = 3.0

START_UP_S = {"torch": 10.0, "triton": 20.0, "masked": 10.0, "flash": 10.0}
"""What a trial may take beside its duration, by implementation: importing PyTorch, compiling, checking the result."""

OTHER_START_UP_S = 1.0


class RunOptions(Value):
    """What ``assay run`` was asked for."""

    subjects: tuple[Subject, ...] = Field(min_length=1)
    yardsticks: tuple[Subject, ...] = Field(default=(), description="What the card can do: matmuls and a copy.")
    devices: tuple[str, ...] = Field(min_length=1)
    mode: Literal["sequential", "concurrent"] = "sequential"
    isolation: Isolation = "full"
    strangers: StrangerPolicy = "warn"
    duration_s: float = Field(default=10.0, gt=0)
    cooldown_s: float = Field(default=0.0, ge=0)
    repeat: int = Field(default=1, ge=1)
    restarts: int = Field(default=5, ge=1)
    ranks: int = Field(default=1, ge=1)
    warmup_runs: int | None = Field(default=None, ge=0)
    benchmark_runs: int | None = Field(default=None, ge=1)
    precision: float = Field(default=0.01, gt=0, lt=1)
    cache: Cache | None = None
    timeout_s: float = Field(default=120.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    retakes: int = Field(default=0, ge=0)
    seed: int = 0


def blocks_of(options: RunOptions) -> list[Block]:
    """Return everything that will be measured: the yardsticks first, then the repeats."""
    blocks: list[Block] = []
    if options.yardsticks:
        trials = tuple(
            _trial(options, YARDSTICKS, (role,), 0)
            for subject in options.yardsticks
            for role in _one_per_device(options, subject)
        )
        blocks.append(Block(name=YARDSTICKS, why="what this machine can do at most", trials=trials))
    for repeat in range(1, options.repeat + 1):
        name = f"repeat-{repeat}"
        blocks.append(
            Block(name=name, why=f"repeat {repeat} of {options.repeat}", trials=trials_of(options, name, repeat))
        )
    return blocks


def longest_s(block: Block) -> float:
    """Return at most how long a block takes, in seconds, as far as can be foreseen."""
    return sum(trial.method.duration_s + trial.cooldown_s + start_up_s(trial) for trial in block.trials)


def start_up_s(trial: Trial) -> float:
    """Return what a trial may take beside its duration, in seconds."""
    impls = [subject.impl for role in trial.roles for subject in role.subjects]
    waiting_s = WAIT_AT_MOST_S if trial.strangers == "wait" else 0.0
    return waiting_s + max(START_UP_S.get(impl, OTHER_START_UP_S) for impl in impls)


def role_names(options: RunOptions) -> tuple[str, ...]:
    """Return the roles that are timed: one per device, or one over all ranks."""
    return ("ranks",) if options.ranks > 1 else options.devices


def trials_of(options: RunOptions, block: str, repeat: int) -> tuple[Trial, ...]:
    """Return one repeat's trials in the order they are measured."""
    trials = [
        _trial(options, block, roles, repeat) for subject in options.subjects for roles in _casts(options, subject)
    ]
    random.Random(f"{options.seed}/{block}").shuffle(trials)  # noqa: S311 - an order is no secret
    return tuple(trials)


def _trial(options: RunOptions, block: str, roles: tuple[Role, ...], repeat: int) -> Trial:
    yardstick = block == YARDSTICKS
    command = roles[0].subjects[0].command is not None
    return Trial(
        block=block,
        roles=roles,
        retakes=options.retakes,
        schedule="together" if options.mode == "concurrent" and not yardstick else "alone",
        method=Method(
            duration_s=min(options.duration_s, YARDSTICK_S) if yardstick else options.duration_s,
            warmup_runs=None if yardstick else options.warmup_runs,
            benchmark_runs=None if yardstick else options.benchmark_runs,
            precision=options.precision,
            cache=options.cache,
            timeout_s=options.timeout_s,
        ),
        restarts=1 if command or yardstick else options.restarts,
        strangers=options.strangers,
        placed_with=options.devices,
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        seed=options.seed + max(0, repeat - 1),
    )


def _one_per_device(options: RunOptions, subject: Subject) -> tuple[Role, ...]:
    return tuple(
        Role(name=device, subjects=(subject,), devices=(device,), isolation=options.isolation)
        for device in options.devices
    )


def _casts(options: RunOptions, subject: Subject) -> list[tuple[Role, ...]]:
    """Return the sets of roles that one subject is measured with, one set a trial."""
    if options.ranks > 1:
        devices = tuple(options.devices[rank % len(options.devices)] for rank in range(options.ranks))
        role = Role(
            name="ranks", subjects=(subject,), ranks=options.ranks, devices=devices, isolation=options.isolation
        )
        return [(role,)]
    roles = _one_per_device(options, subject)
    return [roles] if options.mode == "concurrent" else [(role,) for role in roles]
