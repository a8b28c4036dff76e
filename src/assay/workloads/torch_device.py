"""PyTorch devices: their names, their free memory, and the kernels that a call launches on them.

The profiler is the one in ``torch.autograd``, on which ``torch.profiler`` is built: the latter imports PyTorch's
compiler when first used, which adds a second to the start of every worker.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from assay.core.errors import BadInput, MachineCannot
from assay.machine.linux import read_limits
from assay.workloads.base import do_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Tensor: TypeAlias = Any  # a ``torch.Tensor``; the type checker does not see PyTorch, which is an optional dependency
FLASH_CAPABILITY = (8, 0)  # least compute capability of a GPU that runs flash-attention kernels

_GPU_NAME = re.compile(r"cuda:(?P<index>[0-9]+)(/(?P<instance>[0-9]+))?")


def torch_device(device: str) -> str:
    """Return PyTorch's name of an Assay device: ``cpu:1``, ``cuda:3``, or ``cuda:3/0`` for a MIG instance.

    Every group of cores is PyTorch's ``cpu``: the process is pinned to its cores. The only GPU or instance in
    ``CUDA_VISIBLE_DEVICES`` is ``cuda:0`` to PyTorch, whatever its number on the machine.
    """
    if device.partition(":")[0] == "cpu":
        return "cpu"
    named = _GPU_NAME.fullmatch(device)
    if named is None:
        raise BadInput(f"{device!r} is not a device; one is written cpu:0 or cuda:0.")
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if len(visible) == 1:
        return "cuda:0"
    if named["instance"]:
        raise MachineCannot(f"PyTorch finds the MIG instance {device} only when it sees no other: isolate it.")
    return f"cuda:{int(named['index'])}"


def import_torch() -> Any:
    """Return the module ``torch``; raise if it is missing."""
    try:
        import torch
    except ImportError as error:
        raise MachineCannot(f"PyTorch cannot be imported here ({error}); it comes with gpu-assay[torch].") from error
    return torch


def open_device(device: str) -> str:
    """Return PyTorch's name of an existing device; make a GPU the current device.

    GPUs are numbered as in NVML, by PCI bus order.
    """
    where = torch_device(device)
    torch = import_torch()
    _warm_up_vector_functions()
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
def _warm_up_vector_functions() -> None:
    """Call the CPU's vector functions once from one thread.

    They detect the processor at their first call. When several threads make it at once, MKL was observed to compute
    a thread's part of ``exp`` in float64 to 9 digits only.
    """
    torch = import_torch()
    for dtype in (torch.float32, torch.float64):
        one = torch.ones(1, dtype=dtype)
        for function in (torch.exp, torch.log, torch.sqrt, torch.tanh):
            function(one)


def synchronizer(where: str) -> Callable[[], None]:
    """Return a function that waits for all work on a device; it does nothing on a CPU, whose calls are synchronous."""
    return do_nothing if where == "cpu" else partial(import_torch().cuda.synchronize, where)


def free_bytes(where: str) -> int:
    """Return the bytes available to tensors: on a GPU, free memory of the driver and of PyTorch's caching allocator."""
    if where == "cpu":
        return free_host_bytes(Path("/"))
    cuda = import_torch().cuda
    unused = cuda.memory_reserved(where) - cuda.memory_allocated(where)
    return int(cuda.mem_get_info(where)[0]) + int(unused)


def free_host_bytes(root: Path) -> int:
    """Return the kernel's available memory in bytes, limited by the memory limit of the control group."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    allowed = read_limits(root).memory_mib
    return available if allowed is None else min(available, int(allowed * 2**20))


_LIBRARIES = (
    ("cudnn", "cudnn"),
    ("nvjet", "cublas"),
    ("cublas", "cublas"),
    ("xmma", "cublas"),
    ("cutlass", "cublas"),
    ("at::native", "aten"),
    ("softmax_warp", "aten"),
    ("memcpy", "cuda"),
)
"""A part of a kernel's name and the library of such kernels; the first match decides."""


