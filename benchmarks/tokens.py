"""What a token costs on a real GPU, beside a bare ``generate`` loop, and a model that is split between GPU and CPU.

    python benchmarks/tokens.py run FOLDER [PART…] [-- OPTION…]   measure; all of it goes into FOLDER
    python benchmarks/tokens.py keep FOLDER                       pack what was measured as evidence
    python benchmarks/tokens.py verify                            compute the tables again from what is kept
    python benchmarks/tokens.py publish                           write anew what follows, when a method has changed

first          ``assay energy run benchmarks/tokens.yaml``, with the options given
again          the same with windows twice as long, this day or another; again-graphs: of graphs alone
short          the same at batch 1 alone, one process with windows of 1 s, which grow as long as that is not enough
bare           a model built without Assay, whose bare ``generate`` takes turns with our plain loop
host           how steady the host is, held to some cores and not
split          a part of a smaller model on the CPU: where everything lies, and the logits, beside one in one piece
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import evidence
from benchmarks.tokens_beside import bare, fingerprint, read, split
from benchmarks.tokens_halves import halves
from benchmarks.tokens_host import host, host_table
from benchmarks.tokens_tables import against_bare, agreement, cells_of, csv_of, reached, split_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from assay.experiments.energy.config import EnergyConfig

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "benchmarks/tokens.yaml"
DECIMAL = re.compile(r"-?[\d.]+(e[-+]?\d+)?")
COMMANDS = {
    "first": ("energy", "run", CONFIG),
    "again": ("energy", "run", CONFIG, "--set", "scenario.window_s=8"),
    "again-graphs": ("energy", "run", CONFIG, "--set", "scenario.window_s=8", "--set", "scenario.modes=[graphs]"),
    "short": (
        *("energy", "run", CONFIG, "--set", "scenario.window_s=1", "--set", "scenario.repeats=1"),
        *("--set", "scenario.batch_sizes=[1]"),
    ),
}
NAMES = {"first": "tokens", "again": "tokens_again", "again-graphs": "tokens_again", "short": "tokens_short"}
BARE = evidence.RESULTS / "tokens_bare.json"
BARE_LONG = evidence.RESULTS / "tokens_bare_long.json"
"""Turns of 32 tokens, in an earlier version: too long for this host, and kept for that."""
SPLIT = evidence.RESULTS / "tokens_split.json"
HOST = evidence.RESULTS / "tokens_host.json"
BESIDE: dict[str, Callable[[EnergyConfig], dict[str, Any]]] = {"bare": bare, "split": split, "host": host}
CSV = evidence.RESULTS / "tokens.csv"


def run(folder: Path, parts: list[str], config: str = CONFIG, more: tuple[str, ...] = ()) -> int:
    """Measure the parts asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    codes = []
    for part in parts:
        if part in COMMANDS:
            words = [*(config if word == CONFIG else word for word in COMMANDS[part]), *more]
            command = [sys.executable, "-m", "assay", *words, "--no-history", "--output-dir", str(folder / part)]
            codes.append(subprocess.run(command, cwd=ROOT, check=False).returncode)
            write(folder / f"{part}.json", {"command": ["assay", *words]})
        elif part in BESIDE:
            command = ["python", "benchmarks/tokens.py", "run", "FOLDER", part]
            write(folder / f"{part}.json", {"command": command, **fingerprint(), **BESIDE[part](read(config))})
        else:
            raise SystemExit(f"{part} is no part: {', '.join((*COMMANDS, *BESIDE))}.")
    return max(codes, default=0)


def write(path: Path, content: dict[str, Any]) -> None:
    """Write down what was measured."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def keep(folder: Path) -> None:
    """Pack every part that was measured."""
    for part, name in NAMES.items():
        for result in sorted((folder / part).glob("energy*")) if (folder / part).is_dir() else []:
            if result.is_dir() and not result.is_symlink():
                summary = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
                evidence.keep(result, name, summary["command"], also=("monitor",))
    for saved in (BARE, SPLIT, HOST):
        source = folder / f"{saved.stem.removeprefix('tokens_')}.json"
        if source.exists():
            saved.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    publish()


def publish() -> None:
    """Write anew what follows from every kept run."""
    for name in kept_runs():
        evidence.write(name, {**evidence.published(name), "findings": evidence.recomputed(name)})
    with evidence.unpacked("tokens") as run_folder:
        CSV.write_text(csv_of(run_folder), encoding="utf-8")


def values_of(text: str) -> list[list[object]]:
    """Return the cells of a CSV table, those that are decimal numbers as numbers."""
    rows = csv.reader(text.splitlines())
    return [[float(cell) if "." in cell and DECIMAL.fullmatch(cell) else cell for cell in row] for row in rows]


def kept_runs() -> list[str]:
    """Return the names of the runs that are kept."""
    return [name for name in dict.fromkeys(NAMES.values()) if (evidence.RESULTS / f"{name}.json").exists()]


def verify() -> int:
    """Compute the findings of every kept run again, and print what is published; 1 where they differ."""
    differing = 0
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in kept_runs():
        content = evidence.published(name)
        if not evidence.same(evidence.recomputed(name), content["findings"]):
            print(f"{name}: what follows from the samples is not what was published")
            differing = 1
        with evidence.unpacked(name) as run_folder:
            rows[name] = cells_of(run_folder)
            print(reached(rows[name]) + "\n")
            if name == "tokens":
                print(halves(run_folder) + "\n")
                if not evidence.same(values_of(csv_of(run_folder)), values_of(CSV.read_text(encoding="utf-8"))):
                    print(f"{CSV.name}: what follows from the samples is not what was published")
                    differing = 1
    for other in list(rows)[1:]:
        print(agreement(rows["tokens"], rows[other]) + "\n")
    if BARE.exists():
        print(against_bare(json.loads(BARE.read_text(encoding="utf-8"))) + "\n")
    if BARE_LONG.exists():
        print(against_bare(json.loads(BARE_LONG.read_text(encoding="utf-8"))) + "\n")
    if HOST.exists():
        print(host_table(json.loads(HOST.read_text(encoding="utf-8"))) + "\n")
    if SPLIT.exists():
        print(split_line(json.loads(SPLIT.read_text(encoding="utf-8"))))
    return differing if rows else 1


def main(words: list[str]) -> int:
    """Do what is asked for."""
    match words:
        case ["run", folder, *requests]:
            parts, more = (
                (requests[: requests.index("--")], requests[requests.index("--") + 1 :])
                if "--" in requests
                else (requests, [])
            )
            configs = [part for part in parts if part.endswith(".yaml")] or [CONFIG]
            parts = [part for part in parts if part not in configs] or ["first", "bare", "split"]
            return run(Path(folder), parts, configs[0], tuple(more))
        case ["keep", folder]:
            keep(Path(folder))
            return 0
        case ["publish"]:
            publish()
            return 0
        case ["verify"]:
            return verify()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
