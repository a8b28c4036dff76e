"""A process of its own for Triton's kernels: the environment it reads as it is imported decides how they run.

As a program this answers one JSON request a line: ``check`` runs a workload under the interpreter and tells its
error, ``compile`` compiles a kernel for a GPU that need not be there and tells what it needs.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator

POINTERS = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32"}


class TritonProcess:
    """The process, as a test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request and return its answer; an error there is an error here."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the process ended"
        told = json.loads(line)
        assert "failed" not in told, told["failed"]
        return told

    def check(self, name: str, params: dict[str, Any], config: dict[str, Any] | None = None, **more: Any) -> Any:
        """Check a workload; the answer has its error, whether that passed, and the tolerance."""
        return self.ask({"do": "check", "name": name, "params": params, "config": config, **more})


@contextmanager
def triton_process(cache: Path, **environment: str) -> Iterator[TritonProcess]:
    """Start a process with an environment of its own, and end it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.triton_process"],
        cwd=Path(__file__).parents[1],
        env={**inherited, "TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield TritonProcess(process)


def silent(_name: str) -> Any:
    """Return a kernel that does nothing, whatever its grid."""
    return defaultdict(lambda: lambda *_, **__: None)


def check(request: dict[str, Any]) -> dict[str, Any]:
    """Check a workload; with ``silent`` its kernel does nothing."""
    from assay.workloads import kernel_support, registry

    workload = registry.find_workload(request["name"], "triton")
    with mock.patch.object(kernel_support, "load_kernel", silent) if request.get("silent") else nullcontext():
        ready = workload.prepare(request["params"], request["config"], device="cpu:0", seed=3)
    assert ready.check is not None
    found = ready.check()
    return {
        "passed": found.passed,
        "error": found.error if math.isfinite(found.error) else "infinite",
        "tolerance": found.tolerance,
        "kinds": sorted(workload.device_kinds),
        "ran": ready.launched_kernels is not None,
    }


def compile_kernel(request: dict[str, Any]) -> dict[str, Any]:
    """Compile a kernel for a Hopper, its sizes known to be multiples of 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from assay.workloads import kernel_support

    kernel, constants = kernel_support.load_kernel(request["name"]), request["constants"]
    signature = dict.fromkeys(constants, "constexpr") | dict.fromkeys(request["numbers"], "i32")
    signature |= dict.fromkeys(request["floats"], "fp32")
    pointer = POINTERS[request["dtype"]]
    places = {name: place for place, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        kernel,
        signature={name: signature.get(name, pointer) for name in kernel.arg_names},
        constexprs={(places[name],): value for name, value in constants.items()},
        attrs={
            (place,): [["tt.divisibility", 16]]
            for name, place in places.items()
            if signature.get(name, pointer) in {"i32", pointer}
        },
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=request["options"])
    return {"shared_bytes": made.metadata.shared, "tensor_cores": "wgmma" in made.asm["ptx"]}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return what was asked for, or how it failed."""
    try:
        return check(request) if request["do"] == "check" else compile_kernel(request)
    except Exception as error:  # noqa: BLE001 - the test that asked is told
        return {"failed": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
