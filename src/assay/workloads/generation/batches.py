"""Batches of token ids: another one each call, in turn, so that no call can use what an earlier one left behind."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import BadInput
from assay.workloads.generation import prompts
from assay.workloads.generation.templates import written
from assay.workloads.torch_device import Tensor, import_torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.generation.loading import Loaded
    from assay.workloads.generation.params import Generation

POOL = 4
"""Random batches are so many, in turn."""


@dataclass(frozen=True)
class Batch:
    """Token ids in rows, padded on the left; ``mask`` is 1 where a token is, and ``tokens`` is how many those are."""

    ids: Tensor
    mask: Tensor
    tokens: int


class Batches:
    """Batches in turn, without end."""

    def __init__(self, pool: Sequence[Batch], notes: tuple[str, ...] = ()) -> None:
        self.pool = tuple(pool)
        self.notes = notes
        self.next = cycle(self.pool).__next__

    @property
    def columns(self) -> int:
        """Columns of the longest batch."""
        return max(int(batch.ids.shape[1]) for batch in self.pool)

    @property
    def tokens(self) -> float:
        """Tokens of a prompt, on average."""
        rows = sum(int(batch.ids.shape[0]) for batch in self.pool)
        return sum(batch.tokens for batch in self.pool) / rows


def batches(loaded: Loaded, generation: Generation, seed: int) -> Batches:
    """Return the batches of a generation, on the model's device.

    Raises:
        BadInput: A prompt and its answer are longer than the model can look back on, or than was asked for.
    """
    check_context(generation, loaded.context_tokens)
    if generation.prompts == prompts.RANDOM:
        rows = random_rows(loaded.vocabulary, POOL * generation.batch, generation.input_tokens, seed)
        return Batches([_padded(group, 0, loaded.device) for group in in_groups(rows, generation.batch)])
    texts = prompts.read(generation.prompts, generation.text_column_name, generation.num_samples)
    notes: tuple[str, ...]
    reasoning = json.loads(generation.reasoning)
    if loaded.tokenizer is None and not reasoning:
        rows = [as_bytes(text, loaded.vocabulary) for text in texts]
        notes = ("the model has no tokenizer: prompts are read byte by byte",)
    else:
        rows, notes = written(texts, loaded.tokenizer, generation.model, reasoning)
    fitting = fitted(rows, generation, loaded.context_tokens)
    pad = loaded.model.generation_config.pad_token_id
    return Batches([_padded(group, pad, loaded.device) for group in in_groups(fitting, generation.batch)], notes)


def check_context(generation: Generation, context: int) -> None:
    """Refuse random prompts that with their answers are longer than a model can look back on."""
    tokens_in, tokens_out = generation.input_tokens, generation.output_tokens
    if generation.prompts == prompts.RANDOM and tokens_in + tokens_out > context:
        raise BadInput(
            f"{tokens_in} tokens in and {tokens_out} out are {tokens_in + tokens_out}, more than the {context} of the "
            f"context of {generation.model}."
        )


def random_rows(vocabulary: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Return so many prompts of seeded token ids."""
    tokens = np.random.default_rng([seed, length]).integers(0, vocabulary, (count, length))
    return [[int(token) for token in row] for row in tokens]


def as_bytes(text: str, vocabulary: int) -> list[int]:
    """Return a text as token ids where nobody knows better: a byte each."""
    return [byte % vocabulary for byte in text.encode()]


def fitted(rows: Sequence[Sequence[int]], generation: Generation, context: int) -> list[list[int]]:
    """Return prompts that are as long as they may be: cut where they may be cut, else refused.

    Raises:
        BadInput: One is longer than ``input_tokens``, or with its answer than the model's context, or has no tokens.
    """
    fitted_rows: list[list[int]] = []
    for number, row in enumerate(rows, 1):
        which = f"Prompt {number} of {generation.prompts}"
        if not row:
            raise BadInput(f"{which} has no tokens.")
        if len(row) > generation.input_tokens and not generation.truncation:
            raise BadInput(
                f"{which} has {len(row)} tokens, more than the {generation.input_tokens} of scenario.input_tokens; "
                "scenario.truncation would cut it."
            )
        cut = list(row[: generation.input_tokens])
        if len(cut) + generation.output_tokens > context:
            raise BadInput(
                f"{which} has {len(cut)} tokens and its answer {generation.output_tokens}, together more than the "
                f"{context} of the context of {generation.model}."
            )
        fitted_rows.append(cut)
    return fitted_rows


def in_groups(rows: Sequence[list[int]], batch: int) -> list[list[list[int]]]:
    """Return rows in batches until all were equally often in one; a batch larger than all rows has some twice."""
    count = math.lcm(len(rows), batch) // batch
    return [[rows[(group * batch + index) % len(rows)] for index in range(batch)] for group in range(count)]


def _padded(rows: Sequence[list[int]], pad: int, device: Any) -> Batch:
    torch = import_torch()
    length = max(map(len, rows))
    ids = [[pad] * (length - len(row)) + row for row in rows]
    mask = [[0] * (length - len(row)) + [1] * len(row) for row in rows]
    return Batch(
        ids=torch.tensor(ids, dtype=torch.long, device=device),
        mask=torch.tensor(mask, dtype=torch.long, device=device),
        tokens=sum(map(len, rows)),
    )
