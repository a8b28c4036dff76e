"""A recorder during a run: what it observed while each trial and stage was timed, the energy used, and token costs.

A recorder that cannot be started, or dies, does not fail a trial: the trial's record says so, and the next trial
gets a new one. Token costs are quantities like any other, for comparisons and the history.
"""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from assay.core.errors import AssayError
from assay.core.files import replace_atomically, translate_os_errors
from assay.core.results import LostGpu, Missing, Note, Stage, Summary
from assay.core.values import Staged
from assay.joules.sensor_model import load_sensor_model
from assay.joules.trial_energy import (
    TrialEnergy,
    estimate_gpu_windows,
    estimate_host_domains,
    estimate_package_energy,
    merge_windows,
    sum_gpu_energy,
)
from assay.launch.trial import compute_placements
from assay.machine.devices import metered_gpus
from assay.monitor.client import Recording
from assay.monitor.options import WINDOW_ENERGY_INTERVAL_S, RecordingOptions, watched_gpu
from assay.monitor.recording_file import read_window
from assay.monitor.samples import GpuLost, RecordingHeader
from assay.monitor.statistics import summarise_windows
from assay.stats.sensor_intervals import ProcessReading, estimate_joules, rate_spread
from assay.timing.continuous import START_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from assay.core.results import Estimate, WindowStats
    from assay.core.values import Trial
    from assay.joules.trial_energy import GpuWindowEnergies, TimeWindows
    from assay.launch.workers import RawSeries, TrialOutcome
    from assay.machine.model import Machine
    from assay.monitor.samples import RecordingLine

MARGIN_NS = 1_300_000_000
"""Readings this far around a stage or a trial help to interpolate the edges of its energy."""
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
        counted = {name: samples.get((*stage_key, name), NO_VALUES) for name in TOKEN_QUANTITIES}
        name = next((name for name, counts in counted.items() if counts.sum() > 0), None)
        if name is not None and stage.energy is not None:
            counts = counted[name]
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


INTERVAL_S = 0.05
HOST_ONLY_INTERVAL_S = 0.2
HOST_INTERVAL_S = 0.5
UTILIZATION_LAG_NS = 1_200_000_000
"""This long after the preceding work, a GPU's utilization no longer includes it."""
COUNTER_LAG_NS = 300_000_000
"""Maximum delay of a GPU's energy counter."""
IDLE_SETUP_SHARE = 0.4
"""Share of a worker's set-up time in which it does not use the GPU yet."""


@dataclass(frozen=True)
class TrialObservations:
    """What the monitor adds to a record."""

    sensors: str | None = None
    during: WindowStats | None = None
    energy: Estimate | None = None
    energy_note: str | None = None
    energy_missing: Missing | None = None
    energy_window: Literal["timed", "whole_trial"] = "timed"
    stages: tuple[Stage, ...] = ()
    lost_gpus: tuple[LostGpu, ...] = ()
    note: Note | None = None


