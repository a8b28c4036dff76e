"""What an experiment is (pure functions over records that never start a process or read a sensor).

How to find one by name: built-in, or an installed plug-in's.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from assay.core.errors import BadInput, suggest_nearest
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from assay.core.page import Page
    from assay.core.plan import Block, Done
    from assay.core.results import Findings
    from assay.launch.checkouts import Checkouts
    from assay.machine.model import Machine
    from assay.store.records import Records


OptionsT = TypeVar("OptionsT", bound=Value)


class Experiment(Protocol[OptionsT]):
    """A question, as the loop asks it."""

    name: str
    options_type: type[OptionsT]

    def step(self, machine: Machine, options: OptionsT, records: Records) -> Block | Done:
        """Return what to measure next, or that it is decided. The same records give the same answer."""
        ...

    def analyse(self, machine: Machine, options: OptionsT, records: Records) -> Findings:
        """Return what the records say."""
        ...

    def page(self, machine: Machine, options: OptionsT, findings: Findings, records: Records) -> Page:
        """Return what to show."""
        ...


@runtime_checkable
class NeedsCheckouts(Protocol):
    """An experiment whose workers take their code from checkouts, which have to be there while it is measured."""

    def checkouts(self, options: Any) -> Checkouts:
        """Return which checkouts."""
        ...


@runtime_checkable
class HasBaselines(Protocol):
    """An experiment with trials that are nothing by themselves: where only they were measured, nothing was."""

    def baselines(self, machine: Machine, options: Any) -> frozenset[str]:
        """Return the identities of such trials."""
        ...


@runtime_checkable
class WritesFiles(Protocol):
    """An experiment that leaves text files of its own in the run folder."""

    def files(
        self, machine: Machine, options: Any, findings: Findings, records: Records
    ) -> Mapping[str, str | Iterable[str]]:
        """Return the files, by their paths within the run folder; one that may be long, part by part."""
        ...


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
