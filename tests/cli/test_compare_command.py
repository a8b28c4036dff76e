"""``assay compare`` on results of every kind, whole, broken, of other versions and of other devices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from assay.cli.main import main
from assay.core.results import Findings
from assay.core.values import Adaptive, Role, Subject, Trial
from benchmarks.resealing import reseal
from tests.compat.test_compat_contention import OLDEST
from tests.experiments import tunings as contention
from tests.experiments.comparisons import a_run, run_of, with_gpus
from tests.experiments.scaling import worlds
from tests.experiments.scaling.results import content as scaled
from tests.experiments.scaling.test_scaling_sources import kept
from tests.experiments.threshold.test_threshold_results import OLDER as SEED
from tests.experiments.threshold.test_threshold_results import written as threshold_results

if TYPE_CHECKING:
    from collections.abc import Callable

    Said = tuple[int, str, str]
    Compare = Callable[..., Said]

BOTH = {"softmax": 100.0, "gemm": 50.0}


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Compare:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Said:
        code = main(["compare", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is as good as any."""
    return a_run(tmp_path_factory.mktemp("runs") / "good", BOTH)


@pytest.fixture
def good(compare: Compare, template: Path) -> Path:
    shutil.copytree(template, "good")
    return Path("good")


def data(said: Said) -> Any:
    code, out, err = said
    assert code == 0, err
    return json.loads(out)


def verdicts(said: Said) -> dict[str, str]:
    return {pair["what"]: pair["verdict"] for pair in data(said)["pairs"]}


def a_file(name: str, content: Any) -> str:
    Path(name).write_text(content if isinstance(content, str) else json.dumps(content))
    return name


def test_two_runs_are_compared_number_by_number(compare: Compare) -> None:
    a_run(Path("before"), {"softmax": 100.0, "gemm": 50.0, "triad": 10.0})
    a_run(Path("after"), {"softmax": 108.0, "gemm": 50.0, "triad": 9.0, "copy": 3.0}, seed=1)
    found = data(compare("before", "after", "--json"))
    assert {p["what"]: (p["verdict"], p["regression"]) for p in found["pairs"]} == {
        "softmax@torch": ("slower", True),
        "gemm@torch": ("same", False),
        "triad@torch": ("faster", False),
    }
    slow = found["pairs"][0]
    assert slow["ratio"]["low"] < 1.08 < slow["ratio"]["high"]
    assert slow["details"]["n"] == "512"
    assert found["only_in"] == {"after": ["copy@torch on=cuda n=512 isolation=none busy_us"]}
    assert found["headline"].startswith("Of 3 results in common with before: 1 slower, 1 faster, 1 unchanged")


def test_the_gate_says_no_where_something_became_worse(compare: Compare) -> None:
    a_run(Path("before"), BOTH)
    a_run(Path("after"), {**BOTH, "softmax": 110.0}, seed=1)
    a_run(Path("again"), BOTH, seed=2)
    code, _, err = compare("before", "after", "--fail-on-regression")
    assert code == 1
    assert "The gate says no." in err
    code, _, err = compare("before", "again", "--fail-on-regression", "--unsure", "fail")
    assert (code, err) == (0, "The gate is passed.\n")
    assert compare("before", "after", "--fail-on-regression", "--min-effect", "20%")[0] == 0


def test_an_unsure_gate_passes_unless_it_is_told_not_to(compare: Compare) -> None:
    a_run(Path("before"), BOTH, spread=0.02)
    a_run(Path("after"), BOTH, spread=0.02, seed=1)
    code, out, err = compare("before", "after", "--fail-on-regression")
    assert code == 0
    assert "cannot tell, and lets it pass" in err
    assert "it may differ by more or less than 2 %" in " ".join(out.split())
    assert compare("before", "after", "--fail-on-regression", "--unsure", "fail")[0] == 1


