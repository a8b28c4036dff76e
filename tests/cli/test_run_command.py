"""``assay run`` as a user meets it: real processes, real files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.store.run_folder import RunFolder
from benchmarks.resealing import reseal
from tests.running import HUSHED

if TYPE_CHECKING:
    from tests.conftest import StartPython
    from tests.running import Assay, Ran

QUICK = ("--device", "cpu", "--duration", "0.5", "--restarts", "1")


@pytest.mark.full
def test_two_devices_side_by_side_give_a_result_a_report_and_proof_of_their_cores(assay: Assay) -> None:
    ran = assay(
        "run", "softmax@numpy", "--device", "cpu", "--mode", "concurrent", "--isolation", "full",
        "--benchmark-runs", 200, "--restarts", 3, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = ran.data
    assert [f["facts"]["device"] for f in found["findings"]] == ["cpu:0", "cpu:1"]
    for finding in found["findings"]:
        estimate = finding["estimate"]
        assert estimate["low"] <= estimate["value"] <= estimate["high"]
        assert (estimate["unit"], estimate["scope"]) == ("µs", "run")
    (record,) = found["records"]
    cores = {e["role"]: set(e["allowed_cores"]) for e in record["evidence"]}
    assert not cores["cpu:0"] & cores["cpu:1"]
    assert all(e["subjects"][0]["check"]["error"] <= e["subjects"][0]["check"]["tolerance"] for e in record["evidence"])
    folder = Path(found["run"])
    names = {"plan.json", "machine.json", "blocks.jsonl", "records.jsonl", "findings.json", "report.md", "report.html"}
    assert names <= {path.name for path in folder.iterdir()}
    assert not (folder / "scratch").exists()
    assert (folder / "figures/timeline.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "findings.json").read_text())["schema"] == 1


@pytest.mark.full
def test_the_older_names_of_benchmarks_and_flags_work(assay: Assay) -> None:
    names = ("--benchmark", "flash_attention_v2", "--kernel=gemm_benchmark", "--output_dir", "mine")
    ran = assay("run", *names, "--device", "cpu:0", *QUICK[2:])
    assert ran.code == 0, ran.err
    assert "flash_attention@" in ran.out
    assert "gemm@" in ran.out
    assert Path("mine/latest/report.html").exists()


def test_given_counts_are_obeyed_exactly(assay: Assay, workplace: Path) -> None:
    ran = assay(
        "run", "bad.py:notes_who", "--param", "who=x", "--device", "cpu:0", "--warmup-runs", 2, "--benchmark-runs", 5
    )
    assert ran.code == 0, ran.err
    assert (workplace / "order.txt").read_text() == "x" * 7


@pytest.mark.full
def test_a_command_is_timed_and_its_numbers_read(assay: Assay) -> None:
    program = (
        "import json, os; print('loss 0.5 then loss 0.25'); "
        "json.dump({'tokens': 7}, open(os.environ['ASSAY_RESULT'], 'w'))"
    )
    ran = assay(
        "run", "--metric", "loss=loss ([0-9.]+)", "--device", "cpu:0", "--benchmark-runs", 3, "--json", "--",
        "python3", "-c", program,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    summaries = {s["quantity"]: s["estimate"]["value"] for s in ran.data["records"][0]["estimates"]}
    assert summaries["loss"] == 0.25
    assert summaries["tokens"] == 7
    assert summaries["cpu_user_s"] > 0
    assert summaries["call_us"] > 1000


@pytest.mark.full
def test_a_command_that_fails_is_a_failed_trial_with_its_last_words(assay: Assay) -> None:
    ran = assay("run", "--device", "cpu:0", "--json", "--", "python3", "-c", "import sys; sys.exit('no such luck')")
    assert ran.code == 4
    (record,) = ran.data["records"]
    assert record["status"] == "failed"
    assert record["reason"] == "cpu:0: the command exited with 1"
    assert "no such luck" in record["stderr_tail"]


@pytest.mark.full
def test_the_other_workloads_go_on_when_one_fails(assay: Assay) -> None:
    ran = assay("run", "bad.py:segfault", "bad.py:fine", "--device", "cpu:0", *QUICK[2:], "--json")
    assert ran.code == 4
    assert sorted(record["status"] for record in ran.data["records"]) == ["failed", "ok"]
    failed = next(record for record in ran.data["records"] if record["status"] == "failed")
    assert "SIGSEGV" in failed["reason"]
    measured = [f for f in ran.data["findings"] if f["estimate"] is not None]
    assert {f["facts"]["workload"] for f in measured} == {"bad.py:fine"}


def test_a_dry_run_measures_and_writes_nothing(assay: Assay, workplace: Path) -> None:
    ran = assay("run", "softmax", "--device", "cpu", "--mode", "concurrent", "--dry-run")
    assert ran.code == 0
    assert "cpu:0: timed, isolation full, cores" in ran.out
    assert "at most" in ran.out
    assert not (workplace / "runs").exists()
    as_data = assay("run", "softmax", "--device", "cpu", "--dry-run", "--json").data
    assert as_data["block"]["name"] == "repeat-1"
    assert as_data["at_most_s"] > 0


def test_repeats_are_blocks_and_the_budget_shortens_the_trials(assay: Assay) -> None:
    ran = assay("run", "bad.py:fine", "--device", "cpu:0", "--repeat", 2, "--budget", "4", "--restarts", 1, "--json")
    assert ran.code == 0, ran.err
    assert [record["block"] for record in ran.data["records"]] == ["repeat-1", "repeat-2"]
    assert RunFolder.open(Path(ran.data["run"])).plan.options["duration_s"] == pytest.approx(1.0)


@pytest.mark.full
def test_options_come_from_a_file_and_the_command_line_wins(assay: Assay, workplace: Path) -> None:
    (workplace / "mine.yaml").write_text(
        "workloads: ['bad.py:fine']\ndevice: cpu:0\nduration: 0.5s\nrestarts: 1\nseed: 3\n"
    )
    ran = assay("run", "--options", "mine.yaml", "--seed", 4, "--json")
    assert ran.code == 0, ran.err
    plan = RunFolder.open(Path(ran.data["run"])).plan
    assert plan.seed == 4
    assert plan.options["duration_s"] == 0.5
    again = assay("run", "--options", f"{ran.data['run']}/plan.json", "--json")
    assert again.code == 0, again.err
    assert RunFolder.open(Path(again.data["run"])).plan.options == plan.options


def test_lists_may_be_written_with_commas_spaces_or_again(assay: Assay) -> None:
    for written in (["cpu:0,cpu:1"], ["cpu:0", "cpu:1"], ["cpu:0", "--device", "cpu:1"]):
        ran = assay("run", "softmax", "--device", *written, "--dry-run", "--json")
        assert ran.code == 0, ran.err
        assert {t["roles"][0]["name"] for t in ran.data["block"]["trials"]} == {"cpu:0", "cpu:1"}


@pytest.mark.full
def test_report_draws_again_and_resume_has_nothing_to_do(assay: Assay, finished: Ran) -> None:
    folder = Path(finished.data["run"])
    (folder / "report.html").unlink()
    again = assay("report", "--json")
    assert again.code == 0, again.err
    assert again.data["findings"] == finished.data["findings"]
    assert (folder / "report.html").exists()
    resumed = assay("resume", folder, "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.data["records"] == finished.data["records"]


def test_resume_refuses_another_machine(assay: Assay, finished: Ran) -> None:
    folder = Path(finished.data["run"])
    machine = json.loads((folder / "machine.json").read_text())
    machine["cpu_model"] = "Abacus 3000"
    (folder / "machine.json").write_text(json.dumps(machine))
    reseal(folder)
    ran = assay("resume", folder)
    assert ran.code == 3
    assert "cpu_model: Abacus 3000 →" in ran.err


def test_list_shows_workloads_devices_and_runs(assay: Assay, finished: Ran) -> None:
    found = assay("list", "--json").data
    assert {"softmax@numpy", "gemm@numpy", "flash_attention@numpy"} <= {w["workload"] for w in found["workloads"]}
    assert found["devices"][-1]["device"].startswith("cpu:")
    assert found["runs"][0]["state"] == "finished"
    assert "softmax@numpy" in assay("list", "workloads").out


def test_no_secret_and_no_host_name_is_written_unless_asked(finished: Ran) -> None:
    folder = Path(finished.data["run"])
    for path in folder.rglob("*"):
        assert not path.is_file() or HUSHED.encode() not in path.read_bytes(), path
    assert json.loads((folder / "machine.json").read_text())["hostname"] is None


@pytest.mark.full
def test_plain_lines_show_progress_without_a_terminal(assay: Assay) -> None:
    ran = assay("run", "bad.py:fine", "--device", "cpu:0", *QUICK[2:])
    assert re.search(r"repeat-1: repeat 1 of 1, 1 trial, at most .* left", ran.err)
    assert re.search(r"1/1 bad.py:fine on cpu:0: [0-9.]+ [µnm]s", ran.err)
    assert "\x1b" not in ran.out + ran.err


def test_a_whole_plan_is_not_changed_by_flags(assay: Assay, finished: Ran) -> None:
    folder = Path(finished.data["run"])
    ran = assay("run", "--options", f"{folder}/plan.json", "--repeat", 3, "--device", "cpu:1")
    assert ran.code == 2
    assert "--repeat" in ran.err
    assert "cannot change it" in ran.err
    assert assay("run", "--options", f"{folder}/plan.json", "--dry-run").code == 0


def test_an_explicit_duration_is_not_shortened_by_quick(assay: Assay) -> None:
    ran = assay("run", "bad.py:fine", "--device", "cpu:0", "--quick", "--duration", 5, "--dry-run", "--json")
    assert ran.data["block"]["trials"][0]["mode"]["duration_s"] == 5
    quick = assay("run", "bad.py:fine", "--device", "cpu:0", "--quick", "--dry-run", "--json")
    assert quick.data["block"]["trials"][0]["mode"]["duration_s"] == 2


@pytest.mark.full
def test_single_short_calls_come_with_a_warning(assay: Assay) -> None:
    ran = assay("run", "bad.py:tiny", "--device", "cpu:0", "--benchmark-runs", 20, "--json")
    assert "clock_overhead" in {note["code"] for note in ran.data["records"][0]["notes"]}


@pytest.mark.full
def test_samples_that_are_gone_are_measured_again(assay: Assay, finished: Ran) -> None:
    folder = Path(finished.data["run"])
    for path in (folder / "samples").iterdir():
        path.unlink()
    assert assay("report", folder).code == 2
    assert assay("resume", folder).code == 0
    assert assay("report", folder).code == 0


@pytest.mark.parametrize("unsealed", [False, True])
def test_records_without_their_decisions_are_damaged_and_not_mixed_with_new_ones(
    assay: Assay, finished: Ran, unsealed: bool
) -> None:
    folder = Path(finished.data["run"])
    (folder / "blocks.jsonl").unlink()
    if unsealed:
        (folder / "seal.json").unlink()
    resumed = assay("resume", folder, "--json")
    assert (resumed.code, resumed.out) == (2, "")
    assert "blocks.jsonl is damaged" in resumed.err


def test_output_that_cannot_be_written_is_a_full_disk_and_no_defect(workplace: Path) -> None:
    command = f"{sys.executable} -m assay list workloads"
    done = subprocess.run(f"{command} > /dev/full", shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "The disk is full" in done.stderr


def test_a_file_named_like_a_library_does_no_harm(workplace: Path) -> None:
    for name in ("random", "numpy", "socket", "json"):
        (workplace / f"{name}.py").write_text("raise SystemExit('mine')\n")
    done = subprocess.run(
        [sys.executable, "-m", "assay", "list", "devices"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_help_shows_its_examples_line_by_line(assay: Assay) -> None:
    text = assay("run", "--help").out
    assert "\n  assay run softmax gemm\n" in text
    assert "\\b" not in text


@pytest.mark.full
def test_a_run_is_watched_and_its_recording_can_be_shown(assay: Assay, workplace: Path) -> None:
    long_enough = ("--duration", "3", "--precision", "0.0001%", "--monitor-interval", "50ms")
    assert assay("run", "softmax@numpy", *QUICK, *long_enough).code == 0
    (record, _) = RunFolder.open(Path("runs/latest")).records()
    assert record.sensors is not None
    assert record.during is not None
    assert record.during.samples > 0
    assert record.energy is not None or record.energy_missing is not None
    assert "What the monitor saw" in Path("runs/latest/report.md").read_text()
    assert assay("report", "runs/latest", "--perfetto", "trace.json").code == 0
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    slices = [event["name"] for event in events if event["ph"] == "X"]
    assert any(name.startswith("softmax@numpy on cpu:0") for name in slices)
    assert any(name.startswith("timed softmax@numpy on cpu:1") for name in slices)
    assert assay("report", f"runs/latest/{record.sensors}", "--json").data["finished"]


@pytest.mark.full
def test_a_run_need_not_be_watched(assay: Assay, workplace: Path) -> None:
    assert assay("run", "softmax@numpy", *QUICK, "--no-monitor").code == 0
    records = RunFolder.open(Path("runs/latest")).records()
    assert [(r.sensors, r.during, r.energy) for r in records] == [(None, None, None)] * 2
    assert not Path("runs/latest/monitor").exists()
    untraced = assay("report", "runs/latest", "--perfetto", "trace.json")
    assert (untraced.code, Path("trace.json").exists()) == (3, False)
    assert "was not monitored" in untraced.err


@pytest.mark.parametrize("interval", ["0", "1ms", "1h"])
def test_an_interval_that_cannot_be_kept_is_refused(assay: Assay, interval: str) -> None:
    ran = assay("run", "softmax@numpy", *QUICK, "--monitor-interval", interval)
    assert ran.code == 2
    assert not Path("runs").exists()


@pytest.mark.full
def test_who_disturbed_a_run_is_said_in_its_first_lines_and_as_data(assay: Assay, start_python: StartPython) -> None:
    hog = start_python("import sys\nprint('spins', flush=True)\nwhile True: pass")
    assert hog.stdout is not None
    hog.stdout.readline()
    ran = assay("run", "bad.py:fine", "--device", "cpu:0", "--duration", "1", "--restarts", "1", "--output-dir", "runs")
    hog.kill()
    assert ran.code == 0, ran.err
    folder = Path("runs/latest")
    quality = json.loads((folder / "findings.json").read_text())["quality"]
    assert (quality["trials"], quality["disturbed"]) == (1, 1)
    assert quality["sources"][0]["kind"] == "processes"
    assert quality["sources"][0]["unit"] == "cores"
    (said,) = re.findall(r"^\S+ (1 of 1 trial disturbed: .*)$", ran.out, re.MULTILINE)
    assert ran.out.index(said) < ran.out.index("Results")
    assert "1 of 1 trial disturbed: " in (folder / "report.md").read_text().partition("## ")[0]
    (disturbed,) = json.loads((folder / "records.jsonl").read_text().splitlines()[0])["disturbed"][:1]
    assert disturbed["kind"] == "processes"
