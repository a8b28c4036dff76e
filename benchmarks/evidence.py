"""Keep a run as evidence, and compute its published table again from the kept samples.

    python benchmarks/evidence.py keep RUN_FOLDER NAME -- COMMAND…    pack a run folder, with the command that made it
    python benchmarks/evidence.py verify NAME                         compute everything again; exit 1 if it differs
    python benchmarks/evidence.py publish NAME                        write anew what follows, when a method has changed

A kept run is two files under ``benchmarks/results/h200/``: NAME.json, with the command, the fingerprint of the machine
and the findings, and NAME.tar.xz, with the plan, the records and every sample.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.experiments.base import conclude, find_experiment
from assay.store.run_folder import RunFolder
from benchmarks.evidence_tables import table
from benchmarks.resealing import reseal, reseal_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = Path(__file__).parent / "results" / "h200"
DIGITS = 1e-9
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
KEPT = ("plan.json", "machine.json", "blocks.jsonl", "records.jsonl", "samples")


def keep(run: Path, name: str, command: list[str], also: tuple[str, ...] = ()) -> None:
    """Pack a run folder; what the monitor wrote only where it is named among what goes ``also`` in."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = RunFolder.open(run)
    results = conclude(find_experiment(folder.plan.experiment), folder).findings
    content: dict[str, Any] = {
        "command": shlex.join(command),
        "experiment": folder.plan.experiment,
        "machine": folder.machine.as_json(),
        "findings": results.as_json(),
    }
    write(name, content)
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for part in (*KEPT, *also):
            source = folder.path / part
            shutil.copytree(source, copy / part) if source.is_dir() else shutil.copy(source, copy / part)
        reseal_plan(copy, cwd=".")
        reseal(copy)
        pack(copy, name)


def pack(folder: Path, name: str) -> None:
    """Pack all that lies in a folder."""
    with tarfile.open(RESULTS / f"{name}.tar.xz", "w:xz") as archive:
        for part in sorted(folder.iterdir()):
            archive.add(part, arcname=part.name, filter=anonymous)


def write(name: str, content: dict[str, Any]) -> None:
    """Write down what is published."""
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who packed it and when."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def recomputed(name: str) -> dict[str, Any]:
    """Return the findings as they follow from the kept samples."""
    with unpacked(name) as folder:
        return dict(conclude(find_experiment(folder.plan.experiment), folder).findings.as_json())


def same(one: object, other: object) -> bool:
    """Return whether two results are the same; numbers to nine digits, as other builds of numpy add up otherwise."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=DIGITS)
    return type(one) is type(other) and one == other


@contextmanager
def unpacked(name: str) -> Iterator[RunFolder]:
    """Give a kept run as a folder for the length of a ``with`` block."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(RESULTS / f"{name}.tar.xz") as archive:
            archive.extractall(folder, **SAFELY)  # noqa: S202 - an archive of our own making
        yield RunFolder.open(Path(folder))


def published(name: str) -> dict[str, Any]:
    """Return what was written down when the run was kept."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def main(arguments: list[str]) -> int:
    """Keep, verify, or print."""
    if len(arguments) > 3 and arguments[0] == "keep" and arguments[3] == "--":
        keep(Path(arguments[1]), arguments[2], arguments[4:])
        return 0
    if len(arguments) != 2 or arguments[0] not in {"verify", "publish"}:
        print(__doc__)
        return 2
    name = arguments[1]
    follows, content = recomputed(name), published(name)
    if arguments[0] == "publish":
        write(name, {**content, "findings": follows})
    elif not same(follows, content["findings"]):
        print(f"{name}: what follows from the samples is not what was published")
        return 1
    print(table(published(name)["findings"], content.get("experiment", "run")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
