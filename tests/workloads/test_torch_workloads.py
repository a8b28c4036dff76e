from __future__ import annotations

import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.workloads import numpy_support, registry
from assay.workloads.numpy_support import TOLERANCES
from assay.workloads.torch_support import TORCH_DTYPES, TensorReference, TensorWork
from tests.torching import ODD, checked, params_of, prepared

if TYPE_CHECKING:
    from assay.core.values import Params

NAMES = tuple(ODD)
SIZES = {name: tuple(sizes) for name, sizes in ODD.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_every_workload_is_right_in_every_precision_and_in_odd_sizes(name: str, dtype: str) -> None:
    check = checked(prepared(name, dtype=dtype))
    assert check.passed, check
    assert check.tolerance == (0 if name == "memcpy" else TOLERANCES[dtype])


@pytest.mark.parametrize("name", NAMES)
def test_every_workload_is_right_in_the_smallest_problem_there_is(name: str) -> None:
    smallest: dict[str, Any] = dict.fromkeys(SIZES[name], 1)
    assert checked(prepared(name, **smallest)).passed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("distribution", numpy_support.DISTRIBUTIONS)
def test_every_distribution_is_checked_and_passes(name: str, distribution: str) -> None:
    assert checked(prepared(name, distribution=distribution)).passed


@pytest.mark.parametrize("name", NAMES)
def test_a_call_leaves_its_inputs_alone(name: str) -> None:
    ready = prepared(name, dtype="float64")
    first: Any = ready.call()
    kept = first.clone()
    for _ in range(3):
        ready.call()
    again: Any = ready.call()
    assert again.equal(kept)
    assert checked(ready).passed


@pytest.mark.parametrize("name", ["gemm", "softmax", "memcpy", "triad"])
def test_a_kept_output_is_written_into_by_every_call(name: str) -> None:
    ready = prepared(name)
    first: Any = ready.call()
    assert first is ready.call()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("gemm", "mm"),
        ("softmax", "softmax"),
        ("triad", "add"),
        ("rms_norm", "nn.functional.rms_norm"),
        ("layer_norm", "nn.functional.layer_norm"),
        ("flash_attention", "nn.functional.scaled_dot_product_attention"),
    ],
)
def test_a_result_that_is_slightly_wrong_fails_its_check(
    name: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    *path, last = function.split(".")
    owner: Any = torch
    for step in path:
        owner = getattr(owner, step)
    right = getattr(owner, last)
    monkeypatch.setattr(owner, last, lambda *given, **named: right(*given, **named).mul_(1.0001))
    check = checked(prepared(name, dtype="float32"))
    assert not check.passed
    assert check.error == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize(("name", "function"), [("gemm", "mm"), ("softmax", "softmax"), ("triad", "add")])
def test_a_call_that_writes_nothing_fails_its_check(name: str, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, function, lambda *_, out, **__: out)
    assert checked(prepared(name)).error == math.inf


def test_a_copy_must_be_exact() -> None:
    import torch

    right = torch.ones(8, dtype=torch.float64)
    almost = right.clone()
    almost[3] += 1e-15
    work = TensorWork(
        lambda: almost,
        TensorReference(8, lambda which: right[which], 0.0, 1.0),
        tolerance=0.0,
        flop=None,
        bytes_moved=1,
    )
    assert not work.check(0).passed


@pytest.mark.parametrize(
    ("name", "flop", "elements"),
    [
        ("gemm", 2 * 37 * 51 * 29, 37 * 29 + 29 * 51 + 37 * 51),
        ("softmax", 5 * 7 * 131, 2 * 7 * 131),
        ("rms_norm", 4 * 7 * 131, 2 * 7 * 131 + 131),
        ("layer_norm", 7 * 7 * 131, 2 * 7 * 131 + 2 * 131),
        ("flash_attention", 4 * 2 * 3 * 37 * 37 * 24, 4 * 2 * 3 * 37 * 24),
        ("memcpy", None, 2 * 1021),
        ("triad", 2 * 1021, 3 * 1021),
    ],
)
@pytest.mark.parametrize(("dtype", "item_bytes"), [("bfloat16", 2), ("float32", 4)])
def test_work_and_traffic_follow_from_the_sizes(
    name: str, flop: float | None, elements: int, dtype: str, item_bytes: int
) -> None:
    ready = prepared(name, dtype=dtype)
    assert ready.flop == flop
    assert ready.bytes_moved == elements * item_bytes


def test_a_causal_mask_halves_the_work() -> None:
    assert prepared("flash_attention", causal=True).flop == 4 * 2 * 3 * (37 * 38 // 2) * 24


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("gemm", "aten::mm"),
        ("softmax", "aten::_softmax"),
        ("rms_norm", "aten::_fused_rms_norm"),
        ("layer_norm", "aten::native_layer_norm"),
        ("memcpy", "aten::copy_"),
        ("triad", "aten::add"),
    ],
)
def test_what_ran_on_a_cpu_is_named_by_pytorchs_operators(name: str, operator: str) -> None:
    ready = prepared(name)
    assert ready.launched_kernels is not None
    ran = ready.launched_kernels()
    assert operator in ran.kernels
    assert all(kernel.startswith("aten::") for kernel in ran.kernels)
    assert ran.backend is None


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_of_the_same_names_and_types_on_every_device_and_larger_on_a_gpu(name: str) -> None:
    workload = registry.find_workload(name, "torch")
    cpu, cuda = workload.defaults("cpu"), workload.defaults("cuda")
    assert [(key, type(value)) for key, value in cpu.items()] == [(key, type(value)) for key, value in cuda.items()]
    assert math.prod(size(cuda, key) for key in SIZES[name]) > math.prod(size(cpu, key) for key in SIZES[name])
    assert cpu == workload.defaults()
    assert not workload.configs(cpu)
    assert workload.device_kinds == {"cpu", "cuda"}


