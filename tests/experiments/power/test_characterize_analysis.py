"""What a study of power says, from records whose truth is known."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.page import Table, Text, Timeline
from assay.experiments.power.characterize import EXPERIMENT
from assay.experiments.power.characterize.export import CASES_CSV, GPUS_CSV
from assay.experiments.power.characterize.study import analyse_records
from assay.experiments.power.rows import GPUS_FILE, GpuRow, load_rows, rows_to_csv
from tests.experiments.power.characterized import (
    ALONE,
    BESIDE,
    FAR,
    FLOP,
    FOUR,
    NEAR,
    QUIET,
    TWO,
    N,
    case,
    options,
    world,
)
from tests.experiments.remembered import Remembered

if TYPE_CHECKING:
    from pathlib import Path

    from assay.core.results import Finding, Findings
    from assay.experiments.power.characterize.plan import PlacedCase
    from assay.store.records import Records

MEANS_MS = {"cuda:0": 2270.0, "cuda:1": 2285.0, "cuda:2": 2320.0, "cuda:3": 2290.0}
"""The means of the older study, one a card."""


def older(where: PlacedCase, device: str) -> float:
    """Return the truth of the older study; two ResNets beside it cost 3 %, a far neighbour half a percent."""
    slower = {"beside": 1.03, "far": 1.005}.get(where.case.name, 1.0)
    return 1e3 * MEANS_MS[device] * slower


def found(asked: Any, records: Records, about: str, **facts: Any) -> list[Finding]:
    findings = EXPERIMENT.report(FOUR, asked, records).findings.findings
    return [f for f in findings if f.kind == about and all(f.facts[name] == v for name, v in facts.items())]


def test_each_gpu_has_its_time_energy_and_work_per_joule_within_its_interval() -> None:
    asked = options(ALONE, QUIET)
    records = world(asked, older, power_w=lambda w, d: 50.0 if w.case.name == "idle" else 290.0)
    for gpu in found(asked, records, "gpu", case="alone"):
        truth_us = 1e3 * MEANS_MS[str(gpu.facts["device"])]
        assert gpu.estimate is not None
        assert gpu.estimate.low is not None
        assert gpu.estimate.high is not None
        assert gpu.estimate.value == pytest.approx(truth_us, rel=0.002)
        assert gpu.estimate.low < truth_us < gpu.estimate.high
        joules = 290.0 * truth_us / 1e6
        assert gpu.facts["energy_per_call_j"] == pytest.approx(joules, rel=0.002)
        assert gpu.facts["energy_low_j"] < joules < gpu.facts["energy_high_j"]  # type: ignore[operator]
        assert gpu.facts["gflop_per_j"] == pytest.approx(FLOP / 1e9 / joules, rel=0.002)
        assert gpu.facts["idle_w"] == pytest.approx(50.0)
        assert gpu.facts["cv"] == pytest.approx(0.001, rel=0.2)
        assert gpu.facts["held_back"] == "power cap 0.5"
    assert len(found(asked, records, "gpu", case="idle")) == 4
    assert all(gpu.facts["energy_per_call_j"] is None for gpu in found(asked, records, "gpu", case="idle"))


def test_the_slowest_and_the_fastest_gpu_are_found_with_their_distance() -> None:
    asked = options(ALONE)
    (spread,) = found(asked, world(asked, older), "spread")
    assert (spread.facts["slowest"], spread.facts["fastest"]) == ("GPU 2", "GPU 0")
    assert spread.estimate is not None
    assert spread.estimate.value == pytest.approx(2320 / 2270, rel=0.003)
    assert spread.verdict == "yes"
    assert spread.estimate.confidence == pytest.approx(1 - 0.05 / 6)


def test_equal_gpus_are_seldom_called_unequal() -> None:
    asked = options(ALONE)
    verdicts = [found(asked, world(asked, lambda *_: 1e5, seed=n), "spread")[0].verdict for n in range(20)]
    assert verdicts.count("yes") == 0
    assert verdicts.count("no") >= 10


def test_company_is_held_against_the_same_gpu_in_the_same_repeat() -> None:
    asked = options(ALONE, TWO, BESIDE, QUIET)
    drifting = world(asked, lambda where, device: older(where, device) * (1 + 0.2 * where.repeat))
    beside, two = found(asked, drifting, "company", case="beside")[0], found(asked, drifting, "company", case="two")[0]
    assert beside.estimate is not None
    assert beside.estimate.value == pytest.approx(1.03, rel=0.003)
    assert (beside.verdict, beside.facts["against"], beside.facts["gpus"]) == ("yes", "alone", 4)
    assert two.verdict == "no"
    assert not found(asked, drifting, "company", case="idle")


def test_far_neighbours_are_held_against_near_ones() -> None:
    asked = options(ALONE, NEAR, FAR, minimum_effect=0.003)
    (far,) = found(asked, world(asked, older), "far")
    assert (far.facts["case"], far.facts["against"], far.verdict) == ("far", "near", "yes")
    assert far.estimate is not None
    assert far.estimate.value == pytest.approx(1.005, rel=0.002)


def test_one_repeat_decides_nothing_and_says_what_would() -> None:
    once = [each.model_copy(update={"repeats": 1}) for each in (ALONE, BESIDE)]
    asked = options(*once)
    records = world(asked, older)
    (beside,) = found(asked, records, "company")
    assert (beside.verdict, beside.reason) == ("unsure", "one repeat has no interval; more --repeat decides")
    assert "not decided" in EXPERIMENT.report(FOUR, asked, records).findings.headline


def test_the_headline_has_time_joules_watts_the_slowest_and_the_company() -> None:
    asked = options(ALONE, BESIDE, QUIET, case("five", 5))
    said = EXPERIMENT.report(FOUR, asked, world(asked, older)).findings.headline
    assert said.startswith(f"sgemm@torch (n = {N}) takes 2.27")
    assert " J, at 300 W on 4 × Example" in said
    assert "GPU 2 is the slowest: 2." in said
    assert "Company counts: beside: +3.0 %" in said
    assert "1 of 4 cases does not fit here." in said


def test_what_fails_is_named_and_the_rest_is_told() -> None:
    asked = options(ALONE, BESIDE)
    records = world(asked, older, fails=lambda where: "resnet50: died" if where.case == BESIDE else None)
    (failed,) = found(asked, records, "case")
    assert (failed.facts["status"], failed.reason) == ("failed", "resnet50: died")
    assert len(found(asked, records, "gpu")) == 4
    said = EXPERIMENT.report(FOUR, asked, records).findings
    assert "1 of 2 went wrong" in said.headline
    assert "What went wrong" in titles(asked, records, said)


def titles(asked: Any, records: Records, findings: Findings) -> list[str]:
    return [section.title for section in EXPERIMENT.report(FOUR, asked, records).page.sections]


def test_the_page_has_the_tables_the_kernels_and_what_it_rests_on() -> None:
    asked = options(ALONE, BESIDE, NEAR, FAR, QUIET, case("five", 5))
    records = world(asked, older)
    page = EXPERIMENT.report(FOUR, asked, records).page
    assert page.title == "assay power characterize: 5 of 6 cases on 4 GPUs"
    tables = [each.title for section in page.sections for each in section.elements if isinstance(each, Table)]
    assert tables[:6] == [
        "Time of one kernel", "Watts, joules, clocks and heat", "Effect of contention",
        "Far instead of near neighbours", "How unequal the GPUs are", "Cases that do not fit here",
    ]  # fmt: skip
    assert "Who ran where" in tables
    names = [figure.name for figure in page.figures]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("kernels_") for name in names) == 4
    (run,) = (figure for figure in page.figures if isinstance(figure, Timeline))
    assert {bar.lane for bar in run.bars} == {"GPU 0", "GPU 1", "GPU 2", "GPU 3"}


def test_gpus_of_different_models_are_told_apart_and_never_compared() -> None:
    gpus = tuple(gpu.model_copy(update={"name": "Other"}) if gpu.index == 2 else gpu for gpu in FOUR.gpus)
    mixed = FOUR.model_copy(update={"gpus": gpus})
    asked = options(ALONE)
    study = analyse_records(mixed, asked, world(asked, older, there=mixed))
    assert [(spread.model, spread.gpus) for spread in study.spreads] == [("Example", 3)]
    records = world(asked, older, there=mixed)
    page = EXPERIMENT.report(mixed, asked, records).page
    said = [each.text for section in page.sections for each in section.elements if isinstance(each, Text)]
    assert any("different models" in text and "Other: GPU 2" in text for text in said)


def test_rows_for_other_commands_are_one_a_gpu_and_repeat_and_the_table_one_a_gpu(tmp_path: Path) -> None:
    asked = options(ALONE, BESIDE, QUIET)
    records = world(asked, older)
    files = EXPERIMENT.report(FOUR, asked, records).files
    lines = str(files[GPUS_FILE]).splitlines()
    rows = [GpuRow.model_validate_json(line) for line in lines]
    assert len(rows) == (4 + 4 + 4) * 4
    beside = next(row for row in rows if row.case == "beside")
    assert len(beside.neighbours) == 2
    assert all(each.endswith(" resnet50@torch") for each in beside.neighbours)
    assert (beside.params["n"], beside.uuid, beside.slot) == (N, f"GPU-{beside.slot}", beside.slot)
    assert json.loads(lines[0])["origin"] == "real"
    assert files[GPUS_CSV] == rows_to_csv(rows)
    named = tuple(row.model_copy(update={"run": "power-1"}) for row in rows)
    (tmp_path / "gpus.csv").write_text(rows_to_csv(named))
    assert load_rows([tmp_path / "gpus.csv"], GPUS_FILE, GpuRow).rows == named
    table = list(csv.DictReader(io.StringIO(str(files[CASES_CSV]))))
    assert [(row["case"], row["uuid"]) for row in table][:4] == [("alone", f"GPU-{n}") for n in range(4)]
    assert all(float(row["iqr_us"]) > 0 for row in table)


def test_without_a_monitor_there_are_times_and_it_is_said_that_there_are_no_watts() -> None:
    asked = options(ALONE)
    watched = world(asked, older)
    blind = [record.model_copy(update={"during": None}) for record in watched]
    records = Remembered(blind, watched._kept)
    page = EXPERIMENT.report(FOUR, asked, records).page
    said = [each.text for section in page.sections for each in section.elements if isinstance(each, Text)]
    assert any(text.startswith("No monitor watched") for text in said)
    assert all(gpu.facts["power_w"] is None for gpu in found(asked, records, "gpu"))


def test_nothing_measured_is_said_as_such() -> None:
    asked = options(ALONE)
    records = world(asked, older, fails=lambda _: "the GPU is lost")
    report = EXPERIMENT.report(FOUR, asked, records)
    said = report.findings
    assert said.headline == "Nothing could be measured."
    assert report.page.lead_tone == "bad"
