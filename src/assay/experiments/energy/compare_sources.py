"""Where cells to compare come from: run folders, folders of runs, ``energy.json``, and tables of rows."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.durable import read_json, read_text
from assay.core.errors import BadInput, DamagedFile
from assay.core.values import first_problem
from assay.experiments.energy.comparing import FIGURES_OF, Known, Of, Point
from assay.experiments.energy.csv_rows import parse
from assay.experiments.energy.flat import CELL, KEY, KNOWN, flat_rows
from assay.experiments.energy.report_files import JSON_FILE
from assay.experiments.energy.rows import EnergyResult
from assay.experiments.energy.score import SCORE
from assay.store.runs import run_paths
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from assay.core.results import Origin
    from assay.core.values import Scalar

PLACE = "place"
"""Of a row of a table: its file and number, for who must look at it."""
OTHER_LENGTH = 0.1
"""A share: prompts that are further from the length asked for are of another length."""
SETTINGS = ("backend_type", "revision", "attn_implementation", "compile", "isolation")
"""Of a configuration: how a model is run, beyond what a point has a name of its own for."""
REQUEST = ("prompts", "text_column_name", "truncation", "generate_kwargs", "reasoning", "reasoning_params")
"""Of a configuration: what a model is asked."""
NOT_COMPARED = "nothing of it can be compared"


@dataclass
class Sources:
    """The rows of all that could be read, and in words what could not be, and why."""

    rows: list[Mapping[str, Scalar]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)


def read(paths: Iterable[Path]) -> Sources:
    """Read all that paths hold.

    Raises:
        BadInput: None of it can be used, or a path is not there.
    """
    sources = Sources()
    paths = list(paths)
    for path in paths:
        if not path.exists():
            raise BadInput(f"{path} is not there.")
        for file in _files(path, sources):
            try:
                _take(file, sources)
            except DamagedFile:
                raise
            except BadInput as error:
                if len(paths) == 1 and file == path:
                    raise
                sources.unusable.append(str(error).rstrip("."))
    sources.rows = _each_once(sources.rows)
    if not sources.rows:
        raise BadInput(f"Nothing can be compared: {'; '.join(sources.unusable) or 'no cell was measured'}.")
    return sources


def _each_once(rows: Sequence[Mapping[str, Scalar]]) -> list[Mapping[str, Scalar]]:
    """Return rows without those that say again what a row before says: a run's folder and the table it was added to."""
    unique: dict[tuple[str, ...], Mapping[str, Scalar]] = {}
    for row in rows:
        unique.setdefault(tuple(str(row.get(name)) for name in ("model", "started_at", *KEY)), row)
    return list(unique.values())


def _files(path: Path, found: Sources) -> list[Path]:
    """Return the files that a path means: itself, or what is in a run folder or a folder of such."""
    if path.is_file():
        return [path]
    if (path / JSON_FILE).is_file():
        return [path / JSON_FILE]
    if (path / "plan.json").is_file():
        hint = f"was it stopped, `assay report {path}` writes it; else it is a run of something else"
        found.unusable.append(f"{path} holds no {JSON_FILE}: {hint}")
        return []
    inside = [run / JSON_FILE for run in run_paths(path) if (run / JSON_FILE).is_file()]
    if not inside:
        found.unusable.append(f"{path} is no run folder of `assay energy run`, and holds none")
    return inside


def _take(file: Path, found: Sources) -> None:
    verify_file(file)
    if file.suffix.lower() == ".csv":
        found.rows += _table(file, found)
        return
    content = read_json(file)
    try:
        result = EnergyResult.model_validate(content)
    except ValidationError as error:
        raise BadInput(f"{file} is not an {JSON_FILE} of this version of Assay: {first_problem(error)}.") from None
    name = result.run or file.parent.resolve().name
    found.rows += flat_rows(result.model_copy(update={"run": name}))
    found.left_out += [f"{name}: {cell} gave nothing: {why.rstrip('.')}" for cell, why in result.left_out.items()]


