"""Devices that work is placed on: GPUs, MIG instances and groups of cores, and which of them the user means.

    cuda:0      a whole GPU, by NVML's index
    cuda:1/0    the first MIG instance of GPU 1, which then cannot be used whole
    cpu:0       the first group of cores

NVML, nvidia-smi and Assay number all GPUs in the order of their PCI addresses. CUDA may number them differently
(``CUDA_DEVICE_ORDER``), omits what ``CUDA_VISIBLE_DEVICES`` does not name, and gives a program that can see an
instance of a GPU in MIG mode nothing but the first such instance. Devices that are hidden from CUDA are rejected.

    NVML                  CUDA_VISIBLE_DEVICES=2,0          CUDA
    0  1  2  3      ──▶   named: 2, 0; hidden: 1, 3   ──▶   cuda 0 is NVML's 2, cuda 1 is NVML's 0
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pydantic import Field

from assay.core.errors import BadInput, MachineCannot
from assay.core.values import Value
from assay.machine.model import Gpu, MigInstance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def metered_gpus(machine: Machine, devices: Iterable[str]) -> dict[int, str]:
    """Return the UUIDs of the whole GPUs behind some devices, by index: sensors and clocks belong to whole GPUs."""
    targets = gpu_targets(machine)
    used = {device.partition("/")[0] for device in devices if device in targets}
    return {gpu.index: gpu.uuid for gpu in machine.gpus if f"cuda:{gpu.index}" in used}


def group_count(machine: Machine, requested: int | None) -> int:
    """Return the number of groups the cores are split into: as requested, else two, else one on a single core."""
    cores = len(machine.cores)
    if requested is None:
        return min(2, cores)
    if requested < 1:
        raise BadInput(f"{requested} groups of cores make no sense; ask for one or more.")
    if requested > cores:
        raise MachineCannot(
            f"{requested} groups of cores need {requested} physical cores; this process may use {cores}."
        )
    return requested


DEVICE_PATTERN = re.compile(r"(cpu|cuda)(?::([0-9]+)|:([0-9]+/[0-9]+))?")
_GPU_NUMBER = re.compile(r"([0-9]+)(?:/([0-9]+))?")
_FULL_UUID = re.compile(r"(GPU|MIG)-\S+")


def kind_of(device: str) -> str:
    """Return "cpu" or "cuda" for a device's name."""
    return device.partition(":")[0]


