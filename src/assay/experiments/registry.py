"""Find an experiment by its name: built-in, or an installed plug-in's."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, nearest

if TYPE_CHECKING:
    from assay.experiments.base import Experiment

BUILT_IN = {
    "contention": "assay.experiments.contention:EXPERIMENT",
    "energy": "assay.experiments.energy:EXPERIMENT",
    "gate": "assay.experiments.gate:EXPERIMENT",
    "matrix": "assay.experiments.matrix:EXPERIMENT",
    "power": "assay.experiments.power.characterize:EXPERIMENT",
    "power_sweep": "assay.experiments.power.sweep:EXPERIMENT",
    "run": "assay.experiments.run:EXPERIMENT",
    "scaling": "assay.experiments.scaling:EXPERIMENT",
    "scaling_prediction": "assay.experiments.scaling_prediction:EXPERIMENT",
    "threshold": "assay.experiments.threshold:EXPERIMENT",
}
ENTRY_POINTS = "assay.experiments"


def known() -> dict[str, str]:
    """Return every experiment's name and where it lives."""
    plugins = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return {**plugins, **BUILT_IN}


def find(name: str) -> Experiment[Any]:
    """Return the experiment of that name."""
    table = known()
    if name not in table:
        raise BadInput(f"Unknown experiment {name!r}.{nearest(name, table)}")
    module, _, attribute = table[name].partition(":")
    experiment: Experiment[Any] = getattr(importlib.import_module(module), attribute)
    return experiment
