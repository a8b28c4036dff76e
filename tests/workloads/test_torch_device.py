from __future__ import annotations

import subprocess
import sys

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.torch_device import open_device, synchronizer, torch_device


@pytest.mark.parametrize("visible", [None, "", "GPU-a"])
@pytest.mark.parametrize("device", ["cpu:0", "cpu:7", "cpu"])
def test_every_group_of_cores_is_the_one_cpu(device: str, visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    see(visible, monkeypatch)
    assert torch_device(device) == "cpu"


@pytest.mark.parametrize(
    ("device", "visible", "name"),
    [
        ("cuda:3", None, "cuda:3"),
        ("cuda:3", "", "cuda:3"),
        ("cuda:3", "GPU-8f2c", "cuda:0"),
        ("cuda:3", "3", "cuda:0"),
        ("cuda:1/0", "MIG-77aa", "cuda:0"),
        ("cuda:1", "GPU-8f2c,GPU-91ab", "cuda:1"),
        ("cuda:1", "0,1,2,3", "cuda:1"),
    ],
)
def test_a_gpu_that_is_alone_is_the_first_and_otherwise_keeps_its_number(
    device: str, visible: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    see(visible, monkeypatch)
    assert torch_device(device) == name


def test_an_instance_of_a_gpu_must_be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    see(None, monkeypatch)
    with pytest.raises(MachineCannot, match=r"^PyTorch finds the MIG instance cuda:1/0 only when it sees no other"):
        torch_device("cuda:1/0")


@pytest.mark.parametrize("device", ["tpu:0", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:0/", ""])
def test_what_is_no_device_is_refused(device: str) -> None:
    with pytest.raises(BadInput, match="is not a device; one is written cpu:0 or cuda:0"):
        torch_device(device)


def test_a_machine_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineCannot, match=r"^PyTorch here sees no CUDA GPU\.$"):
        open_device("cuda:0")


def test_a_gpu_beyond_those_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    see(None, monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(MachineCannot, match=r"^PyTorch here sees no GPU cuda:5; it sees 2\.$"):
        open_device("cuda:5")


def test_a_missing_pytorch_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MachineCannot, match=r"^PyTorch cannot be imported here .*; it comes with gpu-assay\[torch\]\.$"
    ):
        open_device("cpu:0")


def test_a_cpu_needs_no_waiting_for() -> None:
    assert open_device("cpu:1") == "cpu"
    synchronizer("cpu")()


def see(visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set which GPUs CUDA shows."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.full
def test_the_first_exponentials_of_a_process_are_exact_whichever_thread_computes_them() -> None:
    program = (
        "import numpy as np, torch; from assay.workloads.torch_device import open_device; "
        "torch.set_num_threads(4); open_device('cpu:0'); x = np.linspace(-3.0, 3.0, 2**18); "
        "assert np.allclose(torch.from_numpy(x).exp().numpy(), np.exp(x), rtol=1e-14, atol=0.0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
