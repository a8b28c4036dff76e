"""Assay on one node of a fleet: it goes on with the node's own run where it can, else does as the fleet's words say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from assay.cli import inside
from assay.core.durable import read_json
from assay.core.errors import AssayError
from assay.hosts.fleet.folder import WISH, Wish
from assay.hosts.traces import FOLDER_VARIABLE


def main() -> int:
    """Do what the order's folder says; return the exit code."""
    request = Wish.model_validate(read_json(Path(os.environ[FOLDER_VARIABLE]) / WISH))
    if request.resume is None:
        return inside.main(request.words)
    changed = why_anew(Path(request.resume))
    if changed is None:
        return inside.main(["resume", request.resume])
    sys.stderr.write(f"{request.resume} cannot be gone on with ({changed}); it is measured anew.\n")
    return inside.main(request.words)


def why_anew(run: Path) -> str | None:
    """Say why a run that was begun cannot be gone on with here; null: it can."""
    from assay.machine.detect import detect
    from assay.machine.model import differences
    from assay.store.runs import RunFolder

    try:
        folder = RunFolder.open(run)
        folder.verify(lost_samples=True)
        changed = differences(folder.machine, detect())
    except AssayError as error:
        return str(error).rstrip(".")
    return "; ".join(changed[:3]) or None


if __name__ == "__main__":
    raise SystemExit(main())
