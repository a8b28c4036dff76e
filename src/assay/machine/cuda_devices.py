"""GPUs as devices that work is placed on, and which of them a CUDA program sees, under which index.

    cuda:0      a whole GPU, by NVML's index
    cuda:1/0    the first MIG instance of GPU 1, which then cannot be used whole

NVML, nvidia-smi and Assay number all GPUs in the order of their PCI addresses. CUDA may number them differently
(``CUDA_DEVICE_ORDER``), omits what ``CUDA_VISIBLE_DEVICES`` does not name, and gives a program that can see an
instance of a GPU in MIG mode nothing but the first such instance.

    NVML                  CUDA_VISIBLE_DEVICES=2,0          CUDA
    0  1  2  3      ──▶   named: 2, 0; hidden: 1, 3   ──▶   cuda 0 is NVML's 2, cuda 1 is NVML's 0
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import Value
from assay.machine.model import Gpu, MigInstance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.machine.model import Machine


GpuOrInstance: TypeAlias = Gpu | MigInstance
"""What CUDA_VISIBLE_DEVICES may name."""

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DEVICE_ORDER = "CUDA_DEVICE_ORDER"

_HIDE_ALL = {"-1", "nodevfiles", "none", "void"}
"""What users, Slurm and container runtimes write to hide every GPU."""
_NUMBER = re.compile(r"[+-]?\d+")
_UUID = re.compile(r"(GPU|MIG)-")

_UNSORTED = (
    "CUDA sorts GPUs of different models by a speed that NVML does not tell, so its numbers for them are not known; "
    f"set {DEVICE_ORDER}=PCI_BUS_ID, or name GPUs by UUID"
)
_ONE_INSTANCE = "a CUDA program sees one MIG instance at most, and no other GPU beside it"


class AllGpusHidden(MachineCannot):
    """The environment hides every GPU, as users do on purpose to compute on the CPU."""


class CudaDevice(Value):
    """A device that a CUDA program addresses by index."""

    cuda_index: int
    uuid: str = Field(description="Of the GPU or the MIG instance.")
    gpu: int = Field(description="NVML's index of the GPU, or of the instance's parent GPU.")
    instance: int | None = Field(default=None, description="Number of the MIG instance; null: the whole GPU.")


class CudaOrder(Value):
    """How the environment determines which GPUs CUDA sees."""

    devices: tuple[CudaDevice, ...] = Field(description="What one CUDA program sees, in its order.")
    named: tuple[str, ...] = Field(description="UUIDs of all GPUs and instances that are not hidden from CUDA.")
    certain: bool = Field(description="Whether NVML reports enough to determine each GPU's index.")
    notes: tuple[str, ...] = ()

    def index_of(self, uuid: str) -> int | None:
        """Return CUDA's index of a GPU or an instance; null when a CUDA program does not see it."""
        return next((device.cuda_index for device in self.devices if device.uuid == uuid), None)


def cuda_order(gpus: Sequence[Gpu], environment: Mapping[str, str], *, some_lost: bool = False) -> CudaOrder:
    """Return how CUDA sees GPUs, given in NVML's order, in an environment.

    Raises:
        AllGpusHidden: No GPU is left.
        MachineCannot: The first entry names no GPU here, which makes CUDA see none.
        BadInput: Numbers and UUIDs are mixed, or a GPU is named twice.
    """
    text = environment.get(VISIBLE_DEVICES)
    chosen, notes = (list[GpuOrInstance](gpus), []) if text is None else _visible_parts(gpus, text)
    doubt = None if text and _UUID.match(text.strip()) else _order_doubt(gpus, environment, some_lost=some_lost)
    parts = [piece for part in chosen for piece in usable_parts(part)]
    instances = [piece for piece in parts if isinstance(piece, MigInstance)]
    if instances and len(parts) > 1:
        notes.append(_ONE_INSTANCE)
    return CudaOrder(
        devices=tuple(_cuda_device(number, part, gpus) for number, part in enumerate(instances[:1] or parts)),
        named=tuple(
            dict.fromkeys(
                part.uuid for gpu_or_instance in chosen for part in (gpu_or_instance, *usable_parts(gpu_or_instance))
            )
        ),
        certain=doubt is None,
        notes=(*notes, doubt) if doubt else tuple(notes),
    )


def _order_doubt(gpus: Sequence[Gpu], environment: Mapping[str, str], *, some_lost: bool) -> str | None:
    """Return why CUDA's indices cannot be known; null where they are those of NVML."""
    if some_lost:
        return "a GPU is lost, so CUDA's numbers for the others are not known"
    by_address = environment.get(DEVICE_ORDER, "").upper() == "PCI_BUS_ID"
    models = {(gpu.name, gpu.compute_capability) for gpu in gpus}
    return None if by_address or len(models) <= 1 else _UNSORTED