@pytest.mark.parametrize("unsure", ["pass", "fail"])
def test_a_gate_over_numbers_that_could_never_get_a_verdict_is_refused(compare: Compare, unsure: str) -> None:
    a_run(Path("before"), BOTH, restarts=1)
    a_run(Path("after"), {"softmax": 500.0, "gemm": 50.0}, restarts=1, seed=1)
    code, out, err = compare("before", "after", "--fail-on-regression", "--unsure", unsure)
    assert (code, out) == (2, "")
    assert "The gate cannot decide on any number: measured in one process" in err
    assert "--restarts 5" in err


def test_a_gate_whose_other_result_failed_everywhere_is_refused(compare: Compare) -> None:
    a_run(Path("before"), BOTH, quantities=("call_us",))
    a_run(Path("after"), dict.fromkeys(BOTH), quantities=("call_us",), seed=1)
    code, _, err = compare("before", "after", "--fail-on-regression")
    assert code == 2
    assert "The gate cannot decide on any number: the other has no number: out of memory." in err


def timed(path: str, time_us: float, *, rows: int = 256, devices: tuple[str, ...] = ("cuda:0",)) -> Path:
    """Write a run of softmax in five processes, concurrent where it is on several devices."""
    subject = Subject(workload="softmax", impl="torch", params={"rows": rows})
    roles = tuple(Role(name=device, subjects=(subject,), devices=(device,)) for device in devices)
    schedule = "together" if len(devices) > 1 else "alone"
    return run_of(
        Path(path), Trial(block="all", roles=roles, schedule=schedule, mode=Adaptive(duration_s=1), restarts=5), time_us
    )


def test_runs_of_other_work_get_no_verdict_and_a_gate_over_them_is_refused(compare: Compare) -> None:
    timed("before", 100.0)
    timed("rows", 207.0, rows=512)
    timed("concurrent", 100.0, devices=("cuda:0", "cuda:1"))
    for other, said in (
        ("rows", "softmax@torch: parameters differ (rows 256 vs 512)"),
        (
            "concurrent",
            "softmax@torch: schedule differs (beside nothing vs softmax@torch on cuda:1, alone vs together)",
        ),
    ):
        code, out, err = compare("before", other, "--fail-on-regression")
        assert (code, out) == (2, "")
        assert f"The gate cannot compare anything: {said}" in err
        found = data(compare("before", other, "--json"))
        assert (found["pairs"], found["verdict"], found["view"]) == ([], "unsure", "times")
        assert found["not_comparable"][0]["text"].startswith(said)
        assert said.split(": ")[1].split(" (")[0] in " ".join(compare("before", other)[1].split())


def test_a_gate_is_decided_by_what_is_comparable_and_names_the_rest(compare: Compare) -> None:
    a_run(Path("before"), BOTH)
    a_run(Path("after"), {**BOTH, "softmax": 300.0}, seed=1)
    blocks = Path("after/blocks.jsonl").read_text()
    records = Path("after/records.jsonl").read_text()
    (decision,) = (json.loads(line) for line in blocks.splitlines())
    old = Trial.model_validate(decision["block"]["trials"][0])
    role = old.roles[0].model_copy(
        update={"subjects": (old.roles[0].subjects[0].model_copy(update={"params": {"n": 1024}}),)}
    )
    new = old.model_copy(update={"roles": (role,)})
    decision["block"]["trials"][0] = json.loads(new.model_dump_json())
    Path("after/blocks.jsonl").write_text(json.dumps(decision) + "\n")
    Path("after/records.jsonl").write_text(records.replace(old.id, new.id))
    for samples in Path("after/samples").glob(f"{old.id}*"):
        samples.rename(samples.with_name(samples.name.replace(old.id, new.id)))
    reseal(Path("after"))
    code, _, err = compare("before", "after", "--fail-on-regression")
    assert (code, err) == (0, "The gate is passed. Not compared: softmax@torch: parameters differ (n 512 vs 1024).\n")


def test_what_failed_in_the_other_run_is_unsure_and_said(compare: Compare) -> None:
    a_run(Path("before"), BOTH, quantities=("call_us",))
    a_run(Path("after"), {"softmax": None, "gemm": 50.0}, quantities=("call_us",), seed=1)
    found = data(compare("before", "after", "--json"))
    assert [(p["verdict"], p["reason"]) for p in found["pairs"]] == [
        ("unsure", "the other has no number: out of memory"),
        ("same", None),
    ]
    assert found["notes"] == ["after: 1 of its 2 trials failed: out of memory"]
    assert found["verdict"] == "unsure"


