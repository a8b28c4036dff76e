"""What is measured for a prediction, and what the records of single shares say of whole rings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.core.results import Evidence, Record, SubjectFacts, Window
from assay.core.values import Block, Done, Subject
from assay.experiments.base import find_experiment
from assay.experiments.scaling.prediction import NOTHING_SENT, parse_link
from assay.experiments.scaling_prediction import (
    EXPERIMENT,
    PredictionCell,
    PredictionOptions,
    cell_trial,
    forecast_cells,
    list_cells,
    list_impossible_cells,
    plan_blocks,
)
from assay.launch.workers import RawSeries
from assay.runner import summaries
from assay.store.records import Records
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.values import Trial

MACHINE = machine(cores=(4,))
ATTENTION = Subject(
    workload="dilated_attention",
    impl="torch",
    params={
        "batch": 2, "sequence": 65536, "heads": 12, "key_heads": 12, "dim": 64, "segments": "2048,4096,8192",
        "rates": "1,2,4", "ring": 1, "dtype": "float16", "causal": False, "offset": "modulo", "backend": "auto",
        "passes": "total", "only": "all",
    },
)  # fmt: skip
ALONE_US = 30_000.0


def options(**changes: Any) -> PredictionOptions:
    told = {
        "subject": ATTENTION, "sequences": (65536,), "counts": (8, 16, 48, 512), "link": parse_link("nvlink4"),
        "device": "cuda:0", **changes,
    }  # fmt: skip
    return PredictionOptions.model_validate(told)


def record_of(trial: Trial, *, reason: str | None = None, samples: int = 20) -> Record:
    """Return the record of a trial in which a rank's share takes its part of the whole, and a fixed 0.1 ms."""
    ring = int(str(trial.roles[0].subjects[0].params["ring"]))
    chance = np.random.default_rng(ring)
    taken = (ALONE_US / ring + 100 * (ring > 1)) * np.exp(chance.normal(0, 0.01, samples))
    raw = [] if reason else [RawSeries("alone", 0, 0, 0, "call_us", 1, 0, 1, taken.tobytes())]
    facts = SubjectFacts(subject=0, measured={"peak_allocated_mib": 4000.0 / ring})
    evidence = Evidence(
        role="alone", rank=0, restart=0, pid=1, device="cuda:0", isolation_asked="full", isolation_held="full",
        allowed_cores=(0,), thread_limit=1, memory_nodes=None, setup_s=0.1, subjects=(facts,),
    )  # fmt: skip
    return Record(
        trial=trial.id,
        block=trial.block,
        attempt=1,
        window=Window(host="h", boot_id="b", start_ns=0, end_ns=1, started_at="now"),
        estimates=summaries(trial, raw),
        evidence=() if reason else (evidence,),
        status="failed" if reason else "ok",
        reason=reason,
    )


def measured(wanted: PredictionOptions, folder: Path, *, failing: int | None = None, samples: int = 20) -> Records:
    trials = [trial for block in plan_blocks(wanted) for trial in block.trials]
    rings = {trial.id: trial.roles[0].subjects[0].params["ring"] for trial in trials}
    records = [
        record_of(t, reason="out of memory" if rings[t.id] == failing else None, samples=samples) for t in trials
    ]
    return Records(records, folder)


def test_one_block_to_a_length_has_the_whole_and_one_share_of_each_ring() -> None:
    (block,) = plan_blocks(options())
    params = [trial.roles[0].subjects[0].params for trial in block.trials]
    assert [(p["ring"], p["only"], p["sequence"]) for p in params] == [
        (1, "all", 65536), (8, "compute", 65536), (16, "compute", 65536), (512, "compute", 65536),
    ]  # fmt: skip
    assert all(trial.roles[0].ranks == 1 for trial in block.trials)


def test_a_count_that_breaks_a_rule_is_left_out_with_the_rule() -> None:
    (out,) = list_impossible_cells(options())
    assert out.cell == PredictionCell(65536, 48)
    assert out.reason == "A sequence of 65536 is not divisible among 48 ranks."
    (out,) = list_impossible_cells(options(counts=(8, 32768)))
    assert out.reason == "A shard of 2 is not divisible by the dilation rate 4."


def test_under_weak_scaling_the_sequence_grows_with_the_ring() -> None:
    (block,) = plan_blocks(options(mode="weak", counts=(1, 4)))
    assert [trial.roles[0].subjects[0].params["sequence"] for trial in block.trials] == [65536, 4 * 65536]


