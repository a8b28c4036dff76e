"""Is what ``assay contention run`` says true? Recorded runs on groups of cores, and A/A analyses drawn from them.

    python benchmarks/contention.py run [N]    measure until N runs (20) are kept, a minute each; goes on where it was
    python benchmarks/contention.py verify     compute the table again from what was kept

Each run has two devices with two workers each, unpinned when side by side: on two cores the truth is a slowdown of
about two. An A/A analysis takes two blocks that stand beside each other in a run, deals their four quiet measurements
out to the four phases by lot, and judges a few such blocks as if they had been measured so: any "yes" is false.
"""

from __future__ import annotations

import json
import lzma
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.experiments.contention.effects import compare_phases
from assay.experiments.contention.layout import ContentionLayout, LayoutCell, WorkerSlot, build_layout
from assay.experiments.contention.options import BASELINE_PHASES, PHASES, ContentionOptions
from assay.stats.blocks import MINIMUM_EFFECT
from assay.stats.ratios import Proportion
from assay.store.run_folder import RunFolder

if TYPE_CHECKING:
    from assay.experiments.contention.effects import PhaseComparisons

RESULTS = Path(__file__).parent / "results" / "contention.json"
SAMPLES = RESULTS.with_suffix(".samples.json.xz")
COMMAND = ("--device", "cpu", "--benchmark", "softmax@numpy", "--workers-per-device", "2", "--tuner", "none")
BUDGET_S = 44
RUNS, ANALYSES = 20, 200
KEPT_SAMPLES = 48  # of each process, evenly taken
FEWEST, MOST = 3, 6  # blocks of an A/A analysis
Kept = dict[str, Any]


