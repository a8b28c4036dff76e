"""The files of a study: every kernel, and every GPU in every case, for people's own tools and for other commands."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from assay.experiments.power.characterize.findings import gpu_facts
from assay.experiments.power.characterize.kernels import KERNELS_CSV, KERNELS_JSON, as_csv, as_json, traced
from assay.experiments.power.characterize.study import study_of
from assay.experiments.power.row_csv import as_csv as rows_csv
from assay.experiments.power.rows import GPUS_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from assay.experiments.power.characterize.numbers import GpuCase
    from assay.experiments.power.characterize.options import CharacterizeOptions
    from assay.machine.model import Machine
    from assay.store.records import Records

GPUS_CSV, CASES_CSV = "power/gpus.csv", "power/cases.csv"


def files(machine: Machine, options: CharacterizeOptions, records: Records) -> dict[str, str | Iterable[str]]:
    """Return the files by their paths; the trace is made while it is written."""
    study = study_of(machine, options, records)
    return {
        GPUS_FILE: "".join(f"{row.model_dump_json()}\n" for row in study.rows),
        GPUS_CSV: rows_csv(study.rows),
        CASES_CSV: cases_csv(study.gpus),
        KERNELS_CSV: as_csv(traced(machine, options, records)),
        KERNELS_JSON: as_json(traced(machine, options, records)),
    }


def cases_csv(gpus: Sequence[GpuCase]) -> str:
    """Return a table with a row for each case and GPU, over its repeats; null is empty."""
    records = [gpu_facts(gpu) for gpu in gpus]
    buffer = io.StringIO()
    if records:
        writer = csv.DictWriter(buffer, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in records)
    return buffer.getvalue()
