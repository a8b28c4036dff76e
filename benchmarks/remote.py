"""What does it cost to measure on another machine? The same command here and over ssh, in turns, on loopback.

    python benchmarks/remote.py run [ROUNDS]   measure, keep every time, print the table
    python benchmarks/remote.py verify         compute the table again from what was kept

The other machine is a real sshd on loopback with a cache of its own, whose environment was made before the first round:
what is left is logging in, sending words and files, starting there, listening, and bringing the run back. Each round
has, in random order, the command here, the command with ``--on ssh:``, and a bare ``ssh HOST true``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.stats.intervals import median_interval
from assay.store.run_folder import RunFolder
from tests.hosts.ssh.server import NAME, Server

RESULTS = Path(__file__).parent / "results" / "remote.json"
ROUNDS = 20
BARE, HERE, THERE = "ssh true", "here", "over ssh"
WORK = "def work():\n    return sum(range(20000))\n"
COMMAND = (
    "run", "bench.py:work", "--device", "cpu:0", "--isolation", "none", "--warmup-runs", "50",
    "--benchmark-runs", "1000", "--restarts", "1", "--no-monitor", "--no-history", "--output-dir", "runs",
)  # fmt: skip

Round = dict[str, dict[str, float]]


def run(rounds: int) -> list[Round]:
    """Return the times of every round."""
    with tempfile.TemporaryDirectory(prefix="assay-remote-") as scratch:
        folder = Path(scratch)
        (folder / "bench.py").write_text(WORK, encoding="utf-8")
        (folder / "ssh").mkdir()
        server = Server(folder / "ssh")
        server.start()
        os.environ["PATH"] = f"{server.bin}{os.pathsep}{os.environ['PATH']}"
        os.environ["ASSAY_HOME"] = str(folder / "home")
        try:
            command(folder, THERE)  # makes the environment, and Python's caches there
            command(folder, THERE)
            command(folder, HERE)
            shuffle = random.Random(0).shuffle
            saved: list[Round] = []
            for number in range(rounds):
                order = [BARE, HERE, THERE]
                shuffle(order)
                saved.append({name: bare() if name == BARE else command(folder, name) for name in order})
                summary = {name: round(times["whole_s"], 2) for name, times in saved[-1].items()}
                print(f"round {number + 1} of {rounds}: {summary}", file=sys.stderr)
            return saved
        finally:
            server.stop()


def bare() -> dict[str, float]:
    """Return how long a login takes that does nothing."""
    begun = time.monotonic_ns()
    subprocess.run(["ssh", NAME, "true"], check=True)
    return {"whole_s": (time.monotonic_ns() - begun) / 1e9}


def command(directory: Path, name: str) -> dict[str, float]:
    """Return when the first sample was taken after the command was given, when it was done, and a call's median."""
    on = ["--on", f"ssh:{NAME}", "--remote-python", sys.executable] if name == THERE else []
    shutil.rmtree(directory / "runs", ignore_errors=True)
    begun = time.monotonic_ns()
    subprocess.run([sys.executable, "-m", "assay", *COMMAND, *on], cwd=directory, check=True, capture_output=True)
    ended = time.monotonic_ns()
    folder = RunFolder.open(directory / "runs" / "latest")
    (record,) = folder.records()
    if (record.status, record.origin) != ("ok", "real"):
        raise AssertionError(record)
    (series,) = record.series
    samples = np.load(folder.path / series.file)
    return {
        "first_s": (series.start_ns - begun) / 1e9,
        "rest_s": (ended - series.end_ns) / 1e9,
        "whole_s": (ended - begun) / 1e9,
        "call_us": float(np.median(samples)),
    }


def table(rounds: list[Round]) -> str:
    """Return the published table: medians over rounds, and the median of the differences within rounds."""
    rows = {
        "from the command to the first sample, s": ("first_s", False),
        "from the last sample to the prompt, s": ("rest_s", False),
        "the whole command, s": ("whole_s", False),
        "the median call that was measured, µs": ("call_us", True),
    }
    lines = ["| | here | over ssh | ssh costs (95 % interval) |", "|---|---|---|---|"]
    for label, (key, relative) in rows.items():
        here, there = (np.array([sample[name][key] for sample in rounds]) for name in (HERE, THERE))
        lines.append(
            f"| {label} | {np.median(here):.{1 if relative else 2}f} | {np.median(there):.{1 if relative else 2}f} "
            f"| {beyond(here, there, relative=relative)} |"
        )
    login = statistics.median(sample[BARE]["whole_s"] for sample in rounds)
    lines += ["", f"A bare `ssh HOST true` took {login:.2f} s in the same {len(rounds)} rounds (median)."]
    return "\n".join(lines)


def beyond(here: np.ndarray, there: np.ndarray, *, relative: bool) -> str:
    """Write by how much more one is than the other, round by round."""
    extra = (there / here - 1) * 100 if relative else there - here
    unit = " %" if relative else ""
    result = median_interval(extra)
    interval = "no interval" if result is None else f"{result[0]:+.2f} to {result[1]:+.2f}"
    return f"{np.median(extra):+.2f}{unit} ({interval})"


def main() -> int:
    """Measure or verify."""
    if sys.argv[1:2] == ["run"]:
        saved = run(int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
        RESULTS.write_text(json.dumps({"unit": "s", "rounds": saved}, indent=1) + "\n", encoding="utf-8")
    elif sys.argv[1:] != ["verify"]:
        print(__doc__)
        return 2
    print(table(json.loads(RESULTS.read_text(encoding="utf-8"))["rounds"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
