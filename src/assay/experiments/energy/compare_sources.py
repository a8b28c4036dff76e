"""Read the cells to compare from run folders, folders of runs, ``energy.json`` files, and CSV tables."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.errors import BadInput, DamagedFile
from assay.core.files import read_json, read_text
from assay.core.values import first_problem
from assay.experiments.energy.compare import PHASE_FIGURES, ComparedPhase, ComparedPoint, PointValue
from assay.experiments.energy.export import (
    CELL_COLUMNS,
    JSON_FILE,
    KEY_COLUMNS,
    KNOWN_COLUMNS,
    SCORE_COLUMN,
    flatten_rows,
    parse_csv_table,
)
from assay.experiments.energy.result import EnergyResult
from assay.store.records import verify_file
from assay.store.run_folder import run_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from assay.core.results import Origin
    from assay.core.values import Scalar

ROW_LOCATION = "place"
"""Of a row of a table: its file and number, for who must look at it."""
LENGTH_TOLERANCE = 0.1
"""A share: prompts that are further from the length asked for are of another length."""
SETTING_NAMES = ("backend_type", "revision", "attn_implementation", "compile", "isolation")
"""Of a configuration: how a model is run, beyond what a point has a name of its own for."""
REQUEST_NAMES = ("prompts", "text_column_name", "truncation", "generate_kwargs", "reasoning", "reasoning_params")
"""Of a configuration: what a model is asked."""
NOT_COMPARED = "nothing of it can be compared"


@dataclass
class EnergySources:
    """The rows of all that could be read, and in words what could not be, and why."""

    rows: list[Mapping[str, Scalar]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)


def read_sources(paths: Iterable[Path]) -> EnergySources:
    """Read all that paths hold.

    Raises:
        BadInput: None of it can be used, or a path is not there.
    """
    sources = EnergySources()
    paths = list(paths)
    for path in paths:
        if not path.exists():
            raise BadInput(f"{path} is not there.")
        for file in _find_files(path, sources):
            try:
                _read_file(file, sources)
            except DamagedFile:
                raise
            except BadInput as error:
                if len(paths) == 1 and file == path:
                    raise
                sources.unusable.append(str(error).rstrip("."))
    sources.rows = _drop_repeated_rows(sources.rows)
    if not sources.rows:
        raise BadInput(f"Nothing can be compared: {'; '.join(sources.unusable) or 'no cell was measured'}.")
    return sources


def _drop_repeated_rows(rows: Sequence[Mapping[str, Scalar]]) -> list[Mapping[str, Scalar]]:
    """Return rows without those that say again what a row before says: a run's folder and the table it was added to."""
    unique: dict[tuple[str, ...], Mapping[str, Scalar]] = {}
    for row in rows:
        unique.setdefault(tuple(str(row.get(name)) for name in ("model", "started_at", *KEY_COLUMNS)), row)
    return list(unique.values())


def _find_files(path: Path, sources: EnergySources) -> list[Path]:
    """Return the files that a path means: itself, or what is in a run folder or a folder of such."""
    if path.is_file():
        return [path]
    if (path / JSON_FILE).is_file():
        return [path / JSON_FILE]
    if (path / "plan.json").is_file():
        hint = f"was it stopped, `assay report {path}` writes it; else it is a run of something else"
        sources.unusable.append(f"{path} holds no {JSON_FILE}: {hint}")
        return []
    inside = [run / JSON_FILE for run in run_paths(path) if (run / JSON_FILE).is_file()]
    if not inside:
        sources.unusable.append(f"{path} is no run folder of `assay energy run`, and holds none")
    return inside


def _read_file(file: Path, sources: EnergySources) -> None:
    verify_file(file)
    if file.suffix.lower() == ".csv":
        sources.rows += _read_table(file, sources)
        return
    content = read_json(file)
    try:
        result = EnergyResult.model_validate(content)
    except ValidationError as error:
        raise BadInput(f"{file} is not an {JSON_FILE} of this version of Assay: {first_problem(error)}.") from None
    name = result.run or file.parent.resolve().name
    sources.rows += flatten_rows(result.model_copy(update={"run": name}))
    sources.skipped += [f"{name}: {cell} gave nothing: {why.rstrip('.')}" for cell, why in result.skipped.items()]


def _read_table(file: Path, sources: EnergySources) -> list[Mapping[str, Scalar]]:
    table = parse_csv_table(read_text(file).encode(), str(file), {*KNOWN_COLUMNS, SCORE_COLUMN}, otherwise=NOT_COMPARED)
    if SCORE_COLUMN in table.columns:
        raise BadInput(
            f"{file} is a table of scores (ai_energy_score), which has neither speeds nor J/token; name the run "
            "folder, or the file of a csv reporter."
        )
    rows: list[Mapping[str, Scalar]] = []
    for number, cells in enumerate(table.rows, 1):
        if all(cells.get(name) for name in ("model", *CELL_COLUMNS)):
            filled = {name: cell for name, cell in cells.items() if cell}
            rows.append({"run": file.stem, **filled, ROW_LOCATION: f"{file}, row {number}"})
        else:
            sources.unusable.append(f"{file}, row {number} names no cell (model, mode, sizes): another tool wrote it")
    if table.torn is not None:
        sources.unusable.append(f"{file} ends in a line that was cut short")
    return rows


