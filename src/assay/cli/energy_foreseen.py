"""``assay energy run --dry-run``: what would be measured, and whether the model fits, which a fresh process tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from assay.experiments.energy.options import EnergyOptions
    from assay.machine.model import Machine

GIB = 2**30


def shown(options: EnergyOptions, machine: Machine, *, as_json: bool) -> int:
    """Show it; return 3 where it cannot be loaded here or every cell is left out, and 2 where it makes no sense."""
    from assay.cli import dry_run
    from assay.experiments.energy import EXPERIMENT

    fit = foreseen(options, machine)
    missing = left_out(options, fit)
    extra: dict[str, JsonValue] = {"foreseen": fit or None, "left_out": dict.fromkeys(missing.cells, missing.why)}
    dry_run.show(EXPERIMENT, options, machine, as_json=as_json, beside=extra)
    if not as_json:
        for line in (*in_words(fit), *missing.in_words()):
            click.echo(line)
    return int(fit.get("exit_code", 0)) or (MachineCannot.exit_code if missing.everything else 0)


@dataclass(frozen=True)
class LeftOut:
    """Cells that this machine cannot measure, and why; ``everything``: no others are asked for."""

    cells: tuple[str, ...] = ()
    why: str = ""
    everything: bool = False

    def in_words(self) -> list[str]:
        """Return it for people, in lines."""
        return [f"Left out: {cell}: {self.why}." for cell in self.cells]


def left_out(options: EnergyOptions, told: Mapping[str, Any]) -> LeftOut:
    """Return the cells of graphs where a graph cannot be: on a CPU, or with parts of the model in several places."""
    from assay.experiments.energy.phases import cells_of

    cells = cells_of(options.config)
    graphs = tuple(cell.name for cell in cells if cell.mode == "graphs")
    if not options.on_gpu:
        why = "CUDA graphs need a GPU"
    elif options.ranks > 1 or len(told.get("weights_bytes") or ()) > 1:
        why = "a CUDA graph is of one GPU, and the model would lie on more than that"
    else:
        return LeftOut()
    return LeftOut(graphs, why, len(graphs) == len(cells)) if graphs else LeftOut()


def foreseen(options: EnergyOptions, machine: Machine) -> dict[str, Any]:
    """Return what is foreseen of the largest cell; nothing of a server, whose memory is its own affair."""
    from assay.experiments.energy.phases import cells_of, generation
    from assay.worker.foresee import ask

    if options.is_server:
        return {}
    largest = max(cells_of(options.config), key=lambda cell: cell.batch * (cell.input_tokens + cell.output_tokens))
    uuids = {f"cuda:{gpu.index}": gpu.uuid for gpu in machine.gpus}
    gpus = [uuids[device] for device in options.gpus if device in uuids] if options.on_gpu else []
    fit = ask(generation(options, largest, "whole").as_params(), options.devices[0], gpus)
    return {**fit, "cell": largest.name}


def in_words(told: Mapping[str, Any]) -> list[str]:
    """Return it for people, in lines."""
    if not told:
        return []
    if "refused" in told:
        return [f"It would not be loaded: {told['refused']}"]
    if "sizes" not in told:
        return [f"Whether it fits is not known: {told.get('error', 'nothing was answered')}."]
    sizes = told["sizes"]
    what = f"{_many(sizes['parameters'])} parameters in {sizes['dtype']}"
    takes = f"{_gib(sizes['weights_bytes'])} of weights, about {_gib(told['needs_bytes'])} for {told['cell']}"
    lines = [f"{sizes['model']}: {what}, {takes}"]
    lines += [f"  {device}: {_gib(size)} of weights" for device, size in (told["weights_bytes"] or {}).items()]
    return [*lines, *(f"  note: {note}" for note in told["notes"])]


def _many(count: float) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:g}"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"
