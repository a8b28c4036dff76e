"""How fast is exact dilated attention on a GPU? Assay's beside the same put together from PyTorch's kernels.

    python benchmarks/attention.py run [--to FOLDER]    measure on this GPU (under 6 minutes), keep everything, print
    python benchmarks/attention.py verify               compute the tables again from what was kept

bfloat16, 12 heads of 64, segments 2048, 4096 and 8192 at rates 1, 2 and 4, two sequences of 8192 to 262144 positions,
forward and forward + backward, all functions of a cell in turns (`assay.compare`). Then how far results are from
float64, and the memory of one sequence of up to a million positions. What there is no time for is left for the next
time: what is in the results is not measured again, and all functions of a cell are of one visit.
"""

from __future__ import annotations

import faulthandler
import json
import lzma
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.core.errors import AssayError, BadInput
from assay.timing.compare import compare
from benchmarks.attention_exact import distances
from benchmarks.attention_rivals import DIM, HEADS, Eager, flex, full, ours
from benchmarks.attention_tables import CUDNN, FLASH, OURS, PASSES, tables
from benchmarks.clock import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.timing.results import Comparison

RESULTS = Path(__file__).parent / "results" / "h200"
SAMPLES, NAME = "attention.samples.json.xz", "attention.json"
BATCH = 2
SEQUENCES = (65536, 16384, 8192, 32768, 131072, 262144)
"""The one that claims are about first, so that it is there whatever happens to the time."""
MEMORY = (65536, 131072, 262144, 524288, 1048576)
FULL, MOST_FLEX = (16384, 65536), 16384
CELL_S, CELL_AT_LEAST_S = 4.0, 12.0
MEANT_S, MOST_S = 280.0, 340.0
"""No cell begins after the first; the second ends the program wherever it is."""
Kept = dict[str, Any]
Tensor = Any
NOTHING: Kept = {"machines": [], "names": {}, "cells": [], "scale": [], "exact": [], "memory": [], "ways": []}


def functions(sequence: int, passes: str) -> dict[str, Callable[..., Tensor]]:
    """Return what a cell measures, by name; ours first, as all are compared with it.

    Through autograd PyTorch 2.11 ends the strided cuDNN one with an illegal memory access, so that it is only forward.
    """
    results: dict[str, Callable[..., Tensor]] = {OURS: ours, FLASH: Eager("flash")}
    results["gather, flash, eager merge"] = Eager("flash", copies_parts=True)
    if passes == PASSES[0]:
        results[CUDNN] = Eager("cudnn")
        if sequence <= MOST_FLEX:
            results["FlexAttention, log of multiplicity"] = flex(sequence)
    return results


def whole(_: int, __: str) -> dict[str, Callable[..., Tensor]]:
    """Return full attention, beside ours for scale."""
    return {OURS: ours, "full attention, cuDNN": full("cudnn"), "full attention, flash": full("flash")}


