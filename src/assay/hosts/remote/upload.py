"""Uploads to another machine.

A wheel of exactly this version, the environment created from it once, and a job's files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import posixpath
import re
import tarfile
import tempfile
import tomllib
import zipfile
from base64 import urlsafe_b64encode
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import TYPE_CHECKING, Any

import assay
from assay._version import __version__
from assay.core.errors import BadInput, MachineCannot
from assay.hosts.remote.agent.folder import JOB, WORK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.hosts.base import Job, UploadedFile
    from assay.hosts.remote.connection import RemoteConnection, RemoteResult


PACKAGE_NAME = "gpu-assay"
SOURCE_VARIABLE = "ASSAY_SEND"
NEVER_UPLOADED = ("__pycache__", ".git", ".pytest_cache", ".mypy_cache", ".ruff_cache")
CHUNK = 1 << 18
_EPOCH = (1980, 1, 1, 0, 0, 0)
_IN_MEMORY = 1 << 25


@cache
def wheel_contents() -> dict[str, bytes]:
    """Return the files of a wheel of the running package, by their paths in it.

    ``ASSAY_SEND`` names another package folder of Assay, whose files are only read: a commit is measured unchanged,
    and none of its code runs here.

    Raises:
        BadInput: ``ASSAY_SEND`` is not such a folder.
    """
    package = Path(os.environ.get(SOURCE_VARIABLE) or Path(assay.__file__).parent)
    if not (package / "cli/main.py").is_file():
        raise BadInput(f"{SOURCE_VARIABLE} is {package}, which is not the package of Assay.")
    described = f"{PACKAGE_NAME.replace('-', '_')}-{__version__}.dist-info"
    files = {f"assay/{path.relative_to(package)}": path.read_bytes() for path in _sources(package)}
    files[f"{described}/METADATA"] = _metadata(package)
    files[f"{described}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: assay\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{described}/entry_points.txt"] = b"[console_scripts]\nassay = assay.cli.entry:main\n"
    rows = [f"{name},sha256={_hash(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{described}/RECORD"] = "".join([*rows, f"{described}/RECORD,,\n"]).encode()
    return files


def wheel_key() -> str:
    """Return a hash of the wheel's content, as part of the environment's name."""
    (record,) = (data for name, data in wheel_contents().items() if name.endswith(".dist-info/RECORD"))
    return hashlib.sha256(record).hexdigest()[:16]


def wheel() -> bytes:
    """Return the wheel; equal files give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in wheel_contents().items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _sources(package: Path) -> list[Path]:
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path for path in files if not path.name.startswith("."))


