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
    """Return the GPUs that have no sensor model yet."""
    return [gpu for gpu in gpus if load_sensor_model(gpu.uuid, driver or "unknown") is None]


def fit_gpu_sensors(gpu: Gpu) -> str | None:
    """Fit the sensor model of an idle GPU, which takes some seconds; return why it is impossible, or null."""
    reply = query_subprocess("assay.worker.probes.sensors", environment={"CUDA_VISIBLE_DEVICES": gpu.uuid})
    return str(reply["error"]) if "error" in reply else None


def main() -> int:
    """Fit the sensor model of the one visible GPU, and print the result as one line of JSON."""
    from assay.joules.devices import open_device
    from assay.timing.options import LIMIT_S, TIMES, resolve_options

    reply: dict[str, Any] = {}
    try:
        import torch

        if not torch.cuda.is_available():
            reply["error"] = "PyTorch sees no GPU"
        else:
            timing_options = resolve_options(
                device="cuda:0", cache=None, method="auto", precision=0.05, budget_s=3.0, times=TIMES, limit_s=LIMIT_S
            )
            with open_device(timing_options) as setup:
                reply["device"] = setup.model.device
    except (AssayError, ImportError, RuntimeError) as error:
        reply["error"] = str(error).rstrip(".")
    print(json.dumps(reply))  # noqa: T201 - the reply to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main())