def choose_devices(
    machine: Machine,
    *,
    gpus: tuple[str, ...] = (),
    devices: tuple[str, ...] = (),
    cpu_groups: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return the requested devices; by default all GPUs, or all groups of cores where there is none.

    Args:
        machine: The machine they are on.
        gpus: Numbers as in nvidia-smi, "1/0" for a MIG instance; or UUIDs or their beginnings.
        devices: Names as "cpu", "cpu:0", "cuda", "cuda:1" or "cuda:1/0".
        cpu_groups: Number of groups that the cores are split into.
        environment: Where CUDA_VISIBLE_DEVICES is looked up; by default this process's own.
    """
    if gpus and devices:
        raise BadInput("Say either --gpus or --device, not both.")
    variables = os.environ if environment is None else environment
    groups = group_count(machine, cpu_groups)
    if gpus:
        chosen = _gpus_from_list(machine, gpus)
    elif devices:
        chosen = tuple(device for name in devices for device in _resolve_name(machine, name, groups, variables))
    else:
        chosen = _default_devices(machine, variables) or tuple(f"cpu:{group}" for group in range(groups))
    _check_devices(chosen)
    _refuse_hidden(machine, chosen, variables)
    return chosen


def _check_devices(chosen: tuple[str, ...]) -> None:
    twice = sorted({device for device in chosen if chosen.count(device) > 1})
    if twice:
        raise BadInput(f"The same device is named twice: {', '.join(twice)}.")
    if len({kind_of(device) for device in chosen}) > 1:
        raise BadInput("GPUs and groups of cores cannot be measured in one run: their cores would overlap.")


def _gpus_from_list(machine: Machine, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not _GPU_NUMBER.fullmatch(name) and not _FULL_UUID.fullmatch(name):
            raise BadInput(f"{name!r} is not a GPU's number; write --gpus 0,1, or UUIDs as nvidia-smi -L shows them.")
    if len({bool(_FULL_UUID.fullmatch(name)) for name in names}) > 1:
        raise BadInput(f"--gpus {','.join(names)} mixes numbers and UUIDs; name GPUs by the one or the other.")
    return tuple(_resolve_gpu(machine, name) for name in names)


def _resolve_gpu(machine: Machine, name: str) -> str:
    """Return the device of a GPU or an instance, given by its number or its UUID."""
    if not machine.gpus and not machine.lost:
        raise MachineCannot(f"There is no GPU {name} here: {machine.gpu_note or 'no GPU is to be seen'}.")
    number = _GPU_NUMBER.fullmatch(name)
    if number is None:
        return _resolve_uuid(machine, name)
    for lost in machine.lost:
        if lost.index == int(number[1]):
            raise MachineCannot(f"GPU {lost.index} cannot be reached: {lost.reason}.")
    for gpu in machine.gpus:
        if gpu.index == int(number[1]):
            return _resolve_instance(gpu, None if number[2] is None else int(number[2]))
    raise MachineCannot(f"There is no GPU {name} here; the GPUs are 0 to {len(machine.gpus) + len(machine.lost) - 1}.")


def _resolve_uuid(machine: Machine, name: str) -> str:
    matches = find_by_uuid(machine.gpus, name)
    if len(matches) > 1:
        raise BadInput(f"{name} fits several GPUs: {', '.join(one.uuid for one in matches)}; write more of it.")
    if not matches:
        there = ", ".join(gpu.uuid for gpu in machine.gpus)
        raise MachineCannot(f"There is no GPU {name} here; there are {there}.")
    for gpu in machine.gpus:
        if gpu.uuid == matches[0].uuid:
            return _resolve_instance(gpu, None)
    return next(target.device for target in gpu_targets(machine).values() if target.uuid == matches[0].uuid)


def _resolve_instance(gpu: Gpu, instance: int | None) -> str:
    """Return the device of a whole GPU or of one of its instances, if it can be used."""
    pieces = targets_of_gpu(gpu)
    device = f"cuda:{gpu.index}" if instance is None else f"cuda:{gpu.index}/{instance}"
    if any(piece.device == device for piece in pieces):
        return device
    if not gpu.mig:
        raise MachineCannot(f"GPU {gpu.index} is not in MIG mode: it has no instance {instance}.")
    there = ", ".join(f"{piece.device} ({piece.title}, {piece.uuid})" for piece in pieces)
    missing = "cannot be used whole" if instance is None else f"has no instance {instance}"
    offer = f"its instances are {there}" if there else "it has no instances"
    raise MachineCannot(f"GPU {gpu.index} is in MIG mode and {missing}; {offer}.")


def _default_devices(machine: Machine, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return all GPUs that are not hidden; none where the user hides them all to compute on the CPU."""
    try:
        return _visible_gpus(machine, environment) if machine.gpus else ()
    except AllGpusHidden:
        return ()


def _visible_gpus(machine: Machine, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return all GPUs and instances that CUDA_VISIBLE_DEVICES does not hide; raise where there is none."""
    if not machine.gpus:
        raise MachineCannot(f"There is no GPU here: {machine.gpu_note or 'no GPU is to be seen'}.")
    named = _visible_uuids(machine, environment)
    visible = tuple(target.device for target in gpu_targets(machine).values() if target.uuid in named)
    if not visible:
        _resolve_instance(next(gpu for gpu in machine.gpus if gpu.uuid in named), None)
    return visible


def _visible_uuids(machine: Machine, environment: Mapping[str, str]) -> set[str]:
    """Return the UUIDs of what is not hidden; raise where this cannot be known."""
    order = cuda_order(machine.gpus, environment, some_lost=bool(machine.lost))
    visible = set(order.named)
    if not order.certain and any(gpu.uuid not in visible for gpu in machine.gpus):
        raise MachineCannot(
            f"Which GPUs {VISIBLE_DEVICES}={environment[VISIBLE_DEVICES]} hides is not known: {order.notes[-1]}."
        )
    return visible


def _refuse_hidden(machine: Machine, chosen: tuple[str, ...], environment: Mapping[str, str]) -> None:
    if VISIBLE_DEVICES not in environment or kind_of(chosen[0]) != "cuda":
        return
    visible, targets_by_name = _visible_uuids(machine, environment), gpu_targets(machine)
    hidden = [device for device in chosen if targets_by_name[device].uuid not in visible]
    if hidden:
        raise MachineCannot(
            f"{VISIBLE_DEVICES}={environment[VISIBLE_DEVICES]} hides {', '.join(hidden)}; unset it, or choose among "
            f"{', '.join(_visible_gpus(machine, environment))}. GPUs are numbered as nvidia-smi does."
        )


def _resolve_name(machine: Machine, name: str, groups: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    match = DEVICE_PATTERN.fullmatch(name.lower())
    if match is None or (match[1] == "cpu" and match[3]):
        raise BadInput(f"{name!r} is not a device; write cpu, cpu:0, cuda or cuda:0.")
    kind, number = match[1], match[2] or match[3]
    if kind == "cuda":
        return (_resolve_gpu(machine, number),) if number else _visible_gpus(machine, environment)
    if number is None:
        return tuple(f"cpu:{group}" for group in range(groups))
    if int(number) >= groups:
        raise MachineCannot(
            f"There is no device cpu:{number}: the {len(machine.cores)} cores here form {groups} "
            f"group{'s' if groups > 1 else ''}, cpu:0{f' to cpu:{groups - 1}' if groups > 1 else ''}; "
            "--cpu-groups changes that."
        )
    return (f"cpu:{int(number)}",)
