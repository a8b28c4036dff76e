"""Accept a job: unpack its upload, check the GPU, start its supervisor, and follow its output."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assay.core.errors import AssayError
from assay.hosts.remote.agent import folder as its
from assay.hosts.remote.agent import follow
from assay.hosts.remote.agent.bootstrap import VERSION
from assay.hosts.remote.agent.folder import unpack
from assay.hosts.remote.agent.supervisor import supervise as keep

if TYPE_CHECKING:
    from assay.machine.model import Machine


def main(base: Path, key: str, job_id: str) -> int:
    """Begin an order, or join it."""
    environment = base / "env" / key
    if (environment / VERSION).read_text() != sys.version:
        (environment / its.ENV).unlink(missing_ok=True)
        return its.NO_ENVIRONMENT
    (environment / its.ENV).touch()
    folder = base / "orders" / job_id
    try:
        if not folder.is_dir():
            _unpack_job(folder, environment)
        job = its.read_or_none(folder / its.JOB) or {}
        wrong = None if job["gpu"] is None else wrong_gpu(job["gpu"], job["gpu_count"])
        if wrong is not None:
            sys.stderr.write(wrong)
            return its.WRONG_GPU
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
        job = its.read_or_none(part / its.JOB) or {}
        for name in ("nodes", "ranks", job["start"]):
            (part / name).mkdir(parents=True, exist_ok=True)
        if job["resumes"] is not None:
            from assay.store.run_folder import RunFolder

            RunFolder.open(part / job["start"] / job["resumes"]).start_in(str(folder / job["start"]))
        shutil.copy(environment / its.ENV, part / its.ENV)
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
    keeper = os.fork()
    if keeper:
        its.write_atomically(folder / its.SUPERVISOR, {"pid": keeper, "started": its.process_started_at(keeper)})
        return
    os.setsid()
    with (folder / its.LOG).open("ab") as log, Path(os.devnull).open("rb") as nothing:
        for stream, descriptor in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(stream.fileno(), descriptor)
    os.chdir("/")
    os._exit(keep(folder))


def wrong_gpu(requested: str, count: int, machine: Machine | None = None) -> str | None:
    """Return what is here instead of the GPU that was asked for, as a clause; null when it is the one.

    Every GPU has to be of that kind: which one will answer is not known yet.
    """
    from assay.hosts.gpu_types import satisfies
    from assay.machine.detect import detect

    machine = machine or detect()
    names = [gpu.name for gpu in machine.gpus]
    right = [name for name in names if satisfies(requested, name)]
    if len(right) == len(names) and len(right) >= count:
        return None
    if not names:
        return "there is no GPU" + (f" ({machine.gpu_note})" if machine.gpu_note else "")
    if len(right) == len(names):
        return f"there {'is' if len(names) == 1 else 'are'} only {len(names)} {names[0]}"
    return f"there is {', '.join(dict.fromkeys(names))}"


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
