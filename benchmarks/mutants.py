"""Do the tests notice when code that decides is broken? Faults, put in one at a time, and the tests run on each.

    python benchmarks/mutants.py trace                  run the tests once, and keep which of them run which line
    python benchmarks/mutants.py run SEED [--mutants N] put N faults (400) in, drawn by the seed; goes on where it was
    python benchmarks/mutants.py survey MODULE ...      try all faults of modules (stats/selection.py) with quick tests
    python benchmarks/mutants.py by-hand                put in those of `semantic_faults.json` beside this file
    python benchmarks/mutants.py verify                 compute the tables again from what was kept

Faults are drawn alike from every module of `stats`, `timing`, `joules`, `isolation`, of what experiments find, and of
the choice among offers (see `MODULES`, `REPORTS` and `ON_GPU`). Each goes into a copy of the source, and the tests that
run its line are run on that copy, the quickest first, until one fails. A fault that no test notices is a survivor;
`mutants_equivalent.json` beside the results names those that change nothing, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.stats.ratios import Proportion
from benchmarks.mutant_operators import Fault, faults

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "assay"
MODULES = (
    "stats/*.py", "timing/**/*.py", "joules/*.py", "isolation/*.py", "hosts/offers.py", "machine/devices.py",
    "experiments/**/findings.py", "experiments/**/effects.py", "experiments/**/analysis.py",
    "experiments/power/characterize/study.py",
)  # fmt: skip
"""Modules that decide in every line."""
REPORTS = (
    "experiments/**/report.py", "experiments/compare/variance.py", "experiments/gate.py",
    "experiments/scaling_prediction.py",
)  # fmt: skip
"""Modules that also draw pages: of these, faults are drawn from what their conclusions are made of."""
CONCLUSIONS = ("analyse", "answer", "compare", "finding", "headline", "ratio")
"""What the names of functions contain that conclude."""
ON_GPU = (
    "timing/cuda/",
    "timing/continuous.py:StreamEvent", "timing/continuous.py:_QueuedSample", "timing/continuous.py:EventCallStream",
    "joules/devices.py:CudaCallLoad",
    "joules/devices.py:open_cuda_device", "joules/devices.py:CudaEnergyDevice", "joules/devices.py:CudaLoadBuilder",
    "joules/devices.py:_capability_notes", "joules/devices.py:_repeat_call", "joules/devices.py:_replay_s",
    "joules/devices.py:_host_gap_s", "joules/devices.py:_launch_s", "joules/devices.py:matmul_load",
)  # fmt: skip
"""Modules and definitions that only a GPU runs; no faults are drawn from them, as `pytest -m gpu` has their tests."""
TESTS = (
    "tests/stats", "tests/timing", "tests/joules", "tests/isolation", "tests/experiments",
    "tests/hosts/test_choose.py", "tests/hosts/test_choose_edges.py", "tests/machine/test_cuda_devices.py",
)  # fmt: skip
TRACE = ROOT / ".mutants"
RESULTS = Path(__file__).parent / "results" / "mutants.json"
EQUIVALENT = Path(__file__).parent / "results" / "mutants_equivalent.json"
BY_HAND = Path(__file__).parent / "semantic_faults.json"
BY_HAND_RESULTS = Path(__file__).parent / "results" / "semantic_faults.json"
MUTANTS, REQUIRED, MOST_EQUIVALENT = 400, 371 / 400, 0.05
REQUIRED_BY_HAND = 36 / 40
LIMIT_S, JOBS = 300.0, os.cpu_count() or 2
SURVEY_S = 20.0
"""In a survey, a fault has the quickest tests that take so long together."""
LOADING = 0
"""In place of a line: that of a constant is run when its module is loaded, and all tests of the module depend on it."""
Kept = dict[str, Any]


def modules() -> list[str]:
    """Return the modules that faults are put into, by their path below the package."""
    paths = {path for pattern in (*MODULES, *REPORTS) for path in SOURCE.glob(pattern) if path.name != "__init__.py"}
    names = sorted(str(path.relative_to(SOURCE)) for path in paths)
    return [name for name in names if not name.startswith(ON_GPU)]


def module_faults(name: str) -> list[Fault]:
    """Return the faults of a module: in a report, of its conclusions; nowhere, of what only a GPU runs."""
    source = (SOURCE / name).read_text(encoding="utf-8")
    definitions = dict(_definitions(ast.parse(source)))
    skipped = {entry.partition(":")[2] for entry in ON_GPU if entry.startswith(f"{name}:")}
    if any((SOURCE / name) in SOURCE.glob(pattern) for pattern in REPORTS):
        skipped |= definitions.keys() - _conclusions(definitions)
    lines = {n for gone in skipped for n in range(definitions[gone].lineno, (definitions[gone].end_lineno or 0) + 1)}
    return [fault for fault in faults(source) if fault.line not in lines]


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node
            case ast.Assign(targets=[target]):
                yield ast.unparse(target), node


def _conclusions(definitions: dict[str, ast.stmt]) -> set[str]:
    """Return the functions that conclude, and all definitions that they use, directly or not."""
    reached: set[str] = set()
    new = {name for name in definitions if any(part in name for part in CONCLUSIONS)}
    while new:
        reached |= new
        used = {node.id for name in new for node in ast.walk(definitions[name]) if isinstance(node, ast.Name)}
        new = (used & definitions.keys()) - reached
    return reached


def draw_faults(seed: int, count: int) -> list[tuple[str, Fault]]:
    """Return so many faults, alike from every module as far as it has some, in random order."""
    chance = random.Random(seed)
    left = {name: module_faults(name) for name in modules()}
    for of_module in left.values():
        chance.shuffle(of_module)
    results: list[tuple[str, Fault]] = []
    while len(results) < count and any(left.values()):
        names = [name for name, of_module in left.items() if of_module]
        chance.shuffle(names)
        results += [(name, left[name].pop()) for name in names[: count - len(results)]]
    return results


def trace() -> None:
    """Run the tests under coverage, one process for every part of them; keep who runs what, and how long each takes."""
    shutil.rmtree(TRACE, ignore_errors=True)
    TRACE.mkdir()
    (TRACE / "coveragerc").write_text(f"[run]\nsource = {SOURCE}\ndata_file = {TRACE}/data\nparallel = True\n")
    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(_traced, TESTS))
    subprocess.run([sys.executable, "-m", "coverage", "combine", "--rcfile", str(TRACE / "coveragerc")], check=True)


def _traced(part: str) -> None:
    words = ["-m", "coverage", "run", "--rcfile", str(TRACE / "coveragerc"), "-m", "pytest", "-q", part]
    subprocess.run(
        [sys.executable, *words, "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "benchmarks.mutant_trace"],
        cwd=ROOT,
        env={**os.environ, "CI": "1", "MUTANT_TRACE_TIMES": str(TRACE / f"{Path(part).stem}.json")},
        check=False,
        stdout=subprocess.DEVNULL,
    )


def tests_by_line(within_s: float) -> dict[str, dict[int, list[str]]]:
    """Return the tests that run each line of each module, the quickest first, as many as end within a time."""
    from coverage.numbits import numbits_to_nums

    took_s: dict[str, float] = {}
    for times in TRACE.glob("*.json"):
        took_s |= json.loads(times.read_text(encoding="utf-8"))
    result: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    with sqlite3.connect(TRACE / "data") as data:
        rows = data.execute(
            "select file.path, context.context, line_bits.numbits from line_bits "
            "join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
        )
        for path, context, bits in rows:
            if context in took_s and Path(path).is_relative_to(SOURCE):
                for line in numbits_to_nums(bits):
                    result[str(Path(path).relative_to(SOURCE))][line].add(context)
    for lines in result.values():
        lines[LOADING] = set().union(*lines.values())
    return {
        name: {line: _quickest(tests, took_s, within_s) for line, tests in lines.items()}
        for name, lines in result.items()
    }


def _quickest(tests: set[str], took_s: dict[str, float], within_s: float) -> list[str]:
    ordered = sorted(tests, key=lambda test: (took_s[test], test))
    until = accumulate(took_s[test] for test in ordered)
    return [test for test, end_s in zip(ordered, until, strict=True) if end_s <= within_s]


def run(seed: int, count: int) -> None:
    """Try every fault that was drawn and is not kept yet."""
    saved: Kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if saved.get("seed") != seed:
        saved = {"seed": seed, "took_s": 0.0, "mutants": []}
    targets = [
        {"module": module, **asdict(fault), "source": fault.put_into((SOURCE / module).read_text(encoding="utf-8"))}
        for module, fault in draw_faults(seed, count)
    ]
    _try_all(targets, saved, RESULTS)


def run_by_hand() -> None:
    """Try every fault that was written by hand."""
    targets = [
        {**fault, "operator": fault["kind"], **place_by_hand(fault)}
        for fault in json.loads(BY_HAND.read_text(encoding="utf-8"))
    ]
    _try_all(targets, {"took_s": 0.0, "mutants": []}, BY_HAND_RESULTS)


def place_by_hand(fault: Kept) -> Kept:
    """Return the line of a fault that was written by hand, and the source with the fault in it.

    Raises:
        ValueError: What it replaces does not occur exactly once in its module.
    """
    source = (SOURCE / fault["module"]).read_text(encoding="utf-8")
    before, *after = source.split(fault["before"])
    if len(after) != 1:
        raise ValueError(f"{fault['module']} has {fault['before']!r} {len(after)} times instead of once")
    return {"line": 1 + before.count("\n"), "source": before + fault["after"] + after[0]}


def survey(names: list[str]) -> None:
    """Try all faults of some modules with their quickest tests; print those that these do not notice."""
    targets = []
    for name in names:
        source = (SOURCE / name).read_text(encoding="utf-8")
        targets += [
            {"module": name, **asdict(fault), "source": fault.put_into(source)} for fault in module_faults(name)
        ]
    with tempfile.TemporaryDirectory() as folder:
        _try_all(targets, {"took_s": 0.0, "mutants": []}, Path(folder) / "survey.json", within_s=SURVEY_S)


def _try_all(expected: list[Kept], results: Kept, to: Path, within_s: float = math.inf) -> None:
    available = tests_by_line(within_s)
    runners: Queue[Runner] = Queue()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack, ThreadPoolExecutor(JOBS) as pool:
        for job in range(JOBS):
            runner = Runner(Path(name) / str(job))
            stack.callback(runner.close)
            runners.put(runner)
        everything = sorted({test for lines in available.values() for tests in lines.values() for test in tests})
        if runner.outcome(["--collect-only", *everything]) != "survived":
            raise SystemExit("not all tests of the trace are there any more: trace again")
        for failing in _failing(everything, runner):
            print(f"fails without a fault, and is left out: {failing}", flush=True)
            for lines in available.values():
                for tests in lines.values():
                    tests[:] = [test for test in tests if test != failing]
        begin, before_s = time.monotonic(), results["took_s"]
        waiting = [pool.submit(_tried, mutant, available, runners) for mutant in expected[len(results["mutants"]) :]]
        for future in waiting:
            results["mutants"].append(future.result())
            results["took_s"] = round(before_s + time.monotonic() - begin, 1)
            to.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            last = results["mutants"][-1]
            print(f"{len(results['mutants'])}/{len(expected)} {last['outcome']}: {key_of(last)}", flush=True)


def _failing(tests: list[str], runner: Runner) -> set[str]:
    """Return the tests that fail where there is no fault, in one order or the other; they would notice anything."""
    return _failing_among(tests, runner) | _failing_among(tests[::-1], runner)


def _failing_among(tests: list[str], runner: Runner) -> set[str]:
    if not tests or runner.outcome(tests) == "survived":
        return set()
    if len(tests) == 1:
        return set(tests)
    half = len(tests) // 2
    return _failing_among(tests[:half], runner) | _failing_among(tests[half:], runner)


def _tried(mutant: Kept, available: dict[str, dict[int, list[str]]], runners: Queue[Runner]) -> Kept:
    """Return what became of one fault: whether a test noticed, and how many run its lines."""
    lines = available.get(mutant["module"], {})
    more = mutant["before"].count("\n")
    tests = list(dict.fromkeys(t for n in range(mutant["line"], mutant["line"] + more + 1) for t in lines.get(n, ())))
    tests = tests or lines.get(LOADING, [])
    runner = runners.get()
    target = runner.source / "assay" / mutant["module"]
    before = target.read_text(encoding="utf-8")
    try:
        target.write_text(mutant["source"], encoding="utf-8")
        outcome = runner.outcome(tests) if tests else "no test runs it"
    finally:
        target.write_text(before, encoding="utf-8")
        runners.put(runner)
    text = before.splitlines()[mutant["line"] - 1].strip()
    return {**{k: v for k, v in mutant.items() if k != "source"}, "text": text, "tests": len(tests), "outcome": outcome}


class Runner:
    """A process that runs tests on a copy of the source, and the copy."""

    def __init__(self, source: Path) -> None:
        shutil.copytree(ROOT / "src", source)
        self.source = source
        command = [sys.executable, "-m", "benchmarks.mutant_runner"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def outcome(self, tests: list[str]) -> str:
        """Return "killed", "survived", or "too slow" where the tests took longer than the limit."""
        requests = {"source": str(self.source), "tests": tests, "limit_s": LIMIT_S}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(requests) + "\n")
        code = int(self._process.stdout.readline())
        return "survived" if code == 0 else "too slow" if code == -signal.SIGKILL else "killed"

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def equivalent() -> dict[str, str]:
    """Return why some faults change nothing, by their place and what they replace."""
    return json.loads(EQUIVALENT.read_text(encoding="utf-8")) if EQUIVALENT.exists() else {}


def key_of(mutant: Kept) -> str:
    """Return how a fault is named in the list of those that change nothing."""
    return f"{mutant['module']}: {mutant['text']} [{mutant['operator']} {mutant['before']} -> {mutant['after']}]"


def table(results: Kept) -> str:
    """Return the published table."""
    lines = ["| package | faults | noticed | change nothing | survive |", "|---|---|---|---|---|"]
    available = equivalent()
    by_package: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in results["mutants"]:
        package = mutant["module"].split("/")[0]
        for name in (package, "all"):
            by_package[name][fate(mutant, available)] += 1
    for name in sorted(by_package, key=lambda n: (n == "all", n)):
        fates = by_package[name]
        noticed = Proportion(fates["noticed"], fates.total())
        low, high = noticed.interval() or (0.0, 1.0)
        share = f"{noticed.count} ({100 * low:.1f} – {100 * high:.1f} %)"
        lines.append(f"| {name} | {fates.total()} | {share} | {fates['equivalent']} | {fates['survives']} |")
    return "\n".join(lines)


def fate(mutant: Kept, available: dict[str, str]) -> str:
    """Return what a fault counts as."""
    if mutant["outcome"] == "killed":
        return "noticed"
    return "equivalent" if key_of(mutant) in available else "survives"


def main() -> int:
    """Trace, run or verify; ends with 1 where fewer are noticed than required."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("trace")
    running = verbs.add_parser("run")
    running.add_argument("seed", type=int)
    running.add_argument("--mutants", type=int, default=MUTANTS)
    verbs.add_parser("by-hand")
    surveying = verbs.add_parser("survey")
    surveying.add_argument("modules", nargs="+")
    verbs.add_parser("verify")
    options = parser.parse_args()
    if options.verb == "trace":
        trace()
        return 0
    if options.verb == "survey":
        survey(options.modules)
        return 0
    if options.verb == "run":
        run(options.seed, options.mutants)
    elif options.verb == "by-hand":
        run_by_hand()
    drawn_well = shown(RESULTS, "Drawn by seed {seed}", REQUIRED)
    return 0 if shown(BY_HAND_RESULTS, "Written by hand", REQUIRED_BY_HAND) and drawn_well else 1


def shown(results: Path, title: str, required: float) -> bool:
    """Print what was kept, and return whether enough was noticed."""
    if not results.exists():
        return True
    saved = json.loads(results.read_text(encoding="utf-8"))
    print(f"{title.format(**saved)}, {saved['took_s'] / 3600:.1f} hours\n\n{table(saved)}\n")
    available = equivalent()
    fates = Counter(fate(mutant, available) for mutant in saved["mutants"])
    for mutant in saved["mutants"]:
        if fate(mutant, available) == "survives":
            print(f"survives ({mutant['outcome']}): {key_of(mutant)}")
    print()
    return fates["noticed"] >= required * fates.total() and fates["equivalent"] <= MOST_EQUIVALENT * fates.total()


if __name__ == "__main__":
    raise SystemExit(main())
