"""Runs of ``assay scaling run`` are read with their intervals, once each, and what cannot be used is named."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from assay.compat.scaling import estimate_to_json
from assay.core.errors import BadInput
from assay.core.files import compute_digest
from assay.core.values import Block
from assay.experiments.scaling import EXPERIMENT
from assay.experiments.scaling.result_rows import find_baseline_row
from assay.experiments.scaling.saved_results import can_decide, combine_verdicts, judge_rows, read_sources
from assay.store.records import Records, samples_to_bytes
from assay.store.run_folder import RunFolder, RunPlan
from tests.experiments.scaling.results import write
from tests.experiments.scaling.worlds import FOUR_CORES, GEMM, World, about, options

if TYPE_CHECKING:
    from pathlib import Path

    from assay.experiments.scaling.plan import ScalingOptions

MATH = options().subject.model_copy(update={"params": {**options().subject.params, "backend": "math"}})


def kept(parent: Path, world: World, wanted: ScalingOptions) -> RunFolder:
    """Return a run folder with all that a world gives."""
    plan = RunPlan(
        experiment="scaling", options=wanted.as_json(), seed=0, versions={"assay": "0.1.0"}, cwd="/", created_at="now"
    )
    folder = RunFolder.create(parent, plan, FOUR_CORES)
    records = world.run(wanted)
    known = Records([], folder.path)
    while isinstance(block := EXPERIMENT.step(FOUR_CORES, wanted, known), Block):
        folder.decide(block)
        for record in (r for r in records if r.block == block.name):
            named = []
            for series in record.series:
                data, name = samples_to_bytes(records.samples(series)), f"samples/{series.file}.npy"
                (folder.path / name).write_bytes(data)
                named.append(series.model_copy(update={"file": name, "digest": compute_digest(data)}))
            folder.keep(record.model_copy(update={"series": tuple(named)}))
        known = folder.records()
    report = EXPERIMENT.report(FOUR_CORES, wanted, known)
    found = report.findings
    folder.keep_findings(found)
    folder.keep_files(report.files)
    return folder


def test_a_run_gives_a_row_for_each_shape_with_the_runs_own_numbers(tmp_path: Path) -> None:
    wanted = options(sequences=(64,))
    folder = kept(tmp_path, World(within=0.02), wanted)
    found = read_sources(folder.path)
    assert [(r.tokens, r.world, r.ring) for r in found.rows] == [(64, 1, 1), (64, 2, 1), (64, 2, 2)]
    own = EXPERIMENT.report(FOUR_CORES, wanted, folder.records()).findings
    for row in found.rows[1:]:
        judged = about(own, "efficiency", world=row.world, ring=row.ring).estimate
        assert judged is not None
        assert row.efficiency == judged
        assert row.is_over_starts == (wanted.repeat > 1)
        assert row.assay_version == "0.1.0"
        assert row.batch == 2
    assert found.rows[2].memory_gib == pytest.approx(50 / 1024)
    assert found.rows[1].communication_ms == 0
    assert found.rows[2].communication_ms == pytest.approx(1.0, rel=0.1)
    assert (found.unusable, found.notes) == ((), ())


def test_a_folder_of_runs_is_read_with_each_result_once_and_the_newest_of_each_shape(tmp_path: Path) -> None:
    slow, fast = World(token_us=200.0, within=0.01), World(within=0.01)
    kept(tmp_path, slow, options(sequences=(64,)))
    newer = kept(tmp_path, fast, options(sequences=(64,)))
    (tmp_path / "latest.json").write_bytes((newer.path / "older" / "scaling.json").read_bytes())
    found = read_sources(tmp_path)
    assert len(found.rows) == 3
    assert {row.source for row in found.rows} == {newer.path.name}
    assert found.notes == ("Some shapes were measured more than once; of each the newest is shown.",)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["weak", "strong"])
@pytest.mark.parametrize("repeat", [1, 3])
@pytest.mark.parametrize("benchmark_runs", [3, 20])
def test_the_older_file_of_a_run_says_the_same_as_the_run(
    tmp_path: Path, mode: str, repeat: int, benchmark_runs: int
) -> None:
    wanted = options(sequences=(64, 128), mode=mode, repeat=repeat, benchmark_runs=benchmark_runs)
    folder = kept(tmp_path, World(within=0.02), wanted)
    told, written = read_sources(folder.path), read_sources(folder.path / "older" / "scaling.json")
    assert [row.key for row in told.rows] == [row.key for row in written.rows]
    for one, other in zip(told.rows, written.rows, strict=True):
        for name in ("time_ms", "throughput", "speedup", "efficiency"):
            assert estimate_to_json(getattr(other, name)) == pytest.approx(estimate_to_json(getattr(one, name))), name
        assert (other.note, other.is_over_starts) == (one.note, one.is_over_starts)
    for least in (0.1, 0.5, 0.8, 0.99):
        verdicts = [[one.verdict for one in judge_rows(found.rows, least)] for found in (told, written)]
        assert verdicts[0] == verdicts[1]


@pytest.mark.full
@pytest.mark.parametrize(
    ("world", "verdict"),
    [
        (World(contention=0.3, within=0.01, starts=0.01), "no"),
        (World(contention=1.0, balance=1.0, shard=1.0, transfer_us=1.0, starts=0.005), "yes"),
        (World(within=0.02, starts=0.3), "unsure"),
    ],
    ids=["clearly below", "clearly above", "noisy"],
)
def test_the_run_its_folder_and_its_latest_file_give_one_answer(tmp_path: Path, world: World, verdict: str) -> None:
    wanted = options(sequences=(64,), repeat=5, min_efficiency=0.7)
    folder = kept(tmp_path, world, wanted)
    latest = tmp_path / "latest.json"
    latest.write_bytes((folder.path / "older" / "scaling.json").read_bytes())
    own = about(EXPERIMENT.report(FOUR_CORES, wanted, folder.records()).findings, "gate")
    each = [judge_rows(read_sources(path).rows, 0.7) for path in (folder.path, latest)]
    assert [own.verdict, *map(combine_verdicts, each)] == [verdict] * 3
    assert all(map(can_decide, each))


@pytest.mark.parametrize("changed", [{"isolation": "none"}, {"subject": MATH}])
def test_one_rank_of_another_run_is_a_baseline_only_if_all_else_agrees(tmp_path: Path, changed: dict[str, Any]) -> None:
    four = read_sources(kept(tmp_path / "a", World(), options(sequences=(64,))).path).rows[-1]
    alone = read_sources(kept(tmp_path / "b", World(), options(sequences=(64,), worlds=(1,), **changed)).path).rows[0]
    assert find_baseline_row(four, [alone]) is None
    assert find_baseline_row(four, [replace(alone, setting=four.setting)]) is not None


def test_a_shape_that_failed_is_missing_and_the_rest_is_there(tmp_path: Path) -> None:
    folder = kept(tmp_path, World(failing={"n64-p2-r2": "out of memory"}), options(sequences=(64,)))
    assert [(r.world, r.ring) for r in read_sources(folder.path).rows] == [(1, 1), (2, 1)]


def test_another_workload_has_calls_and_no_tokens(tmp_path: Path) -> None:
    folder = kept(tmp_path, World(within=0.01), options(subject=GEMM, sequences=(), rings=(1,)))
    rows = read_sources(folder.path).rows
    assert [(r.tokens, r.batch, r.world) for r in rows] == [(0, None, 1), (0, None, 2)]
    assert rows[1].efficiency is not None
    assert rows[1].efficiency.value == pytest.approx(0.8, rel=0.05)


def test_what_is_no_run_of_scaling_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    other = RunPlan(experiment="run", options={}, seed=0, versions={}, cwd="/", created_at="now")
    RunFolder.create(tmp_path, other, FOUR_CORES)
    newer = RunFolder.create(tmp_path, changed(other, experiment="scaling", options={"subject": 1}), FOUR_CORES)
    (newer.path / "plan.json").write_text(json.dumps({"experiment": "scaling", "schema": 99}), encoding="utf-8")
    write(tmp_path / "good.json")
    found = read_sources(tmp_path)
    assert {row.source for row in found.rows} == {"good.json"}
    assert len(found.unusable) == 2
    assert any("is a run of the experiment run, not of scaling" in text for text in found.unusable)
    assert any("is not what this version of Assay writes" in text for text in found.unusable)


def test_a_run_of_another_version_or_without_records_is_refused_in_words(tmp_path: Path) -> None:
    plan = RunPlan(experiment="scaling", options={"new": 1}, seed=0, versions={}, cwd="/", created_at="now")
    strange = RunFolder.create(tmp_path / "a", plan, FOUR_CORES)
    with pytest.raises(BadInput, match="options of another version of Assay"):
        read_sources(strange.path)
    empty = RunFolder.create(tmp_path / "b", changed(plan, options=options().as_json()), FOUR_CORES)
    with pytest.raises(BadInput, match="holds no shape that was measured"):
        read_sources(empty.path)


def changed(plan: RunPlan, **what: Any) -> RunPlan:
    return plan.model_copy(update=what)
