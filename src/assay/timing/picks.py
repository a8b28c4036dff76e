"""Picks that are kept: the best configuration of a workload for a shape, on a kind of GPU under a driver.

Public as ``assay.picks``: ``save`` after a pick, ``lookup`` before the next run.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from assay.core import durable
from assay.core.errors import BadInput
from assay.core.home import home
from assay.core.seals import read_sealed, write_sealed
from assay.core.values import Params, Value, first_problem, identity
from assay.timing.values import Pick

if TYPE_CHECKING:
    from pathlib import Path


class Place(Value):
    """What a pick holds for: a workload, its shape, the kind of GPU (or the CPU) and the driver."""

    workload: str = Field(min_length=1)
    shape: Params = Field(default_factory=dict)
    gpu: str
    driver: str


class Saved(Value):
    """A pick as it is kept."""

    place: Place
    winner: str
    config: Params | None
    time_us: float
    probability: float
    expected_regret: float
    tolerance: float
    candidates: int
    saved_at: str


def save(
    pick: Pick, workload: str, shape: Params | None = None, *, gpu: str | None = None, driver: str | None = None
) -> Saved:
    """Keep a pick; one for the same place is replaced. Without ``gpu`` and ``driver``, those it was made on."""
    if not isinstance(pick, Pick):
        raise BadInput(f"What is kept is the result of assay.pick, not {type(pick).__name__}.")
    key = _place(workload, shape, gpu, driver, pick.device)
    saved = Saved(
        place=key,
        winner=pick.winner,
        config=pick.config,
        time_us=pick.time_us,
        probability=pick.probability,
        expected_regret=pick.expected_regret,
        tolerance=pick.tolerance,
        candidates=len(pick.ranking),
        saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    path = _path(key)
    path.parent.mkdir(exist_ok=True)
    write_sealed(path, saved.as_json())
    return saved


def lookup(
    workload: str,
    shape: Params | None = None,
    *,
    gpu: str | None = None,
    driver: str | None = None,
    device: str | None = None,
) -> Saved | None:
    """Return the pick kept for a place; null where there is none. ``device`` is one of this machine: cpu, cuda:1."""
    path = _path(_place(workload, shape, gpu, driver, device))
    return _read(path) if path.exists() else None


def forget(
    workload: str,
    shape: Params | None = None,
    *,
    gpu: str | None = None,
    driver: str | None = None,
    device: str | None = None,
) -> bool:
    """Remove the pick kept for a place; return whether there was one."""
    path = _path(_place(workload, shape, gpu, driver, device))
    if not path.exists():
        return False
    durable.remove(path)
    return True


def everything() -> list[Saved]:
    """Return all picks that are kept, the newest first."""
    picks = [_read(path) for path in (home() / "picks").glob("*.json")]
    return sorted(picks, key=lambda saved: saved.saved_at, reverse=True)


def _place(
    workload: str, shape: Params | None, gpu: str | None, driver: str | None, device: str | None = None
) -> Place:
    here_gpu, here_driver = ("", "") if gpu is not None and driver is not None else _here(device)
    try:
        if not isinstance(shape or {}, dict):
            raise BadInput(f"A shape is given by names, such as {{'m': 512}}, not as {type(shape).__name__}.")
        return Place(workload=workload, shape=dict(shape or {}), gpu=gpu or here_gpu, driver=driver or here_driver)
    except ValidationError as error:
        raise BadInput(
            f"That is no place for a pick, whose shape holds numbers and words: {first_problem(error)}."
        ) from None


def _here(device: str | None) -> tuple[str, str]:
    """Return the name of a GPU of this machine and its driver, the first without a device; or its CPU's cores."""
    from assay.machine.detect import detect

    machine = detect()
    number = int((device or "cuda:0").partition(":")[2] or 0)
    if device != "cpu" and number < len(machine.gpus):
        return machine.gpus[number].name, machine.driver or "unknown"
    return f"cpu, {len(machine.cores)} cores", "none"


def _path(place: Place) -> Path:
    return home() / "picks" / f"{identity(place, length=16)}.json"


def _read(path: Path) -> Saved:
    try:
        return Saved.model_validate_json(read_sealed(path))
    except ValidationError as error:
        raise BadInput(f"{path} is not a pick that Assay kept: {first_problem(error)}. Remove it.") from None
    except BadInput as error:
        raise type(error)(f"{str(error).rstrip('.')}. Remove it.") from None
