"""The installation test: a small problem in float64, checked by the workers themselves, and judged here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.plan import Method, Role, Subject, Trial
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.core.results import Evidence, SubjectFacts

ROLE = "ranks"
AT_MOST = 1e-12
"""Of the errors of forward and gradients in float64, whatever a tolerance allows."""
SHARD = 64
"""Positions of a rank; the longest segment is as long as the sequence, so that ranks must exchange."""

CASES = {
    "no mask": {"causal": False, "offset": "modulo"},
    "causal mask": {"causal": True, "offset": "modulo"},
    "offsets by blocks of heads": {"causal": False, "offset": "blocks"},
    "grouped heads, causal mask": {"causal": True, "offset": "modulo", "key_heads": 2},
}


class Case(Value):
    """What was checked of one case, and what came of it."""

    name: str
    passed: bool
    said: str
    error: float | None = None
    received_bytes: float | None = None
    expected_bytes: float | None = None


class Tested(Value):
    """What came of the test; ``reason`` says what is wrong."""

    ranks: int
    on: str
    passed: bool
    reason: str | None
    cases: tuple[Case, ...]


def trial_for(devices: Sequence[str], ranks: int, *, timeout_s: float, seed: int) -> Trial:
    """Return the trial that checks every case on so many ranks."""
    from assay.workloads import registry

    kind = devices[0].partition(":")[0]
    sequence = SHARD * ranks * 2
    shape = {
        "batch": "2",
        "sequence": str(sequence),
        "heads": "4",
        "key_heads": "4",
        "dim": "16",
        "segments": f"{SHARD // 2},{SHARD},{sequence}",
        "rates": "1,2,4",
        "ring": str(ranks),
        "dtype": "float64",
        "passes": "total",
    }
    subjects: list[Subject] = []
    for changed in CASES.values():
        params = {**shape, **{name: str(value).lower() for name, value in changed.items()}}
        subjects.append(registry.subject("dilated_attention@torch", device_kind=kind, given=params, ranks=ranks))
    rank_devices = tuple(devices[rank % len(devices)] for rank in range(ranks))
    role = Role(name=ROLE, subjects=tuple(subjects), ranks=ranks, devices=rank_devices, isolation="none")
    method = Method(duration_s=timeout_s, warmup_runs=0, benchmark_runs=1, timeout_s=timeout_s)
    return Trial(block="test", roles=(role,), method=method, seed=seed)


def judged(trial: Trial, evidence: Sequence[Evidence], reason: str | None) -> Tested:
    """Return what the ranks found: errors within bounds, and no byte more or less than the formula says."""
    role = trial.roles[0]
    on = ", ".join(dict.fromkeys(role.devices))
    cases = tuple(
        _case(
            name,
            [facts for rank_evidence in evidence for facts in rank_evidence.subjects if facts.subject == number],
            role.ranks,
        )
        for number, name in enumerate(CASES)
    )
    wrong = reason or next((f"{case.name}: {case.said}" for case in cases if not case.passed), None)
    return Tested(ranks=role.ranks, on=on, passed=wrong is None, reason=wrong, cases=cases if evidence else ())


def _case(name: str, found: Sequence[SubjectFacts], ranks: int) -> Case:
    checks = [facts.check for facts in found if facts.check is not None]
    if len(checks) < ranks:
        return Case(name=name, passed=False, said=f"{len(checks)} of {ranks} ranks checked their result")
    error = max(check.error for check in checks)
    received, expected = _total(found, "received_bytes"), _total(found, "expected_received_bytes")
    right = all(check.passed for check in checks) and error <= AT_MOST
    moved = ranks == 1 or (received is not None and received == expected and received > 0)
    outcome = f"forward and gradients within {error:.1e}"
    if ranks > 1:
        counted = (
            "not counted"
            if received is None or expected is None
            else f"{received:.0f} B received, {expected:.0f} by the formula"
        )
        outcome = f"{outcome}; {counted}"
    return Case(
        name=name, passed=right and moved, said=outcome, error=error, received_bytes=received, expected_bytes=expected
    )


def _total(found: Iterable[SubjectFacts], name: str) -> float | None:
    values = [facts.measured.get(name) for facts in found if facts.measured is not None]
    present = [value for value in values if value is not None]
    return sum(present) if present and len(present) == len(values) else None
