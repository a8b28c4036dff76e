"""Which paths the arguments mean, and what a path holds that can be compared.

variance A... --against B...        files, folders, comma-separated lists, globs; quoted or expanded by the shell
variance A,B C,D                    two lists
variance 'base/*.json' 'conc/*.json'
variance baseline/*.json concurrent/*.json    expanded, from the two folders that the older tool named so
variance RUN                        a run of `assay contention run`: its own phases
variance FOLDER FOLDER              two run folders, or two folders of files
"""

from __future__ import annotations

import glob
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from assay.core.errors import BadInput
from assay.core.files import read_json
from assay.core.values import SCHEMA_VERSION
from assay.experiments.compare import adapters as from_findings
from assay.experiments.compare import adapters as from_older
from assay.experiments.compare import adapters as from_run
from assay.experiments.compare import tunings as variance
from assay.experiments.compare.pairing import ResultSource
from assay.experiments.reporting import assess_quality, disturbance_text
from assay.experiments.scaling import saved_results as scaling
from assay.experiments.threshold import results_file as saved
from assay.experiments.threshold.results_file import RESULTS_FILE as THRESHOLDS
from assay.machine.cuda_devices import gpu_targets
from assay.store.identity import machine_model
from assay.store.records import verify_file
from assay.store.run_folder import RunFolder, run_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import JsonValue

    from assay.core.results import Origin
    from assay.experiments.compare.pairing import ComparedCell, View


if TYPE_CHECKING:
    Reader = Callable[[], Sequence[ComparedCell]]

PLAN_FILE, RECORDS_FILE, FINDINGS_FILE = "plan.json", "records.jsonl", "findings.json"
NOT_COMPARABLE_TEXT = (
    "holds nothing that can be compared; known are run folders, findings.json, what --json printed, results of "
)
NOT_COMPARABLE_TEXT += "`assay threshold`, and files of the older tools"


def read_source(path: Path) -> ResultSource:
    """Return what a path holds.

    Raises:
        BadInput: It is not there, cannot be read, is of another version, or holds nothing that can be compared.
    """
    if not path.exists():
        raise BadInput(f"{path} does not exist.")
    if path.name == RECORDS_FILE:
        path = path.parent
    if path.is_dir():
        return _run_source(path) if (path / PLAN_FILE).is_file() else _folder_source(path)
    if not path.stat().st_size:
        raise BadInput(f"{path} is empty.")
    verify_file(path)
    content = read_json(path)
    _refuse_newer(content, path)
    try:
        return _file_source(path, content)
    except BadInput as error:
        message = str(error).rstrip(".")
        raise BadInput(f"{message}." if str(path) in message else f"{path}: {message}.") from None


