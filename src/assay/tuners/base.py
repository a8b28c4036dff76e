"""Auto-tuners: their interface (a function from a job to a result), their registry, and the check of their choices."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from assay.core.errors import AssayError, BadInput
from assay.workloads import registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.results import TriedConfig
    from assay.core.values import Cache, Params, Subject, Tuner, TunerName
    from assay.workloads.base import PreparedWorkload, Workload


LONGEST_REASON = 300


@dataclass(frozen=True)
class TuningJob:
    """What to tune: a subject on a device.

    Attributes:
        device: As named in the roles of a trial: ``cpu:0``, ``cuda:1``.
        cache: State of a GPU's caches when a call starts, for tuners with such an option; null: cold.
        seed: Seed for the data, and for the order in which configurations are tried.
    """

    subject: Subject
    tuner: Tuner
    device: str
    seed: int
    cache: Cache | None = None


@dataclass(frozen=True)
class TuningResult:
    """The result of a tuner.

    Attributes:
        config: The chosen configuration; null where none works, see ``reason``.
        time_us: Time of the chosen one, as measured by the tuner; null where it did not report it.
        tried: Every configuration it tried, as far as it reports them.
        tuning_s: Duration of tuning, as reported by the tuner; null where it reports none.
        version: Version of the tuner; null where it is Assay's own, or does not report it.
    """

    config: Params | None
    time_us: float | None = None
    tried: tuple[TriedConfig, ...] = ()
    tuning_s: float | None = None
    version: str | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()


class TuneFunction(Protocol):
    """A tuner."""

    def __call__(self, job: TuningJob) -> TuningResult:
        """Choose a configuration.

        Raises:
            AssayError: It failed; the message gives the reason.
        """
        ...


def config_space(workload: Workload, job: TuningJob) -> Sequence[Params]:
    """Return the configurations that a workload can be tuned over, the default first."""
    configs = workload.configs(job.subject.params)
    if not configs:
        raise BadInput(f"{job.subject.label} has no configurations to choose from")
    return configs


def describe_error(error: BaseException) -> str:
    """Return an error as text that can be part of a sentence."""
    text = " ".join(str(error).split())[:LONGEST_REASON].removesuffix(".")
    if isinstance(error, AssayError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


TUNERS: Mapping[TunerName, str] = {
    "pick": "assay.tuners.pick",
    "triton": "assay.tuners.triton",
    "helion": "assay.tuners.helion",
    "command": "assay.tuners.command",
}

OWN_SPACE_TUNERS: frozenset[TunerName] = frozenset({"helion"})
"""Tuners that draw configurations from their own space, for workloads that list none."""

CHECKED_TUNERS: frozenset[TunerName] = frozenset({"triton", "helion"})
"""Third-party tuners whose choice can be run here: it is checked like any subject."""


def load_tuner(name: TunerName) -> TuneFunction:
    """Return a tuner by its name."""
    tune: TuneFunction = importlib.import_module(TUNERS[name]).tune
    return tune


def can_tune(name: TunerName, subject: Subject) -> bool:
    """Return whether a tuner has more than one configuration of a subject to choose from."""
    if name == "command":
        return True
    if name in OWN_SPACE_TUNERS:
        return subject.impl == name
    if subject.config is None:
        return False
    return len(registry.find_workload(subject.workload, subject.impl).configs(subject.params)) > 1


def shortest_search_s(name: TunerName) -> float:
    """Return the minimum duration of a tuner's search, in seconds; 0 for tuners that keep to any budget."""
    if name != "helion":
        return 0.0
    from assay.tuners.helion import shortest_search_s

    return shortest_search_s()


def describe_wrong_output(prepared: PreparedWorkload) -> str | None:
    """Return how far the output of a configuration is off; null where it is not, or there is no check."""
    check = prepared.check() if prepared.check is not None else None
    if check is None or check.passed:
        return None
    return f"the {check.measure} is {check.error:.3g}, more than {check.tolerance:.3g}"


def check_choice(job: TuningJob, result: TuningResult) -> TuningResult:
    """Return the result; a choice with wrong output, or that does not run here, is replaced by none."""
    if result.config is None or job.tuner.name not in CHECKED_TUNERS:
        return result
    workload = registry.find_workload(job.subject.workload, job.subject.impl)
    try:
        prepared = workload.prepare(job.subject.params, result.config, device=job.device, seed=job.seed)
        wrong = describe_wrong_output(prepared)
        prepared.close()
    except Exception as error:  # noqa: BLE001 - whatever it raises is the reason why it cannot be chosen
        why = f"its choice does not run here: {describe_error(error)}"
        return replace(result, config=None, time_us=None, reason=why)
    return (
        result if wrong is None else replace(result, config=None, time_us=None, reason=f"its choice is wrong: {wrong}")
    )
