"""Compile the fake NVML from C, once for each version of its source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.fakes.nvml_layout import assertions

SOURCES = Path(__file__).parent / "nvml"
COMPILE = ("gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread", "-c")
LINK = ("gcc", "-shared", "-pthread", "-Wl,--no-undefined")

NVML_NAME = "libnvidia-ml.so.1"
DRIVER_NAME = "libassay-fake.so"
"""The same code under a name that no program looks for, so that loading it hides no real NVML."""


def build(folder: Path | None = None) -> Path:
    """Return the path of a `libnvidia-ml.so.1`, compiled now or earlier; its folder goes into LD_LIBRARY_PATH.

    Args:
        folder: Where compiled libraries are kept; a folder of this user under the system's temporary one by default.
    """
    cache = folder or Path(tempfile.gettempdir()) / f"assay-fake-nvml-{os.getuid()}"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    finished = cache / _fingerprint()
    if not finished.exists():
        _compile_into(finished)
    return finished / NVML_NAME


def _fingerprint() -> str:
    digest = hashlib.sha256(repr((COMPILE, LINK, assertions())).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile_into(finished: Path) -> None:
    """Compile beside the destination and rename: several processes may do so at once, and one of them wins."""
    scratch = Path(tempfile.mkdtemp(dir=finished.parent, prefix="building-"))
    try:
        _compile(scratch)
        scratch.rename(finished)
    except OSError:
        if not finished.exists():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _compile(folder: Path) -> None:
    check = folder / "layout_check.c"
    check.write_text(assertions())
    sources = [str(path) for path in (*sorted(SOURCES.glob("*.c")), check)]
    _run([*COMPILE, f"-I{SOURCES}", *sources], folder)
    objects = sorted(path.name for path in folder.glob("*.o"))
    for name in (NVML_NAME, DRIVER_NAME):
        _run([*LINK, f"-Wl,-soname,{name}", "-o", name, *objects, "-lm"], folder)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the fake NVML does not compile:\n{done.stderr}")
