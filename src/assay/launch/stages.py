"""Energy of each stage of a trial, from its own window of the recording, and token costs over all processes.

Token costs are quantities like any other, for comparisons and the history.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from assay.core.results import Missing, Stage, Summary
from assay.core.values import Staged
from assay.joules.trial_energy import TrialEnergy, estimate_gpu_windows, estimate_host_domains, sum_gpu_energy
from assay.monitor.samples import RecordingHeader
from assay.monitor.statistics import summarise_windows
from assay.stats.sensor_intervals import ProcessReading, estimate_joules, rate_spread
from assay.timing.continuous import START_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from assay.core.results import WindowStats
    from assay.core.values import Trial
    from assay.joules.trial_energy import GpuWindowEnergies
    from assay.launch.workers import RawSeries
    from assay.monitor.samples import RecordingLine


MARGIN_NS = 1_300_000_000
"""Readings this far around a stage help to interpolate the edges of its energy."""
NOT_WATCHED = Missing(code="not_watched", detail="no monitor watched")
NOT_METERED = Missing(code="not_metered", detail="no GPU is metered")


def stages_without_energy(
    trial: Trial, series: Iterable[RawSeries], missing: Missing = NOT_WATCHED
) -> tuple[Stage, ...]:
    """Return the stages of a trial with their windows alone; of several ranks, those of the first."""
    if not isinstance(trial.mode, Staged):
        return ()
    names = {role.name for role in trial.roles if role.duty == "timed"}
    return tuple(
        Stage(
            role=entry.role,
            subject=entry.subject,
            restart=entry.restart,
            start_ns=entry.start_ns,
            end_ns=entry.end_ns,
            calls=len(entry.data) // 8,
            energy_missing=missing,
            host_missing=missing,
        )
        for entry in series
        if entry.role in names and entry.rank == 0 and entry.quantity == START_US
    )


def stages_with_energy(
    trial: Trial, series: Iterable[RawSeries], lines: Sequence[RecordingLine], gpus: dict[int, str], driver: str
) -> tuple[Stage, ...]:
    """Return the stages of a trial, each with its observations from the monitor's lines."""
    if not isinstance(trial.mode, Staged):
        return ()
    header = [line for line in lines if isinstance(line, RecordingHeader)][:1]
    samples = [line for line in lines if not isinstance(line, RecordingHeader)]
    moments = [line.t_ns for line in samples]
    stages = []
    for stage in stages_without_energy(trial, series):
        first = bisect_left(moments, stage.start_ns - MARGIN_NS)
        last = bisect_left(moments, stage.end_ns + MARGIN_NS)
        stages.append(_with_energy(stage, [*header, *samples[first:last]], gpus, driver))
    return tuple(stages)


def _with_energy(stage: Stage, lines: Sequence[RecordingLine], gpus: dict[int, str], driver: str) -> Stage:
    window = [(stage.start_ns, stage.end_ns)]
    gpu_energies = estimate_gpu_windows(lines, gpus, window, driver)
    result = sum_gpu_energy(gpu_energies.values()) if gpus else TrialEnergy(None, missing=NOT_METERED)
    host = estimate_host_domains(lines, window)
    return stage.model_copy(
        update={
            "during": add_gpu_energies(summarise_windows(lines, window, None, gpus), gpu_energies),
            "energy": result.energy,
            "energy_note": result.note,
            "energy_missing": result.missing,
            "host_energy": {} if isinstance(host, Missing) else host,
            "host_missing": host if isinstance(host, Missing) else None,
        }
    )


def add_gpu_energies(window_stats: WindowStats, energies_by_index: Mapping[int, GpuWindowEnergies]) -> WindowStats:
    """Return the window statistics with the energy of each GPU, or why there is none."""
    totals = [(gpu, sum_gpu_energy([energies_by_index[gpu.gpu]])) for gpu in window_stats.gpus]
    gpus = [
        gpu.model_copy(update={"energy": total.energy, "energy_note": total.note, "energy_missing": total.missing})
        for gpu, total in totals
    ]
    return window_stats.model_copy(update={"gpus": tuple(gpus)})


TOKEN_QUANTITIES = {"output_tokens": "output_token_j", "input_tokens": "input_token_j"}
"""The counted quantity and its cost: output tokens where there are any, otherwise input tokens."""
CALL_US = "call_us"
NO_VALUES = np.empty(0)

SubjectKey = tuple[str, int]


def token_costs(stages: Iterable[Stage], series: Iterable[RawSeries]) -> tuple[Summary, ...]:
    """Return the energy per token in J of each role and subject whose stages have an energy, with an interval."""
    samples = {
        (entry.role, entry.subject, entry.restart, entry.quantity): np.frombuffer(entry.data)
        for entry in series
        if entry.rank == 0 and entry.quantity in {*TOKEN_QUANTITIES, CALL_US} and entry.data
    }
    draws: dict[tuple[SubjectKey, str], list[ProcessReading]] = {}
    for stage in stages:
        stage_key = stage.role, stage.subject, stage.restart
        name = next(
            (
                name
                for name in TOKEN_QUANTITIES
                if (*stage_key, name) in samples and samples[*stage_key, name].sum() > 0
            ),
            None,
        )
        if name is not None and stage.energy is not None:
            counts = samples[*stage_key, name]
            spread = rate_spread(counts, samples.get((*stage_key, CALL_US), NO_VALUES))
            draw = ProcessReading(
                stage.energy.value / float(counts.sum()), stage.energy.relative_half_width, stage.calls, spread
            )
            draws.setdefault((stage_key[:2], TOKEN_QUANTITIES[name]), []).append(draw)
    return tuple(_summarize_costs(key, quantity, key_draws) for (key, quantity), key_draws in draws.items())


def _summarize_costs(key: SubjectKey, quantity: str, draws: list[ProcessReading]) -> Summary:
    values = np.array([draw.value for draw in draws])
    first, middle, third = np.quantile(values, [0.25, 0.5, 0.75])
    mean = float(values.mean())
    return Summary(
        role=key[0],
        subject=key[1],
        quantity=quantity,
        estimate=estimate_joules(draws),
        n=len(draws),
        mean=mean,
        quartiles=(float(first), float(middle), float(third)),
        minimum=float(values.min()),
        maximum=float(values.max()),
        cv=float(values.std(ddof=1)) / mean if len(draws) > 1 and mean else None,
        autocorrelation=None,
    )
