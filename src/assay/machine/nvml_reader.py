"""What is read of one GPU: each field by itself, so that one that fails spoils no other.

The library is handed in: only ``nvidia.py`` knows where it comes from.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Any

from assay.machine import throttle
from assay.machine.model import Gpu, GpuState, Link, LinkPath, LostGpu, MigInstance
from assay.machine.vendor import GpuProcess, NodeHint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_MIB = 2**20
_CPU_WORDS = 64
_MAX_NVLINKS = 36
_TO_SWITCH = 2
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_PATHS: dict[int, LinkPath] = {0: "board", 10: "switch", 20: "switches", 30: "bridge", 40: "node", 50: "system"}


class Reader:
    """Asks NVML about one GPU. What it does not offer is null; that it is lost is remembered."""

    def __init__(self, nvml: ModuleType, index: int) -> None:
        self.nvml = nvml
        self.index = index
        self.lost: str | None = None
        self.last_error = "it does not say who it is"
        self.handle: Any = self.plain("nvmlDeviceGetHandleByIndex", index)

    def plain(self, function: str, *arguments: object) -> Any:
        """Return what a function of NVML answers; null where card, driver or bindings do not offer it."""
        try:
            return getattr(self.nvml, function)(*arguments)
        except (self.nvml.NVMLError_GpuIsLost, self.nvml.NVMLError_ResetRequired) as error:
            self.lost = self.last_error = str(error)
        except self.nvml.NVMLError as error:
            self.last_error = str(error)
        except (self.nvml.NVMLLibraryMismatchError, AttributeError, ValueError):
            pass  # an older driver, older bindings, or a text that is none
        return None

    def ask(self, function: str, *arguments: object) -> Any:
        """Return what a function of NVML answers about this GPU."""
        return None if self.handle is None else self.plain(function, self.handle, *arguments)

    def number(self, function: str, *arguments: object) -> int | None:
        """Return a whole number."""
        value = self.ask(function, *arguments)
        return None if value is None else int(value)

    def watts(self, function: str) -> float | None:
        """Return a power, which NVML gives in mW, in W."""
        milliwatts = self.number(function)
        return None if milliwatts is None else milliwatts / 1e3

    def switch(self, function: str) -> bool | None:
        """Return whether something is on; of a pair (now, after the next reset) the first counts."""
        value = self.ask(function)
        return None if value is None else bool(value[0] if isinstance(value, list | tuple) else value)


def read_gpu(reader: Reader) -> Gpu | LostGpu:
    """Return a GPU as it is now, without the memory node it hangs on; or that it is lost and why."""
    uuid, name = text(reader.ask("nvmlDeviceGetUUID")), text(reader.ask("nvmlDeviceGetName"))
    if uuid is None:
        return LostGpu(index=reader.index, reason=reader.lost or reader.last_error)
    memory = memory_of(reader, reader.handle)
    limits_mw = reader.ask("nvmlDeviceGetPowerManagementLimitConstraints") or (None, None)
    gpu = Gpu(
        index=reader.index,
        uuid=uuid,
        name=name or "unnamed",
        pci_bus_id=_address(reader.ask("nvmlDeviceGetPciInfo")),
        memory_mib=None if memory is None else memory.total / _MIB,
        memory_node=_memory_node(reader),
        compute_capability=reader.ask("nvmlDeviceGetCudaComputeCapability"),
        ecc=reader.switch("nvmlDeviceGetEccMode"),
        persistence=reader.switch("nvmlDeviceGetPersistenceMode"),
        compute_mode=_COMPUTE_MODES.get(reader.ask("nvmlDeviceGetComputeMode")),
        power_limit_w=reader.watts("nvmlDeviceGetPowerManagementLimit"),
        power_limit_default_w=reader.watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        power_limit_min_w=None if limits_mw[0] is None else limits_mw[0] / 1e3,
        power_limit_max_w=None if limits_mw[1] is None else limits_mw[1] / 1e3,
        sm_max_mhz=reader.number("nvmlDeviceGetMaxClockInfo", reader.nvml.NVML_CLOCK_SM),
        memory_max_mhz=reader.number("nvmlDeviceGetMaxClockInfo", reader.nvml.NVML_CLOCK_MEM),
        pcie_max_generation=reader.number("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_max_width=reader.number("nvmlDeviceGetMaxPcieLinkWidth"),
        mig=reader.switch("nvmlDeviceGetMigMode"),
        instances=_instances(reader, uuid),
        state=read_state(reader),
    )
    return gpu if reader.lost is None else LostGpu(index=reader.index, reason=reader.lost)


def read_throttle(reader: Reader) -> tuple[str, ...] | None:
    """Return why a GPU's clock is not higher, in words; null where it does not say."""
    mask = reader.number("nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        mask = reader.number("nvmlDeviceGetCurrentClocksThrottleReasons")
    return None if mask is None else throttle.in_words(mask)


def read_state(reader: Reader) -> GpuState:
    """Return what a GPU does at this moment."""
    memory, busy = memory_of(reader, reader.handle), reader.ask("nvmlDeviceGetUtilizationRates")
    return GpuState(
        sm_mhz=reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_SM),
        memory_mhz=reader.number("nvmlDeviceGetClockInfo", reader.nvml.NVML_CLOCK_MEM),
        power_w=reader.watts("nvmlDeviceGetPowerUsage"),
        temperature_c=reader.number("nvmlDeviceGetTemperature", reader.nvml.NVML_TEMPERATURE_GPU),
        memory_used_mib=None if memory is None else memory.used / _MIB,
        utilisation_percent=None if busy is None else int(busy.gpu),
        pcie_generation=reader.number("nvmlDeviceGetCurrPcieLinkGeneration"),
        pcie_width=reader.number("nvmlDeviceGetCurrPcieLinkWidth"),
        throttle=read_throttle(reader),
    )


