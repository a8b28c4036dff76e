"""Ranks that share one GPU: their transfers go over gloo through the host, and what they compute is right."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from assay.core.values import Counted, Role
from assay.workloads import registry
from assay.workloads.dilated_attention.problem import AttentionCosts
from assay.workloads.dilated_attention.schedule import AttentionHeads, DilationSchedule
from assay.workloads.dilated_attention.verify import RelativeErrors, blockwise_attention, plain_attention_errors
from tests.running import quickly
from tests.workloads.dilated_attention.test_dilated_end_to_end import PARTS
from tests.workloads.dilated_attention.world import Case, drawn, in_world

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Measure

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

BASE = Case((64, 256, 512), (1, 2, 4), sequence=512, heads=4, kv_heads=2, dim=64, device="cuda:0")
CASES = [
    replace(BASE, causal=causal, offset=offset, dtype=dtype, backend=backend)
    for causal, offset in ((False, "modulo"), (True, "blocks"))
    for dtype, backend in (("bfloat16", "flash"), ("bfloat16", "auto"), ("float32", "math"))
]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_share_a_gpu_find_what_the_reference_says_and_move_what_the_formula_says(
    size: int, tmp_path: Path
) -> None:
    import torch

    for case, ranks in zip(CASES, in_world(size, CASES, tmp_path, within_s=250), strict=True):
        assert not [rank["error"] for rank in ranks if "error" in rank]
        (q, k, v, gradient), _ = drawn(case)
        ladder, heads = (
            DilationSchedule.of(case.segments, case.rates),
            AttentionHeads.of(case.heads, case.kv_heads, case.offset),
        )
        right = blockwise_attention(q, k, v, ladder, heads, gradient=gradient, causal=case.causal)
        errors = RelativeErrors()
        errors.add([torch.cat([rank["found"][index] for rank in ranks], 1) for index in range(4)], right)
        plain = plain_attention_errors((q, k, v, gradient), causal=case.causal)
        most = [1e-5] * 4 if case.dtype == "float32" else [2 * error for error in plain]
        assert all(found <= may for found, may in zip(errors.relative(), most, strict=True)), (case, errors.relative())
        costs = AttentionCosts(ladder, heads, case.batch, case.sequence, case.dim, q.element_size(), case.causal)
        for place, rank in enumerate(ranks):
            received = costs.received_bytes(place, size), costs.backward_received_bytes(place, size)
            assert rank["bytes"][:2] == received


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_workload_is_right_over_ranks_that_share_a_gpu_and_says_what_it_held(measure: Measure, dtype: str) -> None:
    given = {"batch": "1", "sequence": "4096", "segments": "512,2048,4096", "dtype": dtype, "causal": "true"}
    subjects = tuple(
        registry.resolve_subject("dilated_attention", device_kind="cuda", explicit={**given, **part}, ranks=2)
        for part in PARTS
    )
    ring = Role(name="ring", subjects=subjects, ranks=2, devices=("cuda:0",))
    outcome = measure(ring, mode=quickly(Counted, warmup_runs=1, runs=2, timeout_s=200.0))
    assert outcome.status == "ok", outcome.reason
    for evidence in outcome.evidence:
        for facts in evidence.subjects:
            assert facts.measured is not None
            assert facts.measured["received_bytes"] == facts.measured["expected_received_bytes"]
            assert facts.measured["peak_reserved_mib"] >= facts.measured["peak_allocated_mib"]
            assert facts.measured["peak_allocated_mib"] >= facts.measured["held_mib"]
        assert [facts.check is not None and facts.check.passed for facts in evidence.subjects] == [
            True, True, False, False,
        ]  # fmt: skip
