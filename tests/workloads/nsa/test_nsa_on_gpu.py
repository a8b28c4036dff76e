"""What only a GPU can show of the branches: that its flash kernels give what they must, and that it was they."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from assay.workloads import registry
from assay.workloads.nsa import branches
from assay.workloads.nsa.branches import CompressedBranch
from assay.workloads.nsa.paths import flash_call, masked_call
from tests.torching import checked

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.workloads.base import PreparedWorkload

pytestmark = pytest.mark.gpu

SLIDING, COMPRESSED = "sliding_attention", "compressed_attention"
CELLS: list[tuple[str, dict[str, Scalar]]] = [
    (SLIDING, {"sequence": 256, "window": 32}),
    (SLIDING, {"sequence": 777, "window": 1, "heads": 1}),
    (SLIDING, {"sequence": 1024, "window": 2000, "batch": 2, "heads": 4}),
    (SLIDING, {"sequence": 4096, "window": 128, "head_dim": 128}),
    (COMPRESSED, {"sequence": 256}),
    (COMPRESSED, {"sequence": 777, "block": 7, "stride": 3, "heads": 1}),
    (COMPRESSED, {"sequence": 1024, "block": 16, "stride": 16, "batch": 2, "heads": 4}),
    (COMPRESSED, {"sequence": 100, "block": 5, "stride": 40}),
    (COMPRESSED, {"sequence": 4096, "head_dim": 128}),
]


def prepared(name: str, impl: str, device: str, **changed: Scalar) -> PreparedWorkload:
    workload = registry.find_workload(name, impl)
    return workload.prepare({**workload.defaults("cuda"), **changed}, None, device=device, seed=1)


def right(ready: PreparedWorkload) -> tuple[str, ...]:
    """Make sure that a path is right in every way there is, and return the kernels that ran."""
    check = checked(ready)
    assert check.passed, check
    assert ready.parity is not None
    parity = ready.parity()
    assert parity.passed, parity
    assert ready.launched_kernels is not None
    return ready.launched_kernels().kernels


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "cell"), CELLS)
def test_flash_kernels_give_what_they_must_and_are_what_ran(
    name: str, cell: dict[str, Scalar], dtype: str, cuda: str
) -> None:
    ways: list[dict[str, Scalar]] = [{}] if name == SLIDING else [{"way": "columns"}, {"way": "groups"}]
    for way in ways:
        ready = prepared(name, "flash", cuda, dtype=dtype, **cell, **way)
        kernels = right(ready)
        assert ready.launched_kernels is not None
        assert ready.launched_kernels().backend == "flash"
        others = [kernel for kernel in kernels if "flash_fwd" not in kernel]
        assert len(others) <= (1 if way.get("way") == "columns" else 0), others


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "cell"), CELLS)
def test_masked_attention_gives_what_it_must_by_a_fused_kernel(
    name: str, cell: dict[str, Scalar], dtype: str, cuda: str
) -> None:
    ready = prepared(name, "masked", cuda, dtype=dtype, **cell)
    right(ready)
    assert ready.launched_kernels is not None
    assert ready.launched_kernels().backend in {"efficient", "cudnn"}


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is None, reason="flash_attn is not installed here")
@pytest.mark.parametrize(("name", "cell"), CELLS)
def test_the_packages_kernels_give_what_they_must(name: str, cell: dict[str, Scalar], cuda: str) -> None:
    ready = prepared(name, "flash", cuda, kernel="flash_attn", **cell)
    right(ready)
    assert ready.launched_kernels is not None
    assert ready.launched_kernels().backend == "flash_attn"


def test_a_mask_taken_in_parts_gives_the_same(cuda: str) -> None:
    branch = CompressedBranch(1, 2, 2, 64, 1000, "float16", block=32, stride=16)
    given = branches.make_inputs(branch, "normal", where=cuda, seed=0)
    whole, parts = masked_call(branch, given), masked_call(branch, given, largest=300 * branch.keys)
    assert len(parts.parts) == 4
    assert float((whole() - parts()).abs().max()) < 2e-3


def test_outputs_lie_in_memory_as_the_queries_do_so_that_nothing_is_copied(cuda: str) -> None:
    branch = CompressedBranch(1, 2, 2, 64, 1024, "float16", block=32, stride=16)
    given = branches.make_inputs(branch, "normal", where=cuda, seed=0)
    out: Any = flash_call(branch, given, kernel="aten", layout="groups")()
    assert out.stride() == given.q.stride()


@pytest.mark.parametrize(("name", "cell"), [(SLIDING, {"window": 64}), (SLIDING, {"window": 4096}), (COMPRESSED, {})])
def test_sequences_of_64k_are_judged_by_blocks(name: str, cell: dict[str, Scalar], cuda: str) -> None:
    ready = prepared(name, "flash", cuda, sequence=65536, **cell)
    right(ready)
    assert ready.parity is not None
    parity = ready.parity()
    assert parity.rows == 65536
    assert parity.rows_checked is not None
    assert parity.rows_checked < 20000
