"""Resolve the devices a user names: GPUs by number or UUID, groups of cores, or everything available.

Numbers are those of NVML and nvidia-smi, whatever CUDA_VISIBLE_DEVICES says; devices that it hides are rejected.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.isolation.placement import group_count
from assay.machine.cuda_devices import (
    VISIBLE_DEVICES,
    AllGpusHidden,
    cuda_order,
    find_by_uuid,
    gpu_targets,
    targets_of_gpu,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.machine.model import Gpu, Machine

DEVICE_PATTERN = re.compile(r"(cpu|cuda)(?::([0-9]+)|:([0-9]+/[0-9]+))?")
_NUMBER = re.compile(r"([0-9]+)(?:/([0-9]+))?")
_UUID = re.compile(r"(GPU|MIG)-\S+")


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
        if not _NUMBER.fullmatch(name) and not _UUID.fullmatch(name):
            raise BadInput(f"{name!r} is not a GPU's number; write --gpus 0,1, or UUIDs as nvidia-smi -L shows them.")
    if len({bool(_UUID.fullmatch(name)) for name in names}) > 1:
        raise BadInput(f"--gpus {','.join(names)} mixes numbers and UUIDs; name GPUs by the one or the other.")
    return tuple(_resolve_gpu(machine, name) for name in names)


def _resolve_gpu(machine: Machine, name: str) -> str:
    """Return the device of a GPU or an instance, given by its number or its UUID."""
    if not machine.gpus and not machine.lost:
        raise MachineCannot(f"There is no GPU {name} here: {machine.gpu_note or 'no GPU is to be seen'}.")
    number = _NUMBER.fullmatch(name)
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