def test_a_subject_on_a_gpu_takes_the_sizes_of_a_gpu() -> None:
    assert registry.resolve_subject("gemm@torch", device_kind="cuda").params["m"] == 4096
    assert registry.resolve_subject("gemm@torch", device_kind="cpu").params["m"] == 512
    assert registry.resolve_subject("softmax", device_kind="cuda").impl == "torch"


@pytest.mark.parametrize(
    ("name", "changed", "says"),
    [
        ("gemm", {"m": 0}, r"^m is a whole number of at least 1, not 0\.$"),
        ("gemm", {"dtype": "int8"}, r"^dtype is one of bfloat16, float16, float32, float64, not 'int8'\."),
        ("gemm", {"tf32": "yes"}, r"^tf32 is true or false, not 'yes'\.$"),
        ("gemm", {"tf32": True, "dtype": "float16"}, r"^tf32 is a way to multiply float32, not float16\.$"),
        ("gemm", {"tf32": True}, r"^tf32 is for GPUs; a CPU has no such products\.$"),
        ("softmax", {"rows": -4}, r"^rows is a whole number of at least 1, not -4\.$"),
        ("softmax", {"distribution": "zero"}, r"^distribution is one of .*, not 'zero'\. Did you mean zeros\?$"),
        ("rms_norm", {"cols": True}, r"^cols is a whole number of at least 1, not True\.$"),
        ("layer_norm", {"dtype": "float33"}, r"^dtype is one of .*, not 'float33'\. Did you mean float32"),
        ("flash_attention", {"causal": 1}, r"^causal is true or false, not 1\.$"),
        (
            "flash_attention",
            {"backend": "flash2"},
            r"^backend is one of auto, .*'flash2'\. Did you mean flash\?$",
        ),
        ("memcpy", {"n": 1.5}, r"^n is a whole number of at least 1, not 1\.5\.$"),
        ("triad", {"dtype": None}, r"^dtype is one of .*, not None\."),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(name: str, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        prepared(name, **changed)


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_that_is_not_there_is_said_in_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineCannot, match=r"^PyTorch here sees no CUDA GPU\.$"):
        registry.find_workload(name, "torch").prepare(params_of(name), None, device="cuda:0", seed=0)


def test_tf32_is_on_for_the_calls_that_want_it_and_off_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from assay.workloads.ops import gemm

    a = torch.ones(2, 2)
    seen: list[str] = []
    monkeypatch.setattr(torch, "mm", lambda *_, **__: seen.append(torch.backends.cuda.matmul.fp32_precision))
    rounded, plain = (gemm.make_matmul(a, a, a, tf32=tf32) for tf32 in (True, False))
    for call in (plain, rounded, plain):
        call()
    assert seen == ["ieee", "tf32", "ieee"]


def test_looking_at_workloads_imports_neither_pytorch_nor_triton() -> None:
    program = """
import sys
from assay.workloads.registry import registered_workloads
for entry in registered_workloads().values():
    workload = entry.load()
    for kind in ("cpu", "cuda"):
        workload.configs(workload.defaults(kind))
print({"torch", "triton"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


def size(params: Params, name: str) -> int:
    value = params[name]
    assert isinstance(value, int)
    return value
