"""What is measured for a prediction: the whole on one device, and on the same device one rank's share of each ring.

    block tokens-65536     ring 1    the whole sequence, its result checked: T1
                           ring 8    what the last rank of 8 computes, nothing sent
                           ring 64   what the last rank of 64 computes, nothing sent

A count whose ring breaks a rule of the attention is left out, with the rule's own sentence. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.core.plan import Block, Done, Method, Role, Trial
from assay.workloads.dilated_attention.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.plan import Subject
    from assay.core.results import Record
    from assay.experiments.scaling_prediction.options import PredictionOptions

ROLE = "alone"
TRIAL_S = 30.0
"""What one trial takes at most as a rule: starting PyTorch, checking the result, a few calls."""


@dataclass(frozen=True, order=True)
class Cell:
    """One question: a sequence length as it was asked for, over so many GPUs in one ring."""

    tokens: int
    gpus: int


@dataclass(frozen=True)
class LeftOut:
    """A cell that cannot be, and which rule says so."""

    cell: Cell
    reason: str


def cells(options: PredictionOptions) -> tuple[Cell, ...]:
    """Return the cells that can be predicted."""
    return tuple(cell for cell in _asked(options) if refusal(options, cell) is None)


def left_out(options: PredictionOptions) -> tuple[LeftOut, ...]:
    """Return the cells that cannot be."""
    refusals = ((cell, refusal(options, cell)) for cell in _asked(options))
    return tuple(LeftOut(cell, reason) for cell, reason in refusals if reason is not None)


def refusal(options: PredictionOptions, cell: Cell) -> str | None:
    """Return why a cell cannot be; null where it can."""
    try:
        problem_of(options, cell)
    except BadInput as error:
        return str(error)
    return None


def problem_of(options: PredictionOptions, cell: Cell) -> Problem:
    """Return the problem of a cell, or say which rule it breaks."""
    return Problem.of(subject_of(options, cell).params)


def subject_of(options: PredictionOptions, cell: Cell) -> Subject:
    """Return what is measured for a cell: the whole for one GPU, otherwise what the last rank computes."""
    grown = cell.gpus if options.mode == "weak" else 1
    changed = {
        "sequence": cell.tokens * grown,
        "ring": cell.gpus,
        "passes": options.passes,
        "only": "all" if cell.gpus == 1 else "compute",
    }
    return options.subject.model_copy(update={"params": {**options.subject.params, **changed}})


def baseline_of(cell: Cell) -> Cell:
    """Return the cell that a cell's speedup is held against: one GPU."""
    return Cell(cell.tokens, 1)


def phase_of(cell: Cell) -> str:
    """Say what is measured for a cell."""
    what = "the whole" if cell.gpus == 1 else f"one share of a ring of {cell.gpus}"
    return f"{cell.tokens} tokens, {what}"


def trial_of(options: PredictionOptions, cell: Cell) -> Trial:
    """Return the trial in which a cell's computation is measured."""
    subject, device = subject_of(options, cell), options.device
    return Trial(
        block=f"tokens-{cell.tokens}",
        roles=(Role(name=ROLE, subjects=(subject,), devices=(device,), isolation=options.isolation),),
        method=Method(
            duration_s=TRIAL_S,
            warmup_runs=options.warmup_runs,
            benchmark_runs=options.benchmark_runs,
            timeout_s=options.timeout_s,
        ),
        settings={"phase": phase_of(cell)},
        strangers=options.strangers,
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed,
    )


def blocks_of(options: PredictionOptions) -> tuple[Block, ...]:
    """Return one block to a sequence length of which some count can be predicted."""
    lengths = dict.fromkeys(cell.tokens for cell in cells(options))
    return tuple(
        Block(
            name=f"tokens-{tokens}",
            why=f"one GPU's share of every ring at {tokens} tokens",
            trials=tuple(trial_of(options, cell) for cell in dict.fromkeys([Cell(tokens, 1), *_at(options, tokens)])),
        )
        for tokens in lengths
    )


def next_step(options: PredictionOptions, records: Iterable[Record]) -> Block | Done:
    """Return the next block that has not been measured."""
    measured = {record.block for record in records}
    left = [block for block in blocks_of(options) if block.name not in measured]
    if not left:
        return Done(why="every share is measured")
    return left[0].model_copy(update={"left_s": TRIAL_S * sum(len(block.trials) for block in left)})


def _at(options: PredictionOptions, tokens: int) -> tuple[Cell, ...]:
    return tuple(cell for cell in cells(options) if cell.tokens == tokens)


def _asked(options: PredictionOptions) -> tuple[Cell, ...]:
    return tuple(Cell(tokens, gpus) for tokens in options.sequences for gpus in options.counts)
