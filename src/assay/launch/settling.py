"""Run a trial's roles untimed until clocks and heat are steady, or the time allowed is up. Then they are timed."""

from __future__ import annotations

import select
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot
from assay.core.results import Settled
from assay.isolation.targets import targets
from assay.launch.crew import Trouble
from assay.launch.handle import Failure, gather
from assay.launch.steadiness import SHORTEST_S, Trace, drift_of
from assay.machine.glance import Glance
from assay.worker import protocol as say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.plan import Role
    from assay.core.results import GpuMoment
    from assay.launch.crew import Crew
    from assay.launch.handle import Handle
    from assay.machine.model import Machine

    Look = Callable[[], GpuMoment | None]

LOOK_EVERY_S = 0.5
WITHOUT_A_GPU_S = 1.0
OF_RANKS = "steadiness was not waited for: several ranks end their work together, and cannot be held"
NO_GPU = "no GPU: run for a moment, and nothing was looked at"


def settle(crew: Crew, roles: Sequence[Role], machine: Machine) -> None:
    """Hold roles as a load until their GPUs, and those of the trial's loads, are steady; where the trial asks for it.

    Raises:
        Trouble: A worker, a load or a GPU was lost meanwhile.
    """
    most_s = crew.trial.method.settle_s
    if most_s is None:
        return
    if any(role.ranks > 1 for role in roles):
        crew.notes.append(OF_RANKS)
        return
    handles, loads = crew.of(roles), crew.of(crew.loads)
    limit_s = crew.trial.method.timeout_s
    crew.tell(handles, say.Hold(duty=crew.trial.method.duty))
    crew.fail_on(gather(handles, say.Holding, within_s=limit_s, doing="warming up", beside=loads))
    crew.settled.append(_watched([*handles, *loads], gpus_of([*roles, *crew.loads], machine), most_s))
    crew.tell(handles, say.Release())
    crew.fail_on(gather(handles, say.Released, within_s=limit_s, doing="warming up", beside=loads))


def gpus_of(roles: Sequence[Role], machine: Machine) -> dict[str, str]:
    """Return the devices of whole GPUs whose watts count, by UUID; heat and clocks belong to whole GPUs."""
    used = {device.partition("/")[0] for role in roles for device in role.watched if device in targets(machine)}
    return {gpu.uuid: f"cuda:{gpu.index}" for gpu in machine.gpus if f"cuda:{gpu.index}" in used}


def _watched(handles: list[Handle], gpus: dict[str, str], most_s: float) -> Settled:
    if not gpus:
        wait_s = min(most_s, WITHOUT_A_GPU_S)
        _trouble_within(handles, wait_s)
        return Settled(waited_s=wait_s, steady=False, note=NO_GPU)
    with ExitStack() as glances:
        readers = {uuid: glances.enter_context(closing(_glance(uuid, device))) for uuid, device in gpus.items()}
        return watched(readers, gpus, most_s, pause=lambda wait_s: _trouble_within(handles, wait_s))


def _glance(uuid: str, device: str) -> Glance:
    try:
        return Glance(uuid)
    except MachineCannot as error:
        raise Trouble((Failure(device, str(error).rstrip(".")),), None) from None


def watched(
    looks: Mapping[str, Look],
    gpus: Mapping[str, str],
    most_s: float,
    *,
    pause: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
) -> Settled:
    """Look at GPUs until all are steady or the time allowed is up.

    Args:
        looks: What looks at each, by UUID; null: it is lost.
        gpus: The device that each is, by UUID.
        most_s: The time allowed.
        pause: Waits so long; whether there is trouble, for which nothing more is waited.
        clock: In seconds.

    Raises:
        Trouble: A GPU was lost.
    """
    begin_s = clock()
    traces = {uuid: Trace() for uuid in looks}
    while True:
        waited_s = clock() - begin_s
        for uuid, read in looks.items():
            snapshot = read()
            if snapshot is None:
                reason = f"the GPU does not answer any more: it was lost while it was warmed up (GPU {uuid})"
                raise Trouble((Failure(gpus[uuid], reason),), None)
            traces[uuid].add(waited_s, snapshot)
        problems = {uuid: trace.unsteady() for uuid, trace in traces.items()}
        steady = waited_s >= min(SHORTEST_S, most_s) and not any(problems.values())
        if steady or waited_s >= most_s or pause(min(LOOK_EVERY_S, max(0.0, most_s - waited_s))):
            break
    drifts = {uuid: drift_of(trace.temperature) for uuid, trace in traces.items()}
    return Settled(
        waited_s=waited_s,
        steady=steady,
        temperature_c={uuid: trace.temperature[-1][1] for uuid, trace in traces.items() if trace.temperature},
        drift_c={uuid: drift.slope_c for uuid, drift in drifts.items() if drift is not None},
        note=None
        if steady
        else "; ".join(f"{gpus[uuid]}: {problem}" for uuid, problem in problems.items() if problem is not None),
    )


def _trouble_within(handles: list[Handle], wait_s: float) -> bool:
    """Wait, asleep; return whether a worker said something, which while it is held it does only in trouble."""
    return bool(select.select(handles, [], [], wait_s)[0])


def combined(settled: Sequence[Settled]) -> Settled | None:
    """Return how it was over all restarts and roles, of each GPU the last look; null where nothing was waited for."""
    if not settled:
        return None
    notes = dict.fromkeys(entry.note for entry in settled if entry.note is not None)
    return Settled(
        waited_s=sum(entry.waited_s for entry in settled),
        steady=all(entry.steady for entry in settled),
        temperature_c={uuid: value for entry in settled for uuid, value in entry.temperature_c.items()},
        drift_c={uuid: value for entry in settled for uuid, value in entry.drift_c.items()},
        note="; ".join(notes) or None,
    )
