"""What the workloads in Triton share: where they run, their launches, and what a configuration may ask of a GPU.

On a CPU they run only under Triton's interpreter (``TRITON_INTERPRET=1``): right, slow, and nothing worth timing.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.data import DISTRIBUTIONS
from assay.workloads.parameters import size
from assay.workloads.torch_common import reads_tf32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.results import Check
    from assay.core.values import Params
    from assay.workloads.base import Prepared
    from assay.workloads.torch_common import Work
    from assay.workloads.torch_device import Tensor

DTYPES = ("bfloat16", "float16", "float32")

CHOICES = {"dtype": DTYPES, "distribution": DISTRIBUTIONS}

MOST_SHARED_BYTES = 200 * 1024
"""Shared memory that a configuration may need by our estimate: what fits a Hopper; smaller GPUs refuse some."""

SMALLEST_DOT = 16
"""Triton multiplies tiles of at least this side."""


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched over data that is in place, in whichever configuration.

    Attributes:
        kernel: Its name.
        args: Tensors and numbers, by their place.
        out: The tensor that it writes.
        fixed: Settings that all configurations have in common.
        settings: Returns those of a configuration, but for its warps and stages.
        grid: Returns how many programs there are, from all settings.
    """

    kernel: str
    args: tuple[Any, ...]
    out: Tensor
    fixed: Mapping[str, Any]
    settings: Callable[[Params], dict[str, Any]]
    grid: Callable[[Mapping[str, Any]], tuple[int]]

    def call(self, config: Params) -> Callable[[], Tensor]:
        """Return what launches the kernel in one configuration; its first call compiles it."""
        settings = {**self.fixed, **self.settings(config)}
        launched = partial(kernel(self.kernel)[self.grid(settings)], *self.args, **settings, **launch_options(config))

        def call() -> Tensor:
            launched()
            return self.out

        return call


class TritonWorkload(Protocol):
    """What workloads in Triton offer to an auto-tuner beside what all workloads do."""

    def launch(self, params: Params, *, device: str, seed: int) -> Launch:
        """Put the data in place, and return how the kernel is launched over it."""
        ...


@cache
def installed() -> bool:
    """Return whether Triton can be imported here."""
    return find_spec("triton") is not None


def interpreted() -> bool:
    """Return whether Triton interprets its kernels on the CPU instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def device_kinds() -> frozenset[str]:
    """Return the kinds of device that Triton's kernels run on in this process."""
    return frozenset({"cpu", "cuda"}) if interpreted() else frozenset({"cuda"})


def kernel(name: str, module: str | None = None) -> Any:
    """Return one of our kernels, not yet compiled, from the module of its name unless told; or say what is missing."""
    try:
        return getattr(importlib.import_module(f"assay.workloads.kernels.{module or name}"), name)
    except ImportError as error:
        raise MachineCannot(f"Triton cannot be imported here: {error}.") from error


def launch_options(config: Params) -> dict[str, int]:
    """Return how a kernel is compiled and launched: warps to a program, and stages of the pipeline of its loads."""
    return {name: size(config, name) for name in ("num_warps", "num_stages")}


def power_of_two(least: int, *, at_least: int = SMALLEST_DOT) -> int:
    """Return the smallest power of two that is no less than both."""
    return 1 << (max(least, at_least) - 1).bit_length()


def tile_side(config: Params, name: str) -> int:
    """Return one side of a tile, which Triton wants to be a power of two and not too small."""
    side = size(config, name)
    if side < SMALLEST_DOT or side != power_of_two(side):
        raise BadInput(f"{name} is a power of two of at least {SMALLEST_DOT}, not {side}.")
    return side


def multiplied_by(params: Params, dtype: str) -> str:
    """Return what multiplies tiles: ``threads`` where float32 is to stay exact, otherwise ``tensor cores``."""
    return "threads" if dtype == "float32" and not reads_tf32(params, dtype) else "tensor cores"


def prepared(work: Work, *, where: str, seed: int) -> Prepared:
    """Return a kernel's work ready to be timed; a configuration too large for the GPU is refused when checked."""
    ready = work.prepared(where=where, seed=seed)

    def check() -> Check:
        return within_limits(partial(work.check, seed))

    return replace(ready, check=check, ran=None if interpreted() else ready.ran)


def within_limits(check: Callable[[], Check]) -> Check:
    """Make a check; a kernel that asks for more than the GPU has is refused in words."""
    try:
        return check()
    except Exception as error:
        if type(error).__name__ != "OutOfResources":
            raise
        raise MachineCannot(f"This configuration is too large for this GPU: {error}") from error


def backend_of(kernels: tuple[str, ...]) -> str | None:
    """Return the library that did the work: the kernels are our own; null where none were seen."""
    return "triton" if kernels else None
