"""The benchmark of what watching a GPU moves: what it says of known shifts, and that one command does all of it."""

from __future__ import annotations

import faulthandler
import json
import lzma
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from assay.timing.cuda import device, timers
from assay.timing.cuda.device import StampPairs
from benchmarks import clock, watch, watch_gpu
from benchmarks.watch_gpu_tables import AGAIN, ALONE, MARGINS, SHOWN, shift, shifts, table
from tests.fakes.fake_nvml import attached

if TYPE_CHECKING:
    from assay.timing.cuda.timers import GpuCallBatch
    from tests.fakes.plugin import MakeFakeNvml

ROOT = Path(__file__).resolve().parents[2]
SMI = """#!{python}
import sys, time
print("power.draw [W], utilization.gpu [%], clocks.current.sm [MHz], memory.used [MiB]", flush=True)
while True:
    print("78.0 W, 0 %, 345 MHz, 1 MiB", flush=True)
    time.sleep(0.02)
"""


class Steady:
    """A subject whose times are drawn, and that takes its time."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def kernels_us(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        time.sleep(0.001)
        return 10.0 * (1 + 0.01 * self._rng.standard_normal(32))

    def calls_us(self, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        return 25.0 * (1 + 0.05 * self._rng.random(count))


def kept(moved: dict[str, float], rounds: int = 9, noise: float = 0.001) -> dict[str, Any]:
    """Return blocks whose times are moved by known shares, under a drift that all blocks of a round share."""
    chance = random.Random(3)
    blocks = []
    for number in range(rounds):
        drift = 1 + 0.05 * number
        for condition, share in {ALONE: 0.0, AGAIN: 0.0, **moved}.items():
            times = {
                what: {"n": 100, **{q: 10 * drift * (1 + share + chance.gauss(0, noise)) for q in ("p50", "p99")}}
                for what in ("kernel", "call")
            }
            seen = {"s": 2.0, "cpu_s": 0.04, "looks": 200, "missed": 1}
            blocks.append({"round": number, "condition": condition, **seen, **times})
    return {"block_s": 2.0, "conditions": [ALONE, AGAIN, *moved], "left_out": {}, "blocks": blocks}


def test_what_did_not_move_is_the_same_and_what_moved_is_not() -> None:
    raw = kept({"little": 0.002, "much": 0.03}, noise=0.0005)
    for what, which in SHOWN:
        assert shifts(raw, AGAIN)[what, which].verdict == "same"
        little, much = shifts(raw, "little")[what, which], shifts(raw, "much")[what, which]
        assert little.verdict == "same"
        assert little.value == pytest.approx(0.002, abs=0.001)
        assert little.low < 0.002 < little.high
        assert much.verdict == "not the same"
        assert much.value == pytest.approx(0.03, abs=0.002)


def test_what_is_not_known_well_enough_is_unsure() -> None:
    found = shifts(kept({"noisy": 0.0}, noise=0.02), "noisy")
    assert found["kernel", "p50"].verdict == "unsure"
    assert shifts(kept({"few": 0.0}, rounds=2), "few") == {}


@pytest.mark.full
def test_equivalence_is_claimed_wrongly_in_at_most_one_of_twenty() -> None:
    rng = np.random.default_rng(5)
    margin = MARGINS["p50"]
    tries = [shift(list(np.exp(np.log1p(margin) + 0.002 * rng.standard_normal(9))), margin) for _ in range(2000)]
    assert np.mean([found.verdict == "same" for found in tries]) == pytest.approx(0.05, abs=0.015)
    holds = [found.low <= margin <= found.high for found in tries]
    assert np.mean(holds) == pytest.approx(0.95, abs=0.015)


def test_the_table_says_what_each_watcher_cost() -> None:
    raw = {**kept({"assay monitor, 50 Hz": 0.0}), "left_out": {"nvidia-smi, 50 Hz": "there is none"}}
    told = table(raw)
    (row,) = [line for line in told.splitlines() if line.startswith("| assay monitor")]
    assert row.startswith("| assay monitor, 50 Hz | 9 | 2.0 % | 1800 | 9 | ")
    assert row.count("same") == 4
    assert f"| {AGAIN} | 9 | " in told
    assert re.search(r"Beside nothing: kernel p50 (11\.9|12\.0)\d µs, kernel p99 .* a block of 2 s\.", told)
    assert "Left out: nvidia-smi, 50 Hz (there is none)." in told


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Short blocks of a subject that needs no GPU; returns what the watchdog was told."""
    watchdog: list[Any] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *after, **how: watchdog.append((after, how)))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: watchdog.append("over"))
    monkeypatch.setattr(clock, "fingerprint", lambda: {"gpu": "fake"})
    monkeypatch.setattr(watch_gpu.run, "__defaults__", (Steady,))
    for name, value in {"BLOCK_S": 0.25, "WARM_S": 0.01, "SETTLE_S": 0.01, "REST_S": 0.2}.items():
        monkeypatch.setattr(watch_gpu, name, value)
    return watchdog


