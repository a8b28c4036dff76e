"""What a path holds: a run, a folder of runs, a file of the older format, or a folder of such files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from assay.core.durable import read_json
from assay.core.errors import BadInput, DamagedFile
from assay.core.values import first_problem
from assay.experiments.scaling.analysis import analyse
from assay.experiments.scaling.older_rows import parse
from assay.experiments.scaling.options import ScalingOptions
from assay.experiments.scaling.rows import newest, with_speedups
from assay.experiments.scaling.run_rows import rows_of
from assay.store.identity import model_of
from assay.store.runs import RunFolder, run_paths
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pydantic import JsonValue

    from assay.experiments.scaling.rows import Row

ItemT = TypeVar("ItemT")
EXPERIMENT = "scaling"
PLAN = "plan.json"
OLDER = "older"
COPY = "latest.json"
"""The same as another file, as a rule, and so read last."""


@dataclass(frozen=True)
class Sources:
    """The rows of all that could be read, each shape once; in words what could not be, and what to know of the rest."""

    rows: tuple[Row, ...]
    unusable: tuple[str, ...]
    notes: tuple[str, ...]


def read(path: Path) -> Sources:
    """Read all that a path holds.

    Raises:
        BadInput: None of it can be used.
    """
    runs, files = _there(path)
    unusable: list[str] = []
    notes: list[str] = []
    measured = [row for run in runs for row in _tried(_run, run, unusable)]
    copies = [copy for run in runs for copy in _written(run)]
    by_time = sorted(_files(files, copies, unusable, notes), key=lambda timed_rows: timed_rows[0])
    rows = [*(row for _, of_file in by_time for row in of_file), *measured]
    if not rows:
        raise BadInput(f"Nothing in {path} can be used: {'; '.join(unusable)}.")
    each_once = newest(rows)
    bare = dict.fromkeys(row.source for row in each_once if row.speedup is None and row.by is not None)
    notes += [f"{source} has no intervals: no gate is decided by it." for source in bare]
    if len(each_once) < len(rows):
        notes.append("Some shapes were measured more than once; of each the newest is shown.")
    return Sources(with_speedups(each_once), tuple(unusable), tuple(notes))


def _there(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the run folders and the files that a path names."""
    if not path.exists():
        raise BadInput(f"{path} is not there.")
    if path.is_file():
        return [], [path]
    if (path / PLAN).is_file():
        return [path], []
    runs, files = run_paths(path), sorted(path.glob("*.json"), key=lambda file: (file.name == COPY, file.name))
    if not runs and not files:
        raise BadInput(f"{path} is neither a run folder nor a folder of runs or of .json files.")
    return runs, files


def _files(
    files: Sequence[Path], copies: Sequence[JsonValue], unusable: list[str], notes: list[str]
) -> list[tuple[str, tuple[Row, ...]]]:
    """Return what each file tells, and when it was written; one that says the same as another is read once."""
    texts = [json.dumps(copy, sort_keys=True) for copy in copies]
    result: list[tuple[str, tuple[Row, ...]]] = []
    for file in files:
        for content in _tried(_content, file, unusable):
            text = json.dumps(content, sort_keys=True)
            if text in texts:
                continue
            texts.append(text)
            try:
                parsed = parse(content, file.name)
            except BadInput as error:
                unusable.append(f"{file}: {error}")
                continue
            result.append((parsed.timestamp, parsed.rows))
            notes += [f"{file}: {problem}." for problem in parsed.problems]
    return result


def _tried(reader: Callable[[Path], list[ItemT]], path: Path, unusable: list[str]) -> list[ItemT]:
    """Return what a reader finds, or nothing, having kept what it says."""
    try:
        return reader(path)
    except DamagedFile:
        raise
    except BadInput as error:
        unusable.append(str(error).rstrip("."))
        return []


def _content(file: Path) -> list[JsonValue]:
    if not file.stat().st_size:
        raise BadInput(f"{file} is empty.")
    verify_file(file)
    return [read_json(file)]


def _run(path: Path) -> list[Row]:
    """Return what a run measured."""
    folder = RunFolder.open(path)
    if folder.plan.experiment != EXPERIMENT:
        raise BadInput(f"{path} is a run of the experiment {folder.plan.experiment}, not of {EXPERIMENT}.")
    try:
        options = ScalingOptions.model_validate(folder.plan.options)
    except ValidationError as error:
        raise BadInput(f"{path} has options of another version of Assay: {first_problem(error)}.") from None
    analysis = analyse(folder.machine, options, folder.records())
    version = folder.plan.versions.get("assay") or "unknown"
    rows = rows_of(options, analysis, folder.path.name, version, model_of(folder.machine))
    if not rows:
        raise BadInput(f"{path} holds no shape that was measured.")
    return list(rows)


def _written(run: Path) -> list[JsonValue]:
    """Return the older files that a run left behind, which say the same as it does."""
    return [read_json(file) for file in sorted((run / OLDER).rglob("*.json"))] if (run / OLDER).is_dir() else []