def test_each_device_is_held_against_itself_and_another_of_its_model_is_told(compare: Compare) -> None:
    a_run(Path("one"), BOTH, devices=("cuda:0", "cuda:1"))
    a_run(Path("two"), BOTH, devices=("cuda:0", "cuda:1"), seed=1, torch="2.11")
    a_run(Path("far"), BOTH, on=with_gpus("NVIDIA L4", first=7, driver="590.2"), seed=2)
    found = data(compare("one", "two", "far", "--json"))
    assert [pair["other"]["devices"] for pair in found["pairs"]] == [2, 1, 2, 1]
    caveats = {pair["against"]: pair["caveat"] for pair in found["pairs"]}
    assert caveats == {"two": None, "far": "other device"}
    assert found["differing_facts"]["driver"] == {"one": "580.1", "two": "580.1", "far": "590.2"}
    assert found["differing_facts"]["version of torch"] == {"one": None, "two": "2.11", "far": None}


def test_across_models_results_stand_side_by_side_without_a_verdict(compare: Compare) -> None:
    a_run(Path("l4"), BOTH)
    a_run(Path("h200"), {"softmax": 20.0, "gemm": 5.0}, on=with_gpus("NVIDIA H200"))
    code, out, err = compare("l4", "h200", "--output", "gpus.md")
    assert code == 0, err
    assert "as devices differ: l4 on NVIDIA L4, h200 on NVIDIA H200" in " ".join(out.split())
    report = Path("gpus.md").read_text()
    assert "| what | quantity | l4 (NVIDIA L4) | h200 (NVIDIA H200) |" in report
    assert "20.0" in report
    found = data(compare("l4", "h200", "--json"))
    assert (found["pairs"], found["on_other_models"], found["verdict"]) == ([], ["h200"], "unsure")
    code, out, err = compare("l4", "h200", "--fail-on-regression")
    assert (code, out) == (2, "")
    assert "The gate cannot compare anything: softmax@torch: device model differs (NVIDIA L4 vs NVIDIA H200)" in err


def test_only_the_quantities_that_are_asked_for_are_compared(compare: Compare) -> None:
    for seed, name in enumerate(("before", "after")):
        a_run(Path(name), {"softmax": 9.0}, quantities=("busy_us", "call_us", "clock_mhz"), seed=seed)
    everything = data(compare("before", "after", "--json"))["pairs"]
    assert {pair["quantity"] for pair in everything} == {"busy_us", "call_us"}
    code, _, err = compare("before", "after", "--quantity", "span_us")
    assert code == 2
    assert "Nothing of the quantity span_us is in common" in err
    assert [p["quantity"] for p in data(compare("before", "after", "--quantity", "busy_us", "--json"))["pairs"]] == [
        "busy_us"
    ]


def test_findings_are_compared_claim_by_claim_with_a_run_too(compare: Compare) -> None:
    a_run(Path("before"), BOTH)
    a_run(Path("after"), {**BOTH, "gemm": 70.0}, seed=1)
    for words in (("before/findings.json", "after/findings.json"), ("before", "after/findings.json")):
        assert verdicts(compare(*words, "--json")) == {"softmax is fast": "same", "gemm is fast": "slower"}
    assert verdicts(compare("before/records.jsonl", "after", "--json"))["gemm@torch"] == "slower"


def test_what_assay_time_printed_is_compared(compare: Compare) -> None:
    def printed(name: str, time_us: float) -> str:
        estimate = {
            "value": time_us, "low": time_us * 0.99, "high": time_us * 1.01, "unit": "us", "scope": "process",
            "method": "median", "n": 100,
        }  # fmt: skip
        told = {
            "name": "f.py:f", "device": "cuda:0", "cache": "cold", "method": "graph", "why": "", "busy_us": estimate,
            "decisive": "busy_us", "precision_wanted": 0.01, "precision_reached": 0.01, "stopped": "decided",
            "shape": "steady", "warmed_up": True, "samples": 100, "calls": 100, "took_s": 1.0,
        }  # fmt: skip
        return a_file(name, {"schema": 1, "facts": [], "measurement": told, "comparison": None})

    (pair,) = data(compare(printed("a.json", 10.0), printed("b.json", 20.0), "--json"))["pairs"]
    assert pair["ratio"]["value"] == pytest.approx(2.0)
    assert (pair["verdict"], pair["caveat"]) == ("unsure", "unknown model")


