"""Compare cells of several runs: joules by speed, the Pareto front, the effect of one setting; and the page.

A point is *dominated* only where another is faster and takes less energy, both beyond the intervals. It is on the
*front* where no other could be better in both. Otherwise it is *unsure*. Without an interval a difference counts only
beyond a factor of two. Only points of the same request (tokens in, tokens out) and of the same origin are compared;
the same setting measured in several runs does not compete with itself.

Cells are read from run folders, folders of runs, ``energy.json`` files, and CSV tables.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pydantic import ValidationError

from assay.core.errors import BadInput, DamagedFile
from assay.core.files import read_json, read_text
from assay.core.format import format_bounds, format_count, ratio_cell
from assay.core.page import Column, Page, ScatterPlot, ScatterPoint, Section, Table, Text
from assay.core.values import first_problem
from assay.experiments.energy.result import (
    CELL_COLUMNS,
    JSON_FILE,
    KEY_COLUMNS,
    KNOWN_COLUMNS,
    SCORE_COLUMN,
    EnergyResult,
    flatten_rows,
    parse_csv_table,
)
from assay.experiments.reporting import overall_origin, table_columns
from assay.stats import ratios
from assay.store.records import verify_file
from assay.store.run_folder import run_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from assay.core.page import Cell, Element, Tone
    from assay.core.results import Origin
    from assay.core.values import Scalar

    SourceRow = Mapping[str, Scalar]


ComparedBy = Literal["model", "batch", "placement", "mode", "gpu", "run"]
ComparedPhase = Literal["decode", "prefill", "requests"]
ParetoState = Literal["front", "dominated", "unsure"]

COMPARED_BY: tuple[ComparedBy, ...] = ("batch", "mode", "placement", "model", "gpu", "run")
PHASE_FIGURES: dict[ComparedPhase, tuple[str, str]] = {
    "decode": ("decode_tokens_per_s", "decode_j_per_token"),
    "prefill": ("prefill_tokens_per_s", "prefill_j_per_token"),
    "requests": ("output_tokens_per_s", "j_per_output_token"),
}
"""The two figures of a cell that are compared: while decoding, while prompts are read, or of whole requests."""
ROW_LOCATION = "place"
"""The key under which a row of a table has its file and number, for errors."""
LENGTH_TOLERANCE = 0.1
"""Prompts whose length differs from the requested one by more than this share are of another length."""
SETTING_NAMES = ("backend_type", "revision", "attn_implementation", "compile", "isolation")
"""Settings of how a model is run, beyond what has a field of its own."""
REQUEST_NAMES = ("prompts", "text_column_name", "truncation", "generate_kwargs", "reasoning", "reasoning_params")
"""Settings of the request."""


@dataclass
class EnergySources:
    """The rows of all that could be read, and clauses on what could not be, and why."""

    rows: list[SourceRow] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)


def read_sources(paths: Iterable[Path]) -> EnergySources:
    """Read the cells of all paths; a run's folder and the table it was added to give each cell once.

    Raises:
        BadInput: None of it can be used, or a path does not exist.
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
    unique: dict[tuple[str, ...], SourceRow] = {}
    for row in sources.rows:
        unique.setdefault(tuple(str(row.get(name)) for name in ("model", "started_at", *KEY_COLUMNS)), row)
    sources.rows = list(unique.values())
    if not sources.rows:
        raise BadInput(f"Nothing can be compared: {'; '.join(sources.unusable) or 'no cell was measured'}.")
    return sources


def _find_files(path: Path, sources: EnergySources) -> list[Path]:
    """Return the files of a path: itself, or those in a run folder or a folder of run folders."""
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
        _read_table(file, sources)
        return
    content = read_json(file)
    try:
        result = EnergyResult.model_validate(content)
    except ValidationError as error:
        raise BadInput(f"{file} is not an {JSON_FILE} of this version of Assay: {first_problem(error)}.") from None
    name = result.run or file.parent.resolve().name
    sources.rows += flatten_rows(result.model_copy(update={"run": name}))
    sources.skipped += [f"{name}: {cell} has no result: {why.rstrip('.')}" for cell, why in result.skipped.items()]


