"""The base load of a study of power: square products of a size that fills the card, or of one asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput, MachineCannot
from assay.workloads import registry, torch_device
from assay.workloads.ops import gemm
from assay.workloads.ops.gemm import GpuShape, filling_side, idle_share, largest_side, needed_bytes
from tests.torching import checked

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.values import Scalar
    from assay.workloads.base import PreparedWorkload

GIB = 2**30
H200 = GpuShape(132, 139 * GIB, (9, 0))
NAMES = ("sgemm", "hgemm", "dgemm")
DTYPES = {"sgemm": "float32", "hgemm": "float16", "dgemm": "float64"}


def prepared(name: str, **given: Scalar) -> PreparedWorkload:
    workload = registry.find_workload(name, "torch")
    return workload.prepare({**workload.defaults(), **given}, None, device="cpu:0", seed=0)


@pytest.mark.parametrize(
    ("card", "dtype", "n"),
    [
        (H200, "float32", 16896),
        (H200, "float16", 16896),
        (GpuShape(80, 16 * GIB, (7, 0)), "float32", 15360),
        (GpuShape(108, 40 * GIB, (8, 0)), "float64", 8192),
        (GpuShape(128, 24 * GIB, (8, 9)), "float64", 4096),
        (GpuShape(14, 4 * GIB, (7, 5)), "float32", 10496),
    ],
)
def test_a_card_is_filled_by_whole_waves_of_tiles(card: GpuShape, dtype: str, n: int) -> None:
    assert filling_side(card, dtype) == n
    assert n % gemm.TILE_COLS == 0
    assert needed_bytes(n, dtype) <= card.memory_bytes / 2


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(GIB, 200 * GIB), st.sampled_from(list(DTYPES.values())))
def test_whatever_the_card_its_filling_leaves_little_of_it_idle_and_half_the_memory_free(
    multiprocessors: int, memory_bytes: int, dtype: str
) -> None:
    n = filling_side(GpuShape(multiprocessors, memory_bytes, (9, 0)), dtype)
    assert needed_bytes(n, dtype) <= memory_bytes / 2 or n == gemm.TILE_COLS
    if n > 7000:
        assert idle_share(n, multiprocessors) < 0.15


def test_a_size_is_the_word_or_a_whole_number() -> None:
    assert [gemm.read_side(n) for n in ("fill", "25536", 46341, " 7 ")] == [None, 25536, 46341, 7]
    for wrong in ("full", "0", "-3", "1.5", "1e4", "", "٣", True, None, 2.0):
        with pytest.raises(BadInput, match=r"^n is the word fill or a whole number of at least 1, not "):
            gemm.read_side(wrong)
    with pytest.raises(BadInput, match=r"^n is the word fill or a whole number of at least 1, not 'full'\.$"):
        registry.resolve_subject("sgemm", device_kind="cuda", explicit={"n": "full"})
    with pytest.raises(BadInput, match=r"^n is at most 2147483647, which is as far as cuBLAS counts rows, and 1"):
        gemm.read_side("10000000000")


@pytest.mark.parametrize("dtype", list(DTYPES.values()))
@pytest.mark.parametrize("n", [46341, 100_000, 2**31 - 1])
def test_memory_is_counted_where_32_bits_are_not_enough(n: int, dtype: str) -> None:
    needed = needed_bytes(n, dtype)
    assert needed > 3 * n * n * {"float16": 2, "float32": 4, "float64": 8}[dtype]
    assert largest_side(needed, dtype) == n
    assert largest_side(needed - 1, dtype) == n - 1


def test_what_does_not_fit_is_refused_before_it_is_taken_with_the_largest_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gemm, "free_bytes", lambda where: 16 * GIB)
    monkeypatch.setattr(gemm, "draw_tensor", lambda *_, **__: pytest.fail("memory was taken"))
    most = largest_side(16 * GIB, "float32")
    says = (
        rf"^sgemm with n = 46341 needs 24\.8 GiB of memory, and 16\.0 GiB are free on cpu:0: the largest n that fits "
        rf"is {most}\.$"
    )
    with pytest.raises(MachineCannot, match=says):
        prepared("sgemm", n="46341")


@pytest.mark.parametrize("name", NAMES)
def test_the_product_is_right_and_its_size_and_work_are_told(name: str) -> None:
    ready = prepared(name, n="37", repetitions=3)
    assert checked(ready).passed
    assert ready.measured is not None
    assert ready.measured() == {"n": 37.0}
    assert ready.flop == 3 * 2 * 37**3
    item = {"sgemm": 4, "hgemm": 2, "dgemm": 8}[name]
    assert ready.bytes_moved == 3 * 3 * 37 * 37 * item


def test_on_a_cpu_a_small_size_fills() -> None:
    ready = prepared("sgemm")
    assert ready.measured is not None
    assert ready.measured() == {"n": 512.0}
    assert prepared("dgemm", n="1").flop == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_product_that_is_slightly_wrong_or_missing_fails_its_check(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    right = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *given, **named: right(*given, **named).mul_(1.01))
    assert checked(prepared(name, n="33")).error == pytest.approx(0.01, rel=0.1)
    monkeypatch.setattr(torch, "mm", lambda *_, out, **__: out)
    assert checked(prepared(name, n="33", repetitions=2)).error == float("inf")


def test_tf32_is_off_whatever_was_switched_on_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    seen: list[str] = []
    monkeypatch.setattr(torch, "mm", lambda *_, **__: seen.append(torch.backends.cuda.matmul.fp32_precision))
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    prepared("sgemm", n="4", repetitions=2).call()
    assert seen == ["ieee", "ieee"]


def test_a_gpus_shape_decides_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    class Properties:
        multi_processor_count, total_memory, major, minor = 132, 139 * GIB, 9, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda where: Properties)
    assert gemm.gpu_shape("cuda:0") == H200


def test_free_memory_is_what_the_kernel_and_the_group_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, Any] = {
        "proc/meminfo": "MemTotal: 64 kB\nMemAvailable:   2048 kB\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cgroup.controllers": "memory\n",
        "sys/fs/cgroup/memory.max": "max\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert torch_device.free_host_bytes(tmp_path) == 2 * 2**20
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1048576\n")
    assert torch_device.free_host_bytes(tmp_path) == 2**20

    import torch

    for name, value in {"memory_reserved": 300, "memory_allocated": 100, "mem_get_info": (1000, 5000)}.items():
        monkeypatch.setattr(torch.cuda, name, lambda where, value=value: value)
    assert torch_device.free_bytes("cuda:0") == 1200
