"""Is Assay's clock right, and what does it cost? Beside the GPU's own record, spins of known length, and other timers.

    python benchmarks/clock.py run [--to FOLDER]    measure on this GPU, keep every sample, print the tables
    python benchmarks/clock.py verify               compute the tables again from the kept samples

Everything is interleaved: each repeat of a kernel is timed by Assay (without the profiler) and traced (CUPTI) in turns,
and other timers take turns with it. What is compared in cycles and what in time is said in gpu_kernels.py.
"""

from __future__ import annotations

import json
import lzma
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.clock_tables import tables
from benchmarks.gpu_kernels import OPERATIONS, kernels, spins
from benchmarks.rivals import rivals

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).parent / "results" / "h200"
REPEATS = 5
COST_REPEATS = 5
PRECISION = 0.005
WANTED = 0.02
LONG_US = 100


def fingerprint() -> dict[str, Any]:
    """Return what this was measured on."""
    import torch
    import triton

    from assay.machine.detect import detect

    machine = detect()
    gpu = machine.gpus[0]
    return {
        "gpu": gpu.name,
        "driver": machine.driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "power_limit_w": gpu.power_limit_w,
        "sm_max_mhz": gpu.sm_max_mhz,
        "cores": len(machine.cores),
    }


def accuracy(torch: Any, bench: Any) -> dict[str, Any]:
    """Time each kernel in both states of the cache by Assay and by the trace, in turns."""
    import assay
    from assay.timing.cuda.timers import GpuCallBatch, QueueTimer, TraceTimer, slot_layout

    results: dict[str, Any] = {}
    for name, call in {**kernels(torch), **spins(torch, bench)}.items():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        for state in ("cold", "warm"):
            calls = 4 if name in {"softmax 8192", "matmul 8192", "attention", "spin 200"} else 16
            work = GpuCallBatch(call, state, calls, operations=OPERATIONS.get(name, 1))
            trace, queue = TraceTimer(bench, work), QueueTimer(bench, work)
            positions = [position == "call" for position in slot_layout(calls)]
            cell: dict[str, Any] = {"assay": [], "trace": [], "untraced": []}
            for _ in range(REPEATS):
                for _ in range(3):
                    busy_us = trace.take().quantities["busy_us"].round(4).tolist()
                    stamps = bench.slots.read(calls)
                    cycles = None if stamps.cycles is None else stamps.cycles.tolist()
                    cell["trace"].append({"busy_us": busy_us, "stamped_ns": stamps.ns.tolist(), "cycles": cycles})
                    queue.take()
                    cell["untraced"].append(bench.slots.read(len(positions)).ns[positions].tolist())
                result = assay.measure(
                    call, method="graph", times=("busy", "span"), cache=state, precision=PRECISION, budget_s=0.3
                )
                assert result.busy_us is not None
                cell["assay"].append(
                    {
                        "busy_us": result.busy_us.value,
                        "cycles": result.cycles.value if result.cycles else None,
                        "mhz": result.clock.mhz,
                        "took_s": result.took_s,
                        "samples_us": [round(us, 4) for us in result.series["busy_us"]],
                    }
                )
            results[f"{name} | {state}"] = cell
    return results


def blocks(torch: Any, bench: Any) -> dict[str, Any]:
    """Trace and stamp a spin on more and more thread blocks: does tracing itself take time for each block?"""
    from assay.timing.cuda.timers import GpuCallBatch, GraphTimer, QueueTimer, TraceTimer, slot_layout

    numbers = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    positions = [position == "call" for position in slot_layout(8)]
    results: dict[str, Any] = {}
    for count in (132, 528, 1056, 2112, 4224, 8448):
        launch = bench.kernels.launch("wide", 2000, int(numbers.data_ptr()), grid=count, block=128)

        def call(launch: Any = launch) -> None:
            launch(int(torch.cuda.current_stream().cuda_stream))

        work = GpuCallBatch(call, "warm", 8, operations=1)
        trace, graph, queue = TraceTimer(bench, work), GraphTimer(bench, work), QueueTimer(bench, work)
        cell: dict[str, list[float]] = {"trace_us": [], "traced_us": [], "untraced_us": [], "graph_us": []}
        for _ in range(8):
            cell["trace_us"] += trace.take().quantities["busy_us"].tolist()
            cell["traced_us"] += (bench.slots.read(8).ns / 1000).tolist()
            queue.take()
            cell["untraced_us"] += (bench.slots.read(len(positions)).ns[positions] / 1000).tolist()
            cell["graph_us"] += graph.take().quantities["busy_us"].tolist()
        graph.close()
        results[str(count)] = cell
    return results


