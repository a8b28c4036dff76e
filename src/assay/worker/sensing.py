"""How the sensors of a GPU see, looked at by a fresh process once for each GPU and driver, and kept in Assay's home."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError
from assay.joules.kept import kept_model
from assay.worker.asking import answer_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from assay.machine.model import Gpu


def unseen(gpus: Iterable[Gpu], driver: str | None) -> list[Gpu]:
    """Return the GPUs whose sensors were not looked at yet."""
    return [gpu for gpu in gpus if kept_model(gpu.uuid, driver or "unknown") is None]


def look_at(gpu: Gpu) -> str | None:
    """Look at the sensors of a GPU that nobody uses, which takes some seconds; return why that cannot be, or null."""
    answer = answer_of("assay.worker.sensing", environment={"CUDA_VISIBLE_DEVICES": gpu.uuid})
    return str(answer["error"]) if "error" in answer else None


def main() -> int:
    """Look at the sensors of the one GPU that is visible, and print how that went, as one line of JSON."""
    from assay.joules.rig import rig
    from assay.timing.options import LIMIT_S, TIMES, options

    answer: dict[str, Any] = {}
    try:
        import torch

        if not torch.cuda.is_available():
            answer["error"] = "PyTorch sees no GPU"
        else:
            timing_options = options(
                device="cuda:0", cache=None, method="auto", precision=0.05, budget_s=3.0, times=TIMES, limit_s=LIMIT_S
            )
            with rig(timing_options) as setup:
                answer["device"] = setup.model.device
    except (AssayError, ImportError, RuntimeError) as error:
        answer["error"] = str(error).rstrip(".")
    print(json.dumps(answer))  # noqa: T201 - the answer to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main())
