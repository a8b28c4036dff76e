"""Files of the older format are read as far as they can be; what the older tool measured means nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from assay.compat.scaling import OLDER_NOTE, parse_results
from assay.core.errors import BadInput
from assay.experiments.scaling.result_rows import (
    ScalingRow,
    add_speedups,
    draw_figures,
    label_rows,
    newest_rows,
    reported_estimate,
)
from assay.experiments.scaling.saved_results import (
    NO_INTERVAL_REASON,
    ScalingSources,
    build_findings,
    can_decide,
    combine_verdicts,
    judge_rows,
)
from tests.experiments.scaling.results import ALONE_MS, content, ranks

if TYPE_CHECKING:
    from assay.core.results import Estimate


def row(world: int = 4, **changes: Any) -> ScalingRow:
    told: dict[str, Any] = {
        "source": "run", "assay_version": "0.1.0", "setting": (("dtype", "float16"),), "tokens": 16384, "batch": 2,
        "world": world, "ring": world, "weak": False, "time_ms": reported_estimate(5.0, "ms"), **changes,
    }  # fmt: skip
    return ScalingRow(**told)


def over_starts(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return reported_estimate(value, "", low, high, over_starts=True)


def read(**told: Any) -> tuple[ScalingRow, ...]:
    return add_speedups(parse_results(content(**told), "a.json").rows)


def test_a_file_gives_one_row_for_each_shape_the_slowest_rank_deciding() -> None:
    rows = parse_results(content(), "a.json").rows
    assert [(r.tokens, r.world, r.ring) for r in rows[:4]] == [(16384, n, n) for n in (1, 2, 4, 8)]
    four = next(r for r in rows if (r.tokens, r.world) == (16384, 4))
    assert four.time_ms.value == pytest.approx(ALONE_MS / 4 / 0.9**2)
    assert four.memory_gib == pytest.approx((2.0 / 4 + 0.3) * 1e9 / 2**30)
    assert four.communication_ms == pytest.approx(four.time_ms.value * 0.1)
    assert four.batch == 3
    assert four.throughput is not None
    assert four.throughput.value == pytest.approx(3 * 16384 / four.time_ms.value * 1e3)


def test_nothing_sent_is_nothing_and_nothing_said_is_null() -> None:
    told = content(worlds=(1,))
    assert parse_results(told, "a").rows[0].communication_ms == 0
    for result in told["results"]:
        result["communication_time_ms"] = result["memory_allocated_gb"] = None
    assert parse_results(told, "a").rows[0].communication_ms is None
    assert parse_results(told, "a").rows[0].memory_gib is None


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_whatever_the_batch_efficiency_is_the_same(batch: int) -> None:
    shares = {r.world: r.efficiency.value for r in read(batch=batch) if r.efficiency is not None and r.tokens == 16384}
    assert shares == pytest.approx({1: 1.0, 2: 0.9, 4: 0.9**2, 8: 0.9**3})


def test_without_a_batch_times_still_tell_the_speedup_but_no_throughput() -> None:
    told = content()
    del told["config"]["batch_size"]
    for result in told["results"]:
        del result["effective_batch_size"]
    rows = add_speedups(parse_results(told, "a").rows)
    assert all(r.throughput is None for r in rows)
    assert rows[1].speedup is not None
    assert rows[1].speedup.value == pytest.approx(1.8, rel=0.03)


def test_several_rings_count_all_that_they_get_through() -> None:
    told = content(worlds=(1,), lengths=(16384,))
    told["results"] += ranks(16384, 4, 2, ALONE_MS / 2) + ranks(16384, 4, 1, ALONE_MS)
    shares = {(r.world, r.ring): r.efficiency for r in add_speedups(parse_results(told, "a").rows)}
    assert all(share is not None and share.value == pytest.approx(1.0) for share in shares.values())


def test_weak_scaling_is_held_against_one_rank_with_as_much_as_each_has() -> None:
    told = content(worlds=(1,), lengths=(16384,), mode="weak")
    told["results"] += ranks(65536, 4, 4, ALONE_MS / 0.8)
    four = add_speedups(parse_results(told, "a").rows)[-1]
    assert four.efficiency is not None
    assert four.efficiency.value == pytest.approx(0.8)
    assert four.requested_length == 16384


def test_what_the_older_tool_measured_is_said_to_mean_nothing() -> None:
    rows = read(assay=None)
    assert all(r.assay_version is None for r in rows)
    assert all(r.note is not None and OLDER_NOTE in r.note for r in rows)
    assert {one.verdict for one in judge_rows(rows, 0.1)} == {"unsure"}


def test_rows_of_the_older_tool_are_no_baseline_for_others() -> None:
    own = parse_results(content(worlds=(4,)), "new.json").rows
    older = parse_results(content(worlds=(1,), assay=None), "old.json").rows
    found = [r for r in add_speedups([*own, *older]) if r.assay_version is not None]
    assert found
    assert all(r.speedup is None and r.note is not None and "one rank" in r.note for r in found)


def test_one_rank_of_another_file_with_the_same_setting_is_a_baseline_and_is_named() -> None:
    four = parse_results(content(worlds=(4,)), "four.json").rows
    one = parse_results(content(worlds=(1,)), "one.json").rows
    other = parse_results(content(worlds=(1,), dtype="float32"), "other.json").rows
    found = next(r for r in add_speedups([*four, *other, *one]) if r.world == 4)
    assert found.note == "held against one rank of one.json"
    assert found.efficiency is not None
    assert found.efficiency.value == pytest.approx(0.9**2)
    assert next(r for r in add_speedups([*four, *other]) if r.world == 4).efficiency is None


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([], "no JSON object"),
        ({"kernel_name": "softmax"}, "no list of results"),
        ({"results": {}}, "no list of results"),
        ({"results": []}, "is empty"),
        ({"results": [1]}, "no JSON object"),
        ({"results": [{"seq_length": 0, "ring_size": 1, "world_size": 1}]}, "lacks a seq_length"),
        ({"results": [{"seq_length": 8, "ring_size": 3, "world_size": 4}]}, "rings of 3 in a world of 4"),
        ({"results": [{"seq_length": 8, "ring_size": 1, "world_size": 1, "total_time_ms": 0}]}, "no total_time_ms"),
        ({"results": [{"seq_length": 8, "ring_size": 1, "world_size": 1, "total_time_ms": math.nan}]}, "no total_time"),
        ({"results": [{"seq_length": 8, "ring_size": 1, "world_size": True, "total_time_ms": 1}]}, "lacks a"),
    ],
)
def test_what_is_no_such_file_is_refused_with_the_reason(told: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_results(told, "a.json")


def test_a_shape_that_failed_costs_only_itself() -> None:
    told = content()
    told["results"][0]["total_time_ms"] = None
    found = parse_results(told, "a.json")
    assert len(found.rows) == 7
    assert found.problems == ("a result of 16384 tokens over 1 ranks has no total_time_ms",)


def test_of_a_shape_measured_twice_the_newest_counts() -> None:
    first, second = (
        row(source="a", time_ms=reported_estimate(5.0, "ms")),
        row(source="b", time_ms=reported_estimate(6.0, "ms")),
    )
    assert newest_rows([first, second, row(world=2)]) == (row(world=2), second)


@pytest.mark.parametrize(
    ("share", "verdict", "decidable"),
    [
        (over_starts(0.8, 0.75, 0.85), "yes", True),
        (over_starts(0.8, 0.65, 0.85), "unsure", True),
        (over_starts(0.6, 0.55, 0.65), "no", True),
        (reported_estimate(0.6, "", 0.55, 0.65), "unsure", False),
        (over_starts(0.8), "unsure", False),
        (reported_estimate(0.6, ""), "unsure", False),
        (None, "unsure", False),
    ],
)
def test_only_an_interval_over_several_starts_decides_the_gate(
    share: Estimate | None, verdict: str, decidable: bool
) -> None:
    (one,) = judge_rows([row(world=1), row(efficiency=share)], 0.7)
    assert one.verdict == verdict == combine_verdicts([one])
    assert can_decide([one]) == decidable
    assert (one.reason == NO_INTERVAL_REASON) == (share is not None and not decidable)


def test_one_shape_that_is_surely_not_enough_decides_and_nothing_to_judge_decides_nothing() -> None:
    good, bad = row(efficiency=over_starts(0.9, 0.8, 1.0)), row(world=8, efficiency=over_starts(0.5, 0.4, 0.6))
    unsure = row(world=2, efficiency=over_starts(0.7, 0.6, 0.8))
    assert combine_verdicts(judge_rows([good, bad, unsure], 0.7)) == "no"
    assert combine_verdicts(judge_rows([good, unsure], 0.7)) == "unsure"
    assert combine_verdicts(judge_rows([row(world=1)], 0.7)) == "unsure"


def test_labels_name_only_what_differs() -> None:
    first, second = row(), row(setting=(("dtype", "float32"),))
    assert list(label_rows([first, second]).values()) == [
        "16,384 tokens, dtype float16",
        "16,384 tokens, dtype float32",
    ]
    assert list(label_rows([first]).values()) == ["16,384 tokens"]
    assert list(label_rows([first, row(batch=4)]).values()) == ["16,384 tokens, batch 2", "16,384 tokens, batch 4"]


def test_the_figures_have_units_intervals_an_ideal_and_a_label_for_what_means_nothing() -> None:
    drawn = draw_figures([*read(), *read(assay=None, lengths=(16384,))])
    names = [figure.name for figure in drawn.scaling]
    assert names == ["throughput", "speedup", "efficiency", "time"]
    speedup = drawn.scaling[1]
    assert [line.label for line in speedup.lines] == [
        "16,384 tokens", "32,768 tokens", "16,384 tokens, older tool: invalid", "ideal",
    ]  # fmt: skip
    assert speedup.log_x
    assert speedup.log_y
    assert drawn.scaling[0].y_axis == "throughput, million tokens/s"
    assert [figure.y_axis for figure in drawn.memory] == [
        "peak memory per rank, GiB", "peak memory per token of a rank, KiB",
    ]  # fmt: skip
    assert [figure.name for figure in drawn.heat_maps] == [
        "map_throughput", "map_efficiency", "map_transfers", "map_memory",
    ]  # fmt: skip
    assert drawn.heat_maps[1].cells[1] == (None, None, None, None)


def test_lines_of_ranks_grouped_otherwise_begin_at_one_rank() -> None:
    one = row(world=1, efficiency=over_starts(1.0), speedup=over_starts(1.0))
    by_itself = row(world=2, ring=1, efficiency=over_starts(0.8, 0.7, 0.9), speedup=over_starts(1.6))
    efficiency = next(f for f in draw_figures([one, by_itself]).scaling if f.name == "efficiency")
    assert [(line.label, line.x) for line in efficiency.lines] == [
        ("16,384 tokens", (1.0,)), ("16,384 tokens, each by itself", (1.0, 2.0)), ("ideal", (1.0, 2.0)),
    ]  # fmt: skip
    assert efficiency.lines[1].low == (None, 70.0)


def test_the_headline_counts_the_verdicts_and_names_the_worst() -> None:
    rows = read(lengths=(16384,), known_to=0.01)
    found = build_findings(ScalingSources(rows, (), ()), 0.8)
    assert found.headline == (
        "Of 3 shapes of several ranks 2 are at least 80 % efficient, 1 is not; "
        "the lowest is 73 % (72–74) at 16,384 tokens over 8 ranks."
    )
    older = build_findings(ScalingSources(read(assay=None), (), ()), 0.8)
    assert "cannot be said: all are of the older tool" in older.headline
    assert "none to judge" in build_findings(ScalingSources(read(worlds=(1,)), (), ()), 0.8).headline