def usable_parts(part: GpuOrInstance) -> tuple[GpuOrInstance, ...]:
    """Return what a program can use of a GPU: the whole GPU, or in MIG mode its instances."""
    return part.instances if isinstance(part, Gpu) and part.mig else (part,)


def find_by_uuid(gpus: Sequence[Gpu], text: str) -> tuple[GpuOrInstance, ...]:
    """Return the GPUs and instances whose UUID starts with a text; also an instance by its old name MIG-GPU-…/7/0."""
    all_parts: list[GpuOrInstance] = [*gpus, *(instance for gpu in gpus for instance in gpu.instances)]
    legacy_names = {f"MIG-{i.parent}/{i.gpu_instance}/{i.compute_instance}": i for gpu in gpus for i in gpu.instances}
    return (
        (legacy_names[text],)
        if text in legacy_names
        else tuple(part for part in all_parts if part.uuid.startswith(text))
    )


def _visible_parts(gpus: Sequence[Gpu], text: str) -> tuple[list[GpuOrInstance], list[str]]:
    """Return what a list names up to the first entry that names nothing, and a note about that entry."""
    entries = [entry.strip() for entry in text.strip().rstrip(",").split(",")]
    if entries == [""]:
        raise AllGpusHidden(f"{VISIBLE_DEVICES} is empty: it hides every GPU.")
    if entries[0].lower() in _HIDE_ALL:
        raise AllGpusHidden(f"{VISIBLE_DEVICES}={text.strip()} hides every GPU.")
    if any(map(_NUMBER.match, entries)) and any(map(_UUID.match, entries)):
        raise BadInput(f"{VISIBLE_DEVICES}={text} mixes numbers and UUIDs; name GPUs by the one or the other.")
    named_parts: list[GpuOrInstance] = []
    for entry in entries:
        part = _find_part(gpus, entry)
        if part is None:
            if not named_parts:
                raise MachineCannot(_explain_no_gpu(gpus, text, entry))
            return named_parts, [f"CUDA stops reading {VISIBLE_DEVICES} at {entry!r}, which is no GPU here"]
        if part in named_parts:
            raise BadInput(f"{VISIBLE_DEVICES}={text} names {entry} twice, and CUDA then shows no GPU at all.")
        named_parts.append(part)
    return named_parts, []


def _find_part(gpus: Sequence[Gpu], entry: str) -> GpuOrInstance | None:
    """Return what an entry of the list names; like CUDA, ignore what follows a number's digits."""
    if _UUID.match(entry):
        matches = find_by_uuid(gpus, entry)
        return matches[0] if len(matches) == 1 else None
    number = _NUMBER.match(entry)
    index = -1 if number is None else int(number[0])
    return gpus[index] if 0 <= index < len(gpus) else None


def _explain_no_gpu(gpus: Sequence[Gpu], text: str, word: str) -> str:
    there = f"its GPUs are 0 to {len(gpus) - 1}" if gpus else "it has none"
    if _UUID.match(word) and len(find_by_uuid(gpus, word)) > 1:
        return f"{VISIBLE_DEVICES}={text} begins with {word}, which fits several GPUs, so that CUDA shows none of them."
    return (
        f"{VISIBLE_DEVICES}={text} begins with {word}, which is no GPU of this machine ({there}): it hides every GPU."
    )


def _cuda_device(number: int, part: GpuOrInstance, gpus: Sequence[Gpu]) -> CudaDevice:
    if isinstance(part, Gpu):
        return CudaDevice(cuda_index=number, uuid=part.uuid, gpu=part.index)
    owner = next(gpu.index for gpu in gpus if gpu.uuid == part.parent)
    return CudaDevice(cuda_index=number, uuid=part.uuid, gpu=owner, instance=part.number)


@dataclass(frozen=True)
class GpuTarget:
    """What a device name stands for. An instance has the memory node of its GPU."""

    device: str
    uuid: str
    node: int | None
    title: str


def gpu_targets(machine: Machine) -> dict[str, GpuTarget]:
    """Return the GPUs and MIG instances that can be used, by device name, in order."""
    return {target.device: target for gpu in machine.gpus for target in targets_of_gpu(gpu)}


def targets_of_gpu(gpu: Gpu) -> tuple[GpuTarget, ...]:
    """Return the devices of a GPU: itself, or in MIG mode its instances."""
    if not gpu.mig:
        return (GpuTarget(f"cuda:{gpu.index}", gpu.uuid, gpu.node, gpu.name),)
    return tuple(
        GpuTarget(f"cuda:{gpu.index}/{one.number}", one.uuid, gpu.node, f"{gpu.name} MIG {one.profile or 'instance'}")
        for one in gpu.instances
    )
