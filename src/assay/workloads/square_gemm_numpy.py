"""``sgemm`` where PyTorch is not installed: numpy's own product on a CPU, with the same parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from assay.workloads import data, reference, square_sizes
from assay.workloads.base import Prepared
from assay.workloads.parameters import size
from assay.workloads.problems import Gemm
from assay.workloads.torch_memory import free_on_host

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from assay.core.results import Check
    from assay.core.values import Params
    from assay.workloads.base import Workload

DTYPE = "float32"


class SgemmNumpy:
    """``sgemm@numpy``: a product of two n × n matrices into a kept third, ``repetitions`` times a call."""

    name = "sgemm"
    impl = "numpy"
    device_kinds = frozenset({"cpu"})
    choices: Mapping[str, tuple[str, ...]] = {"distribution": data.DISTRIBUTIONS}
    summary = "Square product C = A·B in float32 on a CPU"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the size, the products of one call, and the distribution of A and B."""
        return {"n": square_sizes.FILL, "repetitions": 1, "distribution": "normal"}

    def configs(self, params: Params) -> Sequence[Params]:
        """Return nothing: there is nothing to tune."""
        return ()

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse an n that is neither a size nor the word for one."""
        square_sizes.read(params["n"])

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Make sure that it fits, draw A and B, and set C aside."""
        n, repetitions = square_sizes.read(params["n"]) or square_sizes.ON_CPU, size(params, "repetitions")
        square_sizes.make_sure_it_fits(n, DTYPE, free_on_host(Path("/")), name=self.name, device=device)
        a, b = (data.draw(params["distribution"], (n, n), DTYPE, seed, stream=stream) for stream in range(2))
        out = np.zeros((n, n), DTYPE)
        problem = Gemm(n, n, n, DTYPE)

        def call() -> None:
            for _ in range(repetitions):
                np.matmul(a, b, out=out)

        def check() -> Check:
            out.fill(np.nan)
            call()
            return reference.check(out, reference.matmul(a, b), DTYPE)

        return Prepared(
            call=call,
            check=check,
            flop=problem.flop * repetitions,
            bytes_moved=problem.bytes_moved * repetitions,
            measured=lambda: {"n": float(n)},
        )


WORKLOAD: Workload = SgemmNumpy()
