from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

pytest.importorskip("triton", reason="Triton is not installed here")

RACE = """
import dataclasses, json, sys, torch
from assay.workloads.dilated_attention import backends
from assay.workloads.dilated_attention.schedule import AttentionHeads, DilationSchedule, branch_parts

wrong = json.loads(sys.argv[1])
forward = backends.fused_forward
if wrong:
    backends.fused_forward = lambda *a, **k: (lambda m: m._replace(out=m.out * 1.1))(forward(*a, **k))
backends.RACE_S = 0.3
backends.TILINGS = (backends.FusedTiling(16, 16, 4, 1),)
torch.manual_seed(0)
given = tuple(torch.randn(1, 32, 2, 1, 16, dtype=torch.bfloat16) for _ in range(3))
ladder, heads = DilationSchedule.of((16, 32), (1, 2)), AttentionHeads.of(2, 2, "modulo")
shape = backends.CallShape(ladder, heads, branch_parts(ladder, heads, 32), False, False)
names = backends.backend_candidates(shape, backward=True)
truth = backends.BackendReference.of(given, shape, given[0])
told = {}
for name, way in names.items():
    try:
        told[name] = truth.accepts(backends.call_backend(way, given, given[0]))
    except NotImplementedError:
        told[name] = None
won = backends.race_backends(given, shape, backward=True)
print(json.dumps([told, [name for name, way in names.items() if way == won]]))
"""


def raced(*, wrong: bool) -> tuple[dict[str, bool | None], list[str]]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    said = subprocess.run(
        [sys.executable, "-c", RACE, json.dumps(wrong)],
        env=environment, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    told, won = json.loads(said.stdout.splitlines()[-1])
    return told, won


def test_ways_that_cannot_run_here_or_are_wrong_never_win() -> None:
    told, won = raced(wrong=True)
    ours = [name for name in told if name.startswith("triton")]
    assert told["cudnn"] is None
    assert told["flash"] is True
    assert ours
    assert not any(told[name] for name in ours)
    assert won == ["flash"]


def test_a_way_that_is_right_is_found_right_forward_and_backward() -> None:
    told, won = raced(wrong=False)
    assert [told[name] for name in told if name.endswith("backward flash")] == [True]
    assert len(won) == 1
    assert told[won[0]] is True
