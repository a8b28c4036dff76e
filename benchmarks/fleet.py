"""Does the analysis find what was planted? Simulated fleets of 10,000 GPUs, and four GPUs as an older tool saw them.

python benchmarks/fleet.py run       simulate and analyse (minutes), keep every outcome, print the tables
python benchmarks/fleet.py verify    compute the tables again from the kept outcomes

A fleet is written as real run folders and analysed by the real verb in a process of its own, on two cores. All of it is
simulated: it shows what the analysis can tell, and nothing about any GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.experiments.power.variability.analysis import analyse_fleet
from assay.experiments.power.variability.fleet import group_fleets
from tests.experiments.power.simulated_fleets import SEED_TWO_MS, Setting, four_gpus, simulate, write

RESULTS = Path(__file__).parent / "results" / "fleet.json"
CORES = 2
SEEDS = 4
FOURS = 400
LONGEST_S, LARGEST_MIB = 60.0, 2048.0
FALSE = 0.01
ALIKE = Setting(nodes=1250, slow=60, hot=30, hungry=30)
HOT = replace(ALIKE, hot_racks=16, slow_in_hot_racks=20)
SETTINGS = {
    "racks alike": ALIKE,
    "16 of 157 racks run hot": HOT,
    "the same, GPUs scatter with heavy tails": replace(HOT, tails=5.0),
    "nothing is planted": Setting(nodes=1250),
}
Kept = dict[str, Any]


def analysed(folder: Path) -> tuple[Kept, float, float]:
    """Return what the verb says of a fleet, how long it took, and the most memory it had, in MiB."""
    command = [sys.executable, "-m", "assay", "power", "variability", str(folder / "runs"), "--json"]
    began = time.monotonic()
    with (folder / "said.json").open("wb") as out:
        process = subprocess.Popen(
            [*command, "--output", str(folder / "report")],
            stdout=out,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "ASSAY_HOME": str(folder / "home")},
        )
        _, status, used = os.wait4(process.pid, 0)
    took = time.monotonic() - began
    if status:
        raise RuntimeError(f"the verb ended with status {status}")
    return json.loads((folder / "said.json").read_text()), took, used.ru_maxrss / 1024


def fleet(setting: Setting, seed: int) -> Kept:
    """Return what one fleet came to: what was planted, and what was called, by UUID."""
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        simulated = simulate(setting, seed)
        write(simulated, folder / "runs")
        output, took_s, most_mib = analysed(folder)
        sample = len(list((folder / "report" / "figures").glob("*.png")))
    called: dict[str, list[str]] = {}
    racks: set[str] = set()
    for finding in output["findings"]:
        facts = finding["facts"]
        if finding["kind"] == "outlier" and finding["verdict"] == "yes":
            called.setdefault(facts["kind"], []).append(facts["uuid"])
        if finding["kind"] == "rack" and finding["verdict"] == "yes":
            racks.add(facts["name"])
    return {
        "seed": seed,
        "gpus": setting.nodes * setting.gpus,
        "rows": setting.nodes * setting.gpus * setting.runs,
        "took_s": round(took_s, 2),
        "most_mib": round(most_mib),
        "figures": sample,
        "slow": sorted(simulated.slow),
        "slow_in_hot_racks": sorted(simulated.slow & simulated.in_hot_racks),
        "hot": sorted(simulated.hot),
        "hungry": sorted(simulated.hungry),
        "hot_racks": sorted(simulated.hot_racks),
        "called": {kind: sorted(uuids) for kind, uuids in called.items()},
        "racks": sorted(racks),
        "headline": output["headline"],
    }


def four(seed: int) -> list[float | None]:
    """Return of four GPUs whether their order is right, the spread with its interval, and rho of heat and time."""
    looked = analyse_fleet(group_fleets(four_gpus(seed)).fleets[0], 0.02)
    numbers, fleet_ = looked.numbers["time"], looked.fleet
    order = [fleet_.gpus[position].uuid for position in np.argsort(numbers.value)]
    equal = next(pair for pair in looked.pairs if pair.equal == "power")
    spread = looked.spread
    assert spread is not None
    assert spread.low is not None
    assert spread.high is not None
    assert equal.association is not None
    right = float(order == sorted(order))
    return [right, *(round(entry, 5) for entry in (spread.ratio, spread.low, spread.high, equal.association.rho))]


def run() -> Kept:
    """Return every outcome."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # and so the verb, which is started from here
    fleets = {name: [fleet(setting, seed) for seed in range(SEEDS)] for name, setting in SETTINGS.items()}
    return {"cores": CORES, "fleets": fleets, "four": [four(seed) for seed in range(FOURS)]}


