"""The folder of a trace: rows as CSV, a trace for Perfetto, what it comes to, the machine, and the recording."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from assay.core.durable import friendly_os_errors, replace_atomically
from assay.monitor.kernels import drawn
from assay.monitor.kernels.rows import as_csv
from assay.monitor.perfetto import write_events
from assay.store.runs import new_folder

if TYPE_CHECKING:
    from pathlib import Path

    from assay.launch.following import Trace
    from assay.machine.model import Machine

KERNELS, PERFETTO, SUMMARY, MACHINE = "kernels.csv", "trace.json", "summary.json", "machine.json"


def create(parent: Path) -> Path:
    """Make a new folder for a trace under ``parent``; ``latest`` there stays with the latest run."""
    with friendly_os_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        return new_folder(parent, "trace")


def keep(folder: Path, trace: Trace, machine: Machine) -> None:
    """Write what came out into its folder."""
    write_csv(folder / KERNELS, trace)
    write_perfetto(folder / PERFETTO, trace)
    for name, value in ((SUMMARY, trace.summary), (MACHINE, machine)):
        text = json.dumps(value.as_json(), indent=2, ensure_ascii=False)
        replace_atomically(folder / name, text.encode() + b"\n")


def write_csv(path: Path, trace: Trace) -> None:
    """Write the rows as a table."""
    replace_atomically(path, as_csv(trace.kernels, origin=trace.summary.origin).encode())


def write_perfetto(path: Path, trace: Trace) -> None:
    """Write the trace that ui.perfetto.dev opens."""
    write_events(drawn.events(trace.kernels, trace.events, trace.clock, trace.lines, trace.zero_ns), path)
