"""Results of the measuring jobs: a folder for each kind of GPU, accepted only if every check passes.

    results-L4/results.json     of ``assay threshold run --output``; missing where nothing was measured
    results-L4/exit-code        its exit code
    results-L4/rentals.jsonl    the journal of the rentals, for the cost

A single file of results is accepted, too. Untrusted code ran on the machine that wrote it: the file must have the
form that Assay writes, with plausible numbers, and is decided again from its pairs; its own recommendation is
ignored. What may be written, and which value stands for never, is defined by the thresholds of the repository, not
by the file.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.errors import AssayError, BadInput
from assay.core.files import read_json
from assay.core.results import Missing
from assay.experiments.threshold import results_file as saved
from assay.experiments.threshold.answers import build_answer
from assay.experiments.threshold.results_file import ThresholdResults
from assay.github.request import GPU_TYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pydantic import JsonValue

    from assay.core.values import Scalar
    from assay.experiments.threshold.answers import ThresholdAnswer
    from assay.experiments.threshold.results_file import ThresholdRow
    from assay.experiments.threshold.spec import ThresholdSpec


MAX_RESULTS_BYTES = 16 * 2**20
MAX_TEXT = 4000
MAX_LOG_SPEEDUP = 20.0
"""Limit of the logarithm of a speed-up: a factor of 485 million either way."""
MAX_SIZE = 1e12
MAX_DEPTH = 50
"""Maximum nesting of lists and mappings."""


@dataclass(frozen=True)
class VerifiedResults:
    """Results that passed the checks, with a new decision."""

    results: ThresholdResults
    answers: tuple[ThresholdAnswer, ...]

    @property
    def device(self) -> str:
        """The device's own name."""
        return self.results.device_info.device_name or "a device that is not named"

    @property
    def is_fake(self) -> bool:
        """Whether the driver reports itself as a fake: such numbers are not measurements."""
        return "fake" in (self.results.device_info.driver_version or "")


def verify_results(file: Path, thresholds: Sequence[ThresholdSpec]) -> VerifiedResults:
    """Return the results of a file that passes every check.

    Raises:
        BadInput: A check fails; the message says where.
    """
    if file.is_file() and file.stat().st_size > MAX_RESULTS_BYTES:
        raise BadInput(f"{file} is larger than results of a run are.")
    content = read_json(file)
    for path, value in _leaves(content):
        if problem := _value_problem(value):
            raise BadInput(f"{file}: {'.'.join(path)[:200]} {problem}.")
    with contextlib.suppress(ValidationError):  # the reader reports it in words
        _check_numbers(ThresholdResults.model_validate(content), file)
    content_file = saved.read_saved(file)
    results = content_file.results
    if results is None:
        raise BadInput(f"{file} is of the older tool and has no intervals: no pull request rests on it.")
    specs = {threshold.key: threshold for threshold in thresholds}
    for entry in results.thresholds:
        spec = specs.get(entry.key)
        if spec is None:
            names = ", ".join(specs)
            raise BadInput(f"{file} has a threshold that is not among those of the repository: {names}.")
        if (type(entry.never), entry.never) != (type(spec.never), spec.never):
            raise BadInput(f"{file} has another value for never than the thresholds of the repository have.")
    decisions = content_file.judge(None, content_file.decide_on)
    return VerifiedResults(results, tuple(build_answer(decision, content_file.decide_on) for decision in decisions))


