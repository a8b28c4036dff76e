"""How a card's sensors see, found out by switching a load on and off; kept, and shown by the doctor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from assay.core.errors import MachineCannot
from assay.joules.sensor_model import (
    CounterModel,
    PowerModel,
    SensorModel,
    check_sensors,
    counter_quantum_j,
    fit_sensor_model,
    load_sensor_model,
    save_sensor_model,
)
from assay.machine.detect import detect
from tests.fakes.fake_nvml import attached, hopper
from tests.joules.world import Kind, coarse, hopper_like, no_counter, no_instant, probed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.plugin import MakeFakeNvml


def test_a_hopper_shows_its_ticks_windows_and_lag() -> None:
    model = probed(hopper_like(37.0))
    assert model.counter is not None
    assert model.counter.period_s == pytest.approx(0.1, rel=0.005)
    assert model.counter.quantum_j == pytest.approx(0.001)
    assert model.counter.lag_s == pytest.approx(0.0, abs=0.004)
    assert 0.003 < model.counter.read_s < 0.02
    assert model.instant is not None
    assert model.instant.period_s == pytest.approx(0.1, rel=0.005)
    assert model.instant.window_s == pytest.approx(0.025, abs=0.002)
    assert model.instant.seen_share == pytest.approx(0.25, abs=0.02)
    assert model.instant.with_counter
    assert model.average is not None
    assert model.average.window_s == pytest.approx(1.0, abs=0.02)
    assert model.usage is None


def test_a_lag_is_found_in_counter_and_power() -> None:
    model = probed(hopper_like(12.0, lag_ms=60.0))
    assert model.counter is not None
    assert model.counter.lag_s == pytest.approx(0.06, abs=0.004)
    assert model.instant is not None
    assert model.instant.lag_s == pytest.approx(0.06, abs=0.004)


def test_an_older_card_ticks_faster_counts_coarsely_and_names_no_power() -> None:
    model = probed(coarse())
    assert model.counter is not None
    assert model.counter.period_s == pytest.approx(0.02, rel=0.005)
    assert model.counter.quantum_j == 1.0
    assert model.usage is not None
    assert model.usage.window_s == pytest.approx(0.01, abs=0.001)
    assert model.instant is None
    assert model.average is None


def test_a_card_without_instant_power_shows_what_its_power_averages() -> None:
    model = probed(no_instant())
    assert model.counter is not None
    assert model.counter.period_s == pytest.approx(0.025, rel=0.005)
    assert model.usage is not None
    assert model.usage.window_s == pytest.approx(1.0, abs=0.02)


def test_a_card_without_a_counter_shows_its_power() -> None:
    model = probed(no_counter())
    assert model.counter is None
    assert model.instant is not None
    assert model.instant.window_s == pytest.approx(0.025, abs=0.002)


def test_a_card_that_shows_nothing_is_refused() -> None:
    bare = hopper()
    mute = Kind(
        replace(
            bare,
            unsupported=("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"),
            unsupported_fields=(83, 185, 186),
        )
    )
    model = probed(mute)
    assert (model.counter, model.instant, model.average, model.usage) == (None, None, None, None)
    assert model.describe() == "it shows neither energy nor power"
    with pytest.raises(MachineCannot, match="neither energy nor power"):
        fit_sensor_model([], [], "GPU-x", "580")


def test_the_quantum_is_what_all_steps_are_multiples_of() -> None:
    import numpy as np

    assert counter_quantum_j(np.array([5.0, 5.0, 11.0, 20.0])) == 3.0
    assert counter_quantum_j(np.array([1.0, 1.0])) == 0.0


def a_model(device: str = "GPU-1", driver: str = "580.00") -> SensorModel:
    counter = CounterModel(period_s=0.1, jitter_s=0.0, quantum_j=0.001, lag_s=0.0, lag_error_s=0.001, read_s=0.012)
    instant = PowerModel(period_s=0.1, window_s=0.025, lag_s=0.0, lag_error_s=0.001, with_counter=True, explained=0.99)
    return SensorModel(device=device, driver=driver, counter=counter, instant=instant)


def test_a_model_is_kept_by_gpu_and_driver() -> None:
    save_sensor_model(a_model())
    assert load_sensor_model("GPU-1", "580.00") == a_model()
    assert load_sensor_model("GPU-1", "590.00") is None
    assert load_sensor_model("GPU-2", "580.00") is None


@pytest.mark.parametrize("content", ["", "{", '{"device": "GPU-1"}', '{"schema_version": 99}'])
def test_a_kept_model_that_cannot_be_read_is_found_out_again(assay_home: Path, content: str) -> None:
    save_sensor_model(a_model())
    (file,) = (assay_home / "sensors").iterdir()
    file.write_text(content, encoding="utf-8")
    assert load_sensor_model("GPU-1", "580.00") is None


def test_a_kept_model_that_was_changed_is_found_out_again(assay_home: Path) -> None:
    save_sensor_model(a_model())
    (file,) = (assay_home / "sensors").iterdir()
    whole = file.read_bytes()
    for damaged in (whole.replace(b'"lag_s": ', b'"lag_s": 1'), whole[:50] + b"\xff" + whole[50:], bytes(len(whole))):
        assert damaged != whole
        file.write_bytes(damaged)
        assert load_sensor_model("GPU-1", "580.00") is None


def test_the_doctor_shows_what_is_known_of_each_gpu(make_fake_nvml: MakeFakeNvml) -> None:
    with attached(make_fake_nvml([hopper(), hopper()])):
        machine = detect()
    save_sensor_model(a_model(machine.gpus[0].uuid, machine.driver or ""))
    known, unknown = check_sensors(machine)
    assert known.verdict == "yes"
    assert known.reason is not None
    assert "ticks every 100 ms" in known.reason
    assert "the mean of 25 ms every 100 ms" in known.reason
    assert unknown.verdict == "unsure"
    assert unknown.facts["topic"] == "gpus"
