"""What only a GPU can show: its kernels, its backends, its memory running out."""

from __future__ import annotations

import pytest

from assay.core.errors import MachineCannot
from assay.worker.subjects import describe_failure
from assay.workloads import registry
from assay.workloads.kernel_support import TRITON_DTYPES
from assay.workloads.torch_support import TORCH_DTYPES
from tests.torching import ODD, checked, prepared

pytestmark = pytest.mark.gpu

TRITON = ("flash_attention", "gemm", "rms_norm", "softmax")


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("name", list(ODD))
def test_pytorchs_operators_are_right_and_show_their_kernels(name: str, dtype: str, cuda: str) -> None:
    ready = prepared(name, device=cuda, dtype=dtype)
    check = checked(ready)
    assert check.passed, check
    assert ready.launched_kernels is not None
    kernels = ready.launched_kernels().kernels
    assert kernels
    assert not any(kernel.startswith("aten::") for kernel in kernels)


@pytest.mark.parametrize("dtype", TRITON_DTYPES)
@pytest.mark.parametrize("name", TRITON)
def test_our_kernels_are_right_and_are_what_ran(name: str, dtype: str, cuda: str) -> None:
    ready = prepared(name, "triton", device=cuda, dtype=dtype)
    check = checked(ready)
    assert check.passed, check
    assert ready.launched_kernels is not None
    assert ready.launched_kernels().kernels == (name,)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn", "math"])
def test_the_backend_asked_for_is_the_one_that_ran(backend: str, causal: bool, cuda: str) -> None:
    ready = prepared("flash_attention", device=cuda, dtype="bfloat16", dim=64, backend=backend, causal=causal)
    assert checked(ready).passed
    assert ready.launched_kernels is not None
    assert ready.launched_kernels().backend == backend


def test_flash_attention_in_float32_is_refused_with_pytorchs_reason_where_it_gives_one(cuda: str) -> None:
    with pytest.raises(MachineCannot, match=r"^PyTorch has no flash attention for this problem here(: .*dtype.*)?\.$"):
        prepared("flash_attention", device=cuda, dtype="float32", backend="flash")


def test_tf32_is_rounded_only_when_asked_for(cuda: str) -> None:
    exact, rounded = (
        checked(prepared("gemm", device=cuda, dtype="float32", m=512, n=512, k=512, tf32=tf32))
        for tf32 in (False, True)
    )
    assert exact.passed
    assert rounded.passed
    assert rounded.error > 10 * exact.error


def test_more_memory_than_there_is_is_out_of_memory(cuda: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        registry.find_workload("memcpy", "torch").prepare(
            {"n": 2**45, "dtype": "float32", "distribution": "normal"}, None, device=cuda, seed=0
        )
    assert describe_failure(caught.value).code == "out_of_memory"
