from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from assay.workloads.dilated_attention.schedule import AttentionHeads, DilationSchedule
from assay.workloads.dilated_attention.verify import dense_attention
from tests.workloads.dilated_attention.world import Case, drawn, in_world

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full

pytest.importorskip("triton", reason="Triton is not installed here")

SMALL = Case((4, 12, 24), (1, 2, 4), batch=1, dtype="float32", backend="triton", size=1)
LONG = replace(SMALL, sequence=256, segments=(256,), rates=(1,), heads=1, kv_heads=1)
CASES = [
    SMALL,
    replace(SMALL, causal=True, kv_heads=2, offset="blocks"),
    replace(LONG, dim=16),
    replace(LONG, sequence=1024, segments=(256, 1024), rates=(1, 2), dim=16, heads=2, kv_heads=2),
    replace(LONG, segments=(64, 256), rates=(4, 1), causal=True),
    replace(SMALL, size=2, causal=True),
    replace(SMALL, size=2, segments=(4, 24), rates=(1, 3), kv_heads=2),
    replace(SMALL, backend="flash"),
    replace(SMALL, backend="flash", causal=True, kv_heads=2, offset="blocks", batch=2),
    replace(SMALL, backend="flash", size=2, causal=True),
    replace(SMALL, backend="flash", segments=(8, 24), rates=(4, 1), heads=3, kv_heads=3),
]


def test_kernels_of_ours_for_branches_and_for_their_merge_are_right_alone_and_in_a_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for case, ring in zip(CASES, in_world(2, CASES, tmp_path), strict=True):
        assert not [rank["error"] for rank in ring if "error" in rank]
        (q, k, v, gradient), _ = drawn(case)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        ladder, heads = (
            DilationSchedule.of(case.segments, case.rates),
            AttentionHeads.of(case.heads, case.kv_heads, case.offset),
        )
        out = dense_attention(q, k, v, ladder, heads, causal=case.causal)
        right = [out, *torch.autograd.grad(out, inputs, gradient.double())]
        for index in range(4):
            found = torch.cat([rank["found"][index] for rank in ring], 1)
            assert float((found - right[index]).detach().abs().max()) < 2e-5, (case, index)


COMPILE = """
import json, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from assay.workloads.kernels.dilated_attention import dilated_attention as kernel
constants = {**json.loads(sys.argv[1]), "segments": (2048, 4096, 8192), "rates": (1, 2, 4)}
signature = {name: "constexpr" if name in constants else "*bf16" for name in kernel.arg_names}
signature |= {"sums": "*fp32", "sequence": "i32", "scale": "fp32"}
places = {name: place for place, name in enumerate(kernel.arg_names)}
aligned = [place for name, place in places.items() if signature[name][0] in "*i"]
source = ASTSource(
    kernel,
    signature=signature,
    constexprs={(places[name],): value for name, value in constants.items()},
    attrs={(place,): [["tt.divisibility", 16]] for place in aligned},
)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})
print(json.dumps([made.metadata.shared, "wgmma" in made.asm["ptx"]]))
"""


def test_the_kernel_compiles_for_a_hopper_uses_its_tensor_cores_and_fits_it(tmp_path: Path) -> None:
    sizes = {"heads": 12, "key_heads": 12, "period": 4, "dim": 64, "block_q": 128, "block_k": 64, "block_d": 64}
    constants = {**sizes, "modulo": True, "aligned": False, "causal": True, "precision": "ieee", "widen": False}
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    said = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(constants)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    shared_bytes, tensor_cores = json.loads(said.stdout)
    assert shared_bytes <= 227 * 1024
    assert tensor_cores
