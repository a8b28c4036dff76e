"""What an experiment is, and how to find one by name: built-in, or an installed plug-in's.

A new experiment is a package with its options, its plan (``step``), its report and an `EXPERIMENT`; a line in
`BUILT_IN`; and a verb in ``cli/``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from assay.core.errors import BadInput, suggest_nearest
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from assay.core.page import Page
    from assay.core.results import Findings
    from assay.core.values import Block, Done
    from assay.launch.checkouts import Checkouts
    from assay.machine.model import Machine
    from assay.store.records import Records


OptionsT = TypeVar("OptionsT", bound=Value)


@dataclass(frozen=True)
class Report:
    """What an experiment makes of its records.

    ``files`` are text files of its own by their paths within the run folder; a long one is given part by part.
    ``baselines`` are the ids of trials that are no result by themselves: where only they were measured, nothing was.
    """

    findings: Findings
    page: Page
    files: Mapping[str, str | Iterable[str]] = field(default_factory=dict)
    baselines: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Experiment(Generic[OptionsT]):
    """A question, as the loop asks it: pure functions over the records so far.

    Attributes:
        name: As in `BUILT_IN`.
        options_type: The options of a run, as its plan stores them.
        step: Returns what to measure next, or that it is decided. The same records give the same answer.
        report: Returns the findings, the page and the files of its own. It analyses the records once for all of them.
        checkouts: Returns the checkouts that workers take their code from; null: they run the installed code.
    """

    name: str
    options_type: type[OptionsT]
    step: Callable[[Machine, OptionsT, Records], Block | Done]
    report: Callable[[Machine, OptionsT, Records], Report]
    checkouts: Callable[[OptionsT], Checkouts] | None = None


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
ENTRY_POINT_GROUP = "assay.experiments"


def list_experiments() -> dict[str, str]:
    """Return every experiment's name and where it lives."""
    plugins = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return {**plugins, **BUILT_IN}


def find_experiment(name: str) -> Experiment[Any]:
    """Return the experiment of that name."""
    table = list_experiments()
    if name not in table:
        raise BadInput(f"Unknown experiment {name!r}.{suggest_nearest(name, table)}")
    module, _, attribute = table[name].partition(":")
    experiment: Experiment[Any] = getattr(importlib.import_module(module), attribute)
    return experiment
