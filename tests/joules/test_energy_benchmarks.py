"""The benchmarks of energy: what they publish follows from what they keep, and they end in time."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from benchmarks import energy_gpu, joules
from benchmarks.energy_gpu_tables import average_j, differences_j, long_run_j, table
from tests.joules.gpu_world import GpuRig, opened_gpu
from tests.joules.trials import installed, model_of
from tests.joules.world import Kernel, hopper_like

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def kept() -> tuple[dict[str, Any], float]:
    """A short benchmark of a kernel of known joules on virtual time, and these joules."""
    model = model_of("Hopper")
    with opened_gpu(hopper_like(61.0), seed=4) as (world, meter), pytest.MonkeyPatch.context() as patch:
        kernel = Kernel(world, ((0.0002, 450.0),))
        patch.setattr(energy_gpu, "STEPS", ("energy", "simple", "long", "energy"))
        patch.setattr(energy_gpu, "LONG_S", 5.0)
        with installed(GpuRig(world, meter, model)):
            return energy_gpu.one_kernel(kernel, "cpu", lambda: 100.0), kernel.joules


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


def test_the_gpu_table_follows_from_what_was_kept(
    kept: tuple[dict[str, Any], float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = {"kernels": {"virtual": kept[0]}, "took_s": 1.0}
    energy_gpu.keep(tmp_path, raw, {"gpu": "none"})
    told = energy_gpu.verified(tmp_path)
    assert "| virtual | 200 µs | 8" in told
    assert "2 of 2" in told
    published = json.loads((tmp_path / "energy.json").read_text(encoding="utf-8"))
    assert published["table"] == told
    (tmp_path / "energy.samples.json.xz").write_bytes(lzma.compress(json.dumps({"kernels": {}}).encode()))
    with pytest.raises(SystemExit):
        energy_gpu.verified(tmp_path)
    assert "does not follow" in capsys.readouterr().err


def test_steps_that_there_is_no_time_for_are_skipped_and_named() -> None:
    kept = energy_gpu.one_kernel(lambda: None, "cpu", lambda: 0.0)
    assert kept["order"] == []
    assert len(kept["skipped"]) == len(energy_gpu.STEPS)
    assert "Skipped for want of time: kernel: energy" in table({"kernels": {"kernel": kept}})


def test_ten_tries_five_simple_runs_and_a_long_one_fit_the_time() -> None:
    steps = energy_gpu.STEPS
    assert (steps.count("energy"), steps.count("simple"), steps.count("long")) == (10, 5, 1)
    usual_s = 10 * 2.7 + 5 * 3.8 + 12.5
    assert 3 * usual_s < energy_gpu.MEANT_S < energy_gpu.MOST_S < 240


def test_the_table_of_simulated_sensors_follows_from_the_kept_outcomes() -> None:
    kept = json.loads(joules.RESULTS.read_text(encoding="utf-8"))
    assert sum(map(len, kept["outcomes"].values())) == len(joules.asked())
    document = (ROOT / "docs/joules.md").read_text(encoding="utf-8")
    for line in joules.table(kept).splitlines():
        assert line in document
    for key, rows in kept["outcomes"].items():
        seeds = [seed for sensor, about, which, seed in joules.asked() if f"{sensor} | {about} | {which}" == key]
        assert [row[0] for row in rows] == seeds