def _table(file: Path, found: Sources) -> list[Mapping[str, Scalar]]:
    table = parse(read_text(file).encode(), str(file), {*KNOWN, SCORE}, otherwise=NOT_COMPARED)
    if SCORE in table.columns:
        raise BadInput(
            f"{file} is a table of scores (ai_energy_score), which has neither speeds nor J/token; name the run "
            "folder, or the file of a csv reporter."
        )
    rows: list[Mapping[str, Scalar]] = []
    for number, cells in enumerate(table.rows, 1):
        if all(cells.get(name) for name in ("model", *CELL)):
            filled = {name: cell for name, cell in cells.items() if cell}
            rows.append({"run": file.stem, **filled, PLACE: f"{file}, row {number}"})
        else:
            found.unusable.append(f"{file}, row {number} names no cell (model, mode, sizes): another tool wrote it")
    if table.torn is not None:
        found.unusable.append(f"{file} ends in a line that was cut short")
    return rows


def phase_of(rows: Sequence[Mapping[str, Scalar]]) -> Of:
    """Return what all can be compared by: decoding, where every row has it; else whole requests."""
    rate, _ = FIGURES_OF["decode"]
    return "decode" if all(row.get(rate) not in {None, ""} for row in rows) else "requests"


def points(rows: Sequence[Mapping[str, Scalar]], of: Of) -> list[Point]:
    """Return the cells as points.

    Raises:
        BadInput: A cell of a table holds no number where one is needed.
    """
    return [_point(row, *FIGURES_OF[of]) for row in rows]


def _point(row: Mapping[str, Scalar], rate: str, joules: str) -> Point:
    def text(name: str) -> str:
        value = row.get(name)
        return "" if value is None else str(value)

    def whole(name: str) -> int:
        return int(_number(row, name) or 0)

    origin = text("origin")
    origins: dict[str, Origin] = {"fake": "fake", "simulated": "simulated"}
    return Point(
        run=text("run"),
        model=text("model"),
        placement=placement(row),
        mode=text("mode"),
        batch=whole("batch_size"),
        concurrency=whole("concurrency"),
        input_tokens=_prompt_tokens(row),
        output_tokens=whole("output_tokens"),
        gpu=re.sub(r"\d+ × ", "", text("gpu")) or "no GPU",
        dtype=text("config_dtype") or text("config_torch_dtype"),
        settings=_listed(row, SETTINGS),
        request=_listed(row, REQUEST),
        origin=origins.get(origin, "real"),
        partial=text("partial") == "True",
        rate=_known(row, rate),
        joules=_known(row, joules),
        why=why_not(text("why_not"), joules),
    )


def _listed(row: Mapping[str, Scalar], names: Sequence[str]) -> str:
    """Write what of a configuration a row has: ``attn_implementation=sdpa compile=True``."""
    values = {name: row.get(f"config_{name}") for name in names}
    return " ".join(f"{name}={value}" for name, value in values.items() if value not in {None, ""})


def why_not(reasons: str, figure: str) -> str | None:
    """Return why a figure is missing, from all reasons as a row has them."""
    for part in reasons.split("; "):
        reason, _, figures = part.rpartition(" (")
        if figure in figures.rstrip(")").split(", "):
            return reason
    return None


def placement(row: Mapping[str, Scalar]) -> str:
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
    requested = int(_number(row, "input_tokens") or 0)
    read, requests = _number(row, "measured_input_tokens"), _number(row, "measured_requests")
    if not read or not requests or abs(read / requests - requested) <= OTHER_LENGTH * requested:
        return requested
    return round(read / requests)


def _known(row: Mapping[str, Scalar], name: str) -> Known | None:
    value, low, high = (_number(row, f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return None
    if value <= 0 or (low is not None and low > value) or (high is not None and high < value):
        raise BadInput(f"{_place(row)}: {name} is {value:g} [{low}, {high}], which no measurement gives.")
    return Known(value, low, high)


def _place(row: Mapping[str, Scalar]) -> str:
    return str(row.get(PLACE) or row.get("run"))


def _number(row: Mapping[str, Scalar], name: str) -> float | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{_place(row)}: {value!r} under {name} is no number.")
    return number
