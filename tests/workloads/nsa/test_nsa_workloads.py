"""The branches as workloads: their data, their checks, what ran, and what is refused in which words."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput, MachineCannot, TrialFailed
from assay.workloads import registry
from assay.workloads.nsa import paths
from assay.workloads.nsa.branches import CompressedBranch, SlidingBranch
from assay.workloads.nsa.paths import chunked_call, flash_call, masked_call
from tests.torching import checked
from tests.workloads.nsa import naive

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.workloads.base import PreparedWorkload

NAMES = ("sliding_attention", "compressed_attention")
ATEN = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, ...>>"
SPLIT = "void pytorch_flash::flash_fwd_splitkv_combine_kernel<...>"
PACKAGE = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, ...>>"
COPY = "void at::native::elementwise_kernel<128, 4, ...direct_copy_kernel_cuda...>"
SMALL: dict[str, Scalar] = {"head_dim": 16, "sequence": 150}


def prepared(name: str, impl: str, **changed: Scalar) -> PreparedWorkload:
    workload = registry.find_workload(name, impl)
    return workload.prepare({**workload.defaults(), **SMALL, **changed}, None, device="cpu:0", seed=3)


def meant(spec: str, kind: str, **given: str) -> Any:
    return registry.resolve_subject(spec, device_kind=kind, explicit=given).params


@pytest.mark.parametrize("name", NAMES)
def test_both_paths_are_right_and_the_same_in_every_dtype(name: str) -> None:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        paths = [prepared(name, impl, dtype=dtype) for impl in ("masked", "flash")]
        for ready in paths:
            assert checked(ready).passed, dtype
        one, other = (ready.call() for ready in paths)
        assert one.shape == other.shape == (1, 2, 2, 150, 16)  # type: ignore[attr-defined]
        assert (one - other).abs().max() < 0.02  # type: ignore[operator]


@pytest.mark.parametrize("name", NAMES)
def test_a_cpu_says_that_its_fast_path_is_chunks_and_which_operators_ran(name: str) -> None:
    masked_path, fast = (prepared(name, impl, sequence=300) for impl in ("masked", "flash"))
    assert masked_path.launched_kernels is not None
    assert fast.launched_kernels is not None
    assert masked_path.launched_kernels().backend == "flash"
    assert fast.launched_kernels().backend == "chunks of flash"
    assert fast.launched_kernels().kernels.count("aten::_scaled_dot_product_flash_attention_for_cpu") > 1


def test_work_and_traffic_are_those_of_what_is_seen() -> None:
    ready = prepared("sliding_attention", "masked", window=2)
    assert ready.flop == 4 * 4 * 16 * (1 + 2 * 149)
    assert ready.bytes_moved == 4 * 16 * (2 * 4 * 150 + 2 * 2 * 150)
    tokens = (150 - 32) // 16 + 1
    assert prepared("compressed_attention", "flash").bytes_moved == 4 * 16 * (2 * 4 * 150 + 2 * 2 * tokens)


def test_a_mask_that_shows_only_the_first_key_of_the_window_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of the older tool did."""
    from assay.workloads.nsa import paths as module

    def first_only(branch: Any, queries: slice, keys: slice, *, where: str) -> Any:
        import torch

        first, _ = branch.key_range()
        return torch.arange(branch.keys)[keys] == torch.from_numpy(first[queries])[:, None]

    monkeypatch.setattr(module, "visible_mask", first_only)
    assert not checked(prepared("sliding_attention", "masked")).passed


def test_a_backend_that_gives_no_zeros_to_queries_that_see_nothing_is_set_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention

    def not_a_number(*given: Any, attn_mask: Any) -> Any:
        return attend(*given, attn_mask=attn_mask).masked_fill(~attn_mask.any(-1)[:, None], math.nan)

    branch = CompressedBranch(1, 1, 2, 8, 40, "float32", block=6, stride=4)
    given = naive.made(branch)
    expected = masked_call(branch, given)
    assert expected.zeroed == 0
    right = expected()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", not_a_number)
    found = masked_call(branch, given)
    assert found.zeroed == 5
    assert found().equal(right)


def test_chunks_alike_share_their_masks_and_those_that_see_all_have_none() -> None:
    branch = SlidingBranch(1, 1, 1, 8, 100, "float32", window=5)
    masks = [mask for *_, mask in chunked_call(branch, naive.made(branch), step=10).chunks]
    assert len({id(mask) for mask in masks}) == 2
    level = CompressedBranch(1, 1, 1, 8, 40, "float32", block=8, stride=8)
    assert all(mask is None for *_, mask in chunked_call(level, naive.made(level), step=1).chunks)


