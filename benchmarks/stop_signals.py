"""Does a command end when it is asked to, at whatever moment? SIGTERM and SIGINT at seeded moments of five commands.

    python benchmarks/stop_signals.py run [MOMENTS]    until so many moments of each command (40) are kept; goes on
    python benchmarks/stop_signals.py verify           compute the table again from what was kept

The moments of a command are uniform over the time that it takes undisturbed, and a tenth more. It should end with exit
code 4 and leave no process, no lease and no temporary file. Before Assay's own code runs, the signal kills Python: that
is "not yet started". A command whose result was complete when the signal came may end with 0. Of every fourth run that
was stopped it is tried whether `assay resume` goes on with it. Times depend on how busy the machine is; the load
average is kept beside them.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.stats.ratios import Proportion
from tests.cli.stop_moments import VERBS, Verb, stopped, undisturbed_s

RESULTS = Path(__file__).parent / "results" / "stop_signals.json"
MOMENTS = 40
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LATE = 1.1
RESUMED = 4
LIMIT_S = 5.0
Kept = dict[str, Any]


def run(expected: int) -> None:
    """Stop every command so often; each stop is written as it ends."""
    saved: Kept = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"undisturbed_s": {}, "stops": []}
    )
    for verb in VERBS:
        if verb not in saved["undisturbed_s"]:
            with tempfile.TemporaryDirectory() as name:
                saved["undisturbed_s"][verb] = round(undisturbed_s(verb, Path(name) / "work"), 3)
            _keep(saved)
    for number in range(expected):
        for verb in VERBS:
            if sum(stop["verb"] == verb for stop in saved["stops"]) <= number:
                saved["stops"].append(one_stop(verb, number, saved["undisturbed_s"][verb]))
                _keep(saved)
                print(f"{number + 1}/{expected} {saved['stops'][-1]}", flush=True)


def one_stop(verb: Verb, number: int, takes_s: float) -> Kept:
    """Return what one signal came to."""
    chance = random.Random(f"{verb} {number}")
    at_s, sent = chance.uniform(0, LATE * takes_s), SIGNALS[number % len(SIGNALS)]
    with tempfile.TemporaryDirectory() as name:
        result = stopped(verb, sent, at_s, Path(name) / "work", resume=number % RESUMED == 0)
    return {**asdict(result), "good": result.good}


def _keep(results: Kept) -> None:
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def table(results: Kept) -> str:
    """Return the published table."""
    lines = [
        (
            "| command | takes, s | signals | stopped (4) | finished (0) | not yet started | wrong | nothing left | "
            f"resumed | until it had ended, median (longest), s | within {LIMIT_S:g} s |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in (*VERBS, "all"):
        stops = [stop for stop in results["stops"] if name in {stop["verb"], "all"}]
        if stops:
            lines.append(_row(name, stops, results["undisturbed_s"].get(name)))
    return "\n".join(lines)


def _row(name: str, stops: list[Kept], takes_s: float | None) -> str:
    outcomes = Counter(stop["outcome"] for stop in stops)
    clean = sum(not stop["processes"] and not stop["leases"] and not stop["files"] for stop in stops)
    low, _ = Proportion(clean, len(stops)).interval() or (0.0, 1.0)
    resumed = [stop["resumed"] for stop in stops if stop["resumed"] is not None]
    exits_s = sorted(stop["exit_s"] for stop in stops)
    cells = (
        name,
        "" if takes_s is None else f"{takes_s:.1f}",
        len(stops),
        *(outcomes[which] for which in ("stopped", "finished", "not yet started", "wrong")),
        f"{clean} of {len(stops)} (≥ {100 * low:.1f} %)",
        f"{sum(code == 0 for code in resumed)} of {len(resumed)}",
        f"{exits_s[len(exits_s) // 2]:.2f} ({exits_s[-1]:.2f})",
        f"{sum(exit_s <= LIMIT_S for exit_s in exits_s)} of {len(stops)}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Measure or verify."""
    if sys.argv[1:2] == ["run"]:
        RESULTS.parent.mkdir(exist_ok=True)
        run(int(sys.argv[2]) if len(sys.argv) > 2 else MOMENTS)
    elif sys.argv[1:] != ["verify"]:
        print(__doc__)
        return 2
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    print(table(saved))
    wrong = [stop for stop in saved["stops"] if not stop["good"] or stop["exit_s"] > LIMIT_S]
    for stop in wrong:
        print(f"\nnot good: {stop}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
