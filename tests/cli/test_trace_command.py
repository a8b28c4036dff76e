"""``assay trace``: rows, a trace and a summary of any workload, on a CPU and on a GPU that is not there."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from assay.cli.main import main
from tests.fakes.fake_ncu import fake_ncu, says, works
from tests.fakes.fake_nvml import hopper
from tests.monitor import ncu_texts
from tests.running import survivors

if TYPE_CHECKING:
    from tests.fakes.plugin import MakeFakeNvml
    from tests.running import Assay, Ran

PRETEND = '''
"""A PyTorch that is none: its GPU runs two kernels a call, and its profiler writes down when."""
import json, sys, time, types

marks = []

class Profile:
    def __init__(self, **how):
        assert how == {"use_device": "cuda", "use_kineto": True}
    def __enter__(self):
        marks.clear()
        return self
    def __exit__(self, *_):
        pass
    def export_chrome_trace(self, path):
        events = []
        for name, begin, end in marks:
            n = len(events)
            common = {"ph": "X", "pid": 7, "tid": 7}
            events.append({**common, "cat": "user_annotation", "name": name, "ts": begin, "dur": end - begin})
            for place, kernel in enumerate(("void at::native::cunn_SoftMaxForward<4>(float *)", "GEMM")):
                args = {"correlation": n + place, "registers per thread": 32, "grid": [8, 1, 1], "block": [32, 1, 1]}
                launch = {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin, "dur": 1}
                events.append({**launch, "args": {"correlation": n + place}})
                at = begin + 1000 * (place + 1)
                events.append({"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": at, "dur": 500,
                               "args": args})
        with open(path, "w") as file:
            json.dump({"traceEvents": events}, file)

class record_function:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        self.begin = time.monotonic_ns() / 1e3 + 1e12
    def __exit__(self, *_):
        marks.append((self.name, self.begin, time.monotonic_ns() / 1e3 + 1e12))

nvtx = types.SimpleNamespace(range_push=lambda name: None, range_pop=lambda: None)
torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: None, nvtx=nvtx)
torch.autograd = types.ModuleType("torch.autograd")
torch.autograd.profiler = types.ModuleType("torch.autograd.profiler")
torch.autograd.profiler.profile = Profile
torch.autograd.profiler.record_function = record_function
for module in (torch, torch.autograd, torch.autograd.profiler):
    sys.modules[module.__name__] = module

def work(path="called.txt"):
    time.sleep(0.002)
    with open(path, "a") as file:
        file.write("x")
'''.replace("GEMM", ncu_texts.GEMM)


LATER = """calls = []
def f():
    calls.append(1)
    print("number", len(calls))
    assert len(calls) < 6, "enough"