def _read_table(file: Path, sources: EnergySources) -> None:
    known_columns = {*KNOWN_COLUMNS, SCORE_COLUMN}
    table = parse_csv_table(
        read_text(file).encode(), str(file), known_columns, otherwise="nothing of it can be compared"
    )
    if SCORE_COLUMN in table.columns:
        raise BadInput(
            f"{file} is a table of scores (ai_energy_score), which has neither speeds nor J/token; name the run "
            "folder, or the file of a csv reporter."
        )
    for number, cells in enumerate(table.rows, 1):
        location = f"{file}, row {number}"
        if all(cells.get(name) for name in ("model", *CELL_COLUMNS)):
            filled = {name: cell for name, cell in cells.items() if cell}
            sources.rows.append({"run": file.stem, **filled, ROW_LOCATION: location})
        else:
            sources.unusable.append(f"{location} names no cell (model, mode, sizes): another tool wrote it")
    if table.torn is not None:
        sources.unusable.append(f"{file} ends in a line that was cut short")


def choose_phase(rows: Sequence[SourceRow]) -> ComparedPhase:
    """Return the phase that all rows have: decoding where that is known of every row, else whole requests."""
    rate, _ = PHASE_FIGURES["decode"]
    return "decode" if all(row.get(rate) not in {None, ""} for row in rows) else "requests"