def test_older_tunings_are_compared_device_by_device(compare: Compare) -> None:
    for name, factor in (("before", 1.0), ("after", 1.3)):
        Path(name).mkdir()
        for gpu in range(4):
            time_ms = factor * (1.0 + gpu) * (1.001 if gpu % 2 else 1.0)
            a_file(f"{name}/s_gpu{gpu}.json", {**OLDEST, "best_time_ms": time_ms})
    a_file("after/cut.json", '{"kernel_name": "soft')
    found = data(compare("before", "after", "--json"))
    assert [(p["what"], p["verdict"]) for p in found["pairs"]] == [("softmax", "slower")]
    assert any("cut.json" in note for note in found["notes"])


def test_results_over_ranks_are_compared_shape_by_shape(compare: Compare) -> None:
    a_file("a.json", scaled(lengths=(16384,), worlds=(1, 2)))
    a_file("b.json", scaled(lengths=(16384,), worlds=(1, 2, 4), kept=0.5))
    found = data(compare("a.json", "b.json", "--json"))
    times = {p["details"]["ranks"]: p["ratio"]["value"] for p in found["pairs"] if p["quantity"] == "time_ms"}
    assert times == {"1": pytest.approx(1.0), "2": pytest.approx(1.8)}
    assert {p["reason"] for p in found["pairs"]} == {"too little was measured for an interval"}
    assert "ranks=4" in str(found["only_in"]["b.json"])


def test_thresholds_are_judged_as_their_own_gate_does(compare: Compare, tmp_path: Path) -> None:
    for name, crossing in (("before", 90.0), ("after", 300.0)):
        Path(name).mkdir()
        threshold_results(tmp_path / name, crossing=crossing)
    found = data(compare("before/results.json", "after/results.json", "--json"))
    assert found["view"] == "speed-ups"
    assert [(each["name"], each["rose"]) for each in found["thresholds"]] == [("sorting", "yes")]
    assert "slower" in {pair["verdict"] for pair in found["pairs"]}
    assert compare("before/results.json", "after/results.json", "--fail-on-regression")[0] == 1
    assert [e["rose"] for e in data(compare("after/results.json", "before/results.json", "--json"))["thresholds"]] == [
        "no"
    ]


def test_results_of_the_older_threshold_tool_stand_side_by_side(compare: Compare) -> None:
    a_file("l4.json", SEED)
    a_file("t4.json", {**SEED, "device_info": {"device_name": "Tesla T4"}, "recommendation": {"fa2_min_len_win": 128}})
    a_file("rows.json", SEED["results"])
    assert compare("t4.json", "l4.json", "--output", "r.md")[0] == 0
    report = Path("r.md").read_text()
    assert "| fa2_min_len_win | threshold | 128 | 64 |" in report
    assert "| sliding S=512 w=256 | speedup | 2.500× | 2.500× |" in report
    pairs = data(compare("l4.json", "rows.json", "--json"))["pairs"]
    assert {pair["caveat"] for pair in pairs} == {"unknown model"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"findings": [', "line 1, column 15: not valid JSON"),
        ("", "bad.json is empty"),
        ("[1, 2]", "holds nothing that can be compared"),
        ({"hello": 1}, "holds nothing that can be compared"),
        ({"schema": 99, "findings": []}, "was written by a newer Assay (schema 99, here 1)"),
        ({"findings": [{"claim": 3}]}, "a finding is not what this version of Assay writes"),
        ({"device_info": {}, "results": []}, "it has no row with a speed-up or a time"),
        (None, "bad.json does not exist"),
    ],
)
@pytest.mark.usefixtures("good")
def test_a_file_that_cannot_be_used_is_named_with_the_reason(compare: Compare, content: Any, said: str) -> None:
    if content is not None:
        a_file("bad.json", content)
    code, out, err = compare("good", "bad.json")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "bad.json" in err
    assert said in err


