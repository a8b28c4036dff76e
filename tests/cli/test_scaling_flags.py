"""The flags of ``assay scaling run``: the older tool's names, defaults and environment, and every kind of bad input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from assay.cli.main import main
from tests.cli.test_fake_gpus import fake_environment
from tests.fakes.fake_nvml import hopper

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.plugin import MakeFakeNvml
    from tests.running import Assay

OLDER_VARIABLES = ("BATCH_SIZE", "SEQ_LENGTHS", "NUM_HEADS", "EMBED_DIM", "WARMUP_RUNS", "BENCHMARK_RUNS", "OUTPUT_DIR")


@pytest.fixture(autouse=True)
def plain_environment(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OLDER_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def first_trial(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """Return the first trial that the words mean."""
    assert main(["scaling", "run", *map(str, words), "--dry-run", "--json"]) == 0, capsys.readouterr().err
    trial: dict[str, Any] = json.loads(capsys.readouterr().out)["block"]["trials"][0]
    return trial


def params(trial: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = trial["roles"][0]["subjects"][0]["params"]
    return found


def test_on_a_cpu_sizes_are_small_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", "run", "--device", "cpu", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("On a CPU sizes are small unless they are given. Here: batch 1, 1024 and 2048 tokens")
    assert "First block: repeat-1-n1024-alone" in said.out
    assert "3 calls to warm up, 10 timed" in said.out


@pytest.mark.full
def test_on_gpus_the_defaults_are_those_of_the_older_tool(assay: Assay, make_fake_nvml: MakeFakeNvml) -> None:
    fake = make_fake_nvml([hopper(), hopper()], virtual=False)

    def first(*words: str) -> dict[str, Any]:
        ran = assay("scaling", "run", *words, "--dry-run", "--json", **fake_environment(fake))
        assert ran.code == 0, ran.err
        trial: dict[str, Any] = ran.data["block"]["trials"][0]
        return trial

    trial = first("--no-references")
    assert params(trial) == {
        "batch": 2, "sequence": 16384, "heads": 12, "key_heads": 12, "dim": 64, "segments": "2048,4096,8192",
        "rates": "1,2,4", "ring": 1, "dtype": "float16", "causal": False, "offset": "modulo", "backend": "auto",
        "passes": "forward", "only": "all",
    }  # fmt: skip
    assert (trial["mode"]["warmup_runs"], trial["mode"]["runs"]) == (3, 10)
    large = params(first("--large", "2", "--no-references"))
    assert (large["batch"], large["sequence"]) == (1, 131072)
    quick = first("--quick", "--no-references")
    counts = (quick["mode"]["warmup_runs"], quick["mode"]["runs"])
    assert (params(quick)["sequence"], *counts) == (8192, 1, 3)
    assert first("--quick")["roles"][0]["subjects"][0]["workload"] == "gemm"


@pytest.mark.parametrize(
    "lists",
    [
        "--batch_size 3 --seq_lengths 256 512 --segment_lengths 64 128 --dilation_rates 1 2",
        "--batch-size 3 --seq-lengths 256,512 --segment-lengths 64,128 --dilation_rates 1,2",
        "--batch-size=3 --seq-lengths=256 --seq-lengths 512 --segment-lengths=64,128 --dilation-rates 1 2",
    ],
)
def test_lists_and_names_are_read_in_every_spelling(lists: str, capsys: pytest.CaptureFixture[str]) -> None:
    how = "--embed_dim 64 --num_heads 8 --causal --no_flash_attention --dtype float64"
    found = params(first_trial(capsys, *lists.split(), *how.split()))
    named = ("batch", "sequence", "heads", "dim", "segments", "rates", "causal", "backend", "dtype")
    assert [found[name] for name in named] == [3, 256, 8, 8, "64,128", "1,2", True, "math", "float64"]


def test_the_environment_is_read_said_and_outdone_by_flags(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(OLDER_VARIABLES, ("2", "1024 2048", "8", "64", "5", "7", "elsewhere"), strict=True):
        monkeypatch.setenv(name, value)
    trial = first_trial(capsys, "--batch-size", 3)
    assert [params(trial)[name] for name in ("batch", "sequence", "heads", "dim")] == [3, 1024, 8, 8]
    assert (trial["mode"]["warmup_runs"], trial["mode"]["runs"]) == (5, 7)
    main(["scaling", "run", "--dry-run"])
    said = capsys.readouterr().err
    assert "From the environment:" in said
    assert all(f"{name}=" in said for name in OLDER_VARIABLES)
    assert "SEQ_LENGTHS=1024 2048" in said


def test_ranks_beyond_what_is_here_are_skipped_or_share_and_both_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", "run", "--all", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "Skipped: 8 ranks: there are only" in said or "Skipped" not in said.partition("Rings")[0]
    assert main(["scaling", "run", "--nproc", "64", "--ring-sizes", "64", "--seq-lengths", "4096", "--dry-run"]) == 0
    assert "64 ranks share" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--segment-lengths 256 512", "2 segment lengths but 3 dilation rates"),
        ("--dilation-rates 1 2", "3 segment lengths but 2 dilation rates"),
        ("--seq-lengths 0", "at least 1, not '0'"),
        ("--seq-lengths -1", "at least 1, not '-1'"),
        ("--seq-lengths many", "not 'many'"),
        ("--seq-lengths ,", "needs at least one value"),
        ("--segment-lengths 0 512 1024", "at least 1, not 0"),
        ("--dilation-rates 0 2 4", "at least 1, not 0"),
        ("--segment-lengths 256 512 1026 --seq-lengths 4104", "not divisible by its dilation rate 4"),
        ("--seq-lengths 1000", "not divisible by the segment length"),
        ("--nproc 3 --ring-sizes 3 --seq-lengths 1024", "not divisible among 3 ranks"),
        ("--nproc 4 --ring-sizes 4 --seq-lengths 3072", "neither is a multiple of the other"),
        ("--nproc 4 --ring-sizes 4 --seq-lengths 8 --segment-lengths 1 2 8", "dilation rate"),
        ("--embed-dim 130", "--embed-dim 130 must be divisible by --num-heads 4"),
        ("--num-heads 0", "--num-heads must be between 1 and"),
        ("--num-heads 4 --num-kv-heads 3", "cannot share 3 key heads"),
        ("--dtype float12", "no dtype 'float12'"),
        ("--offset sideways", "no offset 'sideways'"),
        ("--backend quick", "no backend 'quick'"),
        ("--backend cudnn --device cpu", "runs on a GPU"),
        ("--no-flash-attention --backend flash", "means --backend math"),
        ("--ring-sizes 0", "at least 1, not '0'"),
        ("--ring-sizes two", "not 'two'"),
        ("--batch-size 0", "--batch-size must be between 1 and"),
        ("--benchmark-runs 0", "--benchmark-runs must be between 1 and 10000000, not '0'"),
        ("--warmup-runs -1", "--warmup-runs must be between 0 and 10000000, not '-1'"),
        ("--nproc 0", "--nproc must be between 1 and 1024, not '0'"),
        ("--nproc 2 --quick 4", "--nproc 2 and --quick 4 are different numbers of ranks"),
        ("--nproc 2 --all", "do not give another number of ranks"),
        ("--quick --large", "--quick and --large exclude each other"),
        ("--link carrier-pigeon", "Unknown link 'carrier-pigeon'"),
        ("--min-efficiency 70", "out of range"),
        ("--min-efficiency much", "not a percentage"),
        ("--unsure perhaps", "--unsure must be pass or fail, not 'perhaps'"),
        ("--isolation fort", "Unknown isolation level"),
        ("--device tpu", "not a device"),
        ("--workload nothing", "Unknown workload"),
        ("--workload softmax --seq-lengths 1024", "--seq-lengths applies to dilated attention only"),
        ("--workload softmax@numpy --ranks-param depth", "no parameter 'depth'"),
        ("--workload softmax@numpy --nproc 7 --ranks-param rows --param rows=8", "not divisible among 7"),
        ("--param rows=8", "--param needs --workload"),
        ("--ranks-param rows", "--ranks-param needs --workload"),
        ("--on mars", "mars"),
        ("--repeat 0", "--repeat must be between 1 and 10000, not '0'"),
    ],
)
def test_bad_input_is_told_in_a_sentence(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", "run", *words.split(), "--dry-run"]) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in told
    assert told.startswith("assay: ")


def test_without_pytorch_it_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for verb in ("run", "test"):
        assert main(["scaling", verb]) == 3
        assert "needs PyTorch" in capsys.readouterr().err


def test_under_torchrun_there_are_no_more_ranks_than_it_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert main(["scaling", "run", "--nproc", "3", "--dry-run"]) == 2
    assert "more than the 2 processes that torchrun started" in capsys.readouterr().err
    assert main(["scaling", "test", "--nproc", "3"]) == 2
    capsys.readouterr()
    assert main(["scaling", "run", "--all", "--dry-run"]) == 0
    assert "Skipped: 4 ranks: torchrun started 2 processes." in capsys.readouterr().err


def test_a_plan_is_run_again_as_it_was(capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    (workplace / "mine.yaml").write_text("nproc: 2\nseq-lengths: [1024]\nring_sizes: [2]\nquick: 2\n")
    assert main(["scaling", "run", "--options", "mine.yaml", "--dry-run"]) == 0
    assert "First block: repeat-1-n1024-alone (1024 tokens, 1 rank, and its share of rings)" in capsys.readouterr().out


def test_a_gate_with_nothing_to_judge_is_refused_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["scaling", "run", "--device", "cpu", "--nproc", "2", "--ring-sizes", "3", "--dry-run"]
    assert main([*words, "--min-efficiency", "0.7"]) == 2
    said = capsys.readouterr().err
    assert "--min-efficiency has nothing to judge" in said
    assert "Rings of 3 over 2 ranks: larger than the world of 2." in said
    assert main(words) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nproc", "2"), "repeat 1 of 3"),
        (("--quick", "2"), None),
        (("--nproc", "2", "--min-efficiency", "0.7"), "repeat 1 of 5"),
        (("--quick", "2", "--min-efficiency", "0.7"), "repeat 1 of 5"),
        (("--quick", "2", "--min-efficiency", "0.7", "--repeat", "2"), "repeat 1 of 2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_gate_plans_the_starts_that_its_interval_needs(
    words: tuple[str, ...], said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaling", "run", "--device", "cpu", *words, "--dry-run", "--json"]) == 0
    why = json.loads(capsys.readouterr().out)["block"]["why"]
    assert ("repeat" not in why) if said is None else (said in why)


def test_a_gate_without_an_interval_over_starts_is_refused(capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    words = ["scaling", "run", "--device", "cpu", "--quick", "2", "--dry-run"]
    assert main([*words, "--min-efficiency", "0.7", "--repeat", "1"]) == 2
    assert "--repeat 1, which gives no interval over starts" in capsys.readouterr().err
    (workplace / "mine.yaml").write_text("nproc: 2\nrepeat: 1\nmin-efficiency: 0.7\n")
    assert main(["scaling", "run", "--options", "mine.yaml", "--dry-run"]) == 2
    assert "--min-efficiency can never fail" in capsys.readouterr().err
    assert main([*words, "--unsure", "fail"]) == 2
    assert "--unsure fail needs --min-efficiency" in capsys.readouterr().err


def test_results_are_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", "analyse", "here", "--results-dir", "there"]) == 2
    assert "are the same option; give one" in capsys.readouterr().err