def rate(k: int, n: int) -> str:
    """Return a share with its exact 95 % binomial interval, in percent."""
    bounds = stats.binomtest(k, n).proportion_ci()
    return f"{100 * k / n:.2f} ({100 * bounds.low:.2f}–{100 * bounds.high:.2f})"


def _line(name: str, outcomes: list[Kept]) -> str:
    results = {kind: [sum(u in set(o["called"].get(kind, ())) for u in o[kind]) for o in outcomes] for kind in KINDS}
    cells = [f"{sum(results[kind])} of {sum(len(o[kind]) for o in outcomes)}" for kind in KINDS]
    hidden = sum(u in set(o["called"].get("slow", ())) for o in outcomes for u in o["slow_in_hot_racks"])
    cells[0] += f" ({hidden} of {sum(len(o['slow_in_hot_racks']) for o in outcomes)} in hot racks)"
    wrong, others = 0, 0
    for outcome in outcomes:
        planted = {uuid for kind in KINDS for uuid in outcome[kind]}
        wrong += len({uuid for uuids in outcome["called"].values() for uuid in uuids} - planted)
        others += outcome["gpus"] - len(planted)
    racks = sum(len(set(o["racks"]) & set(o["hot_racks"])) for o in outcomes)
    strange = sum(len(set(o["racks"]) - set(o["hot_racks"])) for o in outcomes)
    summary = f"{racks} of {sum(len(o['hot_racks']) for o in outcomes)}, {strange} others"
    took, most = max(o["took_s"] for o in outcomes), max(o["most_mib"] for o in outcomes)
    return f"| {name} | {' | '.join(cells)} | {summary} | {rate(wrong, others)} | {took:.0f} | {most / 1024:.2f} |"


KINDS = ("slow", "hot", "hungry")


def table(results: Kept) -> list[str]:
    """Return the tables as Markdown."""
    titles = ("slow found", "hot found", "hungry found", "hot racks found", "false outliers, %", "most s", "most GiB")
    lines = [f"| {SEEDS} fleets of 10,000 GPUs each | {' | '.join(titles)} |", f"|{(1 + len(titles)) * '---|'}"]
    lines += [_line(name, outcomes) for name, outcomes in results["fleets"].items()]
    fours = np.array(results["four"])
    true = SEED_TWO_MS[-1] / SEED_TWO_MS[0]
    covered = int(((fours[:, 2] <= true) & (true <= fours[:, 3])).sum())
    n = len(fours)
    lines += [
        "",
        f"| four GPUs, 2.2 % apart, {n} seeds | % (95 % bounds) |",
        "|---|---|",
        f"| order of the four right | {rate(int(fours[:, 0].sum()), n)} |",
        f"| spread within 0.2 % of the truth | {rate(int((np.abs(fours[:, 1] - true) <= 0.002).sum()), n)} |",
        f"| interval of the spread holds the truth | {rate(covered, n)} |",
        f"| hotter is slower at equal power | {rate(int((fours[:, 4] > 0.5).sum()), n)} |",
    ]
    return lines


def faults(results: Kept) -> list[str]:
    """Return what is not as it should be."""
    output = []
    for name, outcomes in results["fleets"].items():
        for outcome in outcomes:
            where = f"{name}, seed {outcome['seed']}"
            called = outcome["called"]
            missed = set(outcome["slow"]) - set(called.get("slow", ()))
            planted = {uuid for kind in KINDS for uuid in outcome[kind]}
            wrong = len({uuid for uuids in called.values() for uuid in uuids} - planted)
            output += [f"{where}: {len(missed)} slow GPUs missed"] if missed else []
            output += [f"{where}: {wrong} false outliers"] if wrong > FALSE * (outcome["gpus"] - len(planted)) else []
            output += [f"{where}: took {outcome['took_s']} s"] if outcome["took_s"] > LONGEST_S else []
            output += [f"{where}: had {outcome['most_mib']} MiB"] if outcome["most_mib"] > LARGEST_MIB else []
    return output


def main() -> int:
    """Run or verify; the exit code says whether all is as it should be."""
    if sys.argv[1:] == ["run"]:
        RESULTS.write_text(json.dumps(run(), indent=1) + "\n", encoding="utf-8")
    elif sys.argv[1:] != ["verify"]:
        print(__doc__)
        return 2
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    print("\n".join(table(saved)))
    wrong = faults(saved)
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