def measure(seed: int, command: tuple[str, ...]) -> tuple[Kept, list[list[float]]]:
    """Return one run: median, mean and variation of every process with its place, and a few of its samples."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        words = ("contention", "run", *command, "--seed", str(seed), "--output-dir", folder)
        subprocess.run(
            [sys.executable, "-m", "assay", *words],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        run = RunFolder.open(Path(folder) / "latest")
        options = ContentionOptions.model_validate(run.plan.options)
        result = build_layout(run.machine, options, run.records())
        headline = json.loads((run.path / "findings.json").read_text())["headline"]
    took_s = time.monotonic() - begin
    first_s = result.cells[0].at_s
    cells = [
        [c.slot.device, c.slot.worker, c.block, c.phase, round(c.at_s - first_s, 2), len(c.samples), *_numbers(c)]
        for c in result.cells
    ]
    step = [max(1, len(c.samples) // KEPT_SAMPLES) for c in result.cells]
    samples = [
        [round(s, 2) for s in c.samples[::stride].tolist()] for c, stride in zip(result.cells, step, strict=True)
    ]
    summary: Kept = {"seed": seed, "headline": headline, "took_s": round(took_s, 1), "cells": cells}
    summary["machine"] = f"{run.machine.cpu_model or run.machine.architecture}, {len(run.machine.cores)} cores"
    return summary, samples


def _numbers(cell: LayoutCell) -> list[float | None]:
    """Return median and mean in microseconds, and the coefficient of variation."""
    median, mean = float(np.median(cell.samples)), float(cell.samples.mean())
    return [round(median, 3), round(mean, 3), None if cell.cv is None else round(cell.cv, 5)]


def run(expected: int) -> None:
    """Measure until so many runs are kept; each is written as it ends."""
    saved = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"runs": []}
    samples = json.loads(lzma.decompress(SAMPLES.read_bytes())) if SAMPLES.exists() else []
    for seed in range(len(saved["runs"]), expected):
        output, batch = measure(seed, (*COMMAND, "--budget", str(BUDGET_S)))
        saved["runs"].append(output)
        samples.append(batch)
        RESULTS.write_text(json.dumps(saved, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")
        SAMPLES.write_bytes(lzma.compress(json.dumps(samples, separators=(",", ":")).encode()))
        print(f"{seed + 1}/{expected} in {output['took_s']} s: {output['headline']}", flush=True)


def cells_of(results: Kept) -> list[LayoutCell]:
    """Return the processes of a kept run, each with its mean for its samples."""
    return [
        LayoutCell(
            WorkerSlot(0, device, worker), block, phase, "call_us", np.array([mean]), at_s, f"{block}/{phase}/{device}"
        )
        for device, worker, block, phase, at_s, _, _, mean, _ in results["cells"]
    ]


def judge_phases(cells: list[LayoutCell]) -> PhaseComparisons:
    """Return what is said of the times."""
    return compare_phases(
        ContentionLayout(tuple(cells), (), (), (), "call_us").table("call_us"), PHASES, MINIMUM_EFFECT
    )


def dealt(blocks: list[list[LayoutCell]], chance: random.Random) -> list[LayoutCell]:
    """Return pairs of neighbouring blocks as blocks in which nothing differs: their quiet cells, dealt out by lot."""
    results: list[LayoutCell] = []
    for number, cells in enumerate(blocks, 1):
        hands = list(dict.fromkeys((cell.block, cell.phase) for cell in cells))
        chance.shuffle(hands)
        phases = dict(zip(hands, PHASES, strict=True))
        results += [
            LayoutCell(c.slot, number, phases[c.block, c.phase], c.quantity, c.samples, c.at_s, c.trial) for c in cells
        ]
    return results


def pairs_of(runs: list[Kept]) -> list[list[LayoutCell]]:
    """Return the quiet cells of every two neighbouring blocks of a run that were measured whole."""
    results: list[list[LayoutCell]] = []
    for saved in runs:
        quiet = [cell for cell in cells_of(saved) if cell.phase in BASELINE_PHASES]
        for first, second in pairwise(sorted({cell.block for cell in quiet})):
            pair = [cell for cell in quiet if cell.block in {first, second}]
            if len({(cell.block, cell.phase) for cell in pair}) == len(PHASES):
                results.append(pair)
    return results


def false_alarms(runs: list[Kept]) -> dict[str, Proportion]:
    """Return how often A/A analyses say yes: of all devices together, and of any device at all."""
    pairs = pairs_of(runs)
    counts = {"together": 0, "anywhere": 0}
    for seed in range(ANALYSES):
        chance = random.Random(seed)
        blocks = [chance.choice(pairs) for _ in range(chance.randint(FEWEST, MOST))]
        verdict = judge_phases(dealt(blocks, chance))["naive"]
        counts["together"] += verdict.overall.verdict == "yes"
        counts["anywhere"] += verdict.overall.verdict == "yes" or any(
            slot.verdict == "yes" for slot in verdict.slots.values()
        )
    return {name: Proportion(count, ANALYSES) for name, count in counts.items()}


def with_spread(results: Kept) -> PhaseComparisons:
    """Return what is said of the spread, from samples of the kept coefficient of variation."""
    cells = [
        LayoutCell(
            WorkerSlot(0, device, worker), block, phase, "call_us", 1 + cv * np.array([-1.0, 1.0]) / 2**0.5, at_s, ""
        )
        for device, worker, block, phase, at_s, _, _, _, cv in results["cells"]
        if cv
    ]
    return compare_phases(
        ContentionLayout(tuple(cells), (), (), (), "call_us").table("call_us", "log_cv"), PHASES, MINIMUM_EFFECT
    )


def show_share(share: Proportion) -> str:
    """Write a count with the exact 95 % interval of the share."""
    low, high = share.interval() or (0.0, 1.0)
    return f"{share.count} of {share.n} ({100 * low:.1f} – {100 * high:.1f} %)"


def table(results: Kept) -> str:
    """Return the published table."""
    runs = results["runs"]
    collected = [judge_phases(cells_of(run)) for run in runs]
    n = len(runs)
    apart = sum(_excludes_one(run, "naive") for run in collected)
    yes = {phase: sum(run[phase].overall.verdict == "yes" for run in collected) for phase in PHASES[1:]}
    spread = sum(with_spread(run)["naive"].overall.verdict == "yes" for run in runs)
    slower = [run["naive"].overall.ratio.value for run in collected if run["naive"].overall.ratio is not None]
    blocks = [len({cell[2] for cell in run["cells"]}) for run in runs]
    alarms = false_alarms(runs)
    lines = [
        ("A/A control finds no difference", show_share(Proportion(n - yes["again"], n)), "≥ 18 of 20"),
        ("interval of the slowdown side by side excludes 1", show_share(Proportion(apart, n)), "–"),
        ("side by side called different", show_share(Proportion(yes["naive"], n)), "–"),
        ("isolated called different (two workers still share each core)",
         show_share(Proportion(yes["isolated"], n)), "–"),
        ("spread of repeats side by side called different", show_share(Proportion(spread, n)), "–"),
        (f"slowdown side by side, median of {n} runs (least – most)",
         f"{statistics.median(slower):.2f}× ({min(slower):.2f} – {max(slower):.2f})", "–"),
        ("blocks in a run, least – most", f"{min(blocks)} – {max(blocks)}", "≥ 3"),
        ("A/A analyses that say yes, devices together", show_share(alarms["together"]), "≤ 5 %, bound ≤ 8 %"),
        ("A/A analyses that say yes anywhere", show_share(alarms["anywhere"]), "≤ 5 %, bound ≤ 8 %"),
    ]  # fmt: skip
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join(["| what | measured | required |", "|---|---|---|", *rows])


def _excludes_one(result: PhaseComparisons, phase: str) -> bool:
    ratio = next(entry.overall.ratio for name, entry in result.items() if name == phase)
    return ratio is not None and ratio.low is not None and ratio.high is not None and not ratio.low <= 1 <= ratio.high


def main(words: list[str]) -> int:
    """Measure or verify."""
    if words[:1] == ["run"] and len(words) <= 2:
        run(int(words[1]) if len(words) == 2 else RUNS)
    elif words != ["verify"]:
        print(__doc__)
        return 2
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
