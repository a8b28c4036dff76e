"""A run folder: what was planned, decided, measured and found, readable at any moment."""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from pydantic import ValidationError

from assay.core.durable import (
    append_line,
    friendly_os_errors,
    locked,
    read_json,
    read_lines,
    replace_atomically,
    replace_by_parts,
)
from assay.core.errors import BadInput, MachineCannot
from assay.core.plan import Block
from assay.core.results import Findings, Record, Series
from assay.core.stopping import stops_deferred
from assay.core.units import unit_of
from assay.core.values import Value, first_problem
from assay.machine.model import Machine
from assay.store.plan import Plan
from assay.store.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from assay.launch.outcome import RawSeries

LATEST = "latest"
ValueT = TypeVar("ValueT", bound=Value)


class Busy(MachineCannot):
    """Another process measures into this folder."""


class Decision(Value):
    """One line of ``blocks.jsonl``: what was decided next, and which attempt at it this is."""

    block: Block
    attempt: int
    decided_at: str


class RunFolder:
    """One run on disk. Nothing in it is ever changed but appended to or replaced whole."""

    def __init__(self, path: Path, plan: Plan, machine: Machine) -> None:
        self.path = path
        self.plan = plan
        self.machine = machine

    @classmethod
    def create(cls, parent: Path, plan: Plan, machine: Machine) -> RunFolder:
        """Make a new folder of its own under ``parent``, and point ``latest`` there to it."""
        with stops_deferred(), friendly_os_errors(parent), _undone_on_failure(parent):
            parent.mkdir(parents=True, exist_ok=True)
            path = new_folder(parent, plan.experiment)
            with _removed_on_failure(path):
                (path / "samples").mkdir()
                (path / "logs").mkdir()
                _write(path / "machine.json", machine)
                _write(path / "plan.json", plan)
                point_latest(parent, path.name)
        return cls(path, plan, machine)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open a run that is there, by its folder or by a `latest` that points to it."""
        if not (path / "plan.json").is_file():
            there = "is not a run folder: it holds no plan.json" if path.exists() else "is not there; no run yet?"
            raise BadInput(f"{path} {there}".rstrip(".") + ("." if path.exists() else ""))
        plan, machine = _read(path / "plan.json", Plan), _read(path / "machine.json", Machine)
        return cls(path.resolve(), plan, machine)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other process from measuring into this folder meanwhile."""
        with (
            friendly_os_errors(self.path),
            (self.path / ".lock").open("ab") as file,
            locked(file.fileno(), wait=False) as mine,
        ):
            if not mine:
                raise Busy(f"{self.path} is being measured by another process at this moment.")
            yield

    def decisions(self) -> list[Decision]:
        """Return every decision, in order."""
        return [_parse(line, Decision, self.path / "blocks.jsonl") for line in read_lines(self.path / "blocks.jsonl")]

    def decide(self, block: Block) -> int:
        """Write down what is measured next; return which attempt at it this is."""
        attempts = [d.attempt for d in self.decisions() if d.block.name == block.name]
        attempts += [r.attempt for r in self.all_records() if r.block == block.name]
        attempt = 1 + max(attempts, default=0)
        decision = Decision(block=block, attempt=attempt, decided_at=datetime.now(UTC).isoformat(timespec="seconds"))
        append_line(self.path / "blocks.jsonl", decision.model_dump_json())
        return attempt

    def all_records(self) -> Records:
        """Return every record ever taken, replaced ones too."""
        lines = read_lines(self.path / "records.jsonl")
        return Records([_parse(line, Record, self.path / "records.jsonl") for line in lines], self.path)

    def records(self) -> Records:
        """Return the records that count: of each block those of the latest attempt, of each trial its last take."""
        latest = {decision.block.name: decision.attempt for decision in self.decisions()}
        counting = {(r.block, r.trial): r for r in self.all_records() if latest.get(r.block) == r.attempt}
        return Records(list(counting.values()), self.path)

    def finished(self, block: Block) -> list[Record] | None:
        """Return a block's records if all its trials were measured without failure and their samples are there."""
        wanted = {trial.id for trial in block.trials}
        found = {
            record.trial: record
            for record in self.records()
            if record.block == block.name
            and record.status != "failed"
            and all((self.path / series.file).is_file() for series in record.series)
        }
        return [found[trial.id] for trial in block.trials] if wanted == set(found) else None

    def keep_samples(self, trial: str, attempt: int, raw: list[RawSeries], *, take: int = 1) -> tuple[Series, ...]:
        """Write samples, one file a series; return what stands for them in the record."""
        stem = f"samples/{trial}-{attempt}" if take == 1 else f"samples/{trial}-{attempt}.{take}"
        return tuple(self._keep_series(f"{stem}-{n:03d}.npy", s) for n, s in enumerate(raw))

    def _keep_series(self, name: str, raw: RawSeries) -> Series:
        samples = np.frombuffer(raw.data, dtype=np.float64)
        buffer = io.BytesIO()
        np.save(buffer, samples, allow_pickle=False)
        replace_atomically(self.path / name, buffer.getvalue())
        return Series(
            role=raw.role,
            rank=raw.rank,
            subject=raw.subject,
            restart=raw.restart,
            quantity=raw.quantity,
            unit=unit_of(raw.quantity),
            file=name,
            n=len(samples),
            calls_per_sample=raw.calls_per_sample,
            start_ns=raw.start_ns,
            end_ns=raw.end_ns,
        )

    def keep(self, record: Record) -> None:
        """Append a record; from here on it survives whatever happens."""
        append_line(self.path / "records.jsonl", record.model_dump_json())

    def keep_files(self, files: Mapping[str, str | bytes | Iterable[str]]) -> None:
        """Write files that an experiment or a trial leaves, by their paths within the folder; long ones in parts."""
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str | bytes):
                replace_atomically(path, content.encode() if isinstance(content, str) else content)
            else:
                replace_by_parts(path, (part.encode() for part in content))

    def keep_findings(self, findings: Findings) -> None:
        """Write ``findings.json``."""
        text = json.dumps(findings.model_dump(mode="json", by_alias=True), indent=2, ensure_ascii=False)
        replace_atomically(self.path / "findings.json", text.encode() + b"\n")