def a_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str = SMI) -> None:
    """Put an nvidia-smi first on the path."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "nvidia-smi"
    program.write_text(text.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.full
def test_one_command_measures_every_condition_beside_real_processes(
    quick: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_fake_nvml: MakeFakeNvml,
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_smi(tmp_path, monkeypatch)
    monkeypatch.setattr(watch_gpu, "ROUNDS", 2)
    folder = tmp_path / "kept"
    monkeypatch.setattr(sys, "argv", ["watch.py", "gpu", "--to", str(folder)])
    before = os.sched_getaffinity(0)
    with attached(make_fake_nvml(virtual=False)):
        assert watch.main() == 0
    assert os.sched_getaffinity(0) == before
    assert quick == [((watch_gpu.MOST_S,), {"exit": True}), "over"]
    told = capsys.readouterr().out
    assert told.strip() == watch_gpu.verified(folder)
    raw = json.loads(lzma.decompress((folder / "watch.samples.json.xz").read_bytes()))
    assert len(raw["blocks"]) == 2 * len(raw["conditions"]) == 12
    assert raw["left_out"] == {}
    by = {(block["round"], block["condition"]): block for block in raw["blocks"]}
    assert [c for _, c in list(by)[:6]] != [c for _, c in list(by)[6:12]]
    for (_, condition), block in by.items():
        assert block["kernel"]["p50"] == pytest.approx(10.0, rel=0.01)
        assert block["call"]["p99"] == pytest.approx(26.24, rel=0.01)
        assert np.median(block["kernel"]["samples_ns"]) == pytest.approx(1e3 * block["kernel"]["p50"], rel=0.01)
        if condition in {ALONE, AGAIN}:
            assert (block["cpu_s"], block["looks"]) == (None, None)
        else:
            assert block["cpu_s"] is not None
            assert block["looks"] > 0
    assert by[0, "assay monitor, 100 Hz"]["looks"] > by[0, "assay monitor, 10 Hz"]["looks"]


def test_a_watcher_that_fails_is_left_out_and_named(
    quick: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_fake_nvml: MakeFakeNvml
) -> None:
    assert quick == []
    a_smi(tmp_path, monkeypatch, "#!{python}\nimport sys\nprint('no devices were found')\nsys.exit(6)\n")
    monkeypatch.setattr(watch_gpu, "ROUNDS", 1)
    monkeypatch.setattr(watch_gpu, "INTERVALS_S", {})
    with attached(make_fake_nvml(virtual=False)):
        watch_gpu.run(tmp_path)
    assert "Left out: nvidia-smi, 50 Hz (it ended with exit code 6: no devices were found)." in watch_gpu.verified(
        tmp_path
    )


def test_no_round_begins_that_would_not_end_in_time(
    quick: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert quick == []
    monkeypatch.setattr(watch_gpu, "watchers", lambda _: ({ALONE: watch_gpu.Nobody()}, {}))
    monkeypatch.setattr(watch_gpu, "MEANT_S", 1.2)
    watch_gpu.run(tmp_path)
    raw = json.loads(lzma.decompress((tmp_path / "watch.samples.json.xz").read_bytes()))
    assert 1 <= len(raw["blocks"]) < watch_gpu.ROUNDS


def test_kernels_are_stamped_one_by_one_less_what_the_stamps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    places = np.array(timers.slot_layout(watch_gpu.CALLS))
    shown_us = np.where(places == "spin", 7.0, np.where(places == "wide", 7.5, 12.0)) + 0.1 * (places == "call")
    taken: list[str] = []

    class Clock:
        def __init__(self, _bench: object, work: GpuCallBatch) -> None:
            assert (work.state, work.calls, work.operations) == ("warm", watch_gpu.CALLS, 1)

        def take(self) -> None:
            taken.append("batch")

    calibration = SimpleNamespace(reference_us={"spin warm": 5.0, "wide warm": 5.5})
    slots = SimpleNamespace(read=lambda count: StampPairs(1e3 * shown_us[:count], None))
    monkeypatch.setattr(device, "gpu_timing_device", lambda _: SimpleNamespace(slots=slots, calibration=calibration))
    monkeypatch.setattr(timers, "calibrate_device", lambda _: None)
    monkeypatch.setattr(timers, "GraphTimer", Clock)
    torch = ModuleType("torch")
    torch.__dict__.update(
        manual_seed=lambda _: None,
        randn=lambda *_, device: device,
        softmax=lambda *_: taken.append("call"),
        cuda=SimpleNamespace(synchronize=lambda: taken.append("wait")),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    subject = watch_gpu.Softmax()
    assert subject.kernels_us() == pytest.approx(np.full(watch_gpu.CALLS, 10.1))
    taken.clear()
    assert len(subject.calls_us(3)) == 3
    assert taken == ["call", "wait"] * 3


def test_what_does_not_follow_from_what_was_kept_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch_gpu.keep(tmp_path, kept({}), {"gpu": "none"})
    watch_gpu.verified(tmp_path)
    (tmp_path / "watch.samples.json.xz").write_bytes(lzma.compress(json.dumps(kept({}, rounds=4)).encode()))
    with pytest.raises(SystemExit):
        watch_gpu.verified(tmp_path)
    assert "does not follow" in capsys.readouterr().err


def test_all_rounds_fit_the_time() -> None:
    starts_s = 3 * 1.0 + 3 * watch_gpu.REST_S
    round_s = starts_s + 6 * (watch_gpu.SETTLE_S + watch_gpu.WARM_S + watch_gpu.BLOCK_S)
    assert 15 + 8 * round_s < watch_gpu.MEANT_S < watch_gpu.MOST_S <= 200


def test_the_cpu_time_of_a_process_is_counted() -> None:
    assert watch_gpu.cpu_time_s(None) is None
    busy = "import time\nwhile time.process_time() < 0.2: pass\nprint(1, flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used_s = watch_gpu.cpu_time_s(process.pid)
        process.kill()
    assert used_s is not None
    assert 0.15 <= used_s <= 2.0


@pytest.mark.skipif(
    not (watch_gpu.RESULTS / "watch.json").exists(), reason="watching has not been measured on a GPU yet"
)
def test_what_was_measured_on_a_gpu_follows_from_its_samples_and_is_in_the_document() -> None:
    document = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    for line in watch_gpu.verified(watch_gpu.RESULTS).splitlines():
        assert line in document
