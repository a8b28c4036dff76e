"""How long a verb will measure, and what it measures: for the choice of a machine to do it on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay.core.units import format_span
from assay.core.values import Value

if TYPE_CHECKING:
    from collections.abc import Mapping

ASSUMED_S = 600.0
"""Where nothing on the command line says how long it takes."""


class Expected(Value):
    """How long a run takes once its machine is set up, and whence that is known."""

    run_s: float = Field(gt=0)
    said: str


def expected(verb: str, given: Mapping[str, Any]) -> Expected:
    """Return how long a verb takes with these options; ``verb`` is its words, such as ``threshold run``."""
    if given.get("budget"):
        return Expected(run_s=given["budget"], said="--budget")
    quick = " with --quick" if given.get("quick") else ""
    if verb == "threshold run":
        from assay.cli.threshold_build import BUDGET_S, QUICK_SHARE

        share = QUICK_SHARE if quick else 1.0
        return Expected(run_s=share * BUDGET_S["cpu" if on_cpu(given) else "cuda"], said=f"its budget{quick}")
    if verb == "contention run":
        from assay.experiments.contention.budget import BUDGET_S as WHOLE_S
        from assay.experiments.contention.budget import QUICK_BUDGET_S

        return Expected(run_s=QUICK_BUDGET_S if quick else WHOLE_S, said=f"its budget{quick}")
    if verb == "run":
        return _of_trials(given, quick)
    return Expected(run_s=ASSUMED_S, said=f"assumed: {format_span(ASSUMED_S)}; --budget says it")


def _of_trials(given: Mapping[str, Any], quick: str) -> Expected:
    """Return the time of ``assay run``: workloads, each so long, and so often."""
    from assay.cli.run import DURATION_S, QUICK_DURATION_S
    from assay.experiments.run.plan import START_UP_S

    count = max(1, len(given["workloads"]) + len(given["benchmarks"])) * given["repeat"]
    restarts = given["restarts"] or (2 if quick else 5)
    each_s = (given["duration"] or (QUICK_DURATION_S if quick else DURATION_S)) + restarts * START_UP_S["torch"]
    return Expected(
        run_s=count * each_s, said=f"{count} trial{'' if count == 1 else 's'} of {format_span(each_s)}{quick}"
    )


def on_cpu(given: Mapping[str, Any]) -> bool:
    """Return whether a verb measures CPUs: a rented machine's, say."""
    devices = given.get("devices") or ()
    return bool(devices) and all(str(name).startswith("cpu") for name in devices)


def subjects(verb: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the workloads that a verb measures on a GPU, as far as the command line names them."""
    if on_cpu(given):
        return ()
    if verb == "threshold run":
        from assay.experiments.threshold.spec import DEFAULT, load

        thresholds = load(given["thresholds"] or DEFAULT)
        return tuple(name for threshold in thresholds for name in (threshold.reference, threshold.fast))
    named = (given.get(name) or () for name in ("workloads", "benchmarks", "workload"))
    return tuple(str(word) for words in named for word in ((words,) if isinstance(words, str) else words))
