"""A recorder beside a run: what it saw while each trial was timed, and what that cost in joules.

A recorder that cannot be started, or dies, harms no trial: its record says so, and the next trial has a new one.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from assay.core.durable import friendly_os_errors, replace_atomically
from assay.core.errors import AssayError
from assay.core.results import LostGpu
from assay.isolation.targets import targets
from assay.joules.kept import kept_model
from assay.joules.recorded import Told, energy_of_gpus, energy_of_packages, merged, spent_by_gpu
from assay.launch import staging
from assay.launch.placing import placements_of
from assay.monitor.choice import watched
from assay.monitor.lines import Ended
from assay.monitor.meanwhile import meanwhile
from assay.monitor.options import WINDOWS_ENERGY_S, RecordingOptions
from assay.monitor.reading import read_window
from assay.monitor.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from assay.core.plan import Trial
    from assay.core.results import Estimate, Meanwhile, Stage
    from assay.joules.recorded import Windows
    from assay.launch.outcome import Outcome
    from assay.machine.model import Machine
    from assay.monitor.lines import Line

INTERVAL_S = 0.05
HOST_ONLY_INTERVAL_S = 0.2
HOST_INTERVAL_S = 0.5
MARGIN_S = 1.3
"""Readings so far around a trial help to place the edges of its energy."""
SETTLED_NS = 1_200_000_000
"""So long after the end of what ran before, a GPU's utilisation has forgotten it."""
LATE_NS = 300_000_000
"""A GPU's counter shows what was spent this much later at most."""
UNTOUCHED_SHARE = 0.4
"""Of the time that a worker takes to get ready: nothing of it is on the GPU yet."""


@dataclass(frozen=True)
class Seen:
    """What the monitor adds to a record."""

    sensors: str | None = None
    meanwhile: Meanwhile | None = None
    energy: Estimate | None = None
    energy_note: str | None = None
    stages: tuple[Stage, ...] = ()
    lost_gpus: tuple[LostGpu, ...] = ()
    note: str | None = None


