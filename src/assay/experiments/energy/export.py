"""The files a run leaves for other programs: ``energy.json`` and CSV tables.

A table in a CSV file may be appended to for years: columns come and go, and every row stays aligned.

    model,gpu_0_w     model,gpu_0_w,gpu_1_w     model,gpu_0_w,gpu_1_w
    A,210          +  B,190,205              →  A,210,
                                                B,190,205

A file that is not such a table is refused with the line of the problem and is left untouched. A cell is one row; the
columns that grow with the number of GPUs come last. Sums and maxima over GPUs are null where one GPU has no value: a
sum of the others would pass for all.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.experiments.energy.result import FIGURES, GpuStats

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from assay.core.results import Estimate
    from assay.core.values import Scalar
    from assay.experiments.energy.result import EnergyResult, EnergyRow


OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}
NOT_ADDED = "nothing is added to it; name another file"
"""What a table that cannot be used means where rows are added."""
GPU_COLUMN_PREFIX = "gpu_stats_gpu_"
"""How columns of one GPU begin, here and in the older tool; with one of them a table is of this kind."""


@dataclass(frozen=True)
class CsvTable:
    """A file's columns and rows, as text, and how it is written; ``torn`` is a last line that was cut short."""

    columns: tuple[str, ...] = ()
    rows: tuple[dict[str, str], ...] = ()
    newline: str = "\n"
    mark: bool = False
    torn: str | None = None


def parse_csv_table(data: bytes, where: str, known_columns: Collection[str], *, otherwise: str = NOT_ADDED) -> CsvTable:
    """Return the table that a file holds; ``known_columns`` are columns that identify it. An empty file is empty.

    ``otherwise``: what it means where it is none, in words.

    Raises:
        BadInput: It is not a table of this kind, or its rows do not fit its columns.
    """
    text = _decode_text(data, where, otherwise)
    mark, text = text.startswith("\ufeff"), text.removeprefix("\ufeff")
    if not text.strip():
        return CsvTable(mark=mark)
    newline = "\r\n" if "\r\n" in text else "\n"
    _check_delimiter(text.splitlines()[0], where, known_columns, otherwise)
    records, torn = _parse_records(text, where, otherwise)
    if len(records) == 1 and not text.endswith(("\n", "\r")):
        return CsvTable(newline=newline, mark=mark, torn=text)
    columns = tuple(records[0][1])
    _check_columns(columns, where, known_columns, otherwise)
    cut = not text.endswith(("\n", "\r")) and 0 < len(records[-1][1]) < len(columns)
    if cut:
        records, torn = records[:-1], text[text.rfind("\n") + 1 :]
    return CsvTable(columns, tuple(_csv_row(columns, *record, where) for record in records[1:]), newline, mark, torn)


def _csv_row(columns: Sequence[str], line: int, cells: Sequence[str], where: str) -> dict[str, str]:
    if len(cells) != len(columns):
        raise BadInput(
            f"{where}, line {line}: {len(cells)} cells under {len(columns)} columns, so that nobody can say which "
            "belongs where; another tool may have added it. Mend or remove that line, or name another file."
        )
    return dict(zip(columns, cells, strict=True))