@pytest.mark.parametrize(
    ("spec", "kind", "given", "message"),
    [
        (
            "sliding_attention@flash",
            "cuda",
            {"dtype": "float32"},
            r"^On a GPU sliding_attention is in float16 or bfloat16, as flash kernels are, not in float32\.$",
        ),
        ("compressed_attention@masked", "cuda", {"dtype": "float64"}, "not in float64"),
        (
            "sliding_attention@flash",
            "cuda",
            {"head_dim": "60"},
            r"^Flash kernels take heads of a multiple of 8 up to 256 elements, not of 60\.$",
        ),
        ("sliding_attention@flash", "cuda", {"head_dim": "264"}, "not of 264"),
        (
            "compressed_attention@masked",
            "cpu",
            {"sequence": "31"},
            r"^A sequence of 31 has no whole block of 32: no query would see anything\.$",
        ),
        (
            "sliding_attention@flash",
            "cpu",
            {"kernel": "flash_attn"},
            r"^The kernels of flash_attn run on a GPU, not on a CPU\.$",
        ),
        (
            "compressed_attention@flash",
            "cuda",
            {"kernel": "flash_attn", "way": "groups"},
            r"^way=groups is computed by kernel=aten, not by flash_attn; choose way=columns\.$",
        ),
        ("sliding_attention@flash", "cpu", {"kernel": "cudnn"}, "has no kernel 'cudnn'; there are aten, flash_attn"),
        ("sliding_attention@flash", "cpu", {"way": "groups"}, "has no parameter 'way'"),
        ("sliding_attention@masked", "cpu", {"window": "0"}, "window is a size of at least 1"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    spec: str, kind: str, given: dict[str, str], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        meant(spec, kind, **given)


def test_a_gpu_is_asked_in_float16_and_a_cpu_in_float32() -> None:
    assert meant("sliding_attention@flash", "cuda")["dtype"] == "float16"
    assert meant("compressed_attention@masked", "cpu")["dtype"] == "float32"


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)


def test_a_gpu_older_than_flash_kernels_is_refused_with_its_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch, "Tesla T4", (7, 5))
    branch = SlidingBranch(1, 1, 1, 8, 8, "float16", window=4)
    with pytest.raises(
        MachineCannot,
        match=r"^Flash kernels need a GPU of compute capability 8\.0 or later; Tesla T4 has 7\.5\.$",
    ):
        flash_call(branch, naive.made(branch), kernel="aten", layout="columns")


@pytest.mark.parametrize("way", ["columns", "groups"])
def test_a_pytorch_without_flash_kernels_is_refused_in_its_own_words(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch, "NVIDIA H200", (9, 0))
    branch = CompressedBranch(1, 1, 1, 8, 8, "float16", block=2, stride=2)
    with pytest.raises(MachineCannot, match=r"^There are no flash kernels for this here: Could not run 'aten::_flash"):
        flash_call(branch, naive.made(branch), kernel="aten", layout=way)


def test_without_the_package_its_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(MachineCannot, match=r"^The package flash_attn cannot be imported here \(.*\); kernel=aten"):
        paths.load_flash_kernel("flash_attn")


def test_the_package_is_called_causally_with_the_same_window(monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = ModuleType("flash_attn")
    package.flash_attn_func = lambda *given, **told: (given, told)
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    found: Any = paths.load_flash_kernel("flash_attn")("q", "k", "v", 31)
    assert found == (("q", "k", "v"), {"causal": True, "window_size": (31, 0)})


def test_what_fails_for_another_reason_is_not_called_a_missing_kernel() -> None:
    def fails() -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        paths.try_flash_call(fails)


def test_the_kernels_of_a_gpu_prove_whose_they_are() -> None:
    assert paths.check_kernel_used("aten", (COPY, ATEN, SPLIT)) == "flash"
    assert paths.check_kernel_used("flash_attn", (COPY, PACKAGE)) == "flash_attn"
    assert paths.check_kernel_used("aten", ()) is None
    with pytest.raises(TrialFailed, match="by the flash kernels of aten, but those that ran are of flash_attn"):
        paths.check_kernel_used("aten", (PACKAGE,))
    with pytest.raises(TrialFailed, match="of flash_attn, but no flash kernel among those that ran"):
        paths.check_kernel_used("flash_attn", (COPY,))
