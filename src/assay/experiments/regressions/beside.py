"""What else changed when a series stepped: the host, the driver, the software, the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.stats.changes import Step
    from assay.store.history.points import Run


def confounders(runs: Sequence[Run], step: Step) -> tuple[str, ...]:
    """Return hosts and drivers that a series had never been on before the step and was on from it.

    A host that was there before has a level of its own, and explains nothing.
    """
    before, after = runs[: step.first_low], runs[step.first_low : step.first_high + 1]
    texts = []
    hosts = {run.host for run in before}
    for run in after:
        if run.host not in hosts:
            hosts.add(run.host)
            texts.append(f"a new host ({run.hostname or run.host[:8]})")
    drivers = {run.driver for run in before}
    for run in after:
        if run.driver not in drivers:
            drivers.add(run.driver)
            texts.append(f"the driver changed from {before[-1].driver or 'none'} to {run.driver or 'none'}")
    return tuple(texts)


def others(runs: Sequence[Run], step: Step) -> tuple[str, ...]:
    """Return software whose version is not what it was before the step, and whether the code is."""
    last, first = runs[step.first_low - 1], runs[step.first_high]
    texts = [
        f"{name} {last.versions.get(name) or 'none'} → {first.versions.get(name) or 'none'}"
        for name in {**last.versions, **first.versions}
        if last.versions.get(name) != first.versions.get(name)
    ]
    if last.git_commit is not None and (last.git_commit, first.git_dirty) == (first.git_commit, False):
        texts.append("the commit is the same")
    return tuple(texts)