def choose_phase(rows: Sequence[Mapping[str, Scalar]]) -> ComparedPhase:
    """Return what all can be compared by: decoding, where every row has it; else whole requests."""
    rate, _ = PHASE_FIGURES["decode"]
    return "decode" if all(row.get(rate) not in {None, ""} for row in rows) else "requests"


def build_points(rows: Sequence[Mapping[str, Scalar]], phase: ComparedPhase) -> list[ComparedPoint]:
    """Return the cells as points.

    Raises:
        BadInput: A cell of a table holds no number where one is needed.
    """
    return [_build_point(row, *PHASE_FIGURES[phase]) for row in rows]


def _build_point(row: Mapping[str, Scalar], rate: str, joules: str) -> ComparedPoint:
    def text(name: str) -> str:
        value = row.get(name)
        return "" if value is None else str(value)

    def whole(name: str) -> int:
        return int(_parse_number(row, name) or 0)

    origin = text("origin")
    origins: dict[str, Origin] = {"fake": "fake", "simulated": "simulated"}
    return ComparedPoint(
        run=text("run"),
        model=text("model"),
        placement=format_placement(row),
        mode=text("mode"),
        batch=whole("batch_size"),
        concurrency=whole("concurrency"),
        input_tokens=_prompt_tokens(row),
        output_tokens=whole("output_tokens"),
        gpu=re.sub(r"\d+ × ", "", text("gpu")) or "no GPU",
        dtype=text("config_dtype") or text("config_torch_dtype"),
        settings=_format_settings(row, SETTING_NAMES),
        request=_format_settings(row, REQUEST_NAMES),
        origin=origins.get(origin, "real"),
        partial=text("partial") == "True",
        rate=_parse_value(row, rate),
        joules=_parse_value(row, joules),
        missing_reason=find_missing_reason(text("missing_reasons"), joules),
    )


def _format_settings(row: Mapping[str, Scalar], names: Sequence[str]) -> str:
    """Write what of a configuration a row has: ``attn_implementation=sdpa compile=True``."""
    values = {name: row.get(f"config_{name}") for name in names}
    return " ".join(f"{name}={value}" for name, value in values.items() if value not in {None, ""})


def find_missing_reason(reasons: str, figure: str) -> str | None:
    """Return why a figure is missing, from all reasons as a row has them."""
    for part in reasons.split("; "):
        reason, _, figures = part.rpartition(" (")
        if figure in figures.rstrip(")").split(", "):
            return reason
    return None


def format_placement(row: Mapping[str, Scalar]) -> str:
    """Say where a model was: ``GPU 0``, ``GPUs 0,1 balanced``, ``GPUs 0,1 tensor parallel``, ``cpu``, ``server``."""

    def config_value(name: str) -> str:
        value = row.get(f"config_{name}")
        return "" if value is None else str(value)

    numbers = config_value("device_ids")
    several = "," in numbers
    if row.get("mode") == "server":
        return f"server on GPU{'s' if several else ''} {numbers}" if numbers else "server"
    text = f"GPU{'s' if several else ''} {numbers}"
    if not numbers or config_value("device") == "cpu":
        return f"cpu beside {text}" if numbers else "cpu"
    how = config_value("device_map")
    if config_value("tp_plan"):
        text += " tensor parallel"
    elif how and (several or how != "auto"):
        text += f" {how}"
    return f"{text}, at most {config_value('max_memory')}" if config_value("max_memory") else text


def _prompt_tokens(row: Mapping[str, Scalar]) -> int:
    """Return how long prompts are: as asked for, or as they were on average where that is another length."""
    requested = int(_parse_number(row, "input_tokens") or 0)
    read, requests = _parse_number(row, "measured_input_tokens"), _parse_number(row, "measured_requests")
    if not read or not requests or abs(read / requests - requested) <= LENGTH_TOLERANCE * requested:
        return requested
    return round(read / requests)


def _parse_value(row: Mapping[str, Scalar], name: str) -> PointValue | None:
    value, low, high = (_parse_number(row, f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return None
    if value <= 0 or (low is not None and low > value) or (high is not None and high < value):
        raise BadInput(f"{_row_location(row)}: {name} is {value:g} [{low}, {high}], which no measurement gives.")
    return PointValue(value, low, high)


def _row_location(row: Mapping[str, Scalar]) -> str:
    return str(row.get(ROW_LOCATION) or row.get("run"))


def _parse_number(row: Mapping[str, Scalar], name: str) -> float | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{_row_location(row)}: {value!r} under {name} is no number.")
    return number
