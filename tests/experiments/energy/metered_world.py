"""Runs of ``assay energy run`` that were never measured: what every token takes and costs is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.results import (
    NOT_REACHED,
    Estimate,
    Evidence,
    GpuWindowStats,
    Missing,
    Note,
    Record,
    Series,
    Stage,
    SubjectFacts,
    Window,
    WindowStats,
)
from assay.core.values import Block, Staged
from assay.experiments.energy.config import EnergyConfig
from assay.experiments.energy.options import EnergyOptions, build_energy_options
from assay.experiments.energy.plan import replay_run
from assay.launch.monitoring import NOT_METERED, NOT_WATCHED
from assay.workloads.generation.params import Generation
from assay.workloads.generation.roofline import PROFILED_STEPS
from tests.experiments.remembered import Remembered
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import Origin
    from assay.core.values import Trial
    from assay.machine.model import Machine
    from assay.stats.intervals import Samples

S = 10**9
STEP_S = {"eager": 0.02, "graphs": 0.004}
"""A step of decoding takes so long, whatever the batch."""
PREFILL_TOKEN_S = 2e-5
DECODE_W, PREFILL_W, IDLE_W = 200.0, 600.0, 80.0
"""Of all GPUs together."""
TOO_SHORT = Missing(code="too_wide", detail="a window of 0.5 s is too short: the sensor ticks every 100 ms")
NO_SENSOR = Missing(code="no_sensor", detail="this device shows neither its energy nor its power")
NO_COUNTERS = Missing(code="no_sensor", detail="the processor's energy counters are not there")


def gpus(count: int, **changes: Any) -> Machine:
    there = machine(cores=(8,), gpus=[0] * count, driver="580.1", **changes)
    sized = [gpu.model_copy(update={"memory_mib": 80_000.0, "name": "NVIDIA Example"}) for gpu in there.gpus]
    return there.model_copy(update={"gpus": tuple(sized)})


def config(
    *, backend: dict[str, Any] | None = None, metrics: dict[str, Any] | None = None, **scenario: Any
) -> EnergyConfig:
    told = {"input_tokens": 100, "output_tokens": 51, **scenario}
    kind = {"type": "pytorch", "model": "random:llama-8b", **(backend or {})}
    return EnergyConfig.model_validate({"backend": kind, "scenario": told, "metrics": metrics or {}})


def options(there: Machine, wanted: EnergyConfig, **changes: Any) -> EnergyOptions:
    return build_energy_options(wanted, there, environment={}, **changes)


@dataclass
class World:
    """A machine on which the truth is known.

    Attributes:
        between: The spread of every power from process to process, on logarithms.
        sensor: Half of the sensor's interval of a window, as a share; by the window's length.
        fails: Why a subject is left out, by what it was told; null: it works.
        lost: So many stages of the second process are measured, then the GPU is gone; null: it stays.
        refused: Whether the sensor refuses a window as too short, by its length in s.
        silent: GPUs that do not say their power.
        busy: The share of a decoding call in which kernels run.
        after: A call takes so many times as long after the profiler has looked at one.
        sway: A share: calls are by turns so much shorter and longer than they are on average.
        answers: Of a server: what a call says of them, beside or instead of what it says else.
        uncounted: Whether nobody counts the tokens of prompts.
        host_w: Of the processors; null: they have no counters.
    """

    there: Machine
    between: float = 0.002
    sensor: Callable[[float], float] = lambda window_s: 0.005
    fails: Callable[[Generation], str | None] = lambda told: None
    lost: int | None = None
    refused: Callable[[float], bool] = lambda window_s: False
    silent: frozenset[int] = frozenset()
    busy: float = 0.9
    after: float = 1.0
    sway: float = 0.0
    host_w: float | None = None
    watched: bool = True
    origin: Origin = "real"
    notes: tuple[Note, ...] = ()
    errors: float = 0.0
    answers: dict[str, float] = field(default_factory=dict)
    uncounted: bool = False
    takes_s: float = 60.0
    seed: int = 0
    kept: dict[str, Samples] = field(default_factory=dict)

    def measured(self, wanted: EnergyOptions, *, at_most: int = 15) -> Remembered:
        """Walk the loop to its end, as the runner does."""
        chance, records = np.random.default_rng(self.seed), list[Record]()
        while isinstance(step := replay_run(wanted, Remembered(records, self.kept)).next_step, Block):
            assert len(records) < at_most, "it goes on and on"
            assert len(step.trials) == 1
            records.append(self._record(step.trials[0], chance, len(records)))
        return Remembered(records, self.kept)

    def _record(self, trial: Trial, chance: np.random.Generator, before: int) -> Record:
        stages: list[Stage] = []
        series: list[Series] = []
        evidence: list[Evidence] = []
        now_ns = before * 10_000 * S
        start_ns, reason = now_ns, None
        for restart in range(trial.restarts):
            level = float(np.exp(chance.normal(0, self.between)))
            facts = []
            for number, subject in enumerate(trial.roles[0].subjects):
                told = Generation.model_validate(subject.params)
                if self.lost is not None and before == 1 and number >= self.lost:
                    reason = "GPU 0 cannot be reached: it fell off the bus"
                if reason is not None:
                    facts.append(SubjectFacts(subject=number, skipped=Missing(code=NOT_REACHED, detail="not reached")))
                    continue
                why = self.fails(told)
                facts.append(self._facts(number, told, why))
                if why is None:
                    stage, own = self._stage(trial, told, (number, restart), now_ns, level)
                    stages.append(stage)
                    series += own
                    now_ns = stage.end_ns + S
            evidence.append(_evidence(trial, restart, tuple(facts)))
            if reason is not None:
                break
        return Record(
            trial=trial.id, block=trial.block, attempt=1, series=tuple(series), stages=tuple(stages),
            window=Window(
                host="h", boot_id="b", start_ns=start_ns, end_ns=start_ns + round(self.takes_s * S),
                started_at="2026-01-01T00:00:00+00:00",
            ),
            evidence=tuple(evidence), status="ok" if reason is None else "failed", reason=reason, origin=self.origin,
        )  # fmt: skip

    def _facts(self, number: int, told: Generation, why: str | None) -> SubjectFacts:
        step_s = STEP_S[told.mode]
        reads, steps = told.phase == "prefill", min(PROFILED_STEPS, told.output_tokens - 1)
        looked_s = told.batch * told.input_tokens * PREFILL_TOKEN_S if reads else steps * step_s
        return SubjectFacts(
            subject=number, skipped=None if why is None else Missing(code="out_of_memory", detail=why),
            placement={"model.layers.0": "cuda:0"}, notes=self.notes,
            measured={
                "busy_us": self.busy * looked_s * 1e6, "untraced_us": 1e6, "untraced_after_us": self.after * 1e6,
                "step_read_bytes": 0.25 * step_s * 4e12, "memory_bytes_per_s": 4e12,
                "call_flop": 0.5 * told.batch * told.input_tokens * PREFILL_TOKEN_S * 1e15, "compute_flop_per_s": 1e15,
            },
        )  # fmt: skip

    def _stage(
        self, trial: Trial, told: Generation, place: tuple[int, int], start_ns: int, level: float
    ) -> tuple[Stage, list[Series]]:
        """Return one window: as many calls as fill it, each of the same length."""
        call_s, power_w, extras = truth(told, self.errors, self.answers)
        extras = {name: values for name, values in extras.items() if not (self.uncounted and name == "input_tokens")}
        assert isinstance(trial.mode, Staged)
        calls = max(1, int(np.ceil(trial.mode.stage_s / call_s)))
        window_s = calls * call_s
        end_ns = start_ns + round(window_s * S)
        sways = [1e6 * call_s * (1 + self.sway * (-1) ** number) for number in range(calls)]
        found = {"call_us": sways, **{name: values * calls for name, values in extras.items()}}
        series = [self._series(trial, place, name, values, (start_ns, end_ns)) for name, values in found.items()]
        return self._metered(trial, place, (start_ns, end_ns), calls, power_w * level), series

    def _series(
        self, trial: Trial, place: tuple[int, int], name: str, values: list[float], window: tuple[int, int]
    ) -> Series:
        file = f"{trial.id} {place} {name}"
        self.kept[file] = np.asarray(values, dtype=np.float64)
        return Series(
            role="model", rank=0, subject=place[0], restart=place[1], quantity=name, unit="", file=file,
            n=len(values), start_ns=window[0], end_ns=window[1],
        )  # fmt: skip

    def _metered(
        self, trial: Trial, place: tuple[int, int], window: tuple[int, int], calls: int, power_w: float
    ) -> Stage:
        window_s = (window[1] - window[0]) / S
        numbers = [int(name.removeprefix("cuda:")) for name in trial.watched if name.startswith("cuda")]
        seen = [self._gpu(number, power_w / len(numbers), window_s) for number in numbers]
        whole = bool(numbers) and self.watched and all(gpu.energy is not None for gpu in seen)
        missing = next((gpu.energy_missing for gpu in seen if gpu.energy_missing), NOT_METERED)
        return Stage(
            role="model", subject=place[0], restart=place[1], start_ns=window[0], end_ns=window[1], calls=calls,
            during=WindowStats(observed_s=window_s, samples=9, gpus=tuple(seen), power_sum_max_w=1.2 * power_w)
            if self.watched
            else None,
            energy=joules(power_w * window_s, self.sensor(window_s)) if whole else None,
            energy_missing=(None if whole else missing) if self.watched else NOT_WATCHED,
            host_energy={
                name: joules(share * self.host_w * window_s, 0.1)
                for name, share in (("package-0", 0.75), ("package-0/dram", 0.25), ("psys", 2.0))
            }
            if self.host_w is not None
            else {},
            host_missing=None if self.host_w is not None else NO_COUNTERS,
        )  # fmt: skip

    def _gpu(self, number: int, power_w: float, window_s: float) -> GpuWindowStats:
        if number in self.silent:
            return GpuWindowStats(
                gpu=number, uuid=f"GPU-{number}", utilisation_percent=50.0, memory_used_mib=4000.0,
                energy_missing=NO_SENSOR,
            )  # fmt: skip
        refused = self.refused(window_s)
        return GpuWindowStats(
            gpu=number, uuid=f"GPU-{number}", power_w=power_w, power_max_w=1.1 * power_w,
            utilisation_percent=50.0, utilisation_max_percent=60.0 + number, memory_used_mib=4000.0 + number,
            temperature_c=70.0, temperature_mean_c=60.0,
            energy=None if refused else joules(power_w * window_s, self.sensor(window_s)),
            energy_missing=TOO_SHORT if refused else None,
        )  # fmt: skip


def truth(
    told: Generation, errors: float = 0.0, answers: dict[str, float] | None = None
) -> tuple[float, float, dict[str, list[float]]]:
    """Return how long a call takes in s, the power meanwhile in W, and what it reports."""
    step_s, steps = STEP_S[told.mode], told.output_tokens - 1
    read_s = told.batch * told.input_tokens * PREFILL_TOKEN_S
    gaps = [1e6 * step_s] * steps
    read = {"first_token_us": [1e6 * read_s], "input_tokens": [float(told.batch * told.input_tokens)]}
    whole_s = read_s + steps * step_s
    mixed_w = (PREFILL_W * read_s + DECODE_W * steps * step_s) / whole_s
    counts = {"output_tokens": [float(told.batch * told.output_tokens)], "requests": [float(told.batch)]}
    if told.phase == "idle":
        return 0.1, IDLE_W, {}
    if told.phase == "prefill":
        return read_s, PREFILL_W, read
    if told.phase == "decode":
        return steps * step_s, DECODE_W, {"gap_us": gaps, "output_tokens": [float(told.batch * steps)]}
    if told.phase == "served":
        many = {name: [told.concurrency * value for value in values] for name, values in {**read, **counts}.items()}
        client = {"tpot_us": [gaps[0] / 2], "client_cpu_s": [0.9 * whole_s]}
        many |= {"first_token_us": read["first_token_us"], "gap_us": gaps, "errors": [errors], **client}
        many |= {name: [value] for name, value in (answers or {}).items()}
        return whole_s, mixed_w, many
    return whole_s, mixed_w, {**read, **counts, "gap_us": gaps}


def joules(value: float, share: float) -> Estimate:
    return Estimate(
        value=value, low=value * (1 - share), high=value * (1 + share), unit="J", scope="process", method="counter", n=9
    )


def _evidence(trial: Trial, restart: int, facts: tuple[SubjectFacts, ...]) -> Evidence:
    return Evidence(
        role="model", rank=0, restart=restart, pid=1, device=trial.roles[0].devices[0], isolation_asked="gpu",
        isolation_held="gpu", allowed_cores=(0,), thread_limit=1, memory_nodes=None, setup_s=5.0, subjects=facts,
    )  # fmt: skip
