"""Check whether PyTorch can compute on each GPU: a small allocation and one kernel on every visible one."""

from __future__ import annotations

import json
import sys
from typing import Any

from assay.worker.probes import query_subprocess

ELEMENTS = 1 << 20


def smoke_test_gpus() -> dict[str, Any]:
    """Return the report of a fresh process: ``torch``, its version, and ``gpus``, the result of each by UUID.

    GPUs are numbered as by NVML. ``error`` is present if the process itself failed.
    """
    return query_subprocess("assay.worker.probes.gpu_smoke_test", environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})


def main() -> int:
    """Test every GPU, and print the results as one line of JSON."""
    report: dict[str, Any] = {"torch": None, "cuda": None, "gpus": {}}
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None:
        report |= {"torch": torch.__version__, "cuda": torch.version.cuda}
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        report["gpus"] = dict(_test_gpu(torch, index) for index in range(count))
    print(json.dumps(report))  # noqa: T201 - the reply to the parent
    return 0


def _test_gpu(torch: Any, index: int) -> tuple[str, dict[str, Any]]:
    """Return the UUID of a GPU, and its result."""
    result: dict[str, Any] = {"index": index, "error": None}
    uuid = f"cuda:{index}"
    try:
        properties = torch.cuda.get_device_properties(index)
        uuid = f"GPU-{properties.uuid}"
        result |= {"name": properties.name, "total_mib": properties.total_memory / 2**20}
        numbers = torch.arange(ELEMENTS, device=f"cuda:{index}", dtype=torch.float32)
        total = float((numbers % 2).sum().item())
        if total != ELEMENTS / 2:
            result["error"] = f"it computed {total:g} instead of {ELEMENTS / 2:g}"
        free, _ = torch.cuda.mem_get_info(index)
        result["free_mib"] = free / 2**20
        result["bfloat16"] = bool(properties.major >= 8)
    except RuntimeError as error:
        result["error"] = str(error).strip().splitlines()[0]
    return uuid, result


if __name__ == "__main__":
    sys.exit(main())
