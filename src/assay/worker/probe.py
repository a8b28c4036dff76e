"""What PyTorch and its kin say of themselves, asked in a process of its own: importing them is slow and may crash."""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

from assay.core.checks import check
from assay.core.errors import AssayError
from assay.timing import calibration
from assay.worker.asking import answer_of

if TYPE_CHECKING:
    from assay.core.results import Finding

PYTORCH = ((2, 11), (2, 13))
"""The versions of PyTorch that Assay is tested with, first and last."""


def ask() -> dict[str, Any]:
    """Return what a fresh process finds out about torch, CUDA, Triton and Helion."""
    return answer_of("assay.worker.probe")


def checks(said: dict[str, Any], *, gpus: int) -> list[Finding]:
    """Judge what the probe said: is torch there, does it see the GPUs, are Triton and Helion of use."""
    if "error" in said:
        return [check("PyTorch can be imported", "no", str(said["error"]), fix=_INSTALL, topic="software")]
    findings = [_torch(said)]
    if said["torch"] is None or gpus == 0:
        return findings
    device_names = said["devices"]
    findings.append(
        check(
            "PyTorch sees every GPU that NVML lists",
            "yes" if len(device_names) == gpus else "no",
            f"{len(device_names)} of {gpus}, built for CUDA {said['cuda']}, cuDNN {said['cudnn']}",
            fix=None
            if len(device_names) == gpus
            else "check CUDA_VISIBLE_DEVICES, and that this PyTorch is built for CUDA",
            topic="software",
        )
    )
    findings += _clocks(said)
    for name, use in (("triton", "the Triton workloads"), ("helion", "tuning with Helion")):
        is_installed = said[name] is not None
        fix = None if is_installed else f"pip install {name}{'==1.0.0' if name == 'helion' else ''}"
        findings.append(
            check(
                f"{name} is installed ({use})", "yes" if is_installed else "no", said[name], fix=fix, topic="software"
            )
        )
    return findings


def _clocks(said: dict[str, Any]) -> list[Finding]:
    """Judge the GPUs' clocks."""
    broken = [clock["error"] for clock in said["clocks"] if "error" in clock]
    good = [calibration.Calibration.model_validate(clock) for clock in said["clocks"] if "error" not in clock]
    unsure = [check("The GPU's clock can be looked at", "unsure", str(reason), topic="clock") for reason in broken]
    return [*calibration.checks(good), *unsure]


_INSTALL = "pip install 'gpu-assay[torch]'"


def _torch(said: dict[str, Any]) -> Finding:
    version = said["torch"]
    if version is None:
        return check("PyTorch is installed", "no", "only the numpy workloads can run", fix=_INSTALL, topic="software")
    number = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    tested = PYTORCH[0] <= number <= PYTORCH[1]
    span = " to ".join(".".join(map(str, edge)) for edge in PYTORCH)
    return check(
        f"PyTorch is a version that Assay is tested with ({span})",
        "yes" if tested else "unsure",
        version,
        fix=None if tested else f"pip install 'torch>={PYTORCH[0][0]}.{PYTORCH[0][1]}'",
        topic="software",
    )


def _version(module: str) -> str | None:
    try:
        version: object = getattr(importlib.import_module(module), "__version__", None)
    except ImportError:
        return None
    return str(version) if version else None


def _clock(index: int) -> dict[str, Any]:
    """Return what a GPU's clock shows of itself, or why it cannot be looked at."""
    from assay.timing.calibration import of_gpu

    try:
        return of_gpu(index).as_json()
    except (AssayError, RuntimeError) as error:
        return {"error": f"GPU {index}: {error}"}


def main() -> int:
    """Print what can be found out, as one line of JSON."""
    report: dict[str, Any] = {"torch": _version("torch"), "cuda": None, "cudnn": None, "devices": [], "clocks": []}
    if report["torch"] is not None:
        import torch

        report["cuda"] = torch.version.cuda
        report["cudnn"] = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        report["devices"] = [torch.cuda.get_device_name(index) for index in range(count)]
        report["clocks"] = [_clock(index) for index in range(count)]
    report |= {name: _version(name) for name in ("triton", "helion")}
    print(json.dumps(report))  # noqa: T201 - the answer to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main())
