"""Do Assay's own kernels touch memory that is not theirs? Each of them once, right, under NVIDIA's memory checker.

python benchmarks/memcheck.py run       on a machine with a GPU and compute-sanitizer: check, and keep what it said
python benchmarks/memcheck.py kernels   what it runs: each kernel, at sizes that no block divides
python benchmarks/memcheck.py verify    print the table from what was kept
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.values import Scalar

RESULTS = Path(__file__).parent / "results" / "h200" / "memcheck.json"
COMMAND = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", sys.executable, __file__, "kernels")
SIZES: dict[str, dict[str, Scalar]] = {
    "flash_attention": {"batch": 2, "heads": 3, "sequence": 37, "dim": 24},
    "gemm": {"m": 37, "n": 51, "k": 29},
    "rms_norm": {"rows": 7, "cols": 131},
    "softmax": {"rows": 7, "cols": 131},
}
DTYPES = ("float32", "bfloat16", "float16")
DILATED: dict[str, dict[str, Scalar]] = {
    "triton": {"sequence": 1200, "segments": "100,300,1200", "rates": "1,2,4", "dim": 32},
    "flash": {"sequence": 1024, "segments": "128,256,1024", "rates": "1,2,4", "dim": 32},
}
"""PyTorch's flash attention itself writes beyond its sums where its blocks do not divide a part; ours merges them."""


def cases() -> Iterator[tuple[str, str, dict[str, Scalar]]]:
    """Yield a name, a workload and its parameters for each kernel and type."""
    for name, sizes in SIZES.items():
        for dtype in DTYPES:
            yield f"{name}, {dtype}", f"{name}@triton", {**sizes, "dtype": dtype}
    for backend in ("triton", "flash"):
        for causal in (False, True):
            options = {**DILATED[backend], "backend": backend, "causal": causal, "dtype": "bfloat16", "passes": "total"}
            yield f"dilated attention, {backend}{', causal' if causal else ''}", "dilated_attention@torch", options


def run_kernels() -> bool:
    """Run every kernel, and print a line for each; return whether all computed what they should."""
    failed = [name for name, workload, options in cases() if not run_kernel(name, workload, options)]
    run_stamps()
    return not failed


def run_kernel(name: str, workload: str, options: dict[str, Scalar]) -> bool:
    """Run one kernel and compare it with its reference; return whether it is right. One that fails ends no other."""
    from assay.workloads import registry

    result = registry.find_workload(*workload.split("@"))
    try:
        ready = result.prepare({**result.defaults(), **options}, None, device="cuda:0", seed=0)
        check = ready.check() if ready.check is not None else None
    except Exception as error:  # noqa: BLE001 - whatever it is, it is printed and kept
        print(f"failed: {name}: {type(error).__name__}: {error}".replace("\n", " "), flush=True)
        return False
    print(f"{'right' if check is not None and check.passed else 'wrong'}: {name}", flush=True)
    return check is not None and check.passed


def run_stamps() -> None:
    """Run the kernels that time others: the gate, the stamps, and spins of one thread and of all multiprocessors."""
    from assay.timing.cuda.device import gpu_timing_device
    from assay.timing.cuda.timers import GpuCallBatch, GraphTimer, QueueTimer

    gpu = gpu_timing_device(0)
    for name, spin in gpu.references.items():
        for clock in (QueueTimer, GraphTimer):
            for cache in ("cold", "warm"):
                clock(gpu, GpuCallBatch(partial(spin, gpu.handle), cache, 3)).take()
        print(f"right: gate, stamps and {name}", flush=True)


def run() -> None:
    """Run the kernels under the checker, and keep what it said."""
    output = subprocess.run(
        COMMAND, capture_output=True, text=True, check=False, env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    )
    summary = re.search(r"ERROR SUMMARY: (\d+) error", output.stdout)
    if summary is None:
        raise SystemExit(f"compute-sanitizer came to no end:\n{output.stdout[-3000:]}{output.stderr[-3000:]}")
    import torch

    saved = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "right": re.findall(r"^right: (.*)$", output.stdout, re.MULTILINE),
        "not_right": re.findall(r"^((?:wrong|failed): .*)$", output.stdout, re.MULTILINE),
        "errors": int(summary[1]),
        "exit_code": output.returncode,
        "kernels": sorted(set(re.findall(r"^=========     at (.*?)\+0x", output.stdout, re.MULTILINE))),
        "said": [
            line for line in output.stdout.splitlines() if line.startswith("=========") and "Host Frame" not in line
        ][:200],
    }
    RESULTS.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")


def verify() -> bool:
    """Print what was kept, and return whether nothing was wrong."""
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    print(f"{saved['gpu']}, PyTorch {saved['torch']}: {len(saved['right'])} of {len(list(cases())) + 2} kernels right.")
    for line in saved.get("not_right", []):
        print(line)
    print(f"Errors of memory: {saved['errors']}{''.join(f'; in {kernel}' for kernel in saved.get('kernels', []))}.")
    return saved["errors"] == 0 and saved["exit_code"] == 0 and len(saved["right"]) == len(list(cases())) + 2


def main() -> int:
    """Run, or verify; ends with 1 where the checker found something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("run", "kernels", "verify"))
    verb = parser.parse_args().verb
    if verb == "kernels":
        return 0 if run_kernels() else 1
    if verb == "run":
        run()
    return 0 if verify() else 1


if __name__ == "__main__":
    raise SystemExit(main())
