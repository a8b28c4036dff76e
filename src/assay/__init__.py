"""Assay measures GPU programs so that the numbers can be believed.

What can be imported from here is public; everything else may change. Names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from assay._version import __version__

if TYPE_CHECKING:
    from assay.core.errors import AssayError, BadInput, GateSaysNo, MachineCannot, Stopped, TrialFailed
    from assay.core.page import Page
    from assay.core.plan import Block, Done, Role, Subject, Trial
    from assay.core.results import Estimate, Finding, Findings, Record
    from assay.machine.detect import detect
    from assay.machine.model import Machine
    from assay.store.runs import RunFolder

__all__ = [
    "AssayError",
    "BadInput",
    "Block",
    "Done",
    "Estimate",
    "Finding",
    "Findings",
    "GateSaysNo",
    "Machine",
    "MachineCannot",
    "Page",
    "Record",
    "Role",
    "RunFolder",
    "Stopped",
    "Subject",
    "Trial",
    "TrialFailed",
    "__version__",
    "detect",
]

_HOMES = {
    "assay.core.errors": ("AssayError", "BadInput", "GateSaysNo", "MachineCannot", "Stopped", "TrialFailed"),
    "assay.core.page": ("Page",),
    "assay.core.plan": ("Block", "Done", "Role", "Subject", "Trial"),
    "assay.core.results": ("Estimate", "Finding", "Findings", "Record"),
    "assay.machine.detect": ("detect",),
    "assay.machine.model": ("Machine",),
    "assay.store.runs": ("RunFolder",),
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'assay' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
