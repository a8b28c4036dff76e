"""What the workloads on tensors share: from one piece of work to a subject that is ready to be checked and timed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.core.errors import BadInput
from assay.workloads.base import Prepared, Ran
from assay.workloads.data import DISTRIBUTIONS
from assay.workloads.parameters import flag
from assay.workloads.torch_check import Truth, compare
from assay.workloads.torch_device import Tensor, synchronizer
from assay.workloads.torch_profile import launched, library

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.results import Check
    from assay.core.values import Params

DTYPES = ("bfloat16", "float16", "float32", "float64")

EPS = 1e-5
"""What norms add to a mean square before they take its root."""


def _as_it_is(out: Tensor) -> Tensor:
    return out


@dataclass(frozen=True)
class Work:
    """One call's work on tensors that are in place.

    Attributes:
        call: Does the work and returns its output.
        truth: What the output must be.
        tolerance: The largest relative error that passes.
        flop: Floating-point operations of one call; null where there are none.
        bytes_moved: The least bytes one call must read and write.
        out: The output, where the call writes into one that is kept.
        by_rows: Returns the output with the rows of ``truth`` as its first axis.
        backend: Returns which library kernels belong to.
    """

    call: Callable[[], Tensor]
    truth: Truth
    tolerance: float
    flop: float | None
    bytes_moved: float
    out: Tensor | None = None
    by_rows: Callable[[Tensor], Tensor] = _as_it_is
    backend: Callable[[tuple[str, ...]], str | None] = library

    def check(self, seed: int) -> Check:
        """Make one call, its kept output spoilt before, and compare; the rows judged depend on the seed."""
        if self.out is not None:
            self.out.fill_(math.nan)
        out = self.by_rows(self.call())
        return compare(out, self.truth, tolerance=self.tolerance, seed=seed)

    def ran(self, where: str) -> Ran:
        """Make calls, and look at what one of them launched."""
        kernels = launched(self.call, where)
        return Ran(kernels, self.backend(kernels))

    def prepared(self, *, where: str, seed: int) -> Prepared:
        """Return the work ready to be timed."""
        return Prepared(
            call=self.call,
            check=lambda: self.check(seed),
            ran=lambda: self.ran(where),
            flop=self.flop,
            bytes_moved=self.bytes_moved,
            synchronize=synchronizer(where),
        )


class TorchWorkload:
    """What all workloads of PyTorch's own operators have in common: they run everywhere and have nothing to tune."""

    impl = "torch"
    device_kinds = frozenset({"cpu", "cuda"})
    choices: Mapping[str, tuple[str, ...]] = {"dtype": DTYPES, "distribution": DISTRIBUTIONS}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: PyTorch chooses for itself."""
        return ()


def reads_tf32(params: Params, dtype: str) -> bool:
    """Return whether float32 products may be rounded to TF32, which is asked for and means nothing otherwise."""
    requested = flag(params, "tf32")
    if requested and dtype != "float32":
        raise BadInput(f"tf32 is a way to multiply float32, not {dtype}.")
    return requested
