"""The result of a run, cell by cell, and the files made of it: ``energy.json`` and CSV tables.

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

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.results import Estimate, Note, Origin
from assay.core.values import Scalar, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

HEADLINE_FIGURE = "decode_j_per_token"

FIGURES: dict[str, tuple[str, str]] = {
    "decode_j_per_token": ("J/token", "GPU energy of an output token, while decoding"),
    "prefill_j_per_token": ("J/token", "GPU energy of an input token, while the prompt is read"),
    "j_per_output_token": ("J/token", "GPU energy of whole requests, per output token"),
    "j_per_total_token": ("J/token", "GPU energy of whole requests, per input and output token"),
    "j_per_request": ("J", "GPU energy of a whole request"),
    "wh_per_1000_requests": ("Wh", "GPU energy of 1000 requests"),
    "carbon_g_per_1000_requests": ("g", "Carbon of that energy, at the intensity given"),
    "decode_tokens_per_s": ("tokens/s", "Output tokens while decoding, all sequences together"),
    "prefill_tokens_per_s": ("tokens/s", "Input tokens while the prompt is read, all sequences together"),
    "output_tokens_per_s": ("tokens/s", "Output tokens of whole requests"),
    "requests_per_s": ("1/s", "Whole requests"),
    "ttft_ms": ("ms", "Time until the first token is there (median)"),
    "tpot_ms": ("ms", "Time per output token after the first (mean over a request, median of requests)"),
    "gap_p50_ms": ("ms", "Between one token and the next"),
    "gap_p95_ms": ("ms", "Between one token and the next, 95 of 100 are shorter"),
    "gap_p99_ms": ("ms", "Between one token and the next, 99 of 100 are shorter"),
    "tokens_per_s_per_w": ("tokens/s/W", "Output tokens of whole requests, per watt"),
    "power_w": ("W", "GPU power while whole requests run"),
    "idle_w": ("W", "GPU power with the model in place and nothing to do"),
    "idle_share": ("", "Of the energy of whole requests: what idling as long would have taken"),
    "busy_share": ("", "Of a decoding call: some kernel ran; the rest the GPU waited for the host"),
    "bandwidth_share": ("", "Of the bytes that the device's memory could deliver while decoding"),
    "compute_share": ("", "Of the operations that the device could do while the prompt is read"),
    "phases_share": ("", "Energy of prefill and decode, over that of whole requests"),
    "host_j_per_output_token": ("J/token", "Energy of processors and memory, whoever used them, per output token"),
}
"""Every figure's name: its unit, and what it is. A share has no unit and lies between 0 and 1 (about)."""


class EnergyCell(Value):
    """One way to request tokens."""

    mode: str = Field(description="eager, graphs, or server.")
    batch: int
    concurrency: int = 1
    input_tokens: int
    output_tokens: int

    @property
    def sequences(self) -> int:
        """Sequences at once: of a batch, or requests in flight."""
        return self.concurrency if self.mode == "server" else self.batch

    @property
    def load(self) -> str:
        """The same as text: ``batch 8``, ``16 at once``."""
        return f"{self.concurrency} at once" if self.mode == "server" else f"batch {self.batch}"

    @property
    def name(self) -> str:
        """The display name: ``eager, batch 8, 512 in, 128 out``."""
        return f"{self.mode}, {self.load}, {self.input_tokens} in, {self.output_tokens} out"


class GpuStats(Value):
    """What one GPU did while the cell's requests ran: means over time, and the most beside them. Null: not offered."""

    gpu: int
    uuid: str
    utilization_percent: float | None = None
    utilization_percent_max: float | None = None
    memory_used_mb: float | None = Field(default=None, description="The most.")
    memory_total_mb: float | None = None
    memory_percent: float | None = None
    temperature_c: float | None = None
    temperature_c_max: float | None = None
    power_draw_w: float | None = None
    power_draw_w_max: float | None = None
    energy_j_per_request: Estimate | None = None
    note: str | None = None


class EnergyRow(Value):
    """All that is known of a cell."""

    cell: EnergyCell
    figures: dict[str, Estimate | None] = Field(description="By the names of FIGURES; null: not measured.")
    missing_reasons: dict[str, str] = Field(default_factory=dict, description="Of figures that are null: why.")
    gpus: tuple[GpuStats, ...] = ()
    peak_power_w: float | None = Field(default=None, description="The most that all GPUs drew at one moment.")
    tokens: dict[str, int] = Field(default_factory=dict, description="Counted: input_tokens, output_tokens, requests.")
    energy_j: Estimate | None = Field(
        default=None, description="Of all GPUs while these were measured, all processes together; null: not measured."
    )
    measured_s: float | None = Field(default=None, description="How long that was, all processes together.")
    placement: dict[str, str] | None = None
    notes: tuple[Note, ...] = Field(default=(), description="host_bound, unbalanced, phase_cut_short …")
    partial: bool = Field(default=False, description="Some of its processes, phases or tokens are missing.")
    records: tuple[str, ...] = ()
    origin: Origin = "real"