def read_hint(reader: Reader) -> NodeHint:
    """Return what NVML says about the place of a GPU."""
    words = reader.ask("nvmlDeviceGetCpuAffinity", _CPU_WORDS) or ()
    near = tuple(64 * index + bit for index, word in enumerate(words) for bit in range(64) if word >> bit & 1)
    return NodeHint(cpus=near, memory_node=_memory_node(reader))


def _memory_node(reader: Reader) -> int | None:
    """Return NVML's "NUMA node", which is that of the GPU's own memory, where it is one."""
    node = reader.number("nvmlDeviceGetNumaNodeId")
    return node if node is not None and node >= 0 else None


def text(value: str | bytes | None) -> str | None:
    """Return text, which older bindings hand out as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _address(pci: Any) -> str | None:
    """Return "0000:3b:00.0" from NVML's "00000000:3B:00.0"."""
    bus_id = None if pci is None else text(pci.busId)
    match = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+:[0-9a-f]+\.[0-9a-f]+)", (bus_id or "").lower())
    return f"{int(match[1], 16):04x}:{match[2]}" if match else None


def memory_of(reader: Reader, handle: Any) -> Any:
    """Return the memory in bytes; the newer question does not count what the driver keeps for itself as used."""
    version = getattr(reader.nvml, "nvmlMemory_v2", None)
    newer = reader.plain("nvmlDeviceGetMemoryInfo", handle, version) if version else None
    return newer or reader.plain("nvmlDeviceGetMemoryInfo", handle)


def list_processes(reader: Reader, uuid: str) -> tuple[GpuProcess, ...] | None:
    """Return who is on a GPU, each once, whether it computes, draws or comes through the multi-process service.

    Null: NVML does not say.
    """
    by_pid: dict[int, GpuProcess] = {}
    answered = False
    for kind in ("Compute", "Graphics", "MPSCompute"):
        listed = reader.ask(f"nvmlDeviceGet{kind}RunningProcesses_v3")
        if listed is None:
            listed = reader.ask(f"nvmlDeviceGet{kind}RunningProcesses_v2")
        answered = answered or listed is not None
        for process in listed or ():
            memory = None if process.usedGpuMemory is None else process.usedGpuMemory / _MIB
            by_pid.setdefault(process.pid, GpuProcess(gpu=uuid, pid=process.pid, memory_mib=memory))
    return tuple(by_pid.values()) if answered else None


def _instances(reader: Reader, parent: str) -> tuple[MigInstance, ...]:
    """Return the instances that a GPU is cut into; none where it is whole."""
    if not reader.switch("nvmlDeviceGetMigMode"):
        return ()
    instances = (
        _instance(reader, number, parent) for number in range(reader.number("nvmlDeviceGetMaxMigDeviceCount") or 0)
    )
    return tuple(instance for instance in instances if instance is not None)


def _instance(reader: Reader, number: int, parent: str) -> MigInstance | None:
    handle = reader.ask("nvmlDeviceGetMigDeviceHandleByIndex", number)
    uuid = None if handle is None else text(reader.plain("nvmlDeviceGetUUID", handle))
    if uuid is None:
        return None
    memory, shape = memory_of(reader, handle), reader.plain("nvmlDeviceGetAttributes_v2", handle)
    profile = re.search(r"\bMIG (\S+)", text(reader.plain("nvmlDeviceGetName", handle)) or "")
    return MigInstance(
        number=number,
        uuid=uuid,
        parent=parent,
        profile=profile[1] if profile else None,
        memory_mib=None if memory is None else memory.total / _MIB,
        slices=None if shape is None else int(shape.computeInstanceSliceCount),
        multiprocessors=None if shape is None else int(shape.multiprocessorCount),
        gpu_instance=reader.plain("nvmlDeviceGetGpuInstanceId", handle),
        compute_instance=reader.plain("nvmlDeviceGetComputeInstanceId", handle),
    )


def read_links(found: Sequence[tuple[Reader, Gpu]]) -> tuple[Link, ...]:
    """Return how each pair of GPUs reaches each other."""
    if len(found) < 2:
        return ()
    addresses = {gpu.pci_bus_id for _, gpu in found if gpu.pci_bus_id}
    ends = {gpu.index: _nvlink_ends(reader, addresses) for reader, gpu in found}
    return tuple(
        Link(
            gpus=(one.index, other.index),
            nvlinks=ends[one.index][other.pci_bus_id or ""] or min(ends[one.index][None], ends[other.index][None]),
            path=_PATHS.get(reader.ask("nvmlDeviceGetTopologyCommonAncestor", far.handle)),
        )
        for (reader, one), (far, other) in combinations(found, 2)
    )


def _nvlink_ends(reader: Reader, gpus: set[str]) -> Counter[str | None]:
    """Return how many NVLinks of a GPU lead to each other GPU, and under null how many lead into the switches."""
    ends: Counter[str | None] = Counter()
    for link in range(_MAX_NVLINKS):
        if not reader.ask("nvmlDeviceGetNvLinkState", link):
            continue
        address = _address(reader.ask("nvmlDeviceGetNvLinkRemotePciInfo", link))
        if address in gpus:
            ends[address] += 1
        elif reader.ask("nvmlDeviceGetNvLinkRemoteDeviceType", link) == _TO_SWITCH:
            ends[None] += 1
    return ends
