"""Is a function ever called faster or slower than itself, beside a busy neighbour and with a slow call among the first?

python benchmarks/self_comparison.py run [--tries 300] [--budget 1] [--to FILE]    compare again and again
python benchmarks/self_comparison.py verify [--from FILE]             compute the table again from what was kept

Two copies of the same function, of about 0.4, 6, 30 and 300 µs in turn, are handed to ``assay.compare``. On each core
that this process may use a neighbour spins all the time. One of the first calls of one copy takes 2 ms longer, once.
Every round of every try is kept. Ends with 1 where there are more wrong verdicts than one in a hundred.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import math
import os
import random
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESULTS = Path(__file__).parent / "results" / "self_comparison.json.xz"
TRIES, BUDGET_S = 300, 1.0
WRONG_SHARE = 0.01
SLOW_S = 0.002
FIRST_CALLS = 60
SIZES = {"0.4 µs": 10, "6 µs": 400, "30 µs": 2_000, "300 µs": 20_000}
NEIGHBOUR = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**5): pass"
Kept = dict[str, Any]


@contextlib.contextmanager
def neighbours() -> Iterator[int]:
    """Have a process spin on each core that this one may use; give how many."""
    cores = sorted(os.sched_getaffinity(0))
    started = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in cores]
    for process, core in zip(started, cores, strict=True):
        os.sched_setaffinity(process.pid, {core})
    try:
        yield len(started)
    finally:
        for process in started:
            process.kill()
            process.wait()


def copy(size: int, slow_call: int = 0) -> Callable[[], int]:
    """Return a copy of the function; the call of that number, from 1, takes 2 ms longer."""
    numbers = range(size)
    calls = count(1)

    def function() -> int:
        if next(calls) == slow_call:
            end = time.perf_counter() + SLOW_S
            while time.perf_counter() < end:
                pass
        return sum(numbers)

    return function


def one_try(number: int, budget_s: float) -> Kept:
    """Compare a function with itself; return what came out, and every round."""
    from assay.timing.compare import compare

    size = list(SIZES)[number % len(SIZES)]
    slow_call = random.Random(number).randint(1, FIRST_CALLS)
    functions = {"a": copy(SIZES[size]), "b": copy(SIZES[size], slow_call)}
    if number // len(SIZES) % 2:
        functions = {"b": functions["b"], "a": functions["a"]}
    result = compare(functions, device="cpu", budget_s=budget_s, seed=number)
    other = result.others[0]
    return {
        "size": size,
        "slow_call": slow_call,
        "verdict": other.verdict,
        "ratio": other.ratio,
        "low": other.low,
        "high": other.high,
        "stopped": result.stopped,
        "rounds_us": [[float(f"{us:.6g}") for us in side] for side in result.series.values()],
    }


def run(tries: int, budget_s: float, to: Path) -> Kept:
    """Compare again and again."""
    with neighbours() as busy:
        saved: Kept = {"budget_s": budget_s, "neighbours": busy, "tries": []}
        for number in range(tries):
            saved["tries"].append(one_try(number, budget_s))
            if (number + 1) % 20 == 0:
                print(f"{number + 1} of {tries}, {len(wrong(saved['tries']))} wrong", flush=True)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(lzma.compress(json.dumps(saved).encode()))
    return saved


def wrong(tries: list[Kept]) -> list[Kept]:
    """Return the tries in which a function was called faster or slower than itself."""
    return [attempt for attempt in tries if attempt["verdict"] in {"faster", "slower"}]


def table(results: Kept) -> str:
    """Return the published table."""
    lines = [
        f"{len(results['tries'])} tries of {results['budget_s']:g} s beside {results['neighbours']} busy neighbours:",
        "",
        "| function | tries | faster or slower | same | unsure | ratio of all rounds, 5 % to 95 % of tries |",
        "|---|---|---|---|---|---|",
    ]
    for size in (*SIZES, "all"):
        tries = [attempt for attempt in results["tries"] if size in {attempt["size"], "all"}]
        if not tries:
            continue
        verdicts = [attempt["verdict"] for attempt in tries]
        ratios = np.array([np.median(np.log(second) - np.log(first)) for first, second in map(_rounds, tries)])
        low, high = (math.exp(q) for q in np.quantile(ratios, [0.05, 0.95]))
        cells = (size, len(tries), len(wrong(tries)), verdicts.count("same"), verdicts.count("unsure"))
        lines.append(f"| {' | '.join(map(str, cells))} | {low:.4f} to {high:.4f} |")
    return "\n".join(lines)


def _rounds(entry: Kept) -> tuple[Any, Any]:
    first, second = (np.maximum(np.asarray(side), 1e-6) for side in entry["rounds_us"])
    return first, second


def main() -> int:
    """Compare or verify."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "verify"])
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds of each try")
    parser.add_argument("--to", "--from", dest="file", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.verb == "run":
        run(options.tries, options.budget, options.file)
    saved = json.loads(lzma.decompress(options.file.read_bytes()))
    print(table(saved))
    return 0 if len(wrong(saved["tries"])) <= WRONG_SHARE * len(saved["tries"]) else 1


if __name__ == "__main__":
    sys.exit(main())