"""


def folder_of(ran: Ran) -> Path:
    return Path(ran.data["folder"])


def rows(ran: Ran) -> list[dict[str, str]]:
    with (folder_of(ran) / "kernels.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def events(ran: Ran) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder_of(ran) / "trace.json").read_text())["traceEvents"]
    return found


@pytest.fixture
def gpu(make_fake_nvml: MakeFakeNvml, workplace: Path) -> dict[str, str]:
    """The environment in which there are two GPUs that are not there."""
    (workplace / "pretend.py").write_text(PRETEND)
    fake = make_fake_nvml([hopper(), hopper()], virtual=False)
    return {name: value for name, value in fake.env({}).items() if name in {"LD_LIBRARY_PATH", "ASSAY_FAKE_NVML"}}


def with_ncu(body: str, workplace: Path) -> dict[str, str]:
    return {"PATH": f"{fake_ncu(workplace / 'bin', body)}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.full
def test_on_a_cpu_pytorchs_operators_are_the_rows_and_they_lie_on_the_hosts_clock(assay: Assay) -> None:
    pytest.importorskip("torch")
    size = ("--param", "rows=64", "--param", "cols=64")
    ran = assay("trace", "softmax@torch", "--device", "cpu", *size, "--calls", 3, "--json", "--perfetto", "p.json")
    assert ran.code == 0, ran.err
    found = rows(ran)
    assert [(row["call"], row["kind"], row["name"]) for row in found] == [
        (str(call), "operator", "aten::softmax") for call in range(3)
    ]
    assert all(row["start_ns"] and not row["sm_mhz"] and not row["sm_efficiency_percent"] for row in found)
    assert ran.data["by_name"][0]["count"] == 3
    assert ran.data["clock_error_us"] is not None
    shown = events(ran)
    assert {"aten::softmax", "aten::_softmax", "CPUs busy (%)"} <= {event["name"] for event in shown}
    assert (folder_of(ran).parents[1] / "p.json").read_text() == (folder_of(ran) / "trace.json").read_text()


@pytest.mark.full
def test_without_pytorch_a_row_is_a_call_by_the_hosts_clock_and_that_is_said(assay: Assay, workplace: Path) -> None:
    ran = assay("trace", "softmax@numpy", "--device", "cpu", "--param", "rows=8", "--calls", 2, "--csv", "k.csv")
    assert ran.code == 0, ran.err
    assert "2 calls took" in ran.out
    assert "was not loaded: a row is a call by the host's clock" in " ".join(ran.out.split())
    (folder,) = (workplace / "runs").iterdir()
    assert (workplace / "k.csv").read_text() == (folder / "kernels.csv").read_text()
    assert {path.name for path in folder.iterdir()} == {
        "kernels.csv", "machine.json", "monitor.jsonl", "summary.json", "trace.json"
    }  # fmt: skip
    assert str(folder.relative_to(workplace)) in ran.err


@pytest.mark.full
def test_on_a_gpu_every_kernel_has_its_call_its_shape_its_sensors_and_its_counters(
    assay: Assay, gpu: dict[str, str], workplace: Path, assay_home: Path
) -> None:
    words = ("trace", "pretend.py:work", "--gpus", "1", "--calls", 2, "--warmup", 1, "--json")
    ran = assay(*words, **gpu, **with_ncu(works(ncu_texts.TWICE), workplace))
    assert ran.code == 0, ran.err
    found = rows(ran)
    assert [row["call"] for row in found] == ["0", "0", "1", "1"]
    assert {row["grid"] for row in found} == {"8x1x1"}
    assert [row["sm_efficiency_percent"] for row in found] == ["97.05", "99.41"] * 2
    assert all(float(row["power_instant_w"]) > 0 and int(row["sm_mhz"]) > 0 for row in found)
    assert {row["origin"] for row in found} == {"fake"}
    told = ran.data["counters"]
    assert (told["by"], told["version"], told["kernels"], told["matched"]) == ("ncu", "2025.3", 4, 4)
    assert any("run of their own" in note for note in ran.data["notes"])
    assert ran.data["origin"] == "fake"
    assert ran.data["gpu_uuid"] in ran.data["commands"]["a timeline for nsys-ui (nsys)"]
    drawn = events(ran)
    kernel = next(event for event in drawn if event.get("cat") == "kernel")
    assert kernel["args"]["sm_efficiency_percent"] == 97.05
    assert {"power, instant (W)", "SM clock (MHz)", "temperature (°C)", "GPU busy (%)"} <= {e["name"] for e in drawn}
    assert (workplace / "called.txt").read_text() == "x" * (1 + 1 + 1 + 2) + "x" * (1 + 1 + 2)
    assert survivors(assay_home) == []


@pytest.mark.full
def test_counters_that_may_not_be_read_are_refused_and_the_rest_is_kept(
    assay: Assay, gpu: dict[str, str], workplace: Path
) -> None:
    words = ("trace", "bad.py:tiny", "--gpus", "0", "--calls", 2, "--counters", "ncu")
    ran = assay(*words, **gpu, **with_ncu(says(ncu_texts.PERMISSION, code=1), workplace))
    assert ran.code == 3
    assert "assay: No counters: the driver lets only administrators" in ran.err
    assert "NVreg_RestrictProfilingToAdminUsers=0" in "".join(ran.out.split("\n"))
    assert "ncu --csv" in ran.out
    (folder,) = (workplace / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["rows"] == 2


@pytest.mark.full
def test_a_workload_that_fails_later_leaves_a_sentence_and_nothing_else(
    assay: Assay, workplace: Path, assay_home: Path
) -> None:
    (workplace / "later.py").write_text(LATER)
    ran = assay("trace", "later.py:f", "--device", "cpu")
    assert ran.code == 4
    assert "  | number 6\nassay: later.py:f raised AssertionError: enough (line 5 of later.py)" in ran.err
    assert list((workplace / "runs").iterdir()) == []
    assert survivors(assay_home) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("softmaxx",), 2, "Unknown workload"),
        (("softmax@numpy", "--device", "tpu"), 2, "--device must be cpu, cuda or cuda:N"),
        (("softmax@numpy", "--gpus", "0,1"), 2, "A trace covers one GPU"),
        (("softmax@numpy", "--device", "cpu", "--counters", "ncu"), 2, "--counters ncu needs a GPU"),
        (("softmax@numpy", "--device", "cpu", "--param", "rows"), 2, "NAME=VALUE"),
        (("softmax@numpy", "--device", "cpu", "--csv", "gone/k.csv"), 2, "does not exist"),
        (("softmax@torch", "--gpus", "99"), 3, "There is no GPU 99 here"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_starts(
    arguments: tuple[str, ...], code: int, words: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert not (workplace / "runs").exists()


def test_ready_command_lines_are_printed_without_tracing(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "softmax@numpy", "--device", "cpu", "--param", "rows=8", "--calls", "2", "--print-commands"]
    assert main(words) == 0
    assert " -m assay.worker.calls softmax@numpy --param rows=8 --device cpu:0 --calls 2" in capsys.readouterr().out
    assert not (workplace / "runs").exists()
