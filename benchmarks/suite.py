"""Is the suite green, and how long does it take: alone, on a busy machine, without a network and with no environment?

    python benchmarks/suite.py run       run ``make test`` so often in each way; goes on where it was
    python benchmarks/suite.py verify    compute the table again from what was kept

One way after the other. Bare: in a network namespace that has nothing but the loopback interface, with PATH and HOME as
the whole environment; it needs the right to make one. Busy: beside four processes that compute all the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "suite.json"
WANTED = {"alone": 5, "bare": 5, "busy": 10}
LOOPS = 4
LIMIT_S = 300.0
"""What a run may take that has the machine for itself."""
BARE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "bare")
Run = dict[str, Any]


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Have so many processes compute."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def once(method: str) -> Run:
    """Run the suite in one way; return how it ended."""
    with tempfile.TemporaryDirectory() as folder, busy(LOOPS if method == "busy" else 0):
        report = Path(folder) / "report.xml"
        summary = {name: os.environ[name] for name in ("PATH", "HOME")} if method == "bare" else dict(os.environ)
        command = [*(BARE if method == "bare" else ()), "make", "test"]
        begin = time.monotonic()
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={**summary, "PYTEST_ADDOPTS": f"--junitxml={report}"},
            stdout=subprocess.DEVNULL,
            check=False,
        )
        took_s = round(time.monotonic() - begin, 1)
        return {"way": method, "exit_code": ended.returncode, "took_s": took_s, **_counted(report)}


def _counted(report: Path) -> Run:
    """Return how many tests there were, and the names of those that did not pass."""
    if not report.exists():
        return {"tests": 0, "skipped": 0, "failed": []}
    suite = next(ET.parse(report).iter("testsuite"))  # noqa: S314 - our own file
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {"tests": int(suite.get("tests", 0)), "skipped": int(suite.get("skipped", 0)), "failed": failed}


def run() -> None:
    """Run what is not kept yet, one way after the other."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    saved = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if saved.get("commit") != commit:
        saved = {"commit": commit, "cores": os.cpu_count(), "runs": []}
    for method, targets in WANTED.items():
        while sum(run["way"] == method for run in saved["runs"]) < targets:
            saved["runs"].append(once(method))
            RESULTS.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
            print(saved["runs"][-1], flush=True)


def table(runs: list[Run]) -> str:
    """Return the published table."""
    lines = ["| way | runs | green | tests | median, s | longest, s |", "|---|---|---|---|---|---|"]
    for method in WANTED:
        own = [run for run in runs if run["way"] == method]
        if own:
            took_s = [run["took_s"] for run in own]
            middle, longest = statistics.median(took_s), max(took_s)
            green = sum(not run["exit_code"] and not run["failed"] for run in own)
            tests = max(run["tests"] - run["skipped"] for run in own)
            lines.append(f"| {method} | {len(own)} | {green} | {tests} | {middle:.0f} | {longest:.0f} |")
    return "\n".join(lines)


def holds(runs: list[Run]) -> bool:
    """Return whether every run that was asked for is there and green, and those alone were fast enough."""
    counts = {method: sum(run["way"] == method for run in runs) for method in WANTED}
    green = all(not run["exit_code"] and run["tests"] and not run["failed"] for run in runs)
    return counts == WANTED and green and all(run["took_s"] <= LIMIT_S for run in runs if run["way"] == "alone")


def main() -> int:
    """Run or verify; ends with 1 where a run failed, is missing or took too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("run")
    verbs.add_parser("verify")
    if parser.parse_args().verb == "run":
        run()
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    print(table(runs))
    for entry in runs:
        for name in entry["failed"]:
            print(f"failed ({entry['way']}): {name}")
    return 0 if holds(runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
