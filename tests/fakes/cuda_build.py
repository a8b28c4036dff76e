"""Compile the programs of ``native/`` against a fake CUDA on the host, once for each version of their sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FAKE = Path(__file__).parent / "cuda"
NATIVE = Path(__file__).parents[2] / "native"
COMPILE = ("g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{FAKE}", f"-I{NATIVE}", "-x", "c++")
SOURCES = {"sgemm": NATIVE / "sgemm.cu", "gen_data": NATIVE / "gen_data.cpp", "probe": FAKE / "probe.cpp"}
"""The very sources that nvcc compiles, and a program that asks their headers."""


def build(folder: Path | None = None) -> Path:
    """Return the folder of the compiled programs, made now or earlier."""
    cache = folder or Path(tempfile.gettempdir()) / f"assay-fake-cuda-{os.getuid()}"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    finished = cache / _fingerprint()
    if not finished.exists():
        _compile_into(finished)
    return finished


def _fingerprint() -> str:
    digest = hashlib.sha256(repr(COMPILE).encode())
    for source in sorted((*FAKE.iterdir(), *NATIVE.glob("*.h"), *SOURCES.values())):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile_into(finished: Path) -> None:
    """Compile beside the destination and rename: several processes may do so at once, and one of them wins."""
    scratch = Path(tempfile.mkdtemp(dir=finished.parent, prefix="building-"))
    try:
        compiling = [
            subprocess.Popen([*COMPILE, str(source), "-o", str(scratch / name)], stderr=subprocess.PIPE, text=True)
            for name, source in SOURCES.items()
        ]
        said = [process.communicate()[1] for process in compiling]
        if any(process.returncode for process in compiling):
            raise RuntimeError(f"native/ does not compile against the fake CUDA:\n{''.join(said)}")
        scratch.rename(finished)
    except OSError:
        if not finished.exists():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
