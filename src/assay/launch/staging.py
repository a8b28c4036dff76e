"""What each stage of a trial cost: its own window of what the monitor wrote, its GPUs' joules, the processors' too."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from assay.core.results import Stage
from assay.joules.recorded import energies_of_host, energy_of_gpus, spent_by_gpu
from assay.monitor.lines import Header
from assay.monitor.meanwhile import meanwhile
from assay.timing.lanes import START_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assay.core.plan import Trial
    from assay.core.results import Meanwhile
    from assay.joules.recorded import Spent
    from assay.launch.outcome import RawSeries
    from assay.monitor.lines import Line

MARGIN_NS = 1_300_000_000
"""Readings so far around a stage help to place the edges of its energy."""
NOBODY_WATCHED = "no monitor watched"


def unwatched(trial: Trial, series: Iterable[RawSeries], why: str = NOBODY_WATCHED) -> tuple[Stage, ...]:
    """Return the stages of a trial with their windows alone; of ranks, those of the first."""
    names = {role.name for role in trial.roles if role.in_stages}
    return tuple(
        Stage(
            role=one.role,
            subject=one.subject,
            restart=one.restart,
            start_ns=one.start_ns,
            end_ns=one.end_ns,
            calls=len(one.data) // 8,
            energy_note=f"not told: {why}",
            host_note=f"not told: {why}",
        )
        for one in series
        if one.role in names and one.rank == 0 and one.quantity == START_US
    )


def watched(
    trial: Trial, series: Iterable[RawSeries], lines: Sequence[Line], gpus: dict[int, str], driver: str
) -> tuple[Stage, ...]:
    """Return the stages of a trial, each with what was seen of it in the monitor's lines."""
    header = [line for line in lines if isinstance(line, Header)][:1]
    samples = [line for line in lines if not isinstance(line, Header)]
    moments = [line.t_ns for line in samples]
    stages = []
    for stage in unwatched(trial, series):
        first = bisect_left(moments, stage.start_ns - MARGIN_NS)
        last = bisect_left(moments, stage.end_ns + MARGIN_NS)
        stages.append(_seen(stage, [*header, *samples[first:last]], gpus, driver))
    return tuple(stages)


def _seen(stage: Stage, lines: Sequence[Line], gpus: dict[int, str], driver: str) -> Stage:
    window = [(stage.start_ns, stage.end_ns)]
    spent = spent_by_gpu(lines, gpus, window, driver)
    energy, note, refusal = None, "not told: no GPU is metered", None
    if gpus:
        result = energy_of_gpus(spent.values())
        energy, note, refusal = result.energy, result.note or "not told", result.refusal
    host, host_note = energies_of_host(lines, window)
    return stage.model_copy(
        update={
            "meanwhile": with_energies(meanwhile(lines, window, None, gpus), spent),
            "energy": energy,
            "energy_note": note,
            "energy_refusal": refusal,
            "host_energy": host,
            "host_note": host_note,
        }
    )


def with_energies(seen: Meanwhile, spent: Mapping[int, Spent]) -> Meanwhile:
    """Return what was seen with the energy of each GPU meanwhile, or why it is not told."""
    gpu_energies = [(gpu, energy_of_gpus([spent[gpu.gpu]])) for gpu in seen.gpus]
    energies = [gpu.model_copy(update={"energy": one.energy, "energy_note": one.note}) for gpu, one in gpu_energies]
    return seen.model_copy(update={"gpus": tuple(energies)})