@dataclass
class TrialMonitor:
    """Starts a recorder with the first trial, and queries it about each; ``with`` ends it."""

    machine: Machine
    folder: Path
    interval_s: float | None = None
    recording: Recording | None = None
    _failure: str | None = None
    _last_end_ns: int = 0
    _files: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.recording is not None:
            self.recording.close("the run ended")

    def begin(self, trial: Trial) -> None:
        """Make sure that a recorder is running."""
        if self.recording is not None and self.recording.trouble is None:
            return
        name = f"monitor/{secrets.token_hex(4)}.jsonl"
        spare_cpus = {
            cpu for placement in compute_placements(self.machine, trial).values() for cpu in placement.kept_cpus
        }
        interval_s = self.interval_s or (INTERVAL_S if self.machine.gpus else HOST_ONLY_INTERVAL_S)
        try:
            with translate_os_errors(self.folder):
                (self.folder / "monitor").mkdir(exist_ok=True)
                self._keep_models()
            self.recording = Recording.start(
                RecordingOptions(
                    path=str(self.folder.absolute() / name),
                    gpus=tuple(map(watched_gpu, self.machine.gpus)),
                    gpu_note=None if self.machine.gpus else self.machine.gpu_note or "there is none",
                    interval_s=interval_s,
                    host_interval_s=max(interval_s, HOST_INTERVAL_S if self.machine.gpus else HOST_ONLY_INTERVAL_S),
                    energy_interval_s=WINDOW_ENERGY_INTERVAL_S,
                    processes_interval_s=None,
                    cpus=tuple(sorted(spare_cpus)) or None,
                    origin="fake" if self.machine.has_fake_driver else "real",
                )
            )
            self._files.append(name)
            self._failure = None
        except AssayError as error:
            self.recording, self._failure = None, f"no monitor: {str(error).rstrip('.')}"

    def _keep_models(self) -> None:
        """Store the sensor models used to compute energy, so that it can be recomputed elsewhere."""
        for gpu in self.machine.gpus:
            model = load_sensor_model(gpu.uuid, self.machine.driver or "unknown")
            if model is not None:
                path = self.folder / "monitor" / f"sensors-gpu{gpu.index}.json"
                replace_atomically(path, model.model_dump_json(indent=2).encode())

    def end(self, trial: Trial, outcome: TrialOutcome) -> TrialObservations:
        """Return the observations of a trial that has just ended."""
        last_end_ns, self._last_end_ns = self._last_end_ns, outcome.end_ns
        if self.recording is None:
            return TrialObservations(
                note=Note.warning("not_watched", self._failure) if self._failure else None,
                stages=stages_without_energy(trial, outcome.series),
            )
        timed = timed_windows(trial, outcome)
        try:
            self.recording.span(trial_label(trial), outcome.start_ns, outcome.end_ns)
            for start_ns, end_ns in timed:
                self.recording.span(f"timed {trial_label(trial)}", start_ns, end_ns)
            if timed and metered_gpus(self.machine, trial.watched):
                time.sleep(max(0, timed[-1][1] + COUNTER_LAG_NS - time.monotonic_ns()) / 1e9)
            self.recording.flush()
            ended = [line for line in self.recording.latest() if isinstance(line, GpuLost)]
        except AssayError as error:
            reason = f"the monitor is gone: {str(error).rstrip('.')}"
            return TrialObservations(
                note=Note.warning("not_watched", reason),
                stages=stages_without_energy(trial, outcome.series, Missing(code="not_watched", detail=reason)),
            )
        lost = find_lost_gpus(ended, metered_gpus(self.machine, trial.watched), outcome.start_ns, outcome.end_ns)
        return replace(self._observe(trial, outcome, timed, last_end_ns), lost_gpus=lost)

    def _observe(self, trial: Trial, outcome: TrialOutcome, timed: TimeWindows, last_end_ns: int) -> TrialObservations:
        lines = read_window(self.folder / self._files[-1], outcome.start_ns, outcome.end_ns, margin_s=MARGIN_NS / 1e9)
        gpus = metered_gpus(self.machine, trial.watched)
        setup_ns = round(1e9 * min((e.setup_s for e in outcome.evidence), default=0.0) * IDLE_SETUP_SHARE)
        before = max(outcome.start_ns, last_end_ns + UTILIZATION_LAG_NS), outcome.start_ns + setup_ns
        exclusive = trial.used == trial.watched  # a server used its GPUs before the trial, and is not interference
        driver = self.machine.driver or "unknown"
        gpu_energies = estimate_gpu_windows(lines, gpus, timed, driver)
        energy = _total_energy(lines, gpu_energies, timed)
        is_whole = False
        if energy.energy is None and timed:
            window = [(outcome.start_ns, outcome.end_ns)]
            whole = _total_energy(lines, estimate_gpu_windows(lines, gpus, window, driver), window)
            if whole.energy is not None:
                energy, is_whole = replace(whole, missing=energy.missing), True
        window_stats = (
            summarise_windows(lines, timed, before if exclusive and before[1] > before[0] else None, gpus)
            if timed
            else None
        )
        return TrialObservations(
            sensors=self._files[-1],
            during=None if window_stats is None else add_gpu_energies(window_stats, gpu_energies),
            energy=energy.energy,
            energy_note=energy.note,
            energy_missing=energy.missing,
            energy_window="whole_trial" if is_whole else "timed",
            stages=stages_with_energy(trial, outcome.series, lines, gpus, driver),
        )


def _total_energy(
    lines: Sequence[RecordingLine], gpu_energies: Mapping[int, GpuWindowEnergies], windows: TimeWindows
) -> TrialEnergy:
    """Return the energy of all GPUs together, or of the processors where there are none."""
    return sum_gpu_energy(gpu_energies.values()) if gpu_energies else estimate_package_energy(lines, windows)


def find_lost_gpus(ended: Sequence[GpuLost], gpus: dict[int, str], start_ns: int, end_ns: int) -> tuple[LostGpu, ...]:
    """Return the GPUs of a trial, given as UUIDs by index, that stopped answering before it ended."""
    return tuple(
        LostGpu(gpu=line.gpu, uuid=gpus[line.gpu], reason=line.reason, after_s=max(0.0, (line.t_ns - start_ns) / 1e9))
        for line in sorted(ended, key=lambda line: line.gpu)
        if line.gpu in gpus and line.t_ns <= end_ns
    )


def timed_windows(trial: Trial, outcome: TrialOutcome) -> TimeWindows:
    """Return the windows in which roles were timed; the time of loads before and after does not count."""
    loads = {role.name for role in trial.roles if role.duty == "load"}
    return merge_windows([(s.start_ns, s.end_ns) for s in outcome.series if s.role not in loads])


def trial_label(trial: Trial) -> str:
    """Return the label of a trial in a recording."""
    timed = [role for role in trial.roles if role.duty == "timed"]
    subjects = dict.fromkeys(subject.label for role in timed for subject in role.subjects)
    phase = trial.settings.get("phase")
    phase_text = f", {phase}" if isinstance(phase, str) else ""
    return f"{', '.join(subjects)} on {', '.join(trial.devices)}{phase_text} ({trial.id})"
