"""Is a GPU left as it was found, and is the best energy point right? Sweeps on fake GPUs, where both are known.

    python benchmarks/restore.py run [KILLS]    until so many kills (100) and all sweeps are kept; goes on where it was
    python benchmarks/restore.py verify         compute the tables again from what was kept

A kill is SIGKILL at a random moment of a sweep of two GPUs, of which one in five comes while it starts: of the sweep
alone, of its workers too, or of the guardian too, where ``assay reap`` restores. The fake's truth is analytic: power is
idle + load · (clock / highest clock)^exponent, held under the limit by lowering the clock, and the time of a call is
its cycles over the clock. Each sweep has two GPUs of different exponents, measured at once.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.experiments.power.sweep.curve import build_study, find_optimum
from assay.experiments.power.sweep.options import SweepOptions
from assay.stats.multiple_comparisons import fit_crossed
from assay.stats.ratios import Proportion
from assay.store.run_folder import RunFolder
from tests.cli.sweep_kills import KERNEL, VARIANTS, Changing, Killed, Spawned, killed
from tests.fakes.fake_nvml import FakeNvml, Gpu, attached, hopper

RESULTS = Path(__file__).parent / "results" / "restore.json"
KILLS = 100
AT_START, START_S, TRIALS_S = 5, 6.0, 4.0
"""One kill in so many comes within the first seconds of the process; the others after its first change of a GPU."""
SWEEPS = ((1.3, 1.5, 0), (1.4, 3.0, 1), (1.25, 2.0, 2), (1.35, 1.6, 3))
"""The exponents of the two GPUs, and the seed."""
MCYCLES, WATTS = 40.0, 560.0
LIMITS = "200:700:50"
Kept = dict[str, Any]


def run(expected: int) -> None:
    """Kill until so many kills are kept, then sweep until all sweeps are; each is written as it ends."""
    saved: Kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"kills": [], "sweeps": []}
    for number in range(len(saved["kills"]), expected):
        result = one_kill(number)
        saved["kills"].append(asdict(result))
        _keep(saved)
        print(f"kill {number + 1}/{expected}: {result}", flush=True)
    there = {sweep["seed"] for sweep in saved["sweeps"]}
    for first, second, seed in SWEEPS:
        if seed not in there:
            saved["sweeps"].append(one_sweep(first, second, seed))
            _keep(saved)
            print(f"sweep {len(saved['sweeps'])}/{len(SWEEPS)}: {saved['sweeps'][-1]['headline']}", flush=True)


def _keep(results: Kept) -> None:
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def one_kill(number: int) -> Killed:
    """Return what one kill came to."""
    chance = random.Random(number)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake = FakeNvml.create(folder / "scenario.nvml", [hopper(), hopper()], virtual=False)
        with attached(fake):
            variant = VARIANTS[number % len(VARIANTS)]
            if number % AT_START == 0:
                return killed(fake, Spawned, folder, chance, variant=variant, latest_s=START_S)
            return killed(fake, Changing, folder, chance, variant=variant, latest_s=TRIALS_S)


def one_sweep(first: float, second: float, seed: int) -> Kept:
    """Return the energy of a call, in J, at each limit and in each repeat of one sweep, as it was measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gpus = [card(exponent) for exponent in (first, second)]
        fake = FakeNvml.create(folder / "scenario.nvml", gpus, virtual=False)
        words = ["--gpus", "0,1", "--concurrent", "--limits", LIMITS, "--apply", "--param", f"work_mcycles={MCYCLES}"]
        words += ["--param", f"watts={WATTS}", "--duration", "3", "--settle", "0", "--seed", str(seed)]
        with attached(fake):
            subprocess.run(
                [sys.executable, "-m", "assay", "power", "sweep", KERNEL, *words, "--output-dir", str(folder / "runs")],
                check=True,
                stdout=subprocess.DEVNULL,
            )
        restored = [fake.gpu(index).power_limit_mw for index in range(2)] == [700_000, 700_000]
        folder = folder / "runs" / "latest"
        done = RunFolder.open(folder)
        options = SweepOptions.model_validate(done.plan.options)
        headline = json.loads((folder / "findings.json").read_text())["headline"]
        energy_j: dict[str, dict[str, list[float]]] = {}
        for reading in build_study(options, done.records()).readings:
            setting = options.points[reading.point].setting
            if setting is not None and reading.energy_per_call_j is not None:
                repeats = energy_j.setdefault(reading.device, {}).setdefault(f"{setting:g}", [])
                repeats.append(round(reading.energy_per_call_j, 5))
    exponents = {"cuda:0": first, "cuda:1": second}
    return {"seed": seed, "exponents": exponents, "energy_j": energy_j, "restored": restored, "headline": headline}