def run_paths(parent: Path) -> list[Path]:
    """Return the run folders under a folder, oldest first; ``latest`` is not one of its own."""
    folders = sorted(parent.iterdir()) if parent.is_dir() else []
    found = [path for path in folders if not path.is_symlink() and (path / "plan.json").is_file()]
    return sorted(found, key=lambda path: (path / "plan.json").stat().st_mtime_ns)


def new_folder(parent: Path, experiment: str) -> Path:
    """Make a folder that no other run has, however many start at this moment."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    while True:
        path = parent / f"{experiment}-{stamp}-{secrets.token_hex(2)}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path


@contextmanager
def _undone_on_failure(parent: Path) -> Iterator[None]:
    """Remove the folders that were made for a run that could not be begun, unless somebody else uses them by then."""
    missing = [path for path in (parent, *parent.parents) if not os.path.lexists(path)]
    try:
        yield
    except BaseException:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    """Remove a run folder that could not be begun, with all that it holds: a full disk keeps nothing of it."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def point_latest(parent: Path, name: str) -> None:
    """Point ``latest`` to a run in one step, so that it never dangles; leave alone what is not ours."""
    link = parent / LATEST
    if link.exists() and not link.is_symlink():
        return
    temporary = parent / f".{LATEST}-{secrets.token_hex(4)}"
    try:
        temporary.symlink_to(name)
        temporary.replace(link)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write(path: Path, value: Value) -> None:
    text = json.dumps(value.as_json(), indent=2, ensure_ascii=False)
    replace_atomically(path, text.encode() + b"\n")


def _read(path: Path, kind: type[ValueT]) -> ValueT:
    content = read_json(path)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise BadInput(f"{path} is not what this version of Assay writes: {first_problem(error)}.") from None


def _parse(line: str, kind: type[ValueT], path: Path) -> ValueT:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise BadInput(
            f"{path} holds a line that this version of Assay does not write: {first_problem(error)}."
        ) from None