class EnergyResult(Value):
    """What a run leaves in ``energy.json``: its configuration, its cells."""

    name: str
    model: str
    backend: str
    config: dict[str, str | float | int | bool | None] = Field(description="Flattened: backend_type, device_ids, …")
    run: str | None = Field(default=None, description="The run folder's name.")
    gpu: str | None = Field(default=None, description="The GPUs' name, and how many.")
    started_at: str
    rows: tuple[EnergyRow, ...]
    skipped: dict[str, str] = Field(default_factory=dict, description="Cells without a result: why.")
    notes: tuple[str, ...] = Field(default=(), description="Of the whole run: GPUs that were missing, older names.")


OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}
NOT_ADDED = "nothing is added to it; name another file"
"""What a table that cannot be used means where rows are added."""
GPU_COLUMN_PREFIX = "gpu_stats_gpu_"
"""Columns of one GPU start with this, here and in the older tool; a table with one of them is of this kind."""


@dataclass(frozen=True)
class CsvTable:
    """A file's columns and rows, as text, and how it is written; ``torn`` is a last line that was cut short."""

    columns: tuple[str, ...] = ()
    rows: tuple[dict[str, str], ...] = ()
    newline: str = "\n"
    mark: bool = False
    torn: str | None = None


def parse_csv_table(data: bytes, where: str, known_columns: Collection[str], *, otherwise: str = NOT_ADDED) -> CsvTable:
    """Return the table in a file; ``known_columns`` identify it. An empty file is an empty table.

    ``otherwise``: the consequence if it is not such a table, for the error.

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
    is_cut = not text.endswith(("\n", "\r"))
    if len(records) == 1 and is_cut:
        return CsvTable(newline=newline, mark=mark, torn=text)
    columns = tuple(records[0][1])
    _check_columns(columns, where, known_columns, otherwise)
    if is_cut and 0 < len(records[-1][1]) < len(columns):
        records, torn = records[:-1], text[text.rfind("\n") + 1 :]
    for line, cells in records[1:]:
        if len(cells) != len(columns):
            raise BadInput(
                f"{where}, line {line}: {len(cells)} cells under {len(columns)} columns, so that nobody can say which "
                "belongs where; another tool may have added it. Fix or remove that line, or name another file."
            )
    rows = tuple(dict(zip(columns, cells, strict=True)) for _, cells in records[1:])
    return CsvTable(columns, rows, newline, mark, torn)


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
    last_line = text.rfind("\n") + 1
    for end in (len(text), last_line):
        reader = csv.reader(io.StringIO(text[:end], newline=""), strict=True)
        try:
            return [(reader.line_num, cells) for cells in reader if cells], text[end:] or None
        except csv.Error as error:
            problem = error
        if last_line in {0, len(text)}:
            break
    raise BadInput(f"{where} is garbled ({problem}), so {otherwise}.")


def _has_known_column(names: Iterable[str], known_columns: Collection[str]) -> bool:
    return any(name in known_columns or name.startswith(GPU_COLUMN_PREFIX) for name in names)


def _check_delimiter(header: str, where: str, known_columns: Collection[str], otherwise: str) -> None:
    for sign, name in OTHER_DELIMITERS.items():
        parts = [part.strip('" ') for part in header.split(sign)]
        if len(parts) > 1 and _has_known_column(parts, known_columns):
            raise BadInput(
                f"{where} has its columns separated by {name}, not by commas, so {otherwise}; or save it with commas."
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
        raise BadInput(f"{where} has {what}, so that its cells are ambiguous; fix it, or name another file.")


def add_rows(table: CsvTable, rows: Sequence[Mapping[str, Scalar]], key: Sequence[str] = ()) -> CsvTable:
    """Return the table with rows added; one that has the same cells under ``key`` as a new one is replaced by it.

    A row whose first key is empty replaces none. Unknown columns are kept with their cells, also in a replaced row.
    """
    columns = table.columns
    result_rows = list(table.rows)
    for row in rows:
        columns = merge_columns(columns, tuple(row))
        cells = {name: format_csv_cell(value) for name, value in row.items()}
        key_cells = [cells.get(name, "") for name in key]
        same = (i for i, older in enumerate(result_rows) if [older.get(name, "") for name in key] == key_cells)
        index = next(same, None) if key and key_cells[0] else None
        if index is None:
            result_rows.append(cells)
        else:
            result_rows[index] = {**result_rows[index], **cells}
    return replace(table, columns=columns, rows=tuple(result_rows))


def merge_columns(existing: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    """Return all columns: existing ones in their order, a new one behind the column that it follows in its own row."""
    columns = list(existing)
    for index, name in enumerate(new):
        if name not in columns:
            columns.insert(columns.index(new[index - 1]) + 1 if index else len(columns), name)
    return tuple(columns)


def format_csv_cell(value: Scalar) -> str:
    """Return a cell's text on one line; empty for null and for what is not a finite number."""
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
    """Return the configuration as ``config_…``; GPU numbers are separated by commas, however they were written."""
    identity: dict[str, Scalar] = {"name": result.name, "backend": result.backend, "model": result.model}
    config = {**identity, "device_ids": None, **result.config}
    gpus = config["device_ids"]
    if gpus is not None:
        parts = [part.strip() for part in str(gpus).strip().strip("[]()").split(",")]
        config["device_ids"] = ",".join(filter(None, parts)) or None
    return {f"config_{key}": value for key, value in config.items()}


