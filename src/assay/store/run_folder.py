"""A run folder: its plan, decisions, records and findings, readable at any moment; and the folder of a kernel trace."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np
from pydantic import Field, JsonValue, ValidationError

from assay.core.errors import BadInput, DamagedFile, MachineCannot
from assay.core.files import (
    DIGEST_PATTERN,
    append_sealed_line,
    compute_digest,
    file_lock,
    read_bytes,
    read_sealed_json,
    read_sealed_lines,
    replace_atomically,
    replace_from_chunks,
    seal_json,
    translate_os_errors,
    write_sealed_json,
)
from assay.core.format import unit_of
from assay.core.processes import defer_stop
from assay.core.results import Findings, Record, Series
from assay.core.values import SCHEMA_VERSION, Block, Value, first_problem
from assay.machine.model import Machine
from assay.monitor import perfetto
from assay.monitor.kernel_trace.rows import format_csv
from assay.store.records import (
    SEAL_FILE,
    GrowingRecording,
    Records,
    SampleFiles,
    Seal,
    SealedLength,
    path_inside,
    read_seal,
    samples_to_bytes,
    sealed_lengths,
    verify_lines,
    verify_recordings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from assay.core.files import SealedJson
    from assay.launch.tracing import WorkloadTrace
    from assay.launch.workers import RawSeries


class RunPlan(Value):
    """The request: an experiment with its options."""

    schema_version: int = Field(default=SCHEMA_VERSION, le=SCHEMA_VERSION)
    experiment: str
    options: dict[str, JsonValue]
    seed: int
    versions: dict[str, str | None]
    cwd: str = Field(description="The folder that relative paths in the options start from.")
    created_at: str
    monitor: bool = Field(default=False, description="Whether a recorder watches meanwhile.")
    monitor_interval_s: float | None = Field(default=None, gt=0, description="Null: as is usual for the machine.")


class StoredRunPlan(RunPlan):
    """The content of ``plan.json``: the plan, the run's ID, and the digest of the machine it was planned on."""

    run_id: str = Field(min_length=1, description="What the first blocks and records are chained to.")
    machine_digest: str = Field(pattern=DIGEST_PATTERN, description="SHA-256 of machine.json.")

    @classmethod
    def of(cls, plan: RunPlan, run_id: str, machine_digest: str) -> Self:
        """Return a plan in its stored form."""
        return cls.model_validate({**plan.as_json(), "run_id": run_id, "machine_digest": machine_digest})

    @property
    def plan(self) -> RunPlan:
        """The plan without the stored additions."""
        return RunPlan.model_validate(self.model_dump(exclude={"run_id", "machine_digest"}))

    def as_bytes(self) -> bytes:
        """Return the file's content, with its own digest."""
        return seal_json(json.dumps(self.as_json(), indent=2, ensure_ascii=False)).encode() + b"\n"


PLAN, MACHINE, BLOCKS, RECORDS, FINDINGS = "plan.json", "machine.json", "blocks.jsonl", "records.jsonl", "findings.json"
LATEST = "latest"
UNKNOWN_LINE = "holds a line that this version of Assay does not write"
ValueT = TypeVar("ValueT", bound=Value)


class RunFolderBusy(MachineCannot):
    """Another process is measuring into this folder."""


class BlockDecision(Value):
    """One line of ``blocks.jsonl``: the block to measure next, and the number of this attempt."""

    block: Block
    attempt: int
    decided_at: str


