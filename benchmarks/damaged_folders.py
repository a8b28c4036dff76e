"""Run folders that are damaged, and what is said of them: no changed number with exit 0, no defect, no hang.

python benchmarks/damaged_folders.py run [COUNT]   damage a folder of each kind COUNT times (300), each from a seed
python benchmarks/damaged_folders.py verify        compute the table again from what is kept

The folders are the runs on an H200 that are kept as evidence, and a run of `assay gate` made here. After each damage,
`assay report --json` reads the folder; after some `assay compare`, `assay history import` and `assay resume` as well.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import evidence
from benchmarks.mutations import mutate, numbers_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RESULTS = Path(__file__).parent / "results" / "damaged_folders.json"
KINDS = {
    "run": "run",
    "contention": "contention",
    "matrix": "matrix",
    "scaling": "scaling",
    "power": "power_duty",
    "threshold": "threshold",
    "energy": "tokens_short",
    "gate": None,
}
"""Kept runs by experiment; null: made here."""
COUNT = 300
LIMIT_S = 120
BAD = ("changed", "defect", "hung", "stopped")
"""What must not happen: another number with exit 0, exit 70, no end, or a file that is taken for an interruption."""


def outcome(code: int, out: str, err: str, expected: object) -> str:
    """Say what a verb made of a damaged folder."""
    if code == 70:
        return "defect"
    if code < 0:
        return "hung"
    if "Stopped." in err:
        return "stopped"
    if code in {0, 1, 4}:
        return "same" if expected is None or numbers_in(out) == expected else "changed"
    return "refused" if len(err.strip().splitlines()) >= 1 else "defect"


def called(words: Sequence[str], scratch: Path) -> tuple[int, str, str]:
    """Run a verb in a fork of this interpreter; return its exit code, or a negative one where it had to be ended."""
    out, err = scratch / "out", scratch / "err"
    child = os.fork()
    if child == 0:
        code = 70
        with contextlib.suppress(BaseException):
            signal.alarm(LIMIT_S)
            for path, descriptor in ((out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            try:
                from assay.cli.main import main
                from assay.reports import documents

                documents.write_report = lambda *_: ()  # the numbers are in question, and drawing them takes longest
                code = main(list(words))
            except BaseException:  # noqa: BLE001 - a fork never returns
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), out.read_text(errors="replace"), err.read_text(errors="replace")


def here(words: Sequence[str]) -> tuple[int, str]:
    """Run a verb in this very interpreter, which from then on has all that it needs, as have its forks."""
    from assay.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        code = main(list(words))
    return code, out.getvalue()


@contextlib.contextmanager
def prepared(kind: str, scratch: Path) -> Iterator[Path]:
    """Give a run folder of a kind, with its findings and reports."""
    name = KINDS[kind]
    if name is None:
        yield gate_run(scratch)
        return
    with evidence.unpacked(name) as folder:
        target = scratch / "runs" / folder.path.name
        shutil.copytree(folder.path, target)
    yield target


def gate_run(scratch: Path) -> Path:
    """Return the run folder of a gate between two revisions of a function."""
    project = scratch / "project"
    project.mkdir()
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    for loops in (1000, 1500):
        (project / "mine.py").write_text(f"def work():\n    return sum(range({loops}))\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", "a revision"], check=True)
    words = [
        "gate",
        "--base",
        "HEAD~1",
        "--device",
        "cpu:0",
        "--restarts",
        "3",
        "--duration",
        "500ms",
        "--budget",
        "12s",
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "assay", *words, "--output-dir", str(scratch / "runs"), "--", "mine.py:work"]
    subprocess.run(command, cwd=project, env=env, capture_output=True, check=False)
    return (scratch / "runs" / "latest").resolve()


def damaged(kind: str, count: int, scratch: Path) -> list[list[Any]]:
    """Damage a folder so many times; return for each what was done, to which file, the verb and what came of it."""
    rows: list[list[Any]] = []
    with prepared(kind, scratch) as good:
        code, out = here(["report", str(good), "--json"])
        expected = numbers_in(out)
        if code not in {0, 1} or expected is None:
            raise RuntimeError(f"{kind}: the folder cannot be reported as it is")
        here(["history", "import", str(good)])
        folder = scratch / "damaged" / good.name
        shutil.copytree(good, folder)
        compared = json.loads(here(["compare", str(good), str(folder), "--json"])[1])
        shutil.rmtree(folder)
        history = called(["history", "export", "-"], scratch)[1]
        for seed in range(count):
            chance = random.Random(f"{kind} {seed}")
            shutil.copytree(good, folder, copy_function=os.link)
            what, file = mutate(folder, chance)
            for verb in verbs(seed):
                words = {
                    "report": ["report", str(folder), "--json"],
                    "compare": ["compare", str(good), str(folder), "--json"],
                    "import": ["history", "import", str(folder)],
                    "resume": ["resume", str(folder)],
                }[verb]
                code, out, err = called(words, scratch)
                came = outcome(code, out, err, expected if verb == "report" else None)
                if verb == "compare" and came == "same" and json.loads(out) != compared:
                    came = "changed"
                if verb == "import" and called(["history", "export", "-"], scratch)[1] != history:
                    came = "changed"
                rows.append([kind, seed, what, file if "/" not in file else f"{file.split('/')[0]}/", verb, code, came])
                if came in BAD:
                    print(kind, seed, what, file, verb, code, came, err.strip()[-300:], file=sys.stderr)
            shutil.rmtree(folder)
            if seed % 50 == 49:
                print(f"{kind}: {seed + 1}", file=sys.stderr, flush=True)
    return rows


def verbs(seed: int) -> list[str]:
    """Return what is asked of a damaged folder; the report last, as it writes."""
    some = [verb for verb, every in (("compare", 5), ("import", 6), ("resume", 7)) if seed % every == 0]
    return [*some, "report"]


def run(count: int) -> dict[str, Any]:
    """Return what came of every damage."""
    with ProcessPoolExecutor(min(len(KINDS), len(os.sched_getaffinity(0)))) as pool:
        return {"rows": [row for rows in pool.map(of_kind, KINDS, [count] * len(KINDS)) for row in rows]}


def of_kind(kind: str, count: int) -> list[list[Any]]:
    """Return what came of every damage to one kind of run folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ASSAY_HOME"] = f"{folder}/home"
        return damaged(kind, count, Path(folder))


def table(results: dict[str, Any]) -> str:
    """Return the published table: by kind of run, how many damages were refused, harmless, or believed."""
    lines = [
        "| run folder of | damages | asked | refused, exit 2 or 3 | same numbers | wrong |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        rows = [row for row in results["rows"] if row[0] == kind]
        came = [row[-1] for row in rows]
        bad = sum(came.count(name) for name in BAD)
        cells = (len({row[1] for row in rows}), len(rows), came.count("refused"), came.count("same"), bad)
        lines.append(f"| {kind} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Damage or verify."""
    if arguments[:1] == ["run"] and len(arguments) < 3:
        saved = run(int(arguments[1]) if len(arguments) > 1 else COUNT)
        text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in saved["rows"])
        RESULTS.write_text(f'{{"rows":[\n{text}\n]}}\n', encoding="utf-8")
    elif arguments != ["verify"]:
        print(__doc__)
        return 2
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    print(table(saved))
    return 1 if any(row[-1] in BAD for row in saved["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
