"""Prompts: read from a file, formatted by a chat template, and batched as token ids.

A file has one prompt per line, or a column of JSON, CSV, Parquet or a data set saved in a folder. Every call gets the
next batch in turn, so that none can reuse what an earlier one left in a cache.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import BadInput, MachineCannot, suggest_nearest
from assay.core.results import Note
from assay.workloads.base import one_line
from assay.workloads.generation.models import first_line
from assay.workloads.torch_device import Tensor, import_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from assay.workloads.generation.loading import LoadedModel
    from assay.workloads.generation.params import Generation

RANDOM = "random"  # not a file: seeded token ids


def read_prompts(name: str, column: str = "text", most: int = 0) -> tuple[str, ...]:
    """Return the prompts of a file or folder, at most ``most`` unless that is 0; blank ones are skipped.

    Raises:
        BadInput: It does not exist, has no prompts or no such column, or its content does not match its suffix.
        MachineCannot: The reader of such files is not installed.
    """
    path = Path(name).expanduser()
    if not path.exists():
        raise BadInput(f"There is no prompt file {name}; prompts are 'random', or a file or folder that is here.")
    if not path.is_file() and not path.is_dir():
        raise BadInput(f"The prompt file {name} is no plain file.")
    reader = _read_folder if path.is_dir() else READERS.get(path.suffix.lower())
    if reader is None:
        raise BadInput(f"{name} is no prompt file that can be read; there are {', '.join(READERS)}, and data sets.")
    try:
        texts = (text for text in reader(path, column) if text.strip())
        prompts = tuple(islice(texts, most or None))
    except UnicodeDecodeError as error:
        raise BadInput(f"The prompt file {name} is not text in UTF-8: byte {error.start} cannot be read.") from error
    except OSError as error:
        raise BadInput(f"The prompt file {name} cannot be read: {error.strerror or error}.") from error
    if not prompts:
        raise BadInput(f"The prompt file {name} has no prompts.")
    return prompts


def _read_lines(path: Path, _: str) -> Iterator[str]:
    with path.open(encoding="utf-8-sig") as lines:
        for line in lines:
            yield line.rstrip("\r\n")


def _read_json_lines(path: Path, column: str) -> Iterator[str]:
    for number, line in enumerate(_read_lines(path, column), 1):
        if line.strip():
            yield _text_of(_parse_json(line, f"line {number} of {path}"), column, f"line {number} of {path}")


def _read_json(path: Path, column: str) -> Iterator[str]:
    rows = _parse_json(path.read_text(encoding="utf-8-sig"), str(path))
    if isinstance(rows, dict) and isinstance(rows.get(column), list):
        rows = rows[column]
    if not isinstance(rows, list):
        raise BadInput(f"{path} is not a list of prompts, nor an object with a list {column!r}.")
    for number, row in enumerate(rows, 1):
        yield _text_of(row, column, f"entry {number} of {path}")


def _table_reader(delimiter: str) -> Callable[[Path, str], Iterator[str]]:
    def rows(path: Path, column: str) -> Iterator[str]:
        usual = csv.field_size_limit(sys.maxsize)
        try:
            with path.open(encoding="utf-8-sig", newline="") as lines:
                table = csv.DictReader(lines, delimiter=delimiter)
                _check_column(column, table.fieldnames or (), str(path))
                for row in table:
                    yield row[column] or ""
        finally:
            csv.field_size_limit(usual)

    return rows


def _read_parquet(path: Path, column: str) -> Iterator[str]:
    return _read_column("parquet", lambda parquet: parquet.read_table(str(path)), path, column)


def _read_arrow(path: Path, column: str) -> Iterator[str]:
    def read(ipc: Any) -> Any:
        try:
            return ipc.open_stream(str(path)).read_all()
        except (ValueError, OSError):
            return ipc.open_file(str(path)).read_all()

    return _read_column("ipc", read, path, column)


def _read_folder(path: Path, column: str) -> Iterator[str]:
    """Read a data set saved by ``datasets``; of several splits the one named train, else the first."""
    parts = sorted(part.parent for part in path.glob("*/state.json"))
    if parts and not (path / "state.json").exists():
        path = next((part for part in parts if part.name == "train"), parts[0])
    files = sorted(entry for entry in path.iterdir() if entry.suffix in {".arrow", ".parquet"})
    if not files:
        raise BadInput(f"The folder {path} is no data set: it has no .arrow or .parquet files.")
    for file in files:
        yield from READERS[file.suffix](file, column)


READERS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    ".txt": _read_lines,
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _table_reader(","),
    ".tsv": _table_reader("\t"),
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}


def _read_column(part: str, read: Callable[[Any], Any], path: Path, column: str) -> Iterator[str]:
    """Yield a column of a table that a part of pyarrow reads."""
    try:
        reader = import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise MachineCannot(
            f"{path} needs pyarrow, which is not installed; use a .txt, .jsonl or .csv file."
        ) from error
    try:
        table = read(reader)
    except (ValueError, OSError) as error:
        raise BadInput(f"The prompt file {path} cannot be read: {one_line(error, 60)}.") from error
    _check_column(column, table.column_names, str(path))
    yield from (str(text) for text in table.column(column).to_pylist() if text is not None)


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInput(f"{where} is not valid JSON: {error}.") from error


def _text_of(row: Any, column: str, where: str) -> str:
    if isinstance(row, dict):
        _check_column(column, row, where)
        row = row[column]
    if not isinstance(row, str):
        raise BadInput(f"{where} is no text, but {one_line(repr(row), 60)}.")
    return row


def _check_column(column: str, columns: Iterable[str], where: str) -> None:
    columns = tuple(columns)
    if column not in columns:
        has = ", ".join(columns) or "none"
        raise BadInput(f"{where} has no column {column!r}; it has {has}.{suggest_nearest(column, columns)}")


def apply_chat_template(
    texts: Sequence[str], tokenizer: Any, model: str, reasoning: Mapping[str, Any]
) -> tuple[list[list[int]], tuple[Note, ...]]:
    """Return texts as token ids, and what the user should know of it.

    Without settings the texts are tokenized unchanged. With settings each is a user message in the model's chat
    template, which gets the settings by name; a model without one, and settings that it refuses, are refused.
    """
    if not reasoning:
        return [list(tokenizer(text)["input_ids"]) for text in texts], ()
    if getattr(tokenizer, "chat_template", None) is None:
        raise BadInput(
            f"Reasoning is told to a model by its chat template, and {model} has none: leave scenario.reasoning and "
            "reasoning_params out."
        )

    def fill_template(text: str, settings: Mapping[str, Any]) -> str:
        message = [{"role": "user", "content": text}]
        try:
            return str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True, **settings))
        except Exception as error:  # a template is a program from the model
            reason = first_line(str(error)) or type(error).__name__
            raise BadInput(f"The chat template of {model} cannot write a prompt with {settings}: {reason}.") from error

    prompts = [fill_template(text, reasoning) for text in texts]
    notes: tuple[Note, ...] = ()
    if prompts[0] == fill_template(texts[0], {}):
        message = f"the chat template of {model} ignores {' and '.join(reasoning)}: prompts are the same without"
        notes = (Note(code="reasoning_ignored", message=message),)
    return [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in prompts], notes


BATCH_POOL = 4  # number of random batches, used in turn


@dataclass(frozen=True)
class PromptBatch:
    """Token ids in rows, padded on the left; ``mask`` is 1 for tokens, and ``tokens`` is their number."""

    ids: Tensor
    mask: Tensor
    tokens: int


class PromptBatches:
    """An endless cycle of batches."""

    def __init__(self, pool: Sequence[PromptBatch], notes: tuple[Note, ...] = ()) -> None:
        self.pool = tuple(pool)
        self.notes = notes
        self.next = cycle(self.pool).__next__

    @property
    def columns(self) -> int:
        """Columns of the longest batch."""
        return max(int(batch.ids.shape[1]) for batch in self.pool)

    @property
    def tokens(self) -> float:
        """Mean tokens per prompt."""
        rows = sum(int(batch.ids.shape[0]) for batch in self.pool)
        return sum(batch.tokens for batch in self.pool) / rows


def make_batches(loaded: LoadedModel, generation: Generation, seed: int) -> PromptBatches:
    """Return the batches of a generation, on the model's device; refuse prompts that are too long."""
    check_context(generation, loaded.context_tokens)
    notes: tuple[Note, ...] = ()
    if generation.prompts == RANDOM:
        rows = random_prompts(loaded.vocabulary, BATCH_POOL * generation.batch, generation.input_tokens, seed)
        pad = 0
    else:
        texts = read_prompts(generation.prompts, generation.text_column_name, generation.num_samples)
        reasoning = json.loads(generation.reasoning)
        if loaded.tokenizer is None and not reasoning:
            rows = [bytes_to_tokens(text, loaded.vocabulary) for text in texts]
            notes = (Note(code="no_tokenizer", message="the model has no tokenizer: prompts are read byte by byte"),)
        else:
            rows, notes = apply_chat_template(texts, loaded.tokenizer, generation.model, reasoning)
        rows = fit_prompts(rows, generation, loaded.context_tokens)
        pad = loaded.model.generation_config.pad_token_id
    groups = group_prompts(rows, generation.batch)
    return PromptBatches([_pad_batch(group, pad, loaded.device) for group in groups], notes)