def test_a_run_of_a_newer_version_or_without_records_is_named(compare: Compare, good: Path) -> None:
    shutil.copytree(good, "newer")
    shutil.copytree(good, "cut")
    plan = json.loads(Path("newer/plan.json").read_text())
    a_file("newer/plan.json", {**plan, "schema_version": 99})
    assert "was written by a newer Assay" in compare("good", "newer")[2]
    Path("cut/seal.json").unlink()
    records = Path("cut/records.jsonl")
    records.write_text(records.read_text()[:200])
    assert compare("good", "cut")[::2] == (2, "assay: cut is a run in which nothing was measured yet.\n")


def test_results_with_nothing_in_common_are_told_with_what_each_has(compare: Compare) -> None:
    a_run(Path("one"), {"softmax": 1.0})
    a_run(Path("two"), {"gemm": 1.0, "triad": 2.0})
    Path("two/seal.json").unlink()
    Path("two/findings.json").write_text(json.dumps(Findings(headline="none").as_json()))
    code, _, err = compare("one", "two")
    assert code == 2
    assert "Nothing is in common: one has softmax@torch" in err
    assert "two has gemm@torch" in err
    a_file("older.json", OLDEST)
    a_file("seed.json", SEED)
    code, _, err = compare("older.json", "seed.json")
    assert code == 2
    assert "no terms in common: older.json is older tuning results, seed.json is a result of a threshold tool" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("good",), "name at least two results"),
        ((), "name at least two results"),
        (("good", "good/"), "is named 2 times; name two different results"),
        (("good", "link"), "link is the same as good"),
        (("good", "runs"), "runs is a folder of 1 runs; name one of them, such as runs/latest"),
        (("good", "nothing-*.json"), "nothing-*.json fits no file"),
        (("good", "other", "--unsure", "fail"), "--unsure fail needs --fail-on-regression"),
        (("good", "other", "--min-effect", "2"), "out of range"),
    ],
)
def test_words_that_make_no_sense_are_refused(compare: Compare, good: Path, words: tuple[str, ...], said: str) -> None:
    shutil.copytree(good, "runs/first")
    shutil.copytree(good, "other")
    Path("link").symlink_to("good")
    code, out, err = compare(*words)
    assert (code, out) == (2, "")
    assert said in err


def test_runs_of_other_experiments_are_compared_phase_by_phase(compare: Compare, tmp_path: Path) -> None:
    wanted = contention.options()
    for name, seed, factor in (("before", 0, 1.0), ("after", 1, 1.2)):
        slower = {phase: f * (factor if phase == "isolated" else 1.0) for phase, f in contention.SLOWER.items()}
        contention.folder_of(tmp_path / name, wanted, slower=slower.__getitem__, seed=seed)
    found = data(compare("before/latest", "after/latest", "--json"))
    said = {pair["details"]["phase"]: pair["verdict"] for pair in found["pairs"]}
    assert said["isolated"] == "slower"
    assert set(said) == {"baseline", "again", "naive", "isolated"}
    assert set(found["differing_facts"]) == {"run"}


def test_a_run_over_ranks_is_compared_with_the_file_another_left(compare: Compare, tmp_path: Path) -> None:
    wanted = worlds.options(sequences=(64,))
    one, two = (kept(tmp_path / name, worlds.World(within=0.02, seed=seed), wanted) for seed, name in enumerate("ab"))
    assert data(compare(one.path, two.path, "--json"))["view"] == "times"
    file = next((two.path / "older").rglob("*.json"))
    found = data(compare(one.path, file, "--json"))
    assert found["view"] == "shapes"
    assert {pair["details"]["ranks"] for pair in found["pairs"]} == {"1", "2"}
    assert all(0.9 < pair["ratio"]["value"] < 1.1 for pair in found["pairs"] if pair["quantity"] == "time_ms")
