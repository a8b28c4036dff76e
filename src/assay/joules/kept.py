"""Sensor models in Assay's home: one file for each GPU and driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core import durable
from assay.core.home import home
from assay.joules.model import SensorModel

if TYPE_CHECKING:
    from pathlib import Path


def kept_model(device: str, driver: str) -> SensorModel | None:
    """Return what is known of a device's sensors; null where nothing is, or it was kept by another version."""
    try:
        model = SensorModel.model_validate_json(_path(device, driver).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
    return model if (model.device, model.driver) == (device, driver) else None


def keep_model(model: SensorModel) -> None:
    """Keep what was found."""
    path = _path(model.device, model.driver)
    path.parent.mkdir(exist_ok=True)
    durable.replace_atomically(path, model.model_dump_json(indent=2).encode())


def _path(device: str, driver: str) -> Path:
    name = "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in f"{device}-{driver}")
    return home() / "sensors" / f"{name}.json"
