"""Who is timed when nobody is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.workloads import registry

if TYPE_CHECKING:
    from assay.core.plan import Subject

SMALL = {"rows": "64", "cols": "64"}
VICTIMS: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    "cuda": (("softmax@torch", SMALL), ("gemm@torch", {}), ("triad@torch", {})),
    "cpu": (("softmax@numpy", {}),),
}
"""Who is timed when nobody is named: on a GPU a kernel bound by its launch, one by arithmetic, one by memory."""


def victims_of(kind: str) -> tuple[Subject, ...]:
    """Return who is timed on a kind of device when nobody is named."""
    return tuple(registry.subject(spec, device_kind=kind, given=params) for spec, params in VICTIMS[kind])
