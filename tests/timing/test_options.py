"""What a caller may ask of the timer: complete options, or one sentence about the first that makes no sense."""

from __future__ import annotations

import importlib.util
import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.timing.options import TimingOptions, require_time_kind, resolve_options

GOOD: dict[str, Any] = {
    "device": "cpu",
    "cache": None,
    "method": "auto",
    "precision": 0.01,
    "budget_s": 10.0,
    "times": ("busy", "span", "call"),
    "limit_s": 60.0,
}


def given(**changed: Any) -> TimingOptions:
    return resolve_options(**{**GOOD, **changed})


def seeing(count: int) -> Any:
    """Stands for a PyTorch that sees so many GPUs, the last of them the current one."""
    cuda = SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count, current_device=lambda: count - 1)
    return SimpleNamespace(cuda=cuda)


def test_good_options_are_completed() -> None:
    assert given() == TimingOptions("cpu", "warm")
    assert not given().on_gpu


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"budget_s": 0}, "budget_s is a positive number of seconds"),
        ({"budget_s": -1.0}, "budget_s is a positive"),
        ({"budget_s": math.nan}, "budget_s is a positive"),
        ({"budget_s": math.inf}, "budget_s is a positive"),
        ({"budget_s": "10s"}, "budget_s is a positive"),
        ({"budget_s": True}, "budget_s is a positive"),
        ({"limit_s": 0.0}, "limit_s is a positive"),
        ({"limit_s": math.nan}, "limit_s is a positive"),
        ({"limit_s": None}, "limit_s is a positive"),
        ({"precision": 0}, "precision is a share between 0 and 1"),
        ({"precision": 2}, "precision is a share"),
        ({"precision": -0.01}, "precision is a share"),
        ({"precision": math.nan}, "precision is a share"),
        ({"precision": "1%"}, "precision is a share"),
        ({"method": "graphs"}, "method is one of auto, graph.* Did you mean graph"),
        ({"method": None}, "method is one of"),
        ({"cache": "lukewarm"}, "cache is one of cold, warm"),
        ({"times": ()}, "at least one of busy, span and call"),
        ({"times": ("buzy",)}, "Did you mean busy"),
        ({"times": "call"}, "times is one of"),
        ({"device": "tpu"}, "device is cpu, cuda or cuda:N"),
        ({"device": "cuda:x"}, "device is cpu, cuda or cuda:N"),
        ({"device": "cuda:-1"}, "device is cpu, cuda or cuda:N"),
        ({"device": ""}, "device is cpu, cuda or cuda:N"),
        ({"lock_mhz": 0}, "lock_mhz is a clock in MHz"),
        ({"lock_mhz": "fast"}, "lock_mhz is a clock"),
        ({"lock_mhz": 1410}, "lock_mhz is for a GPU"),
        ({"cache": "cold"}, "cache='cold' is for a GPU"),
        ({"method": "graph"}, "method='graph' is for a GPU"),
        ({"method": "queue"}, "method='queue' is for a GPU"),
        ({"method": "trace"}, "method='trace' is for a GPU"),
    ],
)
def test_an_option_that_makes_no_sense_is_bad_input(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        given(**changed)


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cuda_that_is_not_there_is_the_machines_fault(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", seeing(0))
    with pytest.raises(MachineCannot, match="sees no CUDA GPU"):
        given(device=device)


def test_cuda_without_pytorch_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MachineCannot, match="timed through PyTorch"):
        given(device="cuda")


def test_a_gpu_beyond_the_last_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", seeing(2))
    with pytest.raises(MachineCannot, match="There is no cuda:2: PyTorch here sees 2 GPUs"):
        given(device="cuda:2")


@pytest.mark.parametrize(
    ("asked", "device", "index"), [("cuda", "cuda:1", 1), ("cuda:0", "cuda:0", 0), (None, "cuda:1", 1)]
)
def test_a_gpu_is_named_with_its_number_and_its_cache_is_cold(
    asked: str | None, device: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", seeing(2))
    found = given(device=asked)
    assert (found.device, found.index, found.cache, found.on_gpu) == (device, index, "cold", True)


def test_without_a_device_a_program_that_has_not_loaded_pytorch_is_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert given(device=None).device == "cpu"
    if importlib.util.find_spec("torch") is not None:
        assert "torch" not in sys.modules


@pytest.mark.parametrize("by", ["busy", "span"])
def test_a_cpu_cannot_tell_the_times_of_kernels(by: Any) -> None:
    with pytest.raises(BadInput, match=f"by='{by}' is for a GPU"):
        require_time_kind(by, given())


@pytest.mark.parametrize("by", ["call", None])
def test_any_device_can_tell_what_a_caller_waits(by: Any) -> None:
    options = given()
    assert not options.on_gpu
    try:
        require_time_kind(by, options)
    except BadInput as error:
        pytest.fail(f"it was refused: {error}")


def test_a_time_that_does_not_exist_cannot_decide() -> None:
    with pytest.raises(BadInput, match="by is one of"):
        require_time_kind("wall", given())  # type: ignore[arg-type]