def _hash(data: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _metadata(package: Path) -> bytes:
    """Return the wheel's metadata: from the source tree around the package, else from the installed package."""
    needs, python = _declared(package.parents[1] / "pyproject.toml") or _installed()
    lines = ["Metadata-Version: 2.1", f"Name: {PACKAGE_NAME}", f"Version: {__version__}", f"Requires-Python: {python}"]
    return "\n".join([*lines, *(f"Requires-Dist: {requirement}" for requirement in needs), ""]).encode()


def _declared(path: Path) -> tuple[list[str], str] | None:
    try:
        project: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return None
    return (project["dependencies"], project["requires-python"]) if project.get("name") == PACKAGE_NAME else None


def _installed() -> tuple[list[str], str]:
    try:
        installed = distribution(PACKAGE_NAME)
    except PackageNotFoundError:
        raise MachineCannot(
            f"The package {PACKAGE_NAME} is not installed here as a whole, so that it cannot be sent."
        ) from None
    needs = [requirement for requirement in installed.requires or [] if not re.search(r";.*\bextra\b", requirement)]
    return needs, installed.metadata["Requires-Python"] or ">=3.11"


def start_folder(files: tuple[UploadedFile, ...]) -> str:
    """Return the working folder relative to the job's, deep enough that no ``../`` path leaves the job's folder."""
    above = max((PurePosixPath(posixpath.normpath(file.remote_path)).parts.count("..") for file in files), default=0)
    return "/".join((WORK, *("here" for _ in range(above))))


def job_archive(files: tuple[UploadedFile, ...], job: dict[str, Any]) -> Iterator[bytes]:
    """Yield a tar with a job's data and files, to be unpacked into the job's folder.

    Raises:
        MachineCannot: A file to upload cannot be read.
    """
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            text = json.dumps(job).encode()
            entry = tarfile.TarInfo(JOB)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
            for file in files:
                try:
                    archive_path = posixpath.normpath(f"{start_folder(files)}/{file.remote_path}")
                    archive.add(file.local_path, arcname=archive_path, filter=_tar_filter)
                except OSError as error:
                    raise MachineCannot(f"{file.local_path} cannot be sent: {error.strerror or error}.") from error
        buffer.seek(0)
        while chunk := buffer.read(CHUNK):
            yield chunk


def _tar_filter(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Skip caches and everything that is neither a file nor a folder; remove the owner."""
    if Path(entry.name).name in NEVER_UPLOADED or not (entry.isfile() or entry.isdir()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


PYTHON = "python3"
"""The default interpreter there: then the best of `PYTHON_CANDIDATES` is used."""

PYTHON_CANDIDATES = (
    PYTHON, "/opt/conda/bin/python3", "/opt/venv/bin/python3", "/usr/local/bin/python3", "python3.13", "python3.12",
    "python3.11",
)  # fmt: skip
MINIMUM_PYTHON = (3, 11)
NO_PYTHON = 46
CREATE_TIMEOUT_S = 1800.0

PRELUDE = 'umask 077\nbase="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/assay"\n'
"""Start of every script: ``$base`` is the folder of all of Assay's files there."""


def environment_key(job: Job) -> str:
    """Return the environment's name, which depends on every file of this version and on the interpreter."""
    return f"{wheel_key()}-{hashlib.sha256(job.python.encode()).hexdigest()[:8]}"


def prepare_environment(connection: RemoteConnection, job: Job) -> None:
    """Create the environment there.

    Raises:
        MachineCannot: There is no suitable interpreter, a dependency is not available, the disk is full.
    """
    data = wheel()
    chunks = (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))
    result = connection.do(_script(job), feed=chunks, within_s=CREATE_TIMEOUT_S)
    if result.code == NO_PYTHON:
        raise MachineCannot(_no_python(connection, job, result))
    if result.code != 0:
        why = last_line(result.err) or f"exit code {result.code}"
        raise MachineCannot(f"Assay cannot be set up on {connection.where}: {explain_error(why)}.")


def last_line(data: bytes) -> str:
    """Return the last line that is not blank."""
    lines = [line.strip() for line in data.decode("utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else ""


def explain_error(why: str) -> str:
    """Return a reason, with its cause in plain words where that is known."""
    return f"its disk is full ({why})" if "No space left" in why or "quota" in why.lower() else why


def _no_python(connection: RemoteConnection, job: Job, result: RemoteResult) -> str:
    least = ".".join(map(str, MINIMUM_PYTHON))
    old = result.out.decode("utf-8", errors="replace").strip()
    if old:
        return (
            f"{connection.where} has {old}, and Assay needs Python {least} or later; name another one "
            "with --remote-python."
        )
    what = "no python3" if job.python == PYTHON else f"no {job.python}"
    return f"{connection.where} has {what}; --remote-python names the interpreter there."


def _script(job: Job) -> str:
    """Return the script that stores the wheel, finds an interpreter and creates the environment with it."""
    candidates = PYTHON_CANDIDATES if job.python == PYTHON else (job.python,)
    name = environment_key(job)
    return f"""{PRELUDE}
mkdir -p "$base/env" "$base/orders" || exit 1
wheel="$base/env/.{name}.$$.whl"
trap 'rm -f "$wheel"' EXIT
cat > "$wheel" || exit 1
found= old=
for each in {" ".join(map(quote, candidates))}; do
  each=$(command -v "$each" 2>/dev/null) || continue
  if "$each" -c 'import sys; sys.exit(sys.version_info < {MINIMUM_PYTHON})' 2>/dev/null; then
    [ -n "$found" ] || found=$each
    if "$each" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
      found=$each
      break
    fi
  else
    old="$("$each" -V 2>&1 | tail -n 1) ($each)"
  fi
done
if [ -z "$found" ]; then
  echo "$old"
  exit {NO_PYTHON}
fi
PYTHONPATH="$wheel" "$found" -P -m assay.hosts.remote.agent.bootstrap "$base" {name} "$wheel"
"""
