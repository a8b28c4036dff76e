"""Does a tuner pick the best? ``assay.pick`` beside ``triton.autotune``, quiet, under CPU hogs and beside a co-tenant.

    python benchmarks/pick.py run [--to FOLDER]    tune on this GPU again and again, keep everything, print the table
    python benchmarks/pick.py verify               compute the table again from what was kept

48 configurations of a Triton matmul, compiled beforehand, at 512³ and 2048³. Picks are judged with a cold cache by the
activity trace, interleaved, in quiet; the best is ranked on one half of the samples and regret is read off the other.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.clock import RESULTS, fingerprint
from benchmarks.pick_tables import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from assay.core.values import Params
    from assay.workloads.base import PreparedWorkload

SHAPES = (512, 2048)
CONFIGURATIONS, SEED = 48, 1
JUDGE_ROUNDS, JUDGE_CALLS = 10, 8
TRIES = {
    ("quiet", "assay.pick"): 20,
    ("quiet", "triton.autotune"): 4,
    ("quiet", "triton.autotune with assay.do_bench"): 4,
    ("32 CPU hogs", "assay.pick"): 20,
    ("32 CPU hogs", "triton.autotune"): 2,
    ("a co-tenant", "assay.pick"): 20,
    ("a co-tenant", "triton.autotune"): 2,
}
HOG = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass"
TENANT = """
import os, torch
parent = os.getppid()
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
while os.getppid() == parent:
    for _ in range(20): a @ a
    torch.cuda.synchronize()
"""


def params(side: int) -> Params:
    """Return the matmul of one side."""
    return {"m": side, "n": side, "k": side, "dtype": "bfloat16", "distribution": "normal", "tf32": False}


def configurations() -> list[Params]:
    """Return 48 of the configurations, drawn once."""
    from assay.workloads.ops.gemm import GEMM_TRITON

    return random.Random(SEED).sample(list(GEMM_TRITON.configs(params(2048))), CONFIGURATIONS)


def name_of(config: Params) -> str:
    """Return a configuration in short: 128x64x32 w4 s3."""
    side = "x".join(str(config[f"block_{axis}"]) for axis in "mnk")
    return f"{side} w{config['num_warps']} s{config['num_stages']}"


def prepare(side: int, config: Params) -> PreparedWorkload:
    """Return one configuration ready to be called."""
    from assay.workloads.ops.gemm import GEMM_TRITON

    return GEMM_TRITON.prepare(params(side), config, device="cuda:0", seed=0)


def compile_one(task: tuple[int, Params]) -> None:
    """Compile a configuration into Triton's cache."""
    prepare(*task).call()


def compile_all() -> None:
    """Compile every configuration, in parallel."""
    tasks = [(side, config) for config in configurations() for side in SHAPES]
    with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, tasks, chunksize=8))


def judge(bench: Any, calls: dict[str, Callable[[], object]], seed: int) -> list[dict[str, list[float]]]:
    """Trace every candidate once a round, in random order, with a cold cache; return the microseconds of each round."""
    from assay.timing.cuda.timers import GpuCallBatch, TraceTimer

    clocks = {name: TraceTimer(bench, GpuCallBatch(call, "cold", JUDGE_CALLS)) for name, call in calls.items()}
    order = list(clocks)
    rounds = []
    for number in range(JUDGE_ROUNDS):
        random.Random(seed + number).shuffle(order)
        rounds.append({name: clocks[name].take().quantities["busy_us"].round(4).tolist() for name in order})
    return rounds


@contextlib.contextmanager
def neighbours(kind: str) -> Iterator[None]:
    """Keep company for the length of a ``with`` block: hogs on the host's cores, or another process on the GPU."""
    programs = {"quiet": [], "32 CPU hogs": [HOG] * 32, "a co-tenant": [TENANT]}[kind]
    started = [subprocess.Popen([sys.executable, "-c", p], stdout=subprocess.PIPE, text=True) for p in programs]
    try:
        if kind == "a co-tenant" and started[0].stdout is not None:
            started[0].stdout.readline()
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def by_assay(calls: dict[str, Callable[[], object]], seed: int) -> dict[str, Any]:
    """Pick with Assay."""
    import assay

    result = assay.pick(calls, cache="cold", budget_s=2.5, seed=seed)
    return {
        "pick": result.winner,
        "probability": result.probability,
        "expected_regret": result.expected_regret,
        "rounds": result.rounds,
        "calls": result.calls,
        "stopped": result.stopped,
    }