def cost(torch: Any, bench: Any) -> dict[str, Any]:
    """Ask every timer for every kernel, in turns, with the trace beside; keep what it said and how long it took."""
    import assay
    from assay.timing.cuda.timers import GpuCallBatch, TraceTimer

    timers: dict[str, tuple[str, Callable[[Callable[[], object]], float]]] = {
        f"{r.name} | {r.setting}": (r.cache, r.time_us) for r in rivals(torch)
    }

    def by_assay(state: Any) -> Callable[[Callable[[], object]], float]:
        def time_us(call: Callable[[], object]) -> float:
            result = assay.measure(call, method="graph", times=("busy",), cache=state, precision=WANTED, budget_s=1)
            assert result.busy_us is not None
            return result.busy_us.value

        return time_us

    for state in ("cold", "warm"):
        timers[f"assay | ±2 %, {state}"] = (state, by_assay(state))
    results: dict[str, Any] = {}
    for name, call in kernels(torch).items():
        cell: dict[str, Any] = {"trace": {"cold": [], "warm": []}, "timers": {timer: [] for timer in timers}}
        traces = {
            s: TraceTimer(bench, GpuCallBatch(call, s, 4, operations=OPERATIONS.get(name, 1))) for s in ("cold", "warm")
        }
        for repeat in range(-1, COST_REPEATS):
            for timer, (state, time_us) in timers.items():
                begin = time.perf_counter()
                us = time_us(call)
                took_s = time.perf_counter() - begin
                truth = statistics.median(traces[state].take().quantities["busy_us"].tolist())
                if repeat >= 0:  # the first go of each compiles, loads and makes buffers
                    cell["timers"][timer].append({"us": us, "took_s": took_s, "truth_us": truth, "cache": state})
        results[name] = cell
    return results


def run(folder: Path) -> None:
    """Measure everything and keep it."""
    import torch

    from assay.timing.cuda.device import gpu_timing_device as bench_of
    from assay.timing.cuda.timers import calibrate_device

    bench = bench_of(0)
    calibrate_device(bench)
    raw = {
        "known": bench.calibration.as_json(),
        "default": [f"{r.name} | {r.setting}" for r in rivals(torch) if r.default],
        "accuracy": accuracy(torch, bench),
        "blocks": blocks(torch, bench),
        "cost": cost(torch, bench),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "clock.samples.json.xz").write_bytes(lzma.compress(json.dumps(raw).encode()))
    summary = {"command": "python benchmarks/clock.py run", "machine": fingerprint(), "tables": tables(raw)}
    (folder / "clock.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_kept(folder: Path) -> list[str]:
    """Return the tables that the kept samples give, having made sure that they are the published ones."""
    raw = json.loads(lzma.decompress((folder / "clock.samples.json.xz").read_bytes()))
    published: list[str] = json.loads((folder / "clock.json").read_text(encoding="utf-8"))["tables"]
    results = tables(raw)
    if results != published:
        print("What is published does not follow from the kept samples.", file=sys.stderr)
        sys.exit(1)
    return results


def main() -> int:
    """Run or verify."""
    match sys.argv[1:]:
        case ["run"]:
            folder = RESULTS
            run(folder)
        case ["run", "--to", target]:
            folder = Path(target)
            run(folder)
        case ["verify"]:
            folder = RESULTS
        case _:
            print(__doc__)
            return 2
    print("\n\n".join(load_kept(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