@dataclass(frozen=True)
class PointValue:
    """A number, and its interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    def surely_below(self, other: PointValue) -> bool:
        """Return whether all of this interval lies below all of the other.

        A number without an interval is taken as it stands, and then the two must be more than a factor of two apart.
        """
        most = self.value if self.high is None else self.high
        least = other.value if other.low is None else other.low
        bare = self.high is None or other.low is None
        return most * (NO_INTERVAL_FACTOR if bare else 1.0) < least

    @property
    def is_bare(self) -> bool:
        """Whether it has no interval."""
        return self.low is None or self.high is None

    def over(self, divisor: float) -> PointValue:
        """Return the same, divided by a count."""
        low = None if self.low is None else self.low / divisor
        return PointValue(self.value / divisor, low, None if self.high is None else self.high / divisor)


@dataclass(frozen=True)
class ComparedPoint:
    """One cell of one run. Null: not measured, for ``missing_reason``.

    ``settings`` is how the model was run beyond what has a name of its own: backend, revision, attention, isolation.
    ``request`` is what it was asked beyond the number of tokens: prompts, how they are answered.
    """

    run: str
    model: str
    placement: str
    mode: str
    batch: int
    concurrency: int
    input_tokens: int
    output_tokens: int
    gpu: str
    dtype: str = ""
    settings: str = ""
    request: str = ""
    origin: Origin = "real"
    partial: bool = False
    rate: PointValue | None = None
    joules: PointValue | None = None
    missing_reason: str | None = None

    @property
    def at_once(self) -> int:
        """Number of sequences that share the tokens."""
        return self.concurrency if self.mode == "server" else self.batch

    @property
    def size(self) -> str:
        """The same as text."""
        return f"{self.concurrency} at once" if self.mode == "server" else f"batch {self.batch}"

    @property
    def work(self) -> str:
        """The request as text: its tokens in and out, and what else of it is known."""
        tokens = f"{self.input_tokens} in, {self.output_tokens} out"
        return f"{tokens}, {self.request}" if self.request else tokens

    @property
    def rate_per_sequence(self) -> PointValue | None:
        """The tokens per second of one sequence."""
        return None if self.rate is None else self.rate.over(self.at_once)

    @property
    def is_bare(self) -> bool:
        """Whether its speed or its energy has no interval."""
        return any(value is not None and value.is_bare for value in (self.rate, self.joules))

    def rate_and_joules(self, *, per_sequence: bool) -> tuple[PointValue, PointValue] | None:
        """Return its coordinates; null where one of them is missing."""
        rate = self.rate_per_sequence if per_sequence else self.rate
        return None if rate is None or self.joules is None else (rate, self.joules)

    def describe(self, aspect: str) -> str:
        """Return one of the aspects in which points may differ, as text."""
        return self.size if aspect == "batch" else str(getattr(self, aspect))

    @property
    def identity(self) -> tuple[str, ...]:
        """The setting; points that are equal in it are the same thing, measured twice perhaps."""
        return tuple(self.describe(name) for name in POINT_ASPECTS)


POINT_ASPECTS = ("model", "gpu", "dtype", "placement", "settings", "mode", "batch")
"""Aspects in which points may differ, in the order of a label."""
NO_INTERVAL_FACTOR = 2.0
"""Without an interval, a number is surely above another only beyond this factor."""


def build_points(rows: Sequence[SourceRow], phase: ComparedPhase) -> list[ComparedPoint]:
    """Return the cells as points.

    Raises:
        BadInput: A cell of a table holds no number where one is needed.
    """
    return [_build_point(row, *PHASE_FIGURES[phase]) for row in rows]


def _build_point(row: SourceRow, rate: str, joules: str) -> ComparedPoint:
    origins: dict[str, Origin] = {"fake": "fake", "simulated": "simulated"}
    read, requests = _parse_number(row, "measured_input_tokens"), _parse_number(row, "measured_requests")
    input_tokens = _parse_count(row, "input_tokens")
    if read and requests and abs(read / requests - input_tokens) > LENGTH_TOLERANCE * input_tokens:
        input_tokens = round(read / requests)
    return ComparedPoint(
        run=_text(row, "run"),
        model=_text(row, "model"),
        placement=format_placement(row),
        mode=_text(row, "mode"),
        batch=_parse_count(row, "batch_size"),
        concurrency=_parse_count(row, "concurrency"),
        input_tokens=input_tokens,
        output_tokens=_parse_count(row, "output_tokens"),
        gpu=re.sub(r"\d+ × ", "", _text(row, "gpu")) or "no GPU",
        dtype=_text(row, "config_dtype") or _text(row, "config_torch_dtype"),
        settings=_format_settings(row, SETTING_NAMES),
        request=_format_settings(row, REQUEST_NAMES),
        origin=origins.get(_text(row, "origin"), "real"),
        partial=_text(row, "partial") == "True",
        rate=_parse_value(row, rate),
        joules=_parse_value(row, joules),
        missing_reason=find_missing_reason(_text(row, "missing_reasons"), joules),
    )


def _text(row: SourceRow, name: str) -> str:
    value = row.get(name)
    return "" if value is None else str(value)


def _format_settings(row: SourceRow, names: Sequence[str]) -> str:
    """Write the settings that a row has: ``attn_implementation=sdpa compile=True``."""
    return " ".join(f"{name}={value}" for name in names if (value := _text(row, f"config_{name}")))


def find_missing_reason(reasons: str, figure: str) -> str | None:
    """Return why a figure is missing, from all reasons as ``format_missing_reasons`` writes them."""
    for part in reasons.split("; "):
        reason, _, figures = part.rpartition(" (")
        if figure in figures.rstrip(")").split(", "):
            return reason
    return None


def format_placement(row: SourceRow) -> str:
    """Write where a model was: ``GPU 0``, ``GPUs 0,1 balanced``, ``GPUs 0,1 tensor parallel``, ``cpu``, ``server``."""
    numbers, device_map = _text(row, "config_device_ids"), _text(row, "config_device_map")
    several = "," in numbers
    text = f"GPU{'s' if several else ''} {numbers}"
    if row.get("mode") == "server":
        return f"server on {text}" if numbers else "server"
    if not numbers or _text(row, "config_device") == "cpu":
        return f"cpu beside {text}" if numbers else "cpu"
    if _text(row, "config_tp_plan"):
        text += " tensor parallel"
    elif device_map and (several or device_map != "auto"):
        text += f" {device_map}"
    limits = _text(row, "config_max_memory")
    return f"{text}, at most {limits}" if limits else text


def _parse_value(row: SourceRow, name: str) -> PointValue | None:
    value, low, high = (_parse_number(row, f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return None
    if value <= 0 or (low is not None and low > value) or (high is not None and high < value):
        raise BadInput(f"{_row_location(row)}: {name} is {value:g} [{low}, {high}], which no measurement gives.")
    return PointValue(value, low, high)


def _row_location(row: SourceRow) -> str:
    return str(row.get(ROW_LOCATION) or row.get("run"))


def _parse_count(row: SourceRow, name: str) -> int:
    return int(_parse_number(row, name) or 0)


def _parse_number(row: SourceRow, name: str) -> float | None:
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


@dataclass(frozen=True)
class ParetoStanding:
    """Whether a point is on the front; where it is not, who dominates it."""

    state: ParetoState
    by: ComparedPoint | None = None


@dataclass(frozen=True)
class SettingChange:
    """The effect of changing one setting: the second over the first, all else the same."""

    fixed: str
    first: str
    second: str
    rate: PointValue | None
    joules: PointValue | None


def group_comparable(points: Sequence[ComparedPoint]) -> dict[tuple[int, int, str, str], list[ComparedPoint]]:
    """Return the points that may be compared, by tokens in, tokens out, request, and origin."""
    groups: dict[tuple[int, int, str, str], list[ComparedPoint]] = {}
    for point in points:
        groups.setdefault((point.input_tokens, point.output_tokens, point.request, point.origin), []).append(point)
    return groups


def differing_aspects(points: Sequence[ComparedPoint]) -> list[str]:
    """Return the aspects in which points differ; the run only where nothing else tells two of them apart."""
    names = [name for name in POINT_ASPECTS if len({point.describe(name) for point in points}) > 1]
    identities = {(point.identity, point.input_tokens, point.output_tokens) for point in points}
    return names if len(identities) == len(points) else [*names, "run"]


def choose_compared_by(points: Sequence[ComparedPoint]) -> ComparedBy:
    """Return the first setting that varies."""
    return next((by for by in COMPARED_BY if len({point.describe(by) for point in points}) > 1), "batch")


def rank_points(points: Sequence[ComparedPoint], *, per_sequence: bool = False) -> list[ParetoStanding | None]:
    """Return the standing of each point among those given; null where one of its two numbers is missing.

    ``per_sequence``: by the speed of one sequence, not by that of all together.
    """
    pairs = [(point, pair) for point in points if (pair := point.rate_and_joules(per_sequence=per_sequence))]
    ranking: list[ParetoStanding | None] = []
    for point in points:
        own = point.rate_and_joules(per_sequence=per_sequence)
        rivals = [(pair, other) for other, pair in pairs if other.identity != point.identity]
        ranking.append(None if own is None else _rank_point(*own, rivals))
    return ranking


def _rank_point(
    rate: PointValue, joules: PointValue, rivals: Sequence[tuple[tuple[PointValue, PointValue], ComparedPoint]]
) -> ParetoStanding:
    better = [(pair, point) for pair, point in rivals if rate.surely_below(pair[0]) and pair[1].surely_below(joules)]
    if better:
        return ParetoStanding("dominated", min(better, key=lambda candidate: candidate[0][1].value)[1])
    safe = all(pair[0].surely_below(rate) or joules.surely_below(pair[1]) for pair, _ in rivals)
    return ParetoStanding("front" if safe else "unsure")


def pareto_front_path(points: Sequence[ComparedPoint], *, per_sequence: bool = False) -> list[int]:
    """Return the indices of those that none beats in both by value alone, from the slowest to the fastest."""
    coordinates = [point.rate_and_joules(per_sequence=per_sequence) for point in points]
    pairs = {index: pair for index, pair in enumerate(coordinates) if pair is not None}

    def is_beaten(index: int) -> bool:
        rate, joules = pairs[index]
        return any(
            other[0].value >= rate.value and other[1].value <= joules.value and other != pairs[index]
            for other in pairs.values()
        )

    return sorted((index for index in pairs if not is_beaten(index)), key=lambda index: pairs[index][0].value)


def compute_changes(points: Sequence[ComparedPoint], by: ComparedBy) -> list[SettingChange]:
    """Return the effect of each value of one setting against the first, all else the same; within a run if possible."""
    fixed = [name for name in differing_aspects(points) if name != by]
    return _changes_at(points, by, fixed) or _changes_at(points, by, [name for name in fixed if name != "run"])


def _changes_at(points: Sequence[ComparedPoint], by: ComparedBy, fixed: Sequence[str]) -> list[SettingChange]:
    comparable = group_comparable(points)
    groups: dict[tuple[str, ...], list[ComparedPoint]] = {}
    for shape, of_shape in comparable.items():
        for point in of_shape:
            groups.setdefault((*map(str, shape), *(point.describe(name) for name in fixed)), []).append(point)
    changes = []
    for group in groups.values():
        first = min(group, key=lambda point: point.at_once) if by == "batch" else group[0]
        texts = [*(first.describe(name) for name in fixed), *([first.work] if len(comparable) > 1 else [])]
        for point in group:
            if point.describe(by) != first.describe(by):
                rate, joules = ratio_of_values(point.rate, first.rate), ratio_of_values(point.joules, first.joules)
                changes.append(SettingChange(", ".join(texts), first.describe(by), point.describe(by), rate, joules))
    return changes


def ratio_of_values(top: PointValue | None, bottom: PointValue | None) -> PointValue | None:
    """Return one number over another, with the interval as of independent numbers."""
    if top is None or bottom is None:
        return None
    levels = [ratios.log_estimate(value.value, value.low, value.high, None) for value in (bottom, top)]
    if levels[0] is None or levels[1] is None:
        return None
    interval = ratios.divide_estimates(levels[0], levels[1]).interval() or (None, None)
    return PointValue(top.value / bottom.value, *interval)


RATE_TITLES: dict[ComparedPhase, str] = {
    "decode": "output tokens/s while decoding",
    "prefill": "input tokens/s while prompts are read",
    "requests": "output tokens/s of whole requests",
}
STATE_TONES: dict[ParetoState, Tone] = {"front": "good", "dominated": "plain", "unsure": "unsure"}
UNINFORMATIVE_FACTOR = 10.0
"""An interval that reaches further from its number than this factor says nothing."""
LOG_AXIS_FACTOR = 4.0
"""Numbers further apart than this factor are drawn on a logarithmic axis."""
MAX_NOTES = 20


def needs_log_axis(values: Sequence[float]) -> bool:
    """Return whether numbers are far enough apart for a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) >= LOG_AXIS_FACTOR


