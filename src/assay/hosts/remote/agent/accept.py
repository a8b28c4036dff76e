"""Accept a job: unpack its upload, check the GPU, start its supervisor, and follow its output."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import AssayError
from assay.hosts.remote.agent import folder as job_folder
from assay.hosts.remote.agent import follow
from assay.hosts.remote.agent.bootstrap import VERSION
from assay.hosts.remote.agent.folder import unpack
from assay.hosts.remote.agent.supervisor import supervise

if TYPE_CHECKING:
    from assay.machine.model import Machine


def main(base: Path, key: str, job_id: str) -> int:
    """Start a job, or follow it if it runs already."""
    environment = base / "env" / key
    if (environment / VERSION).read_text() != sys.version:
        (environment / job_folder.ENV).unlink(missing_ok=True)
        return job_folder.NO_ENVIRONMENT
    (environment / job_folder.ENV).touch()
    folder = base / "orders" / job_id
    try:
        if not folder.is_dir():
            _unpack_job(folder, environment)
        job = job_folder.read_or_none(folder / job_folder.JOB) or {}
        mismatch = None if job["gpu"] is None else wrong_gpu(job["gpu"], job["gpu_count"])
        if mismatch is not None:
            sys.stderr.write(mismatch)
            return job_folder.WRONG_GPU
        _start_supervisor_once(folder)
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}: {error.filename or folder}")
        return 1
    except AssayError as error:
        sys.stderr.write(str(error))
        return 1
    return follow.main(folder, 0, 0)


def _unpack_job(folder: Path, environment: Path) -> None:
    part = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        unpack(sys.stdin.buffer, part)
        job = job_folder.read_or_none(part / job_folder.JOB) or {}
        for name in ("nodes", "ranks", job["start"]):
            (part / name).mkdir(parents=True, exist_ok=True)
        if job["resumes"] is not None:
            from assay.store.run_folder import RunFolder

            RunFolder.open(part / job["start"] / job["resumes"]).start_in(str(folder / job["start"]))
        shutil.copy(environment / job_folder.ENV, part / job_folder.ENV)
        part.rename(folder)
    except (OSError, AssayError):
        shutil.rmtree(part, ignore_errors=True)
        if not folder.is_dir():
            raise


def _start_supervisor_once(folder: Path) -> None:
    try:
        (folder / "started").touch(exist_ok=False)
    except FileExistsError:
        return
    sys.stdout.flush()
    supervisor = os.fork()
    if supervisor:
        job_folder.write_atomically(
            folder / job_folder.SUPERVISOR, {"pid": supervisor, "started": job_folder.process_started_at(supervisor)}
        )
        return
    os.setsid()
    with (folder / job_folder.LOG).open("ab") as log, Path(os.devnull).open("rb") as null:
        for stream, descriptor in ((null, 0), (log, 1), (log, 2)):
            os.dup2(stream.fileno(), descriptor)
    os.chdir("/")
    os._exit(supervise(folder))


def wrong_gpu(requested: str, count: int, machine: Machine | None = None) -> str | None:
    """Return which GPUs are here instead of the requested ones, as a clause; null when they match.

    Every GPU must be of that type, as it is not known yet which one will be used.
    """
    from assay.hosts.gpu_types import satisfies
    from assay.machine.detect import detect

    machine = machine or detect()
    names = [gpu.name for gpu in machine.gpus]
    matching = [name for name in names if satisfies(requested, name)]
    if len(matching) == len(names) and len(matching) >= count:
        return None
    if not names:
        return "there is no GPU" + (f" ({machine.gpu_note})" if machine.gpu_note else "")
    if len(matching) == len(names):
        return f"there {'is' if len(names) == 1 else 'are'} only {len(names)} {names[0]}"
    return f"there is {', '.join(dict.fromkeys(names))}"


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