def check_context(generation: Generation, context: int) -> None:
    """Refuse random prompts that with their answers exceed a model's context."""
    tokens_in, tokens_out = generation.input_tokens, generation.output_tokens
    if generation.prompts == RANDOM and tokens_in + tokens_out > context:
        raise BadInput(
            f"{tokens_in} tokens in and {tokens_out} out are {tokens_in + tokens_out}, more than the {context} of the "
            f"context of {generation.model}."
        )


def random_prompts(vocabulary: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Return ``count`` prompts of seeded random token ids."""
    tokens: list[list[int]] = np.random.default_rng([seed, length]).integers(0, vocabulary, (count, length)).tolist()
    return tokens


def bytes_to_tokens(text: str, vocabulary: int) -> list[int]:
    """Return a text as token ids for a model without a tokenizer: one per byte."""
    return [byte % vocabulary for byte in text.encode()]


def fit_prompts(rows: Sequence[Sequence[int]], generation: Generation, context: int) -> list[list[int]]:
    """Return prompts of 1 to ``input_tokens`` tokens that fit the context with their answers; cut or refuse others."""
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


def group_prompts(rows: Sequence[list[int]], batch: int) -> list[list[list[int]]]:
    """Return rows in batches so that all occur equally often; a batch larger than all rows has some twice."""
    count = math.lcm(len(rows), batch) // batch
    return [[rows[(group * batch + index) % len(rows)] for index in range(batch)] for group in range(count)]


def _pad_batch(rows: Sequence[list[int]], pad: int, device: Any) -> PromptBatch:
    torch, length = import_torch(), max(map(len, rows))
    ids = [[pad] * (length - len(row)) + row for row in rows]
    mask = [[0] * (length - len(row)) + [1] * len(row) for row in rows]
    ids_tensor, mask_tensor = (torch.tensor(values, dtype=torch.long, device=device) for values in (ids, mask))
    return PromptBatch(ids_tensor, mask_tensor, sum(map(len, rows)))
