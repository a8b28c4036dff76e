"""What goes to another machine: a wheel of this very version, and the files that an order's words name."""

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
from typing import TYPE_CHECKING, Any

import assay
from assay._version import __version__
from assay.core.errors import BadInput, MachineCannot
from assay.hosts.remote.there.folder import JOB, WORK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.hosts.base import Shipped

NAME = "gpu-assay"
SEND = "ASSAY_SEND"
LEFT_OUT = ("__pycache__", ".git", ".pytest_cache", ".mypy_cache", ".ruff_cache")
CHUNK = 1 << 18
_EPOCH = (1980, 1, 1, 0, 0, 0)
_IN_MEMORY = 1 << 25


@cache
def contents() -> dict[str, bytes]:
    """Return the files of a wheel of the package that runs here, by their paths in it.

    ``ASSAY_SEND`` names another package folder of Assay, of which only the files are read: a commit is measured as it
    is, and nothing of it runs here.

    Raises:
        BadInput: What it names is none.
    """
    package = Path(os.environ.get(SEND) or Path(assay.__file__).parent)
    if not (package / "cli/main.py").is_file():
        raise BadInput(f"{SEND} is {package}, which is not the package of Assay.")
    described = f"{NAME.replace('-', '_')}-{__version__}.dist-info"
    files = {f"assay/{path.relative_to(package)}": path.read_bytes() for path in _sources(package)}
    files[f"{described}/METADATA"] = _metadata(package)
    files[f"{described}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: assay\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{described}/entry_points.txt"] = b"[console_scripts]\nassay = assay.cli.entry:main\n"
    rows = [f"{name},sha256={_hash(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{described}/RECORD"] = "".join([*rows, f"{described}/RECORD,,\n"]).encode()
    return files


def key() -> str:
    """Return a name that a wheel of any other content does not have."""
    (record,) = (data for name, data in contents().items() if name.endswith(".dist-info/RECORD"))
    return hashlib.sha256(record).hexdigest()[:16]


def wheel() -> bytes:
    """Return the wheel; the same files make the same wheel."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in contents().items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _sources(package: Path) -> list[Path]:
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(path for path in files if not path.name.startswith("."))


def _hash(data: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _metadata(package: Path) -> bytes:
    """Return what the wheel says of itself: from the source tree around the package, else as it is installed."""
    needs, python = _declared(package.parents[1] / "pyproject.toml") or _installed()
    lines = ["Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {__version__}", f"Requires-Python: {python}"]
    return "\n".join([*lines, *(f"Requires-Dist: {requirement}" for requirement in needs), ""]).encode()


def _declared(path: Path) -> tuple[list[str], str] | None:
    try:
        project: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return None
    return (project["dependencies"], project["requires-python"]) if project.get("name") == NAME else None


def _installed() -> tuple[list[str], str]:
    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        raise MachineCannot(
            f"The package {NAME} is not installed here as a whole, so that it cannot be sent."
        ) from None
    needs = [requirement for requirement in installed.requires or [] if not re.search(r";.*\bextra\b", requirement)]
    return needs, installed.metadata["Requires-Python"] or ">=3.11"


def start_of(files: tuple[Shipped, ...]) -> str:
    """Return the folder that the work starts in, from the order's: so deep that no file is above the order's own."""
    above = max((PurePosixPath(posixpath.normpath(file.there)).parts.count("..") for file in files), default=0)
    return "/".join((WORK, *("here" for _ in range(above))))


def bundle(files: tuple[Shipped, ...], job: dict[str, Any]) -> Iterator[bytes]:
    """Yield a tar with an order's words and files, as it is unpacked into the order's folder.

    Raises:
        MachineCannot: A file that is to go along cannot be read.
    """
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            text = json.dumps(job).encode()
            entry = tarfile.TarInfo(JOB)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
            for file in files:
                try:
                    archive_path = posixpath.normpath(f"{start_of(files)}/{file.there}")
                    archive.add(file.here, arcname=archive_path, filter=_worth)
                except OSError as error:
                    raise MachineCannot(f"{file.here} cannot be sent: {error.strerror or error}.") from error
        buffer.seek(0)
        while piece := buffer.read(CHUNK):
            yield piece


def _worth(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out caches and what is neither a file nor a folder; nothing of the owner goes along."""
    if Path(entry.name).name in LEFT_OUT or not (entry.isfile() or entry.isdir()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
