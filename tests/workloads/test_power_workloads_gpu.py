"""What only a GPU can show of the loads that a study of power uses: their kernels, their precision, their memory."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import MachineCannot
from assay.timing.cuda.device import gpu_timing_device
from assay.timing.cuda.timers import probe_capability
from assay.workloads import registry
from assay.workloads.ops import gemm
from assay.workloads.ops.gemm import gpu_shape
from tests.torching import checked

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.workloads.base import PreparedWorkload

pytestmark = pytest.mark.gpu

NATIVE = Path(__file__).parents[2] / "native"
SQUARE = {"sgemm": "float32", "hgemm": "float16", "dgemm": "float64"}
SMALL: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 8, "size": 64},
    "transformer_step": {"layers": 2, "width": 128, "heads": 4, "sequence": 128, "batch": 2, "vocabulary": 1000},
}


def prepared(name: str, cuda: str, **given: Scalar) -> PreparedWorkload:
    workload = registry.find_workload(name, "torch")
    params = {**workload.defaults("cuda"), **SMALL.get(name, {}), **given}
    return workload.prepare(params, None, device=cuda, seed=0)


@pytest.mark.parametrize("name", list(SQUARE))
def test_a_product_fills_the_card_and_is_one_right_kernel_of_cublas(name: str, cuda: str) -> None:
    ready = prepared(name, cuda)
    check = checked(ready)
    assert check.passed, check
    assert ready.measured is not None
    n = int(ready.measured()["n"])
    assert n == gemm.filling_side(gpu_shape(cuda), SQUARE[name])
    assert gemm.idle_share(n, gpu_shape(cuda).multiprocessors) < 0.02
    assert ready.flop == 2.0 * n**3
    assert ready.launched_kernels is not None
    ran = ready.launched_kernels()
    assert ran.backend == "cublas"
    assert len(ran.kernels) <= 2, "one kernel, and at most one that adds up its parts"


def test_float32_products_use_no_tensor_cores_and_are_as_exact_as_float32_is(cuda: str) -> None:
    import torch

    torch.backends.cuda.matmul.fp32_precision = "tf32"
    ready = prepared("sgemm", cuda, n="4096")
    assert checked(ready).error < 5e-6
    assert ready.launched_kernels is not None
    assert not any(
        "tf32" in kernel.lower() or "tensorop" in kernel.lower() for kernel in ready.launched_kernels().kernels
    )


@pytest.mark.parametrize("n", ["25536", "46400"])
def test_sizes_that_32_bits_do_not_count_are_right_where_they_fit(n: str, cuda: str) -> None:
    import torch

    if gemm.needed_bytes(int(n), "float32") > torch.cuda.mem_get_info(cuda)[0]:
        pytest.skip("the GPU's memory is too small")
    assert checked(prepared("sgemm", cuda, n=n)).passed


def test_a_size_that_does_not_fit_is_refused_before_memory_is_taken(cuda: str) -> None:
    import torch

    before = torch.cuda.memory_reserved(cuda)
    with pytest.raises(MachineCannot, match=r"^sgemm with n = 1000000 needs .* the largest n that fits is \d+\.$"):
        prepared("sgemm", cuda, n="1000000")
    assert torch.cuda.memory_reserved(cuda) == before


@pytest.mark.parametrize("indices", ["uniform", "zipf"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_lookups_are_right_and_read_what_they_state(indices: str, dtype: str, cuda: str) -> None:
    ready = prepared("embedding", cuda, rows=2**20, indices=indices, dtype=dtype)
    assert checked(ready).passed
    assert ready.launched_kernels is not None
    assert any("embedding" in kernel.lower() for kernel in ready.launched_kernels().kernels)


@pytest.mark.parametrize("name", list(SMALL))
@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16"])
def test_a_step_is_right_and_learns_in_every_precision(name: str, dtype: str, cuda: str) -> None:
    ready = prepared(name, cuda, dtype=dtype)
    check = checked(ready)
    assert check.passed, check
    losses = [float(ready.call()) for _ in range(20)]  # type: ignore[arg-type]
    assert losses[-1] < losses[0] - 0.1
    assert ready.launched_kernels is not None
    tf32 = any("tf32" in kernel.lower() or "1688" in kernel for kernel in ready.launched_kernels().kernels)
    assert not (tf32 and dtype == "float32")


@pytest.mark.parametrize("name", list(SMALL))
def test_a_step_never_waits_for_the_gpu(name: str, cuda: str) -> None:
    import torch

    ready = prepared(name, cuda)
    for _ in range(3):
        ready.call()
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():  # that the mode is a prototype
            warnings.simplefilter("ignore", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        ready.call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["sgemm", "embedding", *SMALL])
def test_a_call_can_be_held_in_a_graph_and_goes_on_right_afterwards(name: str, cuda: str) -> None:
    given: dict[str, Scalar] = {"sgemm": {"n": "512"}, "embedding": {"rows": 4096}}.get(name, {})  # type: ignore[assignment]
    ready = prepared(name, cuda, **given)
    for _ in range(3):
        ready.call()
    allows = probe_capability(gpu_timing_device(0), ready.call, None, steady=True, limit_s=60)
    assert allows.captures, allows.refusal
    assert checked(ready).passed


def test_both_definitions_of_resnet50_launch_the_same_work(cuda: str) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    found = []
    for model in ("own", "torchvision"):
        ready = prepared("resnet50", cuda, model=model)
        assert checked(ready).passed
        assert ready.measured is not None
        found.append(ready.measured()["weights"])
    assert found == [25_557_032.0, 25_557_032.0]


def test_images_of_a_folder_go_through_pinned_memory(cuda: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for number in range(3):
            image.new("RGB", (80, 70), (40 * number, 90, 200)).save(tmp_path / name / f"{number}.png")
    ready = prepared("resnet50", cuda, folder=str(tmp_path))
    assert checked(ready).passed
    assert ready.launched_kernels is not None
    kernels = ready.launched_kernels().kernels
    assert any("memcpy htod (pinned" in kernel.lower() for kernel in kernels), kernels


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of ``native/`` built for the GPU that is here."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA GPU here")
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")
    folder = shutil.copytree(NATIVE, tmp_path_factory.mktemp("native") / "here")
    asked = subprocess.run([folder / "detect.sh", "cublas"], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        pytest.skip(asked.stderr.strip())
    subprocess.run(["make", "-B", "-C", str(folder)], check=True, timeout=110)
    return folder


def sgemm(folder: Path, *words: object) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        [str(folder / "sgemm"), *map(str, words)], cwd=folder, capture_output=True, text=True, check=False, timeout=110
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_the_native_program_multiplies_right_and_knows_its_gpu(native: Path, cuda: str) -> None:
    import torch

    code, (header, *kernels, summary), said = sgemm(native, 8192, 10, 0)
    assert code == 0, said
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not visible or visible == "0":
        assert header["uuid"] == f"GPU-{torch.cuda.get_device_properties(cuda).uuid}"
    assert [kernel["kernel"] for kernel in kernels] == list(range(10))
    assert summary["right"]
    assert summary["check_error"] < 1e-5
    for kernel, following in itertools.pairwise(kernels):
        assert kernel["start_us"] + kernel["duration_us"] <= following["start_us"] + 5


def test_the_native_program_reads_a_file_and_refuses_what_does_not_fit(native: Path, cuda: str) -> None:
    subprocess.run([native / "gen_data", "1000", "k.bin"], cwd=native, check=True, timeout=60)
    code, lines, said = sgemm(native, 1000, 2, 0, "--data", "k.bin")
    assert code == 0, said
    made = sgemm(native, 1000, 2, 0)[1]
    assert lines[-1]["check_error"] == made[-1]["check_error"]
    code, lines, said = sgemm(native, 1_000_000, 1, 0)
    assert (code, lines) == (3, [])
    assert "the largest n that fits is" in said


def test_the_native_program_counts_elements_in_64_bits(native: Path, cuda: str) -> None:
    import torch

    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info(cuda)[0] < 12 * 46400**2 + 2**28:
        pytest.skip("the GPU's memory is too small")
    code, lines, said = sgemm(native, 46400, 1, 0, "--warmup", 1)
    assert code == 0, said
    assert lines[-1]["right"]
