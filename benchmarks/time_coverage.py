"""Does the interval of ``assay time`` hold what fresh runs of it find? Many fresh runs, each with its own interval.

python benchmarks/time_coverage.py run [--runs 40] [--budget 5] [--target TARGET] [--to FILE]   time again and again
python benchmarks/time_coverage.py verify [--from FILE]                 compute the table again from what was kept

Each run is the command in processes of its own. The truth is unknown, so the intervals are held against the pooled
mean: the geometric mean of the medians of all processes of all runs. Beside them stand the intervals of single
processes, which know their own window alone. What is kept of a run is every process's median and interval. Ends with 1
where fewer than nine tenths of the runs hold the pooled mean.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "time_coverage.json"
TARGET = "examples/my_kernel.py:rms_norm"
RUNS, BUDGET_S = 40, 5.0
WANTED = 0.9
Kept = dict[str, Any]


def one_run(target: str, budget_s: float) -> Kept:
    """Return what one fresh ``assay time`` says of a target."""
    command = [sys.executable, "-m", "assay", "time", target, "--budget", f"{budget_s:g}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    if done.returncode != 0:
        raise RuntimeError(f"assay time ended with {done.returncode}: {done.stderr[-500:]}")
    result = json.loads(done.stdout)
    measurement = result["measurement"]
    decisive = measurement["decisive"]
    return {
        "scope": result["scope"],
        "estimate": measurement[decisive],
        "processes": [entry["times"][decisive] for entry in measurement["by_process"] if entry["status"] == "ok"],
        "took_s": measurement["took_s"],
        "notes": measurement["notes"],
    }


def run(target: str, runs: int, budget_s: float, to: Path) -> Kept:
    """Time again and again; what is there is kept after each run."""
    saved: Kept = {"target": target, "budget_s": budget_s, "cores": len(os.sched_getaffinity(0)), "runs": []}
    for number in range(runs):
        saved["runs"].append(one_run(target, budget_s))
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
        value = saved["runs"][-1]["estimate"]
        print(
            f"{number + 1} of {runs}: {value['value']:.2f} µs ({value['low']:.2f} to {value['high']:.2f})", flush=True
        )
    return saved


def pooled(runs: list[Kept]) -> float:
    """Return the geometric mean of the medians of all processes of all runs."""
    logs = [math.log(process["value"]) for entry in runs for process in entry["processes"]]
    return math.exp(sum(logs) / len(logs))


def holds(estimate: Kept, value: float) -> bool:
    """Return whether an interval holds a value; one that has none does not."""
    return estimate["low"] is not None and estimate["low"] <= value <= estimate["high"]


def half_width(estimate: Kept) -> float:
    """Return half an interval over its value; infinite without one."""
    return math.inf if estimate["low"] is None else (estimate["high"] - estimate["low"]) / 2 / estimate["value"]


def counted(runs: list[Kept]) -> dict[str, tuple[int, int, float]]:
    """Return for each kind of interval how many hold the pooled mean, of how many, and their median half-width."""
    middle = pooled(runs)
    kinds = {
        "over the processes of a run": [run["estimate"] for run in runs],
        "of single processes": [process for run in runs for process in run["processes"]],
    }
    return {
        kind: (
            sum(holds(run, middle) for run in estimates),
            len(estimates),
            sorted(map(half_width, estimates))[len(estimates) // 2],
        )
        for kind, estimates in kinds.items()
    }


def table(results: Kept) -> str:
    """Return the published table."""
    runs = results["runs"]
    values = [process["value"] for entry in runs for process in entry["processes"]]
    head = (
        f"{len(runs)} runs of `assay time {results['target']} --budget {results['budget_s']:g}` "
        f"on {results['cores']} cores: pooled mean {pooled(runs):.2f} µs, "
        f"processes {min(values):.2f} to {max(values):.2f} µs\n\n"
    )
    lines = ["| interval | holds the pooled mean | half-width, median |", "|---|---|---|"]
    for kind, (held, of, half) in counted(runs).items():
        lines.append(f"| {kind} | {held} of {of} ({held / of:.0%}) | {100 * half:.2g} % |")
    return head + "\n".join(lines)


def main() -> int:
    """Time or verify."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "verify"])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each run")
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--to", "--from", dest="file", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.verb == "run":
        run(options.target, options.runs, options.budget, options.file)
    saved = json.loads(options.file.read_text(encoding="utf-8"))
    print(table(saved))
    held, of, _ = counted(saved["runs"])["over the processes of a run"]
    return 0 if held >= WANTED * of else 1


if __name__ == "__main__":
    sys.exit(main())
