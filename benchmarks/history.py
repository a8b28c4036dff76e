"""How fast a history takes in a million records, and gives back a thousand series of a year.

python benchmarks/history.py run       measure on SQLite, and on PostgreSQL where it is installed; keep every sample
python benchmarks/history.py verify    compute the table again from the kept samples

The run folders are real: their records are those of a kept run on an H200, with other values. A record of a CPU has one
quantity and gives one point; one of a GPU has six. What is timed begins with the files and ends with the commit.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.core.files import compute_digest, seal_lines
from assay.core.results import Findings
from assay.store.history.database import HistoryDatabase, HistoryLocation, file_location, parse_location
from assay.store.history.importing import import_runs
from assay.store.history.queries import PointFilter, load_series
from assay.store.records import samples_to_bytes
from assay.store.run_folder import RunFolder
from benchmarks.resealing import RUN_ID, write_lines

if TYPE_CHECKING:
    from assay.core.results import Record
    from assay.core.values import Trial

RESULTS = Path(__file__).parent / "results" / "history.json"
KEPT = Path(__file__).parent / "results" / "h200" / "run.tar.xz"
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
SERIES = 1000
SHAPES = {"one quantity": 1_000_000, "six quantities": 200_000}
"""Records of each shape that are imported, a thousand a run."""

AT_ONCE = 10
"""Runs that are written to disk, then imported, then removed; each import is one sample."""

YEAR_S = 365 * 86400.0
LOADS = 7
SAMPLES = "samples/all.npy"
VALUE = "1234567.5"
"""Stands where each run puts a value of its own."""


class Runs:
    """Run folders by the thousand: one block of so many trials, its records with other values every time."""

    def __init__(self, shape: str, series: int = SERIES) -> None:
        with tempfile.TemporaryDirectory() as directory:
            with tarfile.open(KEPT) as archive:
                archive.extractall(directory, **SAFELY)  # noqa: S202 - an archive of our own making
            folder = RunFolder.open(Path(directory))
            decision = folder.decisions()[-1]
            record = next(r for r in folder.records() if r.block == decision.block.name)
        trials = [widened(decision.block.trials[0], rows) for rows in range(series)]
        block = decision.block.model_copy(update={"trials": tuple(trials)})
        self._plan = folder.plan.model_copy(update={"seed": series})
        self._machine = folder.machine
        self._block = decision.model_copy(update={"block": block}).as_json()
        quantities = None if shape == "six quantities" else {"call_us"}
        self._samples = samples_to_bytes(np.zeros(1))
        saved = {"file": SAMPLES, "digest": compute_digest(self._samples)}
        self._lines = [retold(record, trial, quantities, saved).model_dump_json() for trial in trials]
        self._seeded = random.Random(0)

    def write(self, path: Path, day: float) -> None:
        """Write the run of one day."""
        begun = (datetime(2025, 11, 15, tzinfo=UTC) + timedelta(days=day)).isoformat(timespec="milliseconds")
        (path / "samples").mkdir(parents=True)
        (path / SAMPLES).write_bytes(self._samples)
        folder = RunFolder.begin(path, self._plan.model_copy(update={"created_at": begun}), self._machine, RUN_ID)
        write_lines(path / "blocks.jsonl", RUN_ID, [self._block])
        values = (str(self._seeded.lognormvariate(5, 0.03)) for _ in self._lines)
        texts = (line.replace(VALUE, value) for line, value in zip(self._lines, values, strict=True))
        (path / "records.jsonl").write_text(
            "".join(f"{line}\n" for line in seal_lines(texts, f"{RUN_ID}/records.jsonl")), encoding="utf-8"
        )
        folder.keep_findings(Findings(headline="Kept."))


def widened(trial: Trial, rows: int) -> Trial:
    """Return a trial of its own for each number of rows."""
    role = trial.roles[0]
    subject = role.subjects[0].model_copy(update={"params": {**role.subjects[0].params, "rows": rows}})
    return trial.model_copy(update={"roles": (role.model_copy(update={"subjects": (subject,)}),)})


def retold(record: Record, trial: Trial, quantities: set[str] | None, results: dict[str, str]) -> Record:
    """Return a record as that of another trial, of some quantities only, with a mark where its values stand.

    All samples of a run are said to be in one file: nothing is imported of them, but each file is verified once.
    """
    estimates = tuple(
        output.model_copy(update={"estimate": output.estimate.model_copy(update={"value": float(VALUE)})})
        for output in record.estimates
        if quantities is None or output.quantity in quantities
    )
    summary = (s for s in record.series if quantities is None or s.quantity in quantities)
    series = tuple(s.model_copy(update=results) for s in summary)
    return record.model_copy(update={"trial": trial.id, "estimates": estimates, "series": series})


def imported(database: HistoryDatabase, made: Runs, runs: int, folder: Path) -> list[list[float]]:
    """Return, for each batch of runs spread over a year, its records, its points, its seconds and those of CPU."""
    samples = []
    for first in range(0, runs, AT_ONCE):
        for run in range(first, min(runs, first + AT_ONCE)):
            made.write(folder / f"run-{run:05d}", run * YEAR_S / 86400 / runs)
        records = sum(path.read_bytes().count(b"\n") for path in folder.glob("*/records.jsonl"))
        begin, cpu = time.perf_counter(), time.process_time()
        result = import_runs(database, [folder])
        took = (time.perf_counter() - begin, time.process_time() - cpu)
        samples.append([records, result.points, *(round(seconds, 4) for seconds in took)])
        shutil.rmtree(folder)
    return samples


def loaded(database: HistoryDatabase) -> tuple[list[float], int, int]:
    """Return the seconds of each load of all series, how many those are, and how many points they have."""
    samples = []
    for _ in range(LOADS):
        begin = time.perf_counter()
        with database.reading() as connection:
            courses = load_series(connection, PointFilter())
        samples.append(round(time.perf_counter() - begin, 4))
    return samples, len(courses), sum(map(len, courses))


def measured(location: HistoryLocation, shape: str, records: int, folder: Path) -> dict[str, Any]:
    """Return every sample of one shape of records on one database."""
    database = HistoryDatabase.open(location)
    before = os.getloadavg()[0]
    batches = imported(database, Runs(shape), records // SERIES, folder)
    loads, series, points = loaded(database)
    return {"imports": batches, "loads_s": loads, "series": series, "points": points, "load_before": before}


def run() -> dict[str, Any]:
    """Return every sample, by database and shape."""
    from tests.store.postgres import Server, missing

    saved: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "samples": {}}
    server = None if missing() else Server(settings=())
    try:
        if server is not None:
            server.start()
        for shape, records in SHAPES.items():
            with tempfile.TemporaryDirectory() as directory:
                file = Path(directory) / "history.sqlite"
                saved["samples"][f"SQLite | {shape}"] = measured(
                    file_location(file), shape, records, Path(directory) / "runs"
                )
                saved["samples"][f"SQLite | {shape}"]["mib"] = round(file.stat().st_size / 2**20)
                if server is not None:
                    where, folder = parse_location(server.fresh()), Path(directory) / "runs"
                    saved["samples"][f"PostgreSQL | {shape}"] = measured(where, shape, records, folder)
    finally:
        if server is not None:
            server.stop()
    return saved


def table(results: dict[str, Any]) -> str:
    """Return the published table: rates over the whole import, its slowest part, and the median load.

    CPU is that of the importing process alone; on a busy machine it waits for more than that.
    """
    titles = (
        "database", "records have", "records", "records/s", "slowest 10,000", "by CPU time", "points/s",
        "series × points", "loaded in, s",
    )  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for name, output in results["samples"].items():
        records, points, seconds, cpu = (sum(column) for column in zip(*output["imports"], strict=True))
        slowest = min(batch[0] / batch[2] for batch in output["imports"])
        shape = f"{output['series']:,} × {output['points'] // output['series']:,}"
        cells = (
            *name.split(" | "), f"{records:,}", f"{records / seconds:,.0f}", f"{slowest:,.0f}/s",
            f"{records / cpu:,.0f}/s", f"{points / seconds:,.0f}", shape, f"{statistics.median(output['loads_s']):.2f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure or verify."""
    if sys.argv[1:] == ["run"]:
        RESULTS.write_text(json.dumps(run(), separators=(",", ":")) + "\n", encoding="utf-8")
    elif sys.argv[1:] != ["verify"]:
        print(__doc__)
        return 2
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
