"""Results as files: they decide as the run did, with another margin too, and what is wrong with them is said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput
from assay.core.results import Parity
from assay.experiments.compare import thresholds as baseline
from assay.experiments.threshold import EXPERIMENT
from assay.experiments.threshold.answers import build_answer
from assay.experiments.threshold.report import build_study
from assay.experiments.threshold.results_file import RESULTS_FILE, ThresholdResults, describe_device, read_saved
from tests.experiments.threshold.crossings import World, options, point, threshold
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path

SIZES = (16, 32, 64, 128, 256, 512)
MACHINE = machine()
OLDER = {
    "device_info": {"device_name": "NVIDIA L4", "torch_version": "2.3.0", "cuda_version": "12.1"},
    "recommendation": {"fa2_min_len_win": 64, "fa2_min_len_cmp": 16},
    "results": [
        {"branch": "sliding", "sequence_length": 512, "window_size": w, "speedup": s, "masked_ms": s, "fa2_ms": 1.0}
        for w, s in ((32, 0.9), (64, 1.3), (128, 1.9), (256, 2.5))
    ],
    "parity_passed": True,
}


def written(path: Path, *, crossing: float = 90.0, margin: float = 1.2, **changes: Any) -> tuple[Path, Any]:
    """Write the results of a run in which the speed-up is 1.2 at a size, and grows slowly."""
    wanted = options(threshold(SIZES, margin=margin), **changes)
    world = World(lambda params, time: 1.2 * (params["n"] / crossing) ** 0.4, noise=0.03)
    records = world.measured(wanted)
    file = path / "results.json"
    file.write_text(str(EXPERIMENT.report(MACHINE, wanted, records).files[RESULTS_FILE]))
    return file, list(build_study(wanted, records).answers)


def decided(file: Path, margin: float | None = None) -> Any:
    saved = read_saved(file)
    (found,) = [build_answer(judged, saved.decide_on) for judged in saved.judge(margin, saved.decide_on)]
    return found


def test_a_file_decides_as_its_run_did(tmp_path: Path) -> None:
    file, (before,) = written(tmp_path)
    found = decided(file)
    assert (found.value, found.location, found.parity) == (before.value, before.location, before.parity)
    assert found.value == 128


def test_with_another_margin_it_decides_otherwise(tmp_path: Path) -> None:
    file, _ = written(tmp_path)
    assert decided(file, 1.5).value == 256
    assert decided(file, 4.0).location.decision == "disable"


def test_the_file_has_the_older_names_and_beside_them_decision_and_interval(tmp_path: Path) -> None:
    file, _ = written(tmp_path)
    content = json.loads(file.read_text())
    assert set(content) >= {"device_info", "recommendation", "results", "parity_passed"}
    assert content["recommendation"] == {"sorting_min": 128}
    assert content["parity_passed"] is True
    (entry,) = content["thresholds"]
    assert (entry["decision"], entry["low"], entry["high"]) == ("threshold", 128, 128)
    row = content["results"][-1]
    assert {"branch", "sequence_length", "window_size", "speedup", "masked_ms", "fa2_ms"} <= set(row)
    assert row["low"] < row["speedup"] < row["high"]
    assert row["speedup"] == pytest.approx(row["masked_ms"] / row["fa2_ms"], rel=0.05)


def test_what_cannot_be_told_is_null(tmp_path: Path) -> None:
    wanted = options(threshold(SIZES))
    records = World(lambda params, time: 1.2, noise=0.2).measured(wanted)
    content = json.loads(str(EXPERIMENT.report(MACHINE, wanted, records).files[RESULTS_FILE]))
    assert content["recommendation"] == {"sorting_min": None}
    assert content["thresholds"][0]["decision"] == "unsure"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), r"written by a newer Assay \(schema 2, here 1\)"),
        (lambda text: text.replace('"decision"', '"verdict"'), "is not what this version of Assay writes"),
        (lambda text: "[]", "holds no results"),
        (lambda text: '{"a": 1}', "it has no list of rows"),
        (lambda text: '{"results": [{"branch": "selected"}]}', "no row is of the branch"),
        (lambda text: '{"results": [{"branch": "sliding", "speedup": 2}]}', "has the sequence None"),
    ],
)
def test_a_file_that_is_not_whole_or_of_another_version_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    file, _ = written(tmp_path)
    file.write_text(change(file.read_text()))
    with pytest.raises(BadInput, match=said):
        read_saved(file)


def test_a_folder_that_is_no_run_of_this_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not the folder of a finished"):
        read_saved(tmp_path)


def test_numbers_without_intervals_count_only_far_from_the_margin(tmp_path: Path) -> None:
    file = tmp_path / "older.json"
    file.write_text(json.dumps(OLDER))
    found = decided(file)
    assert (found.value, found.location.low) == (128, 64)
    assert "carry no interval" in read_saved(file).notes[0]
    file.write_text(json.dumps({**OLDER, "parity_passed": False}))
    assert (decided(file).value, decided(file).parity) == (None, "failed")


@pytest.mark.parametrize(
    ("crossing", "content", "rose"),
    [
        (90, {"sorting_min": 128}, "no"),
        (90, {"runtime": {"sorting_min": 256}}, "no"),
        (90, {"runtime.sorting_min": 64}, "yes"),
        (90, {"sorting_min": 100}, "unsure"),
        (90, {"sorting_min": None}, "unsure"),
        (9e9, {"sorting_min": 512}, "yes"),
        (9e9, {"sorting_min": 2000}, "unsure"),
        (90, {"recommendation": {"sorting_min": 64}, "results": []}, "yes"),
    ],
)
def test_a_threshold_that_rose_beyond_its_interval_is_a_regression(
    tmp_path: Path, crossing: float, content: Any, rose: str
) -> None:
    _, answers = written(tmp_path, crossing=crossing)
    (tmp_path / "before.json").write_text(json.dumps(content))
    (found,) = baseline.compare_with_baseline(answers, baseline.read_baseline(tmp_path / "before.json"), "now")
    assert found.rose == rose


def test_results_of_this_tool_are_a_baseline_with_their_interval(tmp_path: Path) -> None:
    file, _ = written(tmp_path, crossing=40)
    before = baseline.read_baseline(file)
    _, answers = written(tmp_path, crossing=200)
    assert [each.rose for each in baseline.compare_with_baseline(answers, before, "now")] == ["yes"]


@pytest.mark.parametrize(
    ("changes", "device", "said"),
    [
        ({}, "NVIDIA H200", "was measured on .* and this is NVIDIA H200"),
        ({"margin": 1.5}, None, r"--safety-margin 1.2 compares like with like"),
        ({"decide_on": "call"}, None, r"--decide-on cautious compares like with like"),
        ({"name": "other"}, None, r"has none of runtime.other_min"),
    ],
)
def test_a_baseline_of_something_else_is_refused(tmp_path: Path, changes: Any, device: str | None, said: str) -> None:
    file, _ = written(tmp_path)
    told = {key: changes[key] for key in ("margin", "name") if key in changes}
    wanted = options(threshold(SIZES, **told), decide_on=changes.get("decide_on", "cautious"))
    here = device or describe_device(MACHINE, "cpu:0").device_name
    with pytest.raises(BadInput, match=said):
        baseline.check_baseline(baseline.read_baseline(file), wanted, here)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"isolation": "none"}, r"is not comparable: isolation differs \(full vs none\)"),
        ({"cache": "warm"}, r"is not comparable: conditions differ \(cache not set vs warm\)"),
        ({"impl": "newer"}, r"is not comparable: workload differs \(sorting fast plain@new vs plain@newer\)"),
        ({"heads": 8}, r"is not comparable: no point of the grid of sorting is in both"),
    ],
)
def test_a_baseline_of_other_work_is_refused(tmp_path: Path, changes: Any, said: str) -> None:
    file, _ = written(tmp_path)
    points = threshold(SIZES).points
    if "impl" in changes:
        fast = points[0].fast.model_copy(update={"impl": changes["impl"]})
        points = tuple(each.model_copy(update={"fast": fast}) for each in points)
    if "heads" in changes:
        points = tuple(point(size, n=int(size), heads=changes["heads"]) for size in SIZES)
    how = {name: value for name, value in changes.items() if name in {"isolation", "cache"}}
    wanted = options(threshold(SIZES, points=points), **how)
    with pytest.raises(BadInput, match=said):
        baseline.check_baseline(baseline.read_baseline(file), wanted, describe_device(MACHINE, "cpu:0").device_name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"sorting_min": None}, "does not say where a threshold was, so that none could be seen to rise"),
        ({"sorting_min": 1024}, "no larger size than 512 is measured, so that it could not be seen to rise"),
    ],
)
def test_a_gate_that_could_never_see_a_threshold_rise_is_refused(tmp_path: Path, content: Any, said: str) -> None:
    (tmp_path / "before.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=said):
        baseline.check_baseline(baseline.read_baseline(tmp_path / "before.json"), options(threshold(SIZES)), None)


def test_a_baseline_that_does_not_name_its_device_is_taken_and_told(tmp_path: Path) -> None:
    (tmp_path / "before.json").write_text('{"sorting_min": 64}')
    said = baseline.check_baseline(
        baseline.read_baseline(tmp_path / "before.json"), options(threshold(SIZES)), "NVIDIA H200"
    )
    assert said == [f"{tmp_path / 'before.json'} does not say on which device it was measured."]


def test_why_a_result_was_not_checked_is_kept(tmp_path: Path) -> None:
    wanted = options(threshold(SIZES))
    silent = Parity(passed=None, reason="it returns nothing", measure="m")
    world = World(lambda params, time: 2.0, parity=lambda params: silent)
    (tmp_path / "results.json").write_text(
        str(EXPERIMENT.report(MACHINE, wanted, world.measured(wanted)).files[RESULTS_FILE])
    )
    found = decided(tmp_path / "results.json")
    assert (found.value, found.parity) == (None, "skipped")
    assert "it returns nothing" in found.reasons[0]


def test_the_form_reads_back_what_it_wrote(tmp_path: Path) -> None:
    file, _ = written(tmp_path)
    content = json.loads(file.read_text())
    assert ThresholdResults.model_validate(content).as_json() == content
