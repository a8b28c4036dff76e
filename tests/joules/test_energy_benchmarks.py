"""The benchmarks of energy: what they publish follows from what they keep, and they end in time."""

from __future__ import annotations

import faulthandler
import json
import lzma
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import clock, energy_gpu, energy_gpu_zeus, joules
from benchmarks.energy_gpu_tables import average_j, differences_j, long_run_j, table, zeus_j
from tests.joules.gpu_world import GpuRig, opened_gpu
from tests.joules.trials import installed, model_of
from tests.joules.world import NS, Kernel, hopper_like

if TYPE_CHECKING:
    from tests.joules.gpu_world import GpuWorld

ROOT = Path(__file__).resolve().parents[2]


class VirtualZeus:
    """Reads the fake's counter as it stands at both ends of a window, having waited for the GPU."""

    def __init__(self, world: GpuWorld, rig: GpuRig) -> None:
        import pynvml

        self._world, self._rig, self._nvml = world, rig, pynvml
        self._begun: dict[str, tuple[float, float]] = {}

    def wait(self, *_: object, **__: object) -> None:
        """Let the GPU finish."""
        self._world.pass_ns(max(0, self._rig.bench.stream.tail_ns - self._world.now_ns()))
        self._world.look_now()

    def begin_window(self, key: str) -> None:
        self.wait()
        self._begun[key] = self._world.now_ns() / NS, self._counted_j()

    def end_window(self, key: str) -> SimpleNamespace:
        self.wait()
        begin_s, before_j = self._begun.pop(key)
        return SimpleNamespace(time=self._world.now_ns() / NS - begin_s, gpu_energy={0: self._counted_j() - before_j})

    def _counted_j(self) -> float:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(0)
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3


@pytest.fixture(scope="module")
def kept() -> tuple[dict[str, Any], float]:
    """A short benchmark of a kernel of known joules on virtual time, and these joules."""
    model = model_of("Hopper")
    with opened_gpu(hopper_like(61.0), seed=4) as (world, meter), pytest.MonkeyPatch.context() as patch:
        kernel = Kernel(world, ((0.0002, 450.0),))
        patch.setattr(energy_gpu, "STEPS", ("energy", "simple", "zeus", "long", "energy"))
        patch.setattr(energy_gpu, "LONG_S", 5.0)
        rig = GpuRig(world, meter, model)
        with installed(rig):
            return energy_gpu.one_kernel(kernel, "cpu", lambda: 100.0, VirtualZeus(world, rig)), kernel.joules


def test_the_long_run_is_the_truth_and_simpler_ways_are_not(kept: tuple[dict[str, Any], float]) -> None:
    raw, true_j = kept
    assert long_run_j(raw["long"][0]) == pytest.approx(true_j, rel=0.01)
    for each in raw["energy"]:
        assert each["result"]["joules"]["value"] == pytest.approx(true_j, rel=0.01)
    differences = differences_j(raw["simple"][0])
    assert max(abs(j / true_j - 1) for j in differences) > 0.3
    average = average_j(raw["simple"][0])
    assert average is not None
    assert average / true_j < 0.9
    windows = zeus_j(raw["zeus"][0])
    assert len(windows) == energy_gpu_zeus.WINDOWS
    assert max(abs(j / true_j - 1) for j in windows) > 0.3


def test_windows_of_zeus_hold_fifty_milliseconds_of_calls_put_as_everywhere_else(
    kept: tuple[dict[str, Any], float],
) -> None:
    raw, _ = kept
    (step,) = raw["zeus"]
    assert step["how"] == raw["long"][0]["how"]
    for window in step["windows"]:
        assert window["calls"] * 0.0002 == pytest.approx(energy_gpu_zeus.WINDOW_S, rel=0.1)
        assert window["s"] == pytest.approx(energy_gpu_zeus.WINDOW_S, rel=0.1)


def test_zeus_itself_reads_the_same_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    energies = pytest.importorskip("zeus.monitor.energy", reason="Zeus is not installed here")
    model = model_of("Hopper")
    with opened_gpu(hopper_like(61.0), seed=4) as (world, meter):
        kernel = Kernel(world, ((0.0002, 450.0),))
        rig = GpuRig(world, meter, model)
        monkeypatch.setattr(energies, "sync_execution_fn", VirtualZeus(world, rig).wait)
        monitor, which = energy_gpu_zeus.zeus_monitor()
        assert monitor is not None, which
        with installed(rig):
            found = zeus_j(energy_gpu.one_zeus(kernel, "cpu", monitor))
    assert min(found) < 0.5 * kernel.joules
    assert max(found) > 1.5 * kernel.joules
    assert sum(found) / len(found) == pytest.approx(kernel.joules, rel=0.4)


def test_a_zeus_that_cannot_be_had_is_named_and_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus", None)
    monitor, why = energy_gpu_zeus.zeus_monitor()
    assert monitor is None
    assert "zeus" in why
    kept = energy_gpu.one_kernel(lambda: None, "cpu", lambda: 0.0, None)
    assert "zeus" not in kept["skipped"]
    told = table({"zeus": why, "zeus_ran": False, "kernels": {"kernel": kept}})
    assert f"Zeus was left out ({why})." in told