def _decode_text(data: bytes, where: str, otherwise: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{where}, line {line}: not UTF-8 text, so {otherwise}.") from None
    if "\0" in text:
        raise BadInput(f"{where} holds null bytes and is no CSV file, so {otherwise}.")
    return text


def _parse_records(text: str, where: str, otherwise: str) -> tuple[list[tuple[int, list[str]]], str | None]:
    """Return the records with their line numbers, empty lines left out, and a last line that was cut in its quotes."""
    try:
        return _read_records(text), None
    except csv.Error as error:
        whole = text[: text.rfind("\n") + 1]
        if whole and not text.endswith("\n"):
            try:
                return _read_records(whole), text[len(whole) :]
            except csv.Error:
                pass
        raise BadInput(f"{where} is garbled ({error}), so {otherwise}.") from None


def _read_records(text: str) -> list[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    return [(reader.line_num, cells) for cells in reader if cells]


def _has_known_column(names: Iterable[str], known_columns: Collection[str]) -> bool:
    return any(name in known_columns or name.startswith(GPU_COLUMN_PREFIX) for name in names)


def _check_delimiter(header: str, where: str, known_columns: Collection[str], otherwise: str) -> None:
    for sign, name in OTHER_DELIMITERS.items():
        parts = [part.strip('" ') for part in header.split(sign)]
        if len(parts) > 1 and _has_known_column(parts, known_columns):
            raise BadInput(
                f"{where} has its columns parted by {name}, not by commas, so {otherwise}; or save it with commas."
            )


def _check_columns(columns: Sequence[str], where: str, known_columns: Collection[str], otherwise: str) -> None:
    if not _has_known_column(columns, known_columns):
        shown = ", ".join(columns)
        raise BadInput(
            f"{where} holds another table: none of its columns ({shown if len(shown) < 100 else shown[:100] + '…'}) is "
            f"one of `assay energy`, so {otherwise}."
        )
    twice = [name for index, name in enumerate(columns) if name in columns[:index]]
    if twice or "" in columns:
        what = f"two columns {twice[0]!r}" if twice and twice[0] else "a column without a name"
        raise BadInput(f"{where} has {what}, so that rows cannot be told apart; mend it, or name another file.")


def add_rows(table: CsvTable, rows: Sequence[Mapping[str, Scalar]], key: Sequence[str] = ()) -> CsvTable:
    """Return the table with rows added; one that has the same cells under ``key`` as a new one is replaced by it.

    Columns that nobody here knows are kept, with what stands in them, also in a row that is replaced.
    """
    columns = table.columns
    result_rows = list(table.rows)
    for row in rows:
        columns = merge_columns(columns, tuple(row))
        cells = {name: format_csv_cell(value) for name, value in row.items()}
        same = _find_row(cells, result_rows, key)
        if same is None:
            result_rows.append(cells)
        else:
            result_rows[same] = {**result_rows[same], **cells}
    return replace(table, columns=columns, rows=tuple(result_rows))


def _find_row(cells: Mapping[str, str], rows: Sequence[Mapping[str, str]], key: Sequence[str]) -> int | None:
    """Return which row is an older state of this one; a row whose first key is empty is nobody's."""
    if not key or not cells.get(key[0]):
        return None
    key_cells = [cells.get(name, "") for name in key]
    return next((index for index, row in enumerate(rows) if [row.get(name, "") for name in key] == key_cells), None)


def merge_columns(existing: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """Return all columns: those there in their order, a new one behind the column that it follows in its own row."""
    columns = list(existing)
    for index, name in enumerate(new):
        if name not in columns:
            columns.insert(columns.index(new[index - 1]) + 1 if index else len(columns), name)
    return tuple(columns)


def format_csv_cell(value: Scalar) -> str:
    """Return a cell's text: nothing for null or what is no number, and never more than one line."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if not isinstance(value, str):
        return str(value)
    return " ".join(value.replace("\0", "").encode(errors="replace").decode().splitlines())


def format_csv_table(table: CsvTable) -> str:
    """Return the file's text."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, table.columns, restval="", lineterminator=table.newline)
    writer.writeheader()
    writer.writerows(table.rows)
    return ("\ufeff" if table.mark else "") + buffer.getvalue()


ACTIVE_PERCENT = 5.0
"""A GPU that was ever busier than this was active, as the older tool had it."""

GPU_STAT_NAMES = tuple(
    name for name in GpuStats.model_fields if name not in {"gpu", "uuid", "energy_j_per_request", "note"}
)
"""Of one GPU: the older names, the most beside each mean."""


def interval_columns(name: str, estimate: Estimate | None) -> dict[str, Scalar]:
    """Return an estimate as three columns: the value, and the ends of its interval."""
    return {
        name: estimate.value if estimate else None,
        f"{name}_low": estimate.low if estimate else None,
        f"{name}_high": estimate.high if estimate else None,
    }


def config_columns(result: EnergyResult) -> dict[str, Scalar]:
    """Return what was asked for, as ``config_…``; the GPUs' numbers are parted by commas."""
    identity: dict[str, Scalar] = {"name": result.name, "backend": result.backend, "model": result.model}
    config = {**identity, "device_ids": None, **result.config}
    return {f"config_{key}": _format_gpu_list(value) if key == "device_ids" else value for key, value in config.items()}


def _format_gpu_list(value: Scalar) -> Scalar:
    """Return a list of GPUs as ``0,1,2,3``, however it was written."""
    if not isinstance(value, str):
        return value if value is None else str(value)
    return ",".join(part.strip() for part in value.strip().strip("[]()").split(",") if part.strip()) or None


def gpu_columns(gpus: Sequence[GpuStats]) -> dict[str, Scalar]:
    """Return the statistics of each GPU, as ``gpu_stats_gpu_0_utilization_percent`` and so on."""
    columns: dict[str, Scalar] = {}
    for gpu in gpus:
        stem = f"gpu_stats_gpu_{gpu.gpu}"
        columns |= {f"{stem}_{name}": getattr(gpu, name) for name in GPU_STAT_NAMES}
        columns |= interval_columns(f"{stem}_energy_j_per_request", gpu.energy_j_per_request)
        columns |= {f"{stem}_uuid": gpu.uuid, f"{stem}_note": gpu.note}
    return columns


def total_columns(row: EnergyRow) -> dict[str, Scalar]:
    """Return the older tool's aggregates under its names, and the two it lacked."""
    gpus = row.gpus
    busy = [gpu.utilization_percent for gpu in gpus]
    busiest = [gpu.utilization_percent_max for gpu in gpus]
    memory = [gpu.memory_used_mb for gpu in gpus]
    return {
        "total_avg_utilization": _sum_all(busy),
        "total_max_utilization": _max_all(busiest),
        "total_avg_memory_mb": _sum_all(memory),
        "total_avg_power_w": _sum_all([gpu.power_draw_w for gpu in gpus]),
        "total_max_power_w": _max_all([gpu.power_draw_w_max for gpu in gpus]),
        "avg_utilization_per_gpu": _mean_all(busy),
        "avg_memory_per_gpu_mb": _mean_all(memory),
        "any_gpu_active": _any_active(busiest),
        "peak_of_sum_power_w": row.peak_power_w,
        **interval_columns("total_energy_j", row.energy_j),
    }


def _all_values(values: Sequence[float | None]) -> list[float] | None:
    present = [value for value in values if value is not None]
    return present if present and len(present) == len(values) else None


def _sum_all(values: Sequence[float | None]) -> float | None:
    present = _all_values(values)
    return None if present is None else sum(present)


def _max_all(values: Sequence[float | None]) -> float | None:
    present = _all_values(values)
    return None if present is None else max(present)


def _mean_all(values: Sequence[float | None]) -> float | None:
    present = _all_values(values)
    return None if present is None else sum(present) / len(present)


def _any_active(busiest: Sequence[float | None]) -> bool | None:
    if any(value is not None and value > ACTIVE_PERCENT for value in busiest):
        return True
    return None if _all_values(busiest) is None else False


CELL_COLUMNS = ("mode", "batch_size", "concurrency", "input_tokens", "output_tokens")
"""The columns that name a cell."""

KEY_COLUMNS = ("run", *CELL_COLUMNS)
"""The columns that name a row for good: a run's cell has one row in a file, its newest."""

KNOWN_COLUMNS = frozenset(FIGURES) | {"config_device_ids", "config_model", "any_gpu_active"}
"""Columns by which a table of ours, or of the older tool, is recognised."""

LEADING_COLUMNS = ("name", "run", "started_at", "model", "backend", "gpu", "origin", "partial", *CELL_COLUMNS)


def flatten_rows(result: EnergyResult) -> list[dict[str, Scalar]]:
    """Return a row for each cell of a run."""
    return [flatten_row(result, row) for row in result.rows]


def flatten_row(result: EnergyResult, row: EnergyRow) -> dict[str, Scalar]:
    """Return one cell's columns by name, in the order of a table; null was not measured."""
    cell = row.cell
    leading: tuple[Scalar, ...] = (
        result.name, result.run, result.started_at, result.model, result.backend, result.gpu, row.origin, row.partial,
        cell.mode, cell.batch, cell.concurrency, cell.input_tokens, cell.output_tokens,
    )  # fmt: skip
    columns: dict[str, Scalar] = dict(zip(LEADING_COLUMNS, leading, strict=True))
    columns |= config_columns(result)
    for name in FIGURES:
        columns |= interval_columns(name, row.figures.get(name))
    columns["measured_s"] = row.measured_s
    columns |= {f"measured_{name}": row.tokens.get(name) for name in ("requests", "input_tokens", "output_tokens")}
    columns |= total_columns(row)
    columns["placement"] = format_part_counts(row.placement)
    columns["notes"] = "; ".join(note.message for note in row.notes) or None
    columns["missing_reasons"] = format_missing_reasons(row.missing_reasons)
    return columns | gpu_columns(row.gpus)


def format_part_counts(placement: Mapping[str, str] | None) -> str | None:
    """Say how many parts of a model lie on each device: ``cuda:0: 17 parts, cuda:1: 18 parts``."""
    if not placement:
        return None
    counts = Counter(placement.values())
    return ", ".join(f"{device}: {n} part{'' if n == 1 else 's'}" for device, n in counts.items())


def format_missing_reasons(why_not: Mapping[str, str]) -> str | None:
    """Say why figures are missing, each reason once: ``no GPU is metered (decode_j_per_token, idle_w)``."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in why_not.items():
        by_reason.setdefault(reason.rstrip("."), []).append(name)
    return "; ".join(f"{reason} ({', '.join(names)})" for reason, names in by_reason.items()) or None


DEFAULT_TASK = "text_generation"
SCORE_NOTE = (
    "Not the official AI Energy Score: prompts, lengths and decoding differ from its data sets. "
    "GPU energy of whole requests, idle power within it; the host is not counted."
)
SCORE_COLUMN = "gpu_wh_per_1000_requests"


def score_rows(result: EnergyResult) -> list[dict[str, Scalar]]:
    """Return a row for each cell; the score is null where its energy is not known, and then the note says why."""
    return [_score_row(result, row) for row in result.rows]


def _score_row(result: EnergyResult, row: EnergyRow) -> dict[str, Scalar]:
    cell = row.cell
    sizes = (cell.mode, cell.batch, cell.concurrency, cell.input_tokens, cell.output_tokens)
    missing = row.missing_reasons.get("wh_per_1000_requests")
    return {
        "model": result.model,
        "task": result.config.get("task") or DEFAULT_TASK,
        "gpu": result.gpu,
        **interval_columns(SCORE_COLUMN, row.figures.get("wh_per_1000_requests")),
        "number_of_gpus": len(row.gpus) or None,
        "dtype": weights_dtype(result),
        **dict(zip(CELL_COLUMNS, sizes, strict=True)),
        "run": result.run,
        "started_at": result.started_at,
        "origin": row.origin,
        "partial": row.partial,
        "note": f"{SCORE_NOTE} Not known: {missing.rstrip('.')}." if missing else SCORE_NOTE,
    }


def weights_dtype(result: EnergyResult) -> Scalar:
    """Return the type of the weights where it is known: as loaded, or as asked for."""
    dtype = result.config.get("dtype") or result.config.get("torch_dtype")
    return None if dtype == "auto" else dtype


JSON_FILE = "energy.json"
CSV_FILE = "energy.csv"
SCORE_FILE = "ai_energy_score.csv"


def build_report_files(result: EnergyResult) -> dict[str, str]:
    """Return the files by their paths within the run folder; tables only where there is a row."""
    files = {JSON_FILE: result_to_json(result)}
    if result.rows:
        files[CSV_FILE] = rows_to_csv(flatten_rows(result))
        files[SCORE_FILE] = rows_to_csv(score_rows(result))
    return files


def result_to_json(result: EnergyResult) -> str:
    """Return all that a run found."""
    return json.dumps(result.as_json(), indent=2, ensure_ascii=False) + "\n"


def rows_to_csv(rows: Sequence[Mapping[str, Scalar]]) -> str:
    """Return rows as a CSV file of their own."""
    return format_csv_table(add_rows(CsvTable(), rows))
