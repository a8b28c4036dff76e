"""The installation test: a small problem in float64, checked by the workers and judged here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.values import Counted, Role, Subject, Trial, Value
from assay.experiments.scaling.analysis import sum_measured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.results import Evidence, SubjectFacts

ROLE = "ranks"
MAX_ERROR = 1e-12
"""Of the errors of forward and gradients in float64, whatever a tolerance allows."""
SHARD_POSITIONS = 64
"""Positions of a rank; the longest segment is as long as the sequence, so that ranks must exchange."""

TEST_CASES = {
    "no mask": {"causal": False, "offset": "modulo"},
    "causal mask": {"causal": True, "offset": "modulo"},
    "offsets by blocks of heads": {"causal": False, "offset": "blocks"},
    "grouped heads, causal mask": {"causal": True, "offset": "modulo", "key_heads": 2},
}


class SelfTestCase(Value):
    """What was checked of one case, and what came of it."""

    name: str
    passed: bool
    outcome: str
    error: float | None = None
    received_bytes: float | None = None
    expected_bytes: float | None = None


class SelfTestResult(Value):
    """What came of the test; ``reason`` says what is wrong."""

    ranks: int
    devices: str
    passed: bool
    reason: str | None
    cases: tuple[SelfTestCase, ...]


def build_self_test(devices: Sequence[str], ranks: int, *, timeout_s: float, seed: int) -> Trial:
    """Return the trial that checks every case on this many ranks."""
    from assay.workloads import registry

    kind = devices[0].partition(":")[0]
    sequence = SHARD_POSITIONS * ranks * 2
    shape = {
        "batch": "2",
        "sequence": str(sequence),
        "heads": "4",
        "key_heads": "4",
        "dim": "16",
        "segments": f"{SHARD_POSITIONS // 2},{SHARD_POSITIONS},{sequence}",
        "rates": "1,2,4",
        "ring": str(ranks),
        "dtype": "float64",
        "passes": "total",
    }
    subjects: list[Subject] = []
    for changed in TEST_CASES.values():
        params = {**shape, **{name: str(value).lower() for name, value in changed.items()}}
        name = "dilated_attention@torch"
        subjects.append(registry.resolve_subject(name, device_kind=kind, explicit=params, ranks=ranks))
    rank_devices = tuple(devices[rank % len(devices)] for rank in range(ranks))
    role = Role(name=ROLE, subjects=tuple(subjects), ranks=ranks, devices=rank_devices, isolation="none")
    mode = Counted(duration_s=timeout_s, warmup_runs=0, runs=1, timeout_s=timeout_s)
    return Trial(block="test", roles=(role,), mode=mode, seed=seed)


def judge_self_test(trial: Trial, evidence: Sequence[Evidence], reason: str | None) -> SelfTestResult:
    """Return what the ranks found: errors within bounds, and no byte more or less than the formula says."""
    role = trial.roles[0]
    on = ", ".join(dict.fromkeys(role.devices))
    facts = [facts for rank_evidence in evidence for facts in rank_evidence.subjects]
    cases = tuple(
        _judge_case(name, [one for one in facts if one.subject == number], role.ranks)
        for number, name in enumerate(TEST_CASES)
    )
    wrong = reason or next((f"{case.name}: {case.outcome}" for case in cases if not case.passed), None)
    shown = cases if evidence else ()
    return SelfTestResult(ranks=role.ranks, devices=on, passed=wrong is None, reason=wrong, cases=shown)


def _judge_case(name: str, facts_of_ranks: Sequence[SubjectFacts], ranks: int) -> SelfTestCase:
    checks = [facts.check for facts in facts_of_ranks if facts.check is not None]
    if len(checks) < ranks:
        return SelfTestCase(name=name, passed=False, outcome=f"{len(checks)} of {ranks} ranks checked their result")
    error = max(check.error for check in checks)
    received = sum_measured(facts_of_ranks, "received_bytes")
    expected = sum_measured(facts_of_ranks, "expected_received_bytes")
    right = all(check.passed for check in checks) and error <= MAX_ERROR
    moved = ranks == 1 or (received is not None and received == expected and received > 0)
    outcome = f"forward and gradients within {error:.1e}"
    if ranks > 1 and (received is None or expected is None):
        outcome += "; not counted"
    elif ranks > 1:
        outcome += f"; {received:.0f} B received, {expected:.0f} by the formula"
    return SelfTestCase(
        name=name,
        passed=right and moved,
        outcome=outcome,
        error=error,
        received_bytes=received,
        expected_bytes=expected,
    )
