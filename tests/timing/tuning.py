"""Triton's auto-tuner with Assay's timer, in a process of its own: its environment decides how kernels run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import json, sys
import torch, triton, triton.language as tl
import assay

device, n, smaller = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
calls = []

def bench(kernel_call, quantiles):
    calls.append(quantiles)
    return assay.do_bench(kernel_call, warmup=5, rep=20, quantiles=quantiles)

@triton.autotune([triton.Config({"BLOCK": block}) for block in (smaller, 1024)], key=["n"], do_bench=bench)
@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

x = torch.zeros(n, device=device)
add_one[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n)
print(json.dumps({"best": add_one.best_config.kwargs["BLOCK"], "calls": len(calls), "least": x.min().item()}))
"""


def tuned(folder: Path, device: str, *, elements: int, smaller_block: int, **environment: str) -> Any:
    """Tune a kernel between two sizes of block, the larger 1024; return what came out of it."""
    (folder / "tuned.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "tuned.py", device, str(elements), str(smaller_block)],
        cwd=folder,
        env={**os.environ, "TRITON_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
