"""Two groups of results: which words are which, what can be read, and what the comparison says of known truths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.errors import BadInput
from assay.core.results import Estimate
from assay.experiments.compare.tunings import (
    ComparisonSides,
    KernelTuning,
    RepeatedTimes,
    TuningGroup,
    TuningPick,
    expand_paths,
    is_phased_run,
    read_group,
    split_sides,
)
from assay.experiments.compare.variance import (
    analyse_kernels,
    build_page,
    compare_kernels,
    compare_picks,
    compare_spreads,
    compare_times,
    describe_not_comparable,
    differing_settings,
    group_agreement,
    mismatch_verdict,
    ratio_verdict,
    repeat_spread,
    self_mismatch_share,
    spread_ratio,
    stratified_ratio,
    time_text,
)
from assay.stats.ratios import Proportion
from tests.compat.test_compat_contention import OLDEST
from tests.experiments.matrices import folder_in
from tests.experiments.tunings import folder_of, options

if TYPE_CHECKING:
    from assay.experiments.compare.variance import ComparedKernel


def meant(words: tuple[str, ...], *against: str) -> ComparisonSides:
    return split_sides(words, against, is_phased=lambda path: path.name == "run")


def test_the_baseline_is_what_stands_before_against() -> None:
    assert meant(("a", "b"), "c") == ComparisonSides(("a", "b"), ("c",))


def test_two_lists_or_two_quoted_globs_need_no_against() -> None:
    assert meant(("a.json,b.json", "c.json,d.json")) == ComparisonSides(("a.json,b.json",), ("c.json,d.json",))
    assert meant(("base/*.json", "conc/*.json")) == ComparisonSides(("base/*.json",), ("conc/*.json",))


def test_files_from_folders_that_the_older_tool_named_are_read_as_meant() -> None:
    words = ("x/baseline/a.json", "x/baseline/b.json", "x/concurrent/a.json")
    assert meant(words) == ComparisonSides(words[:2], words[2:])


def test_a_run_with_phases_is_held_against_itself() -> None:
    assert meant(("runs/run",)) == ComparisonSides(("runs/run",), ("runs/run",))


@pytest.mark.parametrize(
    ("words", "against"),
    [
        (("a.json", "b.json", "c.json"), ()),
        (("x/gpu0/a.json", "x/gpu1/a.json", "x/gpu2/a.json"), ()),
        (("a.json",), ()),
        ((), ()),
        ((), ("a",)),
    ],
)
def test_what_is_not_clear_is_refused_with_how_to_say_it(words: tuple[str, ...], against: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match=r"BASELINE\.\.\. --against CONCURRENT"):
        meant(words, *against)


@pytest.mark.parametrize("words", [("a.json", "b c.json"), ("x/gpu0/a.json", "x/gpu1/b c.json")])
def test_of_two_files_it_is_shown_how_to_say_which_is_the_baseline(words: tuple[str, str]) -> None:
    with pytest.raises(BadInput) as error:
        meant(words)
    assert f"`assay contention variance {words[0]} --against '{words[1]}'`" in str(error.value)


def test_two_different_folders_are_read_as_the_one_against_the_other(tmp_path: Path) -> None:
    before, after, latest = (tmp_path / name for name in ("before", "after", "latest"))
    before.mkdir()
    after.mkdir()
    latest.symlink_to(after)
    assert meant((str(before), str(after))) == ComparisonSides((str(before),), (str(after),))
    with pytest.raises(BadInput, match="named twice"):
        meant((str(after), str(latest)))


def test_words_name_files_lists_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "b.json", "with, comma.json"):
        Path(name).write_text("{}")
    assert expand_paths(["a.json,b.json"])[0] == [Path("a.json"), Path("b.json")]
    assert expand_paths(["a.json b.json", "a.json"])[0] == [Path("a.json"), Path("b.json")]
    assert expand_paths(["[ab].json"])[0] == [Path("a.json"), Path("b.json")]
    assert expand_paths(["with, comma.json"])[0] == [Path("with, comma.json")]
    assert expand_paths(["c*.json", "z.json"]) == ([], ["c*.json fits no file", "z.json does not exist"])


def test_files_that_cannot_be_used_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    good, empty, cut, other = (tmp_path / f"{n}.json" for n in ("good_gpu3", "empty", "cut", "other"))
    good.write_text(json.dumps(OLDEST))
    empty.touch()
    cut.write_text(json.dumps(OLDEST)[:40])
    other.write_text(json.dumps({"hello": 1}))
    group = read_group([good, empty, cut, other, tmp_path / "gone.json"], "baseline")
    (tuning,) = group.tunings
    assert (tuning.kernel, tuning.device) == ("softmax", "cuda:3")
    assert len(group.unusable) == 4
    assert group.unusable[0].endswith("empty.json is empty")
    assert "not valid JSON" in group.unusable[1]
    assert "it has no kernel_name" in group.unusable[2]


def test_run_folders_their_record_files_and_folders_of_older_files_are_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, options(), blocks=2)
    for path in (folder.path, folder.path / "records.jsonl"):
        group = read_group([path], "naive")
        assert [(t.kernel, t.device, len(t.picks)) for t in group.tunings] == [
            ("softmax@triton", "cuda:0", 2),
            ("softmax@triton", "cuda:1", 2),
        ]
        assert is_phased_run(path)
    assert read_group([folder.path], "nonsense").unusable == (
        f"{folder.path} holds nothing that was measured in its phase nonsense",
    )
    other = folder_in(tmp_path / "other")
    assert "is a run of the experiment matrix" in read_group([other.path], "naive").unusable[0]
    (tmp_path / "nothing").mkdir()
    assert "neither a run folder nor" in read_group([tmp_path / "nothing"], "naive").unusable[0]


def older(device: str | None, *times_ms: float, block: int = 64, kernel: str = "softmax") -> KernelTuning:
    """Return a kernel tuned as often as there are times, each time with the same pick."""
    return KernelTuning(
        kernel=kernel,
        device=device,
        picks=tuple(TuningPick(config={"block": block, "warps": 4}, time_ms=t) for t in times_ms),
        timed=(RepeatedTimes(config={"block": block, "warps": 4}, times_ms=times_ms, timer="tuner"),),
    )


def only(*kernels: ComparedKernel) -> ComparedKernel:
    (kernel,) = kernels
    return kernel


def test_each_device_is_held_against_itself() -> None:
    """One card is twice as fast as the other, and both become a tenth slower: the interval knows."""
    chance = np.random.default_rng(1)

    def near(level: float) -> list[float]:
        return [level * float(np.exp(stray)) for stray in chance.normal(0, 0.01, 4)]

    baseline = [older("cuda:0", *near(1.0)), older("cuda:1", *near(2.0))]
    concurrent = [older("cuda:0", *near(1.1)), older("cuda:1", *near(2.2))]
    found = only(*compare_kernels(baseline, concurrent)).times.ratio
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.1 < found.high
    assert found.high - found.low < 0.05
    assert ratio_verdict(found, 0.01) == "yes"


def run_with(rows: int, dtype: str = "float32", model: str = "NVIDIA L4", **others: str) -> KernelTuning:
    identity = {
        "workload": {"workload": "softmax"},
        "parameters": {"rows": str(rows)},
        "dtype": {"dtype": dtype},
        "device model": {"model": model},
        **{aspect: {aspect: value} for aspect, value in others.items()},
    }
    return older("cuda:0", 1.0, 1.1).model_copy(update={"identity": identity})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (run_with(512), "softmax: parameters differ (rows 256 vs 512)"),
        (run_with(256, "float16"), "softmax: dtype differs (float32 vs float16)"),
        (run_with(256, model="Tesla T4"), "softmax: device model differs (NVIDIA L4 vs Tesla T4)"),
        (older("cuda:0", 9.0), "softmax: only one of the groups records its parameters"),
    ],
)
def test_kernels_of_other_work_are_not_compared_and_the_difference_is_named(other: KernelTuning, said: str) -> None:
    assert compare_kernels([run_with(256)], [other]) == ()
    assert describe_not_comparable([run_with(256)], [other]) == (said,)


def test_groups_may_differ_in_when_and_beside_whom_they_ran() -> None:
    alone, beside = run_with(256, isolation="none"), run_with(256, isolation="full", schedule="together")
    assert [kernel.name for kernel in compare_kernels([alone], [beside])] == ["softmax"]
    assert describe_not_comparable([alone], [beside]) == ()


def test_one_result_each_gives_a_ratio_and_no_interval() -> None:
    found = only(*compare_kernels([older("cuda:0", 1.0)], [older("cuda:0", 1.5)])).times.ratio
    assert found is not None
    assert found.value == pytest.approx(1.5)
    assert found.low is None
    assert ratio_verdict(found, 0.01) == "unsure"


def test_an_interval_that_leaves_anything_open_is_told_in_words() -> None:
    wide = Estimate(value=1.5, low=0.01, high=200.0, unit="×", scope="run", method="m", n=4)
    assert (
        time_text(wide, 0.01) == "takes 1.50× (inconclusive) as long as the baseline: there are too few results to say"
    )


def test_intervals_of_the_ratio_cover_the_truth_as_often_as_they_say() -> None:
    chance = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        groups = [
            {d: (level * shift * np.exp(chance.normal(0, 0.1, 3))).tolist() for d, level in (("a", 1.0), ("b", 3.0))}
            for shift in (1.0, 1.2)
        ]
        found = stratified_ratio(groups[0], groups[1])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.2 <= found.high
    assert 0.92 <= covered / 400 <= 0.98, covered / 400


def test_scatter_is_that_of_repeats_and_never_of_different_configurations() -> None:
    different = KernelTuning(
        kernel="softmax",
        timed=tuple(RepeatedTimes(config={"block": n}, times_ms=(float(n),), timer="tuner") for n in (1, 2, 8)),
    )
    assert only(*compare_kernels([different], [different])).spreads.baseline is None
    same = repeat_spread({"a": [[1.0, 1.1], [50.0, 55.0], [7.0]]})
    assert same is not None
    assert same.cv == pytest.approx(0.0675, rel=0.01)
    assert same.freedom == 1
    assert repeat_spread({"a": [[1.0], [2.0]], "b": []}) is None
    assert spread_ratio(same, None) is None
    assert spread_ratio(repeat_spread({"a": [[1.0, 1.0]]}), same) is None


def test_picks_that_differ_are_counted_named_and_priced_by_the_baseline() -> None:
    times = {64: 1.0, 128: 1.2}
    tried = tuple(
        RepeatedTimes(config={"block": b, "warps": 4}, times_ms=(t,), timer="tuner") for b, t in times.items()
    )
    baseline = [older("cuda:0", 1.0, 1.0, 1.0, 1.0).model_copy(update={"timed": tried})]
    concurrent = [older("cuda:0", 1.1, 1.1, 1.1, 1.1, block=128)]
    picks = only(*compare_kernels(baseline, concurrent)).picks
    assert (picks.mismatch, picks.baseline_mismatch) == (Proportion(4, 4), Proportion(0, 2))
    (device,) = picks.devices
    assert device.differing == ("block",)
    assert device.cost is not None
    assert device.cost.value == pytest.approx(1.2)
    assert (device.cost.low, device.cost.high) == (None, None)


def test_what_another_pick_costs_has_an_interval_where_both_were_timed_in_several_processes() -> None:
    times = {64: (1.0, 1.02, 0.98), 128: (1.2, 1.22, 1.19)}
    tried = tuple(RepeatedTimes(config={"block": b, "warps": 4}, times_ms=t, timer="assay") for b, t in times.items())
    baseline = [older("cuda:0", 1.0).model_copy(update={"timed": tried})]
    (device,) = only(*compare_kernels(baseline, [older("cuda:0", 1.1, block=128)])).picks.devices
    assert device.cost is not None
    assert device.cost.low is not None
    assert device.cost.high is not None
    assert 1.1 < device.cost.low < 1.203 < device.cost.high < 1.3
    (same,) = only(*compare_kernels(baseline, [older("cuda:0", 1.1)])).picks.devices
    assert same.cost is None


def test_a_mismatch_counts_only_beyond_what_the_baseline_shows_against_itself() -> None:
    assert mismatch_verdict(Proportion(20, 20), Proportion(0, 10)) == "yes"
    assert mismatch_verdict(Proportion(4, 4), Proportion(0, 0)) == "unsure"
    assert mismatch_verdict(Proportion(3, 10), Proportion(2, 10)) == "unsure"
    assert mismatch_verdict(Proportion(0, 10), Proportion(2, 10)) == "no"
    assert self_mismatch_share(older("a", 1.0, 1.0, 1.0).picks) == Proportion(0, 1)
    assert differing_settings({"a": 1, "b": 2}, {"b": 3, "c": 4}) == ("a", "b", "c")


def test_devices_of_a_group_are_compared_with_each_other() -> None:
    baseline = [older("cuda:0", 1.0, 1.0), older("cuda:1", 1.2, 1.2, block=128)]
    first, second = only(*compare_kernels(baseline, [older("cuda:0", 1.0)])).agreements
    assert second is None
    assert first is not None
    assert (first.slowest, first.fastest) == ("cuda:1", "cuda:0")
    assert first.slowest_over_fastest == pytest.approx(1.2)
    assert first.same_pick == Proportion(0, 2)


def timed(device: str | None, *entries: RepeatedTimes) -> KernelTuning:
    return KernelTuning(kernel="softmax", device=device, timed=entries)


def times(
    *times_ms: float, block: int | None = 64, timer: str | None = "tuner", cvs: tuple[float, ...] = ()
) -> RepeatedTimes:
    config: Any = None if block is None else {"block": block, "warps": 4}
    return RepeatedTimes(config=config, times_ms=times_ms, timer=timer, cvs=cvs)


def test_best_times_are_geometric_means_of_the_devices_geometric_means() -> None:
    baseline = [older("cuda:0", 1.0, 1.0, 8.0), older("cuda:1", 2.0), older("cuda:2", 16.0)]
    found = compare_times(baseline, [older("cuda:0", 3.0, 12.0)])
    assert [found.baseline_ms, found.concurrent_ms] == pytest.approx([4.0, 6.0])
    assert found.results == (5, 2)
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(3.0)
    bare = compare_times(baseline, [])
    assert (bare.concurrent_ms, bare.results, bare.ratio) == (None, (5, 0), None)
    agreement = group_agreement([baseline[0], older("cuda:1", 0.5), older(None, 99.0)])
    assert agreement is not None
    assert (agreement.devices, agreement.slowest, agreement.fastest) == (2, "cuda:0", "cuda:1")
    assert agreement.slowest_over_fastest == pytest.approx(4.0)


def test_samples_scatter_by_device_and_repeats_by_device_timer_and_configuration() -> None:
    baseline = [timed("a", times(1.0, cvs=(0.1, 0.1))), timed("b", times(2.0, cvs=(0.4,))), timed(None, times(3.0))]
    found = compare_spreads(baseline, [timed("a", times(1.0, cvs=(0.8,)))])
    assert list(found.samples) == pytest.approx([0.2, 0.8])
    assert found.samples_ratio is not None
    assert found.samples_ratio.value == pytest.approx(8.0)
    assert (found.baseline, found.concurrent, found.ratio) == (None, None, None)

    def freedom(*entries: RepeatedTimes) -> int | None:
        spread = compare_spreads([timed("a", *entries)], []).baseline
        return None if spread is None else spread.freedom

    assert freedom(times(1.0), times(2.0)) == 1
    assert freedom(times(1.0), times(2.0, block=128)) is None
    assert freedom(times(1.0), times(2.0, timer="assay")) is None
    assert freedom(times(1.0, 2.0, timer=None)) == freedom(times(1.0, 2.0, block=None)) == 1
    assert freedom(times(1.0, 2.0, block=None, timer=None)) is None
    assert compare_spreads([timed(None, times(1.0)), timed(None, times(2.0))], []).baseline is not None


def test_picks_are_held_against_those_of_the_baseline_in_turn_and_among_themselves_in_pairs() -> None:
    picks = [TuningPick(config={"block": block}, time_ms=1.0) for block in (1, 2, 2, 2, 1, 1, 3)]
    assert self_mismatch_share(picks) == Proportion(1, 3)
    assert self_mismatch_share(picks[:1]) == Proportion(0, 0)
    baseline = KernelTuning(kernel="k", device="a", picks=(picks[0], picks[1]))
    concurrent = KernelTuning(kernel="k", device="a", picks=(picks[0], picks[1], picks[0], picks[0], picks[6]))
    elsewhere = KernelTuning(kernel="k", device="b", picks=(picks[0], picks[1]))
    unsaid = KernelTuning(kernel="k", device="c", picks=(TuningPick(config=None, time_ms=1.0),))
    found = compare_picks([baseline, elsewhere, unsaid], [concurrent, unsaid])
    assert (found.mismatch, found.baseline_mismatch) == (Proportion(2, 5), Proportion(2, 2))
    assert [(device.device, device.differing, device.cost) for device in found.devices] == [("a", (), None)]


def test_what_another_pick_costs_is_told_by_a_timer_that_saw_both_on_that_device() -> None:
    def cost(*entries: RepeatedTimes, beside: tuple[KernelTuning, ...] = ()) -> float | None:
        baseline = [older("a", 1.0).model_copy(update={"timed": entries}), *beside]
        (device,) = compare_picks(baseline, [older("a", 9.0, block=128)]).devices
        return None if device.cost is None else device.cost.value

    assert cost(times(1.0), times(1.25, block=128)) == pytest.approx(1.25)
    assert cost(times(1.25, block=128), times(1.0)) == pytest.approx(1.25)
    assert cost(times(1.0)) is cost(times(1.25, block=128)) is cost() is None
    assert cost(times(1.0), times(1.25, block=128, timer="assay")) is None
    later = (times(2.0, timer="assay"), times(3.0, block=128, timer="assay"))
    assert cost(times(1.0), *later) == cost(times(1.25, block=128), *later) == pytest.approx(1.5)
    assert cost(times(1.0), beside=(timed("b", times(1.25, block=128)),)) is None


def test_the_page_shows_what_was_compared_and_what_was_not() -> None:
    baseline = [older("cuda:0", 1.0, 1.01), older("cuda:0", 3.0, kernel="gemm")]
    concurrent = [older("cuda:0", 1.3, 1.31, block=128)]
    groups = tuple(
        TuningGroup(tuple(each.model_copy(update={"source": "x.json"}) for each in side), said)
        for side, said in ((baseline, ("y.json is empty",)), (concurrent, ()))
    )
    kernels = compare_kernels(baseline, concurrent)
    found = analyse_kernels(kernels, 0.01)
    shown = build_page(kernels, found, (groups[0], groups[1]), 0.01)
    assert [section.title for section in shown.sections] == ["Results", "What could not be used"]
    texts = [e.text for e in shown.sections[-1].elements if e.kind == "text"]
    assert texts == ["y.json is empty.", "Only the baseline has gemm: not compared."]
    assert "takes longer than the baseline" in shown.lead
    assert "2 of 2 picks differ" in shown.lead
    about: list[Any] = [finding.facts["what"] for finding in found.findings]
    assert about == ["time", "repeats", "picks"]
