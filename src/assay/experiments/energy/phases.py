"""Cells and their phases: what is asked of a model or a server, one after another, as subjects of one worker.

idle │ eager batch 1: prefill, decode, whole │ eager batch 8: … │ graphs batch 1: … │ graphs batch 8: …
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.plan import Subject
from assay.experiments.energy.rows import Cell
from assay.workloads.generation.params import Generation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.experiments.energy.config import EnergyConfig
    from assay.experiments.energy.options import EnergyOptions
    from assay.workloads.generation.params import Phase

WORKLOAD = "generate"
SERVER = "server"
MODES = ("eager", "graphs")
"""In the order they are measured: what needs no compiling first."""
OF_A_MODEL: tuple[Phase, ...] = ("prefill", "decode", "whole")
OF_ONE_TOKEN: tuple[Phase, ...] = ("prefill", "whole")
OF_A_SERVER: tuple[Phase, ...] = ("served",)


@dataclass(frozen=True)
class Place:
    """A phase of a cell; without a cell it is the idle one, of the whole process."""

    cell: Cell | None
    phase: Phase

    @property
    def name(self) -> str:
        """What people call it."""
        return "idle" if self.cell is None else f"{self.phase} of {self.cell.name}"


IDLE = Place(None, "idle")


def cells_of(config: EnergyConfig) -> tuple[Cell, ...]:
    """Return the cells in the order they are measured: what needs most memory comes last in each mode."""
    scenario = config.scenario
    sizes = [(i, o) for i in sorted(scenario.input_tokens) for o in sorted(scenario.output_tokens)]
    if config.backend.type == "openai":
        return tuple(
            Cell(mode=SERVER, batch=1, concurrency=many, input_tokens=i, output_tokens=o)
            for many in sorted(scenario.concurrency)
            for i, o in sizes
        )
    return tuple(
        Cell(mode=mode, batch=batch, input_tokens=i, output_tokens=o)
        for mode in MODES
        if mode in scenario.modes
        for batch in sorted(scenario.batch_sizes)
        for i, o in sizes
    )


def phases_of(cell: Cell) -> tuple[Phase, ...]:
    """Return the phases that a cell has: one output token is made when the prompt is read, and nothing is decoded."""
    if cell.mode == SERVER:
        return OF_A_SERVER
    return OF_A_MODEL if cell.output_tokens > 1 else OF_ONE_TOKEN


def places_of(config: EnergyConfig) -> tuple[Place, ...]:
    """Return everything that one process measures, in order."""
    return (IDLE, *(Place(cell, phase) for cell in cells_of(config) for phase in phases_of(cell)))


def subjects_of(options: EnergyOptions, places: Iterable[Place]) -> tuple[Subject, ...]:
    """Return places as subjects of a worker."""
    first = cells_of(options.config)[0]
    return tuple(
        Subject(
            workload=WORKLOAD,
            impl=options.config.backend.type,
            params=generation(options, cell_phase.cell or first, cell_phase.phase).as_params(),
        )
        for cell_phase in places
    )


def generation(options: EnergyOptions, cell: Cell, phase: Phase) -> Generation:
    """Return what a worker is told; lists and maps are written as JSON."""
    backend, scenario = options.config.backend, options.config.scenario
    return Generation(
        model=backend.model,
        phase=phase,
        mode="graphs" if cell.mode == "graphs" else "eager",
        compile=scenario.compile,
        batch=cell.batch,
        input_tokens=cell.input_tokens,
        output_tokens=cell.output_tokens,
        prompts=scenario.prompts,
        text_column_name=scenario.text_column_name,
        num_samples=scenario.num_samples or 0,
        truncation=scenario.truncation,
        generate_kwargs=_json(scenario.generate_kwargs),
        reasoning=_json(scenario.reasoning_settings),
        revision=backend.revision or "",
        trust_remote_code=backend.trust_remote_code,
        torch_dtype=backend.torch_dtype,
        attn_implementation=backend.attn_implementation or "",
        device_map=backend.device_map if isinstance(backend.device_map, str) else _json(backend.device_map),
        max_memory=_json({str(where): most for where, most in backend.max_memory.items()})
        if backend.max_memory
        else "",
        device_ids=_json([int(gpu.removeprefix("cuda:")) for gpu in options.gpus]) if options.on_gpu else "",
        tp_plan=backend.tp_plan or "",
        endpoint=backend.endpoint or "",
        api_key_env=backend.api_key_env or "",
        request_timeout_s=backend.request_timeout_s,
        concurrency=cell.concurrency,
        warmup=scenario.warmup,
    )


def _json(value: object, empty: str | None = None) -> str:
    if empty is not None and not value:
        return empty
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