def by_triton(side: int, do_bench: Callable[..., Any] | None) -> dict[str, Any]:
    """Pick with Triton's auto-tuner, made afresh."""
    import torch
    import triton

    from assay.workloads.kernel_support import load_kernel
    from assay.workloads.ops.gemm import GROUP_M

    tiles = ("block_m", "block_n", "block_k")
    configs = [
        triton.Config(
            {name: c[name] for name in tiles} | {"even_k": side % int(str(c["block_k"])) == 0},
            num_warps=c["num_warps"],
            num_stages=c["num_stages"],
        )
        for c in configurations()
    ]
    tuned = triton.autotune(configs, key=["m", "n", "k"], do_bench=do_bench)(load_kernel("gemm"))
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(side, meta["block_m"]) * triton.cdiv(side, meta["block_n"]),)

    tuned[grid](a, b, out, side, side, side, group_m=GROUP_M, precision="ieee", widen=False)
    torch.cuda.synchronize()
    best = tuned.best_config
    config = {**{name: best.kwargs[name] for name in tiles}, "num_warps": best.num_warps, "num_stages": best.num_stages}
    return {"pick": name_of(config)}


def tuned(tuner: str, side: int, calls: dict[str, Callable[[], object]], seed: int) -> dict[str, Any]:
    """Tune once; return the pick and how long it took."""
    import assay

    begin = time.perf_counter()
    if tuner == "assay.pick":
        output = by_assay(calls, seed)
    else:
        output = by_triton(side, assay.do_bench if "assay" in tuner else None)
    return {**output, "took_s": round(time.perf_counter() - begin, 4)}


def one_shape(bench: Any, side: int) -> dict[str, Any]:
    """Tune for one shape under all conditions, with the judge before and after each."""
    import torch

    prepared = {name_of(config): prepare(side, config) for config in configurations()}
    calls: dict[str, Callable[[], object]] = {name: entry.call for name, entry in prepared.items()}
    for call in calls.values():
        call()
    torch.cuda.synchronize()
    results: dict[str, Any] = {"judged": [judge(bench, calls, 0)], "tries": []}
    for (condition, tuner), tries in TRIES.items():
        with neighbours(condition):
            for number in range(tries):
                output = tuned(tuner, side, calls, seed=number)
                results["tries"].append({"condition": condition, "tuner": tuner, **output})
        print(side, condition, tuner, results["tries"][-1], flush=True, file=sys.stderr)
    results["judged"].append(judge(bench, calls, JUDGE_ROUNDS))
    return results


def run(folder: Path) -> None:
    """Tune, judge and keep."""
    from assay.timing.cuda.device import gpu_timing_device as bench_of
    from assay.timing.cuda.timers import calibrate_device

    compile_all()
    bench = bench_of(0)
    calibrate_device(bench)
    raw = {str(side): one_shape(bench, side) for side in SHAPES}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pick.samples.json.xz").write_bytes(lzma.compress(json.dumps(raw).encode()))
    summary = {"command": "python benchmarks/pick.py run", "machine": fingerprint(), "tables": tables(raw)}
    (folder / "pick.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_kept(folder: Path) -> list[str]:
    """Return the tables that follow from what was kept, having made sure that they are the published ones."""
    raw = json.loads(lzma.decompress((folder / "pick.samples.json.xz").read_bytes()))
    published: list[str] = json.loads((folder / "pick.json").read_text(encoding="utf-8"))["tables"]
    if tables(raw) != published:
        print("What is published does not follow from what was kept.", file=sys.stderr)
        sys.exit(1)
    return published


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