def format_value(number: PointValue | None) -> str | None:
    """Write a number and its interval, with as many decimals: ``0.170 (0.165–0.175)``."""
    if number is None:
        return None
    value, low, high = number.value, number.low, number.high
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    factor = UNINFORMATIVE_FACTOR
    informative = low is None or high is None or (high <= factor * value and low * factor >= value)

    def write(end: float) -> str:
        return f"{end:,.{decimals}f}"

    return format_bounds(write(value), low, high, write, informative=informative)


def name_point(point: ComparedPoint, points: Sequence[ComparedPoint]) -> str:
    """Name a point by what tells it from the others."""
    return ", ".join(point.describe(name) for name in differing_aspects(points)) or point.size


def comparison_page(
    points: Sequence[ComparedPoint], phase: ComparedPhase, by: ComparedBy, *, notes: Sequence[str] = ()
) -> Page:
    """Return the whole page."""
    groups = group_comparable(points).values()
    tables = [points_table(group, phase, points) for group in groups]
    figures = [figure for number, group in enumerate(groups, 1) for figure in pareto_figures(group, phase, by, number)]
    texts = [Text(text=text, tone=tone) for text, tone in comparison_notes(points, phase)]
    texts += [Text(text=f"{note.rstrip('.')}.", tone="bad") for note in notes[:MAX_NOTES]]
    sections = (
        Section(title="Results", elements=(*tables, *change_tables(points, by))),
        Section(title="Joules by speed", elements=tuple(figures)),
        Section(title="What to know", elements=tuple(texts)),
    )
    models = list(dict.fromkeys(point.model for point in points))
    of = models[0] if len(models) == 1 else f"{len(models)} models"
    return Page(
        title=f"assay energy compare: {format_count(len(points), 'cell')} of {of}",
        lead=comparison_headline(points, phase),
        sections=tuple(section for section in sections if section.elements),
        origin=overall_origin(points),
    )


