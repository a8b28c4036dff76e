"""The case file: what its lists come to, and what is said of a mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.core.errors import BadInput
from assay.experiments import power as room
from assay.experiments.power.characterize.options import read_cases

PACKAGED = Path(str(room.__file__)).with_name("cases.yaml")
EXAMPLE = Path(__file__).resolve().parents[3] / "examples/power_cases.yaml"


def written(folder: Path, text: str) -> Path:
    path = folder / "cases.yaml"
    path.write_text(text)
    return path


def test_the_example_is_what_comes_with_assay_and_has_all_of_the_older_study() -> None:
    assert EXAMPLE.read_text() == PACKAGED.read_text()
    cases = {case.name: case for case in read_cases(EXAMPLE)}
    assert [cases[f"sgemm on {n} at once"].base.gpus for n in (1, 2, 3, 4)] == [1, 2, 3, 4]
    for n in (1, 2, 3):
        beside = cases[f"sgemm beside {n} training ResNet-50"]
        assert [(each.workload, each.gpus) for each in beside.noise] == [("resnet50", n)]
    assert {each.workload for each in cases["sgemm beside all of it"].noise} == {
        "resnet50", "pcie_copy", "transformer_step"
    }  # fmt: skip
    assert [cases[f"sgemm, ResNet-50 {where}"].noise[0].placement for where in ("near", "far")] == ["near", "far"]
    assert cases["idle"].base.gpus is None
    assert all(case.base.workload == "sgemm" for name, case in cases.items() if name != "idle")


def test_lists_make_a_case_of_each_and_defaults_fill_in_what_is_not_said(tmp_path: Path) -> None:
    cases = read_cases(
        written(
            tmp_path,
            """
            defaults: {base: {workload: sgemm, params: {n: 512}}, repeats: 5, duration: 90s, settle: 2m, rotate: false}
            cases:
              - name: "{workload} on {gpus} beside {noise_gpus} {noise} {placement}"
                base: {gpus: [1, all]}
                noise: [{workload: a, gpus: [1, 2], placement: [near, far]}, {workload: b, placement: same}]
                settle: none
              - {name: other, base: {workload: dgemm}, noise: {workload: c, devices: [1, GPU-x]}, repeats: 1}
            """,
        )
    )
    assert len(cases) == 2 * 2 * 2 + 1
    assert len({case.name for case in cases}) == len(cases)
    assert cases[0].name == "sgemm on 1 beside 1 a and b near and same"
    first, last = cases[0], cases[-1]
    assert (first.base.params, first.repeats, first.duration_s, first.settle_s) == ({"n": 512}, 5, 90.0, 0.0)
    assert (last.base.params, last.repeats, last.settle_s, last.rotate) == ({}, 1, 120.0, False)
    assert last.noise[0].devices == ("1", "GPU-x")
    assert [case.base.gpus for case in cases[::4]] == [1, None, 1]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 0, "is empty"),
        ("- a\n- b", 0, "must map `defaults` and `cases`"),
        ("cases: []", 1, "cases holds nothing"),
        ("defaults: {}", 1, "cases is missing"),
        ("cases:\n  - name: x\n    bse: {workload: a}", 3, "'bse' is not known here.*Did you mean base"),
        ("case: []", 1, "Did you mean cases"),
        ("cases:\n - {name: x, base: {workload: a, gpu: 1}}", 2, "Did you mean gpus"),
        ("cases:\n - {name: x, base: {workload: a, gpus: two}}", 2, "gpus must be a number of GPUs.*not 'two'"),
        ("cases:\n - {name: x, base: {workload: a, gpus: 0}}", 2, "gpus must be a number of GPUs from 1 on"),
        ("cases:\n - {name: x, base: {workload: a, gpus: true}}", 2, "gpus must be a number of GPUs"),
        ("cases:\n - {name: x, base: {workload: a, devices: {}}}", 2, "devices must be GPUs by number"),
        ("cases:\n - {name: x, base: {workload: 4}}", 2, "workload should be a valid string"),
        ("cases:\n - {name: x, base: {workload: a}, repeats: often}", 2, "repeats should be a valid integer"),
        ("cases:\n - {name: x, base: {workload: a}, duration: long}", 2, "duration must be a duration as 20s"),
        ("cases:\n - {name: x, base: {workload: a}, duration: 0}", 2, "duration must be a duration as 20s"),
        ("cases:\n - {name: x, base: {workload: a}, settle: [1]}", 2, "settle must be a duration"),
        ("cases:\n - {base: {workload: a}}", 2, "name is missing"),
        ("cases:\n - {name: x}", 2, "base names no workload"),
        ("cases:\n - name: x\n   base: {workload: a}\n   noise: {gpus: 1}", 2, "noise names no workload"),
        (
            "cases:\n - name: x\n   base: {workload: a}\n   noise:\n    - {workload: b, placement: nearby}",
            5,
            "near, far, any or same, and not 'nearby'. Did you mean near",
        ),
        ("cases:\n - {name: x, base: {workload: a, gpus: 1, devices: [0]}}", 2, "both gpus .how many. and devices"),
        (
            "cases:\n - {name: x, base: {workload: a}, noise: {workload: b, placement: same, gpus: 1}}",
            2,
            "placement same is on the GPUs of the base",
        ),
        ("cases:\n - {name: x, base: {workload: a}}\n - {name: x, base: {workload: a}}", 3, "two cases are named 'x'"),
        ("cases:\n - {name: x, base: {workload: a, gpus: [1, 2]}}", 2, "make several cases of one name; put {gpus}"),
        ("cases:\n - {name: 'x {gpu}', base: {workload: a}}", 2, "{gpu} in a name means nothing.*Did you mean gpus"),
        ("cases:\n - {name: 'x {', base: {workload: a}}", 2, "cannot be filled in"),
        ("cases: {name: x}", 1, "cases must be a list"),
        ("cases:\n - x", 2, "cases must map keys to values"),
        ("cases: [", 1, "not valid YAML"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        read_cases(written(tmp_path, text))
    said = str(caught.value)
    assert "\n" not in said
    assert "cases.yaml" in said
    assert line == 0 or f"cases.yaml, line {line}" in said
