"""Tuning results: one kernel on one device, from the records of a run or an older tuner's file; and groups of them.

Which paths the arguments of ``assay contention variance`` mean:

    variance A... --against B...        files, folders, comma-separated lists, globs; quoted or expanded by the shell
    variance A,B C,D                    two lists
    variance 'base/*.json' 'conc/*.json'
    variance baseline/*.json concurrent/*.json    expanded, from the two folders that the older tool named so
    variance RUN                        a run of `assay contention run`: its own phases
    variance FOLDER FOLDER              two run folders, or two folders of files
"""

from __future__ import annotations

import glob
import json
import shlex
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pydantic import JsonValue

from assay.core.errors import BadInput, DamagedFile
from assay.core.values import Value
from assay.experiments.reporting import primary_time
from assay.store.identity import Identity, identity_of
from assay.store.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from assay.core.results import Record, Tuning
    from assay.core.values import Role, Subject, Trial
    from assay.machine.model import Machine
    from assay.store.records import Records


Config = dict[str, JsonValue]
"""A configuration as a tuner writes it; values may be lists."""
ValuesByDevice = dict[str, list[float]]


class TuningPick(Value):
    """What one tuning chose, and the time it saw. Null: it does not say."""

    config: Config | None
    time_ms: float | None
    tuning_s: float | None = None


class RepeatedTimes(Value):
    """One configuration timed in several processes: the time in each, and the scatter within each where it is known.

    ``timer`` says who timed it: times of Assay's own instruments and of a tuner are not repeats of each other.
    """

    config: Config | None
    times_ms: tuple[float, ...]
    cvs: tuple[float, ...] = ()
    timer: str | None = None


class KernelTuning(Value):
    """One kernel on one device, as its ``source``, a file or folder, tells it; ``notes`` say what could not be used.

    ``identity`` is what was measured: parameters, configuration, schedule and so on. Null: the file does not say.
    """

    kernel: str
    device: str | None = None
    picks: tuple[TuningPick, ...] = ()
    timed: tuple[RepeatedTimes, ...] = ()
    configs_tested: int | None = None
    identity: Identity | None = None
    notes: tuple[str, ...] = ()
    source: str = ""


def most_common_pick(picks: Sequence[TuningPick]) -> TuningPick | None:
    """Return the configuration that was picked most often, with the median of its times; null where none was picked."""
    by_key: dict[str, list[TuningPick]] = {}
    for pick in picks:
        if pick.config is not None:
            by_key.setdefault(config_key(pick.config), []).append(pick)
    if not by_key:
        return None
    same = max(by_key.values(), key=len)
    times = [pick.time_ms for pick in same if pick.time_ms is not None]
    return TuningPick(config=same[0].config, time_ms=median(times) if times else None)


def best_times(group: Iterable[KernelTuning]) -> ValuesByDevice:
    """Return the time of the best configuration in each tuning by device; of what was not tuned, its time."""
    times_by_device: ValuesByDevice = defaultdict(list)
    for tuning in group:
        picked = [pick.time_ms for pick in tuning.picks if pick.time_ms is not None]
        timed = tuning.timed[0].times_ms if tuning.timed and not picked else ()
        times_by_device[tuning.device or ""] += [*picked, *timed]
    return {device: times for device, times in times_by_device.items() if times}


_SORTED_JSON = json.JSONEncoder(sort_keys=True)


def config_key(config: Config | None) -> str:
    """Return a text that is the same for the same configuration, whatever the order of its names."""
    return _SORTED_JSON.encode(config)


TimedRole = tuple["Trial", "Role", "Record"]
"""A role of a trial, and the record that has its times."""


def gather_tunings(pairs: Iterable[tuple[Trial, Record]], records: Records, machine: Machine) -> list[KernelTuning]:
    """Return what trials that were measured say, one for each kernel and device, in the order they were taken."""
    timed: list[TimedRole] = [
        (trial, role, record)
        for trial, record in pairs
        if record.status == "ok"
        for role in trial.roles
        if role.duty == "timed"
    ]
    names = _kernel_names([role.subjects[0] for _, role, _ in timed])
    by_location: dict[tuple[str, str], list[TimedRole]] = {}
    for trial, role, record in timed:
        where = names[_subject_key(role.subjects[0])], ", ".join(dict.fromkeys(role.devices))
        by_location.setdefault(where, []).append((trial, role, record))
    return [_kernel_tuning(*where, measured, records, machine) for where, measured in sorted(by_location.items())]


def _kernel_names(subjects: Sequence[Subject]) -> dict[str, str]:
    """Return what each subject is called: by its label, and by its parameters too where two share a label."""
    different = {_subject_key(subject): subject for subject in subjects}
    counts = Counter(subject.label for subject in different.values())
    names: dict[str, str] = {}
    for key, subject in different.items():
        params = " ".join(f"{name}={value}" for name, value in subject.params.items())
        names[key] = subject.label if counts[subject.label] == 1 else f"{subject.label} {params}"
    return names


def _subject_key(subject: Subject) -> str:
    """Return a text that tells a subject from others, whatever its configuration."""
    return subject.model_copy(update={"config": None}).model_dump_json()


def _kernel_tuning(
    kernel: str, device: str, measured: list[TimedRole], records: Records, machine: Machine
) -> KernelTuning:
    tunings = [t for _, role, record in measured for t in record.tunings if t.role == role.name]
    picks = tuple(
        TuningPick(config=dict(t.config), time_ms=None if t.time_us is None else t.time_us / 1e3, tuning_s=t.tuning_s)
        for t in tunings
        if t.config is not None
    )
    return KernelTuning(
        kernel=kernel,
        device=device,
        picks=picks,
        timed=(*_timed_configs(measured, records), *_tried_configs(tunings)),
        configs_tested=max((len(t.tried) for t in tunings), default=None),
        identity=identity_of([(trial, role, role.subjects[0]) for trial, role, _ in measured], machine),
    )


