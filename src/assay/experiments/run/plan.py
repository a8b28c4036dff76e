"""The options and trials of ``assay run``; and what a time means.

FLOP/s and bytes/s, as a share of the rates that reference kernels reach on the same GPU.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.core.values import (
    Adaptive,
    Block,
    Cache,
    Counted,
    Done,
    InterferencePolicy,
    Isolation,
    Role,
    Subject,
    Trial,
    Value,
)
from assay.experiments.reporting import primary_estimate
from assay.launch.trial import MAX_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Record, SubjectFacts
    from assay.core.values import Params
    from assay.store.records import Records


REFERENCE_BLOCK = "yardsticks"
REFERENCE_S = 3.0

START_UP_S = {"torch": 10.0, "triton": 20.0, "masked": 10.0, "flash": 10.0}
"""What a trial may take beside its duration, by implementation: importing PyTorch, compiling, checking the result."""

DEFAULT_START_UP_S = 1.0


class RunOptions(Value):
    """What ``assay run`` was asked for."""

    subjects: tuple[Subject, ...] = Field(min_length=1)
    references: tuple[Subject, ...] = Field(default=(), description="What the card can do: matmuls and a copy.")
    devices: tuple[str, ...] = Field(min_length=1)
    mode: Literal["sequential", "concurrent"] = "sequential"
    isolation: Isolation = "full"
    on_interference: InterferencePolicy = "warn"
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


def build_blocks(options: RunOptions) -> list[Block]:
    """Return everything that will be measured: the references first, then the repeats."""
    blocks: list[Block] = []
    if options.references:
        trials = tuple(
            _build_trial(options, REFERENCE_BLOCK, (role,), 0)
            for subject in options.references
            for role in _role_per_device(options, subject)
        )
        blocks.append(Block(name=REFERENCE_BLOCK, why="what this machine can do at most", trials=trials))
    for repeat in range(1, options.repeat + 1):
        name = f"repeat-{repeat}"
        why = f"repeat {repeat} of {options.repeat}"
        blocks.append(Block(name=name, why=why, trials=repeat_trials(options, name, repeat)))
    return blocks


def next_block(options: RunOptions, records: Records) -> Block | Done:
    """Return the next block that has not been measured."""
    measured = {record.block for record in records}
    left = [block for block in build_blocks(options) if block.name not in measured]
    if not left:
        return Done(why=f"all {options.repeat} repeats are measured")
    return left[0].model_copy(update={"left_s": sum(map(_max_block_s, left))})


def _max_block_s(block: Block) -> float:
    """Return at most how long a block takes, in seconds, as far as can be foreseen."""
    return sum(trial.mode.duration_s + trial.cooldown_s + max_start_up_s(trial) for trial in block.trials)


def max_start_up_s(trial: Trial) -> float:
    """Return what a trial may take beside its duration, in seconds."""
    impls = [subject.impl for role in trial.roles for subject in role.subjects]
    waiting_s = MAX_WAIT_S if trial.on_interference == "wait" else 0.0
    return waiting_s + max(START_UP_S.get(impl, DEFAULT_START_UP_S) for impl in impls)


def repeat_trials(options: RunOptions, block: str, repeat: int) -> tuple[Trial, ...]:
    """Return one repeat's trials in the order they are measured."""
    trials = [
        _build_trial(options, block, roles, repeat)
        for subject in options.subjects
        for roles in _role_sets(options, subject)
    ]
    random.Random(f"{options.seed}/{block}").shuffle(trials)  # noqa: S311 - an order is no secret
    return tuple(trials)


def _build_trial(options: RunOptions, block: str, roles: tuple[Role, ...], repeat: int) -> Trial:
    is_reference = block == REFERENCE_BLOCK
    mode: Adaptive | Counted
    if options.benchmark_runs is not None and not is_reference:
        mode = Counted(
            duration_s=options.duration_s,
            warmup_runs=options.warmup_runs,
            runs=options.benchmark_runs,
            timeout_s=options.timeout_s,
        )
    else:
        mode = Adaptive(
            duration_s=min(options.duration_s, REFERENCE_S) if is_reference else options.duration_s,
            warmup_runs=None if is_reference else options.warmup_runs,
            precision=options.precision,
            cache=options.cache,
            timeout_s=options.timeout_s,
        )
    is_command = roles[0].subjects[0].command is not None
    return Trial(
        block=block,
        roles=roles,
        retakes=options.retakes,
        schedule="together" if options.mode == "concurrent" and not is_reference else "alone",
        mode=mode,
        restarts=1 if is_command or is_reference else options.restarts,
        on_interference=options.on_interference,
        placed_with=options.devices,
        cpu_groups=options.cpu_groups,
        cooldown_s=options.cooldown_s,
        seed=options.seed + max(0, repeat - 1),
    )


