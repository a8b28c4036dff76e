from __future__ import annotations

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.ops.gemm import SGEMM_NUMPY


@pytest.mark.parametrize("repetitions", [1, 3])
def test_the_product_is_right_and_counts_its_work(repetitions: int) -> None:
    params = {**SGEMM_NUMPY.defaults(), "n": 40, "repetitions": repetitions}
    prepared = SGEMM_NUMPY.prepare(params, None, device="cpu:0", seed=1)
    assert prepared.check is not None
    assert prepared.check().passed
    assert prepared.flop == 2 * 40**3 * repetitions
    assert prepared.measured is not None
    assert prepared.measured() == {"n": 40.0}


def test_an_n_that_no_memory_holds_is_refused_with_the_largest_that_fits() -> None:
    with pytest.raises(MachineCannot, match="the largest n that fits is"):
        SGEMM_NUMPY.prepare({**SGEMM_NUMPY.defaults(), "n": 2_000_000}, None, device="cpu:0", seed=0)
    with pytest.raises(BadInput, match="n is the word fill or a whole number"):
        SGEMM_NUMPY.prepare({**SGEMM_NUMPY.defaults(), "n": "many"}, None, device="cpu:0", seed=0)
