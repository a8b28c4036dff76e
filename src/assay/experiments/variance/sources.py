"""What the user's words name: run folders, record files, older files, in groups; read as far as they can be."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.durable import read_json
from assay.core.errors import BadInput, DamagedFile
from assay.experiments.variance.from_records import gathered
from assay.experiments.variance.older_format import parse
from assay.store.runs import RunFolder
from assay.store.seal import verify_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from assay.core.plan import Trial
    from assay.core.results import Record
    from assay.experiments.variance.older_format import Older

PHASED = "contention"
READABLE = {PHASED, "run"}
"""The experiments whose runs can be compared."""

RECORDS = "records.jsonl"
_DEVICE = re.compile(r"(?:^|[^a-z])(gpu|cuda|cpu)[_:-]?([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """One kernel on one device, and the file or folder that says so."""

    path: str
    older: Older


@dataclass(frozen=True)
class Group:
    """What could be read of one group, and in words what could not."""

    sources: tuple[Source, ...]
    unusable: tuple[str, ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels it tells of, each once, in order."""
        return tuple(dict.fromkeys(source.older.kernel for source in self.sources))


def read_group(paths: Sequence[Path], phase: str) -> Group:
    """Read every path; ``phase`` is what a run of ``assay contention run`` stands for in this group."""
    sources: list[Source] = []
    unusable: list[str] = []
    for path in paths:
        try:
            sources += _read(path, phase)
        except DamagedFile:
            raise
        except BadInput as error:
            unusable.append(str(error).rstrip("."))
    return Group(tuple(sources), tuple(unusable))


def is_phased_run(path: Path) -> bool:
    """Return whether a path is the folder of a run that has phases of its own."""
    folder = path.parent if path.name == RECORDS else path
    return (folder / "plan.json").is_file() and RunFolder.open(folder).plan.experiment == PHASED


def _read(path: Path, phase: str) -> list[Source]:
    if path.is_dir():
        return _folder(path, phase)
    if path.name == RECORDS:
        return _run(path.parent, phase)
    return [_file(path)]


def _folder(path: Path, phase: str) -> list[Source]:
    """Read a run folder, or every older file in a folder of such."""
    if (path / "plan.json").is_file():
        return _run(path, phase)
    files = sorted(path.glob("*.json"))
    if not files:
        raise BadInput(f"{path} is neither a run folder nor a folder of .json files.")
    return [_file(file) for file in files]


def _file(path: Path) -> Source:
    """Read one older file; its name tells the device where it does not say so itself."""
    if path.is_file() and not path.stat().st_size:
        raise BadInput(f"{path} is empty.")
    verify_file(path)
    content = read_json(path)
    try:
        older = parse(content)
    except BadInput as error:
        raise BadInput(f"{path}: {error}.") from None
    named = _DEVICE.search(path.stem)
    if older.device is None and named is not None:
        kind = "cpu" if named[1].lower() == "cpu" else "cuda"
        older = older.model_copy(update={"device": f"{kind}:{int(named[2])}"})
    return Source(str(path), older)


def _run(path: Path, phase: str) -> list[Source]:
    """Read the records of a run; of one with phases, those of the phase that is meant."""
    folder = RunFolder.open(path)
    if folder.plan.experiment not in READABLE:
        readable = " and ".join(f"`assay {'contention run' if name == PHASED else name}`" for name in sorted(READABLE))
        raise BadInput(
            f"{path} is a run of the experiment {folder.plan.experiment}; runs of {readable} can be compared."
        )
    trials = {trial.id: trial for decision in folder.decisions() for trial in decision.block.trials}
    records = folder.records()
    phased = folder.plan.experiment == PHASED
    pairs = [
        (trials[record.trial], record)
        for record in records
        if record.trial in trials and _counts(trials[record.trial], record, phase if phased else None)
    ]
    tunings = gathered(pairs, records, folder.machine)
    if not tunings:
        what = f"nothing that was measured in its phase {phase}" if phased else "nothing that was measured"
        raise BadInput(f"{path} holds {what}.")
    return [Source(str(path), older) for older in tunings]


def _counts(trial: Trial, record: Record, phase: str | None) -> bool:
    return record.block != "yardsticks" and (phase is None or trial.settings.get("phase") == phase)
