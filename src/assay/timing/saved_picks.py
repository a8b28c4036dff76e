"""Saved picks: the best configuration of a workload for a shape, on a GPU model under a driver.

Public as ``assay.picks``: ``save`` after a pick, ``lookup`` before the next run.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from assay.core import files
from assay.core.errors import BadInput
from assay.core.files import home_folder, read_sealed_json, write_sealed_json
from assay.core.values import Params, Value, content_id, first_problem
from assay.timing.results import Pick

if TYPE_CHECKING:
    from pathlib import Path


class PickKey(Value):
    """What a pick is valid for: a workload, its shape, the GPU model (or the CPU) and the driver."""

    workload: str = Field(min_length=1)
    shape: Params = Field(default_factory=dict)
    gpu: str
    driver: str


class SavedPick(Value):
    """A pick as it is stored."""

    key: PickKey
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
) -> SavedPick:
    """Save a pick, replacing one with the same key; ``gpu`` and ``driver`` default to those it was made on."""
    if not isinstance(pick, Pick):
        raise BadInput(f"What is kept is the result of assay.pick, not {type(pick).__name__}.")
    key = _pick_key(workload, shape, gpu, driver, pick.device)
    saved = SavedPick(
        key=key,
        winner=pick.winner,
        config=pick.config,
        time_us=pick.time_us,
        probability=pick.probability,
        expected_regret=pick.expected_regret,
        tolerance=pick.tolerance,
        candidates=len(pick.ranking),
        saved_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    path = _pick_path(key)
    path.parent.mkdir(exist_ok=True)
    write_sealed_json(path, saved.as_json())
    return saved


def lookup(
    workload: str,
    shape: Params | None = None,
    *,
    gpu: str | None = None,
    driver: str | None = None,
    device: str | None = None,
) -> SavedPick | None:
    """Return the pick saved under a key; null where there is none. ``device`` is a local one: cpu, cuda:1."""
    path = _pick_path(_pick_key(workload, shape, gpu, driver, device))
    return _read_pick(path) if path.exists() else None


def forget(
    workload: str,
    shape: Params | None = None,
    *,
    gpu: str | None = None,
    driver: str | None = None,
    device: str | None = None,
) -> bool:
    """Remove the pick saved under a key; return whether there was one."""
    path = _pick_path(_pick_key(workload, shape, gpu, driver, device))
    if not path.exists():
        return False
    files.remove_file(path)
    return True


def list_all() -> list[SavedPick]:
    """Return all saved picks, the newest first."""
    picks = [_read_pick(path) for path in (home_folder() / "picks").glob("*.json")]
    return sorted(picks, key=lambda saved: saved.saved_at, reverse=True)


def _pick_key(
    workload: str, shape: Params | None, gpu: str | None, driver: str | None, device: str | None = None
) -> PickKey:
    here_gpu, here_driver = ("", "") if gpu is not None and driver is not None else _local_gpu(device)
    try:
        if not isinstance(shape or {}, dict):
            raise BadInput(f"A shape is given by names, such as {{'m': 512}}, not as {type(shape).__name__}.")
        return PickKey(workload=workload, shape=dict(shape or {}), gpu=gpu or here_gpu, driver=driver or here_driver)
    except ValidationError as error:
        raise BadInput(
            f"That is no place for a pick, whose shape holds numbers and words: {first_problem(error)}."
        ) from None


def _local_gpu(device: str | None) -> tuple[str, str]:
    """Return the name and driver of a local GPU, the first by default, or the CPU's core count and "none"."""
    from assay.machine.detect import detect

    machine = detect()
    number = int((device or "cuda:0").partition(":")[2] or 0)
    if device != "cpu" and number < len(machine.gpus):
        return machine.gpus[number].name, machine.driver or "unknown"
    return f"cpu, {len(machine.cores)} cores", "none"


def _pick_path(key: PickKey) -> Path:
    return home_folder() / "picks" / f"{content_id(key, length=16)}.json"


def _read_pick(path: Path) -> SavedPick:
    try:
        return SavedPick.model_validate_json(read_sealed_json(path))
    except ValidationError as error:
        raise BadInput(f"{path} is not a pick that Assay kept: {first_problem(error)}. Remove it.") from None
    except BadInput as error:
        raise type(error)(f"{str(error).rstrip('.')}. Remove it.") from None
