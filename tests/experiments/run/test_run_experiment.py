"""The plain experiment, without processes: what it asks for, what it finds, what it shows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.core.results import Check, Evidence, Record, SubjectFacts, Window
from assay.core.values import Done, Subject
from assay.experiments.run import EXPERIMENT
from assay.experiments.run.plan import RunOptions, build_blocks, reference_subjects, subject_facts
from assay.launch.workers import RawSeries
from assay.runner import summaries
from assay.store.records import Records
from assay.store.run_folder import RunFolder, RunPlan
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.values import Trial

MACHINE = machine(cores=(4,), gpus=(0,))
SOFTMAX = Subject(workload="softmax", impl="torch", params={"dtype": "bfloat16"})
CHECK = Check(error=1e-8, tolerance=1e-5, measure="relative error")


def options(**changes: object) -> RunOptions:
    return RunOptions.model_validate({"subjects": (SOFTMAX,), "devices": ("cuda:0",), "duration_s": 4.0, **changes})


def nothing(folder: Path) -> Records:
    return Records([], folder)


def measured(folder: RunFolder, trial: Trial, call_us: dict[str, float], **facts: float) -> Record:
    """Return a record of a trial in which every role took so long."""
    raw = [
        RawSeries(role.name, 0, 0, restart, "call_us", 1, 0, 1, (np.full(40, call_us[role.name])).tobytes())
        for role in trial.roles
        for restart in range(trial.restarts)
    ]
    evidence = tuple(
        Evidence(
            role=role.name, rank=0, restart=0, pid=1, device=role.devices[0], isolation_asked=role.isolation,
            isolation_held=role.isolation, allowed_cores=(0,), thread_limit=1, memory_nodes=None, setup_s=0.1,
            subjects=(SubjectFacts(subject=0, check=CHECK, backend="aten", **facts),),
        )
        for role in trial.roles
    )  # fmt: skip
    return Record(
        trial=trial.id,
        block=trial.block,
        attempt=1,
        window=Window(host="h", boot_id="b", start_ns=0, end_ns=1, started_at=time.strftime("%F")),
        series=folder.keep_samples(trial.id, 1, raw),
        estimates=summaries(trial, raw),
        evidence=evidence,
        status="ok",
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    plan = RunPlan(experiment="run", options={}, seed=0, versions={}, cwd="/", created_at="now")
    return RunFolder.create(tmp_path / "runs", plan, MACHINE)


def test_repeats_are_asked_for_one_by_one_with_the_time_that_is_left(folder: RunFolder) -> None:
    wanted = options(repeat=2)
    first = EXPERIMENT.step(MACHINE, wanted, nothing(folder.path))
    assert not isinstance(first, Done)
    assert (first.name, first.left_s) == ("repeat-1", 28.0)
    records = [measured(folder, trial, {"cuda:0": 5.0}) for trial in first.trials]
    second = EXPERIMENT.step(MACHINE, wanted, Records(records, folder.path))
    assert not isinstance(second, Done)
    assert (second.name, second.left_s) == ("repeat-2", 14.0)
    records += [measured(folder, trial, {"cuda:0": 5.0}) for trial in second.trials]
    assert isinstance(EXPERIMENT.step(MACHINE, wanted, Records(records, folder.path)), Done)


def test_the_same_seed_gives_the_same_trials_and_another_seed_others() -> None:
    many = {"subjects": tuple(Subject(workload=f"w{i}", impl="numpy") for i in range(6))}
    assert build_blocks(options(**many)) == build_blocks(options(**many))
    assert build_blocks(options(**many)) != build_blocks(options(**many, seed=1))


def test_side_by_side_is_one_trial_of_all_devices() -> None:
    (block,) = build_blocks(options(devices=("cuda:0", "cuda:1"), mode="concurrent"))
    (trial,) = block.trials
    assert trial.schedule == "together"
    assert [role.name for role in trial.roles] == ["cuda:0", "cuda:1"]


def test_a_gpu_gets_a_matmul_for_each_precision_and_a_copy_as_yardsticks() -> None:
    float32 = SOFTMAX.model_copy(update={"params": {"dtype": "float32"}})
    sticks = reference_subjects((SOFTMAX, float32), "cuda")
    assert [(s.label, s.params["dtype"]) for s in sticks] == [
        ("gemm@torch", "bfloat16"),
        ("gemm@torch", "float32"),
        ("memcpy@torch", "float32"),
    ]
    assert reference_subjects((SOFTMAX,), "cpu") == ()
    assert reference_subjects((Subject(workload="x.py:f", impl="python"),), "cuda") == ()


def test_results_on_a_gpu_are_held_against_the_yardsticks(folder: RunFolder) -> None:
    wanted = options(references=reference_subjects((SOFTMAX,), "cuda"))
    sticks, repeat = build_blocks(wanted)
    facts = {"gemm": {"flop": 8e9, "bytes_moved": 1e6}, "memcpy": {"bytes_moved": 4e9}}
    records = [
        measured(folder, trial, {"cuda:0": 1000.0}, **facts[trial.roles[0].subjects[0].workload])
        for trial in sticks.trials
    ]
    records += [measured(folder, trial, {"cuda:0": 10.0}, flop=4e6, bytes_moved=2e7) for trial in repeat.trials]
    report = EXPERIMENT.report(MACHINE, wanted, Records(records, folder.path))
    found = report.findings
    (finding,) = found.findings
    assert finding.facts["gflops"] == pytest.approx(400)
    assert finding.facts["matmul_percent"] == pytest.approx(5.0)
    assert finding.facts["copy_percent"] == pytest.approx(50.0)
    page = report.page
    (rates,) = [e for s in page.sections for e in s.elements if e.kind == "table" and e.title == "Rates"]
    assert [column.title for column in rates.columns][-2:] == ["% of matmul", "% of copy"]
    assert rates.rows[0][:3] == ("softmax@torch", "cuda:0", "aten")


def test_a_failed_trial_is_a_finding_that_says_why(folder: RunFolder) -> None:
    (block,) = build_blocks(options())
    good = measured(folder, block.trials[0], {"cuda:0": 5.0})
    bad = good.model_copy(update={"status": "failed", "reason": "it fell over", "estimates": (), "series": ()})
    report = EXPERIMENT.report(MACHINE, options(), Records([bad], folder.path))
    found = report.findings
    (finding,) = found.findings
    assert (finding.estimate, finding.verdict, finding.reason) == (None, "no", "it fell over")
    assert found.headline == "Nothing could be measured."
    page = report.page
    assert page.lead_tone == "bad"
    assert [section.title for section in page.sections][-1] == "What went wrong"


def test_of_several_ranks_the_slowest_counts(folder: RunFolder) -> None:
    wanted = options(ranks=2, devices=("cpu:0",), restarts=1)
    ((trial,),) = (block.trials for block in build_blocks(wanted))
    raw = [
        RawSeries("ranks", rank, 0, 0, "call_us", 1, 0, 1, np.array(samples).tobytes())
        for rank, samples in enumerate(([1.0, 9.0, 1.0], [5.0, 2.0, 5.0]))
    ]
    (summary,) = summaries(trial, raw)
    assert (summary.minimum, summary.maximum, summary.estimate.value) == (5.0, 9.0, 5.0)


def test_the_work_of_several_ranks_is_that_of_all_of_them(folder: RunFolder) -> None:
    (trial,) = build_blocks(options())[0].trials
    record = measured(folder, trial, {"cuda:0": 10.0}, flop=3.0, bytes_moved=5.0)
    (one,) = record.evidence
    ranks = [
        one.model_copy(
            update={"rank": rank, "restart": restart, "subjects": (one.subjects[0].model_copy(update={"flop": flop}),)}
        )
        for restart in range(2)
        for rank, flop in enumerate((3.0, 4.0))
    ]
    facts = subject_facts([record.model_copy(update={"evidence": tuple(ranks)})], "cuda:0")
    assert facts is not None
    assert (facts.flop, facts.bytes_moved) == (7.0, 10.0)
    unsaid = one.model_copy(update={"rank": 1, "subjects": (SubjectFacts(subject=0),)})
    facts = subject_facts([record.model_copy(update={"evidence": (one, unsaid)})], "cuda:0")
    assert facts is not None
    assert (facts.flop, facts.bytes_moved) == (None, None)
    assert subject_facts([record], "cuda:1") is None
