"""A run folder read for the history alone: only what it keeps of a record, so that a million of them take minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError

from assay.core.errors import BadInput
from assay.core.results import Interference, Origin, Scope, Status
from assay.core.values import SCHEMA_VERSION, Value, first_problem
from assay.store.runs import RECORDS

if TYPE_CHECKING:
    from assay.core.plan import Trial
    from assay.store.runs import RunFolder


class Measured(Value):
    """An estimate, in short."""

    model_config = ConfigDict(extra="ignore")

    value: FiniteFloat
    low: FiniteFloat | None
    high: FiniteFloat | None
    scope: Scope
    method: str
    n: int


class Said(Value):
    """What a record says of one quantity of one subject."""

    model_config = ConfigDict(extra="ignore")

    role: str
    subject: int
    quantity: str
    estimate: Measured


class Kept(Value):
    """A sample file."""

    model_config = ConfigDict(extra="ignore")

    file: str
    digest: str | None = None


class Entry(Value):
    """A record, in short."""

    model_config = ConfigDict(extra="ignore")

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    trial: str
    block: str
    attempt: int
    series: tuple[Kept, ...] = ()
    estimates: tuple[Said, ...] = ()
    disturbed: tuple[Interference, ...] = ()
    status: Status
    reason: str | None = None
    origin: Origin = "real"


def entries(folder: RunFolder) -> list[tuple[Entry, Trial]]:
    """Return the records that count, in short, each with its trial: of each block the latest attempt, the last take.

    Raises:
        DamagedFile: A line or the samples of a record are not as they were written.
    """
    latest = {decision.block.name: decision for decision in folder.decisions()}
    path = folder.path / RECORDS
    counting: dict[str, dict[str, Entry]] = {name: {} for name in latest}
    for line in folder.lines(RECORDS):
        try:
            entry = Entry.model_validate_json(line.body)
        except ValidationError as error:
            what = f"holds a line that this version of Assay does not write: {first_problem(error)}"
            raise BadInput(f"{path} {what}.") from None
        decision = latest.get(entry.block)
        if decision is not None and decision.attempt == entry.attempt:
            counting[entry.block][entry.trial] = entry
    result: list[tuple[Entry, Trial]] = []
    for sample_file in (
        sample_file for measured in counting.values() for entry in measured.values() for sample_file in entry.series
    ):
        folder.verify_samples(sample_file.file, sample_file.digest)
    for name, measured in counting.items():
        trials = _by_id(list(measured), latest[name].block.trials)
        result += [(entry, trials[identity]) for identity, entry in measured.items() if identity in trials]
    return result


def _by_id(measured: list[str], trials: tuple[Trial, ...]) -> dict[str, Trial]:
    """Return the trials of a block by their ids, given the ids of those that were measured, in order.

    The hash of a trial takes longer than all else here. A block is measured in the order of its trials: where as many
    were measured as it has, and the first and the last are those, no other needs to be hashed.
    """
    if len(measured) == len(trials) and (measured[0], measured[-1]) == (trials[0].id, trials[-1].id):
        return dict(zip(measured, trials, strict=True))
    return {trial.id: trial for trial in trials}
