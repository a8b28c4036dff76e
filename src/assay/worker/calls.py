"""Calls of a workload in a plain process, to run under a profiler: ``python -m assay.worker.calls softmax``.

The measured calls are between the CUDA driver's profiler start and stop, which ncu (``--profile-from-start off``)
and nsys (``--capture-range=cudaProfilerApi``) wait for, and each is an NVTX range. Nothing is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import sys
from typing import TYPE_CHECKING

from assay.core.errors import AssayError, BadInput
from assay.monitor.kernel_trace.rows import call_mark
from assay.worker import subjects
from assay.worker.subjects import describe_failure
from assay.workloads import registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def main(arguments: Sequence[str]) -> int:
    """Make the calls; return 0, or print in one sentence why not."""
    parser = argparse.ArgumentParser(prog="python -m assay.worker.calls", description="Call a workload so many times.")
    parser.add_argument("workload", help="softmax, softmax@torch or file.py:function")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--device", default="cpu:0", help="cpu:0 or cuda:0")
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    del sys.argv[1:]  # these are Assay's, and user code may read its own
    try:
        make_calls(options.workload, dict(map(_parse_parameter, options.param)), options)
    except AssayError as error:
        sys.stderr.write(f"assay: {error}\n")
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        sys.stderr.write(f"assay: {options.workload}: {describe_failure(error).reason}\n")
        return 4
    return 0


def make_calls(workload: str, params: dict[str, str], options: argparse.Namespace) -> None:
    """Prepare a workload, call it until it is warm, and make the measured calls."""
    kind = options.device.partition(":")[0]
    subject = registry.resolve_subject(workload, device_kind=kind, explicit=params)
    prepared = subjects.prepare_subject(subject, device=options.device, seed=options.seed)
    for _ in range(1 + options.warmup):
        prepared.call()
    prepared.synchronize()
    with _capture_range(on_gpu=kind == "cuda"):
        for number in range(options.calls):
            with _nvtx_range(call_mark(number), on_gpu=kind == "cuda"):
                prepared.call()
        prepared.synchronize()
    prepared.close()


@contextlib.contextmanager
def _capture_range(*, on_gpu: bool) -> Iterator[None]:
    """Mark the start and end of the range for a profiler that waits for it."""
    driver = None
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1") if on_gpu else None
    if driver is not None:
        driver.cuProfilerStart()
    try:
        yield
    finally:
        if driver is not None:
            driver.cuCtxSynchronize()
            driver.cuProfilerStop()


@contextlib.contextmanager
def _nvtx_range(name: str, *, on_gpu: bool) -> Iterator[None]:
    """Enclose the block in an NVTX range, where PyTorch supports them."""
    torch = sys.modules.get("torch")
    if torch is None or not on_gpu or not torch.cuda.is_available():
        yield
        return
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


def _parse_parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadInput(f"A parameter is written NAME=VALUE, not {text!r}.")
    return name, value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