@dataclass
class Monitoring:
    """Starts a recorder with the first trial, and asks it about each; ``with`` ends it."""

    machine: Machine
    folder: Path
    interval_s: float | None = None
    recording: Recording | None = None
    _trouble: str | None = None
    _last_end_ns: int = 0
    _files: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.recording is not None:
            self.recording.close("the run ended")

    def begin(self, trial: Trial) -> None:
        """Make sure that a recorder is there."""
        if self.recording is not None and self.recording.trouble is None:
            return
        name = f"monitor/{secrets.token_hex(4)}.jsonl"
        spare_cpus = {cpu for placement in placements_of(self.machine, trial).values() for cpu in placement.kept_cpus}
        usual_s = INTERVAL_S if self.machine.gpus else HOST_ONLY_INTERVAL_S
        interval_s = self.interval_s or usual_s
        try:
            with friendly_os_errors(self.folder):
                (self.folder / "monitor").mkdir(exist_ok=True)
                self._keep_models()
            self.recording = Recording.start(
                RecordingOptions(
                    path=str(self.folder.absolute() / name),
                    gpus=tuple(map(watched, self.machine.gpus)),
                    gpu_note=None if self.machine.gpus else self.machine.gpu_note or "there is none",
                    interval_s=interval_s,
                    host_interval_s=max(interval_s, HOST_INTERVAL_S if self.machine.gpus else HOST_ONLY_INTERVAL_S),
                    energy_interval_s=WINDOWS_ENERGY_S,
                    processes_interval_s=None,
                    cpus=tuple(sorted(spare_cpus)) or None,
                    origin="fake" if self.machine.has_fake_driver else "real",
                )
            )
            self._files.append(name)
            self._trouble = None
        except AssayError as error:
            self.recording, self._trouble = None, f"no monitor watched: {str(error).rstrip('.')}"

    def _keep_models(self) -> None:
        """Write down how the sensors see by which joules are reckoned, so that they can be reckoned again elsewhere."""
        for gpu in self.machine.gpus:
            model = kept_model(gpu.uuid, self.machine.driver or "unknown")
            if model is not None:
                path = self.folder / "monitor" / f"sensors-gpu{gpu.index}.json"
                replace_atomically(path, model.model_dump_json(indent=2).encode())

    def end(self, trial: Trial, outcome: Outcome) -> Seen:
        """Return what was seen of a trial that has just ended."""
        last_end_ns, self._last_end_ns = self._last_end_ns, outcome.end_ns
        if self.recording is None:
            return Seen(note=self._trouble, stages=staging.unwatched(trial, outcome.series))
        timed = timed_windows(trial, outcome)
        try:
            self.recording.span(named(trial), outcome.start_ns, outcome.end_ns)
            for start_ns, end_ns in timed:
                self.recording.span(f"timed {named(trial)}", start_ns, end_ns)
            if timed and gpus_of(self.machine, trial):
                time.sleep(max(0, timed[-1][1] + LATE_NS - time.monotonic_ns()) / 1e9)
            self.recording.flush()
            ended = [line for line in self.recording.latest() if isinstance(line, Ended)]
        except AssayError as error:
            reason = f"the monitor is gone: {str(error).rstrip('.')}"
            return Seen(note=reason, stages=staging.unwatched(trial, outcome.series, reason))
        lost = lost_gpus(ended, gpus_of(self.machine, trial), outcome.start_ns, outcome.end_ns)
        return replace(self._told(trial, outcome, timed, last_end_ns), lost_gpus=lost)

    def _told(self, trial: Trial, outcome: Outcome, timed: Windows, last_end_ns: int) -> Seen:
        lines = read_window(self.folder / self._files[-1], outcome.start_ns, outcome.end_ns, margin_s=MARGIN_S)
        gpus = gpus_of(self.machine, trial)
        setup_ns = round(1e9 * min((e.setup_s for e in outcome.evidence), default=0.0) * UNTOUCHED_SHARE)
        before = max(outcome.start_ns, last_end_ns + SETTLED_NS), outcome.start_ns + setup_ns
        ours = trial.used == trial.watched  # a server was on its GPUs before, and is no stranger
        driver = self.machine.driver or "unknown"
        spent = spent_by_gpu(lines, gpus, timed, driver)
        energy = energy_of_gpus(spent.values()) if gpus else energy_of_packages(lines, timed)
        if energy.energy is None and timed:
            whole = self._whole(lines, gpus, (outcome.start_ns, outcome.end_ns))
            if whole.energy is not None:
                energy = Told(whole.energy, f"of the whole trial, start-up included ({energy.note}); {whole.note}")
        window_stats = (
            meanwhile(lines, timed, before if ours and before[1] > before[0] else None, gpus) if timed else None
        )
        return Seen(
            sensors=self._files[-1],
            meanwhile=None if window_stats is None else staging.with_energies(window_stats, spent),
            energy=energy.energy,
            energy_note=energy.note,
            stages=staging.watched(trial, outcome.series, lines, gpus, driver) if trial.in_stages else (),
        )

    def _whole(self, lines: Sequence[Line], gpus: dict[int, str], window: tuple[int, int]) -> Told:
        """Return the energy of a whole trial."""
        if not gpus:
            return energy_of_packages(lines, [window])
        return energy_of_gpus(spent_by_gpu(lines, gpus, [window], self.machine.driver or "unknown").values())


def lost_gpus(ended: Sequence[Ended], gpus: dict[int, str], start_ns: int, end_ns: int) -> tuple[LostGpu, ...]:
    """Return which of a trial's GPUs, their UUIDs by number, stopped answering before it ended."""
    return tuple(
        LostGpu(gpu=line.gpu, uuid=gpus[line.gpu], reason=line.reason, after_s=max(0.0, (line.t_ns - start_ns) / 1e9))
        for line in sorted(ended, key=lambda line: line.gpu)
        if line.gpu in gpus and line.t_ns <= end_ns
    )


def timed_windows(trial: Trial, outcome: Outcome) -> Windows:
    """Return from and until when roles were timed; what loads did before and after does not count."""
    loads = {role.name for role in trial.roles if role.duty == "load"}
    return merged([(s.start_ns, s.end_ns) for s in outcome.series if s.role not in loads])


def named(trial: Trial) -> str:
    """Return what a trial is called in a recording."""
    timed = [role for role in trial.roles if role.duty == "timed"]
    subjects = dict.fromkeys(subject.label for role in timed for subject in role.subjects)
    phase = trial.settings.get("phase")
    phase_text = f", {phase}" if isinstance(phase, str) else ""
    return f"{', '.join(subjects)} on {', '.join(trial.devices)}{phase_text} ({trial.id})"


def gpus_of(machine: Machine, trial: Trial) -> dict[int, str]:
    """Return the UUIDs of the whole GPUs whose watts count, by number; sensors belong to whole GPUs."""
    used = {device.partition("/")[0] for device in trial.watched if device in targets(machine)}
    return {gpu.index: gpu.uuid for gpu in machine.gpus if f"cuda:{gpu.index}" in used}
