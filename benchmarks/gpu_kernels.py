"""The kernels that timers are held against each other with: eight of PyTorch's, and spins on the device's own timer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernels = dict[str, Callable[[], object]]

SPINS_US = (1, 2, 5, 20, 200)
BY_CYCLES = ("matmul 2048", "matmul 8192", "attention")
"""Compute-bound and long enough to move the clock: compared in cycles, the others in time. Said beforehand."""

OPERATIONS = {"matmul 8192": 2, "attention": 2}
"""These fill a few bytes before their kernel; what is compared is the busy time of both."""


def kernels(torch: Any) -> Kernels:
    """Return the eight, on random data of a fixed seed."""
    torch.manual_seed(0)
    made: Kernels = {}
    for n in (64, 512, 2048, 8192):
        made[f"softmax {n}"] = _softmax(torch, torch.randn(n, n, device="cuda"))
    for n in (512, 2048, 8192):
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        made[f"matmul {n}"] = _matmul(a, b)
    shape = (4, 16, 2048, 64)
    q, k, v = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    made["attention"] = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return made


def _softmax(torch: Any, x: Any) -> Callable[[], object]:
    return lambda: torch.softmax(x, -1)


def _matmul(a: Any, b: Any) -> Callable[[], object]:
    return lambda: a @ b


def spins(torch: Any, bench: Any) -> Kernels:
    """Return spins of known duration."""
    return {f"spin {us}": _spin(torch, bench.kernels.launch("spin", us * 1000)) for us in SPINS_US}


def _spin(torch: Any, launch: Any) -> Callable[[], object]:
    return lambda: launch(int(torch.cuda.current_stream().cuda_stream))
