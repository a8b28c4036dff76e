"""Read saved scaling results, judge their efficiency, and build the page of ``assay scaling analyse``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from assay.core.errors import BadInput, DamagedFile
from assay.core.files import read_json
from assay.core.format import format_count, format_percent, format_time, percent_cell
from assay.core.page import Page, Section, Text, build_table
from assay.core.results import Finding, Findings
from assay.core.values import first_problem
from assay.experiments.reporting import CLAIM_TONES
from assay.experiments.scaling.analysis import analyse_scaling
from assay.experiments.scaling.plan import ScalingOptions
from assay.experiments.scaling.result_rows import (
    NOT_COMPARABLE,
    add_speedups,
    build_run_rows,
    label_rows,
    label_with_ranks,
    newest_rows,
)
from assay.experiments.scaling.timings import judge_at_least
from assay.store.identity import machine_model
from assay.store.records import verify_file
from assay.store.run_folder import RunFolder, run_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pydantic import JsonValue

    from assay.core.page import Cell, Element, Table
    from assay.core.results import Verdict
    from assay.experiments.scaling.result_rows import ScalingFigures, ScalingRow


ItemT = TypeVar("ItemT")
EXPERIMENT_NAME = "scaling"
PLAN_FILE = "plan.json"
OLDER_FOLDER = "older"
LATEST_COPY = "latest.json"
"""The same as another file, as a rule, and so read last."""


@dataclass(frozen=True)
class ScalingSources:
    """The rows of all that could be read, each shape once; sentences on what could not be, and notes on the rest."""

    rows: tuple[ScalingRow, ...]
    unusable: tuple[str, ...]
    notes: tuple[str, ...]


def read_sources(path: Path) -> ScalingSources:
    """Read all that a path holds.

    Raises:
        BadInput: None of it can be used.
    """
    runs, files = _find_runs_and_files(path)
    unusable: list[str] = []
    notes: list[str] = []
    measured = [row for run in runs for row in _try_read(_read_run, run, unusable)]
    # The older files that a run leaves behind say the same as it does.
    copies = [read_json(file) for run in runs for file in sorted((run / OLDER_FOLDER).rglob("*.json"))]
    by_time = sorted(_read_files(files, copies, unusable, notes), key=lambda timed_rows: timed_rows[0])
    rows = [*(row for _, of_file in by_time for row in of_file), *measured]
    if not rows:
        raise BadInput(f"Nothing in {path} can be used: {'; '.join(unusable)}.")
    newest = newest_rows(rows)
    bare = dict.fromkeys(row.source for row in newest if row.speedup is None and row.assay_version is not None)
    notes += [f"{source} has no intervals: no gate is decided by it." for source in bare]
    if len(newest) < len(rows):
        notes.append("Some shapes were measured more than once; of each the newest is shown.")
    return ScalingSources(add_speedups(newest), tuple(unusable), tuple(notes))


def _find_runs_and_files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the run folders and the files that a path names."""
    if not path.exists():
        raise BadInput(f"{path} is not there.")
    if path.is_file():
        return [], [path]
    if (path / PLAN_FILE).is_file():
        return [path], []
    runs, files = run_paths(path), sorted(path.glob("*.json"), key=lambda file: (file.name == LATEST_COPY, file.name))
    if not runs and not files:
        raise BadInput(f"{path} is neither a run folder nor a folder of runs or of .json files.")
    return runs, files


def _read_files(
    files: Sequence[Path], copies: Sequence[JsonValue], unusable: list[str], notes: list[str]
) -> list[tuple[str, tuple[ScalingRow, ...]]]:
    """Return the rows of each file, and when it was written; of files with the same content one is read."""
    from assay.compat.scaling import parse_results

    texts = [json.dumps(copy, sort_keys=True) for copy in copies]
    result: list[tuple[str, tuple[ScalingRow, ...]]] = []
    for file in files:
        for content in _try_read(_read_content, file, unusable):
            text = json.dumps(content, sort_keys=True)
            if text in texts:
                continue
            texts.append(text)
            try:
                parsed = parse_results(content, file.name)
            except BadInput as error:
                unusable.append(f"{file}: {error}")
                continue
            result.append((parsed.timestamp, parsed.rows))
            notes += [f"{file}: {problem}." for problem in parsed.problems]
    return result


