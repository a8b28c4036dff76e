"""What a path holds that can be compared: a run folder of any experiment, or a file that a tool or a version left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.core.durable import read_json
from assay.core.errors import BadInput
from assay.core.values import SCHEMA_VERSION
from assay.experiments.comparing import from_findings, from_older, from_run
from assay.experiments.comparing.values import Source
from assay.experiments.quality import disturbed_by, quality_of
from assay.experiments.scaling import sources as scaling
from assay.experiments.threshold import saved
from assay.experiments.threshold.older import FILE as THRESHOLDS
from assay.experiments.variance import sources as variance
from assay.isolation.targets import targets
from assay.store.identity import model_of
from assay.store.runs import RunFolder, run_paths
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pydantic import JsonValue

    from assay.core.results import Origin
    from assay.experiments.comparing.values import Number, View

    Reader = Callable[[], Sequence[Number]]

PLAN, RECORDS, FINDINGS = "plan.json", "records.jsonl", "findings.json"
NOTHING = "holds nothing that can be compared; known are run folders, findings.json, what --json printed, results of "
NOTHING += "`assay threshold`, and files of the older tools"


def read(path: Path) -> Source:
    """Return what a path holds.

    Raises:
        BadInput: It is not there, cannot be read, is of another version, or holds nothing that can be compared.
    """
    if not path.exists():
        raise BadInput(f"{path} does not exist.")
    if path.name == RECORDS:
        path = path.parent
    if path.is_dir():
        return _run(path) if (path / PLAN).is_file() else _folder(path)
    if not path.stat().st_size:
        raise BadInput(f"{path} is empty.")
    verify_file(path)
    content = read_json(path)
    _refuse_newer(content, path)
    try:
        return _file(path, content)
    except BadInput as error:
        message = str(error).rstrip(".")
        raise BadInput(f"{message}." if str(path) in message else f"{path}: {message}.") from None


def _refuse_newer(content: JsonValue, path: Path) -> None:
    version = content.get("schema", content.get("schema_version")) if isinstance(content, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BadInput(f"{path} was written by a newer Assay (schema {version}, here {SCHEMA_VERSION}); update Assay.")


def _run(path: Path) -> Source:
    """Return a run: its records, in the terms of its experiment too, and what it found."""
    _refuse_newer(read_json(path / PLAN), path / PLAN)
    folder = RunFolder.open(path)
    for left in (FINDINGS, THRESHOLDS):
        verify_file(path / left)
    experiment = folder.plan.experiment
    readers: dict[View, Reader] = {"times": lambda: from_run.numbers_of(folder)}
    if experiment == "threshold" and (path / THRESHOLDS).is_file():
        readers = {**_thresholds(path / THRESHOLDS, read_json(path / THRESHOLDS)), **readers}
    if experiment == scaling.EXPERIMENT:
        readers["shapes"] = lambda: from_older.of_shapes(scaling.read(path).rows, model_of(folder.machine))
    if experiment in variance.READABLE:
        readers["tunings"] = lambda: _tunings(path)
    if (path / FINDINGS).is_file():
        readers["findings"] = lambda: _findings(path / FINDINGS)
    records = folder.records()
    if not records:
        raise BadInput(f"{path} is a run in which nothing was measured yet.")
    origins: set[Origin] = {record.origin for record in records} - {"real"}
    bad = [record for record in records if record.status == "failed"]
    notes = [f"{len(bad)} of its {len(records)} trials failed: {bad[-1].reason}"] if bad else []
    notes += [disturbed] if (disturbed := disturbed_by(quality_of(records))) else []
    return Source(
        path=str(path),
        kind=f"a run of {experiment}",
        readers=readers,
        facts=_facts(folder, path),
        origin=min(origins, default="real"),
        notes=tuple(notes),
    )


def _facts(folder: RunFolder, path: Path) -> dict[str, str]:
    """Return what of a machine and its software may explain a difference."""
    machine = folder.machine
    facts = {
        "run": None if folder.path.name == path.name else folder.path.name,
        "host": machine.host,
        "GPUs": " ".join(target.uuid for target in targets(machine).values()),
        "driver": machine.driver,
        "kernel": machine.kernel,
        "commit": machine.git_commit,
        **{f"version of {name}": version for name, version in folder.plan.versions.items()},
    }
    return {name: value for name, value in facts.items() if value}


def _tunings(path: Path) -> list[Number]:
    """Return the tunings of a run: of one with phases, those of its baseline."""
    group = variance.read_group([path], "baseline")
    if not group.sources:
        raise BadInput(f"{'; '.join(group.unusable)}.")
    return from_older.of_tunings([source.older for source in group.sources])


def _tuning_files(path: Path) -> Source:
    """Return what an older tuner's file, or a folder of such, holds."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    group = variance.read_group(files, "baseline")
    if not group.sources:
        raise BadInput(f"{'; '.join(group.unusable)}.")
    numbers = from_older.of_tunings([source.older for source in group.sources])
    notes = (*group.unusable, *(f"{s.path}: {note}" for s in group.sources for note in s.older.notes))
    return Source(str(path), "older tuning results", {"tunings": lambda: numbers}, notes=notes)


