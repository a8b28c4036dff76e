"""What a call really launched, as PyTorch's profiler saw it.

It is the one in ``torch.autograd``, on which ``torch.profiler`` is built: that one imports PyTorch's compiler when it
is first used, which takes a second of every worker's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.workloads.torch_device import synchronizer

if TYPE_CHECKING:
    from collections.abc import Callable

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
"""What stands in a kernel's name, and the library that such kernels come with; the first that fits decides."""


def launched(call: Callable[[], object], where: str) -> tuple[str, ...]:
    """Make a call twice and return what the second launched, in order.

    On a GPU these are its kernels and copies; on a CPU, where there are none, PyTorch's operators, those that others
    called among them. Nothing is returned where the profiler sees nothing, as when another one is at work.
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
    if where == "cpu":
        return tuple(event.name for event in events if event.name.startswith("aten::"))
    return tuple(event.name for event in events if _on_gpu(event))


def kernel_spans(call: Callable[[], object], where: str) -> list[tuple[float, float]]:
    """Make a call and return when each kernel and copy of it began and ended on a GPU, in microseconds.

    Only the GPU is watched, which slows the host the least.
    """
    from torch.autograd.profiler import profile

    synchronize = synchronizer(where)
    synchronize()
    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as profiler:
        call()
        synchronize()
    events = [event for event in profiler.kineto_results.events() if "CUDA" in str(event.device_type())]
    return [(event.start_ns() / 1e3, (event.start_ns() + event.duration_ns()) / 1e3) for event in events]


def _on_gpu(event: Any) -> bool:
    return event.device_type.name == "CUDA" and not event.is_user_annotation


def library(kernels: tuple[str, ...]) -> str | None:
    """Return the library that kernels on a GPU come from; null where their names do not show it, as on a CPU."""
    names = [kernel.lower() for kernel in kernels]
    return next((library_name for mark, library_name in _LIBRARIES if any(mark in name for name in names)), None)
