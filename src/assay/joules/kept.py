"""Sensor models in Assay's home: one file for each GPU and driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from assay.core.errors import BadInput
from assay.core.home import home
from assay.core.seals import read_sealed, write_sealed
from assay.joules.model import SensorModel

if TYPE_CHECKING:
    from pathlib import Path


def kept_model(device: str, driver: str) -> SensorModel | None:
    """Return what is known of a device's sensors; null where nothing is, or it is damaged or of another version."""
    try:
        model = SensorModel.model_validate_json(read_sealed(_path(device, driver)))
    except (BadInput, ValidationError):
        return None
    return model if (model.device, model.driver) == (device, driver) else None


def keep_model(model: SensorModel) -> None:
    """Keep what was found."""
    path = _path(model.device, model.driver)
    path.parent.mkdir(exist_ok=True)
    write_sealed(path, model.as_json())


def _path(device: str, driver: str) -> Path:
    name = "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in f"{device}-{driver}")
    return home() / "sensors" / f"{name}.json"
