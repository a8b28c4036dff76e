"""Results as a job leaves them: a world in which the truth is known, written as `assay threshold run --output` does."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from assay.core.results import Parity
from assay.experiments.threshold import EXPERIMENT
from assay.experiments.threshold.results_file import RESULTS_FILE
from tests.experiments.threshold.crossings import PASSED, World, options, threshold
from tests.machines import machine

if TYPE_CHECKING:
    from pathlib import Path

SIZES = (16, 32, 64, 128, 256, 512)
CONFIG = "# ours\nruntime:\n  sorting_min: 64  # a guess\n  merging_min: 16\n  other: 7\n"
THRESHOLDS = """
thresholds:
  - {name: sorting, reference: a.py:old, fast: a.py:new, axes: {n: [1, 2]}, size: n, key: runtime.sorting_min,
     never: 1000000000}
  - {name: merging, reference: a.py:old, fast: a.py:new, axes: {n: [1, 2]}, size: n, key: runtime.merging_min,
     never: 1000000000}
"""
WRONG = Parity(passed=False, measure="mean error", reason="the mean error is 0.3")


def results(
    *names: str, crossing: float = 90.0, noise: float = 0.03, parity: Parity = PASSED, device: str = "NVIDIA L4"
) -> dict[str, Any]:
    """Return the results of thresholds at which the speed-up is 1.2 at a size, and grows slowly."""
    content: dict[str, Any] = json.loads(_results(names or ("sorting",), crossing, noise, parity))
    content["device_info"]["device_name"] = device
    return content


@cache
def _results(names: tuple[str, ...], crossing: float, noise: float, parity: Parity) -> str:
    wanted = options(*(threshold(SIZES, name=name) for name in names))
    world = World(lambda params, time: 1.2 * (params["n"] / crossing) ** 0.4, noise=noise, parity=lambda params: parity)
    return str(EXPERIMENT.report(machine(), wanted, world.measured(wanted)).files[RESULTS_FILE])


def leave(folder: Path, content: Any, *, code: int = 0) -> Path:
    """Leave results as a job does."""
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "results.json").write_text(json.dumps(content))
    (folder / "exit-code").write_text(f"{code}\n")
    return folder


def journal(folder: Path) -> None:
    """Leave the journal of a machine that was rented for two minutes."""
    lines: list[dict[str, Any]] = [
        {
            "event": "intent",
            "usd_per_hour": 0.8,
            "at_most_usd": 0.4,
            "deadline_at": "2026-11-15T10:00:00Z",
            "gpu": "L4",
        },
        {"event": "requested", "usd_per_hour": 0.8},
        {"event": "created", "number": "sb-1", "usd_per_hour": 0.8},
        {"event": "ended", "number": "sb-1", "at": "2026-11-15T09:32:00Z"},
        {"event": "released", "at": "2026-11-15T09:32:00Z"},
        {"event": "billed", "number": "sb-1", "usd": 0.031},
    ]
    told = [{"at": "2026-11-15T09:30:00Z", "job_id": "0123456789abcdef", "provider": "modal", **line} for line in lines]
    (folder / "rentals.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in told))
