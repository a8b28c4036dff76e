"""Which devices the user means: GPUs by number, groups of cores, or what is there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot
from assay.isolation.allot import group_count

if TYPE_CHECKING:
    from assay.machine.model import Gpu, Machine

DEVICE = re.compile(r"(cpu|cuda)(?::(\d+))?")


def kind_of(device: str) -> str:
    """Return "cpu" or "cuda" for a device's name."""
    return device.partition(":")[0]


def choose(
    machine: Machine, *, gpus: tuple[str, ...] = (), devices: tuple[str, ...] = (), cpu_groups: int | None = None
) -> tuple[str, ...]:
    """Return the devices that are meant; with nothing said, all GPUs, or all groups of cores where there is none."""
    if gpus and devices:
        raise BadInput("Say either --gpus or --device, not both.")
    groups = group_count(machine, cpu_groups)
    if gpus:
        chosen = tuple(_gpu(machine, word) for word in gpus)
    elif devices:
        chosen = tuple(name for word in devices for name in _named(machine, word, groups))
    elif machine.gpus:
        chosen = tuple(f"cuda:{gpu.index}" for gpu in machine.gpus)
    else:
        chosen = tuple(f"cpu:{group}" for group in range(groups))
    twice = sorted({device for device in chosen if chosen.count(device) > 1})
    if twice:
        raise BadInput(f"The same device is named twice: {', '.join(twice)}.")
    if len({kind_of(device) for device in chosen}) > 1:
        raise BadInput("GPUs and groups of cores cannot be measured in one run: their cores would overlap.")
    return chosen


def _gpu(machine: Machine, word: str) -> str:
    if not word.isdecimal():
        raise BadInput(f"{word!r} is not a GPU's number; write --gpus 0,1.")
    if not machine.gpus:
        raise MachineCannot(f"There is no GPU {word} here: {machine.gpu_note or 'no GPU is to be seen'}.")
    if int(word) not in {gpu.index for gpu in machine.gpus}:
        raise MachineCannot(f"There is no GPU {word} here; the GPUs are 0 to {len(machine.gpus) - 1}.")
    return f"cuda:{int(word)}"


def _named(machine: Machine, word: str, groups: int) -> tuple[str, ...]:
    match = DEVICE.fullmatch(word.lower())
    if match is None:
        raise BadInput(f"{word!r} is not a device; write cpu, cpu:0, cuda or cuda:0.")
    kind, number = match[1], match[2]
    if kind == "cuda":
        return (_gpu(machine, number),) if number else tuple(_gpu(machine, str(g.index)) for g in _some(machine))
    if number is None:
        return tuple(f"cpu:{group}" for group in range(groups))
    if int(number) >= groups:
        raise MachineCannot(
            f"There is no device cpu:{number}: the {len(machine.cores)} cores here form {groups} "
            f"group{'s' if groups > 1 else ''}, cpu:0{f' to cpu:{groups - 1}' if groups > 1 else ''}; "
            "--cpu-groups changes that."
        )
    return (f"cpu:{int(number)}",)


def _some(machine: Machine) -> tuple[Gpu, ...]:
    if not machine.gpus:
        raise MachineCannot(f"There is no GPU here: {machine.gpu_note or 'no GPU is to be seen'}.")
    return machine.gpus
