"""Bind this process to its allotment without external tools, and say which level really held."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.isolation.allot import at_least

if TYPE_CHECKING:
    from assay.core.plan import Isolation
    from assay.isolation.allot import Allotment

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)

_MPOL_BIND = 2
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
_MASK_BITS = 1024
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


@dataclass(frozen=True)
class Held:
    """The level that was reached and, where it is lower than asked, why."""

    level: Isolation
    notes: tuple[str, ...] = ()


def environment(allotment: Allotment) -> dict[str, str]:
    """Return the variables a worker must be born with: libraries read them as they are loaded."""
    variables: dict[str, str] = {}
    if allotment.threads is not None:
        variables.update(dict.fromkeys(THREAD_VARIABLES, str(allotment.threads)))
    if allotment.gpu_uuid is not None:
        variables["CUDA_VISIBLE_DEVICES"] = allotment.gpu_uuid
    return variables


def bind(allotment: Allotment) -> Held:
    """Bind this process to its allotment; a refused step lowers the level that is reported, never hides it."""
    if not at_least(allotment.level, "cpu"):
        return Held(allotment.level)
    below: Isolation = "gpu" if allotment.gpu_uuid else "none"
    try:
        os.sched_setaffinity(0, allotment.cpus or ())
    except OSError as error:
        return Held(below, (f"pinning to cores {list(allotment.cpus or ())} was refused: {error.strerror}",))
    missing = sorted(set(allotment.cpus or ()) - os.sched_getaffinity(0))
    if missing:
        return Held(below, (f"cores {missing} were not given, though pinning to them was not refused",))
    if allotment.nodes is None:
        return Held("cpu")
    refusal = bind_memory(allotment.nodes)
    if refusal is not None:
        return Held("cpu", (f"binding memory to nodes {list(allotment.nodes)} was refused: {refusal}",))
    return Held(allotment.level)


def bind_memory(nodes: tuple[int, ...]) -> str | None:
    """Bind this process's future pages to memory nodes; return why not, or null when it is done."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"the system call is not known on {platform.machine()}"
    mask = (ctypes.c_ulong * (_MASK_BITS // _WORD_BITS))()
    for node in nodes:
        mask[node // _WORD_BITS] |= 1 << (node % _WORD_BITS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_BIND, mask, ctypes.c_ulong(_MASK_BITS)) == 0:
        return None
    return os.strerror(ctypes.get_errno())


def bound_nodes() -> tuple[int, ...] | None:
    """Return the memory nodes this process is bound to; null when it is not, or the kernel will not say."""
    number = _GET_MEMPOLICY.get(platform.machine())
    if number is None:
        return None
    mode = ctypes.c_int(-errno.ENOSYS)
    mask = (ctypes.c_ulong * (_MASK_BITS // _WORD_BITS))()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, ctypes.byref(mode), mask, ctypes.c_ulong(_MASK_BITS), None, ctypes.c_ulong(0)) != 0:
        return None
    if mode.value & 0xFF != _MPOL_BIND:
        return None
    return tuple(bit for bit in range(_MASK_BITS) if mask[bit // _WORD_BITS] >> (bit % _WORD_BITS) & 1)


def pages_by_node(maps: Path = Path("/proc/self/numa_maps")) -> dict[int, int] | None:
    """Return how many pages of this process lie on each memory node; null where the kernel does not say."""
    try:
        text = maps.read_text()
    except OSError:
        return None
    pages: dict[int, int] = {}
    for node, count in re.findall(r" N(\d+)=(\d+)", text):
        pages[int(node)] = pages.get(int(node), 0) + int(count)
    return pages or None