def _try_read(reader: Callable[[Path], list[ItemT]], path: Path, unusable: list[str]) -> list[ItemT]:
    """Return what a reader finds, or nothing, having kept what it says."""
    try:
        return reader(path)
    except DamagedFile:
        raise
    except BadInput as error:
        unusable.append(str(error).rstrip("."))
        return []


def _read_content(file: Path) -> list[JsonValue]:
    if not file.stat().st_size:
        raise BadInput(f"{file} is empty.")
    verify_file(file)
    return [read_json(file)]


def _read_run(path: Path) -> list[ScalingRow]:
    """Return what a run measured."""
    folder = RunFolder.open(path)
    if folder.plan.experiment != EXPERIMENT_NAME:
        raise BadInput(f"{path} is a run of the experiment {folder.plan.experiment}, not of {EXPERIMENT_NAME}.")
    try:
        options = ScalingOptions.model_validate(folder.plan.options)
    except ValidationError as error:
        raise BadInput(f"{path} has options of another version of Assay: {first_problem(error)}.") from None
    analysis = analyse_scaling(folder.machine, options, folder.records())
    version = folder.plan.versions.get("assay") or "unknown"
    rows = build_run_rows(options, analysis, folder.path.name, version, machine_model(folder.machine))
    if not rows:
        raise BadInput(f"{path} holds no shape that was measured.")
    return list(rows)


NO_INTERVAL_REASON = "it has no interval over several starts; --repeat 5 measures one"


@dataclass(frozen=True)
class JudgedRow:
    """A shape, whether it is efficient enough, and what must be known of that."""

    row: ScalingRow
    verdict: Verdict
    reason: str | None


def judge_row(row: ScalingRow, least: float) -> JudgedRow:
    """Return whether a shape of several ranks is efficient enough; unsure for those of the older tool."""
    share = row.efficiency
    if row.assay_version is None or share is None:
        return JudgedRow(row, "unsure", row.note or "its efficiency is not known")
    if not row.is_over_starts:
        return JudgedRow(row, "unsure", "; ".join(filter(None, [NO_INTERVAL_REASON, row.note])))
    return JudgedRow(row, judge_at_least(share, least), row.note)


def can_decide(judged_rows: Sequence[JudgedRow]) -> bool:
    """Return whether there is a shape that a gate can rest on, whatever its efficiency is."""
    return any(judged_row.row.assay_version is not None and judged_row.row.is_over_starts for judged_row in judged_rows)


def judge_rows(rows: Sequence[ScalingRow], least: float) -> tuple[JudgedRow, ...]:
    """Return every shape of several ranks, judged."""
    return tuple(judge_row(row, least) for row in rows if row.world > 1)


def combine_verdicts(judged_rows: Sequence[JudgedRow]) -> Verdict:
    """Return the verdict on all: one that is surely not enough decides; nothing to judge decides nothing."""
    verdicts = {judged_row.verdict for judged_row in judged_rows}
    if "no" in verdicts:
        return "no"
    return "unsure" if "unsure" in verdicts or not verdicts else "yes"


REQUIRED_EFFICIENCY = 0.7
"""The default, from the older tool's recipe for CI."""


def build_findings(sources: ScalingSources, least: float) -> Findings:
    """Return whether each shape of several ranks uses them well enough."""
    rows, names = judge_rows(sources.rows, least), label_rows(sources.rows)
    findings = tuple(_build_finding(one, names[one.row], least) for one in rows)
    return Findings(headline=write_headline(sources.rows, rows, least), findings=findings)


def write_headline(rows: Sequence[ScalingRow], judged_rows: Sequence[JudgedRow], least: float) -> str:
    """Return the answer in one sentence."""
    if not judged_rows:
        return f"{format_count(len(rows), 'shape')} of one rank; of several ranks there is none to judge."
    efficiencies = [
        (one.row.efficiency, one.row) for one in judged_rows if one.row.efficiency and one.row.assay_version
    ]
    if not efficiencies:
        older = judged_rows[0].row.assay_version is None
        why = "all are of the older tool, whose speedups mean nothing" if older else "no baseline fits"
        return f"How efficient {len(judged_rows)} shapes of several ranks are cannot be said: {why}."
    efficiency, worst = min(efficiencies, key=lambda pair: pair[0].value)
    lowest = f"{percent_cell(efficiency)} at {worst.requested_length:,} tokens over {worst.world} ranks"
    yes, no, unsure = (sum(one.verdict == verdict for one in judged_rows) for verdict in ("yes", "no", "unsure"))
    enough = f"{'is' if yes == 1 else 'are'}{'' if yes else ' surely'} at least {format_percent(least)} efficient"
    clauses = [f"{yes or 'none'} {enough}"]
    clauses += [f"{no} {'is' if no == 1 else 'are'} not"] if no else []
    clauses += [f"of {unsure} it cannot be told"] if unsure else []
    return f"Of {len(judged_rows)} shapes of several ranks {', '.join(clauses)}; the lowest is {lowest}."


