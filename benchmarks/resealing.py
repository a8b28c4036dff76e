"""Write the digests of a run folder anew, once its files were changed on purpose: packed as evidence, or in a test.

    python benchmarks/resealing.py FOLDER…

What the folder holds is believed as it is. The seal of its findings is removed: `assay report` writes it again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.core.files import compute_digest, seal_json, seal_lines
from assay.store.records import SEAL_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RUN_ID = "0" * 16
"""Of a run that has none yet."""


def unchanged(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as it is."""
    return record


def reseal(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]] = unchanged) -> None:
    """Write every digest of a run folder anew; ``change`` is given each record as JSON, and returns what it becomes."""
    run_id = reseal_plan(folder)
    for name, changing in (
        ("blocks.jsonl", unchanged),
        ("records.jsonl", lambda entry: _with_digests(folder, change(entry))),
    ):
        path = folder / name
        if path.is_file():
            write_lines(path, run_id, (changing(json.loads(line)) for line in path.read_bytes().splitlines()))
    (folder / SEAL_FILE).unlink(missing_ok=True)


def reseal_plan(folder: Path, **changes: Any) -> str:
    """Write the plan with some keys changed, for the machine that is there; return the id of the run."""
    plan = {**json.loads((folder / "plan.json").read_bytes()), **changes}
    plan.pop("digest", None)
    plan = {**plan, "run_id": plan.get("run_id", RUN_ID)}
    plan["machine_digest"] = compute_digest((folder / "machine.json").read_bytes())
    (folder / "plan.json").write_text(
        seal_json(json.dumps(plan, indent=2, ensure_ascii=False)) + "\n", encoding="utf-8"
    )
    return str(plan["run_id"])


def write_lines(path: Path, run_id: str, contents: Iterable[dict[str, Any]]) -> None:
    """Write objects as the chained lines of a run's file."""
    texts = [
        json.dumps({k: v for k, v in content.items() if k != "digest"}, separators=(",", ":"), ensure_ascii=False)
        for content in contents
    ]
    path.write_text("".join(f"{line}\n" for line in seal_lines(texts, f"{run_id}/{path.name}")), encoding="utf-8")


def _with_digests(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the digests of its files; a recording that was left out is no longer named."""
    series = [
        {**entry, "digest": compute_digest((folder / entry["file"]).read_bytes())} for entry in record.get("series", ())
    ]
    sensors = record.get("sensors")
    data = (folder / sensors).read_bytes() if sensors and (folder / sensors).is_file() else None
    return {
        **record,
        "series": series,
        "sensors": None if data is None else sensors,
        "sensors_bytes": None if data is None else len(data),
        "sensors_digest": None if data is None else compute_digest(data),
    }


def main() -> int:
    """Write the digests of the folders that are named."""
    for name in sys.argv[1:]:
        reseal(Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