def _timed_configs(measured: list[TimedRole], records: Records) -> list[RepeatedTimes]:
    """Return the configuration that was timed in every trial: its median in each process, and the scatter there."""
    times: dict[str, tuple[Config | None, list[float], list[float]]] = {}
    for _, role, record in measured:
        quantity = primary_time([record], role.name)
        config: Config | None = None if role.subjects[0].config is None else dict(role.subjects[0].config)
        for series in record.series:
            if (series.role, series.subject, series.rank, series.quantity) != (role.name, 0, 0, quantity):
                continue
            samples = records.samples(series)
            middle, mean = float(np.median(samples)), float(samples.mean())
            if len(samples) and middle > 0:
                _, medians, cvs = times.setdefault(config_key(config), (config, [], []))
                medians.append(middle / 1e3)
                cvs += [float(samples.std(ddof=1)) / mean] if len(samples) > 1 and mean > 0 else []
    return [
        RepeatedTimes(config=config, times_ms=tuple(medians), cvs=tuple(cv for cv in cvs if cv > 0), timer="assay")
        for config, medians, cvs in times.values()
    ]


def _tried_configs(tunings: list[Tuning]) -> list[RepeatedTimes]:
    """Return every configuration that tuners timed, with what they saw in each process."""
    times: dict[tuple[str, str], tuple[Config, list[float]]] = {}
    for tuning in tunings:
        for tried in tuning.tried:
            if tried.time_us is not None and tried.time_us > 0:
                config: Config = dict(tried.config)
                times.setdefault((tuning.tuner, config_key(config)), (config, []))[1].append(tried.time_us / 1e3)
    return [
        RepeatedTimes(config=config, times_ms=tuple(process_times), timer=tuner)
        for (tuner, _), (config, process_times) in times.items()
    ]


PHASED_EXPERIMENT = "contention"
READABLE_EXPERIMENTS = {PHASED_EXPERIMENT, "run"}
"""The experiments whose runs can be compared."""

RECORDS_FILE = "records.jsonl"


@dataclass(frozen=True)
class TuningGroup:
    """What could be read of one group, and in words what could not."""

    tunings: tuple[KernelTuning, ...]
    unusable: tuple[str, ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels it tells of, each once, in order."""
        return tuple(dict.fromkeys(tuning.kernel for tuning in self.tunings))


def read_group(paths: Sequence[Path], phase: str) -> TuningGroup:
    """Read every path; ``phase`` is what a run of ``assay contention run`` stands for in this group."""
    tunings: list[KernelTuning] = []
    unusable: list[str] = []
    for path in paths:
        try:
            tunings += _read_path(path, phase)
        except DamagedFile:
            raise
        except BadInput as error:
            unusable.append(str(error).rstrip("."))
    return TuningGroup(tuple(tunings), tuple(unusable))


def is_phased_run(path: Path) -> bool:
    """Return whether a path is the folder of a run that has phases of its own."""
    folder = path.parent if path.name == RECORDS_FILE else path
    return (folder / "plan.json").is_file() and RunFolder.open(folder).plan.experiment == PHASED_EXPERIMENT


def _read_path(path: Path, phase: str) -> list[KernelTuning]:
    """Read a run folder, an older file, or every older file in a folder of such."""
    from assay.compat.contention import read_tuning_file

    if path.name == RECORDS_FILE or (path / "plan.json").is_file():
        return _read_run(path.parent if path.name == RECORDS_FILE else path, phase)
    if not path.is_dir():
        return [read_tuning_file(path)]
    files = sorted(path.glob("*.json"))
    if not files:
        raise BadInput(f"{path} is neither a run folder nor a folder of .json files.")
    return [read_tuning_file(file) for file in files]


def _read_run(path: Path, phase: str) -> list[KernelTuning]:
    """Read the records of a run; of one with phases, those of the phase that is meant."""
    folder = RunFolder.open(path)
    phased = folder.plan.experiment == PHASED_EXPERIMENT
    if folder.plan.experiment not in READABLE_EXPERIMENTS:
        raise BadInput(
            f"{path} is a run of the experiment {folder.plan.experiment}; runs of `assay contention run` and "
            "`assay run` can be compared."
        )
    trials = {trial.id: trial for decision in folder.decisions() for trial in decision.block.trials}
    records = folder.records()
    pairs = [(trials[record.trial], record) for record in records if record.trial in trials]
    compared = [
        (trial, record)
        for trial, record in pairs
        if record.block != "yardsticks" and (not phased or trial.settings.get("phase") == phase)
    ]
    tunings = gather_tunings(compared, records, folder.machine)
    if not tunings:
        what = f"nothing that was measured in its phase {phase}" if phased else "nothing that was measured"
        raise BadInput(f"{path} holds {what}.")
    return [tuning.model_copy(update={"source": str(path)}) for tuning in tunings]


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
        raise BadInput(f"There is nothing to compare {words[0]} with; {USAGE_HINT}.")
    if len(words) == 2 and Path(words[0]).resolve() == Path(words[1]).resolve():
        raise BadInput(f"{words[0]} is named twice: name two different results, the baseline first.")
    if len(words) == 2:
        meant = shlex.join(("assay", "contention", "variance", words[0], "--against", words[1]))
        raise BadInput(f"Which of {words[0]} and {words[1]} is the baseline? If it is the first, write `{meant}`.")
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
