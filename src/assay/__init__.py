"""GPU benchmarks you can trust.

What can be imported from here is public; everything else may change. Names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from assay._version import __version__

if TYPE_CHECKING:
    from assay.compat.monitor import GPUMonitor, GPUStats
    from assay.core.errors import (
        AssayError,
        BadInput,
        BudgetEnded,
        EndedEarly,
        GateFailed,
        MachineCannot,
        StopRequested,
        TrialFailed,
    )
    from assay.core.page import Page
    from assay.core.results import Estimate, Finding, Findings, Record
    from assay.core.values import Block, Done, Role, Subject, Trial
    from assay.joules.measure import Energy, energy
    from assay.machine.detect import detect
    from assay.machine.model import Machine
    from assay.monitor.monitor import Monitor
    from assay.store.run_folder import RunFolder
    from assay.timing import saved_picks as picks
    from assay.timing.compare import compare
    from assay.timing.do_bench import do_bench
    from assay.timing.measure import measure
    from assay.timing.pick import pick
    from assay.timing.results import Comparison, Measurement, Pick

__all__ = [
    "AssayError",
    "BadInput",
    "Block",
    "BudgetEnded",
    "Comparison",
    "Done",
    "EndedEarly",
    "Energy",
    "Estimate",
    "Finding",
    "Findings",
    "GPUMonitor",
    "GPUStats",
    "GateFailed",
    "Machine",
    "MachineCannot",
    "Measurement",
    "Monitor",
    "Page",
    "Pick",
    "Record",
    "Role",
    "RunFolder",
    "StopRequested",
    "Subject",
    "Trial",
    "TrialFailed",
    "__version__",
    "compare",
    "detect",
    "do_bench",
    "energy",
    "measure",
    "pick",
    "picks",
]

_HOMES = {
    "assay.core.errors": (
        "AssayError",
        "BadInput",
        "BudgetEnded",
        "EndedEarly",
        "GateFailed",
        "MachineCannot",
        "StopRequested",
        "TrialFailed",
    ),
    "assay.core.page": ("Page",),
    "assay.core.values": ("Block", "Done", "Role", "Subject", "Trial"),
    "assay.core.results": ("Estimate", "Finding", "Findings", "Record"),
    "assay.joules.measure": ("Energy", "energy"),
    "assay.machine.detect": ("detect",),
    "assay.machine.model": ("Machine",),
    "assay.monitor.monitor": ("Monitor",),
    "assay.compat.monitor": ("GPUMonitor", "GPUStats"),
    "assay.store.run_folder": ("RunFolder",),
    "assay.timing.compare": ("compare",),
    "assay.timing.do_bench": ("do_bench",),
    "assay.timing.measure": ("measure",),
    "assay.timing.pick": ("pick",),
    "assay.timing.results": ("Comparison", "Measurement", "Pick"),
}


_MODULES = {"picks": "assay.timing.saved_picks"}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'assay' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
