"""Rows looked up in a table and summed: the memory-bound load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.workloads import registry
from assay.workloads.ops import memory
from assay.workloads.torch_support import TORCH_DTYPES
from tests.torching import checked

if TYPE_CHECKING:
    from assay.core.values import Scalar
    from assay.workloads.base import PreparedWorkload

SMALL: dict[str, Any] = {"rows": 997, "dim": 24, "batch": 31, "pooling": 7}


def prepared(**given: Scalar) -> PreparedWorkload:
    workload = registry.find_workload("embedding", "torch")
    return workload.prepare({**workload.defaults(), **SMALL, **given}, None, device="cpu:0", seed=0)


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("indices", memory.INDEX_DISTRIBUTIONS)
def test_bags_are_right_in_every_precision_however_rows_are_chosen(dtype: str, indices: str) -> None:
    assert checked(prepared(dtype=dtype, indices=indices)).passed


def test_bytes_are_those_of_each_row_once_and_repeated_ones_are_told() -> None:
    ready = prepared()
    assert ready.measured is not None
    seen = ready.measured()
    assert seen["lookups"] == 31 * 7
    assert 180 < seen["distinct_rows"] < 217
    assert seen["gathered_mib"] == 31 * 7 * 24 * 4 / 2**20
    assert ready.bytes_moved == (seen["distinct_rows"] + 31) * 24 * 4 + (31 * 7 + 31) * 8
    assert ready.flop == 31 * 6 * 24
    assert prepared(pooling=1).flop is None


def test_zipf_wants_a_few_rows_far_more_often_and_more_so_the_larger_alpha_is() -> None:
    counts = []
    for indices, alpha in (("uniform", 1.0), ("zipf", 0.8), ("zipf", 1.5)):
        wanted = memory.draw_indices(indices, 1000, (200, 50), 3, alpha=alpha, where="cpu")
        assert tuple(wanted.shape) == (200, 50)
        assert 0 <= int(wanted.min()) <= int(wanted.max()) < 1000
        counts.append(int(wanted.flatten().bincount().max()))
    assert counts[0] < 40 < counts[1] < counts[2]
    assert counts[2] == pytest.approx(10_000 / sum(r**-1.5 for r in range(1, 1001)), rel=0.05)


@pytest.mark.parametrize("rows", [1, 2, 10, 1024, 997])
def test_the_most_wanted_rows_are_scattered_and_none_is_left_out(rows: int) -> None:
    step = memory._coprime_step(rows)
    assert sorted(rank * step % rows for rank in range(rows)) == list(range(rows))


def test_one_seed_gives_one_choice_of_rows() -> None:
    first, again, other = (
        memory.draw_indices("zipf", 1000, (4, 5), seed, alpha=1.05, where="cpu") for seed in (1, 1, 2)
    )
    assert first.equal(again)
    assert not first.equal(other)


def test_a_sum_that_leaves_a_row_out_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    right = torch.nn.functional.embedding_bag
    monkeypatch.setattr(
        torch.nn.functional, "embedding_bag", lambda wanted, *rest, **named: right(wanted.roll(1), *rest, **named)
    )
    assert not checked(prepared()).passed


def test_bad_parameters_and_too_large_a_table_are_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = registry.find_workload("embedding", "torch")
    for alpha in ("0", "-1", "9"):
        with pytest.raises(BadInput, match=r"^alpha is a number above 0 and at most 4, not "):
            registry.complete_params(workload, {"alpha": alpha})
    with pytest.raises(BadInput, match=r"^embedding has no indices 'zip'; there are uniform, zipf\."):
        registry.complete_params(workload, {"indices": "zip"})
    monkeypatch.setattr(memory, "free_bytes", lambda where: 2**30)
    with pytest.raises(MachineCannot, match=r"^embedding with this table needs .* GiB of memory, and 1\.0 GiB are fr"):
        prepared(rows=2**30)
