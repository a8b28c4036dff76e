from __future__ import annotations

from typing import Any

import pytest

from assay.core.errors import MachineCannot, TrialFailed
from assay.workloads.ops.attention import attention_backend, check_backend_used, find_warning_reason, restrict_backend
from assay.workloads.torch_support import TORCH_DTYPES
from tests.torching import checked, prepared

CUDNN = ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",)
FLASH = ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, ...>>",)
EFFICIENT = ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>::Params)",)
MATH = (
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 11, false, false>(...)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off",
)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("backend", ["flash", "math"])
def test_the_backends_of_a_cpu_are_right_and_proved_by_their_operators(backend: str, dtype: str, causal: bool) -> None:
    ready = prepared("flash_attention", backend=backend, dtype=dtype, causal=causal)
    assert checked(ready).passed
    assert ready.launched_kernels is not None
    ran = ready.launched_kernels()
    assert ran.backend == backend
    mark = {"flash": "_scaled_dot_product_flash_attention_for_cpu", "math": "_scaled_dot_product_attention_math"}
    assert f"aten::{mark[backend]}" in ran.kernels


def test_pytorchs_own_choice_is_reported_as_what_it_was() -> None:
    ready = prepared("flash_attention", backend="auto")
    assert ready.launched_kernels is not None
    assert ready.launched_kernels().backend == "flash"


@pytest.mark.parametrize("backend", ["cudnn", "efficient"])
def test_a_backend_that_a_cpu_does_not_have_is_refused(backend: str) -> None:
    with pytest.raises(MachineCannot, match=rf"^PyTorch has no {backend} attention for this problem here\.$"):
        prepared("flash_attention", backend=backend)


def test_a_backend_other_than_the_one_asked_for_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.workloads.ops import attention

    monkeypatch.setattr(attention, "restrict_backend", lambda call, _: call)
    ready = prepared("flash_attention", backend="math")
    assert ready.launched_kernels is not None
    with pytest.raises(
        TrialFailed, match=r"^attention was to run by backend 'math', but the kernels are those of 'flash'$"
    ):
        ready.launched_kernels()


@pytest.mark.parametrize(
    ("kernels", "backend"),
    [(CUDNN, "cudnn"), (FLASH, "flash"), (EFFICIENT, "efficient"), (MATH, "math"), ((), None)],
)
def test_the_kernels_of_a_gpu_show_their_backend(kernels: tuple[str, ...], backend: str | None) -> None:
    assert attention_backend(kernels) == backend
    assert check_backend_used("auto", kernels) == backend
    if backend is not None:
        assert check_backend_used(backend, kernels) == backend


@pytest.mark.parametrize("asked", ["flash", "cudnn", "efficient", "math"])
def test_a_profiler_that_sees_nothing_proves_nothing_and_fails_nothing(asked: str) -> None:
    assert check_backend_used(asked, ()) is None


def switches() -> tuple[bool, ...]:
    from torch.backends import cuda

    enabled = (
        cuda.flash_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
    )
    return tuple(map(bool, enabled))


@pytest.mark.parametrize(("backend", "place"), [("flash", 0), ("cudnn", 1), ("efficient", 2), ("math", 3)])
def test_only_one_backend_is_on_during_a_call_and_all_of_them_afterwards(backend: str, place: int) -> None:
    during: list[tuple[bool, ...]] = []

    def fails() -> Any:
        during.append(switches())
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        restrict_backend(fails, backend)()
    assert during == [tuple(number == place for number in range(4))]
    assert switches() == (True,) * 4


def test_pytorchs_reason_for_not_having_a_kernel_is_passed_on() -> None:
    said = [
        "Memory efficient kernel not used because: (Triggered internally at sdp_utils.cpp:1.)",
        "Memory Efficient attention has been runtime disabled. (Triggered internally at sdp_utils.cpp:2.)",
        "Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:3.)",
        "Expected query to be of dtype: {Half, BFloat16}. Got: float. (Triggered internally at sdp_utils.cpp:4.)",
    ]
    assert find_warning_reason(said, "flash") == ": Expected query to be of dtype: {Half, BFloat16}. Got: float"
    assert find_warning_reason(said, "cudnn") == ""
    assert find_warning_reason([], "math") == ""
