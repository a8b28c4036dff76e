"""How steady a host is that a plain loop waits for, and whether holding it to some cores makes it steadier."""

from __future__ import annotations

import gc
import os
import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.experiments.energy.config import EnergyConfig
    from assay.workloads.generation.eager import EagerLoop

ROUNDS, EACH_S = 3, 5.0
"""So often each way, and so long at a time, in turns."""
SPINS, SPIN_S = 15, 0.02
WAYS = ("free", "one core", "two cores", "main alone", "no gc")
"""Every thread on all cores, on one, on two; the main thread on a core of its own; without the garbage collector."""


def host(config: EnergyConfig) -> dict[str, Any]:
    """Return how far a bare loop of Python comes on each core, and how long steps of decoding take, in ms, each way."""
    results: dict[str, Any] = {"cores": {str(core): _spins(core) for core in sorted(os.sched_getaffinity(0))}}
    loop = _loop(config)
    loop.decode()
    for number in range(ROUNDS):
        for method in WAYS:
            with _held(method, number):
                results.setdefault(method, []).extend(_steps_ms(loop))
    return results


def _loop(config: EnergyConfig) -> EagerLoop:
    import torch

    from assay.workloads.generation.eager import EagerLoop
    from assay.workloads.generation.loading import load_model
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.prompts import PromptBatch, PromptBatches

    scenario, backend = config.scenario, config.backend
    here = load_model(Generation(model=backend.model, torch_dtype=backend.torch_dtype, device_ids="[0]"), "cuda:0", 0)
    ids = torch.randint(0, here.vocabulary, (1, scenario.input_tokens[0]), device=here.device)
    batches = PromptBatches([PromptBatch(ids, torch.ones_like(ids), ids.numel())])
    return EagerLoop(here, batches, scenario.output_tokens[0], {})


def _steps_ms(loop: EagerLoop) -> list[float]:
    until, steps = time.perf_counter() + EACH_S, list[float]()
    while time.perf_counter() < until:
        steps += [us / 1e3 for us in cast("list[float]", loop.decode()["gap_us"])]
    return steps


def _spins(core: int) -> list[int]:
    """Return how often a core goes through a loop of Python in a while, several times."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    counts = []
    for _ in range(SPINS):
        until, count = time.perf_counter() + SPIN_S, 0
        while time.perf_counter() < until:
            for _ in range(200):
                pass
            count += 1
        counts.append(count)
    os.sched_setaffinity(0, before)
    return counts


@contextmanager
def _held(method: str, number: int) -> Iterator[None]:
    """Hold the threads of this process to some cores, or keep the garbage collector away, for a while."""
    every = sorted(os.sched_getaffinity(0))
    threads = [int(path.name) for path in Path("/proc/self/task").iterdir()]
    cores = {"one core": {every[4 + number]}, "two cores": set(every[8:10])}.get(method, set(every))
    for thread in threads:
        os.sched_setaffinity(thread, cores)
    if method == "main alone":
        os.sched_setaffinity(0, {every[11]})
    if method == "no gc":
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
        for thread in threads:
            os.sched_setaffinity(thread, every)


def host_table(results: dict[str, Any]) -> str:
    """Return the table, and a line about the cores."""
    lines = ["| how it is held | steps | a step, ms | 5 % to 95 % of steps, ms |", "|---|---|---|---|"]
    for method in WAYS:
        low, high = np.percentile(results[method], (5, 95))
        lines.append(
            f"| {method} | {len(results[method])} | {statistics.mean(results[method]):.1f} | {low:.1f}–{high:.1f} |"
        )
    spins = [statistics.median(counts) for counts in results["cores"].values()]
    times = f"{max(spins) / min(spins):.1f} times"
    text = f"Of {len(spins)} cores the fastest ran a bare loop of Python {times} as fast as the slowest."
    return "\n".join(lines) + f"\n\n{text}"
