"""Sensors are looked at before joules are told by them, once for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.cli import energy_run
from assay.experiments.energy.config import EnergyConfig
from assay.experiments.energy.options import build_energy_options
from assay.joules.sensor_model import save_sensor_model
from assay.joules.trial_energy import ASSUMED_SENSOR_MODEL
from assay.worker import probes as sensors
from tests.machines import machine as made

if TYPE_CHECKING:
    import pytest

    from assay.machine.model import Gpu


def test_sensors_that_nobody_has_looked_at_are_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = made(gpus=(0, 0))
    config = EnergyConfig.model_validate(
        {"backend": {"type": "pytorch", "model": "random:llama-tiny", "device_ids": [0, 1]}}
    )
    options = build_energy_options(config, machine, environment={})
    asked: list[int] = []

    def looked(gpu: Gpu) -> str | None:
        asked.append(gpu.index)
        return "no CUDA" if gpu.index else None

    monkeypatch.setattr(sensors, "fit_gpu_sensors", looked)
    (said,) = energy_run.characterize_sensors(options, machine) or ()
    assert asked == [0, 1]
    assert "GPU 1" in said
    assert "no CUDA" in said
    for gpu in machine.gpus[:2]:
        save_sensor_model(
            ASSUMED_SENSOR_MODEL.model_copy(update={"device": gpu.uuid, "driver": machine.driver or "unknown"})
        )
    assert energy_run.characterize_sensors(options, machine) is None
    assert asked == [0, 1]
    assert "GPU 0" in capsys.readouterr().err