def gpu_columns(gpus: Sequence[GpuStats]) -> dict[str, Scalar]:
    """Return the statistics of each GPU, as ``gpu_stats_gpu_0_utilization_percent`` and so on."""
    columns: dict[str, Scalar] = {}
    for gpu in gpus:
        stem = f"{GPU_COLUMN_PREFIX}{gpu.gpu}"
        columns |= {f"{stem}_{name}": getattr(gpu, name) for name in GPU_STAT_NAMES}
        columns |= interval_columns(f"{stem}_energy_j_per_request", gpu.energy_j_per_request)
        columns |= {f"{stem}_uuid": gpu.uuid, f"{stem}_note": gpu.note}
    return columns


def total_columns(row: EnergyRow) -> dict[str, Scalar]:
    """Return the older tool's aggregates under its names, and the two it lacked."""
    gpus = row.gpus
    busiest = [gpu.utilization_percent_max for gpu in gpus]
    busy = _over_all([gpu.utilization_percent for gpu in gpus], sum)
    memory_mb = _over_all([gpu.memory_used_mb for gpu in gpus], sum)
    max_busy = _over_all(busiest, max)
    is_active = any(value is not None and value > ACTIVE_PERCENT for value in busiest)
    return {
        "total_avg_utilization": busy,
        "total_max_utilization": max_busy,
        "total_avg_memory_mb": memory_mb,
        "total_avg_power_w": _over_all([gpu.power_draw_w for gpu in gpus], sum),
        "total_max_power_w": _over_all([gpu.power_draw_w_max for gpu in gpus], max),
        "avg_utilization_per_gpu": None if busy is None else busy / len(gpus),
        "avg_memory_per_gpu_mb": None if memory_mb is None else memory_mb / len(gpus),
        "any_gpu_active": None if max_busy is None and not is_active else is_active,
        "peak_of_sum_power_w": row.peak_power_w,
        **interval_columns("total_energy_j", row.energy_j),
    }


def _over_all(values: Sequence[float | None], combine: Callable[[list[float]], float]) -> float | None:
    """Return one number made of all values; null where one of them is missing."""
    present = [value for value in values if value is not None]
    return combine(present) if present and len(present) == len(values) else None


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
    run = (result.name, result.run, result.started_at, result.model, result.backend, result.gpu)
    columns: dict[str, Scalar] = dict(
        zip(LEADING_COLUMNS, (*run, row.origin, row.partial, *_cell_values(row.cell)), strict=True)
    )
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


def _cell_values(cell: EnergyCell) -> tuple[Scalar, ...]:
    """Return what stands in the columns of a cell."""
    return cell.mode, cell.batch, cell.concurrency, cell.input_tokens, cell.output_tokens


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
    missing = row.missing_reasons.get("wh_per_1000_requests")
    dtype = result.config.get("dtype") or result.config.get("torch_dtype")
    return {
        "model": result.model,
        "task": result.config.get("task") or DEFAULT_TASK,
        "gpu": result.gpu,
        **interval_columns(SCORE_COLUMN, row.figures.get("wh_per_1000_requests")),
        "number_of_gpus": len(row.gpus) or None,
        "dtype": None if dtype == "auto" else dtype,
        **dict(zip(CELL_COLUMNS, _cell_values(row.cell), strict=True)),
        "run": result.run,
        "started_at": result.started_at,
        "origin": row.origin,
        "partial": row.partial,
        "note": f"{SCORE_NOTE} Not known: {missing.rstrip('.')}." if missing else SCORE_NOTE,
    }


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