def comparison_headline(points: Sequence[ComparedPoint], phase: ComparedPhase) -> str:
    """Say which takes the least energy for each kind of request, and whether that is sure."""
    groups = group_comparable(points).values()
    sentences = [_lowest_energy_sentence(group, phase, several=len(groups) > 1) for group in groups]
    if any(sentences):
        return " ".join(filter(None, sentences))
    why = next((point.missing_reason for point in points if point.missing_reason), "nothing metered it")
    return f"No GPU energy is known of {'this cell' if len(points) == 1 else 'these cells'}: {why.rstrip('.')}."


def _lowest_energy_sentence(points: Sequence[ComparedPoint], phase: ComparedPhase, *, several: bool) -> str | None:
    metered = [(point, point.joules) for point in points if point.joules is not None]
    if not metered:
        return None
    best, least = min(metered, key=lambda pair: pair[1].value)
    token = "input token" if phase == "prefill" else "output token"
    shape = f", {best.input_tokens} in and {best.output_tokens} out" if several else ""
    speed = f" at {format_value(PointValue(best.rate.value))} tokens/s" if best.rate else ""
    text = f"The least GPU energy per {token}{shape}: {name_point(best, points)}, {format_value(least)} J{speed}."
    near = [point for point, joules in metered if point is not best and not least.surely_below(joules)]
    if near:
        shown = "; ".join(name_point(point, points) for point in near[:2]) + (" and others" if len(near) > 2 else "")
        text += f" Not distinguishable from it: {shown}."
    states = [standing.state for standing in rank_points(points) if standing is not None]
    if len(states) > 1:
        words: dict[ParetoState, str] = {"front": "on the front", "dominated": "dominated", "unsure": "unsure"}
        counts = [f"{states.count(state)} {text}" for state, text in words.items() if state in states]
        text += f" Of {len(states)}: {', '.join(counts)}."
    return text


