"""Run Assay on one node of a fleet: resume the node's own run where possible, otherwise run the fleet's command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from assay.cli import remote_rank
from assay.core.errors import AssayError
from assay.core.files import read_json
from assay.hosts.fleet import REQUEST_FILE, NodeRequest
from assay.hosts.run_job import FOLDER_VARIABLE


def main() -> int:
    """Run or resume as the job's folder says; return the exit code."""
    request = NodeRequest.model_validate(read_json(Path(os.environ[FOLDER_VARIABLE]) / REQUEST_FILE))
    if request.resume is None:
        return remote_rank.main(request.words)
    changed = reason_not_resumable(Path(request.resume))
    if changed is None:
        return remote_rank.main(["resume", request.resume])
    sys.stderr.write(f"{request.resume} cannot be gone on with ({changed}); it is measured anew.\n")
    return remote_rank.main(request.words)


def reason_not_resumable(run: Path) -> str | None:
    """Return why a run cannot be resumed here; null: it can."""
    from assay.machine.detect import detect
    from assay.machine.model import describe_differences
    from assay.store.run_folder import RunFolder

    try:
        folder = RunFolder.open(run)
        folder.verify(lost_samples=True)
        changed = describe_differences(folder.machine, detect())
    except AssayError as error:
        return str(error).rstrip(".")
    return "; ".join(changed[:3]) or None


if __name__ == "__main__":
    raise SystemExit(main())
