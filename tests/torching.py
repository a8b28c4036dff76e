"""For tests of workloads on tensors: the ones there are, small problems that no block divides, and their checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.workloads import registry

if TYPE_CHECKING:
    from assay.core.results import Check
    from assay.core.values import Params, Scalar
    from assay.workloads.base import PreparedWorkload

ODD: dict[str, Params] = {
    "flash_attention": {"batch": 2, "heads": 3, "sequence": 37, "dim": 24},
    "gemm": {"m": 37, "n": 51, "k": 29},
    "layer_norm": {"rows": 7, "cols": 131},
    "memcpy": {"n": 1021},
    "rms_norm": {"rows": 7, "cols": 131},
    "softmax": {"rows": 7, "cols": 131},
    "triad": {"n": 1021},
}
"""For each workload of PyTorch's a small problem of odd sizes."""


def params_of(name: str, impl: str = "torch", **changed: Scalar) -> Params:
    """Return the parameters of a small odd problem, some of them changed."""
    return {**registry.find_workload(name, impl).defaults(), **ODD[name], **changed}


def prepared(
    name: str, impl: str = "torch", *, device: str = "cpu:0", seed: int = 0, **changed: Scalar
) -> PreparedWorkload:
    """Return a small odd problem ready to be timed."""
    return registry.find_workload(name, impl).prepare(params_of(name, impl, **changed), None, device=device, seed=seed)


def checked(ready: PreparedWorkload) -> Check:
    """Return how far a prepared workload's output is from its reference."""
    assert ready.check is not None
    return ready.check()
