"""Does a mistake always get a sentence and an honest exit code? Hostile command lines over all verbs.

    python benchmarks/hostile_input.py run --seed 0 --count 1500     run so many; what one seed gave before is replaced
    python benchmarks/hostile_input.py verify                        compute the table again from what was kept

Each line runs in a process forked from one that has imported Assay, in a fresh copy of a folder with good and hostile
files (`hostile_files.py`) and with a home of its own. Lines that could measure have ``--dry-run`` or a tiny budget. As
root the lines run without a network; programs that would use one (ssh, sbatch) are stand-ins that fail.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.cli.main import cli
from benchmarks.hostile_files import make_files, make_repository
from benchmarks.hostile_lines import Line, draw_lines
from tests.forking import Forking
from tests.running import survivors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RESULTS = Path(__file__).parent / "results" / "hostile_input.json.xz"
EXIT_CODES = frozenset({0, 1, 2, 3, 4})
LIMIT_S = 300.0
"""After so long a command line hangs; on a quiet machine none takes ten."""
STAND_INS = (
    "ssh",
    "scp",
    "rsync",
    "sbatch",
    "squeue",
    "sinfo",
    "scontrol",
    "srun",
    "sacct",
    "scancel",
    "nvidia-smi",
    "ncu",
)
MOST_STDERR = 600
"""Characters of stderr that are kept of each line, its end."""


@dataclass(frozen=True)
class Outcome:
    """How one command line ended; ``exit_code`` null: it hung and was killed."""

    arguments: list[str]
    environment: dict[str, str]
    files: dict[str, str]
    exit_code: int | None
    stderr: str
    traceback: bool
    left_running: int


def problem_of(outcome: Outcome) -> str | None:
    """Return what is wrong with how a command line ended; null: nothing."""
    if outcome.exit_code is None:
        return "hang"
    if outcome.exit_code not in EXIT_CODES:
        return f"exit {outcome.exit_code}"
    if outcome.traceback:
        return "traceback"
    if outcome.exit_code != 0 and not outcome.stderr.strip():
        return "no sentence"
    if outcome.left_running:
        return "left a process"
    return None


class Scratch:
    """A folder with the files that every line finds, of which each line has a copy."""

    def __init__(self, folder: Path, forking: Forking) -> None:
        self.folder, self._forking = folder, forking
        self.files, self._home = folder / "files", folder / "home"
        self.files.mkdir()
        self._home.mkdir(mode=0o700)
        make_files(self.files)
        make_repository(self.files)
        stand_ins = folder / "bin"
        stand_ins.mkdir()
        for name in STAND_INS:
            (stand_ins / name).write_text(f"#!/bin/sh\necho '{name}: no network here' >&2\nexit 255\n")
            (stand_ins / name).chmod(0o755)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.endswith(("_KEY", "_TOKEN"))},
            "PATH": f"{stand_ins}{os.pathsep}{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
        }
        for words in (
            ("run", "ok.py:work", "--device", "cpu:0", "--duration", "0.2", "--restarts", "1"),
            ("monitor", "host.jsonl", "--duration", "0.3", "--host-only"),
        ):
            made = self._run(words, self.files, self._home, {}, {})
            if made.exit_code != 0:
                raise RuntimeError(f"{words}: {made.stderr}")

    def run(self, number: int, line: Line) -> Outcome:
        """Run one command line in a copy of everything."""
        position = self.folder / f"{number}"
        position.mkdir()
        for source, name in ((self.files, "work"), (self._home, "home")):
            subprocess.run(["cp", "-a", str(source), str(position / name)], check=True)
        for name, text in line.files.items():
            (position / "work" / name).write_text(text, encoding="utf-8")
        try:
            return self._run(line.arguments, position / "work", position / "home", line.environment, line.files)
        finally:
            shutil.rmtree(position, ignore_errors=True)

    def _run(
        self, arguments: Sequence[str], cwd: Path, home: Path, extra: dict[str, str], files: dict[str, str]
    ) -> Outcome:
        environment = {**self._environment, "ASSAY_HOME": str(home), **extra}
        code: int | None = None
        out = err = ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended = self._forking.run([*arguments], cwd=cwd, environment=environment, timeout_s=LIMIT_S)
            code, out, err = ended.returncode, ended.stdout, ended.stderr
        left = _end_all_of(home, cwd, patience_s=0.0 if code is None else 10.0)
        return Outcome(
            arguments=[*arguments],
            environment=extra,
            files=files,
            exit_code=code,
            stderr=err[-MOST_STDERR:],
            traceback="Traceback (most recent call last)" in out + err,
            left_running=left if code is not None else 0,
        )


def _end_all_of(home: Path, cwd: Path, *, patience_s: float) -> int:
    """Wait until nothing runs that a line started, then kill the rest; return how many those were."""
    until = time.monotonic() + patience_s
    while (left := {*survivors(home), *_in_folder(cwd)}) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(left)


def _in_folder(folder: Path) -> list[int]:
    """Return the processes that work in a folder: one that was forked shows the environment of its parent."""
    results: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == folder:
                    results.append(int(entry.name))
    return results


def run_lines(lines: Sequence[Line], *, threads: int = 1, say: bool = False) -> list[Outcome]:
    """Run command lines, and return how each ended, in their order."""
    forking = Forking()
    with tempfile.TemporaryDirectory(prefix="hostile-") as name, ThreadPoolExecutor(threads) as pool:
        scratch = Scratch(Path(name), forking)

        def one(numbered: tuple[int, Line]) -> Outcome:
            outcome = scratch.run(*numbered)
            if say and (problem := problem_of(outcome)):
                where = f"{outcome.arguments} {outcome.environment} {sorted(outcome.files)}"
                print(f"{numbered[0]} {problem}: {where}: {outcome.stderr[-300:]}", flush=True)
            return outcome

        outcomes = list(pool.map(one, enumerate(lines)))
    forking.close()
    return outcomes


def shut_in() -> str:
    """Give this process no network and keep the devices of the machine in place, as far as it may; return what it has.

    A device onto which a file is mounted cannot be replaced or removed, not even by root and by a fault of ours.
    """
    if os.geteuid() != 0:
        return "stand-ins"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000 | 0x40000000) != 0:  # CLONE_NEWNS, CLONE_NEWNET
        return "stand-ins"
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # MS_REC, MS_PRIVATE
    for device in (b"/dev/null", b"/dev/full", b"/dev/zero"):
        if libc.mount(device, device, None, 0x1000, None) != 0:  # MS_BIND
            raise OSError(ctypes.get_errno(), "a device could not be kept in place", os.fsdecode(device))
    if shutil.which("ip"):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    return "none"


def run(seed: int, count: int, threads: int) -> None:
    """Run so many lines and keep how each ended."""
    network = shut_in()
    outcomes = run_lines(draw_lines(cli, seed, count), threads=threads, say=True)
    saved = [part for part in _kept() if part["seed"] != seed] if RESULTS.exists() else []
    saved.append({"seed": seed, "network": network, "outcomes": [asdict(outcome) for outcome in outcomes]})
    saved.sort(key=lambda part: part["seed"])
    text = json.dumps({"table": table(saved), "seeds": saved}, indent=0)
    RESULTS.write_bytes(lzma.compress(text.encode(), preset=9))
    print(table(saved))


def _kept() -> list[dict[str, Any]]:
    seeds: list[dict[str, Any]] = json.loads(lzma.decompress(RESULTS.read_bytes()))["seeds"]
    return seeds


def table(results: Iterable[dict[str, Any]]) -> str:
    """Return how many lines ended how, for each seed."""
    heading = ("seed", "lines", "verbs", "exit 0", "1", "2", "3", "4", "defects (70)", "hangs", "other problems")
    rows = [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|"]
    for part in results:
        outcomes = [Outcome(**outcome) for outcome in part["outcomes"]]
        codes = collections.Counter(outcome.exit_code for outcome in outcomes)
        problems = [problem for outcome in outcomes if (problem := problem_of(outcome))]
        other = sum(problem not in {"hang", "exit 70"} for problem in problems)
        verbs = len({_verb(outcome.arguments) for outcome in outcomes})
        counts = " | ".join(str(codes[code]) for code in sorted(EXIT_CODES))
        rows.append(
            f"| {part['seed']} | {len(outcomes)} | {verbs} | {counts} | {codes[70]} | {codes[None]} | {other} |"
        )
    return "\n".join(rows)


def _verb(arguments: Sequence[str]) -> str:
    from benchmarks.hostile_lines import BASES

    return next(" ".join(arguments[:size]) for size in (2, 1) if " ".join(arguments[:size]) in BASES)


def verify() -> None:
    """Compute the table again, and fail where it is another, or where a line ended as none may."""
    whole = json.loads(lzma.decompress(RESULTS.read_bytes()))
    again = table(whole["seeds"])
    print(again)
    if again != whole["table"]:
        sys.exit("The kept table is another.")
    bad = [o for part in whole["seeds"] for o in part["outcomes"] if problem_of(Outcome(**o))]
    for outcome in bad:
        print(f"{problem_of(Outcome(**outcome))}: {outcome['arguments']}")
    sys.exit(1 if bad else 0)


def main() -> None:
    """Read what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--count", type=int, default=1500)
    running.add_argument("--threads", type=int, default=2)
    verbs.add_parser("verify")
    options = parser.parse_args()
    if options.verb == "run":
        run(options.seed, options.count, options.threads)
    else:
        verify()


if __name__ == "__main__":
    main()
