"""What people should know about where a model lies: who waits for whom, what is copied, which GPU has most of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.workloads.generation.fitting import named
from assay.workloads.generation.limits import CPU, DISK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.workloads.generation.sizes import Predicted

UNEVEN = 1.3
"""A GPU with so many times its even share of the weights is told."""


def remarks(sizes: Predicted, weights: Mapping[str, int], gpus: Sequence[str], main: str) -> tuple[str, ...]:
    """Return what is to be said of a map, by the weights on each place."""
    used = [gpu for gpu in gpus if weights.get(gpu)]
    return (*_pipeline(used), *_uneven(weights, used), *_unused(gpus, used), *_elsewhere(sizes, weights, main))


def _pipeline(used: Sequence[str]) -> tuple[str, ...]:
    if len(used) < 2:
        return ()
    numbers = ", ".join(gpu.removeprefix("cuda:") for gpu in used)
    return (f"layers are placed one after another on GPU {numbers}, a naive pipeline: one GPU works at a time",)


def _uneven(weights: Mapping[str, int], used: Sequence[str]) -> tuple[str, ...]:
    total = sum(weights[gpu] for gpu in used)
    if len(used) < 2 or not total:
        return ()
    most = max(used, key=lambda gpu: weights[gpu])
    share = weights[most] / total
    if share * len(used) < UNEVEN:
        return ()
    return (f"{named(most)} holds {share:.0%} of the weights of {len(used)} GPUs".replace("%", " %"),)


def _unused(gpus: Sequence[str], used: Sequence[str]) -> tuple[str, ...]:
    idle = [gpu.removeprefix("cuda:") for gpu in gpus if gpu not in used]
    if not idle:
        return ()
    return (f"nothing of the model is on GPU {', '.join(idle)}, whose joules count all the same",)


def _elsewhere(sizes: Predicted, weights: Mapping[str, int], main: str) -> tuple[str, ...]:
    over = "over PCIe " if main != CPU else ""
    return tuple(
        f"{named(device)} holds {weights[device] / sizes.weights_bytes:.0%} of the weights".replace("%", " %")
        + f": they are copied {over}for every token, which is then what is measured"
        for device in (CPU, DISK)
        if device != main and weights.get(device)
    )
