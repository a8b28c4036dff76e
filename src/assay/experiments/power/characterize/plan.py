"""Trials and repeats: every case once in each repeat, on every device in turn, in random order.

In every trial calls follow one another without a pause, once clocks and temperature are steady, and each worker has the
same cores in every trial. Each repeat has a trial in which all devices are idle: idle power is reported with the power
under load. Placement is pure: the same file, machine and seed give the same devices.

Four GPUs, two timed at once:      repeat 1    0 1 │ 2 3        repeat 2    1 2 │ 3 0
three timed at once:               repeat 1    0 1 2 │ 3 0 1 │ 2 3 0 │ 1 2 3

Within a repeat every device is timed equally often. Near and far loads are placed by the distance of two GPUs: by
their NVLinks, then by what they share on PCIe, then by their memory nodes.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, get_args

from assay.core.values import Block, Continuous, Done, Role, Trial
from assay.experiments.budget import TRIAL_OVERHEAD_S
from assay.experiments.matrix.plan import longest_block_s, spent_trials_s
from assay.experiments.power.rows import IDLE
from assay.experiments.run.plan import max_start_up_s
from assay.machine.model import LinkPath

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from assay.core.results import Record
    from assay.experiments.power.characterize.options import CharacterizeCase, CharacterizeOptions, NoisePart
    from assay.machine.model import Machine


KeyT = TypeVar("KeyT", bound="Hashable")
Distance = tuple[int, int]
"""Compares as distances do: the smaller the nearer."""

LINK_PATHS: tuple[LinkPath, ...] = get_args(LinkPath)
LINK_PATH_NAMES: dict[LinkPath, str] = {
    "board": "one board",
    "switch": "one PCIe switch",
    "switches": "PCIe switches",
    "bridge": "one host bridge",
    "node": "one memory node",
    "system": "across sockets",
}
SAME_GPU: Distance = (-1_000_000, 0)
"""Two instances of one GPU."""


def gpu_distance(machine: Machine, one: str, other: str) -> Distance:
    """Return how far two devices are apart; groups of cores are all equally far."""
    if not one.startswith("cuda"):
        return (0, 0)
    if gpu_number(one) == gpu_number(other):
        return SAME_GPU
    nvlinks, path = _gpu_link(machine, one, other)
    return -nvlinks, len(LINK_PATHS) if path is None else LINK_PATHS.index(path)


def _gpu_link(machine: Machine, one: str, other: str) -> tuple[int, LinkPath | None]:
    """Return the NVLinks of two GPUs and what they share on PCIe; if the driver does not say, by their memory nodes."""
    link = machine.link(gpu_number(one), gpu_number(other))
    nvlinks = link.nvlinks if link is not None else 0
    if link is not None and link.path is not None:
        return nvlinks, link.path
    nodes = {gpu.index: gpu.node for gpu in machine.gpus}
    first, second = nodes.get(gpu_number(one)), nodes.get(gpu_number(other))
    if first is None or second is None:
        return nvlinks, None
    return nvlinks, "node" if first == second else "system"


def distance_text(machine: Machine, one: str, other: str) -> str:
    """Write how far two devices are apart: "NVLink ×4, one memory node"; nothing where it is not known."""
    if not one.startswith("cuda"):
        return ""
    if gpu_number(one) == gpu_number(other):
        return "one GPU"
    nvlinks, path = _gpu_link(machine, one, other)
    parts = [f"NVLink ×{nvlinks}"] if nvlinks else []
    return ", ".join(parts + ([LINK_PATH_NAMES[path]] if path is not None else []))


def gpu_number(device: str) -> int:
    """Return the number of the GPU that a device is, or is an instance of."""
    return int(device.partition(":")[2].partition("/")[0])


@dataclass(frozen=True)
class PlacedLoad:
    """A load and its device."""

    part: NoisePart
    device: str


@dataclass(frozen=True)
class PlacedCase:
    """A case in one repeat: which devices are timed, and what runs beside them."""

    case: CharacterizeCase
    repeat: int
    base: tuple[str, ...]
    noise: tuple[PlacedLoad, ...] = ()

    def concurrent_with(self, device: str) -> tuple[str, ...]:
        """Return what else runs meanwhile, as seen from one of the timed devices: ``cuda:1 resnet50@torch``."""
        others = [f"{other} {self.case.base.subject.label}" for other in self.base if other != device]
        return (*others, *(f"{load.device} {load.part.subject.label}" for load in self.noise))


class CaseDoesNotFit(Exception):
    """A case cannot be measured on these devices, or with what is installed; the message says why."""


def misfit_reason(machine: Machine, options: CharacterizeOptions, case: CharacterizeCase) -> str | None:
    """Return why a case cannot be measured on these devices; null where it can."""
    try:
        place_case(machine, options, case, 1)
    except CaseDoesNotFit as reason:
        return str(reason)
    return None


def place_case(
    machine: Machine, options: CharacterizeOptions, case: CharacterizeCase, repeat: int
) -> tuple[PlacedCase, ...]:
    """Return where a case is measured in one repeat, counted from 1.

    Raises:
        CaseDoesNotFit: It cannot be measured on these devices at all.
    """
    placed_cases: list[PlacedCase] = []
    reasons: list[str] = []
    for base in _timed_device_sets(options, case, repeat):
        lot = random.Random(f"{options.seed}/{case.name}/{repeat}/{base}")  # noqa: S311 - a place is no secret
        try:
            placed_cases.append(PlacedCase(case, repeat, base, _place_loads(machine, options, case, base, lot)))
        except CaseDoesNotFit as reason:
            reasons.append(str(reason))
    if not placed_cases:
        raise CaseDoesNotFit(reasons[0])
    return tuple(placed_cases)


def _timed_device_sets(options: CharacterizeOptions, case: CharacterizeCase, repeat: int) -> list[tuple[str, ...]]:
    """Return the sets of devices that are timed at once, one set a trial."""
    available = options.devices
    if case.base.devices:
        _check_devices_available(case.base.devices, available)
        return [case.base.devices]
    count = len(available) if case.base.count is None else case.base.count
    load_count = sum(part.count or 1 for part in case.noise if part.placement != "same" and not part.devices)
    if count + load_count > len(available):
        sum_of = f" ({count} timed, {load_count} beside)" if load_count else ""
        needed = f"{count + load_count} {device_noun(available, count + load_count)}{sum_of}"
        raise CaseDoesNotFit(f"it needs {needed}, and there {'is' if len(available) == 1 else 'are'} {len(available)}")
    free = available if case.rotate else available[:count]
    shift = repeat - 1 if case.rotate else 0
    turns = len(free) // math.gcd(len(free), count)
    return [tuple(free[(shift + turn * count + index) % len(free)] for index in range(count)) for turn in range(turns)]


def device_noun(devices: tuple[str, ...], count: int) -> str:
    """Return what so many devices are called."""
    one, several = ("GPU", "GPUs") if devices[0].startswith("cuda") else ("group of cores", "groups of cores")
    return one if count == 1 else several


def _check_devices_available(requested: tuple[str, ...], available: tuple[str, ...]) -> None:
    missing = [device for device in requested if device not in available]
    if missing:
        raise CaseDoesNotFit(f"{missing[0]} is not among the devices of this run")


def _place_loads(
    machine: Machine, options: CharacterizeOptions, case: CharacterizeCase, base: tuple[str, ...], lot: random.Random
) -> tuple[PlacedLoad, ...]:
    """Return the loads beside a set of timed devices, each on a device of its own unless it is to be on the same."""
    loads: list[PlacedLoad] = []
    named = {device for part in case.noise for device in part.devices}
    for part in case.noise:
        if part.placement == "same":
            loads += [PlacedLoad(part, device) for device in base]
            continue
        if part.devices:
            _check_devices_available(part.devices, options.devices)
            timed = [device for device in part.devices if device in base]
            if timed:
                raise CaseDoesNotFit(f"{timed[0]} would be both timed and noise")
            loads += [PlacedLoad(part, device) for device in part.devices]
            continue
        used = {*base, *named, *(load.device for load in loads)}
        free = [device for device in options.devices if device not in used]
        loads += [PlacedLoad(part, device) for device in _choose_devices(machine, part, base, free, lot)]
    return tuple(loads)


def _choose_devices(
    machine: Machine, part: NoisePart, base: tuple[str, ...], free: list[str], lot: random.Random
) -> list[str]:
    """Return the devices of a load among those that are free."""
    count = len(free) if part.count is None else part.count
    if not free or count > len(free):
        raise CaseDoesNotFit(f"no {count or 1} {device_noun(base, count or 1)} are left for {part.subject.label}")
    if part.placement == "any":
        return sorted(lot.sample(free, count), key=free.index)
    distances = {device: min(gpu_distance(machine, device, timed) for timed in base) for device in free}
    ordered = sorted(free, key=distances.__getitem__)
    near, far = ordered[:count], ordered[len(ordered) - count :]
    if sorted(map(distances.__getitem__, near)) == sorted(map(distances.__getitem__, far)):
        raise CaseDoesNotFit("near and far neighbours would be equally near")
    return near if part.placement == "near" else far


MAX_FAILURES = 2
"""What failed in this many repeats, and never worked, is not tried again."""


def is_idle(case: CharacterizeCase) -> bool:
    """Return whether a case is the baseline: nothing is done."""
    return case.base.subject.workload == IDLE and not case.noise


def place_cases(machine: Machine, options: CharacterizeOptions, repeat: int) -> tuple[PlacedCase, ...]:
    """Return all that is measured in one repeat, in the order of the file."""
    placed_cases: list[PlacedCase] = []
    for case in options.cases:
        if repeat <= case.repeats:
            with contextlib.suppress(CaseDoesNotFit):
                placed_cases += place_case(machine, options, case, repeat)
    return tuple(placed_cases)


def build_trial(options: CharacterizeOptions, where: PlacedCase) -> Trial:
    """Return the trial of one case on its devices."""
    case = where.case
    loads_per_device = max(sum(part.placement == "same" for part in other.noise) for other in options.cases)
    return Trial(
        block=f"repeat-{where.repeat}",
        roles=_build_roles(options, where),
        schedule="together" if len(where.base) > 1 else "alone",
        mode=Continuous(duration_s=case.duration_s, settle_s=case.settle_s, timeout_s=options.timeout_s),
        restarts=case.restarts,
        settings={"phase": case.name},
        on_interference=options.on_interference,
        # The same cores in every trial, with room for loads on the same device.
        placed_with=options.devices * (1 + loads_per_device),
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed + where.repeat - 1,
    )


def _build_roles(options: CharacterizeOptions, where: PlacedCase) -> tuple[Role, ...]:
    """Return the timed roles, named by their device, and the loads, named by what they are and where."""
    roles = [
        Role(name=device, subjects=(where.case.base.subject,), devices=(device,), isolation=options.isolation)
        for device in where.base
    ]
    for load in where.noise:
        name = f"{load.part.subject.label} on {load.device}"
        others = sum(role.name.startswith(name) for role in roles)
        roles.append(
            Role(
                name=f"{name} ({others + 1})" if others else name,
                subjects=(load.part.subject,),
                duty="load",
                devices=(load.device,),
                isolation=options.isolation,
                worker=sum(load.device in role.devices for role in roles),
            )
        )
    return tuple(roles)


def trial_duration_s(trial: Trial) -> float:
    """Return at most how long a trial takes, in seconds, as far as can be foreseen."""
    settle_s = trial.restarts * (trial.settle_s or 0.0)
    return trial.mode.duration_s + settle_s + max_start_up_s(trial) + TRIAL_OVERHEAD_S


def build_block(
    machine: Machine, options: CharacterizeOptions, repeat: int, records: Iterable[Record] = ()
) -> Block | None:
    """Return one repeat, its trials in random order, without what failed before; null where nothing is left."""
    cases = cases_by_trial(machine, options, repeat - 1)
    failed = failed_repeatedly((_case_key(cases[r.trial]), r) for r in records if r.trial in cases)
    placed_cases = [placed for placed in place_cases(machine, options, repeat) if _case_key(placed) not in failed]
    trials = [build_trial(options, placed) for placed in placed_cases]
    return shuffle_repeat(
        trials, repeat, options.seed, f"every case, every device in turn, {repeat} of {options.repeats}"
    )


def _case_key(where: PlacedCase) -> tuple[str, tuple[str, ...]]:
    return where.case.name, tuple(sorted(where.base))


def failed_repeatedly(tried: Iterable[tuple[KeyT, Record]]) -> set[KeyT]:
    """Return the keys whose records failed again and again and never worked."""
    statuses: dict[KeyT, list[str]] = defaultdict(list)
    for key, record in tried:
        statuses[key].append(record.status)
    return {key for key, several in statuses.items() if len(several) >= MAX_FAILURES and "ok" not in several}


def shuffle_repeat(trials: list[Trial], repeat: int, seed: int, why: str) -> Block | None:
    """Return one repeat, counted from 1, its trials in random order; null where it has none."""
    if not trials:
        return None
    random.Random(f"{seed}/{repeat}").shuffle(trials)  # noqa: S311 - an order is no secret
    return Block(name=f"repeat-{repeat}", why=why, trials=tuple(trials))


def cases_by_trial(machine: Machine, options: CharacterizeOptions, repeats: int) -> dict[str, PlacedCase]:
    """Return what each trial of the first repeats is, by its id."""
    return {
        build_trial(options, placed).id: placed
        for repeat in range(1, repeats + 1)
        for placed in place_cases(machine, options, repeat)
    }


def next_block(machine: Machine, options: CharacterizeOptions, records: Iterable[Record]) -> Block | Done:
    """Return the next repeat, or that all are measured, or that the budget leaves no room for another."""
    all_records = list(records)

    def remaining_s(_: Block, done: int) -> float:
        left = range(done + 1, options.repeats + 1)
        trials = [build_trial(options, placed) for n in left for placed in place_cases(machine, options, n)]
        return sum(map(trial_duration_s, trials))

    return next_repeat(
        all_records,
        options.repeats,
        options.budget_s,
        build=lambda repeat: build_block(machine, options, repeat, all_records),
        trial_s=trial_duration_s,
        remaining_s=remaining_s,
        none_left="no case is left that may work" if all_records else "no case fits these devices",
    )


def next_repeat(
    records: Sequence[Record],
    repeats: int,
    budget_s: float | None,
    *,
    build: Callable[[int], Block | None],
    trial_s: Callable[[Trial], float],
    remaining_s: Callable[[Block, int], float],
    none_left: str,
) -> Block | Done:
    """Return the next repeat, or that all are measured, or that the budget leaves no room for another.

    ``build`` returns a repeat by its number from 1, null where nothing is left (``none_left`` says why). ``trial_s`` is
    at most how long a trial takes, ``remaining_s`` how long this and all later repeats take, after so many.
    """
    done = len({record.block for record in records})
    if done >= repeats:
        return Done(why=f"all {repeats} repeats are measured")
    block = build(done + 1)
    if block is None:
        return Done(why=none_left)
    left_s = remaining_s(block, done)
    if budget_s is not None:
        rest_s = budget_s - spent_trials_s(records)
        if done and longest_block_s(records) > rest_s:
            return Done(why=f"{done} of {repeats} repeats fill the budget of {budget_s:g} s")
        left_s = min(left_s, max(rest_s, sum(map(trial_s, block.trials))))
    return block.model_copy(update={"left_s": left_s})
