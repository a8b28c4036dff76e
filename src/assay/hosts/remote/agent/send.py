"""Send a job's run folder as a lightly compressed tar."""

from __future__ import annotations

import gzip
import json
import sys
import tarfile
from pathlib import Path

from assay.hosts.remote.agent import folder as its


def main(folder: Path) -> int:
    """Send it; the exit code says when there is none."""
    try:
        run = Path((folder / its.RUN).read_text().split("\n")[0])
    except OSError:
        return its.NOTHING_THERE
    if not run.is_dir():
        return its.NOTHING_THERE
    with (
        gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=1) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w|") as archive,
    ):
        for path in sorted(run.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.name != ".lock":
                archive.add(path, arcname=str(Path(run.name) / path.relative_to(run)), recursive=False)
    start = (its.read_or_none(folder / its.JOB) or {})["start"]
    sys.stderr.write(json.dumps({"start": str(folder / start)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
