"""Bind this process to its allotment without external tools, and report which isolation level held."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.results import IsolationLimit
from assay.core.values import Isolation  # noqa: TC001 - the probe reads HeldIsolation from JSON
from assay.isolation.placement import LEVELS, includes_level

if TYPE_CHECKING:
    from collections.abc import Collection

    from assay.isolation.placement import Allotment

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)

_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_MPOL_BIND = 2
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
_MASK_BITS = 1024
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


@dataclass(frozen=True)
class HeldIsolation:
    """The level that was reached and, where it is lower than requested, why."""

    level: Isolation
    limits: tuple[IsolationLimit, ...] = ()

    def limited(self, *limits: IsolationLimit) -> HeldIsolation:
        """Return what still holds given further limits."""
        lowest = min((self.level, *(limit.level for limit in limits)), key=LEVELS.index)
        return HeldIsolation(lowest, (*self.limits, *limits))


def allotment_environment(allotment: Allotment) -> dict[str, str]:
    """Return the environment variables a worker must start with: libraries read them when they are loaded."""
    variables: dict[str, str] = {}
    if allotment.threads is not None:
        variables.update(dict.fromkeys(THREAD_VARIABLES, str(allotment.threads)))
    if allotment.gpu_uuid is not None:
        variables[_VISIBLE_DEVICES] = allotment.gpu_uuid
    return variables


def bind_process(allotment: Allotment) -> HeldIsolation:
    """Bind this process to its allotment; a refused step lowers the reported level and is never hidden."""
    if not includes_level(allotment.level, "cpu"):
        return HeldIsolation(allotment.level)
    cpus = allotment.cpus or ()
    try:
        pin_threads(cpus)
    except OSError as error:
        message = f"pinning to cores {list(cpus)} was refused: {error.strerror}"
        limit = IsolationLimit(code="pinning_refused", level=level_without_cores(allotment), message=message, cpus=cpus)
        return HeldIsolation(allotment.level).limited(limit)
    missing = tuple(sorted(set(cpus) - set(process_cpus())))
    if missing:
        message = f"cores {list(missing)} were not given, though pinning to them was not refused"
        limit = IsolationLimit(code="cpus_missing", level=level_without_cores(allotment), message=message, cpus=missing)
        return HeldIsolation(allotment.level).limited(limit)
    if allotment.nodes is None:
        return HeldIsolation("cpu")
    refusal = bind_memory(allotment.nodes)
    if refusal is not None:
        message = f"binding memory to nodes {list(allotment.nodes)} was refused: {refusal}"
        return HeldIsolation(allotment.level).limited(
            IsolationLimit(code="memory_refused", level="cpu", message=message)
        )
    return HeldIsolation(allotment.level).limited(*memory_limits(allotment.nodes))


def level_without_cores(allotment: Allotment) -> Isolation:
    """Return the level that remains where the cores are not exclusive to a worker."""
    return "gpu" if allotment.gpu_uuid else "none"


def recheck_isolation(held: HeldIsolation, allotment: Allotment) -> HeldIsolation:
    """Return what held to the end: work that moved itself to other cores, memory or GPUs was not isolated."""
    limits: list[IsolationLimit] = []
    now = process_cpus()
    beyond = tuple(sorted(set(now) - set(allotment.cpus or now)))
    if includes_level(held.level, "cpu") and beyond:
        message = f"the work itself moved from cores {list(allotment.cpus or ())} to {list(now)}"
        limits.append(
            IsolationLimit(code="cpus_changed", level=level_without_cores(allotment), message=message, cpus=beyond)
        )
    if includes_level(held.level, "numa") and allotment.nodes is not None:
        limits += memory_limits(allotment.nodes)
    visible = os.environ.get(_VISIBLE_DEVICES)
    if includes_level(held.level, "gpu") and allotment.gpu_uuid is not None and visible != allotment.gpu_uuid:
        message = f"the work itself changed {_VISIBLE_DEVICES} from {allotment.gpu_uuid} to {visible or 'nothing'}"
        limits.append(IsolationLimit(code="gpu_changed", level="none", message=message))
    return held.limited(*limits)


def memory_limits(nodes: tuple[int, ...]) -> list[IsolationLimit]:
    """Return why memory is not bound to these nodes, according to the kernel; empty where it is."""
    policy = memory_policy()
    if policy is None:
        message = f"the kernel does not say whether memory is bound to nodes {list(nodes)}"
        return [IsolationLimit(code="memory_unreadable", level="cpu", message=message)]
    mode, bound = policy
    if mode == _MPOL_BIND and bound == nodes:
        return []
    message = f"memory is bound to {f'nodes {list(bound)}' if mode == _MPOL_BIND else 'no node'}, not to {list(nodes)}"
    return [IsolationLimit(code="memory_changed", level="cpu", message=message)]


def pin_threads(cpus: Collection[int]) -> None:
    """Pin every thread of this process: libraries start threads when loaded, which do not follow the main one.

    Raises:
        OSError: The kernel refused it.
    """
    os.sched_setaffinity(0, cpus)
    pinned: set[int] = set()
    while waiting := _threads() - pinned:
        for thread in waiting:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)
        pinned |= waiting


def process_cpus() -> tuple[int, ...]:
    """Return the logical CPUs that any thread of this process may run on."""
    allowed: set[int] = set(os.sched_getaffinity(0))
    for thread in _threads():
        with contextlib.suppress(ProcessLookupError):
            allowed |= os.sched_getaffinity(thread)
    return tuple(sorted(allowed))


def _threads() -> set[int]:
    try:
        return {int(thread.name) for thread in Path("/proc/self/task").iterdir()}
    except OSError:
        return {threading.get_native_id()}


def bind_memory(nodes: tuple[int, ...]) -> str | None:
    """Bind this process's future pages to memory nodes; return why it failed, or null on success."""
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
    """Return the memory nodes this process is bound to; null when it is not, or the kernel does not report it."""
    policy = memory_policy()
    return policy[1] if policy is not None and policy[0] == _MPOL_BIND else None


def memory_policy() -> tuple[int, tuple[int, ...]] | None:
    """Return the kernel's id of this thread's memory policy and its nodes; null where the kernel does not report it."""
    number = _GET_MEMPOLICY.get(platform.machine())
    if number is None:
        return None
    mode = ctypes.c_int(-errno.ENOSYS)
    mask = (ctypes.c_ulong * (_MASK_BITS // _WORD_BITS))()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, ctypes.byref(mode), mask, ctypes.c_ulong(_MASK_BITS), None, ctypes.c_ulong(0)) != 0:
        return None
    nodes = tuple(bit for bit in range(_MASK_BITS) if mask[bit // _WORD_BITS] >> (bit % _WORD_BITS) & 1)
    return mode.value & 0xFF, nodes


def pages_by_node(maps: Path = Path("/proc/self/numa_maps")) -> dict[int, int] | None:
    """Return how many pages of this process are on each memory node; null where the kernel does not report it."""
    try:
        text = maps.read_text()
    except OSError:
        return None
    pages: dict[int, int] = {}
    for node, count in re.findall(r" N(\d+)=(\d+)", text):
        pages[int(node)] = pages.get(int(node), 0) + int(count)
    return pages or None
