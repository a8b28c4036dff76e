"""A tar from another machine, unpacked: plain files and folders, and nothing outside the folder they go to."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def unpack(stream: IO[bytes], folder: Path) -> None:
    """Unpack a tar, as it comes, into a folder.

    Raises:
        tarfile.TarError: It is none, or was cut off.
        ValueError: It holds what it should not.
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                raise ValueError(f"{member.name!r} leads out of the folder")
            path = folder / name
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                path.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(member)
                if source is None:
                    raise ValueError(f"{member.name!r} has no content")
                with path.open("xb") as target:
                    shutil.copyfileobj(source, target)
                if member.mode & 0o100:
                    path.chmod(path.stat().st_mode | 0o100)
            else:
                raise ValueError(f"{member.name!r} is neither a file nor a folder")
