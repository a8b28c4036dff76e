"""Assay measures GPU programs so that the numbers can be believed.

What can be imported from here is public; everything else may change. Names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from assay._version import __version__

if TYPE_CHECKING:
    from assay.core.errors import (
        AssayError,
        BadInput,
        BudgetEnded,
        EndedEarly,
        GateSaysNo,
        MachineCannot,
        StopRequested,
        TrialFailed,
    )
    from assay.core.page import Page
    from assay.core.plan import Block, Done, Role, Subject, Trial
    from assay.core.results import Estimate, Finding, Findings, Record
    from assay.joules.energy import energy
    from assay.joules.values import Energy
    from assay.machine.detect import detect
    from assay.machine.model import Machine
    from assay.monitor.monitor import Monitor
    from assay.monitor.older import GPUMonitor, GPUStats
    from assay.store.runs import RunFolder
    from assay.timing import picks
    from assay.timing.compare import compare
    from assay.timing.do_bench import do_bench
    from assay.timing.measure import measure
    from assay.timing.pick import pick
    from assay.timing.values import Comparison, Measurement, Pick

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
    "GateSaysNo",
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
        "GateSaysNo",
        "MachineCannot",
        "StopRequested",
        "TrialFailed",
    ),
    "assay.core.page": ("Page",),
    "assay.core.plan": ("Block", "Done", "Role", "Subject", "Trial"),
    "assay.core.results": ("Estimate", "Finding", "Findings", "Record"),
    "assay.joules.energy": ("energy",),
    "assay.joules.values": ("Energy",),
    "assay.machine.detect": ("detect",),
    "assay.machine.model": ("Machine",),
    "assay.monitor.monitor": ("Monitor",),
    "assay.monitor.older": ("GPUMonitor", "GPUStats"),
    "assay.store.runs": ("RunFolder",),
    "assay.timing.compare": ("compare",),
    "assay.timing.do_bench": ("do_bench",),
    "assay.timing.measure": ("measure",),
    "assay.timing.pick": ("pick",),
    "assay.timing.values": ("Comparison", "Measurement", "Pick"),
}


_MODULES = {"picks": "assay.timing.picks"}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'assay' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