def comparison_notes(points: Sequence[ComparedPoint], phase: ComparedPhase) -> list[tuple[str, Tone]]:
    """Return what a reader should know before believing it."""
    notes: list[tuple[str, Tone]] = []
    origins = sorted({point.origin for point in points})
    if len(origins) > 1:
        notes.append((f"Origins are mixed ({', '.join(origins)}): only equal ones are compared.", "bad"))
    gpus = list(dict.fromkeys(point.gpu for point in points if point.joules is not None))
    if len(gpus) > 1:
        gain = "each card's counter may be off by a gain of its own, of several percent on some"
        notes.append((f"Different GPUs ({'; '.join(gpus)}): {gain}, which no interval here holds.", "unsure"))
    bare = sum(point.is_bare for point in points)
    if bare:
        text = f"{bare} of {len(points)} have a number with no interval: more repeats would give one."
        notes.append((f"{text} Without it a difference counts only beyond a factor of two.", "unsure"))
    partial = [name_point(point, points) for point in points if point.partial]
    if partial:
        notes.append((f"Partial, some of its processes, phases or tokens are missing: {'; '.join(partial)}.", "unsure"))
    lacking = [point for point in points if point.joules is None or point.rate is None]
    if lacking and len(lacking) < len(points):
        why = next((f": {point.missing_reason}" for point in lacking if point.missing_reason), "")
        notes.append((f"{len(lacking)} of {len(points)} lack speed or energy{why}.", "unsure"))
    if phase == "requests" and any(point.mode == "server" for point in points):
        notes.append(("A server's phases cannot be told apart, so whole requests are compared.", "plain"))
    return notes


def points_table(points: Sequence[ComparedPoint], phase: ComparedPhase, everything: Sequence[ComparedPoint]) -> Table:
    """Return points of one kind of request, the least energy first, each by its number."""
    points = sorted(points, key=_energy_key)
    together, per_sequence = rank_points(points), rank_points(points, per_sequence=True)
    names = differing_aspects(everything)
    titles = ["#", *("sequences" if name == "batch" else name for name in names), "tokens/s", "each", "J/token"]
    columns = [Column(title=title, numeric=index > len(names)) for index, title in enumerate(titles)]
    rows: list[tuple[Cell, ...]] = []
    for number, point in enumerate(points, 1):
        own = point.rate_per_sequence
        values = (point.rate, None if own is None else PointValue(own.value), point.joules)
        rows.append((str(number), *(point.describe(name) for name in names), *map(format_value, values)))
    if any(together):
        columns += [Column(title="front"), Column(title="front, each")]
        standings = [[_format_standing(standing, points) for standing in part] for part in (together, per_sequence)]
        rows = [(*row, *marks) for row, marks in zip(rows, zip(*standings, strict=True), strict=True)]
    return Table(
        title=_table_title(points[0], everything),
        columns=tuple(columns),
        rows=tuple(rows),
        tones=tuple("plain" if mark is None else STATE_TONES[mark.state] for mark in together),
        note=(
            f"{RATE_TITLES[phase].capitalize()}, of all sequences together and of each; GPU energy alone, idle "
            "power within it; 95 % intervals. On the front: no other could be faster and take less. Dominated: another "
            "surely is and does, by its number. Unsure: the intervals do not say."
            + (" Without ( ): no interval (more repeats)." if any(point.is_bare for point in points) else "")
        ),
    )