def _shape_files(path: Path) -> Source:
    """Return what a file of times over ranks, or a folder of such, holds."""
    shapes = scaling.read(path)
    numbers = from_older.of_shapes(shapes.rows, None)
    notes = (*shapes.unusable, *(note.rstrip(".") for note in shapes.notes))
    return Source(str(path), "results over ranks", {"shapes": lambda: numbers}, notes=notes)


def _findings(path: Path) -> list[Number]:
    content = read_json(path)
    _refuse_newer(content, path)
    findings = content.get("findings") if isinstance(content, dict) else None
    if not isinstance(findings, list):
        raise BadInput(f"{path} has no list of findings.")
    machine = path.parent / "machine.json"
    model = model_of(RunFolder.open(path.parent).machine) if machine.is_file() else None
    try:
        return from_findings.of_findings(findings, model)
    except BadInput as error:
        raise BadInput(f"{path}: {error}.") from None


def _thresholds(path: Path, content: JsonValue) -> dict[View, Reader]:
    """Return how a result of ``assay threshold``, or of the older tool, is read."""
    data = content if isinstance(content, dict) else {"results": content}
    info, rows = data.get("device_info"), data.get("results")
    model = info.get("device_name") if isinstance(info, dict) else None
    named = model if isinstance(model, str) else None
    recommended = from_older.of_recommendation(data, named)
    readers: dict[View, Reader] = {}
    results = saved.read(path).results if "schema" in data else None
    if results is not None:
        readers["speed-ups"] = lambda: [*recommended, *from_older.of_speedups(results)]
    of_rows = from_older.of_rows(rows if isinstance(rows, list) else [], named)
    if not of_rows and results is None:
        raise BadInput("it has no row with a speed-up or a time")
    readers["rows"] = lambda: [*recommended, *of_rows]
    return readers


def _file(path: Path, content: JsonValue) -> Source:
    """Return what a file holds, told by what is in it."""
    name = str(path)
    if _is_rows(content):
        return Source(name, "a result of a threshold tool", _thresholds(path, content))
    if not isinstance(content, dict):
        raise BadInput(f"{path} {NOTHING}.")
    if isinstance(content.get("findings"), list):
        claims = _findings(path)
        return Source(name, "findings", {"findings": lambda: claims})
    if content.get("measurement") is not None or content.get("comparison") is not None:
        times = from_findings.of_timed(content)
        return Source(name, "times of `assay time`", {"times": lambda: times})
    if "kernel_name" in content:
        return _tuning_files(path)
    if isinstance(content.get("results"), list):
        return _shape_files(path)
    raise BadInput(f"{path} {NOTHING}.")


def _is_rows(content: JsonValue) -> bool:
    """Return whether this is a threshold tool's result, or a bare list of its rows."""
    rows = content.get("results") if isinstance(content, dict) else content
    if (
        isinstance(content, dict)
        and isinstance(rows, list)
        and ("recommendation" in content or "device_info" in content)
    ):
        return True
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict) and "branch" in rows[0]


def _folder(path: Path) -> Source:
    """Return a folder of older files; a folder of runs is not one result."""
    runs = run_paths(path)
    if runs:
        raise BadInput(f"{path} is a folder of {len(runs)} runs; name one of them, such as {path / 'latest'}.")
    if not any(path.glob("*.json")):
        raise BadInput(f"{path} is neither a run folder nor a folder of .json files.")
    try:
        return _tuning_files(path)
    except BadInput as error:
        try:
            return _shape_files(path)
        except BadInput:
            raise error from None
