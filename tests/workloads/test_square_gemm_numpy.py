from __future__ import annotations

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.square_gemm_numpy import WORKLOAD


@pytest.mark.parametrize("repetitions", [1, 3])
def test_the_product_is_right_and_counts_its_work(repetitions: int) -> None:
    params = {**WORKLOAD.defaults(), "n": 40, "repetitions": repetitions}
    prepared = WORKLOAD.prepare(params, None, device="cpu:0", seed=1)
    assert prepared.check is not None
    assert prepared.check().passed
    assert prepared.flop == 2 * 40**3 * repetitions
    assert prepared.measured is not None
    assert prepared.measured() == {"n": 40.0}


def test_an_n_that_no_memory_holds_is_refused_with_the_largest_that_fits() -> None:
    with pytest.raises(MachineCannot, match="the largest n that fits is"):
        WORKLOAD.prepare({**WORKLOAD.defaults(), "n": 2_000_000}, None, device="cpu:0", seed=0)
    with pytest.raises(BadInput, match="n is the word fill or a whole number"):
        WORKLOAD.prepare({**WORKLOAD.defaults(), "n": "many"}, None, device="cpu:0", seed=0)
