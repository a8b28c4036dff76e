"""What a time means: arithmetic and memory traffic per second, and how much of what this card can do that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.experiments.run.plan import YARDSTICKS, blocks_of
from assay.experiments.times import told

if TYPE_CHECKING:
    from assay.core.plan import Subject
    from assay.core.results import Record, SubjectFacts
    from assay.core.values import Params
    from assay.experiments.run.plan import RunOptions
    from assay.store.records import Records

COPY = {"n": str(2**29), "dtype": "float32"}
"""Two GiB read and two written: far more than any cache holds."""

Ceilings = dict[tuple[str, str], float]
"""The rate of each yardstick on each device: GFLOP/s of "matmul bfloat16", GB/s of "copy"."""


def yardsticks(subjects: tuple[Subject, ...], device_kind: str) -> tuple[Subject, ...]:
    """Return what to hold results on a GPU against: a large matmul for each precision in use, and a large copy."""
    used = [s for s in subjects if device_kind == "cuda" and s.command is None and s.impl != "python"]
    if not used:
        return ()
    from assay.workloads.registry import subject

    dtypes = dict.fromkeys(str(s.params.get("dtype", "float32")) for s in used)
    side = {"m": "8192", "n": "8192", "k": "8192"}
    matmuls = [subject("gemm@torch", device_kind="cuda", given={**side, "dtype": dtype}) for dtype in dtypes]
    return (*matmuls, subject("memcpy@torch", device_kind="cuda", given=COPY))


def ceilings(options: RunOptions, records: Records) -> Ceilings:
    """Return what the yardsticks showed; a yardstick that failed is left out."""
    ceiling_rates: Ceilings = {}
    trials = {t.id: t for block in blocks_of(options) if block.name == YARDSTICKS for t in block.trials}
    for record in records:
        trial = trials.get(record.trial)
        if trial is None or record.status != "ok":
            continue
        role = trial.roles[0]
        time_us = told(record, role.name)
        if time_us is None:
            continue
        rates = rates_of(facts_of([record], role.name), time_us.value)
        name, rate = ("copy", rates["gb_s"])
        if role.subjects[0].workload == "gemm":
            name, rate = f"matmul {role.subjects[0].params['dtype']}", rates["gflops"]
        if isinstance(rate, float):
            ceiling_rates[role.name, name] = rate
    return ceiling_rates


def facts_of(records: list[Record], role: str) -> SubjectFacts | None:
    """Return what the workers of a role found out about its subject; its work is that of all ranks together."""
    for record in records:
        evidence = [e for e in record.evidence if e.role == role and e.subjects]
        ranks = [e.subjects[0] for e in evidence if e.restart == evidence[0].restart]
        if ranks:
            work = {name: _summed([getattr(facts, name) for facts in ranks]) for name in ("flop", "bytes_moved")}
            return ranks[0].model_copy(update=work)
    return None


def _summed(each: list[float | None]) -> float | None:
    present = [value for value in each if value is not None]
    return sum(present) if len(present) == len(each) else None


def rates_of(facts: SubjectFacts | None, time_us: float) -> Params:
    """Return what a call's floating-point operations and bytes make of its time; null where not stated."""
    flop, moved = (facts.flop, facts.bytes_moved) if facts else (None, None)
    return {
        "gflops": None if flop is None else flop / time_us / 1e3,
        "gb_s": None if moved is None else moved / time_us / 1e3,
    }


def shares_of(rates: Params, subject: Subject, role: str, most: Ceilings) -> Params:
    """Return how much of the card's measured matmul and copy rates a result reaches; null where not measured."""
    matmul = most.get((role, f"matmul {subject.params.get('dtype')}"))
    copy = most.get((role, "copy"))
    gflops, gb_s = rates["gflops"], rates["gb_s"]
    return {
        "matmul_percent": 100 * gflops / matmul if matmul and isinstance(gflops, float) else None,
        "copy_percent": 100 * gb_s / copy if copy and isinstance(gb_s, float) else None,
    }
