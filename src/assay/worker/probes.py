"""Probes: questions that a fresh process answers, as the imports they need are slow and may crash.

``python -m assay.worker.probes NAME`` reads a request as JSON from its standard input, and prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError, BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydantic import JsonValue

    from assay.core.results import Finding
    from assay.core.values import Params
    from assay.machine.model import Gpu

QUERY_TIMEOUT_S = 120.0
SMOKE_TEST_ELEMENTS = 1 << 20
TESTED_PYTORCH = ((2, 11), (2, 13))
"""The first and last version of PyTorch that Assay is tested with."""
_INSTALL_COMMAND = "pip install 'gpu-assay[torch]'"


def query_subprocess(
    probe: str, request: JsonValue = None, *, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the reply of a probe to a request; ``error``: why there is none.

    Args:
        probe: Its name in `PROBES`.
        request: Plain data.
        environment: Variables to add to this process's environment.
    """
    try:
        result = subprocess.run(
            [sys.executable, "-P", "-m", "assay.worker.probes", probe],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=False,
            env={**os.environ, "PYTHONWARNINGS": "ignore", **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {QUERY_TIMEOUT_S:g} s"}
    lines = result.stdout.strip().splitlines()
    if result.returncode != 0 or not lines:
        last = result.stderr.strip().splitlines()
        return {"error": last[-1] if last else f"the process ended with {result.returncode}"}
    try:
        reply: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        return {"error": f"invalid reply {lines[-1][:80]!r}"}
    return reply


def check_generate_kwargs(settings: Mapping[str, Any]) -> str | None:
    """Return why transformers rejects the settings of a generation; null: it accepts them, or could not be asked."""
    refused = query_subprocess("generate_kwargs", dict(settings)).get("refused")
    return None if refused is None else str(refused)


def validate_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply on settings of a generation: ``refused``, if they are invalid."""
    from assay.workloads.generation.params import check_supported_settings

    try:
        check_supported_settings(settings)
    except BadInput as error:
        return {"refused": str(error)}
    except AssayError as error:
        return {"error": str(error)}
    return {}


def query_model_fit(params: Params, device: str, uuids: Sequence[str] = ()) -> dict[str, Any]:
    """Return the predicted memory of a generation on a device, among these GPUs, without loading weights.

    It is ``sizes`` (of the model), ``needs_bytes`` (with this batch), ``weights_bytes`` by place, and ``notes``; or
    ``refused``, why it is impossible; or ``error``, why nothing is known.
    """
    request: dict[str, Any] = {"params": params, "device": device}
    return query_subprocess("model_fit", request, environment={"CUDA_VISIBLE_DEVICES": ",".join(uuids)})


def _predict_model_fit(request: Mapping[str, Any]) -> dict[str, Any]:
    from assay.workloads.generation.loading import load_empty_model, plan_for_free_memory
    from assay.workloads.generation.params import Generation

    generation = Generation.model_validate(request["params"])
    try:
        empty, sizes, visible = load_empty_model(generation, request["device"])
        # With tensor parallelism, ranks share every part, and there is nothing to place.
        plan = None if generation.tp_plan else plan_for_free_memory(generation, empty, sizes, visible)
    except AssayError as error:
        return {"refused": str(error), "exit_code": error.exit_code}
    return {
        "sizes": sizes.as_json(),
        "needs_bytes": sizes.needs_bytes(generation.batch, generation.input_tokens, generation.output_tokens),
        "weights_bytes": None if plan is None else plan.weights_bytes,
        "notes": [] if plan is None else [note.message for note in plan.notes],
    }


def gpus_without_model(gpus: Iterable[Gpu], driver: str | None) -> list[Gpu]:
    """Return the GPUs that have no sensor model yet."""
    from assay.joules.sensor_model import load_sensor_model

    return [gpu for gpu in gpus if load_sensor_model(gpu.uuid, driver or "unknown") is None]


def fit_gpu_sensors(gpu: Gpu) -> str | None:
    """Fit and store the sensor model of an idle GPU, which takes some seconds; return why it is impossible, or null."""
    reply = query_subprocess("sensors", environment={"CUDA_VISIBLE_DEVICES": gpu.uuid})
    return str(reply["error"]) if "error" in reply else None


def _fit_visible_gpu(_request: None) -> dict[str, Any]:
    from assay.joules.devices import open_device
    from assay.timing.options import LIMIT_S, TIMES, resolve_options

    try:
        import torch

        if not torch.cuda.is_available():
            return {"error": "PyTorch sees no GPU"}
        timing_options = resolve_options(
            device="cuda:0", cache=None, method="auto", precision=0.05, budget_s=3.0, times=TIMES, limit_s=LIMIT_S
        )
        with open_device(timing_options) as setup:
            return {"device": setup.model.device}
    except (AssayError, ImportError, RuntimeError) as error:
        return {"error": str(error).rstrip(".")}


def smoke_test_gpus() -> dict[str, Any]:
    """Return whether PyTorch can compute on each GPU: ``torch``, its version, and ``gpus``, the results by UUID.

    GPUs are numbered as by NVML. ``error`` is present if the process itself failed.
    """
    return query_subprocess("gpu_smoke_test", environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})


def _smoke_test_visible_gpus(_request: None) -> dict[str, Any]:
    """Make a small allocation and run one kernel on every visible GPU."""
    try:
        import torch
    except ImportError:
        return {"torch": None, "cuda": None, "gpus": {}}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = dict(_smoke_test_gpu(torch, index) for index in range(count))
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus}


def _smoke_test_gpu(torch: Any, index: int) -> tuple[str, dict[str, Any]]:
    """Return the UUID of a GPU, and its result."""
    result: dict[str, Any] = {"index": index, "error": None}
    uuid = f"cuda:{index}"
    try:
        properties = torch.cuda.get_device_properties(index)
        uuid = f"GPU-{properties.uuid}"
        result |= {"name": properties.name, "total_mib": properties.total_memory / 2**20}
        numbers = torch.arange(SMOKE_TEST_ELEMENTS, device=f"cuda:{index}", dtype=torch.float32)
        total = float((numbers % 2).sum().item())
        if total != SMOKE_TEST_ELEMENTS / 2:
            result["error"] = f"it computed {total:g} instead of {SMOKE_TEST_ELEMENTS / 2:g}"
        free, _ = torch.cuda.mem_get_info(index)
        result |= {"free_mib": free / 2**20, "bfloat16": bool(properties.major >= 8)}
    except RuntimeError as error:
        result["error"] = str(error).strip().splitlines()[0]
    return uuid, result


def query_software() -> dict[str, Any]:
    """Return what a fresh process reports about torch, CUDA, Triton, Helion, the visible GPUs and their clocks."""
    return query_subprocess("software")


def _report_software(_request: None) -> dict[str, Any]:
    names = ("torch", "triton", "helion")
    report: dict[str, Any] = {"cuda": None, "cudnn": None, "devices": [], "clocks": []}
    report |= {name: _module_version(name) for name in names}
    if report["torch"] is not None:
        import torch

        report["cuda"] = torch.version.cuda
        report["cudnn"] = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        report["devices"] = [torch.cuda.get_device_name(index) for index in range(count)]
        report["clocks"] = [_read_clock(index) for index in range(count)]
    return report


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


def check_software(report: dict[str, Any], *, gpus: int) -> list[Finding]:
    """Evaluate the report: is torch installed, does it see the GPUs, are Triton and Helion installed."""
    if "error" in report:
        return [_check("PyTorch can be imported", "no", str(report["error"]), _INSTALL_COMMAND)]
    findings = [_check_torch(report["torch"])]
    if report["torch"] is None or gpus == 0:
        return findings
    sees_all = len(report["devices"]) == gpus
    findings.append(
        _check(
            "PyTorch sees every GPU that NVML lists",
            "yes" if sees_all else "no",
            f"{len(report['devices'])} of {gpus}, built for CUDA {report['cuda']}, cuDNN {report['cudnn']}",
            None if sees_all else "check CUDA_VISIBLE_DEVICES, and that this PyTorch is built for CUDA",
        )
    )
    findings += _check_clocks(report["clocks"])
    for name, use, package in (
        ("triton", "the Triton workloads", "triton"),
        ("helion", "tuning with Helion", "helion==1.0.0"),
    ):
        fix = f"pip install {package}" if report[name] is None else None
        findings.append(_check(f"{name} is installed ({use})", "no" if fix else "yes", report[name], fix))
    return findings


def _check_clocks(clocks: list[dict[str, Any]]) -> list[Finding]:
    """Evaluate the GPUs' clocks."""
    from assay.timing.calibration import ClockCalibration, check_clocks

    good = [ClockCalibration.model_validate(clock) for clock in clocks if "error" not in clock]
    reasons = [str(clock["error"]) for clock in clocks if "error" in clock]
    return [
        *check_clocks(good),
        *(_check("The GPU's clock can be looked at", "unsure", reason, topic="clock") for reason in reasons),
    ]


def _check_torch(version: str | None) -> Finding:
    if version is None:
        return _check("PyTorch is installed", "no", "only the numpy workloads can run", _INSTALL_COMMAND)
    number = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    tested = TESTED_PYTORCH[0] <= number <= TESTED_PYTORCH[1]
    oldest, newest = (".".join(map(str, edge)) for edge in TESTED_PYTORCH)
    claim = f"PyTorch is a version that Assay is tested with ({oldest} to {newest})"
    return _check(claim, "yes" if tested else "unsure", version, None if tested else f"pip install 'torch>={oldest}'")


def _check(claim: str, verdict: Any, reason: str | None, fix: str | None = None, topic: str = "software") -> Finding:
    from assay.core.results import make_check

    return make_check(claim, verdict, reason, fix=fix, topic=topic)


PROBES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "generate_kwargs": validate_settings,
    "model_fit": _predict_model_fit,
    "sensors": _fit_visible_gpu,
    "gpu_smoke_test": _smoke_test_visible_gpus,
    "software": _report_software,
}


def main(name: str) -> int:
    """Answer the request on standard input with one line of JSON."""
    print(json.dumps(PROBES[name](json.load(sys.stdin))))  # noqa: T201 - the reply to the parent
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