def _build_finding(one: JudgedRow, label: str, least: float) -> Finding:
    row = one.row
    return Finding(
        claim=f"{label_with_ranks(row, label)} are at least {format_percent(least)} efficient",
        estimate=row.efficiency,
        verdict=one.verdict,
        records=(),
        reason=one.reason,
        facts={
            "source": row.source,
            "assay": row.assay_version,
            "sequence": row.tokens or None,
            "batch": row.batch,
            "world": row.world,
            "ring": row.ring,
            "time_ms": row.time_ms.value,
            "tokens_per_s": None if row.throughput is None else row.throughput.value,
            "speedup": None if row.speedup is None else row.speedup.value,
            "communication_ms": row.communication_ms,
            "memory_gib": row.memory_gib,
        },
    )


def build_page(sources: ScalingSources, findings: Findings, figures: ScalingFigures, name: str, least: float) -> Page:
    """Return the whole page."""
    verdict = combine_verdicts(judge_rows(sources.rows, least))
    unusable = [Text(text=f"{text}.", tone="unsure") for text in sources.unusable]
    elements: dict[str, Sequence[Element]] = {
        "Results": _result_elements(sources, least),
        "Scaling": figures.scaling,
        "Memory": figures.memory,
        "At a glance": figures.heat_maps,
        "What could not be used": unusable,
    }
    sections = (Section(title=title, elements=tuple(of_section)) for title, of_section in elements.items())
    return Page(
        title=f"assay scaling analyse: {name}",
        lead=findings.headline,
        lead_tone=CLAIM_TONES[verdict],
        sections=tuple(section for section in sections if section.elements),
        facts=(("sources", ", ".join(dict.fromkeys(row.source for row in sources.rows))),),
    )


def _result_elements(sources: ScalingSources, least: float) -> tuple[Element, ...]:
    """Return a table of what Assay measured, one of what the older tool did, and what to know of both."""
    own = [row for row in sources.rows if row.assay_version is not None]
    older = [row for row in sources.rows if row.assay_version is None]
    names = label_rows(sources.rows)
    shown: list[Element] = []
    if own:
        shown.append(results_table(own, "What Assay measured", least, None))
    if older:
        shown.append(results_table(older, "What the older tool measured", least, NOT_COMPARABLE))
    notes = dict.fromkeys(f"{label_with_ranks(row, names[row])}: {row.note}." for row in own if row.note)
    return (*shown, *(Text(text=text, tone="unsure") for text in (*notes, *sources.notes)))


def results_table(rows: Sequence[ScalingRow], title: str, least: float, note: str | None) -> Table:
    """Return one row for each shape; marked by the verdict where there are several ranks."""
    names, verdicts = label_rows(rows), {one.row: one.verdict for one in judge_rows(rows, least)}
    plain = f"Marked by whether at least {format_percent(least)} efficiency is sure, surely missed, or neither."

    def transfers(row: ScalingRow) -> Cell:
        return None if row.communication_ms is None else format_time(row.communication_ms * 1e3)

    columns: dict[str, Callable[[ScalingRow], Cell]] = {
        "shape": lambda row: label_with_ranks(row, names[row].removesuffix(", older tool")),
        "time": lambda row: format_time(row.time_ms.value * 1e3),
        "tokens/s": lambda row: None if row.throughput is None else f"{row.throughput.value:,.0f}",
        "speedup": lambda row: None if row.speedup is None else f"{row.speedup.value:.3g}×",
        "efficiency": lambda row: percent_cell(row.efficiency),
        "transfers": transfers,
        "GiB a rank": lambda row: row.memory_gib,
    }
    return build_table(
        title,
        rows,
        columns,
        numeric=set(columns) - {"shape"},
        tone=lambda row: CLAIM_TONES[verdicts[row]] if row in verdicts else "plain",
        note=note or f"{plain} Transfers are those of a call by themselves; GiB are the allocator's peak.",
    )
