"""The matrix from records of which the truth is known: what is called what, and how often wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.results import Estimate, Evidence, SubjectFacts
from assay.core.values import Subject
from assay.experiments.matrix import EXPERIMENT
from assay.experiments.matrix.analysis import (
    AggressorLoad,
    VictimRow,
    aggressor_load,
    block_means,
    build_matrix,
    compute_measure,
    effect_margin,
    judge_outcome,
    log_ratios,
    mean_load,
    ratio_estimate,
    victim_samples,
)
from assay.experiments.matrix.plan import build_block
from assay.store.records import Records
from tests.experiments.matrices import CPU, HBM, MACHINE, MEMORY, SOFTMAX, folder_in, options, world

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.results import Finding, Findings, Record
    from assay.core.values import Trial


def cured_and_not(phase: str, aggressor: str | None) -> float:
    """The truth of these tests: cpu doubles the time unless isolated, memory adds half of it in any case."""
    if aggressor == "cpu":
        return 2.0 if phase == "naive" else 1.0
    return 1.5 if aggressor == "memory" else 1.0


def finding(findings: Findings, aggressor: str, what: str = "median") -> Finding:
    (found,) = [f for f in findings.findings if (f.facts.get("aggressor"), f.facts.get("measure")) == (aggressor, what)]
    return found


def test_what_isolation_cures_and_what_it_does_not_is_told_apart(tmp_path: Path) -> None:
    wanted, folder = options(), folder_in(tmp_path)
    found = EXPERIMENT.report(MACHINE, wanted, world(folder, wanted, cured_and_not)).findings
    cpu, memory = finding(found, "cpu"), finding(found, "memory")
    assert (cpu.facts["outcome"], memory.facts["outcome"]) == ("cured by isolation", "not cured")
    assert (cpu.verdict, memory.verdict) == ("yes", "yes")
    for estimate, truth in ((cpu.estimate, 2.0), (memory.estimate, 1.5)):
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low < truth < estimate.high
    assert found.headline.startswith("Isolation does not cure memory (beside softmax@numpy: 1.5")
    assert "; isolation cures cpu (beside softmax@numpy: 2.0" in found.headline
    assert cpu.facts["naive_cores"] == pytest.approx(0.95)
    assert cpu.facts["naive_gb_s"] == pytest.approx(4.0)


def test_a_level_is_held_against_the_victim_alone_at_that_level(tmp_path: Path) -> None:
    """Unpinned it has more threads and takes half as long: the aggressor must not be given the credit."""
    wanted, folder = options(aggressors=(CPU,)), folder_in(tmp_path)

    def truth(phase: str, aggressor: str | None) -> float:
        return (0.5 if phase in {"bare", "naive"} else 1.0) * (1.8 if aggressor else 1.0)

    records = world(folder, wanted, truth)
    found = EXPERIMENT.report(MACHINE, wanted, records).findings
    reductions = [cell.reduction for cell in build_matrix(wanted, records).cells if cell.measure == "median"]
    assert [one.value for one in reductions if one is not None] == pytest.approx([1.0], rel=0.05)
    assert finding(found, "cpu").facts["outcome"] == "not cured"
    assert finding(found, "cpu").estimate is not None
    assert finding(found, "cpu").estimate.value == pytest.approx(1.8, rel=0.05)  # type: ignore[union-attr]


def test_no_effect_is_told_with_the_largest_that_may_be_there(tmp_path: Path) -> None:
    wanted, folder = options(), folder_in(tmp_path)
    found = EXPERIMENT.report(MACHINE, wanted, world(folder, wanted, lambda *_: 1.0)).findings
    for aggressor in ("cpu", "memory"):
        one = finding(found, aggressor)
        assert one.facts["outcome"] == "no effect seen"
        assert one.estimate is not None
        assert one.reason is not None
        assert one.reason.startswith("no effect seen (at most ")
    assert found.headline.startswith("No effect is seen of cpu and memory (at most ")


def test_a_noisy_machine_is_said_to_be_one_and_no_effect_is_not_claimed(tmp_path: Path) -> None:
    wanted, folder = options(), folder_in(tmp_path)
    records = world(folder, wanted, lambda *_: 1.0, noise=1.0)
    found = EXPERIMENT.report(MACHINE, wanted, records).findings
    assert found.headline.startswith(
        "Nothing can be said yet of cpu and memory beside softmax@numpy. Alone, the same measurement differs by"
    )
    assert str(finding(found, "cpu").reason).startswith("not known: anything from ")


def without_digests(record: Record) -> Record:
    series = tuple(s.model_copy(update={"digest": None}) for s in record.series)
    return record.model_copy(update={"series": series})


def test_tails_and_jitter_are_judged_beside_the_median(tmp_path: Path) -> None:
    """Without isolation one call in twenty takes five times as long: the median does not know."""
    wanted, folder = options(aggressors=(CPU,)), folder_in(tmp_path)
    records = world(folder, wanted, lambda *_: 1.0, jitter=0.02)
    chance = np.random.default_rng(1)
    naive = {
        trial.id
        for number in range(1, wanted.repeat + 1)
        for trial in build_block(wanted, number).trials
        if trial.settings["phase"] == "naive"
    }
    for series in (s for record in records if record.trial in naive for s in record.series):
        path = folder.path / series.file
        np.save(path, np.where(chance.random(series.n) < 0.05, 5.0, 1.0) * np.load(path))
    spiked = Records([without_digests(record) for record in records], folder.path)
    found = EXPERIMENT.report(MACHINE, wanted, spiked).findings
    assert finding(found, "cpu", "median").facts["outcome"] == "no effect seen"
    assert finding(found, "cpu", "p99").facts["outcome"] == "cured by isolation"
    assert finding(found, "cpu", "jitter").facts["outcome"] == "cured by isolation"


def test_an_aggressor_that_dies_leaves_the_rest_to_be_judged_and_is_named(tmp_path: Path) -> None:
    wanted, folder = options(), folder_in(tmp_path)
    records = world(
        folder, wanted, cured_and_not, fails=lambda t: "memory died" if t.settings["aggressor"] == "memory" else None
    )
    report = EXPERIMENT.report(MACHINE, wanted, records)
    found = report.findings
    assert finding(found, "cpu").facts["outcome"] == "cured by isolation"
    assert finding(found, "memory").facts["outcome"] == "not known"
    (missing,) = [f for f in found.findings if "status" in f.facts]
    assert (missing.claim, missing.reason) == ("softmax@numpy on cpu:0 can be timed beside memory", "memory died")
    assert "nothing can be said yet of memory beside softmax@numpy" in found.headline
    page = report.page
    assert page.sections[-1].title == "What went wrong"
    (picture,) = [f for f in page.figures if f.name == "matrix_median" and f.kind == "heatmap"]
    assert [cell is None for cell in picture.cells[0]] == [False, False, True, True]
    assert picture.unsure == ((False, True, False, False),)


def test_what_cannot_be_said_is_named_with_its_victims(tmp_path: Path) -> None:
    gemm = Subject(workload="gemm", impl="numpy")
    wanted, folder = options(victims=(SOFTMAX, gemm)), folder_in(tmp_path)

    def fails(trial: Trial) -> str | None:
        died = trial.settings["aggressor"] == "memory" and trial.roles[0].subjects == (gemm,)
        return "memory died" if died else None

    found = EXPERIMENT.report(MACHINE, wanted, world(folder, wanted, cured_and_not, fails=fails)).findings
    assert "nothing can be said yet of memory beside gemm@numpy." in found.headline
    one_block = options(victims=(SOFTMAX, gemm), repeat=1)
    found = EXPERIMENT.report(MACHINE, one_block, world(folder_in(tmp_path / "b"), one_block, cured_and_not)).findings
    assert found.headline == "Nothing can be said yet of cpu and memory beside softmax@numpy and gemm@numpy."


def test_one_block_says_nothing_of_chance_and_so_nothing_counts(tmp_path: Path) -> None:
    wanted, folder = options(repeat=1), folder_in(tmp_path)
    records = world(folder, wanted, cured_and_not)
    report = EXPERIMENT.report(MACHINE, wanted, records)
    found = report.findings
    assert {f.facts["outcome"] for f in found.findings} == {"not known"}
    assert {f.verdict for f in found.findings} == {"unsure"}
    assert report.page.sections


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    wanted, folder = options(repeat=2), folder_in(tmp_path)
    records = world(folder, wanted, cured_and_not, fails=lambda _: "no memory")
    report = EXPERIMENT.report(MACHINE, wanted, records)
    found = report.findings
    assert found.headline == "Nothing could be measured."
    page = report.page
    assert page.lead_tone == "bad"
    assert [section.title for section in page.sections] == ["Results", "What it rests on", "What went wrong"]


def test_a_gpu_has_a_row_for_its_kernels_and_one_for_what_a_caller_waits(tmp_path: Path) -> None:
    wanted = options(devices=("cuda:0",), aggressors=(CPU, HBM))
    folder = folder_in(tmp_path)
    matrix = build_matrix(wanted, world(folder, wanted, cured_and_not))
    assert [(row.device, row.quantity) for row in matrix.rows] == [("cuda:0", "busy_us"), ("cuda:0", "call_us")]
    assert matrix.cell(matrix.rows[1], "cpu").outcome == "cured by isolation"


def test_where_nothing_matters_a_large_matrix_seldom_says_that_something_does() -> None:
    """Six victims and five aggressors on a noisy machine: at most one matrix in twenty may name a culprit."""
    chance = np.random.default_rng(7)
    blocks, tries, wrong = 6, 300, 0
    names = [f"block-{n}" for n in range(blocks)]

    def reading() -> dict[str, float]:
        return dict(zip(names, np.exp(chance.normal(0, 0.05, blocks)).tolist(), strict=True))

    for _ in range(tries):
        culprits = 0
        for _ in range(6):
            alone, again, bare = reading(), reading(), reading()
            beyond, pinned = effect_margin(log_ratios(again, alone), 0.02), block_means(alone, again)
            found = [
                judge_outcome(ratio_estimate(reading(), bare), ratio_estimate(reading(), pinned), None, beyond)
                for _ in range(5)
            ]
            culprits += sum(outcome != "no effect seen" for outcome in found)
        wrong += culprits > 0
    assert wrong / tries <= 0.05, wrong / tries


def test_measures_that_cannot_be_told_are_null() -> None:
    assert compute_measure(np.array([]), "median") is None
    assert compute_measure(np.array([0.0, 0.0]), "median") is None
    assert compute_measure(np.ones(99), "p99") is None
    assert compute_measure(np.array([3.0]), "jitter") is None
    assert compute_measure(np.ones(50), "jitter") is None
    assert compute_measure(np.array([1.0, 3.0]), "median") == 2.0


def test_intensity_is_what_was_done_in_a_second_and_null_where_it_is_not_known() -> None:
    told = Evidence(
        role="aggressor", rank=0, restart=0, pid=1, device="host", isolation_asked="full", isolation_held="full",
        allowed_cores=(1,), thread_limit=None, memory_nodes=None, setup_s=0.1, load_calls=500, load_s=2.0,
        load_cpu_s=3.0, subjects=(SubjectFacts(subject=0, bytes_moved=4e6),),
    )  # fmt: skip
    assert aggressor_load(told) == AggressorLoad(gb_s=1.0, gflops=None, cores=1.5)
    assert aggressor_load(told.model_copy(update={"load_s": 0.0})) == AggressorLoad(None, None, None)
    assert aggressor_load(told.model_copy(update={"subjects": ()})) == AggressorLoad(None, None, 1.5)
    assert mean_load([AggressorLoad(1.0, None, 1.0), AggressorLoad(3.0, None, None)]) == AggressorLoad(2.0, None, 1.0)
    assert mean_load([]) == AggressorLoad(None, None, None)


def test_two_victims_of_one_name_and_several_devices_are_told_apart(tmp_path: Path) -> None:
    larger = SOFTMAX.model_copy(update={"params": {"rows": 9}})
    wanted = options(victims=(SOFTMAX, larger), devices=("cpu:0", "cpu:1"), aggressors=(MEMORY,), repeat=2)
    records = world(folder_in(tmp_path), wanted, cured_and_not)
    page = EXPERIMENT.report(MACHINE, wanted, records).page
    (picture,) = [f for f in page.figures if f.name == "matrix_median" and f.kind == "heatmap"]
    assert picture.rows == tuple(f"softmax@numpy {n} on cpu:{d}" for n in (1, 2) for d in (0, 1))


def ratio(low: float, value: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, unit="×", scope="run", method="m", n=4)


def test_what_counts_by_a_hair_only_isolated_is_not_called_a_harm_of_isolation() -> None:
    naive, isolated = ratio(1.019, 1.023, 1.026), ratio(1.021, 1.022, 1.023)
    assert judge_outcome(naive, isolated, ratio(0.998, 1.001, 1.004), 1.02) == "not cured"
    assert judge_outcome(naive, ratio(1.3, 1.4, 1.5), ratio(0.70, 0.73, 0.76), 1.02) == "hurts only isolated"
    assert judge_outcome(ratio(0.99, 1.0, 1.01), isolated, ratio(0.97, 0.98, 0.99), 1.02) == "hurts only isolated"


def test_victims_in_turns_share_their_trials_and_are_told_apart(tmp_path: Path) -> None:
    other = SOFTMAX.model_copy(update={"params": {"rows": 1}})
    wanted, folder = options(victims=(SOFTMAX, other), in_turns=True), folder_in(tmp_path)
    assert len(build_block(wanted, 1).trials) == len(build_block(options(), 1).trials)
    found = build_matrix(wanted, world(folder, wanted, cured_and_not))
    assert [row.victim for row in found.rows] == [0, 1]
    for row in found.rows:
        assert found.cell(row, "cpu").outcome == "cured by isolation"
        assert found.cell(row, "memory").outcome == "not cured"
    records = world(folder, wanted, cured_and_not)
    medians = [
        float(np.median(victim_samples(wanted, records, records[0], VictimRow(victim, "cpu:0", "call_us"))))
        for victim in (0, 1)
    ]
    assert medians[1] == pytest.approx(10 * medians[0])
