"""Numbers get a verdict only if everything that was measured agrees, else the difference is named; and what is told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.core.errors import BadInput
from assay.core.results import Estimate, method_key
from assay.core.values import Adaptive, Command, Continuous, Counted, Mode, Role, SourceCheckout, Subject, Trial
from assay.experiments.compare import report
from assay.experiments.compare.pairing import CellName, ComparedCell, ResultSource, align_results
from assay.experiments.compare.report import build_page, compare_results
from assay.experiments.compare.sources import read_source
from assay.experiments.compare.thresholds import ThresholdRise
from assay.stats.intervals import expected_method
from assay.store.identity import IdentityDetail
from tests.experiments.comparisons import run_of, with_gpus

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.results import Verdict
    from assay.experiments.compare.report import ComparisonResult
    from assay.machine.model import Machine

PARAMS = {"rows": 256, "cols": 64, "dtype": "float32"}
SUBJECT = Subject(workload="softmax", impl="torch", params=PARAMS, config={"block": 32})
ROLE = Role(name="cuda:0", subjects=(SUBJECT,), devices=("cuda:0",), isolation="none")
TRIAL = Trial(block="all", roles=(ROLE,), mode=Adaptive(duration_s=1.0), restarts=5)
L4 = with_gpus("NVIDIA L4", "NVIDIA L4")


@dataclass(frozen=True)
class Measured:
    """A run of one trial: what is measured, where, and by which method it is estimated."""

    trial: Trial = TRIAL
    on: Machine = L4
    method: str = expected_method(5)

    def folder(self, path: Path, time_us: float) -> Path:
        return run_of(path, self.trial, time_us, on=self.on, method=self.method)


def with_subject(**changes: Any) -> Measured:
    return with_role(subjects=(SUBJECT.model_copy(update=changes),))


def with_role(**changes: Any) -> Measured:
    return with_trial(roles=(ROLE.model_copy(update=changes),))


def with_trial(**changes: Any) -> Measured:
    return Measured(trial=TRIAL.model_copy(update=changes))


def with_mode(mode: Mode) -> Measured:
    return with_trial(mode=mode)


BESIDE = ROLE.model_copy(update={"name": "cuda:1", "devices": ("cuda:1",)})
LOAD = Role(name="load", subjects=(Subject(workload="hog", impl="numpy"),), devices=("host",), duty="load")
WORDS = st.text("abcdefghij", min_size=1, max_size=6)

ONE_DIFFERENCE = st.one_of(
    st.integers(1, 10**6)
    .filter(lambda n: n != PARAMS["rows"])
    .map(lambda n: with_subject(params={**PARAMS, "rows": n})),
    st.tuples(WORDS, st.integers(0, 9)).map(lambda pair: with_subject(params={**PARAMS, pair[0]: pair[1]})),
    st.sampled_from(["rows", "cols", "dtype"]).map(
        lambda gone: with_subject(params={name: value for name, value in PARAMS.items() if name != gone})
    ),
    st.sampled_from(["float16", "bfloat16", "float64"]).map(lambda d: with_subject(params={**PARAMS, "dtype": d})),
    st.integers(33, 128).map(lambda block: with_subject(config={"block": block})),
    st.just(with_subject(config=None)),
    WORDS.map(lambda name: with_subject(workload=name)),
    st.sampled_from(["numpy", "triton", "helion"]).map(lambda impl: with_subject(impl=impl)),
    WORDS.map(lambda path: with_subject(source=SourceCheckout(checkout=f"/{path}", interpreter="python"))),
    st.sampled_from(["gpu", "cpu", "numa", "full"]).map(lambda level: with_role(isolation=level)),
    st.just(with_role(metered=("cuda:1",))),
    st.just(with_role(devices=("cpu:0",))),
    st.just(with_trial(roles=(ROLE, BESIDE), schedule="together")),
    st.just(with_trial(schedule="together")),
    st.just(with_trial(roles=(ROLE, BESIDE), schedule="turns")),
    st.just(with_trial(roles=(ROLE, LOAD))),
    st.tuples(WORDS, st.integers(0, 9)).map(lambda pair: with_trial(settings={pair[0]: pair[1]})),
    st.integers(1, 64).map(lambda groups: with_trial(cpu_groups=groups)),
    st.integers(1, 1000).map(lambda runs: with_mode(Counted(duration_s=1.0, runs=runs))),
    st.just(with_mode(Adaptive(duration_s=1.0, cache="warm"))),
    st.just(with_mode(Adaptive(duration_s=1.0, settle_s=5.0))),
    st.floats(0.1, 0.9).map(lambda duty: with_mode(Continuous(duration_s=1.0, duty=duty))),
    st.sampled_from(["NVIDIA H200", "NVIDIA L40", "Tesla T4"]).map(lambda name: Measured(on=with_gpus(name, name))),
    WORDS.map(lambda name: Measured(method=f"mean by {name}")),
)
"""A run that differs from the baseline in one thing that belongs to what was measured."""


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Measured().folder(tmp_path_factory.mktemp("baseline") / "run", 100.0)


def found(*paths: Path) -> ComparisonResult | None:
    """Return the comparison; null where the results do not even share a workload."""
    try:
        return compare_results(align_results([read_source(path) for path in paths]), 0.02)
    except BadInput:
        return None


def test_the_same_thing_gets_a_verdict(baseline: Path, tmp_path: Path) -> None:
    """Without this the property below would hold of a comparison that never gives any."""
    slower = Measured().folder(tmp_path / "slower", 200.0)
    for paths in ((baseline, slower), (baseline / "findings.json", slower / "findings.json")):
        result = found(*paths)
        assert result is not None
        assert [pair.verdict for pair in result.pairs] == ["slower"]
        assert result.not_comparable == ()


@pytest.mark.full
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(other=ONE_DIFFERENCE)
def test_any_single_difference_in_identity_never_gets_a_verdict(
    baseline: Path, tmp_path_factory: pytest.TempPathFactory, other: Measured
) -> None:
    run = other.folder(tmp_path_factory.mktemp("other") / "run", 200.0)
    for paths in (
        (baseline, run),
        (baseline / "findings.json", run / "findings.json"),
        (baseline, run / "findings.json"),
    ):
        result = found(*paths)
        if result is not None:
            assert [pair for pair in result.pairs if pair.verdict != "unsure" or pair.decidable] == []
            assert (result.verdict, result.can_decide) == ("unsure", False)
            assert all(each.differences for each in result.not_comparable)
            assert result.not_comparable


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (with_subject(params={**PARAMS, "rows": 512}), "softmax@torch: parameters differ (rows 256 vs 512)"),
        (with_subject(params={**PARAMS, "dtype": "float16"}), "softmax@torch: dtype differs (float32 vs float16)"),
        (with_subject(config={"block": 64}), "softmax@torch: configuration differs (config block 32 vs 64)"),
        (with_subject(impl="numpy"), "softmax@torch: implementation differs (torch vs numpy)"),
        (with_role(isolation="full"), "softmax@torch: isolation differs (none vs full)"),
        (with_trial(schedule="together"), "softmax@torch: schedule differs (alone vs together)"),
        (
            with_trial(settings={"power_limit_w": 300}),
            "softmax@torch: conditions differ (power_limit_w not set vs 300)",
        ),
        (Measured(on=with_gpus("NVIDIA H200")), "softmax@torch: device model differs (NVIDIA L4 vs NVIDIA H200)"),
        (Measured(method="mean"), f"softmax@torch: method differs ({method_key(expected_method(5))} vs mean)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_difference_is_named(baseline: Path, tmp_path: Path, other: Measured, said: str) -> None:
    result = found(baseline, other.folder(tmp_path / "run", 200.0))
    assert result is not None
    assert [each.text for each in result.not_comparable] == [said]


def test_commands_that_begin_alike_are_not_the_same(tmp_path: Path) -> None:
    def timed(path: Path, *argv: str) -> Path:
        subject = Subject(workload=" ".join(argv), impl="command", command=Command(argv=argv))
        role = ROLE.model_copy(update={"subjects": (subject,)})
        return Measured(TRIAL.model_copy(update={"roles": (role,)})).folder(path, 100.0)

    long = "x" * 60
    assert found(timed(tmp_path / "a", "run", long, "--size=1"), timed(tmp_path / "b", "run", long, "--size=2")) is None


def test_findings_without_an_identity_are_not_compared_with_those_that_have_one(baseline: Path, tmp_path: Path) -> None:
    content = json.loads((baseline / "findings.json").read_text())
    content["findings"][0]["identity"] = None
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(content))
    result = found(baseline / "findings.json", bare)
    assert result is not None
    assert result.pairs == ()
    assert "parameters differ (cols 64 vs not set" in result.not_comparable[0].text


def test_a_method_is_the_same_whatever_it_counted_and_whether_it_has_an_interval() -> None:
    def of(method: str) -> Estimate:
        return Estimate(value=1.0, low=None, high=None, unit="", scope="run", method=method, n=1)

    assert of("mean of the medians of 3 processes").method_key == of("mean of the medians of 12 processes").method_key
    assert of("median, ranks").method_key == of("median, ranks; no interval: two levels, 1 and 2").method_key
    assert of("median, ranks").method_key != of("mean, ranks").method_key


# What is told of results that stand side by side; their numbers are made, three processes close together.


def number(
    value: float | None, work: str = "gemm", quantity: str = "call_us", *, model: str | None = "L4", **changes: Any
) -> ComparedCell:
    details = tuple(IdentityDetail("parameters", name, said) for name, said in changes.pop("details", {}).items())
    draws = () if value is None else (0.999 * value, value, 1.001 * value)
    told = {"unit": "µs", "processes": 3, "draws": draws, **changes}
    return ComparedCell(CellName(work, details, quantity), "GPU-0", model, value, **told)


def result(path: str, *numbers: ComparedCell, **changes: Any) -> ResultSource:
    return ResultSource(path, "a run", {"findings": lambda: numbers}, **changes)


def compared(*sources: ResultSource) -> ComparisonResult:
    return compare_results(align_results(sources), 0.02)


def against(*numbers: ComparedCell, before: tuple[ComparedCell, ...] = (number(100.0),)) -> ComparisonResult:
    return compared(result("a", *before), result("b", *numbers))


def rise(name: str, rose: Verdict) -> ThresholdRise:
    return ThresholdRise(name=name, against="b", rose=rose, text=f"{name} is told")


def test_results_that_are_all_unchanged_are_told_as_that_and_others_are_counted() -> None:
    both = (number(100.0), number(50.0, "softmax"))
    assert against(number(100.0)).headline == "1 of 1 result unchanged from a (within 2 %)."
    assert against(*both, before=both).headline == "2 of 2 results unchanged from a (within 2 %)."
    slower = against(number(100.0), number(75.0, "softmax"), before=both)
    change = "; the largest change is softmax (call_us), 1.50× ("
    assert slower.headline.startswith(f"Of 2 results in common with a: 1 slower, 1 unchanged{change}")
    assert (slower.baseline, slower.others) == ("a", ("b",))
    once = number(900.0, draws=(), low=890.0, high=910.0, processes=1)
    assert against(once).headline == "Of 1 result in common with a: 1 inconclusive."
    mixed = against(once, number(75.0, "softmax"), before=both)
    assert mixed.headline.startswith(f"Of 2 results in common with a: 1 slower, 1 inconclusive{change}")


@pytest.mark.parametrize(("first", "second", "largest"), [(1.5, 0.5, "0.50"), (1.9, 0.55, "1.90"), (0.5, 1.5, "0.50")])
def test_the_largest_change_is_the_largest_factor_up_or_down(first: float, second: float, largest: str) -> None:
    told = against(
        number(100 * first), number(100 * second, "softmax"), before=(number(100.0), number(100.0, "softmax"))
    )
    name = "gemm" if largest == f"{first:.2f}" else "softmax"
    assert f"; the largest change is {name} (call_us), {largest}" in told.headline


def test_rows_are_named_by_the_details_in_which_they_differ_and_a_single_one_by_all() -> None:
    one, other = ({"n": "512", "dtype": dtype} for dtype in ("half", "float"))
    single = against(number(200.0, details=one), before=(number(100.0, details=one),))
    assert "; the largest change is gemm (call_us), 2.00" in single.headline

    def labels(told: ComparisonResult) -> list[Any]:
        (table,) = (each for each in build_page(told).sections[0].elements if each.kind == "table")
        return [row[0] for row in table.rows]

    assert labels(single) == ["gemm n=512 dtype=half"]
    both = [number(value, details=details) for value in (100.0, 200.0) for details in (one, other)]
    several = against(both[0], both[3], before=(both[0], both[1]))
    assert labels(several) == ["gemm dtype=half", "gemm dtype=float"]
    assert "; the largest change is gemm dtype=float (call_us), 2.00" in several.headline


def test_a_gate_rests_on_all_that_could_become_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdict(*numbers: ComparedCell, rises: tuple[ThresholdRise, ...] = ()) -> tuple[Verdict, bool]:
        monkeypatch.setattr(report, "compare_thresholds", lambda _: rises)
        known = (number(100.0), number(100.0, "softmax"), number(1.0, quantity="draw_w", unit="W"))
        told = against(number(None, "other", unit=""), *numbers, before=(*known, number(None, "other", unit="")))
        return told.verdict, told.can_decide

    same, slower = number(100.0), number(200.0, "softmax")
    once = number(900.0, draws=(), low=890.0, high=910.0, processes=1)
    rose, stayed, open_one = rise("sort", "yes"), rise("scan", "no"), rise("sum", "unsure")
    assert verdict() == ("unsure", False)
    assert verdict(same) == ("yes", True)
    assert verdict(same, slower) == verdict(slower) == verdict(once, slower) == ("no", True)
    assert verdict(once) == ("unsure", False)
    assert verdict(once, number(100.0, "softmax")) == ("unsure", True)
    more_power = number(2.0, quantity="draw_w", unit="W")
    assert verdict(more_power) == ("unsure", False)
    assert verdict(more_power, same) == ("yes", True)
    assert verdict(rises=(stayed,)) == verdict(same, rises=(stayed,)) == ("yes", True)
    assert verdict(rises=(stayed, rose)) == verdict(same, rises=(rose,)) == ("no", True)
    assert verdict(same, rises=(open_one, stayed)) == verdict(rises=(open_one,)) == ("unsure", True)


def test_thresholds_are_told_by_name_where_they_rose_and_are_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    rises = (rise("sort", "yes"), rise("scan", "no"), rise("sum", "yes"))
    monkeypatch.setattr(report, "compare_thresholds", lambda _: rises)
    size = number(64.0, "sort", "threshold", unit="")
    only = against(size, before=(size,))
    assert (only.headline, only.pairs) == ("The threshold of sort and sum rose.", ())
    both = against(size, number(100.0), before=(size, number(100.0)))
    unchanged = "1 of 1 result unchanged from a (within 2 %)."
    assert both.headline == f"{unchanged} The threshold of sort and sum rose."
    assert [pair.what for pair in both.pairs] == ["gemm"]
    monkeypatch.setattr(report, "compare_thresholds", lambda _: rises[1:2])
    assert against(size, number(100.0), before=(size, number(100.0))).headline == unchanged
    assert against(size, before=(size,)).headline == ""


def test_of_what_is_not_comparable_three_are_told_and_the_others_counted() -> None:
    def at(n: str, count: int) -> list[ComparedCell]:
        return [number(100.0, f"w{k}", details={"n": n}) for k in range(count)]

    def told(count: int, *shared: ComparedCell) -> str:
        return against(*at("2", count), *shared, before=(*at("1", count), *shared)).headline

    texts = [f"w{k}: parameters differ (n 1 vs 2)" for k in range(3)]
    assert told(1) == f"Nothing is comparable with a: {texts[0]}."
    assert told(3) == f"Nothing is comparable with a: {'; '.join(texts)}."
    assert told(4) == f"Nothing is comparable with a: {'; '.join(texts)}; and 1 more."
    assert told(5) == f"Nothing is comparable with a: {'; '.join(texts)}; and 2 more."
    unchanged = "1 of 1 result unchanged from a (within 2 %)."
    assert told(1, number(1.0)) == f"{unchanged} Not comparable: {texts[0]}."


def test_devices_that_differ_stand_side_by_side_without_a_verdict() -> None:
    apart = against(number(100.0, model="T4"))
    start = "Side by side, without a verdict, as devices differ:"
    assert apart.headline == f"{start} a on L4, b on T4."
    assert (apart.pairs, apart.on_other_models, apart.verdict, apart.can_decide) == ((), ("b",), "unsure", False)
    three = compared(
        *(result(path, number(1.0, model=model)) for path, model in (("a", "L4"), ("b", "T4"), ("c", "L4")))
    )
    assert (three.baseline, three.others, three.on_other_models) == ("a", ("b", "c"), ("b",))
    assert [pair.against for pair in three.pairs] == ["c"]
    assert three.headline == (
        "1 of 1 result unchanged from a (within 2 %). Not comparable: gemm: device model differs (L4 vs T4)."
    )
    assert against(number(100.0)).on_other_models == ()
    assert against(number(None, model=None), before=(number(None, model="L4"),)).on_other_models == ()


def test_facts_are_told_where_results_that_record_any_differ_in_them() -> None:
    def facts(*recorded: dict[str, str]) -> dict[str, dict[str, str | None]]:
        return compared(*(result(str(n), number(1.0), facts=each) for n, each in enumerate(recorded))).differing_facts

    old, new = {"driver": "580", "torch": "2.8"}, {"driver": "590", "torch": "2.8"}
    assert facts(old, new) == {"driver": {"0": "580", "1": "590"}}
    assert facts(old, {}) == facts(old, old, {}) == {}
    assert facts(old, {}, {"torch": "2.9"}) == {"driver": {"0": "580", "2": None}, "torch": {"0": "2.8", "2": "2.9"}}
