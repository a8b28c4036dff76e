"""How fast a device's memory and its products can be, measured once: what a generation's speed is compared with."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

from assay.workloads.torch_device import import_torch, synchronizer
from assay.workloads.torch_memory import free_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

GIB, MIB = 2**30, 2**20
COPIED = {"cuda": 2 * GIB, "cpu": 32 * MIB}
"""Bytes of the original; its copy takes as many."""

SIDE = {"cuda": 8192, "cpu": 384}
"""Of the square matrices."""

TRIES = {"cuda": 8, "cpu": 3}
LEAST_COPIED = 64 * MIB


@cache
def memory_bytes_per_s(where: str) -> float | None:
    """Return the bytes a second that a large copy reads and writes, the best of several; null where none has room."""
    torch = import_torch()
    kind = where.partition(":")[0]
    size = min(COPIED[kind], free_bytes(where) // 4)
    if kind == "cuda" and size < LEAST_COPIED:
        return None
    try:
        original = torch.zeros(size, dtype=torch.uint8, device=where)
        copy = torch.empty_like(original)
        best_s = _best_s(lambda: copy.copy_(original), where, TRIES[kind])
    except torch.OutOfMemoryError:
        return None
    finally:
        original = copy = None
        _give_back(kind)
    return 2 * size / best_s


@cache
def compute_flop_per_s(where: str, dtype: Any) -> float | None:
    """Return the operations a second of a large product in a model's dtype, the best of several."""
    torch = import_torch()
    kind = where.partition(":")[0]
    side = SIDE[kind]
    left = right = out = None
    try:
        left, right = (torch.randn((side, side), device=where, dtype=torch.float32).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        best_s = _best_s(lambda: torch.mm(left, right, out=out), where, TRIES[kind])
    except torch.OutOfMemoryError:
        return None
    finally:
        left = right = out = None
        _give_back(kind)
    return 2 * side**3 / best_s


def _best_s(call: Callable[[], object], where: str, tries: int) -> float:
    """Return the shortest of several calls, in seconds; events time it on a GPU."""
    synchronize = synchronizer(where)
    call()
    synchronize()
    if where == "cpu":
        return min(_wall_s(call) for _ in range(tries))
    torch = import_torch()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(tries)]
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    synchronize()
    return min(float(begin.elapsed_time(end)) for begin, end in pairs) / 1e3


def _wall_s(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _give_back(kind: str) -> None:
    if kind == "cuda":
        import_torch().cuda.empty_cache()
