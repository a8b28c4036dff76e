"""Counters laid over kernels of another run, and what a timeline comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.monitor.kernel_trace.ncu import PERCENTAGES, NcuKernel, plain_name, with_counters
from assay.monitor.kernel_trace.report import (
    KERNEL_ROWS,
    CountersRead,
    TraceExtent,
    TraceSummary,
    group_by_name,
    trace_extent,
    trace_page,
)
from tests.monitor import ncu_texts
from tests.monitor.kernel_events import row

if TYPE_CHECKING:
    import random


def counted(*names: str) -> list[NcuKernel]:
    metric = PERCENTAGES["sm_efficiency_percent"]
    return [NcuKernel(name=name, metrics={metric: 10.0 * number}) for number, name in enumerate(names)]


def efficiencies(names: str, others: str) -> list[float | None]:
    rows, matched = with_counters([row(n, name) for n, name in enumerate(names)], counted(*others), None)
    found = [k.sm_efficiency_percent for k in rows]
    assert matched == sum(value is not None for value in found)
    return found


def test_the_same_kernels_in_the_same_order_get_each_their_own() -> None:
    assert efficiencies("aba", "aba") == [0, 10, 20]


def test_a_run_that_was_counted_only_in_part_fills_the_beginning() -> None:
    assert efficiencies("abab", "ab") == [0, 10, None, None]


def test_names_that_both_runs_show_equally_often_are_matched_and_others_are_not_guessed() -> None:
    assert efficiencies("xaba", "aba") == [None, 0, 10, 20]
    assert efficiencies("aab", "abb") == [None, None, None]
    assert efficiencies("ab", "") == [None, None]


def test_kernels_are_matched_in_the_order_of_their_launches_and_copies_are_passed_over() -> None:
    rows = [row(0, "b", correlation=9), row(1, "copy", kind="copy", correlation=8), row(2, "a", correlation=7)]
    found, matched = with_counters(rows, counted("a", "b"), None)
    assert [k.sm_efficiency_percent for k in found] == [10, None, 0]
    assert matched == 2


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        (ncu_texts.ELEMENTWISE, "vectorized_elementwise_kernel"),
        (ncu_texts.SOFTMAX, "cunn_SoftMaxForward"),
        (ncu_texts.GEMM, ncu_texts.GEMM),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*, int)", "cunn_SoftMaxForward"),
        ("void unnamed>::cunn_SoftMaxForward<4, float, unnamed>::Epilogue, 4>(T3 *, T5)", "cunn_SoftMaxForward"),
        ("vectorized_elementwise_kernel", "vectorized_elementwise_kernel"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("", ""),
    ],
)
def test_tools_that_spell_a_kernel_differently_mean_the_same(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_kernels_are_summed_by_name_the_longest_first() -> None:
    rows = [
        row(0, "a", 0, 10, sm_efficiency_percent=50.0),
        row(1, "b", 20, 60),
        row(2, "a", 90, 30, sm_efficiency_percent=90.0),
    ]
    b, a = group_by_name(rows)
    assert (b.name, b.count, b.total_us, b.share, b.sm_efficiency_percent) == ("b", 1, 60, 0.6, None)
    assert (a.count, a.total_us, a.mean_us, a.share) == (2, 40, 20, 0.4)
    assert a.sm_efficiency_percent == pytest.approx(80.0)


def test_what_runs_at_once_is_busy_once_and_gaps_are_idle() -> None:
    found = trace_extent([row(0, "a", 0, 40), row(1, "b", 10, 10), row(2, "a", 60, 40)])
    assert found.span_s == pytest.approx(100e-6)
    assert found.busy_s == pytest.approx(80e-6)
    assert found.idle_share == pytest.approx(0.2)
    assert trace_extent([]) == TraceExtent()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=12), st.randoms())
def test_busy_time_is_the_union_whatever_the_order(spans: list[tuple[int, int]], dice: random.Random) -> None:
    rows = [row(n, "k", start, length) for n, (start, length) in enumerate(spans)]
    dice.shuffle(rows)
    union = {microsecond for start, length in spans for microsecond in range(start, start + length)}
    busy_s = trace_extent(rows).busy_s
    assert busy_s == pytest.approx(len(union) / 1e6)


def test_the_page_says_what_is_missing_and_how_to_mend_it() -> None:
    rows = [row(n, "k" * 80, 2 * n) for n in range(2)] + [row(2 + n, f"k{n}", 10 + 2 * n) for n in range(25)]
    summary = TraceSummary(
        workload="softmax@torch", params={}, device="cuda:0", gpu="Example", calls=1, warmup=0, rows=27,
        rows_are=KERNEL_ROWS, extent=trace_extent(rows), by_name=group_by_name(rows), notes=("something is so",),
        counters=CountersRead(refused="they may not be read", fix="be root"), origin="fake",
    )  # fmt: skip
    page = trace_page(summary)
    assert page.lead.startswith("27 kernels of 1 call took")
    assert page.origin == "fake"
    table, known = page.sections
    assert table.elements[0].kind == "table"
    assert len(table.elements[0].rows) == 20
    assert table.elements[0].note == "6 more names are in the files."
    assert str(table.elements[0].rows[0][0]).endswith("…")
    assert [e.text for e in known.elements if e.kind == "text"] == [
        "No counters: they may not be read. To fix it: be root.",
        "Something is so.",
    ]