def test_the_gpu_table_follows_from_what_was_kept(
    kept: tuple[dict[str, Any], float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = {"zeus": "version 0", "zeus_ran": True, "kernels": {"virtual": kept[0]}, "took_s": 1.0}
    energy_gpu.keep(tmp_path, raw, {"gpu": "none"})
    told = energy_gpu.verified(tmp_path)
    assert re.search(r"\| virtual \| 200 µs \| (89|90)\.\d+ mJ \|", told)
    assert "2 of 2" in told
    assert "Zeus is version 0." in told
    published = json.loads((tmp_path / "energy.json").read_text(encoding="utf-8"))
    assert published["table"] == told
    (tmp_path / "energy.samples.json.xz").write_bytes(lzma.compress(json.dumps({**raw, "kernels": {}}).encode()))
    with pytest.raises(SystemExit):
        energy_gpu.verified(tmp_path)
    assert "does not follow" in capsys.readouterr().err


def test_one_command_measures_keeps_and_tells_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of("Hopper")
    watchdog: list[Any] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *after, **how: watchdog.append((after, how)))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setattr(clock, "fingerprint", lambda: {"gpu": "fake"})
    monkeypatch.setattr(energy_gpu, "DEVICE", "cpu")
    monkeypatch.setattr(energy_gpu, "STEPS", ("energy", "simple", "zeus", "long"))
    monkeypatch.setattr(energy_gpu, "LONG_S", 2.0)
    monkeypatch.setattr(sys, "argv", ["energy_gpu.py", "run", "--to", str(tmp_path)])
    with opened_gpu(hopper_like(61.0), seed=4) as (world, meter):
        rig = GpuRig(world, meter, model)
        kernels = {name: Kernel(world, ((0.0002, watts),)) for name, watts in (("one", 450.0), ("other", 200.0))}
        monkeypatch.setattr(energy_gpu, "functions", lambda _: kernels)
        monkeypatch.setattr(energy_gpu, "zeus_monitor", lambda: (VirtualZeus(world, rig), "version 0"))
        with installed(rig):
            assert energy_gpu.main() == 0
    assert watchdog == [((energy_gpu.MOST_S,), {"exit": True})]
    told = capsys.readouterr().out
    assert "| one | 200 µs | " in told
    assert "| other | 200 µs | " in told
    assert "–" not in told.replace(" – ", " ")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["energy.json", "energy.samples.json.xz"]


def test_steps_that_there_is_no_time_for_are_skipped_and_named() -> None:
    unused: Any = object()
    kept = energy_gpu.one_kernel(lambda: None, "cpu", lambda: 0.0, unused)
    assert kept["order"] == []
    assert len(kept["skipped"]) == len(energy_gpu.STEPS)
    told = table({"zeus": "version 0", "zeus_ran": True, "kernels": {"kernel": kept}})
    assert "Skipped for want of time: kernel: energy" in told


def test_ten_tries_five_simple_runs_a_long_one_and_zeus_fit_the_time() -> None:
    steps = energy_gpu.STEPS
    assert [steps.count(step) for step in ("energy", "simple", "long", "zeus")] == [10, 5, 1, 1]
    looked_s, usual_s = 12.0, 10 * 2.7 + 5 * 3.8 + 12.5 + 6.0
    assert looked_s + 3 * usual_s < energy_gpu.MEANT_S < energy_gpu.MOST_S < 240


def test_the_table_of_simulated_sensors_follows_from_the_kept_outcomes() -> None:
    kept = json.loads(joules.RESULTS.read_text(encoding="utf-8"))
    assert sum(map(len, kept["outcomes"].values())) == len(joules.planned_tasks())
    document = (ROOT / "docs/joules.md").read_text(encoding="utf-8")
    for line in joules.table(kept).splitlines():
        assert line in document
    for key, rows in kept["outcomes"].items():
        seeds = [
            seed for sensor, about, which, seed in joules.planned_tasks() if f"{sensor} | {about} | {which}" == key
        ]
        assert [row[0] for row in rows] == seeds
        if " | windows | " in key:
            assert max(abs(row[1] - 1) for row in rows) <= 0.02
    others = [row for key, rows in kept["outcomes"].items() if " | other windows | " in key for row in rows]
    assert sum(abs(row[1] - 1) > 0.02 for row in others) <= 0.005 * len(others)


@pytest.mark.skipif(not (energy_gpu.RESULTS / "energy.json").exists(), reason="nothing was measured on a GPU yet")
def test_what_was_measured_on_a_gpu_follows_from_its_readings_and_is_in_the_document() -> None:
    document = (ROOT / "docs/joules.md").read_text(encoding="utf-8")
    for line in energy_gpu.verified(energy_gpu.RESULTS).splitlines():
        assert line in document
