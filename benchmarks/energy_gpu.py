"""Are joules right on a real GPU? ``assay.energy`` beside a long run, and beside simpler ways to read the same sensors.

    python benchmarks/energy_gpu.py run [--to FOLDER]    measure on this GPU (under 4 minutes), keep everything, print
    python benchmarks/energy_gpu.py verify               compute the table again from what was kept

Three kernels: about 5 ms, 0.2 ms and 10 µs. Of each, ten tries of assay.energy (3 s at most), and among them 10 s back
to back, short runs from rest in which the counter is read before and after 50 ms and average power is polled, and
windows of Zeus around 50 ms where it can be imported. What is left when the time is up is skipped and named; a hang
ends the program. Every reading and every moment between calls is kept, so that all of it can be judged again.
"""

from __future__ import annotations

import faulthandler
import json
import lzma
import sys
import time
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.joules import devices as rigs
from assay.joules.measure import energy
from assay.joules.window_energy import estimate_window_energy
from assay.timing.options import TIMES, resolve_options
from assay.timing.setup import bind_call
from benchmarks.energy_gpu_tables import table
from benchmarks.energy_gpu_zeus import windows, zeus_monitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.joules.readings import CallBoundary, MeterReading
    from assay.timing.options import TimingOptions
    from benchmarks.energy_gpu_zeus import Monitor

RESULTS = Path(__file__).parent / "results" / "h200"
DEVICE = "cuda"
STEPS = ("energy", "simple", "energy", "simple", "energy", "zeus", "energy", "simple", "energy", "long",
         "energy", "energy", "simple", "energy", "energy", "simple", "energy")  # fmt: skip
COSTS_S = {"energy": 4.0, "simple": 5.0, "long": 15.0, "zeus": 7.0}
WARM_S, LONG_S, REST_S, SIMPLE_S = 1.0, 10.0, 1.2, 2.0
BUDGET_S, PRECISION, LIMIT_S = 3.0, 0.05, 10.0
MEANT_S, MOST_S = 210.0, 235.0
"""No step begins that would not end within the first; the second ends the program wherever it is."""
KNOTS_KEPT = 400
ROUGHLY = 0.5
"""The precision that is asked of windows: whatever they say is kept, with its bounds."""
Kept = dict[str, Any]


def functions(torch: Any) -> dict[str, Callable[[], object]]:
    """Return the kernels, on random data of a fixed seed."""
    torch.manual_seed(0)
    made: dict[str, Callable[[], object]] = {}
    for name, side in (("matmul 12288 (5 ms)", 12288), ("matmul 4096 (0.2 ms)", 4096)):
        a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        made[name] = _matmul(torch, a, b, torch.empty_like(a))
    x = torch.randn(2048, 2048, device="cuda")
    made["softmax 2048 (10 µs)"] = lambda: torch.softmax(x, -1)
    return made


def _matmul(torch: Any, a: Any, b: Any, into: Any) -> Callable[[], object]:
    return lambda: torch.matmul(a, b, out=into)


def one_energy(function: Callable[[], object], device: str, seed: int) -> Kept:
    """Return one try of assay.energy, with how long a caller waited for it and all that it was judged by."""
    begin = time.monotonic()
    result = energy(function, device=device, budget_s=BUDGET_S, precision=PRECISION, limit_s=LIMIT_S, seed=seed)
    return {
        "waited_s": round(time.monotonic() - begin, 3),
        "result": result.as_json(),
        "readings": _plain(list(result.readings)),
        "knots": [(knot.t_ns, knot.calls) for knot in result.boundaries],
        "open_ns": result.open_ns,
    }


def one_run(function: Callable[[], object], device: str, *, rest_s: float, keep_s: float) -> Kept:
    """Rest, then make calls back to back for so long; return all readings and some moments between calls.

    Beside them is what ``window_energy`` says of the time from the first call to the last.
    """
    chosen = _options(device)
    with rigs.open_device(chosen) as on:
        keeper = on.prepare_load(bind_call(function), chosen)
        sampling = on.sampler()
        sampling.start()
        try:
            keeper.rest(rest_s)
            keeper.run(keep_s)
            keeper.rest(0.15)
        finally:
            readings = sampling.stop()
            keeper.close()
        knots = keeper.boundaries()
        window = estimate_window_energy(readings, knots[0].t_ns, knots[-1].t_ns, on.model, precision=ROUGHLY)
        return {
            "how": keeper.how,
            "readings": _plain(readings),
            "knots": _thinned(knots),
            "window": window.as_json(),
            "sensor": on.model.as_json(),
        }