def test_the_walk_measures_each_length_once_and_is_then_done(tmp_path: Path) -> None:
    wanted = options(sequences=(32768, 65536), counts=(8,))
    first = EXPERIMENT.step(MACHINE, wanted, Records([], tmp_path))
    assert isinstance(first, Block)
    assert first.name == "tokens-32768"
    assert isinstance(EXPERIMENT.step(MACHINE, wanted, measured(wanted, tmp_path)), Done)
    assert find_experiment("scaling_prediction") is EXPERIMENT


def test_a_prediction_adds_what_the_link_takes_to_what_one_share_takes(tmp_path: Path) -> None:
    wanted = options()
    found = {each.cell.gpus: each for each in forecast_cells(wanted, measured(wanted, tmp_path))}
    eight, sixteen = found[8].time, found[16].time
    assert eight is not None
    assert sixteen is not None
    assert NOTHING_SENT in eight.assumptions
    assert eight.time_s.value == pytest.approx(ALONE_US / 8e6 + 1e-4, rel=0.02)
    assert found[16].traffic.messages == 3
    assert sixteen.communication_s == pytest.approx(3 * 12e-6 + found[16].traffic.received_bytes / 360e9)
    assert sixteen.time_s.value == pytest.approx(sixteen.compute_s + sixteen.communication_s / 2)
    assert found[8].peak_mib == 500.0
    used = found[8].efficiency
    assert used is not None
    assert used.value == pytest.approx(ALONE_US / (8 * (ALONE_US / 8 + 100)), rel=0.02)
    assert used.low is not None
    assert used.low < used.value


def test_findings_judge_by_the_interval_and_say_why_not(tmp_path: Path) -> None:
    wanted = options()
    found = EXPERIMENT.report(MACHINE, wanted, measured(wanted, tmp_path)).findings
    verdicts = {f.facts["world"]: (f.verdict, f.kind) for f in found.findings}
    assert verdicts == {
        8: ("yes", "prediction"), 16: ("yes", "prediction"), 512: ("no", "prediction"), 48: ("no", "skipped"),
    }  # fmt: skip
    assert found.headline.startswith("Predicted, not measured: 65,536 tokens on 512 GPUs over nvlink4 take ")


def test_without_one_gpu_alone_the_time_is_predicted_and_the_efficiency_is_not(tmp_path: Path) -> None:
    wanted = options(counts=(8,))
    records = measured(wanted, tmp_path, failing=1)
    (each,) = forecast_cells(wanted, records)
    assert each.time is not None
    assert each.efficiency is None
    (finding,) = EXPERIMENT.report(MACHINE, wanted, records).findings.findings
    assert finding.verdict == "unsure"
    assert finding.reason == "one GPU alone was not measured: out of memory"


def test_too_few_calls_predict_without_an_interval_and_are_unsure(tmp_path: Path) -> None:
    wanted = options(counts=(8,))
    records = measured(wanted, tmp_path, samples=3)
    report = EXPERIMENT.report(MACHINE, wanted, records)
    (finding,) = report.findings.findings
    assert finding.estimate is not None
    assert finding.estimate.low is None
    assert finding.verdict == "unsure"
    assert "too few" in str(finding.reason)
    assert "(no intervals)" in report.findings.headline


def test_the_page_shows_predictions_assumptions_and_what_was_skipped(tmp_path: Path) -> None:
    wanted = options()
    records = measured(wanted, tmp_path)
    shown = EXPERIMENT.report(MACHINE, wanted, records).page
    words = shown.model_dump_json()
    for word in (
        "65,536 tokens on 512 GPUs",
        "Assumption: ",
        "80 % of the 450",
        "48 GPUs: skipped",
        "Memory is a model",
    ):
        assert word in words
    assert [figure.name for figure in shown.figures] == ["predicted_time", "predicted_efficiency", "predicted_memory"]
    nothing = EXPERIMENT.report(MACHINE, wanted, records[:0]).page
    assert nothing.lead.startswith("Nothing can be predicted")


def test_every_cell_has_a_trial_of_its_own() -> None:
    wanted = options(sequences=(32768, 65536))
    assert len({cell_trial(wanted, cell).id for cell in list_cells(wanted)}) == len(list_cells(wanted)) == 6
