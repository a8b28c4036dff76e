"""The older tool's files: what a run writes, what is read back, and that both say the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from assay.compat.contention import FILE_KEYS, build_files, parse_tuning, tuning_as_json
from assay.core.errors import BadInput
from assay.core.results import Findings
from assay.core.values import Subject
from assay.experiments.compare.tunings import (
    KernelTuning,
    RepeatedTimes,
    TuningPick,
    most_common_pick,
    read_group,
)
from assay.experiments.compare.variance import analyse_kernels, compare_kernels
from assay.experiments.contention.layout import build_layout
from tests.experiments.tunings import MACHINE, SOFTMAX, folder_of, options

if TYPE_CHECKING:
    from pathlib import Path

    from assay.experiments.contention.options import ContentionOptions
    from assay.store.run_folder import RunFolder

FOUND = Findings(headline="Side by side it is slower.")
OLDEST: dict[str, Any] = {
    "kernel_name": "softmax",
    "best_config": {"block_sizes": [64, 64]},
    "best_time_ms": 0.5,
    "all_benchmark_times": [0.5, 0.7, 0.9],
    "num_configs_tested": 3,
    "autotune_duration_seconds": 12.0,
}


def written(folder: RunFolder, wanted: ContentionOptions) -> dict[str, Any]:
    records = folder.records()
    files = build_files(MACHINE, wanted, build_layout(MACHINE, wanted, records), FOUND, records)
    folder.keep_files(files)
    return {name: json.loads(text) for name, text in files.items()}


def test_each_device_has_a_file_in_each_phases_folder_with_the_keys_the_analyser_read(tmp_path: Path) -> None:
    wanted = options()
    files = written(folder_of(tmp_path, wanted), wanted)
    names = [f"older/{f}/softmax_gpu{g}.json" for f in ("baseline", "concurrent", "isolated") for g in (0, 1)]
    assert set(names) < set(files)
    one = files["older/baseline/softmax_gpu0.json"]
    assert set(FILE_KEYS) < set(one)
    assert one["best_config"] == {"block": 128}
    assert one["best_time_ms"] == pytest.approx(0.09, rel=0.05)
    assert one["num_configs_tested"] == 3
    entries = {(e["timed_by"], e["config"]["block"]): e for e in one["all_benchmark_times"]}
    assert set(entries) == {("assay", 64), ("pick", 64), ("pick", 128), ("pick", 256)}
    assert [len(entry["repeats_ms"]) for entry in entries.values()] == [4, 4, 4, 4]
    assert len(one["picks"]) == 4


def test_what_the_monitor_saw_and_a_summary_are_among_them(tmp_path: Path) -> None:
    wanted = options()
    files = written(folder_of(tmp_path, wanted), wanted)
    gpu, host = files["older/monitoring/gpu0.json"], files["older/monitoring/host.json"]
    assert (gpu["trials"][0]["power_w"], host["trials"][0]["cpu_percent"]) == (300.0, 40.0)
    assert {row["phase"] for row in host["trials"]} == {"baseline", "naive", "isolated", "again"}
    summary = files["older/experiment_summary.json"]
    assert (summary["benchmark"], summary["devices"]) == (["softmax@triton"], ["cuda:0", "cuda:1"])
    (slower,) = summary["slowdowns"]["concurrent"]
    assert 1.2 < slower["low"] < slower["high"] < 1.5
    (mismatch,) = summary["config_mismatches"]["concurrent"]
    assert (mismatch["of"], mismatch["settings"]) == (8, ["block"] if mismatch["settings"] else [])
    assert summary["phases"]["isolated"]["files"][0] == "isolated/softmax_gpu0.json"


def test_the_older_files_and_the_run_folder_give_the_same_verdicts(tmp_path: Path) -> None:
    wanted = options()
    folder = folder_of(tmp_path, wanted)
    written(folder, wanted)
    for phase, name in (("naive", "concurrent"), ("isolated", "isolated")):
        ours = [read_group([folder.path], p) for p in ("baseline", phase)]
        theirs = [read_group([folder.path / "older" / n], "–") for n in ("baseline", name)]
        found = [
            analyse_kernels(compare_kernels(*(group.tunings for group in groups)), 0.01) for groups in (ours, theirs)
        ]
        assert found[0] == found[1]
        assert found[0].findings


def test_two_kernels_of_one_name_get_files_of_their_own(tmp_path: Path) -> None:
    other = Subject(workload="softmax", impl="torch")
    wanted = options(subjects=(SOFTMAX, other), tunable=(True, False), devices=("cuda:0",))
    files = written(folder_of(tmp_path, wanted, blocks=1), wanted)
    assert "older/baseline/softmax_triton_gpu0.json" in files
    untuned = files["older/baseline/softmax_torch_gpu0.json"]
    assert (untuned["best_config"], untuned["picks"]) == (None, [])
    assert untuned["best_time_ms"] == pytest.approx(0.1, rel=0.1)


def test_nothing_measured_leaves_a_summary_that_says_so(tmp_path: Path) -> None:
    wanted = options()
    files = written(folder_of(tmp_path, wanted, blocks=0), wanted)
    assert list(files) == ["older/experiment_summary.json"]


def test_what_is_written_is_read_back_the_same() -> None:
    older = KernelTuning(
        kernel="softmax@numpy",
        device="cpu:0",
        picks=(TuningPick(config={"a": 1}, time_ms=2.0, tuning_s=1.0), TuningPick(config={"a": 2}, time_ms=None)),
        timed=(RepeatedTimes(config={"a": 1}, times_ms=(2.0, 2.5), cvs=(0.1,), timer="assay"),),
        configs_tested=5,
    )
    assert parse_tuning(json.loads(json.dumps(tuning_as_json(older)))) == older


def test_bare_times_of_different_configurations_are_no_repeats() -> None:
    older = parse_tuning(OLDEST)
    assert older.timed == ()
    assert older.picks == (TuningPick(config={"block_sizes": [64, 64]}, time_ms=0.5, tuning_s=12.0),)
    assert older.notes == ("its 3 times are of different configurations, and their scatter is no variance",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel_name": None}, "kernel_name is not a name"),
        ({"best_config": None, "best_time_ms": 0.0, "all_benchmark_times": []}, "nothing in it can be used"),
        ({"best_config": None, "best_time_ms": float("nan"), "all_benchmark_times": None}, "is no time"),
    ],
)
def test_files_without_anything_usable_say_why(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        parse_tuning({**OLDEST, **changes})


def test_what_is_wrong_in_a_part_of_a_file_leaves_the_rest() -> None:
    broken = parse_tuning({**OLDEST, "best_time_ms": -1, "all_benchmark_times": [{"config": {"a": 1}, "time_ms": 0}]})
    assert broken.picks[0].time_ms is None
    assert "a best_time_ms of -1 is no time" in broken.notes
    assert "1 of its configurations have no time above zero" in broken.notes
    lacking = parse_tuning({key: OLDEST[key] for key in ("kernel_name", "best_time_ms")})
    assert lacking.notes[0].startswith("it lacks best_config, all_benchmark_times")
    with pytest.raises(BadInput, match="no JSON object"):
        parse_tuning([1, 2])


def test_the_typical_pick_is_the_most_frequent_one() -> None:
    picks = [TuningPick(config={"a": a}, time_ms=t) for a, t in ((1, 5.0), (2, 1.0), (2, 3.0))]
    assert most_common_pick(tuple(picks)) == TuningPick(config={"a": 2}, time_ms=2.0)
    assert most_common_pick(()) is None
