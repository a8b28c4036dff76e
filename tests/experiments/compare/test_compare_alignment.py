"""Numbers get a verdict only if everything that was measured agrees; otherwise the difference is named."""

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
from assay.experiments.compare.pairing import align_results
from assay.experiments.compare.report import compare_results
from assay.experiments.compare.sources import read_source
from assay.stats.intervals import expected_method
from tests.experiments.comparisons import run_of, with_gpus

if TYPE_CHECKING:
    from pathlib import Path

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