class RunFolder:
    """One run on disk. Its files are only ever appended to or replaced whole.

    Everything that numbers are computed from is verified as it is read: the plan by its own digest, the machine by
    that in the plan, blocks and records by the chains of their lines, samples and recordings by the digests in the
    records.
    """

    def __init__(self, path: Path, stored: StoredRunPlan, machine: Machine) -> None:
        self.path = path
        self.plan = stored.plan
        self.machine = machine
        self._stored = stored
        self._samples = SampleFiles(path)
        self._verified_lengths: dict[str, int] = {}
        self._recordings: dict[str, GrowingRecording] = {}
        self._file_digests: dict[str, str] = {}

    @classmethod
    def create(cls, parent: Path, plan: RunPlan, machine: Machine) -> RunFolder:
        """Create a new, unique folder under ``parent``, and point ``latest`` there to it."""
        with defer_stop(), translate_os_errors(parent), ExitStack() as on_failure:
            missing = [path for path in (parent, *parent.parents) if not os.path.lexists(path)]
            on_failure.callback(_remove_empty_folders, missing)
            parent.mkdir(parents=True, exist_ok=True)
            path = create_run_path(parent, plan.experiment)
            on_failure.callback(shutil.rmtree, path, ignore_errors=True)
            (path / "samples").mkdir()
            (path / "logs").mkdir()
            run_folder = cls.begin(path, plan, machine)
            point_latest(parent, path.name)
            on_failure.pop_all()
        return run_folder

    @classmethod
    def begin(cls, path: Path, plan: RunPlan, machine: Machine, run_id: str | None = None) -> RunFolder:
        """Write the plan and the machine of a run into an existing folder."""
        machine_json = json.dumps(machine.as_json(), indent=2, ensure_ascii=False).encode() + b"\n"
        stored = StoredRunPlan.of(plan, run_id or secrets.token_hex(8), compute_digest(machine_json))
        replace_atomically(path / MACHINE, machine_json)
        replace_atomically(path / PLAN, stored.as_bytes())
        return cls(path, stored, machine)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run, by its folder or by a ``latest`` link to it.

        Raises:
            DamagedFile: Its plan or its machine is not as it was written.
            BadInput: It does not exist, or is not a run folder.
        """
        if not (path / PLAN).is_file():
            problem = "is not a run folder: it holds no plan.json." if path.exists() else "is not there; no run yet?"
            raise BadInput(f"{path} {problem}")
        stored = _parse(read_sealed_json(path / PLAN), StoredRunPlan, path / PLAN)
        machine_json = read_bytes(path / MACHINE)
        if compute_digest(machine_json) != stored.machine_digest:
            raise DamagedFile(f"{path / MACHINE} is damaged: its digest is not the one in {PLAN}.")
        return cls(path.resolve(), stored, _parse(machine_json, Machine, path / MACHINE))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder against other processes that measure into it."""
        with (
            translate_os_errors(self.path),
            (self.path / ".lock").open("ab") as file,
            file_lock(file.fileno(), wait=False) as locked,
        ):
            if not locked:
                raise RunFolderBusy(f"{self.path} is being measured by another process at this moment.")
            yield

    def start_in(self, cwd: str) -> None:
        """Store the start directory in the plan, so that relative paths are valid on this machine."""
        self.plan = self.plan.model_copy(update={"cwd": cwd})
        self._stored = StoredRunPlan.of(self.plan, self._stored.run_id, self._stored.machine_digest)
        replace_atomically(self.path / PLAN, self._stored.as_bytes())

    def lines(self, name: str) -> list[SealedJson]:
        """Return the lines of ``blocks.jsonl`` or ``records.jsonl``, verified, each without its digest.

        Raises:
            DamagedFile: A line was changed, or one is missing.
        """
        path, before = self.path / name, read_seal(self.path)  # the seal first, as lines may be appended meanwhile
        sealed_lines = read_sealed_lines(path, self._start(name))
        verify_lines(path, sealed_lines, before, self._stored.run_id)
        return sealed_lines

    def _start(self, name: str) -> str:
        """Return what the first line of a file is chained to: the run, so that lines of another run do not match."""
        return f"{self._stored.run_id}/{name}"

    def decisions(self) -> list[BlockDecision]:
        """Return every decision, in order."""
        return [_parse(line.body, BlockDecision, self.path / BLOCKS) for line in self.lines(BLOCKS)]

    def decide(self, block: Block) -> int:
        """Record the decision to measure a block next; return the number of this attempt."""
        attempts = [d.attempt for d in self.decisions() if d.block.name == block.name]
        attempts += [r.attempt for r in self.all_records() if r.block == block.name]
        attempt = 1 + max(attempts, default=0)
        decision = BlockDecision(
            block=block, attempt=attempt, decided_at=datetime.now(UTC).isoformat(timespec="seconds")
        )
        append_sealed_line(self.path / BLOCKS, decision.model_dump_json(), self._start(BLOCKS))
        return attempt

    def all_records(self) -> Records:
        """Return every record ever taken, including replaced ones; their samples are verified when they are read."""
        return self.of([_parse(line.body, Record, self.path / RECORDS) for line in self.lines(RECORDS)])

    def counting(self) -> Records:
        """Return the records that count: of each block those of the latest attempt, of each trial its last take.

        Raises:
            DamagedFile: A record is of a block that was never decided.
        """
        return self._counting(self.all_records())

    def _counting(self, records: Records) -> Records:
        latest = {decision.block.name: decision.attempt for decision in self.decisions()}
        for number, record in enumerate(records, 1):
            if record.attempt > latest.get(record.block, 0):
                raise DamagedFile(
                    f"{self.path / BLOCKS} is damaged: attempt {record.attempt} at block {record.block!r}, of which "
                    f"{RECORDS}, line {number} is, is not in it."
                )
        counted = {(r.block, r.trial): r for r in records if latest[r.block] == r.attempt}
        return Records(list(counted.values()), self.path, self._samples, sealed_lengths(records))

    def records(self) -> Records:
        """Return the records that count, with all files that their numbers come from verified, each once.

        Raises:
            DamagedFile: One is not as it was written, or is missing.
        """
        all_records = self.all_records()
        counting = self._counting(all_records)
        self._verify_files(counting, all_records)
        return counting

    def verify(self, *, lost_samples: bool = False) -> None:
        """Verify that all files that numbers come from are as written; ``lost_samples`` tolerates missing sample files.

        Raises:
            DamagedFile: Something is not, or is missing.
        """
        all_records = self.all_records()
        self._verify_files(self._counting(all_records), all_records, lost_samples=lost_samples)

    def of(self, records: Sequence[Record]) -> Records:
        """Return records of this run as a sequence whose samples can be opened."""
        return Records(records, self.path, self._samples)

    def _verify_files(self, records: Records, all_records: Records, *, lost_samples: bool = False) -> None:
        """Verify the samples of some records, and the recordings of all records ever taken."""
        for record in records:
            for series in record.series:
                if not (lost_samples and not path_inside(self.path, series.file).is_file()):
                    self.verify_samples(series.file, series.digest)
        lengths = sealed_lengths(all_records)
        if lengths != self._verified_lengths:
            verify_recordings(self.path, all_records)
            self._verified_lengths = lengths

    def verify_samples(self, file: str, digest: str | None) -> None:
        """Verify, once, that a sample file is as it was written.

        Raises:
            DamagedFile: It is not, or is missing.
        """
        if digest is None:
            raise DamagedFile(f"{self.path / RECORDS} is damaged: it has no digest of {file}.")
        self._samples.verify(file, digest)

    def finished(self, block: Block) -> list[Record] | None:
        """Return a block's records; null unless all its trials were measured and their samples exist."""
        trial_ids = {trial.id for trial in block.trials}
        all_records = self.all_records()
        by_trial = {
            record.trial: record
            for record in self._counting(all_records)
            if record.block == block.name
            and record.status != "failed"
            and all(path_inside(self.path, series.file).is_file() for series in record.series)
        }
        if trial_ids != set(by_trial):
            return None
        self._verify_files(self.of(list(by_trial.values())), all_records)
        return [by_trial[trial.id] for trial in block.trials]

    def keep_samples(self, trial: str, attempt: int, raw: list[RawSeries], *, take: int = 1) -> tuple[Series, ...]:
        """Write samples, one file per series; return their entries in the record."""
        stem = f"samples/{trial}-{attempt}" if take == 1 else f"samples/{trial}-{attempt}.{take}"
        return tuple(self._keep_series(f"{stem}-{n:03d}.npy", s) for n, s in enumerate(raw))

    def _keep_series(self, name: str, raw: RawSeries) -> Series:
        values = np.frombuffer(raw.data, dtype=np.float64)
        data = samples_to_bytes(values)
        replace_atomically(self.path / name, data)
        self._samples.hold(name, data)
        return Series(
            role=raw.role,
            rank=raw.rank,
            subject=raw.subject,
            restart=raw.restart,
            quantity=raw.quantity,
            unit=unit_of(raw.quantity),
            file=name,
            n=len(values),
            calls_per_sample=raw.calls_per_sample,
            start_ns=raw.start_ns,
            end_ns=raw.end_ns,
            digest=compute_digest(data),
        )

    def keep(self, record: Record) -> Record:
        """Append a record, durably from here on; return it as stored."""
        if record.sensors is not None and (self.path / record.sensors).is_file():
            growing = self._recordings.setdefault(record.sensors, GrowingRecording())
            length, digest = growing.update(self.path / record.sensors)
            record = record.model_copy(update={"sensors_bytes": length, "sensors_digest": digest})
        append_sealed_line(self.path / RECORDS, record.model_dump_json(), self._start(RECORDS))
        return record

    def keep_files(self, files: Mapping[str, str | bytes | Iterable[str]]) -> None:
        """Write the files of an experiment or a trial, by their paths within the folder; long ones in parts."""
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            parts = (content,) if isinstance(content, str | bytes) else content
            replace_from_chunks(path, _update_digest(digest, parts))
            self._file_digests[name] = f"sha256:{digest.hexdigest()}"

    def keep_findings(self, findings: Findings, files: Mapping[str, str | bytes | Iterable[str]] | None = None) -> None:
        """Write ``findings.json`` and the files beside it, then the seal that covers all of them."""
        text = json.dumps(findings.model_dump(mode="json", by_alias=True), indent=2, ensure_ascii=False)
        self._file_digests.clear()
        self.keep_files({FINDINGS: f"{text}\n", **(files or {})})
        lengths: dict[str, SealedLength] = {}
        for name in (BLOCKS, RECORDS):
            lines = self.lines(name)
            lengths[name] = SealedLength(lines=len(lines), digest=lines[-1].digest if lines else None)
        seal = Seal(run_id=self._stored.run_id, lines=lengths, files=dict(self._file_digests))
        write_sealed_json(self.path / SEAL_FILE, seal.as_json())


