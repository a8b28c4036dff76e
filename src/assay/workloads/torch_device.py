"""Where a workload's tensors live: PyTorch's name for a device, and whether it is there."""

from __future__ import annotations

import os
import re
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor: TypeAlias = Any
"""A ``torch.Tensor``; PyTorch is not there for the type checker, as it need not be there for the user."""

_GPU = re.compile(r"cuda:(?P<index>[0-9]+)(/(?P<instance>[0-9]+))?")


def torch_device(device: str) -> str:
    """Return PyTorch's name for a device of ours: ``cpu:1``, ``cuda:3``, or ``cuda:3/0`` for a MIG instance.

    All groups of cores are PyTorch's one ``cpu``: a process's cores are its own. A GPU or an instance that was left
    alone in ``CUDA_VISIBLE_DEVICES`` is ``cuda:0`` to PyTorch, whatever its number on the machine.
    """
    if device.partition(":")[0] == "cpu":
        return "cpu"
    named = _GPU.fullmatch(device)
    if named is None:
        raise BadInput(f"{device!r} is not a device; one is written cpu:0 or cuda:0.")
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if len(visible) == 1:
        return "cuda:0"
    if named["instance"]:
        raise MachineCannot(f"PyTorch finds the MIG instance {device} only when it sees no other: isolate it.")
    return f"cuda:{int(named['index'])}"


def import_torch() -> Any:
    """Return the module ``torch``, or say that it is missing."""
    try:
        import torch
    except ImportError as error:
        raise MachineCannot(f"PyTorch cannot be imported here ({error}); it comes with gpu-assay[torch].") from error
    return torch


def open_device(device: str) -> str:
    """Return PyTorch's name for a device that is there, having made it the current one where it is a GPU.

    GPUs are counted as NVML counts them, by their place on the PCI bus.
    """
    where = torch_device(device)
    torch = import_torch()
    _settle()
    if where == "cpu":
        return where
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if not torch.cuda.is_available():
        raise MachineCannot("PyTorch here sees no CUDA GPU.")
    count = torch.cuda.device_count()
    if int(where.removeprefix("cuda:")) >= count:
        raise MachineCannot(f"PyTorch here sees no GPU {device}; it sees {count}.")
    torch.cuda.set_device(where)
    return where


@cache
def _settle() -> None:
    """Have the CPU's vector functions called once by one thread.

    They look up the processor at their first call. Where several threads make it at once, MKL has been seen to compute
    a thread's part of ``exp`` in float64 to 9 digits only.
    """
    torch = import_torch()
    for dtype in (torch.float32, torch.float64):
        one = torch.ones(1, dtype=dtype)
        for function in (torch.exp, torch.log, torch.sqrt, torch.tanh):
            function(one)


def synchronizer(where: str) -> Callable[[], None]:
    """Return what waits for all work on a device: nothing on a CPU, whose calls return when they are done."""
    if where == "cpu":
        return _nothing
    return partial(import_torch().cuda.synchronize, where)


def _nothing() -> None:
    """Do nothing."""