def _role_per_device(options: RunOptions, subject: Subject) -> tuple[Role, ...]:
    return tuple(
        Role(name=device, subjects=(subject,), devices=(device,), isolation=options.isolation)
        for device in options.devices
    )


def _role_sets(options: RunOptions, subject: Subject) -> list[tuple[Role, ...]]:
    """Return the sets of roles that one subject is measured with, one set a trial."""
    if options.ranks > 1:
        devices = tuple(options.devices[rank % len(options.devices)] for rank in range(options.ranks))
        role = Role(
            name="ranks", subjects=(subject,), ranks=options.ranks, devices=devices, isolation=options.isolation
        )
        return [(role,)]
    roles = _role_per_device(options, subject)
    return [roles] if options.mode == "concurrent" else [(role,) for role in roles]


COPY_PARAMS = {"n": str(2**29), "dtype": "float32"}
"""Two GiB read and two written: far more than any cache holds."""

Ceilings = dict[tuple[str, str], float]
"""The rate of each yardstick on each device: GFLOP/s of "matmul bfloat16", GB/s of "copy"."""


def reference_subjects(subjects: tuple[Subject, ...], device_kind: str) -> tuple[Subject, ...]:
    """Return what to hold results on a GPU against: a large matmul for each precision in use, and a large copy."""
    used = [s for s in subjects if device_kind == "cuda" and s.command is None and s.impl != "python"]
    if not used:
        return ()
    from assay.workloads.registry import resolve_subject

    dtypes = dict.fromkeys(str(s.params.get("dtype", "float32")) for s in used)
    side = {"m": "8192", "n": "8192", "k": "8192"}
    matmuls = [resolve_subject("gemm@torch", device_kind="cuda", explicit={**side, "dtype": dtype}) for dtype in dtypes]
    return (*matmuls, resolve_subject("memcpy@torch", device_kind="cuda", explicit=COPY_PARAMS))


def measured_ceilings(options: RunOptions, records: Records) -> Ceilings:
    """Return the rates of the references; one that failed is left out."""
    if not options.references:
        return {}
    ceiling_rates: Ceilings = {}
    trials = {t.id: t for block in build_blocks(options) if block.name == REFERENCE_BLOCK for t in block.trials}
    for record in records:
        trial = trials.get(record.trial)
        role = None if trial is None else trial.roles[0]
        time_us = None if role is None or record.status != "ok" else primary_estimate(record, role.name)
        if role is None or time_us is None:
            continue
        rates, name = compute_rates(subject_facts([record], role.name), time_us.value), "copy"
        rate = rates["gb_s"]
        if role.subjects[0].workload == "gemm":
            name, rate = f"matmul {role.subjects[0].params['dtype']}", rates["gflops"]
        if isinstance(rate, float):
            ceiling_rates[role.name, name] = rate
    return ceiling_rates


def subject_facts(records: Sequence[Record], role: str) -> SubjectFacts | None:
    """Return what the workers of a role found out about its subject; its work is that of all ranks together."""
    for record in records:
        evidence = [e for e in record.evidence if e.role == role and e.subjects]
        ranks = [e.subjects[0] for e in evidence if e.restart == evidence[0].restart]
        if ranks:
            work: dict[str, float | None] = {}
            for name in ("flop", "bytes_moved"):
                values = [value for facts in ranks if (value := getattr(facts, name)) is not None]
                work[name] = sum(values) if len(values) == len(ranks) else None
            return ranks[0].model_copy(update=work)
    return None


def compute_rates(facts: SubjectFacts | None, time_us: float) -> Params:
    """Return what a call's floating-point operations and bytes make of its time; null where not stated."""
    flop, moved = (facts.flop, facts.bytes_moved) if facts else (None, None)
    return {
        "gflops": None if flop is None else flop / time_us / 1e3,
        "gb_s": None if moved is None else moved / time_us / 1e3,
    }


def ceiling_shares(rates: Params, subject: Subject, role: str, most: Ceilings) -> Params:
    """Return how much of the card's measured matmul and copy rates a result reaches; null where not measured."""
    matmul = most.get((role, f"matmul {subject.params.get('dtype')}"))
    copy = most.get((role, "copy"))
    gflops, gb_s = rates["gflops"], rates["gb_s"]
    return {
        "matmul_percent": 100 * gflops / matmul if matmul and isinstance(gflops, float) else None,
        "copy_percent": 100 * gb_s / copy if copy and isinstance(gb_s, float) else None,
    }