def _update_digest(digest: hashlib._Hash, parts: Iterable[str | bytes]) -> Iterator[bytes]:
    """Yield the parts of a file as bytes, and update its digest as they pass."""
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(data)
        yield data


def run_paths(parent: Path) -> list[Path]:
    """Return the run folders under a folder, oldest first; the link ``latest`` is skipped."""
    folders = sorted(parent.iterdir()) if parent.is_dir() else []
    paths = [path for path in folders if not path.is_symlink() and (path / "plan.json").is_file()]
    return sorted(paths, key=lambda path: (path / "plan.json").stat().st_mtime_ns)


def create_run_path(parent: Path, experiment: str) -> Path:
    """Create a folder with a unique name, even if many runs start at once."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    while True:
        path = parent / f"{experiment}-{stamp}-{secrets.token_hex(2)}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path


def _remove_empty_folders(folders: Iterable[Path]) -> None:
    for path in folders:
        with suppress(OSError):  # one may be in use by then
            path.rmdir()


def point_latest(parent: Path, name: str) -> None:
    """Point ``latest`` to a run atomically, so that it never dangles; an entry that is not a link is left alone."""
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


def _parse(data: bytes, kind: type[ValueT], path: Path) -> ValueT:
    """Return the value parsed from verified bytes."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        is_whole = path.suffix == ".json"
        what = "is not what this version of Assay writes" if is_whole else UNKNOWN_LINE
        raise BadInput(f"{path} {what}: {first_problem(error)}.") from None


