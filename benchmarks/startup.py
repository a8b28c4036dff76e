"""How long ``assay --help`` takes, as a multiple of ``python -c pass`` in the same run.

python benchmarks/startup.py run       measure, keep the raw samples, print the table
python benchmarks/startup.py verify    compute the table again from the kept samples
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "startup.json"
ROUNDS = 40
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "assay --help": [sys.executable, "-m", "assay", "--help"],
    "assay run --help": [sys.executable, "-m", "assay", "run", "--help"],
}


def run() -> dict[str, list[float]]:
    """Return milliseconds of each command, interleaved in random order."""
    samples: dict[str, list[float]] = {name: [] for name in COMMANDS}
    shuffle = random.Random(0).shuffle
    for _ in range(ROUNDS):
        order = list(COMMANDS)
        shuffle(order)
        for name in order:
            begin = time.perf_counter()
            subprocess.run(COMMANDS[name], stdout=subprocess.DEVNULL, check=True)
            samples[name].append((time.perf_counter() - begin) * 1e3)
    return samples


def table(samples: dict[str, list[float]]) -> str:
    """Return the published table: medians, and their ratio to the bare interpreter within the run."""
    bare = statistics.median(samples["python -c pass"])
    lines = ["| command | median, ms | times `python -c pass` |", "|---|---|---|"]
    for name, batch in samples.items():
        median = statistics.median(batch)
        lines.append(f"| `{name}` | {median:.1f} | {median / bare:.1f} |")
    return "\n".join(lines)


def main() -> int:
    """Measure or verify."""
    if sys.argv[1:] == ["run"]:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"unit": "ms", "samples": run()}, indent=1) + "\n", encoding="utf-8")
    elif sys.argv[1:] != ["verify"]:
        print(__doc__)
        return 2
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))["samples"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
