"""Does ``make demo`` answer? Its command, again and again, on groups of CPU cores.

    python benchmarks/demo.py run [N]    run the demo until N runs (20) are kept, a minute each; resumes
    python benchmarks/demo.py verify     compute the table again from the kept means of every process

A run answers when the verdict on concurrent times, recomputed from every process mean by block, is "yes" or "no".
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.stats.ratios import Proportion
from benchmarks.contention import cells_of, judge_phases, measure, show_share

RESULTS = Path(__file__).parent / "results" / "demo.json"
COMMAND = ("--quick",)
RUNS, REQUIRED = 20, 18

Kept = dict[str, Any]


def run(expected: int) -> None:
    """Run the demo until so many runs are kept, with the load average before each."""
    saved: list[Kept] = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"] if RESULTS.exists() else []
    for seed in range(len(saved), expected):
        load = os.getloadavg()[0]
        result, _ = measure(seed, COMMAND)
        saved.append({**result, "load": round(load, 2)})
        text = json.dumps({"runs": saved}, separators=(",", ":"), ensure_ascii=False)
        RESULTS.write_text(text + "\n", encoding="utf-8")
        print(f"{seed + 1}/{expected} in {result['took_s']} s: {result['headline']}", flush=True)


def verdicts(runs: list[Kept]) -> list[str]:
    """Return the verdict of each run on concurrent times."""
    return [judge_phases(cells_of(run))["naive"].overall.verdict for run in runs]


def table(runs: list[Kept]) -> str:
    """Return the published table."""
    answers = verdicts(runs)
    n = len(runs)
    ratios = [judge_phases(cells_of(run))["naive"].overall.ratio for run in runs]
    values = [ratio.value for ratio in ratios if ratio is not None]
    took = [run["took_s"] for run in runs]
    blocks = [len({cell[2] for cell in run["cells"]}) for run in runs]
    false_controls = sum(judge_phases(cells_of(run))["again"].overall.verdict == "yes" for run in runs)
    lines = [
        ("runs that answer", show_share(Proportion(n - answers.count("unsure"), n)), f"≥ {REQUIRED} of 20"),
        ("runs whose A/A control differs", show_share(Proportion(false_controls, n)), "–"),
        ("slowdown, median (least – most)",
         f"{statistics.median(values):.2f}× ({min(values):.2f} – {max(values):.2f})", "–"),
        ("blocks, least – most", f"{min(blocks)} – {max(blocks)}", "–"),
        ("seconds, median (most)", f"{statistics.median(took):.0f} ({max(took):.0f})", "–"),
        ("load average before a run, median (most)",
         f"{statistics.median(run['load'] for run in runs):.2f} ({max(run['load'] for run in runs):.2f})", "–"),
    ]  # fmt: skip
    return "\n".join(
        ["| what | measured | required |", "|---|---|---|", *(f"| {' | '.join(line)} |" for line in lines)]
    )


def main(words: list[str]) -> int:
    """Run or verify; fails where fewer runs answer than required."""
    if words[:1] == ["run"] and len(words) <= 2:
        run(int(words[1]) if len(words) == 2 else RUNS)
    elif words != ["verify"]:
        print(__doc__)
        return 2
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    print(table(runs))
    answered = sum(verdict != "unsure" for verdict in verdicts(runs))
    return 0 if answered >= REQUIRED * len(runs) / RUNS else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
