"""Run folders as `assay run` would have left them, made in milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from assay.core.files import append_sealed_line
from assay.core.results import Estimate, Findings, Record, Summary, Window
from assay.core.values import Adaptive, Block, Role, Subject, Trial
from assay.stats.intervals import expected_method
from assay.store.run_folder import BlockDecision, RunFolder, RunPlan
from benchmarks.resealing import RUN_ID, write_lines
from tests.machines import machine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from assay.core.results import Origin
    from assay.machine.model import Machine

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
HOST = machine()
WINDOW = Window(host="0123456789abcdef", boot_id="a-boot", start_ns=0, end_ns=1, started_at=FIRST.isoformat())


def softmax(rows: int = 0, **changes: Any) -> Subject:
    """Return a subject, one for each number of rows."""
    return Subject.model_validate({"workload": "softmax", "impl": "numpy", "params": {"rows": rows}, **changes})


def trial(*subjects: Subject, block: str = "repeat-1", device: str = "cpu:0", **changes: Any) -> Trial:
    """Return a trial of one role, as `assay run` plans it."""
    role = Role(name=device, subjects=subjects or (softmax(),), devices=(device,), isolation="full")
    told = {"block": block, "roles": (role,), "mode": Adaptive(duration_s=1), "placed_with": (device,), **changes}
    return Trial(**told)


def summary(
    value: float, quantity: str = "call_us", role: str = "cpu:0", subject: int = 0, *, known: bool = True
) -> Summary:
    """Return what a record says of one quantity, to ±1 %, or without an interval."""
    ends = {"low": value * 0.99 if known else None, "high": value * 1.01 if known else None}
    found = Estimate(value=value, **ends, unit="µs", scope="run", method=expected_method(1), n=10)
    shape = {"n": 10, "mean": value, "quartiles": (value,) * 3, "minimum": value, "maximum": value}
    return Summary(role=role, subject=subject, quantity=quantity, estimate=found, cv=0.01, autocorrelation=0.0, **shape)


def record(of: Trial, value: float | None = 100.0, **changes: Any) -> Record:
    """Return a trial's record; without a value it failed."""
    told: dict[str, Any] = {"trial": of.id, "block": of.block, "attempt": 1, "window": WINDOW, "status": "ok"}
    if value is None:
        return Record.model_validate({**told, "status": "failed", "reason": "it fell over", **changes})
    return Record.model_validate({**told, "estimates": (summary(value, role=of.roles[0].name),), **changes})


def write_run(
    path: Path,
    values: Sequence[float | None] = (100.0,),
    *,
    day: float = 0.0,
    on: Machine = HOST,
    origin: Origin = "real",
    records: Sequence[tuple[Trial, Record]] | None = None,
    finished: bool = True,
    **plan: Any,
) -> Path:
    """Write a run folder: of softmax with so many rows as the place of each value, or of other records."""
    told = records or [
        (t := trial(softmax(rows)), record(t, value, origin=origin)) for rows, value in enumerate(values)
    ]
    begun = (FIRST + timedelta(days=day)).isoformat(timespec="milliseconds")
    planned = {"experiment": "run", "options": {}, "seed": 0, "versions": {"assay": "1"}, "cwd": "/home/me/project"}
    path.mkdir(parents=True)
    folder = RunFolder.begin(path, RunPlan(**{**planned, "created_at": begun, **plan}), on, RUN_ID)
    blocks = {t.block: [one for one, _ in told if one.block == t.block] for t, _ in told}
    decisions = [
        BlockDecision(block=Block(name=name, why="because", trials=tuple(trials)), attempt=1, decided_at=begun)
        for name, trials in blocks.items()
    ]
    write_lines(path / "blocks.jsonl", RUN_ID, (one.as_json() for one in decisions))
    write_lines(path / "records.jsonl", RUN_ID, (one.as_json() for _, one in told))
    if finished:
        folder.keep_findings(Findings(headline="It took a while."))
    return path


def measured_again(path: Path, value: float) -> None:
    """Have a run's only block measured again, as `assay resume` does."""
    decided = RunFolder.open(path).decisions()[0]
    again = decided.model_copy(update={"attempt": 2})
    append_sealed_line(path / "blocks.jsonl", again.model_dump_json(), "")
    for of in again.block.trials:
        append_sealed_line(path / "records.jsonl", record(of, value, attempt=2).model_dump_json(), "")