def _refuse_newer(content: JsonValue, path: Path) -> None:
    version = content.get("schema", content.get("schema_version")) if isinstance(content, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BadInput(f"{path} was written by a newer Assay (schema {version}, here {SCHEMA_VERSION}); update Assay.")


def _run_source(path: Path) -> ResultSource:
    """Return a run: its records, in the terms of its experiment too, and what it found."""
    _refuse_newer(read_json(path / PLAN_FILE), path / PLAN_FILE)
    folder = RunFolder.open(path)
    for left in (FINDINGS_FILE, THRESHOLDS):
        verify_file(path / left)
    experiment = folder.plan.experiment
    readers: dict[View, Reader] = {"times": lambda: from_run.run_cells(folder)}
    if experiment == "threshold" and (path / THRESHOLDS).is_file():
        readers = {**_threshold_readers(path / THRESHOLDS, read_json(path / THRESHOLDS)), **readers}
    if experiment == scaling.EXPERIMENT_NAME:
        readers["shapes"] = lambda: from_older.shape_cells(
            scaling.read_sources(path).rows, machine_model(folder.machine)
        )
    if experiment in variance.READABLE_EXPERIMENTS:
        readers["tunings"] = lambda: _run_tunings(path)
    if (path / FINDINGS_FILE).is_file():
        readers["findings"] = lambda: _read_findings(path / FINDINGS_FILE)
    records = folder.records()
    if not records:
        raise BadInput(f"{path} is a run in which nothing was measured yet.")
    origins: set[Origin] = {record.origin for record in records} - {"real"}
    bad = [record for record in records if record.status == "failed"]
    notes = [f"{len(bad)} of its {len(records)} trials failed: {bad[-1].reason}"] if bad else []
    notes += [disturbed] if (disturbed := disturbance_text(assess_quality(records))) else []
    return ResultSource(
        path=str(path),
        kind=f"a run of {experiment}",
        readers=readers,
        facts=_machine_facts(folder, path),
        origin=min(origins, default="real"),
        notes=tuple(notes),
    )


def _machine_facts(folder: RunFolder, path: Path) -> dict[str, str]:
    """Return what of a machine and its software may explain a difference."""
    machine = folder.machine
    facts = {
        "run": None if folder.path.name == path.name else folder.path.name,
        "host": machine.host,
        "GPUs": " ".join(target.uuid for target in gpu_targets(machine).values()),
        "driver": machine.driver,
        "kernel": machine.kernel,
        "commit": machine.git_commit,
        **{f"version of {name}": version for name, version in folder.plan.versions.items()},
    }
    return {name: value for name, value in facts.items() if value}


def _run_tunings(path: Path) -> list[ComparedCell]:
    """Return the tunings of a run: of one with phases, those of its baseline."""
    group = variance.read_group([path], "baseline")
    if not group.sources:
        raise BadInput(f"{'; '.join(group.unusable)}.")
    return from_older.tuning_cells([source.tuning for source in group.sources])


def _tuning_files(path: Path) -> ResultSource:
    """Return what an older tuner's file, or a folder of such, holds."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    group = variance.read_group(files, "baseline")
    if not group.sources:
        raise BadInput(f"{'; '.join(group.unusable)}.")
    numbers = from_older.tuning_cells([source.tuning for source in group.sources])
    notes = (*group.unusable, *(f"{s.path}: {note}" for s in group.sources for note in s.tuning.notes))
    return ResultSource(str(path), "older tuning results", {"tunings": lambda: numbers}, notes=notes)


def _shape_files(path: Path) -> ResultSource:
    """Return what a file of times over ranks, or a folder of such, holds."""
    shapes = scaling.read_sources(path)
    numbers = from_older.shape_cells(shapes.rows, None)
    notes = (*shapes.unusable, *(note.rstrip(".") for note in shapes.notes))
    return ResultSource(str(path), "results over ranks", {"shapes": lambda: numbers}, notes=notes)


def _read_findings(path: Path) -> list[ComparedCell]:
    content = read_json(path)
    _refuse_newer(content, path)
    findings = content.get("findings") if isinstance(content, dict) else None
    if not isinstance(findings, list):
        raise BadInput(f"{path} has no list of findings.")
    machine = path.parent / "machine.json"
    model = machine_model(RunFolder.open(path.parent).machine) if machine.is_file() else None
    try:
        return from_findings.finding_cells(findings, model)
    except BadInput as error:
        raise BadInput(f"{path}: {error}.") from None


def _threshold_readers(path: Path, content: JsonValue) -> dict[View, Reader]:
    """Return how a result of ``assay threshold``, or of the older tool, is read."""
    from assay.compat.threshold import row_cells

    data = content if isinstance(content, dict) else {"results": content}
    info, rows = data.get("device_info"), data.get("results")
    model = info.get("device_name") if isinstance(info, dict) else None
    named = model if isinstance(model, str) else None
    recommended = from_older.recommendation_cells(data, named)
    readers: dict[View, Reader] = {}
    results = saved.read_saved(path).results if "schema" in data else None
    if results is not None:
        readers["speed-ups"] = lambda: [*recommended, *from_older.speedup_cells(results)]
    of_rows = row_cells(rows if isinstance(rows, list) else [], named)
    if not of_rows and results is None:
        raise BadInput("it has no row with a speed-up or a time")
    readers["rows"] = lambda: [*recommended, *of_rows]
    return readers


def _file_source(path: Path, content: JsonValue) -> ResultSource:
    """Return what a file holds, told by what is in it."""
    from assay.compat.threshold import is_threshold_result

    name = str(path)
    if is_threshold_result(content):
        return ResultSource(name, "a result of a threshold tool", _threshold_readers(path, content))
    if not isinstance(content, dict):
        raise BadInput(f"{path} {NOT_COMPARABLE_TEXT}.")
    if isinstance(content.get("findings"), list):
        claims = _read_findings(path)
        return ResultSource(name, "findings", {"findings": lambda: claims})
    if content.get("measurement") is not None or content.get("comparison") is not None:
        times = from_findings.timed_cells(content)
        return ResultSource(name, "times of `assay time`", {"times": lambda: times})
    if "kernel_name" in content:
        return _tuning_files(path)
    if isinstance(content.get("results"), list):
        return _shape_files(path)
    raise BadInput(f"{path} {NOT_COMPARABLE_TEXT}.")


def _folder_source(path: Path) -> ResultSource:
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


USAGE_HINT = "say `assay contention variance BASELINE... --against CONCURRENT...`"
OLDER_FOLDERS = {"concurrent", "isolated"}


class ComparisonSides(NamedTuple):
    """The words of the baseline and those of what is held against it."""

    baseline: tuple[str, ...]
    concurrent: tuple[str, ...]


def split_sides(words: Sequence[str], against: Sequence[str], *, is_phased: Callable[[Path], bool]) -> ComparisonSides:
    """Return which words are which, or say how to say it.

    Raises:
        BadInput: It is not clear which files are the baseline.
    """
    if against:
        if not words:
            raise BadInput(f"There is no baseline: {USAGE_HINT}.")
        return ComparisonSides(tuple(words), tuple(against))
    if not words:
        raise BadInput(f"Nothing to compare: {USAGE_HINT}.")
    if len(words) == 1 and is_phased(Path(words[0])):
        return ComparisonSides((words[0],), (words[0],))
    if len(words) == 2 and (any(_is_path_list(word) for word in words) or _two_folders(*words)):
        return ComparisonSides((words[0],), (words[1],))
    folders = list(dict.fromkeys(Path(word).parent.name for word in words))
    if len(folders) == 2 and folders[0] == "baseline" and folders[1] in OLDER_FOLDERS:
        first = tuple(word for word in words if Path(word).parent.name == "baseline")
        return ComparisonSides(first, tuple(word for word in words if word not in first))
    if len(words) == 1:
        raise BadInput(f"Nothing is held against {words[0]}; {USAGE_HINT}.")
    if len(words) == 2:
        meant = shlex.join(("assay", "contention", "variance", words[0], "--against", words[1]))
        raise BadInput(f"It is not clear that {words[0]} is the baseline and {words[1]} is not; if so, say `{meant}`.")
    raise BadInput(f"It is not clear which of these {len(words)} are the baseline; {USAGE_HINT}.")


def missing_paths(words: Sequence[str]) -> list[str]:
    """Return the words that name a single file or folder which does not exist."""
    return [word for word in words if not Path(word).exists() and not _is_path_list(word)]


def _two_folders(one: str, other: str) -> bool:
    """Return whether these are two different folders: a shell expands no list of files to them."""
    first, second = Path(one), Path(other)
    return first.is_dir() and second.is_dir() and first.resolve() != second.resolve()


def _is_path_list(word: str) -> bool:
    """Return whether a word names several files by itself, and is no file."""
    return not Path(word).exists() and ("," in word or glob.has_magic(word))


def expand_paths(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the paths that words name, each once, and in words which name nothing."""
    paths: dict[Path, None] = {}
    missing: list[str] = []
    for word in words:
        for path in _expand_word(word, missing):
            paths[path] = None
    return list(paths), missing


def _expand_word(word: str, missing: list[str]) -> list[Path]:
    """Return the paths of one word: a file that is there, a list with commas or spaces, or a glob."""
    if Path(word).exists():
        return [Path(word)]
    parts = [part for part in word.replace(",", " ").split() if part]
    if len(parts) > 1:
        return [path for part in parts for path in _expand_word(part, missing)]
    if glob.has_magic(word):
        matches = [Path(match) for match in sorted(glob.glob(word))]  # noqa: PTH207 - the word may be absolute
        if not matches:
            missing.append(f"{word} fits no file")
        return matches
    missing.append(f"{word} does not exist")
    return []
