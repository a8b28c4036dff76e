"""The options of ``assay scaling predict``, and what is measured: the whole, and one rank's share of each ring.

    block tokens-65536     ring 1    the whole sequence, its result checked: T1
                           ring 8    what the last rank of 8 computes, nothing sent
                           ring 64   what the last rank of 64 computes, nothing sent

A count whose ring breaks a rule of the attention is skipped, with the rule's own sentence as reason. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.values import Block, Counted, Done, InterferencePolicy, Isolation, Role, Subject, Trial, Value
from assay.experiments.scaling.prediction import LinkModel
from assay.workloads.dilated_attention.problem import DilatedAttentionProblem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.core.results import Record


ROLE = "alone"
TRIAL_S = 30.0
"""What one trial takes at most as a rule: starting PyTorch, checking the result, a few calls."""


@dataclass(frozen=True, order=True)
class PredictionCell:
    """One question: a sequence length as it was asked for, over so many GPUs in one ring."""

    tokens: int
    gpus: int


@dataclass(frozen=True)
class ImpossibleCell:
    """A cell that cannot be, and which rule says so."""

    cell: PredictionCell
    reason: str


def list_cells(options: PredictionOptions) -> tuple[PredictionCell, ...]:
    """Return the cells that can be predicted."""
    return tuple(cell for cell in _requested_cells(options) if find_cell_refusal(options, cell) is None)


def list_impossible_cells(options: PredictionOptions) -> tuple[ImpossibleCell, ...]:
    """Return the cells that cannot be."""
    refusals = ((cell, find_cell_refusal(options, cell)) for cell in _requested_cells(options))
    return tuple(ImpossibleCell(cell, reason) for cell, reason in refusals if reason is not None)


def find_cell_refusal(options: PredictionOptions, cell: PredictionCell) -> str | None:
    """Return why a cell cannot be; null where it can."""
    try:
        cell_problem(options, cell)
    except BadInput as error:
        return str(error)
    return None


def cell_problem(options: PredictionOptions, cell: PredictionCell) -> DilatedAttentionProblem:
    """Return the problem of a cell, or say which rule it breaks."""
    return DilatedAttentionProblem.of(cell_subject(options, cell).params)


def cell_subject(options: PredictionOptions, cell: PredictionCell) -> Subject:
    """Return what is measured for a cell: the whole for one GPU, otherwise what the last rank computes."""
    grown = cell.gpus if options.mode == "weak" else 1
    changed = {
        "sequence": cell.tokens * grown,
        "ring": cell.gpus,
        "passes": options.passes,
        "only": "all" if cell.gpus == 1 else "compute",
    }
    return options.subject.model_copy(update={"params": {**options.subject.params, **changed}})


def baseline_cell(cell: PredictionCell) -> PredictionCell:
    """Return the cell that a cell's speedup is held against: one GPU."""
    return PredictionCell(cell.tokens, 1)


def describe_phase(cell: PredictionCell) -> str:
    """Say what is measured for a cell."""
    what = "the whole" if cell.gpus == 1 else f"one share of a ring of {cell.gpus}"
    return f"{cell.tokens} tokens, {what}"


def cell_trial(options: PredictionOptions, cell: PredictionCell) -> Trial:
    """Return the trial in which a cell's computation is measured."""
    subject, device = cell_subject(options, cell), options.device
    return Trial(
        block=f"tokens-{cell.tokens}",
        roles=(Role(name=ROLE, subjects=(subject,), devices=(device,), isolation=options.isolation),),
        mode=Counted(
            duration_s=TRIAL_S,
            warmup_runs=options.warmup_runs,
            runs=options.benchmark_runs,
            timeout_s=options.timeout_s,
        ),
        settings={"phase": describe_phase(cell)},
        on_interference=options.on_interference,
        cpu_groups=options.cpu_groups,
        retakes=options.retakes,
        seed=options.seed,
    )


def plan_blocks(options: PredictionOptions) -> tuple[Block, ...]:
    """Return one block to a sequence length of which some count can be predicted."""
    lengths = dict.fromkeys(cell.tokens for cell in list_cells(options))
    return tuple(
        Block(
            name=f"tokens-{tokens}",
            why=f"one GPU's share of every ring at {tokens} tokens",
            trials=tuple(
                cell_trial(options, cell)
                for cell in dict.fromkeys([PredictionCell(tokens, 1), *_cells_at(options, tokens)])
            ),
        )
        for tokens in lengths
    )


def next_block(options: PredictionOptions, records: Iterable[Record]) -> Block | Done:
    """Return the next block that has not been measured."""
    measured = {record.block for record in records}
    left = [block for block in plan_blocks(options) if block.name not in measured]
    if not left:
        return Done(why="every share is measured")
    return left[0].model_copy(update={"left_s": TRIAL_S * sum(len(block.trials) for block in left)})


def _cells_at(options: PredictionOptions, tokens: int) -> tuple[PredictionCell, ...]:
    return tuple(cell for cell in list_cells(options) if cell.tokens == tokens)


def _requested_cells(options: PredictionOptions) -> tuple[PredictionCell, ...]:
    return tuple(PredictionCell(tokens, gpus) for tokens in options.sequences for gpus in options.counts)


REQUIRED_EFFICIENCY = 0.7
"""The efficiency that a prediction is held against unless told: what the older tool's recipe for CI asked for."""


class PredictionOptions(Value):
    """So many GPUs over a link, of which one is here: its share of each ring is measured alone."""

    subject: Subject = Field(description="The whole attention; sequence and ring are of each shape.")
    sequences: tuple[int, ...] = Field(min_length=1)
    counts: tuple[int, ...] = Field(min_length=1, description="GPUs, each count one ring.")
    link: LinkModel
    mode: Literal["strong", "weak"] = "strong"
    passes: Literal["forward", "total"] = "total"
    device: str
    isolation: Isolation = "full"
    warmup_runs: int = Field(default=3, ge=0)
    benchmark_runs: int = Field(default=10, ge=1)
    required_efficiency: float = Field(
        default=REQUIRED_EFFICIENCY, gt=0, lt=1, description="The efficiency that is asked about."
    )
    on_interference: InterferencePolicy = "warn"
    retakes: int = Field(default=0, ge=0)
    timeout_s: float = Field(default=600.0, gt=0)
    cpu_groups: int | None = Field(default=None, ge=1)
    seed: int = 0
