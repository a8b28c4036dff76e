"""From a case to devices: who is timed where, beside whom. Pure: the same file, machine and seed give the same.

Four GPUs, two timed at once:      repeat 1    0 1 │ 2 3        repeat 2    1 2 │ 3 0
three timed at once:               repeat 1    0 1 2 │ 3 0 1 │ 2 3 0 │ 1 2 3

Within a repeat every device is timed equally often, so that none is left out of a study of how unequal they are.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.experiments.power.characterize.near import apart

if TYPE_CHECKING:
    from assay.experiments.power.characterize.options import Case, CharacterizeOptions, NoisePart
    from assay.machine.model import Machine


@dataclass(frozen=True)
class Beside:
    """A load and its device."""

    part: NoisePart
    device: str


@dataclass(frozen=True)
class Placed:
    """A case in one repeat: which devices are timed, and what runs beside them."""

    case: Case
    repeat: int
    base: tuple[str, ...]
    noise: tuple[Beside, ...] = ()

    def company_of(self, device: str) -> tuple[str, ...]:
        """Return what else runs meanwhile, as seen from one of the timed devices: ``cuda:1 resnet50@torch``."""
        others = [f"{other} {self.case.base.subject.label}" for other in self.base if other != device]
        return (*others, *(f"{load.device} {load.part.subject.label}" for load in self.noise))


class NoRoom(Exception):
    """A case does not fit these devices; the words say why."""


def why_not(machine: Machine, options: CharacterizeOptions, case: Case) -> str | None:
    """Return why a case cannot be measured on these devices; null where it can."""
    try:
        places(machine, options, case, 1)
    except NoRoom as reason:
        return str(reason)
    return None


def places(machine: Machine, options: CharacterizeOptions, case: Case, repeat: int) -> tuple[Placed, ...]:
    """Return where a case is measured in one repeat, counted from 1.

    Raises:
        NoRoom: It cannot be measured on these devices at all.
    """
    placed_cases: list[Placed] = []
    reasons: list[str] = []
    for base in _bases(options, case, repeat):
        lot = random.Random(f"{options.seed}/{case.name}/{repeat}/{base}")  # noqa: S311 - a place is no secret
        try:
            placed_cases.append(Placed(case, repeat, base, _company(machine, options, case, base, lot)))
        except NoRoom as reason:
            reasons.append(str(reason))
    if not placed_cases:
        raise NoRoom(reasons[0])
    return tuple(placed_cases)


def _bases(options: CharacterizeOptions, case: Case, repeat: int) -> list[tuple[str, ...]]:
    """Return the sets of devices that are timed at once, one set a trial."""
    available = options.devices
    if case.base.devices:
        _refuse_strange(case.base.devices, available)
        return [case.base.devices]
    count = len(available) if case.base.count is None else case.base.count
    load_count = sum(part.count or 1 for part in case.noise if part.placement != "same" and not part.devices)
    if count + load_count > len(available):
        sum_of = f" ({count} timed, {load_count} beside)" if load_count else ""
        raise NoRoom(
            f"it needs {count + load_count} {_devices(available, count + load_count)}{sum_of}, and {_there(available)}"
        )
    free = available if case.rotate else available[:count]
    shift = repeat - 1 if case.rotate else 0
    turns = len(free) // math.gcd(len(free), count)
    return [tuple(free[(shift + turn * count + index) % len(free)] for index in range(count)) for turn in range(turns)]


def _there(devices: tuple[str, ...]) -> str:
    return f"there {'is' if len(devices) == 1 else 'are'} {len(devices)}"


def _devices(devices: tuple[str, ...], count: int) -> str:
    name = "GPU" if devices[0].startswith("cuda") else "group of cores"
    return name if count == 1 else "GPUs" if name == "GPU" else "groups of cores"


def _refuse_strange(wanted: tuple[str, ...], there: tuple[str, ...]) -> None:
    missing = [device for device in wanted if device not in there]
    if missing:
        raise NoRoom(f"{missing[0]} is not among the devices of this run")


def _company(
    machine: Machine, options: CharacterizeOptions, case: Case, base: tuple[str, ...], lot: random.Random
) -> tuple[Beside, ...]:
    """Return the loads beside a set of timed devices, each on a device of its own unless it is to be on the same."""
    loads: list[Beside] = []
    named = {device for part in case.noise for device in part.devices}
    for part in case.noise:
        if part.placement == "same":
            loads += [Beside(part, device) for device in base]
            continue
        if part.devices:
            _refuse_strange(part.devices, options.devices)
            timed = [device for device in part.devices if device in base]
            if timed:
                raise NoRoom(f"{timed[0]} would be both timed and noise")
            loads += [Beside(part, device) for device in part.devices]
            continue
        used = {*base, *named, *(load.device for load in loads)}
        free = [device for device in options.devices if device not in used]
        loads += [Beside(part, device) for device in _chosen(machine, part, base, free, lot)]
    return tuple(loads)


def _chosen(machine: Machine, part: NoisePart, base: tuple[str, ...], free: list[str], lot: random.Random) -> list[str]:
    """Return the devices of a load among those that are free."""
    count = len(free) if part.count is None else part.count
    if not free or count > len(free):
        raise NoRoom(f"no {count or 1} {_devices(base, count or 1)} are left for {part.subject.label}")
    if part.placement == "any":
        return sorted(lot.sample(free, count), key=free.index)
    distances = {device: min(apart(machine, device, timed) for timed in base) for device in free}
    ordered = sorted(free, key=distances.__getitem__)
    near, far = ordered[:count], ordered[len(ordered) - count :]
    if sorted(map(distances.__getitem__, near)) == sorted(map(distances.__getitem__, far)):
        raise NoRoom("near and far neighbours would be equally near")
    return near if part.placement == "near" else far
