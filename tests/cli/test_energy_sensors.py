"""Sensors are looked at before joules are told by them, once for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assay.cli import energy_build
from assay.experiments.energy.config import EnergyConfig
from assay.experiments.energy.options import options_of
from assay.joules.kept import keep_model
from assay.joules.recorded import ASSUMED
from assay.worker import sensing
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
    options = options_of(config, machine, environment={})
    asked: list[int] = []

    def looked(gpu: Gpu) -> str | None:
        asked.append(gpu.index)
        return "no CUDA" if gpu.index else None

    monkeypatch.setattr(sensing, "look_at", looked)
    (said,) = energy_build.sensed(options, machine) or ()
    assert asked == [0, 1]
    assert "GPU 1" in said
    assert "no CUDA" in said
    for gpu in machine.gpus[:2]:
        keep_model(ASSUMED.model_copy(update={"device": gpu.uuid, "driver": machine.driver or "unknown"}))
    assert energy_build.sensed(options, machine) is None
    assert asked == [0, 1]
    assert "GPU 0" in capsys.readouterr().err
