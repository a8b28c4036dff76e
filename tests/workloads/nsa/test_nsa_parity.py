"""A fast path is let through when it is right and stopped when it is not, whatever it is that is wrong."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from assay.workloads import registry
from assay.workloads.nsa import workloads
from assay.workloads.nsa.branches import Branch, CompressedBranch, SlidingBranch
from assay.workloads.nsa.paths import chunked_call
from assay.workloads.parity import EPSILON, OutputErrors, compare_with_limits, max_error_limit, mean_error_limit
from tests.workloads.nsa import naive

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.core.results import Parity

SLIDING = SlidingBranch(1, 2, 2, 16, 200, "float16", window=32)
COMPRESSED = CompressedBranch(1, 2, 2, 16, 200, "float16", block=32, stride=16)


def told(branch: Branch, spoil: Callable[[Any], Any] = lambda out: out, *, by: Branch | None = None) -> Parity:
    """Judge a branch as another one computes it, spoilt on the way."""
    given = naive.made(branch)
    call = chunked_call(by or branch, given)
    return workloads.measure_parity(branch, given, lambda: spoil(call()), seed=0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("branch", [SLIDING, COMPRESSED], ids=["sliding", "compressed"])
def test_a_path_that_is_right_passes_in_every_dtype(branch: Branch, dtype: str) -> None:
    found = told(replace(branch, dtype=dtype))
    assert found.passed, found
    assert found.reason is None
    assert found.deterministic is True
    assert (found.rows_checked, found.rows) == (200, 200)
    assert found.measure == f"absolute error against float64, beside masked attention in {dtype}"
    assert found.dense_max_error is not None
    assert found.max_limit is not None
    assert found.max_limit >= 2 * found.dense_max_error


@pytest.mark.parametrize("off", [-1, 1])
def test_a_window_that_is_off_by_one_does_not_pass(off: int) -> None:
    found = told(SLIDING, by=replace(SLIDING, window=SLIDING.window + off))
    assert found.passed is False
    assert found.reason is not None
    assert "its mean error of" in found.reason
    assert "times that of masked attention" in found.reason


def test_tokens_that_are_seen_one_query_too_early_do_not_pass() -> None:
    assert told(COMPRESSED, by=replace(COMPRESSED, block=COMPRESSED.block - 1)).passed is False


def test_an_error_in_one_row_that_no_mean_would_show_is_found() -> None:
    def one_row(out: Any) -> Any:
        out[0, 1, 1, 77] *= 1.05
        return out

    found = told(SLIDING, one_row)
    assert found.passed is False
    assert found.mean_error is not None
    assert found.mean_error < mean_error_limit("float16")
    assert found.reason is not None
    assert found.reason.startswith("its largest error of")


def test_a_scale_that_is_slightly_wrong_does_not_pass() -> None:
    assert told(SLIDING, lambda out: out * 1.01).passed is False


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_single_nan_or_infinity_does_not_pass_and_leaves_no_number_behind(value: float) -> None:
    def spoilt(out: Any) -> Any:
        out[0, 0, 0, 150, 3] = value
        return out

    found = told(SLIDING, spoilt)
    assert found.passed is False
    assert found.reason == "its output has a NaN or an infinity"
    assert found.max_error is None
    assert type(found).model_validate_json(found.model_dump_json()) == found


def test_bits_that_differ_from_call_to_call_are_told_and_not_judged() -> None:
    count = itertools.count()

    def flips(out: Any) -> Any:
        out[0, 0, 0, 9, 0] += 1e-3 * out[0, 0, 0, 9, 0] * (next(count) % 2)
        return out

    found = told(SLIDING, flips)
    assert found.deterministic is False
    assert found.passed is True


def test_of_a_long_sequence_blocks_are_judged_the_first_and_the_last_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workloads, "ALL_UP_TO", 64)
    monkeypatch.setattr(workloads, "LARGEST_BLOCK", 16)
    found = told(SLIDING)
    assert found.passed
    assert found.rows == 200
    assert found.rows_checked is not None
    assert 64 - 16 <= found.rows_checked <= 64 + 32
    assert f"over {found.rows_checked} of 200 queries in " in found.measure
    chosen = workloads.query_blocks(SLIDING, 0)
    assert chosen[0] == slice(0, 16)
    assert chosen[-1] == slice(192, 200)
    assert chosen != workloads.query_blocks(SLIDING, 1)


def test_blocks_are_so_small_that_their_scores_fit_into_memory() -> None:
    for branch in (
        SlidingBranch(1, 2, 2, 64, 65536, "float16", window=4096),
        SlidingBranch(1, 2, 2, 64, 65536, "float16", window=65536),
        CompressedBranch(4, 8, 4, 64, 65536, "float16", block=32, stride=16),
    ):
        for rows in workloads.query_blocks(branch, 0):
            size = rows.stop - rows.start
            assert size * branch.span(size) * branch.all_heads <= workloads.SCORES_AT_ONCE
    assert sum(rows.stop - rows.start for rows in workloads.query_blocks(replace(SLIDING, sequence=2**14), 0)) == 2**14


def test_limits_follow_the_rounding_of_a_dtype() -> None:
    assert mean_error_limit("float16") == 2e-4
    assert mean_error_limit("bfloat16") == pytest.approx(1.6e-3)
    assert mean_error_limit("float32") == pytest.approx(2e-4 / 2**13 * 8)
    assert max_error_limit("float16", 1e-3, 1.0) == 2e-3
    assert max_error_limit("float16", 0.0, 0.5) == pytest.approx(0.1 * EPSILON["float16"])


def test_an_error_just_at_its_limit_passes_and_one_above_does_not() -> None:
    at = compare_with_limits(OutputErrors(2e-4, 1e-3, 1, 1), measure="m", mean_limit=2e-4, max_limit=1e-3)
    above = compare_with_limits(OutputErrors(2.1e-4, 1e-3, 1, 1), measure="m", mean_limit=2e-4, max_limit=1e-3)
    assert (at.passed, above.passed) == (True, False)
    assert above.reason == "its mean error of 0.00021 is more than 0.0002"


def test_every_path_of_a_branch_knows_how_it_is_judged() -> None:
    for spec in ("sliding_attention@masked", "sliding_attention@flash", "compressed_attention@flash"):
        name, _, impl = spec.partition("@")
        workload = registry.find_workload(name, impl)
        ready = workload.prepare({**workload.defaults(), "sequence": 70}, None, device="cpu:0", seed=0)
        assert ready.parity is not None
        assert ready.parity().passed
