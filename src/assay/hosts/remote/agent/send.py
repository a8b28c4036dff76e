"""Send a job's run folder as a lightly compressed tar."""

from __future__ import annotations

import gzip
import json
import sys
import tarfile
from pathlib import Path

from assay.hosts.remote.agent import folder as job_folder


def main(folder: Path) -> int:
    """Send the run folder; the exit code is ``NOTHING_THERE`` when there is none."""
    try:
        run = Path((folder / job_folder.RUN).read_text().split("\n")[0])
    except OSError:
        return job_folder.NOTHING_THERE
    if not run.is_dir():
        return job_folder.NOTHING_THERE
    with (
        gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=1) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for path in sorted(run.rglob("*")):
            if path.is_file() and not path.is_symlink() and path.name != ".lock":
                archive.add(path, arcname=str(Path(run.name) / path.relative_to(run)), recursive=False)
    start = (job_folder.read_or_none(folder / job_folder.JOB) or {})["start"]
    sys.stderr.write(json.dumps({"start": str(folder / start)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
