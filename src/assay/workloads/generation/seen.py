"""Which GPU of the machine is which in this process: CUDA counts those that it sees from 0.

device_ids [2, 0]     CUDA_VISIBLE_DEVICES=GPU-of-2,GPU-of-0     here
cuda:2, cuda:0        ──────────────────────────────────────▶    cuda:0, cuda:1
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.generation.limits import CPU, DISK, gpu_place
from assay.workloads.torch_device import import_torch, open_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.workloads.generation.params import Generation


@dataclass(frozen=True)
class Seen:
    """The places of a model: by the machine's names in the order of the pipeline, and as PyTorch names them here."""

    device: str
    device_ids: tuple[int, ...]
    here: Mapping[str, str]

    @property
    def first(self) -> str:
        """The device of this worker, as PyTorch names it."""
        return next(iter(self.here.values()))

    def for_accelerate(self, place: str) -> int | str:
        """Return how accelerate names a place: a GPU by its number here."""
        return int(self.here[place].removeprefix("cuda:")) if place.startswith("cuda") else place

    def told(self, place: str) -> str:
        """Return a place as people name it: the worker's own GPU may be an instance of one."""
        return self.device if "/" in self.device and place == next(iter(self.here)) else place

    def on_machine(self, where: str) -> str:
        """Return the machine's name of what PyTorch names so."""
        return next((machine_name for machine_name, local_name in self.here.items() if local_name == where), where)


def device_ids_of(generation: Generation, device: str) -> tuple[int, ...]:
    """Return the GPUs of a generation in order, the worker's own first; none for a CPU."""
    if not device.startswith("cuda"):
        return ()
    own = int(device.removeprefix("cuda:").partition("/")[0])
    if not generation.device_ids or generation.tp_plan:
        return (own,)
    numbers = tuple(int(number) for number in json.loads(generation.device_ids))
    if not numbers or numbers[0] != own or len(set(numbers)) < len(numbers):
        raise BadInput(f"device_ids {list(numbers)} begin with the GPU of their process, which is {own}, and differ.")
    return numbers


def see(device: str, device_ids: Sequence[int]) -> Seen:
    """Return the places that this process has, having made the worker's own device the current one.

    Raises:
        MachineCannot: Fewer GPUs are to be seen than are named.
    """
    if not device_ids:
        return Seen(device, (), {CPU: open_device(device), DISK: DISK})
    if len(device_ids) == 1:
        return Seen(device, tuple(device_ids), {gpu_place(device_ids[0]): open_device(device), CPU: CPU, DISK: DISK})
    torch = import_torch()
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if not torch.cuda.is_available():
        raise MachineCannot("PyTorch here sees no CUDA GPU.")
    indices = local_numbers(device_ids, torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    torch.cuda.set_device(indices[0])
    names = {gpu_place(number): f"cuda:{local}" for number, local in zip(device_ids, indices, strict=True)}
    return Seen(device, tuple(device_ids), {**names, CPU: CPU, DISK: DISK})


def local_numbers(device_ids: Sequence[int], count: int, visible: str | None) -> tuple[int, ...]:
    """Return CUDA's numbers of GPUs in a process that sees so many: by position where it was given just these.

    Raises:
        MachineCannot: They are not all to be seen, or it is not clear which is which.
    """
    named = [name for name in (visible or "").split(",") if name.strip()]
    if named and len(named) == len(device_ids) == count:
        return tuple(range(count))
    requested = ", ".join(map(str, device_ids))
    if not named and max(device_ids) < count:
        return tuple(device_ids)
    raise MachineCannot(
        f"A model over the GPUs {requested} needs a process that sees just these; PyTorch here sees {count}."
    )
