"""``assay contention run`` as a user meets it: real processes, real tuners, real files, on groups of cores."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.store.run_folder import RunFolder
from tests.fakes.fake_nvml import hopper
from tests.fakes.stub_helion import install_stub_helion

if TYPE_CHECKING:
    from tests.fakes.plugin import MakeFakeNvml
    from tests.running import Assay

SMALL = ("--benchmark", "softmax@numpy", "--param", "rows=64", "--param", "cols=256")
TINY = ("--device", "cpu:0", "--repeat", "1", "--budget", "1")


def test_two_workers_on_one_core_give_phases_picks_regrets_and_a_report(assay: Assay) -> None:
    ran = assay("contention", "run", *SMALL, *TINY, "--workers-per-device", 2, "--json")
    assert ran.code == 0, ran.err
    found = ran.data
    records = found["records"]
    assert [record["status"] for record in records] == ["ok"] * len(records)
    assert list(dict.fromkeys(record["block"] for record in records)) == ["block-1", "retimed"]
    crowded = [record for record in records if len({s["role"] for s in record["series"]}) == 2]
    assert len(crowded) == 2
    assert {s["role"] for s in crowded[0]["series"]} == {"cpu:0 worker 1", "cpu:0 worker 2"}
    tunings = [tuning for record in records for tuning in record["tunings"]]
    assert len(tunings) == 1 + 1 + 2 + 2
    assert all(tuning["config"] is not None for tuning in tunings)
    topics = {finding["kind"] for finding in found["findings"]}
    assert {"time", "spread", "mismatch", "regret", "noise"} <= topics
    naive = next(f for f in found["findings"] if (f["kind"], f["facts"].get("phase")) == ("time", "naive"))
    assert naive["estimate"]["value"] > 0
    assert set(naive["records"]) <= {record["trial"] for record in records}
    folder = Path(found["run"])
    report = (folder / "report.html").read_text()
    for words in (
        "What the tuner picked",
        "Noise budget",
        "When each trial ran",
        "side by side",
        found["headline"][:20],
    ):
        assert words in report
    assert {path.name for path in (folder / "figures").iterdir()} == {"ratios.png", "samples_0.png", "timeline.png"}
    assert (folder / "older" / "experiment_summary.json").exists()


@pytest.mark.full
def test_one_device_from_an_options_file_says_what_can_still_be_asked_and_is_resumed(
    assay: Assay, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "mine.yaml").write_text(
        "benchmark: softmax@numpy\ndevice: cpu:0\nrepeat: 1\nbudget: 1s\ntuner: none\nparam: ['rows=64']\n"
        "workers-per-device: 1\n"
    )
    ran = assay("contention", "run", "--options", "mine.yaml", "--no-monitor")
    assert ran.code == 0, ran.err
    said = " ".join(ran.out.split())
    assert "Nothing runs side by side here" in said
    assert "--aggressor cpu" in said
    folder = RunFolder.open(workplace / "runs/latest")
    assert folder.plan.options["repeat"] == 1
    (folder.path / "seal.json").unlink()  # as if it had been killed before its last record
    lines = (folder.path / "records.jsonl").read_text().splitlines()
    (folder.path / "records.jsonl").write_text("".join(line + "\n" for line in lines[:-1]))
    again = assay("resume", folder.path, "--json")
    assert again.code == 0, again.err
    assert [record["attempt"] for record in again.data["records"]] == [2, 2]
    plan = folder.path / "plan.json"
    assert main(["contention", "run", "--options", str(plan), "--dry-run"]) == 0
    assert "First block: block-1" in capsys.readouterr().out
    assert main(["run", "--options", str(plan)]) == 2
    assert "another experiment" in capsys.readouterr().err
    assert main(["contention", "run", "--options", str(plan), "--seed", "3"]) == 2
    assert "cannot change it" in capsys.readouterr().err


@pytest.mark.full
def test_a_hog_is_up_side_by_side_and_a_tuner_of_ones_own_chooses(assay: Assay, workplace: Path) -> None:
    (workplace / "tuner.py").write_text(
        "import json, sys\n"
        "found = {'kernel_name': 'softmax', 'best_config': {'block_rows': 8}, 'best_time_ms': 0.1,\n"
        "         'all_benchmark_times': [0.1, 0.2], 'num_configs_tested': 2, 'autotune_duration_seconds': 0.1}\n"
        "json.dump(found, open(sys.argv[1], 'w'))\n"
    )
    ran = assay(
        "contention", "run", *SMALL, *TINY, "--aggressor", "cpu_hog", "--tuner-command", "python3 tuner.py {output}",
        "--no-monitor", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    chosen = [t["config"] for record in ran.data["records"] for t in record["tunings"]]
    assert chosen == [{"block_rows": 8}] * 4
    loads = [e for record in ran.data["records"] for e in record["evidence"] if e["load_calls"]]
    assert {e["role"] for e in loads} == {"cpu_hog on host"}
    assert len(loads) == 2


def test_on_cpu_cores_two_workers_share_each_group_unless_a_load_or_a_number_is_given(assay: Assay) -> None:
    def workers(*more: str) -> int:
        ran = assay("contention", "run", "--device", "cpu:0", "--dry-run", "--json", *more)
        assert ran.code == 0, ran.err
        assert ("2 workers per group of cores" in ran.err) == (not more)
        trials = ran.data["block"]["trials"]
        return max(len([role for role in trial["roles"] if role["duty"] == "timed"]) for trial in trials)

    assert workers() == 2
    assert workers("--workers-per-device", "3") == 3
    assert workers("--aggressor", "cpu") == 1


@pytest.mark.full
@pytest.mark.parametrize(("version", "search_s"), [("1.0.0", 35.0), ("1.1.0", 0.0)])
def test_helion_tunes_from_its_own_space_and_its_searches_are_in_the_forecast(
    assay: Assay, make_fake_nvml: MakeFakeNvml, tmp_path: Path, version: str, search_s: float
) -> None:
    fake = make_fake_nvml([hopper()], virtual=False)
    env = {name: value for name, value in fake.env({}).items() if name in {"LD_LIBRARY_PATH", "ASSAY_FAKE_NVML"}}
    env["PYTHONPATH"] = (
        f"{install_stub_helion(tmp_path / 'site', version)}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    )
    words = ("contention", "run", "--tuner", "helion", "--workers-per-device", "2", "--quick", "--dry-run", "--json")
    ran = assay(*words, **env)
    assert ran.code == 0, ran.err
    trials = ran.data["block"]["trials"]
    timed = [role for trial in trials for role in trial["roles"]]
    assert {(role["subjects"][0]["workload"], role["subjects"][0]["impl"]) for role in timed} == {("softmax", "helion")}
    assert all(role["tuner"]["name"] == "helion" for role in timed)
    assert all(role["tuner"]["budget_s"] >= max(search_s, 0.4) for role in timed)
    warm = [trial for trial in trials if trial["settings"]["phase"] == "warm-up"]
    assert bool(warm) == (search_s == 0)
    least_s = 8 * search_s  # two blocks of four phases are the fewest that give an interval
    if search_s:
        assert ran.err.startswith("This will take about ")
        minutes = int(ran.err.removeprefix("This will take about ").split(" min")[0])
        assert 60 * minutes + 59 >= least_s


@pytest.mark.full
def test_without_helion_its_tuner_is_refused_before_anything_is_measured(
    assay: Assay, make_fake_nvml: MakeFakeNvml, workplace: Path
) -> None:
    fake = make_fake_nvml([hopper()], virtual=False)
    env = {name: value for name, value in fake.env({}).items() if name in {"LD_LIBRARY_PATH", "ASSAY_FAKE_NVML"}}
    if find_spec("helion") is not None:
        pytest.skip("Helion is installed here")
    ran = assay("contention", "run", "--tuner", "helion", **env)
    assert (ran.code, ran.out) == (3, "")
    assert "Helion is not installed here" in ran.err
    assert not (workplace / "runs").exists()


@pytest.mark.full
def test_a_tuner_that_fails_in_every_try_is_a_failure_and_the_times_are_kept(assay: Assay, workplace: Path) -> None:
    (workplace / "tuner.py").write_text("raise SystemExit(3)\n")
    ran = assay(
        "contention", "run", *SMALL, *TINY, "--workers-per-device", 1, "--tuner-command", "python3 tuner.py {output}",
        "--no-monitor",
    )  # fmt: skip
    assert ran.code == 4
    said = " ".join(ran.out.split())
    assert "the tuner found no configuration in any of 2 tries (the tuner's command exited with 3)" in said
    assert "The tuner failed in all of its 2 tries; the times are kept." in ran.err
    assert "Some trials failed" not in ran.err
    assert all(record.series for record in RunFolder.open(workplace / "runs/latest").records())


@pytest.mark.full
def test_a_worker_that_dies_is_named_and_the_exit_code_is_that_of_failure(assay: Assay) -> None:
    ran = assay("contention", "run", "--benchmark", "bad.py:segfault", *TINY, "--json")
    assert ran.code == 4
    assert ran.data["headline"] == "Nothing could be measured."
    assert {record["block"] for record in ran.data["records"]} == {"block-1"}
    assert all("SIGSEGV" in record["reason"] for record in ran.data["records"])


def test_a_dry_run_shows_the_phases_and_measures_nothing(assay: Assay, workplace: Path) -> None:
    ran = assay("contention", "run", "--quick", "--device", "cpu", "--dry-run")
    assert ran.code == 0, ran.err
    assert "block-1" in ran.out
    assert "isolation gpu, unpinned" in ran.out
    assert "isolation full, cores" in ran.out
    assert "tunes" in ran.out
    assert not (workplace / "runs").exists()


@pytest.mark.full
def test_a_budget_that_is_too_short_is_said_at_the_start_and_at_the_end(assay: Assay) -> None:
    ran = assay(
        "contention", "run", *SMALL, "--device", "cpu:0", "--workers-per-device", 1, "--tuner", "none",
        "--duration", "1", "--budget", "1", "--no-monitor",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.err.startswith("This will take about ")
    assert "more than the budget of 1.0 s: 2 blocks are the fewest that tell anything" in ran.err.splitlines()[0]
    assert "more than the budget of 1.0 s; " in " ".join(ran.out.split())


def test_on_gpus_what_can_be_tuned_is_measured_on_all_of_them(assay: Assay, make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper()], virtual=False)
    seen = {name: value for name, value in fake.env({}).items() if name in {"LD_LIBRARY_PATH", "ASSAY_FAKE_NVML"}}
    ran = assay("contention", "run", "--aggressor", "cpu_hog", "triad", "--dry-run", "--json", **seen)
    assert ran.code == 0, ran.err
    trials = ran.data["block"]["trials"]
    timed = [role for trial in trials for role in trial["roles"] if role["duty"] == "timed"]
    assert {role["subjects"][0]["workload"] for role in timed} == {"flash_attention", "softmax"}
    assert {role["subjects"][0]["impl"] for role in timed} == {"triton"}
    assert {role["devices"][0] for role in timed} == {"cuda:0", "cuda:1"}
    loads = {tuple(role["devices"]) for trial in trials for role in trial["roles"] if role["duty"] == "load"}
    assert loads == {("host",), ("cuda:0",), ("cuda:1",)}


CASES = [
    (["contention", "rum"], 2, "Did you mean run"),
    (["contention", "run", "--benchmark", "softmx"], 2, "Did you mean softmax"),
    (["contention", "run", "--gpus", "0"], 3, "There is no GPU 0 here"),
    (["contention", "run", "--device", "cpu", "--param", "rows=3"], 2, "--param needs --benchmark"),
    (
        ["contention", "run", "--device", "cpu", "--tuner", "triton"],
        2,
        "--tuner triton tunes only workloads",
    ),
    (["contention", "run", "--device", "cpu", "--tuner", "magic"], 2, "--tuner"),
    (["contention", "run", "--benchmark", "bad.py:fine", "--tuner", "pick"], 2, "has no configurations to tune"),
    (["contention", "run", "--tuner-command", "python3 x.py"], 2, "must contain {output}"),
    (
        ["contention", "run", "--tuner-command", "nowhere-at-all {output}"],
        2,
        "Command 'nowhere-at-all' of",
    ),
    (["contention", "run", "--tuner-command", "true '{output}"], 2, "cannot be read"),
    (["contention", "run", "--tuner", "pick", "--tuner-command", "true {output}"], 2, "exclude each other"),
    (["contention", "run", "--aggressor", "cpu_hgo"], 2, "Did you mean"),
    (
        ["contention", "run", "--aggressor", "--dry-run"],
        2,
        "--aggressor needs a value, but",
    ),
    (["contention", "run", "--gpus", "--seed=3"], 2, "--gpus needs a value, but is followed by the option --seed"),
    (
        ["contention", "run", "--tuner_command", "--no-monitor"],
        2,
        "--tuner_command needs a value",
    ),
    (["contention", "run", "--device", "cpu", "--aggressor", "pcie_copy"], 3, "needs a GPU"),
    (["contention", "run", "--workers-per-device", "0"], 2, "--workers-per-device"),
    (["contention", "run", "--budget", "never"], 2, "not a duration"),
    (["contention", "run", "--options", "gone.yaml"], 2, "gone.yaml"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "words"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_bad_input_gets_one_line_and_its_exit_code(
    arguments: list[str], code: int, words: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    assert not (workplace / "runs").exists()
