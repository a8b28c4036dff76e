"""Results that came from a machine on which a stranger's code ran: taken only as far as they pass every check.

The file must have the form that Assay writes, in sane numbers. It is decided anew from its pairs: what it recommends
itself is not looked at. What may be written, and what stands for never, is said by the thresholds of the repository,
and not by the file.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.durable import read_json
from assay.core.errors import BadInput
from assay.experiments.threshold import saved
from assay.experiments.threshold.answers import answer
from assay.experiments.threshold.form import Results

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pydantic import JsonValue

    from assay.core.values import Scalar
    from assay.experiments.threshold.answers import Answer
    from assay.experiments.threshold.form import Row
    from assay.experiments.threshold.spec import Wanted

LARGEST_BYTES = 16 * 2**20
LONGEST_TEXT = 4000
LARGEST_LOG = 20.0
"""Of a speed-up: a factor of 485 million either way."""
LARGEST_SIZE = 1e12
DEEPEST = 50
"""Lists and mappings within each other."""


@dataclass(frozen=True)
class Measured:
    """Results that passed, decided anew."""

    results: Results
    answers: tuple[Answer, ...]

    @property
    def device(self) -> str:
        """What the device calls itself."""
        return self.results.device_info.device_name or "a device that is not named"

    @property
    def is_fake(self) -> bool:
        """Whether the driver calls itself a fake: such numbers are nobody's measurement."""
        return "fake" in (self.results.device_info.driver_version or "")


def checked(file: Path, thresholds: Sequence[Wanted]) -> Measured:
    """Return the results of a file that passes every check.

    Raises:
        BadInput: It does not; the sentence says where.
    """
    if file.is_file() and file.stat().st_size > LARGEST_BYTES:
        raise BadInput(f"{file} is larger than results of a run are.")
    content = read_json(file)
    for path, value in _leaves(content):
        if problem := _problem(value):
            raise BadInput(f"{file}: {'.'.join(path)[:200]} {problem}.")
    with contextlib.suppress(ValidationError):  # which the reader tells in words
        _sane(Results.model_validate(content), file)
    content_file = saved.read(file)
    if content_file.results is None:
        raise BadInput(f"{file} is of the older tool and has no intervals: no pull request rests on it.")
    _of_ours(content_file.results, {threshold.key: threshold for threshold in thresholds}, file)
    answers = tuple(
        answer(decision, content_file.decide_on) for decision in content_file.judged(None, content_file.decide_on)
    )
    return Measured(content_file.results, answers)


def _leaves(value: JsonValue, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    """Give every single value of a document with its place; keys are values, too.

    Raises:
        BadInput: It is nested deeper than any results are.
    """
    if len(place) > DEEPEST:
        raise BadInput("The results are nested deeper than results of a run are.")
    if isinstance(value, dict):
        for key, part in value.items():
            yield (*place, "key"), key
            yield from _leaves(part, (*place, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _leaves(part, (*place, str(number)))
    else:
        yield place, value


def _problem(value: Scalar) -> str | None:
    if isinstance(value, int) and abs(value) > 10**15:  # first: it may be too large for a float
        return "is too large a number"
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return "is too long a text"
    return None


def _sane(found: Results, file: Path) -> None:
    """Make sure that numbers are such as a measurement can have."""
    for what in ("name", "key"):
        if len({getattr(threshold, what) for threshold in found.thresholds}) < len(found.thresholds):
            raise BadInput(f"{file} has two thresholds of one {what}.")
    for entry in found.thresholds:
        if len(entry.unmeasured) != len(entry.unmeasured_sizes):
            raise BadInput(f"{file}: a threshold tells of {len(entry.unmeasured)} points, but not how large they are.")
        if not all(0 <= size <= LARGEST_SIZE for size in entry.unmeasured_sizes):
            raise BadInput(f"{file}: a size that was not measured is no size.")
    for row in found.results:
        _sane_row(row, file)


def _sane_row(row: Row, file: Path) -> None:
    if not 0 <= row.size <= LARGEST_SIZE:
        raise BadInput(f"{file}: a row has the size {row.size:g}, which is no size.")
    for timed in row.times.values():
        if not (1e-9 < timed.masked_ms < 1e9 and timed.log_speedups and all(timed.log_speedups)):
            raise BadInput(f"{file}: a row has a time that cannot have been measured.")
        if any(abs(log) > LARGEST_LOG for process in timed.log_speedups for log in process):
            raise BadInput(f"{file}: a row has a speed-up that cannot have been measured.")


def _of_ours(found: Results, wanted: Mapping[str, Wanted], file: Path) -> None:
    """Make sure that only what the repository looks for is written, and nothing else for never."""
    for entry in found.thresholds:
        ours = wanted.get(entry.key)
        if ours is None:
            raise BadInput(f"{file} has a threshold that is not among those of the repository: {', '.join(wanted)}.")
        if (type(entry.never), entry.never) != (type(ours.never), ours.never):
            raise BadInput(f"{file} has another value for never than the thresholds of the repository have.")