def _table_title(first: ComparedPoint, everything: Sequence[ComparedPoint]) -> str:
    title = f"{first.input_tokens} tokens in, {first.output_tokens} out"
    if len({point.request for point in everything}) > 1:
        title += f", {first.request or 'of a request that is not recorded'}"
    return f"{title}, {first.origin}" if len({point.origin for point in everything}) > 1 else title


def _energy_key(point: ComparedPoint) -> tuple[bool, float]:
    return (True, -point.rate.value if point.rate else 0.0) if point.joules is None else (False, point.joules.value)


def _format_standing(standing: ParetoStanding | None, points: Sequence[ComparedPoint]) -> str | None:
    if standing is None:
        return None
    if standing.by is not None:
        return f"dominated by {points.index(standing.by) + 1}"
    return "on it" if standing.state == "front" else "unsure"


def pareto_figures(points: Sequence[ComparedPoint], phase: ComparedPhase, by: ComparedBy, number: int) -> list[Element]:
    """Return the Pareto figures of one kind of request: all sequences together, and each where that differs."""
    if not any(point.rate_and_joules(per_sequence=False) for point in points):
        return []
    figures: list[Element] = [pareto_scatter(points, phase, by, number, per_sequence=False)]
    if len({point.at_once for point in points}) > 1:
        figures.append(pareto_scatter(points, phase, by, number, per_sequence=True))
    return figures


def pareto_scatter(
    points: Sequence[ComparedPoint], phase: ComparedPhase, by: ComparedBy, number: int, *, per_sequence: bool
) -> ScatterPlot:
    """Return joules by speed, with the front; a dot's name is its batch where that differs, its colour all else."""
    ranking = rank_points(points, per_sequence=per_sequence)
    names = differing_aspects(points)
    label = "batch" if "batch" in names else by
    front = pareto_front_path(points, per_sequence=per_sequence)
    dots: dict[int, ScatterPoint] = {}
    for index, (point, standing) in enumerate(zip(points, ranking, strict=True)):
        pair = point.rate_and_joules(per_sequence=per_sequence)
        if pair is not None and standing is not None:
            rate, joules = pair
            dots[index] = ScatterPoint(
                label=point.describe(label),
                group=", ".join(point.describe(name) for name in names if name != label),
                x=rate.value,
                x_low=rate.low,
                x_high=rate.high,
                y=joules.value,
                y_low=joules.low,
                y_high=joules.high,
                tone=STATE_TONES[standing.state],
            )
    positions = {index: position for position, index in enumerate(dots)}
    path = [positions[index] for index in front if (mark := ranking[index]) and mark.state != "dominated"]
    whose = "of each sequence" if per_sequence else "of all sequences together"
    return ScatterPlot(
        title=f"Joules by speed {whose}: {points[0].input_tokens} tokens in, {points[0].output_tokens} out",
        name=f"pareto{'_each' if per_sequence else ''}{f'_{number}' if number > 1 else ''}",
        x_axis=f"{RATE_TITLES[phase]}, {whose.removeprefix('of ')}",
        y_axis="GPU energy (J/token)",
        dots=tuple(dots.values()),
        path=tuple(path),
        path_label="the front, by values alone",
        tones={"good": "on the front", "unsure": "inconclusive", "plain": "dominated"},
        log_x=needs_log_axis([dot.x for dot in dots.values()]),
        log_y=needs_log_axis([dot.y for dot in dots.values()]),
        note="Better is down and to the right. Bars are 95 % intervals.",
    )


def change_tables(points: Sequence[ComparedPoint], by: ComparedBy) -> list[Table]:
    """Return the effect of each value of one setting against its first; empty where it has one value."""
    changes = compute_changes(points, by)
    if not changes:
        return []
    has_fixed = any(change.fixed for change in changes)
    titles = [*(["at"] if has_fixed else []), "from", "to"]
    return [
        Table(
            title=f"What {'more sequences at once change' if by == 'batch' else f'another {by} changes'}, all else "
            "the same",
            columns=table_columns(*titles, "tokens/s", "J/token", words=len(titles)),
            rows=tuple(
                (
                    *([change.fixed] if has_fixed else []),
                    change.first,
                    change.second,
                    ratio_cell(change.rate),
                    ratio_cell(change.joules),
                )
                for change in changes
            ),
            note="Ratios as of independent numbers, which is wide for one and the same sensor; 1 is no change.",
        )
    ]
