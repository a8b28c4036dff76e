"""Energy of a processor by its own counters (RAPL): they wrap, may be closed to us, or not there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import MachineCannot
from assay.joules.devices import CpuEnergyDevice
from assay.joules.measure import energy
from assay.joules.readings import RaplMeter
from tests.joules.trials import installed
from tests.joules.world import NS, VirtualSampling, VirtualTime

if TYPE_CHECKING:
    from pathlib import Path

    from assay.joules.readings import ReadingSampler

RANGE_UJ = 262_143_328_850
DOMAINS = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "psys"}


class Processor(VirtualTime):
    """A processor whose counters tick every millisecond of virtual time, and wrap."""

    def __init__(self, root: Path, start_uj: int = 5_000_000) -> None:
        super().__init__(10 * NS, (0.00002, 0.00005))
        self._folder = root / "sys/class/powercap"
        self._start_uj = start_uj
        self._spent_uj = 0.0
        self._until_ns = self._now_ns
        self.idle_w, self.watts = 20.0, 20.0
        for folder, name in DOMAINS.items():
            (self._folder / folder).mkdir(parents=True)
            (self._folder / folder / "name").write_text(name)
            (self._folder / folder / "max_energy_range_uj").write_text(str(RANGE_UJ))
            (self._folder / folder / "energy_uj").write_text(f"{start_uj:>20}")
        self._files = {f: os.open(self._folder / f / "energy_uj", os.O_WRONLY) for f in DOMAINS}
        self._write()

    def now_ns(self) -> int:
        now_ns = super().now_ns()
        if not self.samplings:  # whoever looks at the clock lets a little time pass, as on a real one
            self._now_ns += 20_000
            self.look_now()
        return now_ns

    def sleep(self, seconds: float) -> None:
        self.draw(self.idle_w)
        super().sleep(seconds)

    def draw(self, watts: float) -> None:
        self._count()
        self.watts = watts

    def _count(self) -> None:
        self._spent_uj += self.watts * (self._now_ns - self._until_ns) / 1e3
        self._until_ns = self._now_ns

    def look_now(self) -> None:
        self._count()
        self._write()

    def _write(self) -> None:
        since_tick_ns = self._now_ns % 1_000_000
        shown = self._spent_uj - self.watts * since_tick_ns / 1e3
        for folder, share in {"intel-rapl:0": 0.8, "intel-rapl:0:0": 0.5, "intel-rapl:0:1": 0.2}.items():
            counted = int(self._start_uj + share * max(0.0, shown)) % RANGE_UJ
            os.pwrite(self._files[folder], f"{counted:>20}".encode(), 0)


class VirtualCpuRig(CpuEnergyDevice):
    """The processor's rig, read as virtual time passes."""

    def sampler(self) -> ReadingSampler:
        return VirtualSampling(self.clock, self._meter, 0.01)  # type: ignore[arg-type]


@pytest.mark.parametrize("start_uj", [5_000_000, RANGE_UJ - 20_000_000])
def test_energy_on_a_cpu_counts_package_and_memory_once_across_a_wrap(tmp_path: Path, start_uj: int) -> None:
    processor = Processor(tmp_path, start_uj)

    def work() -> None:
        processor.draw(70.0)
        processor.pass_ns(2_000_000)

    rig = VirtualCpuRig(tmp_path, processor)
    assert rig.model.counter is not None
    assert rig.model.counter.period_s == pytest.approx(0.001, rel=0.2)
    with installed(rig):
        found = energy(work, device="cpu", budget_s=2.0, seed=1)
    assert found.joules.value == pytest.approx(70.0 * 0.002, rel=0.02)
    assert found.idle_w == pytest.approx(20.0, rel=0.05)
    assert found.device == "cpu"
    assert found.crosscheck is None
    assert any("package-0, package-0/dram" in note for note in found.notes)


def test_a_machine_without_the_counters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineCannot, match="shows no energy counter of its processor"):
        RaplMeter(tmp_path, VirtualTime(0, (0.0, 0.0)))


def test_counters_that_may_not_be_read_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sys/class/powercap/intel-rapl:0"
    (folder / "energy_uj").mkdir(parents=True)  # not even root reads a folder as a number
    (folder / "name").write_text("package-0")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(MachineCannot, match=r"only be read by root here; allow it: sudo chmod a\+r"):
        RaplMeter(tmp_path, VirtualTime(0, (0.0, 0.0)))
    monkeypatch.setattr(os, "access", lambda *_: True)
    with pytest.raises(MachineCannot, match="do not answer"):
        RaplMeter(tmp_path, VirtualTime(0, (0.0, 0.0)))


def test_a_counter_that_vanishes_is_no_reading(tmp_path: Path) -> None:
    Processor(tmp_path)
    meter = RaplMeter(tmp_path, VirtualTime(0, (0.0, 0.0)))
    assert meter.read() is not None
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    assert meter.read() is None