def data(sequence: int, passes: str, batch: int = BATCH) -> list[Tensor]:
    """Return queries, keys and values, and the gradient of the output: random, of a fixed seed."""
    import torch

    torch.manual_seed(0)
    made = [torch.randn(batch, sequence, HEADS, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    return [*(x.requires_grad_(passes == PASSES[1]) for x in made[:3]), made[3]]


def call_of(function: Callable[..., Tensor], made: list[Tensor]) -> Callable[[], object]:
    """Return one call of a function: forward, and backward where the data asks for gradients."""
    return partial(_both if made[0].requires_grad else _forward, function, made[:3], made[3])


def _forward(function: Callable[..., Tensor], inputs: list[Tensor], _: Tensor) -> Tensor:
    import torch

    with torch.no_grad():
        return function(*inputs)


def _both(function: Callable[..., Tensor], inputs: list[Tensor], above: Tensor) -> object:
    import torch

    return torch.autograd.grad(function(*inputs), inputs, above)


def cell(sequence: int, passes: str, of: Callable[..., dict[str, Callable[..., Tensor]]] = functions) -> Kept:
    """Measure all functions of a cell in turns; one that cannot run is left out, with the reason."""
    import torch

    made = data(sequence, passes)
    calls: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    for name, function in of(sequence, passes).items():
        try:
            call = call_of(function, made)
            call()
            torch.cuda.synchronize()
            calls[name] = call
        except (RuntimeError, AssayError, torch.cuda.OutOfMemoryError) as error:
            failed[name] = " ".join(str(error).split())[:200]
    result = timed(calls)
    return {
        "sequence": sequence,
        "passes": passes,
        "quantity": result.quantity,
        "samples_us": {name: list(series) for name, series in result.series.items()},
        "ratios": {other.name: [other.ratio, other.low, other.high] for other in result.others},
        "failed": failed,
        "clock_mhz": result.clock.mhz,
        "throttle": list(result.clock.throttle),
        "notes": list(result.notes),
    }


def timed(calls: Mapping[str, Callable[[], object]]) -> Comparison:
    """Time calls in turns, launched behind a gate; those that wait for the GPU themselves, as they best can be."""
    try:
        return compare(calls, device="cuda", cache="warm", method="queue", by="span", budget_s=CELL_S)
    except BadInput:
        return compare(calls, device="cuda", cache="warm", budget_s=CELL_S)


def memory_of(sequence: int) -> Kept:
    """Return the peak of the allocator over one forward and backward pass of one sequence, and what the inputs hold."""
    import torch

    call = call_of(ours, data(sequence, PASSES[1], batch=1))
    call()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return {"sequence": sequence, "held_bytes": held, "peak_bytes": torch.cuda.max_memory_allocated()}


def run(folder: Path) -> None:
    """Measure everything there is time for, and keep it as it comes."""
    from assay.workloads.dilated_attention import backends

    faulthandler.dump_traceback_later(MOST_S, exit=True)
    begin = time.monotonic()
    raw = load_kept(RESULTS) if (RESULTS / SAMPLES).exists() else dict(NOTHING)
    raw["machines"] = [*raw["machines"], fingerprint()]
    raw["skipped"], before = [], raw["ways"]
    done = {name for kind in ("cells", "scale", "exact", "memory") for name in raw["names"].get(kind, ())}
    steps: list[tuple[str, str, Callable[[], Kept]]] = [
        ("cells", f"{passes} at {sequence}", partial(cell, sequence, passes))
        for sequence in SEQUENCES[:2]
        for passes in PASSES
    ]
    steps += [
        ("exact", f"exactness in {dtype}{', causal' if causal else ''}", partial(exactness, dtype, causal=causal))
        for dtype in ("bfloat16", "float16")
        for causal in (False, True)
    ]
    steps += [("memory", f"memory at {sequence}", partial(memory_of, sequence)) for sequence in MEMORY]
    steps += [
        ("cells", f"{passes} at {sequence}", partial(cell, sequence, passes))
        for sequence in SEQUENCES[2:]
        for passes in PASSES
    ]
    steps += [
        ("scale", f"full attention, {passes} at {sequence}", partial(cell, sequence, passes, whole))
        for sequence in FULL
        for passes in PASSES
    ]
    for kind, name, step in steps:
        if name in done:
            continue
        if time.monotonic() - begin > MEANT_S - CELL_AT_LEAST_S:
            raw["skipped"].append(name)
            continue
        started = time.monotonic()
        raw[kind] = [*raw[kind], step()]
        raw["names"] = {**raw["names"], kind: [*raw["names"].get(kind, ()), name]}
        print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
        raw["ways"] = [*before, *backends.past_races()]
        keep(folder, raw)


def exactness(dtype: str, *, causal: bool) -> Kept:
    """Return how far results are from float64."""
    return {"dtype": dtype, "causal": causal, **distances(dtype, causal=causal, sequence=8192)}


def keep(folder: Path, raw: Kept) -> None:
    """Write down what was measured, and the tables that follow from it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SAMPLES).write_bytes(lzma.compress(json.dumps(raw).encode()))
    published = {"command": "python benchmarks/attention.py run", "machines": raw["machines"], "tables": tables(raw)}
    (folder / NAME).write_text(json.dumps(published, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load_kept(folder: Path) -> Kept:
    """Return what was measured so far."""
    raw: Kept = json.loads(lzma.decompress((folder / SAMPLES).read_bytes()))
    return raw


def verified(folder: Path) -> str:
    """Return the tables that follow from what was kept, having made sure that they are the published ones."""
    raw = load_kept(folder)
    published = json.loads((folder / NAME).read_text(encoding="utf-8"))["tables"]
    results = tables(raw)
    if results != published:
        print("What is published does not follow from what was kept.", file=sys.stderr)
        sys.exit(1)
    return "\n\n".join(results.values())


def main() -> int:
    """Run or verify."""
    words = sys.argv[1:]
    if not words or words[0] not in {"run", "verify"} or len(words) % 2 == 0:
        print(__doc__)
        return 2
    options = dict(zip(words[1::2], words[2::2], strict=True))
    folder = Path(options.get("--to", str(RESULTS)))
    if words[0] == "run":
        run(folder)
    print(verified(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
