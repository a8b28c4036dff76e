"""``assay scaling test``: exit 0 only when forward, gradients and bytes are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.core.results import Check, Evidence, SubjectFacts
from assay.experiments.scaling.self_test import TEST_CASES, build_self_test, judge_self_test

if TYPE_CHECKING:
    from tests.running import Assay

TRIAL = build_self_test(("cpu:0", "cpu:1"), 2, timeout_s=60.0, seed=0)


def evidence(rank: int, *, error: float = 1e-15, received: float = 64.0, expected: float = 64.0) -> Evidence:
    facts = tuple(
        SubjectFacts(
            subject=number,
            check=Check(error=error, tolerance=1e-9, measure="relative error"),
            measured={"received_bytes": received, "expected_received_bytes": expected},
        )
        for number in range(len(TEST_CASES))
    )
    return Evidence(
        role="ranks", rank=rank, restart=0, pid=1, device=f"cpu:{rank}", isolation_asked="none", isolation_held="none",
        allowed_cores=(0,), thread_limit=None, memory_nodes=None, setup_s=1.0, subjects=facts,
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.usefixtures("torch_imported")
def test_two_ranks_check_every_case_here(assay: Assay) -> None:
    ran = assay("scaling", "test", "--nproc", 2, "--device", "cpu")
    assert ran.code == 0, ran.err
    assert "float64, 2 ranks on cpu:0, cpu:1, PyTorch" in ran.out
    assert all(f"✓ {name}: forward and gradients within" in ran.out for name in TEST_CASES)
    assert "All of it is right." in ran.out
    assert "runs" not in ran.err


def test_all_right_passes() -> None:
    found = judge_self_test(TRIAL, [evidence(0), evidence(1)], None)
    assert found.passed
    assert [case.name for case in found.cases] == list(TEST_CASES)


def test_anything_wrong_is_named_and_fails() -> None:
    wrong = {
        "an error beyond float64": [evidence(0), evidence(1, error=1e-6)],
        "a byte too many": [evidence(0), evidence(1, received=65.0)],
        "nothing sent where something must be": [evidence(r, received=0.0, expected=0.0) for r in (0, 1)],
        "a rank that did not check": [evidence(0)],
    }
    for what, found in wrong.items():
        told = judge_self_test(TRIAL, found, None)
        assert not told.passed, what
        assert told.reason is not None, what
    failed = judge_self_test(TRIAL, [], "rank 1: it is wrong")
    assert (failed.passed, failed.reason, failed.cases) == (False, "rank 1: it is wrong", ())
