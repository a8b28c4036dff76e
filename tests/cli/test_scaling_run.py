"""``assay scaling run`` as a user meets it: real ranks over gloo, real files, a gate that uses intervals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.store.run_folder import RunFolder

if TYPE_CHECKING:
    from tests.running import Assay

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("torch_imported")]

SMALL = ("--batch_size=1", "--seq_lengths", "128", "--segment-lengths=32,64,128", "--embed_dim=32", "--num_heads=4")
SLOWER = """
import os, time

def slower():
    time.sleep(0.02 if os.environ.get("WORLD_SIZE", "1") == "1" else 0.06)

def dies():
    if os.environ.get("RANK") == "1":
        os._exit(7)
    time.sleep(0.01)
"""


def test_two_ranks_are_checked_timed_split_up_traced_and_kept(assay: Assay, workplace: Path) -> None:
    ran = assay(
        "scaling", "run", *SMALL, "--quick", 2, "--profile", "--link", "20us:1GB/s", "--output_dir", "out", "--json"
    )
    assert ran.code == 0, ran.err
    assert "Skipped: Rings of 4 and 8 over 2 ranks: larger than the world of 2." in ran.err
    found = ran.data
    assert [record["status"] for record in found["records"]] == ["ok"] * 4
    folder = RunFolder.open(Path(found["run"]))
    predicted = {d.block.name: d.block.prediction for d in folder.decisions()}
    assert predicted["repeat-1-n128-alone"] is None
    assert predicted["repeat-1-n128-p2-r2"] is not None
    topics = {(f["kind"], f["facts"].get("ring")): f for f in found["findings"]}
    assert topics["check_total", 2]["verdict"] == "yes"
    assert topics["received_bytes", 2]["verdict"] == "yes"
    assert (
        topics["received_bytes", 2]["estimate"]["value"] == topics["received_bytes", 2]["facts"]["expected_bytes"] > 0
    )
    assert topics["prediction", 2]["estimate"]["value"] > 0
    factors = [
        topics[f"split_{name}", 2]["estimate"]["value"]
        for name in ("shard", "contention", "balance", "exposed", "rest")
    ]
    product = 1.0
    for factor in factors:
        product *= factor
    assert product == pytest.approx(topics["efficiency", 2]["estimate"]["value"])
    traces = [e["trace"] for record in found["records"] for e in record["evidence"] if e["trace"]]
    assert len(traces) == 2
    assert all((folder.path / trace).stat().st_size > 0 for trace in traces)
    latest = workplace / "out" / "latest.json"
    assert latest.read_bytes() == (folder.path / "older" / "scaling.json").read_bytes()
    rows = json.loads(latest.read_text())["results"]
    assert [(row["world_size"], row["ring_size"], row["rank"]) for row in rows] == [
        (1, 1, 0),
        (2, 1, 0),
        (2, 1, 1),
        (2, 2, 0),
        (2, 2, 1),
    ]
    report = (folder.path / "report.html").read_text()
    for words in (
        "Speedup, strong scaling: ",
        "Factors of the efficiency",
        "Computation and transfers apart",
        "Predictions made before measuring",
        "Errors relative to",
    ):
        assert words in report
    shutil.rmtree(workplace / "out" / "latest", ignore_errors=True)
    again = assay("report", folder.path)
    assert again.code == 0, again.err
    assert "Speedup, strong scaling" in again.out


def test_the_gate_says_no_only_by_an_interval(assay: Assay, workplace: Path) -> None:
    (workplace / "mine.py").write_text(SLOWER)
    run = (
        "scaling",
        "run",
        "--workload",
        "mine.py:slower",
        "--nproc",
        2,
        "--no_save",
        "--no-monitor",
        "--warmup_runs",
        0,
    )
    sure = (*run, "--repeat", 3, "--benchmark_runs", 3)
    no = assay(*sure, "--min-efficiency", "0.7")
    assert no.code == 1, no.err
    assert "Gate: Below the required efficiency of 70 %" in no.err
    yes = assay(*sure, "--min-efficiency", "20%")
    assert yes.code == 0, yes.err
    assert "Gate: Every shape reaches" in yes.err
    assert "Report:" not in yes.err
    blind = assay(*run, "--repeat", 1, "--benchmark_runs", 30, "--min-efficiency", "0.7")
    assert (blind.code, blind.out) == (2, "")
    assert "--min-efficiency can never fail with --repeat 1" in blind.err
    assert sorted(path.name for path in workplace.iterdir() if path.name != "__pycache__") == ["bad.py", "mine.py"]


def test_a_rank_that_dies_ends_its_trial_with_a_record_that_says_which_and_the_rest_goes_on(
    assay: Assay, workplace: Path
) -> None:
    (workplace / "mine.py").write_text(SLOWER)
    ran = assay(
        "scaling", "run", "--workload", "mine.py:dies", "--nproc", 2, "--no-monitor", "--repeat", 2, "--benchmark_runs",
        6, "--json",
    )  # fmt: skip
    assert ran.code == 4, ran.err
    failed = [record for record in ran.data["records"] if record["status"] == "failed"]
    assert len(failed) == 2
    assert all("rank 1" in record["reason"] for record in failed)
    assert "the speedup is unknown" in ran.data["headline"]


def test_repeats_give_intervals_over_starts_on_numpy_too(assay: Assay) -> None:
    ran = assay(
        "scaling", "run", "--workload", "softmax@numpy", "--param", "rows=64", "--param", "cols=64", "--ranks-param",
        "rows", "--nproc", 2, "--repeat", 3, "--benchmark_runs", 20, "--json", "--no-monitor",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    efficiency = next(f for f in ran.data["findings"] if f["kind"] == "efficiency")
    assert efficiency["estimate"]["scope"] == "run"
    assert efficiency["estimate"]["low"] < efficiency["estimate"]["value"] < efficiency["estimate"]["high"]


def test_under_torchrun_it_joins(workplace: Path, assay_home: Path) -> None:
    command = [
        shutil.which("torchrun") or str(Path(sys.executable).with_name("torchrun")),
        "--nproc_per_node=2",
        "-m",
        "assay",
    ]
    words = [*SMALL, "--ring-sizes", "2", "--quick", "--causal", "--no-monitor", "--json"]
    done = subprocess.run(
        [*command, "scaling", "run", *words],
        cwd=workplace, env=os.environ, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ring = next(record for record in found["records"] if record["block"] == "repeat-1-n128-p2-r2")
    assert {series["rank"] for series in ring["series"]} == {0, 1}
    assert all(
        fact["check"]["error"] <= fact["check"]["tolerance"] for e in ring["evidence"] for fact in e["subjects"][:2]
    )
    assert done.stderr.count("On a CPU sizes are small") == 1
    assert any(path.name.startswith("scaling-") for path in (workplace / "runs").iterdir())