def card(exponent: float) -> Gpu:
    """Return a GPU whose power follows its clock with this exponent, and whose clock has fine steps."""
    return replace(hopper(), clock_exponent=exponent, sm_step_mhz=1)


def true_energy_j(limit_w: float, exponent: float) -> float:
    """Return what a call costs under a limit, by the fake's own law."""
    gpu = card(exponent)
    share = min(1.0, ((limit_w - gpu.idle_w) / WATTS) ** (1 / exponent))
    return min(limit_w, gpu.idle_w + WATTS) * MCYCLES / int(gpu.sm_max_mhz * share + 1e-6)


def judge_limits(energy_j: dict[str, list[float]], exponent: float) -> tuple[float, float, list[float], bool]:
    """Return the true best limit, the one found, those that may be it, and whether it is told."""
    limits = [float(limit) for limit in sorted(energy_j, key=float)]
    repeats = max(map(len, energy_j.values()))
    rows = [energy_j[f"{limit:g}"] for limit in limits]
    table = np.array([[math.log(v) for v in row] + [math.nan] * (repeats - len(row)) for row in rows])
    best = find_optimum(fit_crossed(table), limits, smooth=True)
    assert best is not None
    truth = min(limits, key=lambda limit: true_energy_j(limit, exponent))
    return truth, limits[best.index], [limits[position] for position in best.may_be], best.is_clear


def tables(results: Kept) -> str:
    """Return the published tables."""
    return f"{kills_table(results['kills'])}\n\n{sweeps_table(results['sweeps'])}"


def kills_table(kills: list[Kept]) -> str:
    """Return how many kills left everything as it was found, by whom was killed."""
    lines = [
        "| killed | kills | while a GPU was changed | all as found, nothing left | until then, median (longest), s |",
        "|---|---|---|---|---|",
    ]
    for name, several in [*((v, [k for k in kills if k["variant"] == v]) for v in VARIANTS), ("all", kills)]:
        if not several:
            continue
        whole = Proportion(sum(k["restored"] and not k["left"] and not k["leases"] for k in several), len(several))
        low, _ = whole.interval() or (0.0, 1.0)
        took = sorted(k["restored_s"] for k in several)
        lines.append(
            f"| {name} | {len(several)} | {sum(k['changed'] for k in several)} | {whole.count} of {whole.n} "
            f"(≥ {100 * low:.1f} %) | {took[len(took) // 2]:.1f} ({took[-1]:.1f}) |"
        )
    return "\n".join(lines)


def sweeps_table(sweeps: list[Kept]) -> str:
    """Return the best energy point of each fake GPU against the truth."""
    lines = ["| exponent | seed | true best, W | found, W | may be, W | within a step |", "|---|---|---|---|---|---|"]
    right = 0
    for sweep in sorted(sweeps, key=lambda entry: entry["seed"]):
        for device, exponent in sweep["exponents"].items():
            truth, result, may_be, output = judge_limits(sweep["energy_j"][device], exponent)
            near = abs(result - truth) <= 50
            right += near and truth in may_be
            words = f"{min(may_be):g} – {max(may_be):g}" if len(may_be) > 1 else f"{may_be[0]:g}"
            words += "" if output else " (not told)"
            cells = (f"{exponent:g}", sweep["seed"], f"{truth:g}", f"{result:g}", words, "yes" if near else "no")
            lines.append(f"| {' | '.join(map(str, cells))} |")
    lines.append(f"\n{right} of {2 * len(sweeps)} within one step, the truth among those that may be it.")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    """Measure or verify."""
    if words[:1] == ["run"] and len(words) <= 2:
        run(int(words[1]) if len(words) == 2 else KILLS)
    elif words != ["verify"]:
        print(__doc__)
        return 2
    print(tables(json.loads(RESULTS.read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
