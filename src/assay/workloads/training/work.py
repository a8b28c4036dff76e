"""From a trainer and what it is fed to a subject that is ready to be checked and timed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from assay.core.errors import TrialFailed
from assay.workloads.base import Prepared, Ran
from assay.workloads.torch_device import Tensor, synchronizer
from assay.workloads.torch_profile import launched, library
from assay.workloads.training.check import check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.workloads.training.trainer import Trainer

Batch: TypeAlias = tuple[Tensor, Tensor]
"""What a model is given, and what it should say."""


def prepared(
    trainer: Trainer,
    feed: Callable[[], Batch],
    *,
    checked: Callable[[Batch], Batch],
    what: str,
    flop: float,
    where: str,
) -> Prepared:
    """Return a step as a call; ``feed`` gives it a batch, of which the part ``checked`` is checked, and is ``what``."""

    def call() -> Tensor:
        return trainer.step(*feed())

    def ran() -> Ran:
        """Make calls, and look at what one launched: hundreds of kernels, of which each is named once."""
        kernels = tuple(dict.fromkeys(launched(call, where)))
        return Ran(kernels, library(kernels))

    def measured() -> Mapping[str, float]:
        loss = float(call())
        if not math.isfinite(loss):
            raise TrialFailed(f"the loss of the step is {loss}")
        return {"weights": float(sum(weight.numel() for weight in trainer.weights)), "loss": loss}

    return Prepared(
        call=call,
        check=lambda: check(trainer, *checked(feed()), what),
        ran=ran,
        flop=flop,
        measured=measured,
        synchronize=synchronizer(where),
    )
