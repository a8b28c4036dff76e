"""The benchmark of dilated attention: rivals that compute the same function, and its tables from known samples."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks import attention_rivals as rivals
from benchmarks import attention_tables
from benchmarks.attention_tables import CUDNN, FLASH, OURS, PASSES, tables

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Return what a small problem must give, and its tensors; rivals are told of the same problem."""
    from assay.workloads.dilated_attention.schedule import AttentionHeads, DilationSchedule
    from assay.workloads.dilated_attention.verify import dense_attention

    for name, value in {"SEGMENTS": (16, 32, 64), "RATES": (1, 2, 4), "HEADS": 4, "DIM": 8}.items():
        monkeypatch.setattr(rivals, name, value)
    torch.manual_seed(0)
    q, k, v = given = [torch.randn(2, 128, 4, 8) for _ in range(3)]
    return dense_attention(
        q, k, v, DilationSchedule.of((16, 32, 64), (1, 2, 4)), AttentionHeads.of(4, 4, "modulo")
    ), given


@pytest.mark.parametrize("gathered", [False, True])
def test_rivals_put_together_from_parts_compute_the_same_function(
    small: tuple[Any, list[Any]], monkeypatch: pytest.MonkeyPatch, *, gathered: bool
) -> None:
    right, given = small

    def attend(_: object, q: Any, k: Any, v: Any) -> Any:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[:2]

    monkeypatch.setattr(rivals.Eager, "_attend", attend)
    found = rivals.Eager("flash", copies_parts=gathered)(*given)
    assert float((found - right).abs().max()) < 1e-5


def test_the_bias_of_flex_attention_is_the_same_function(small: tuple[Any, list[Any]]) -> None:
    right, (q, k, v) = small
    where = torch.meshgrid(torch.arange(4), torch.arange(128), torch.arange(128), indexing="ij")
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(8) + rivals.joined(*where).float().log()
    found = torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v)
    assert float((found - right).abs().max()) < 1e-5


def cell(sequence: int, passes: str, rival: str, ours_us: float, times_ours: float) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "passes": passes,
        "samples_us": {OURS: [ours_us] * 3, rival: [times_ours * ours_us] * 3},
        "ratios": {rival: [times_ours, times_ours - 0.1, times_ours + 0.1]},
        "failed": {"another": "no | such kernel"},
    }


def test_the_tables_say_what_was_wanted_and_what_was_measured() -> None:
    raw = {
        "cells": [
            cell(65536, PASSES[0], CUDNN, 4000.0, 1.5),
            cell(65536, PASSES[1], FLASH, 14000.0, 1.6),
            cell(16384, PASSES[0], CUDNN, 2000.0, 1.4),
        ],
        "scale": [],
        "exact": [{"dtype": "float16", "causal": True, "ours": [2e-3, 1e-3, 1e-3, 3e-3], "dense": [1e-3] * 4}],
        "memory": [{"sequence": 1024, "held_bytes": 2**20, "peak_bytes": 3 * 2**20}],
        "skipped": ["forward at 8192"],
    }
    told = tables(raw)
    assert "at least 1.3 times as fast as strided cuDNN, eager merge | 1.50 (1.40–1.60) |" in told["reach"]
    assert "at least 1.7 times as fast as strided flash, eager merge | 1.60 (1.50–1.70) |" in told["reach"]
    assert "forward at 16384: at least 85% of the TFLOP/s at 65536 | 50% |" in told["reach"]
    assert "forward + backward at 16384: at least 85% of the TFLOP/s at 65536 | not measured |" in told["reach"]
    assert "dense attention in the same dtype | 3.00 |" in told["reach"]
    assert "| 65536 | forward | another | could not run: no / such kernel | | | |" in told["times"]
    assert "| forward at 8192 | not measured: no time was left | | | | | |" in told["times"]
    assert told["memory"].endswith("| 1024 | 1 | 3 | 3.00 |")
    work = rivals.flop(attention_tables.BATCH, 65536)
    assert f"| 65536 | forward | Assay | 4.000 | {work / 4e-3 / 1e12:.0f} | 1.00 | 3 |" in told["times"]
