"""Fit the sensor model of a GPU, once for each GPU and driver; it is stored in Assay's home."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError
from assay.joules.sensor_model import load_sensor_model
from assay.worker.probes import query_subprocess

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.machine.model import Gpu


def gpus_without_model(gpus: Iterable[Gpu], driver: str | None) -> list[Gpu]:
    """Return the GPUs whose sensors were not looked at yet."""
    return [gpu for gpu in gpus if load_sensor_model(gpu.uuid, driver or "unknown") is None]


def fit_gpu_sensors(gpu: Gpu) -> str | None:
    """Look at the sensors of a GPU that nobody uses, which takes some seconds; return why that cannot be, or null."""
    answer = query_subprocess("assay.worker.probes.sensors", environment={"CUDA_VISIBLE_DEVICES": gpu.uuid})
    return str(answer["error"]) if "error" in answer else None


def main() -> int:
    """Look at the sensors of the one GPU that is visible, and print how that went, as one line of JSON."""
    from assay.joules.devices import open_device
    from assay.timing.options import LIMIT_S, TIMES, resolve_options

    answer: dict[str, Any] = {}
    try:
        import torch

        if not torch.cuda.is_available():
            answer["error"] = "PyTorch sees no GPU"
        else:
            timing_options = resolve_options(
                device="cuda:0", cache=None, method="auto", precision=0.05, budget_s=3.0, times=TIMES, limit_s=LIMIT_S
            )
            with open_device(timing_options) as setup:
                answer["device"] = setup.model.device
    except (AssayError, ImportError, RuntimeError) as error:
        answer["error"] = str(error).rstrip(".")
    print(json.dumps(answer))  # noqa: T201 - the answer to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main())
