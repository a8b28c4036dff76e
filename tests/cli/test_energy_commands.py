"""``assay energy run`` and ``check`` as commands: bad input, missing GPUs, what is foreseen, a run to its end."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from assay.cli import energy_reporters, energy_run
from assay.cli.doctor import EnergyCheckFlags, check_gpus
from assay.cli.energy_reporters import ReporterFiles
from assay.cli.energy_run import EnergyRunFlags, build_options
from assay.cli.main import main
from assay.core.errors import BadInput, EndedEarly, MachineCannot
from assay.experiments.energy.config import EnergyReporter
from assay.experiments.energy.config_file import read_config
from assay.machine.detect import detect
from assay.machine.nvidia import smoke_test
from tests.fakes.fake_nvml import attached, hopper

if TYPE_CHECKING:
    from assay.machine.model import Machine
    from tests.fakes.plugin import MakeFakeNvml
    from tests.running import Assay

TINY = "backend: {type: pytorch, model: 'random:llama-tiny', device: cpu}\n"
SERVER = "backend: {type: openai, model: m, endpoint: 'http://a/v1', device_ids: [1]}\n"
NO_CUDA: dict[str, Any] = {"torch": "2.11+cpu", "cuda": None, "gpus": {}}


def tiny_flags(**changes: Any) -> EnergyRunFlags:
    return EnergyRunFlags(**{"model": "random:llama-tiny", "timeout_s": 60.0, **changes})


def kernels(machine: Machine) -> dict[str, Any]:
    return {"torch": "2.11", "cuda": "13.0", "gpus": {gpu.uuid: {"error": None} for gpu in machine.gpus}}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "Nothing to measure: name a CONFIG.yaml"),
        (("none.yaml",), 2, "none.yaml does not exist"),
        (("bad.yaml",), 2, "bad.yaml has 2 mistakes:\n  line 1: 'modl' is not known in backend. Did you mean model?"),
        (("good.yaml", "--set", "backend.device_id=[0]"), 2, "Did you mean device_ids"),
        (("random:llama-tiny", "--model", "random:llama-1b"), 2, "both name a model"),
        (("good.yaml", "--set", "reporter.output_file=bad.yaml/x.csv"), 2, "is a file, but a folder is needed"),
        (("random:llama-tiny", "--gpus", "0,1"), 3, "There is no GPU 0, 1 here"),
        (("random:llama-tiny", "--gpus", "0", "--allow-missing"), 3, "There is no GPU 0 here"),
        (("good.yaml", "--model", ""), 2, "--model '': model is empty."),
        (("",), 2, "The name of the configuration, or of the model, is empty."),
        (("--model", "random:x"), 2, "--model random:x: There is no random model 'x'"),
        (("folder",), 2, "folder: The folder ./folder has no config.json"),
        (("good.yaml", "--seed", "-1"), 2, "--seed -1: seed should be greater than or equal to 0"),
        (("good.yaml", "--repeat", "5000"), 2, "--repeat 5000: repeats should be less than or equal to 1000"),
        (("openai.yaml", "--device", "cuda", "--gpus", "0"), 2, "--device cuda: device is decided where the server"),
        (("good.yaml", "--nodes", "2"), 2, "--nodes needs a remote host"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence_with_its_exit_code(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("good.yaml").write_text(TINY)
    Path("openai.yaml").write_text(SERVER)
    Path("bad.yaml").write_text("backend: {type: pytorch, modl: x}\nscenario: {warmup: -1}\n")
    assert main(["energy", "run", *words]) == code
    told = capsys.readouterr()
    assert said in told.err
    assert not told.out
    assert not Path("runs").exists()


def test_flags_change_places_of_the_configuration_and_win_over_quick(
    make_fake_nvml: MakeFakeNvml, tmp_path: Path
) -> None:
    server = tmp_path / "server.yaml"
    server.write_text(SERVER)
    with attached(make_fake_nvml([hopper(), hopper()])):
        here = detect()
        options = build_options(tiny_flags(gpus=(here.gpus[1].uuid,), seed=7, budget_s=90.0), here)
        metered = build_options(tiny_flags(gpus=("0", "1"), device="cpu"), here)
        sets = ("scenario.batch_sizes=[2,4]", "scenario.input_tokens=[8,16]", "scenario.window_s=9")
        quick = build_options(tiny_flags(sets=sets[:2], quick=True, repeat=2), here)
        served = build_options(tiny_flags(model=None, config=str(server), gpus=("0",)), here)
        partly = build_options(tiny_flags(gpus=("1", "5"), allow_missing=True), here)
    assert (options.devices, options.seed, options.budget_s) == (("cuda:1",), 7, 90.0)
    assert options.config.scenario.input_tokens == (512,)
    assert served.gpus == ("cuda:0",)
    assert (metered.devices, metered.gpus) == (("cpu:0",), ("cuda:0", "cuda:1"))
    assert metered.config.scenario.input_tokens == (64,)
    assert quick.config.scenario.batch_sizes == (2, 4)
    assert (quick.config.scenario.output_tokens, quick.restarts, quick.stage_s) == ((128,), 2, 2.0)
    assert not quick.longer
    assert partly.devices == ("cuda:1",)
    assert any("GPU 1 of 1, 5 is used, with --allow-missing" in note for note in partly.notes)


def test_settings_that_only_transformers_can_tell_of_are_asked_about_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []

    def answer(told: dict[str, Any]) -> str | None:
        asked.append(told)
        return "generate_kwargs.foo is not a setting of a generation." if told["foo"] == 2 else None

    monkeypatch.setattr("assay.worker.probes.check_generate_kwargs", answer)
    here = detect()
    build_options(tiny_flags(sets=("scenario.generate_kwargs={top_k: 3}",)), here)
    build_options(tiny_flags(sets=("scenario.generate_kwargs={foo: 1}",)), here)
    with pytest.raises(BadInput, match=r"^scenario: generate_kwargs\.foo is not a setting"):
        build_options(tiny_flags(sets=("scenario.generate_kwargs={foo: 2}",)), here)
    assert asked == [{"foo": 1}, {"foo": 2}]


def test_what_is_foreseen_is_told_and_decides_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"model": "random:llama-8b", "dtype": "bfloat16", "parameters": 8030261248, "weights_bytes": 16060522496}
    answers: list[dict[str, Any]] = [
        {"sizes": sizes, "needs_bytes": 17e9, "weights_bytes": {"cpu": 16060522496}, "notes": ["a word"]},
        {"refused": "It does not fit.", "exit_code": 3},
        {"error": "it crashed"},
    ]
    here = detect()
    options = build_options(tiny_flags(), here)
    said = []
    for answer in answers:
        monkeypatch.setattr("assay.worker.probes.query_model_fit", lambda *_, answer=answer: answer)
        code = energy_run.show_energy_dry_run(options, here, as_json=False)
        said.append((code, capsys.readouterr().out))
    assert [code for code, _ in said] == [0, 3, 0]
    assert "8.03 billion parameters in bfloat16, 15.0 GiB of weights, about 15.8 GiB for eager, batch 1" in said[0][1]
    assert "note: a word" in said[0][1]
    assert "It would not be loaded: It does not fit." in said[1][1]
    assert "Whether it fits is not known: it crashed." in said[2][1]
    energy_run.show_energy_dry_run(options, here, as_json=True)
    assert json.loads(capsys.readouterr().out)["foreseen"]["error"] == "it crashed"


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--output-dir", "file"), 2),
        (("--output-dir", "file/runs"), 2),
        (("--output-dir", "/proc/runs"), 3),
        (("--set", "reporter.output_file=."), 2),
        (("--set", "reporter.output_file=file"), 2),
        (("--set", "reporter.output_file=/proc/a.csv"), 3),
    ],
)
def test_a_dry_run_looks_at_what_would_be_written_as_the_run_does(
    words: tuple[str, ...], code: int, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("item,price\ntea,3\n")
    assert main(["energy", "run", "random:llama-tiny", "--device", "cpu", *words, *more]) == code
    assert capsys.readouterr().err.count("assay: ") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is left of what was tried"


def test_a_dry_run_says_which_cells_are_left_out(
    make_fake_nvml: MakeFakeNvml, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("assay.worker.probes.query_model_fit", lambda *_: {"error": "nobody asked"})
    here = detect()
    codes = []
    for modes in ("[eager]", "[eager, graphs]", "[graphs]"):
        options = build_options(tiny_flags(device="cpu", sets=(f"scenario.modes={modes}",)), here)
        codes.append(energy_run.show_energy_dry_run(options, here, as_json=False))
        said = "Left out: graphs, batch 1, 64 in, 16 out: CUDA graphs need a GPU." in capsys.readouterr().out
        assert said == ("graphs" in modes)
    assert codes == [0, 0, 3]
    with attached(make_fake_nvml([hopper(), hopper()])):
        options = build_options(tiny_flags(gpus=("0", "1"), sets=("scenario.modes=[eager, graphs]",)), detect())
    assert energy_run.skipped_cells(options, {"weights_bytes": {"cuda:0": 1}}).cells == ()
    found = energy_run.skipped_cells(options, {"weights_bytes": {"cuda:0": 1, "cuda:1": 1}})
    assert (len(found.cells), found.everything) == (1, False)


def test_a_report_that_cannot_be_written_after_all_is_4_and_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path, reporters: object) -> list[str]:
        raise MachineCannot(f"a.csv is not writable: permission denied. What was measured is kept in {folder}.")

    monkeypatch.setattr(energy_reporters, "write_reports", fails)
    after = ReporterFiles.prepared((EnergyReporter(output_file=str(tmp_path / "a.csv")),))
    assert after.write(tmp_path, 3) == 3  # nothing was measured, and nothing is written
    (tmp_path / "energy.json").write_text("{}")
    with pytest.raises(EndedEarly, match="What was measured is kept") as error:
        after.write(tmp_path, 0)
    assert error.value.exit_code == 4


def test_what_is_sent_elsewhere_reports_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"{TINY}scenario: {{prompts: texts.txt}}\nreporter: {{output_file: a.csv}}\n")
    (tmp_path / "texts.txt").write_text("Why?\n")
    assert main(["energy", "run", "mine.yaml", "--on", "ssh:somewhere", "--reports", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "assay energy run mine.yaml --output-dir" in told
    assert "--no-reports" in told
    assert "texts.txt" in told


@pytest.mark.parametrize("count", [0, 1, 4])
def test_check_touches_every_gpu_and_writes_a_configuration_that_can_be_read(
    count: int, tmp_path: Path, make_fake_nvml: MakeFakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    flags = EnergyCheckFlags(output=tmp_path / "energy.yaml", as_json=True)
    again = EnergyCheckFlags(output=tmp_path / "energy.yaml", yes=True)
    with attached(make_fake_nvml([hopper()] * count)):
        here = detect()
        code = check_gpus(here, flags, seen.append, lambda: kernels(here))
        told = json.loads(capsys.readouterr().out)
        assert check_gpus(here, again, smoke_test, lambda: kernels(here)) == code
    page = capsys.readouterr().out
    assert (code, told["exit_code"]) == ((0, 0) if count else (3, 3))
    assert seen == [gpu.uuid for gpu in here.gpus]
    assert [each["power_draw_w"] is not None for each in told["gpus"]] == [True] * count
    found, notes = read_config(tmp_path / "energy.yaml")
    assert (found.backend.device_ids, notes) == (tuple(range(count)) if count else None, ())
    assert f"assay energy run {tmp_path / 'energy.yaml'}" in page.replace("\n", "")
    assert ("a small model on the CPU" in page) == (count == 0)


def test_check_tells_a_lost_gpu_and_writes_over_nothing(
    tmp_path: Path, make_fake_nvml: MakeFakeNvml, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = make_fake_nvml([hopper(), hopper()])
    with attached(fake):
        here = detect()
        fake.lose(1)
        assert (
            check_gpus(here, EnergyCheckFlags(gpus=("0", "1", "7"), as_json=True), smoke_test, lambda: kernels(here))
            == 3
        )
    told = json.loads(capsys.readouterr().out)
    assert [each["usable"] for each in told["gpus"]] == [True, False, False]
    assert "device_ids: [0]" in told["yaml"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("precious\n")
    assert main(["energy", "check", "-o", "mine.yaml"]) == 2
    assert "add --yes to overwrite it" in capsys.readouterr().err
    assert (tmp_path / "mine.yaml").read_text() == "precious\n"


def test_check_of_gpus_that_pytorch_cannot_use_is_3_and_writes_what_can_be_run(
    make_fake_nvml: MakeFakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    with attached(make_fake_nvml([hopper(), hopper()])):
        assert check_gpus(detect(), EnergyCheckFlags(as_json=True), smoke_test, lambda: NO_CUDA) == 3
        told = json.loads(capsys.readouterr().out)
        assert check_gpus(detect(), EnergyCheckFlags(), smoke_test, lambda: NO_CUDA) == 3
    assert [(each["usable"], each["metered"]) for each in told["gpus"]] == [(False, True)] * 2
    assert "  device: cpu\n" in told["yaml"]
    page = " ".join(capsys.readouterr().out.split())
    assert "No model can compute on GPUs here, as this PyTorch is built without CUDA" in page
    assert "can be used" not in page


@pytest.mark.full
@pytest.mark.usefixtures("transformers_imported")
def test_a_model_is_measured_from_the_older_tools_configuration_to_its_reports(assay: Assay, workplace: Path) -> None:
    (workplace / "older.yaml").write_text(
        "name: mine\noutput_dir: ./benchmark_output\n"
        "backend: {type: pytorch, model_name: 'random:llama-tiny', device: cpu, task: text-generation}\n"
        "scenario:\n  input_shapes: {batch_size: 2, sequence_length: 16}\n"
        "  generate_kwargs: {max_new_tokens: 4, min_new_tokens: 2}\n"
        "reporter: {type: csv, output_file: ./results/mine.csv}\n"
    )
    ran = assay("energy", "run", "older.yaml", "--quick", "--set", "scenario.window_s=0.1", "--json")
    assert ran.code == 0, ran.err
    assert "Note: backend.model_name is backend.model now: random:llama-tiny." in ran.err
    assert "exactly 4 tokens, not 2 to 4" in ran.err
    assert Path(ran.data["run"]).parent == workplace / "benchmark_output"
    (row,) = csv.DictReader((workplace / "results" / "mine.csv").read_text().splitlines())
    assert (row["name"], row["model"], row["batch_size"]) == ("mine", "random:llama-tiny", "2")
    again = assay("resume", ran.data["run"])
    assert again.code == 0, again.err
    assert "Nothing was left to measure." in again.err
    assert len((workplace / "results" / "mine.csv").read_text().splitlines()) == 2