TRACE_KERNELS, TRACE_PERFETTO, TRACE_SUMMARY = "kernels.csv", "trace.json", "summary.json"


def create_trace_folder(parent: Path) -> Path:
    """Create a new folder for a trace under ``parent``; ``latest`` keeps pointing to the latest run."""
    with translate_os_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        return create_run_path(parent, "trace")


def write_trace_folder(folder: Path, trace: WorkloadTrace, machine: Machine) -> None:
    """Write a trace into its folder."""
    write_kernels_csv(folder / TRACE_KERNELS, trace)
    write_perfetto_trace(folder / TRACE_PERFETTO, trace)
    for name, value in ((TRACE_SUMMARY, trace.summary), (MACHINE, machine)):
        text = json.dumps(value.as_json(), indent=2, ensure_ascii=False)
        replace_atomically(folder / name, text.encode() + b"\n")


def write_kernels_csv(path: Path, trace: WorkloadTrace) -> None:
    """Write the rows as CSV."""
    replace_atomically(path, format_csv(trace.kernels, origin=trace.summary.origin).encode())


def write_perfetto_trace(path: Path, trace: WorkloadTrace) -> None:
    """Write the trace in the format of ui.perfetto.dev."""
    events = perfetto.kernel_trace_events(trace.kernels, trace.events, trace.clock, trace.lines, trace.zero_ns)
    perfetto.write_events(events, path)