def one_zeus(function: Callable[[], object], device: str, monitor: Monitor) -> Kept:
    """Return what windows of Zeus say, among calls put to the device as in every other step."""
    chosen = _options(device)
    with rigs.open_device(chosen) as on:
        keeper = on.prepare_load(bind_call(function), chosen)
        try:
            return {"how": keeper.how, "windows": windows(monitor, keeper)}
        finally:
            keeper.close()


def _options(device: str) -> TimingOptions:
    return resolve_options(
        device=device, cache=None, method="auto", precision=PRECISION, budget_s=BUDGET_S, times=TIMES, limit_s=LIMIT_S
    )


def _plain(readings: list[MeterReading]) -> list[tuple[float | int | None, ...]]:
    return [astuple(reading) for reading in readings]


def _thinned(knots: list[CallBoundary]) -> list[tuple[int, int]]:
    step = max(1, len(knots) // KNOTS_KEPT)
    return [(knot.t_ns, knot.calls) for knot in [*knots[:-1:step], knots[-1]]]


def one_kernel(
    function: Callable[[], object], device: str, left_s: Callable[[], float], monitor: Monitor | None = None
) -> Kept:
    """Return all steps of a kernel in turns; those that there is no time left for are named."""
    saved: Kept = {"energy": [], "simple": [], "long": [], "zeus": [], "skipped": [], "order": []}
    for number, step in enumerate(STEPS):
        if step == "zeus" and monitor is None:
            continue
        if left_s() < COSTS_S[step]:
            saved["skipped"].append(step)
            continue
        saved["order"].append(step)
        if step == "energy":
            saved[step].append(one_energy(function, device, number))
        elif step == "simple":
            saved[step].append(one_run(function, device, rest_s=REST_S, keep_s=SIMPLE_S))
        elif step == "zeus" and monitor is not None:
            saved[step].append(one_zeus(function, device, monitor))
        else:
            saved[step].append(one_run(function, device, rest_s=0.3, keep_s=WARM_S + LONG_S))
    return saved


def run(folder: Path) -> None:
    """Measure every kernel in turn, and keep what there is after each."""
    faulthandler.dump_traceback_later(MOST_S, exit=True)
    begin = time.monotonic()
    import torch

    from benchmarks.clock import fingerprint

    made = functions(torch)
    with rigs.open_device(_options(DEVICE)):
        looked_s = time.monotonic() - begin  # the sensors are looked at once, before anything is compared
    monitor, which = zeus_monitor()
    raw: Kept = {"looked_s": round(looked_s, 1), "zeus": which, "zeus_ran": monitor is not None, "kernels": {}}
    for index, (name, function) in enumerate(made.items()):
        share_s = (MEANT_S - (time.monotonic() - begin)) / (len(made) - index)
        until = time.monotonic() + share_s
        raw["kernels"][name] = one_kernel(function, DEVICE, lambda until=until: until - time.monotonic(), monitor)  # type: ignore[misc]
        raw["took_s"] = round(time.monotonic() - begin, 1)
        keep(folder, raw, fingerprint())
    faulthandler.cancel_dump_traceback_later()


def keep(folder: Path, raw: Kept, machine: Kept) -> None:
    """Write down what was measured, and the table that follows from it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy.samples.json.xz").write_bytes(lzma.compress(json.dumps(raw).encode()))
    summary = {"command": "python benchmarks/energy_gpu.py run", "machine": machine, "table": table(raw)}
    (folder / "energy.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def verified(folder: Path) -> str:
    """Return the table that follows from what was kept, having made sure that it is the published one."""
    raw = json.loads(lzma.decompress((folder / "energy.samples.json.xz").read_bytes()))
    published = json.loads((folder / "energy.json").read_text(encoding="utf-8"))["table"]
    results = table(raw)
    if results != published:
        print("What is published does not follow from what was kept.", file=sys.stderr)
        sys.exit(1)
    return results


def main() -> int:
    """Run or verify."""
    folder = RESULTS
    match sys.argv[1:]:
        case ["run"]:
            run(folder)
        case ["run", "--to", target]:
            folder = Path(target)
            run(folder)
        case ["verify"]:
            pass
        case _:
            print(__doc__)
            return 2
    print(verified(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
