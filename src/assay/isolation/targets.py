"""The GPUs of a machine as devices that work can be placed on: whole ones, and the instances of those in MIG mode.

cuda:0      a whole GPU, by NVML's index
cuda:1/0    the first MIG instance of GPU 1, which then cannot be used whole
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.machine.model import Gpu, Machine


@dataclass(frozen=True)
class Target:
    """What a device's name stands for. Instances hang on the memory node of their GPU."""

    device: str
    uuid: str
    node: int | None
    title: str


def targets(machine: Machine) -> dict[str, Target]:
    """Return the GPUs and MIG instances that can be used, by the device's name, in order."""
    return {target.device: target for gpu in machine.gpus for target in targets_of(gpu)}


def targets_of(gpu: Gpu) -> tuple[Target, ...]:
    """Return the devices that a GPU is: one, or in MIG mode as many as it has instances."""
    if not gpu.mig:
        return (Target(f"cuda:{gpu.index}", gpu.uuid, gpu.node, gpu.name),)
    return tuple(
        Target(f"cuda:{gpu.index}/{one.number}", one.uuid, gpu.node, f"{gpu.name} MIG {one.profile or 'instance'}")
        for one in gpu.instances
    )
