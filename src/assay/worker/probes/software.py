"""Report and check the installed PyTorch, CUDA, cuDNN, Triton and Helion, the visible GPUs and their clocks."""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError
from assay.core.results import make_check
from assay.timing import calibration
from assay.worker.probes import query_subprocess

if TYPE_CHECKING:
    from assay.core.results import Finding

TESTED_PYTORCH = ((2, 11), (2, 13))
"""The first and last version of PyTorch that Assay is tested with."""


def query_software() -> dict[str, Any]:
    """Return what a fresh process reports about torch, CUDA, Triton and Helion."""
    return query_subprocess("assay.worker.probes.software")


def check_software(report: dict[str, Any], *, gpus: int) -> list[Finding]:
    """Evaluate the report: is torch installed, does it see the GPUs, are Triton and Helion installed."""
    if "error" in report:
        return [
            make_check("PyTorch can be imported", "no", str(report["error"]), fix=_INSTALL_COMMAND, topic="software")
        ]
    findings = [_check_torch(report)]
    if report["torch"] is None or gpus == 0:
        return findings
    device_names = report["devices"]
    findings.append(
        make_check(
            "PyTorch sees every GPU that NVML lists",
            "yes" if len(device_names) == gpus else "no",
            f"{len(device_names)} of {gpus}, built for CUDA {report['cuda']}, cuDNN {report['cudnn']}",
            fix=None
            if len(device_names) == gpus
            else "check CUDA_VISIBLE_DEVICES, and that this PyTorch is built for CUDA",
            topic="software",
        )
    )
    findings += _check_clocks(report)
    for name, use in (("triton", "the Triton workloads"), ("helion", "tuning with Helion")):
        is_installed = report[name] is not None
        fix = None if is_installed else f"pip install {name}{'==1.0.0' if name == 'helion' else ''}"
        findings.append(
            make_check(
                f"{name} is installed ({use})", "yes" if is_installed else "no", report[name], fix=fix, topic="software"
            )
        )
    return findings


def _check_clocks(report: dict[str, Any]) -> list[Finding]:
    """Evaluate the GPUs' clocks."""
    broken = [clock["error"] for clock in report["clocks"] if "error" in clock]
    good = [calibration.ClockCalibration.model_validate(clock) for clock in report["clocks"] if "error" not in clock]
    unsure = [make_check("The GPU's clock can be looked at", "unsure", str(reason), topic="clock") for reason in broken]
    return [*calibration.check_clocks(good), *unsure]


_INSTALL_COMMAND = "pip install 'gpu-assay[torch]'"


def _check_torch(report: dict[str, Any]) -> Finding:
    version = report["torch"]
    if version is None:
        return make_check(
            "PyTorch is installed", "no", "only the numpy workloads can run", fix=_INSTALL_COMMAND, topic="software"
        )
    number = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    tested = TESTED_PYTORCH[0] <= number <= TESTED_PYTORCH[1]
    span = " to ".join(".".join(map(str, edge)) for edge in TESTED_PYTORCH)
    return make_check(
        f"PyTorch is a version that Assay is tested with ({span})",
        "yes" if tested else "unsure",
        version,
        fix=None if tested else f"pip install 'torch>={TESTED_PYTORCH[0][0]}.{TESTED_PYTORCH[0][1]}'",
        topic="software",
    )


def _module_version(module: str) -> str | None:
    try:
        version: object = getattr(importlib.import_module(module), "__version__", None)
    except ImportError:
        return None
    return str(version) if version else None


def _read_clock(index: int) -> dict[str, Any]:
    """Return the calibration of a GPU's clock, or why it is impossible."""
    from assay.timing.calibration import calibrate_gpu_clock

    try:
        return calibrate_gpu_clock(index).as_json()
    except (AssayError, RuntimeError) as error:
        return {"error": f"GPU {index}: {error}"}


def main() -> int:
    """Print the report as one line of JSON."""
    report: dict[str, Any] = {
        "torch": _module_version("torch"),
        "cuda": None,
        "cudnn": None,
        "devices": [],
        "clocks": [],
    }
    if report["torch"] is not None:
        import torch

        report["cuda"] = torch.version.cuda
        report["cudnn"] = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        report["devices"] = [torch.cuda.get_device_name(index) for index in range(count)]
        report["clocks"] = [_read_clock(index) for index in range(count)]
    report |= {name: _module_version(name) for name in ("triton", "helion")}
    print(json.dumps(report))  # noqa: T201 - the reply to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main())