def list_kernels(call: Callable[[], object], where: str) -> tuple[str, ...]:
    """Make a call twice and return what the second launched, in order.

    On a GPU these are its kernels and copies; on a CPU, which has none, PyTorch's operators, nested ones included.
    The result is empty where the profiler records nothing, as when another profiler is active.
    """
    from torch.autograd.profiler import profile

    synchronize = synchronizer(where)
    call()
    synchronize()
    on_gpu = where != "cpu"
    with profile(use_device="cuda" if on_gpu else None, use_kineto=on_gpu) as profiler:
        call()
        synchronize()
    events = sorted(profiler.function_events, key=lambda event: float(event.time_range.start))
    if on_gpu:
        return tuple(e.name for e in events if e.device_type.name == "CUDA" and not e.is_user_annotation)
    return tuple(event.name for event in events if event.name.startswith("aten::"))


def kernel_spans(call: Callable[[], object], where: str) -> list[tuple[float, float]]:
    """Make a call and return the start and end of each of its kernels and copies on a GPU, in microseconds.

    Only the GPU is profiled, which slows the host the least.
    """
    from torch.autograd.profiler import profile

    synchronize = synchronizer(where)
    synchronize()
    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as profiler:
        call()
        synchronize()
    events = [event for event in profiler.kineto_results.events() if "CUDA" in str(event.device_type())]
    return [(event.start_ns() / 1e3, (event.start_ns() + event.duration_ns()) / 1e3) for event in events]


def library_of_kernels(kernels: tuple[str, ...]) -> str | None:
    """Return the library of GPU kernels; null where their names do not show it, as on a CPU."""
    names = [kernel.lower() for kernel in kernels]
    return next((library_name for mark, library_name in _LIBRARIES if any(mark in name for name in names)), None)


LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Ranks:
    """This process's rank; ``group`` is the group for tensors, null for the default gloo group."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def align(self) -> None:
        """Wait until all ranks have reached this point."""
        if self.size > 1:
            import_torch().distributed.barrier()


@dataclass
class _GroupState:
    """The ranks of this process and their number of users."""

    ranks: Ranks | None = None
    users: int = 0


_GROUP = _GroupState()


def join_ranks(where: str) -> Ranks:
    """Return the ranks, after a rendezvous at the first call; ``where`` is PyTorch's name of this rank's device."""
    if _GROUP.ranks is None:
        _GROUP.ranks = _init_ranks(where, os.environ)
    _GROUP.users += 1
    return _GROUP.ranks


def leave_ranks() -> None:
    """Stop using the ranks; the last user closes the group."""
    _GROUP.users -= 1
    if _GROUP.users > 0 or _GROUP.ranks is None:
        return
    ranks, _GROUP.ranks = _GROUP.ranks, None
    if ranks.size > 1:
        import_torch().distributed.destroy_process_group()


def _init_ranks(where: str, environment: Mapping[str, str]) -> Ranks:
    """Rendezvous; tensors go over NCCL if every rank has its own GPU."""
    size = int(environment.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if environment.get("MASTER_ADDR") in LOCAL and "lo" in {name for _, name in socket.if_nameindex()}:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch = import_torch()
    dist = torch.distributed
    dist.init_process_group("gloo")
    gpu_id = None if where == "cpu" else f"{socket.gethostname()} {torch.cuda.get_device_properties(where).uuid}"
    gpu_ids: list[str | None] = [None] * size
    dist.all_gather_object(gpu_ids, gpu_id)
    group = None
    if None not in gpu_ids and len(set(gpu_ids)) == size and dist.is_nccl_available():
        group = dist.new_group(backend="nccl")
        dist.barrier(group, device_ids=[torch.device(where).index])
    return Ranks(dist.get_rank(), size, group)
