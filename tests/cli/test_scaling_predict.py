"""``assay scaling predict`` from the command line: one small prediction, and whatever cannot be meant."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from tests.needing import need_modules

if TYPE_CHECKING:
    from pathlib import Path

    from tests.running import Assay

need_modules("torch")

SMALL = (
    "scaling", "predict", "--device", "cpu:0", "--seq-lengths", "256", "--segment-lengths", "64", "256",
    "--dilation-rates", "1", "2", "--num-heads", "2", "--embed-dim", "16", "--isolation", "none", "--no-monitor",
    "--warmup-runs", "1",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.usefixtures("torch_imported")
def test_a_prediction_measures_one_share_and_says_what_it_assumes(assay: Assay, workplace: Path) -> None:
    flags = ("--link", "5us:100GB/s", "--benchmark-runs", 8, "--min-efficiency", "99.9%", "--unsure", "fail")
    ran = assay(*SMALL, "--gpus-count", "2,3", *flags)
    assert "Predicted, not measured: 256 tokens on 2 ranks over 5us:100GB/s take" in " ".join(ran.out.split())
    for word in ("Assumption:", "3 ranks: skipped", "not divisible among 3 ranks", "Memory is a model"):
        assert word in " ".join(ran.out.split())
    run = workplace / "runs" / "latest"
    findings = json.loads((run / "findings.json").read_text(encoding="utf-8"))["findings"]
    two, three = findings
    assert ran.code == (0 if two["verdict"] == "yes" else 1), ran.err
    assert "Gate: " in ran.err
    assert two["facts"]["received_bytes"] == 3 * 2 * 2 * 64 * 8 * 4
    assert two["facts"]["messages"] == 3
    assert two["facts"]["communication_s"] == pytest.approx(3 * 5e-6 + two["facts"]["received_bytes"] / 100e9)
    low, value, high = (two["facts"][f"time_{end}s"] for end in ("low_", "", "high_"))
    assert low is high is None or low < value < high
    assert (three["verdict"], three["kind"]) == ("no", "skipped")
    assert (run / "figures" / "predicted_efficiency.png").is_file()
    blocks = (run / "blocks.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(blocks) == 1
    assert assay("report", "runs/latest").code == 0


def test_a_dry_run_shows_the_whole_and_the_shares(assay: Assay, workplace: Path) -> None:
    ran = assay(*SMALL, "--gpus-count", "1 2 4", "--causal", "--dry-run")
    assert ran.code == 0, ran.err
    assert "3 trials" in ran.out
    assert not (workplace / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--link", "nvlink"], "Did you mean nvlink4"),
        (["--link", "5us:100"], "must have its unit"),
        (["--gpus-count", "0"], "at least 1, not '0'"),
        (["--gpus-count", "x"], "not 'x'"),
        (["--gpus-count", "3"], "is possible: A sequence of 256 is not divisible among 3 ranks"),
        (["--seq-lengths", "100"], "not divisible by the segment length 64"),
        (["--seq-lengths", "0"], "--seq-lengths takes whole numbers of at least 1"),
        (["--segment-lengths", "64"], "3 segment lengths but 2 dilation rates"),
        (["--dtype", "float8"], "no dtype 'float8'"),
        (["--embed-dim", "15"], "must be divisible by --num-heads 2"),
        (["--num-kv-heads", "3"], "cannot share 3 key heads"),
        (["--no-flash-attention", "--backend", "flash"], "means --backend math"),
        (["--batch-size", "0"], "--batch-size"),
        (["--min-efficiency", "2"], "out of range"),
        (["--min-efficiency", "0.7", "--benchmark-runs", "3"], "could never fail: 3 timed calls give no interval"),
        (["--unsure", "fail"], "--unsure fail needs --min-efficiency"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *words, "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