def _leaves(value: JsonValue, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    """Yield every single value of a document with its path; keys are values, too.

    Raises:
        BadInput: It is nested deeper than any results are.
    """
    if len(path) > MAX_DEPTH:
        raise BadInput("The results are nested deeper than results of a run are.")
    if isinstance(value, dict):
        for key, part in value.items():
            yield (*path, "key"), key
            yield from _leaves(part, (*path, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _leaves(part, (*path, str(number)))
    else:
        yield path, value


def _value_problem(value: Scalar) -> str | None:
    if isinstance(value, int) and abs(value) > 10**15:  # first: it may be too large for a float
        return "is too large a number"
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return "is too long a text"
    return None


def _check_numbers(results: ThresholdResults, file: Path) -> None:
    """Check that numbers are plausible for a measurement."""
    for what in ("name", "key"):
        if len({getattr(threshold, what) for threshold in results.thresholds}) < len(results.thresholds):
            raise BadInput(f"{file} has two thresholds of one {what}.")
    for entry in results.thresholds:
        if len(entry.unmeasured) != len(entry.unmeasured_sizes):
            raise BadInput(f"{file}: a threshold lists {len(entry.unmeasured)} points, but not how large they are.")
        if not all(0 <= size <= MAX_SIZE for size in entry.unmeasured_sizes):
            raise BadInput(f"{file}: a size that was not measured is no size.")
    for row in results.results:
        _check_row(row, file)


def _check_row(row: ThresholdRow, file: Path) -> None:
    if not 0 <= row.size <= MAX_SIZE:
        raise BadInput(f"{file}: a row has the size {row.size:g}, which is no size.")
    for timed in row.times.values():
        if not (1e-9 < timed.masked_ms < 1e9 and timed.log_speedups and all(timed.log_speedups)):
            raise BadInput(f"{file}: a row has a time that cannot have been measured.")
        if any(abs(log) > MAX_LOG_SPEEDUP for process in timed.log_speedups for log in process):
            raise BadInput(f"{file}: a row has a speed-up that cannot have been measured.")


RESULTS_FILE, EXIT_CODE_FILE, RENTALS_FILE = "results.json", "exit-code", "rentals.jsonl"
FOLDER_PREFIX = "results-"
EXIT_CODE_MEANINGS = {
    0: "done",
    1: "a gate said no",
    2: "what was asked for makes no sense",
    3: "this account cannot have it measured: credentials, capacity, budget, or a GPU on which it cannot work",
    4: "stopped early, or some of it failed",
}
"""What Assay's exit codes mean."""


@dataclass(frozen=True)
class RentalCost:
    """The cost of a machine, in US dollars; null where it is unknown."""

    provider: str
    gpu: str | None
    quoted_usd: float | None
    billed_usd: float | None


@dataclass(frozen=True)
class JobResults:
    """The output of one job.

    Attributes:
        gpu: The requested kind; null for a file given directly.
        measured: Its results; null where there are no usable ones.
        missing: Why there are none; null where there are. The codes are no_results and invalid_results.
    """

    gpu: str | None
    measured: VerifiedResults | None
    missing: Missing | None
    costs: tuple[RentalCost, ...] = ()

    @property
    def is_invalid(self) -> bool:
        """Whether there are results that failed their check."""
        return self.missing is not None and self.missing.code == "invalid_results"

    @property
    def title(self) -> str:
        """A short title: the measured GPU, or the requested one."""
        return self.measured.device if self.measured else self.gpu or "results"


def collect_jobs(
    paths: Iterable[Path], thresholds: Sequence[ThresholdSpec], expected: Sequence[str] = ()
) -> list[JobResults]:
    """Return the jobs found, and an entry for each of the ``expected`` kinds that left nothing.

    Raises:
        BadInput: A path does not exist.
    """
    jobs: list[JobResults] = []
    for path in paths:
        if path.is_dir():
            jobs += [_read_job(folder, thresholds) for folder in _job_folders(path)]
        elif path.is_file():
            jobs.append(_read_results(None, path, None, thresholds))
        elif not expected:
            raise BadInput(f"{path} does not exist.")
    present = {job.gpu for job in jobs}
    nothing = Missing(code="no_results", detail="its job left nothing")
    return [*jobs, *(JobResults(name, None, nothing) for name in expected if name not in present)]


def _job_folders(path: Path) -> list[Path]:
    """Return the folders of jobs in a folder, or the folder itself if it is one."""
    if (path / RESULTS_FILE).exists() or (path / EXIT_CODE_FILE).exists():
        return [path]
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and folder.name.startswith(FOLDER_PREFIX))


def _read_job(folder: Path, thresholds: Sequence[ThresholdSpec]) -> JobResults:
    name = folder.name.removeprefix(FOLDER_PREFIX)
    gpu = name if name in GPU_TYPE_NAMES else None
    code = _read_exit_code(folder / EXIT_CODE_FILE)
    costs = _rental_costs(folder / RENTALS_FILE)
    if (folder / RESULTS_FILE).is_file():
        return replace(_read_results(gpu, folder / RESULTS_FILE, code, thresholds), costs=costs)
    detail = "nothing was measured, and its job did not say why"
    if code is not None:
        detail = f"nothing was measured: {EXIT_CODE_MEANINGS.get(code, 'it failed')} (exit code {code})"
    return JobResults(gpu, None, Missing(code="no_results", detail=detail), costs)


def _read_results(gpu: str | None, file: Path, code: int | None, thresholds: Sequence[ThresholdSpec]) -> JobResults:
    try:
        return JobResults(gpu, verify_results(file, thresholds), None)
    except AssayError as error:
        if gpu is None and code is None:
            raise
        reason = str(error).replace(str(file), RESULTS_FILE).rstrip(".")
        return JobResults(gpu, None, Missing(code="invalid_results", detail=f"its results fail their check: {reason}"))


def _read_exit_code(file: Path) -> int | None:
    if not file.is_file() or file.stat().st_size > 8:
        return None
    text = file.read_text(encoding="ascii", errors="replace").strip()
    return int(text) if re.fullmatch(r"\d{1,3}", text) else None


def _rental_costs(path: Path) -> tuple[RentalCost, ...]:
    from assay.hosts.rented.journal import RentalJournal

    if not path.is_file() or path.stat().st_size > 2**20:
        return ()
    try:
        rentals = [rental for rental in RentalJournal(path).rentals() if rental.machines]
    except BadInput:
        return ()
    now = datetime.now(UTC)
    return tuple(
        RentalCost(r.provider, r.gpu, r.quoted_usd(now) if r.released_at else None, r.billed_usd) for r in rentals
    )
