"""NVIDIA GPUs through NVML; the only file that touches it. No driver and no GPU are normal answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.machine.model import Gpu

if TYPE_CHECKING:
    from types import ModuleType


@dataclass(frozen=True)
class NvidiaView:
    """What NVML shows: the GPUs, the driver, and in words why there are none."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    note: str | None = None


def look() -> NvidiaView:
    """Return the GPUs that NVML lists, in NVML's order."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NvidiaView(note=f"NVML does not answer: {error}")
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        count = int(pynvml.nvmlDeviceGetCount())
        gpus = tuple(_describe(pynvml, index) for index in range(count))
        return NvidiaView(gpus, driver, None if gpus else "the driver lists no GPU")
    except pynvml.NVMLError as error:
        return NvidiaView(note=f"NVML stopped answering: {error}")
    finally:
        pynvml.nvmlShutdown()


def _describe(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        index=index,
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        name=str(nvml.nvmlDeviceGetName(handle)),
        pci_bus_id=str(nvml.nvmlDeviceGetPciInfo(handle).busId).lower(),
        memory_mib=_memory_mib(nvml, handle),
    )


def _memory_mib(nvml: ModuleType, handle: object) -> float | None:
    """Return a GPU's own memory; null for one that shares the host's, as NVML says by not supporting the question."""
    try:
        return float(nvml.nvmlDeviceGetMemoryInfo(handle).total) / 2**20
    except nvml.NVMLError_NotSupported:
        return None
