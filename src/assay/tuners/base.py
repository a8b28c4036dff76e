"""What a tuner is: a function from a job to what was found; what it raises is the reason that nothing was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from assay.core.errors import AssayError, BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.core.plan import Cache, Subject, Tuner
    from assay.core.results import Tried
    from assay.core.values import Params
    from assay.workloads.base import Workload

LONGEST_REASON = 300


@dataclass(frozen=True)
class Job:
    """What to tune: a subject on a device.

    Attributes:
        device: As the roles of a trial name it: ``cpu:0``, ``cuda:1``.
        cache: What a GPU's caches hold when a call begins, for a tuner that can be told; null: cold.
        seed: Of the data, and of the order in which configurations are tried.
    """

    subject: Subject
    tuner: Tuner
    device: str
    seed: int
    cache: Cache | None = None


@dataclass(frozen=True)
class Found:
    """What a tuner found.

    Attributes:
        config: What it chose; null where no configuration works, for ``reason``.
        time_us: Of the chosen one, as the tuner saw it; null where it did not say.
        tried: Every configuration it tried, as far as it says.
        tuning_s: How long it tuned, by its own account; null where it gives none.
        version: Of the tuner; null where it is Assay's own, or does not say.
    """

    config: Params | None
    time_us: float | None = None
    tried: tuple[Tried, ...] = ()
    tuning_s: float | None = None
    version: str | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()


class Tunes(Protocol):
    """A tuner."""

    def __call__(self, job: Job) -> Found:
        """Choose a configuration.

        Raises:
            AssayError: It cannot be done; why, in one sentence.
        """
        ...


def space(workload: Workload, job: Job) -> Sequence[Params]:
    """Return the configurations that a workload can be tuned over, the default first."""
    configs = workload.configs(job.subject.params)
    if not configs:
        raise BadInput(f"{job.subject.label} has no configurations to choose from")
    return configs


def why(error: BaseException) -> str:
    """Return what was raised in words that a sentence can take up."""
    text = " ".join(str(error).split())[:LONGEST_REASON].removesuffix(".")
    if isinstance(error, AssayError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
