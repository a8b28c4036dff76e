"""The Makefile of ``native/``: what it finds out, and what it says is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fakes import cuda_build

if TYPE_CHECKING:
    from pathlib import Path


def make(*words: str, path: str) -> subprocess.CompletedProcess[str]:
    told = {"ARCH", "CUBLAS_HOME", "CXX", "MAKEFLAGS", "NVCC"}
    environment = {name: value for name, value in os.environ.items() if name not in told} | {"PATH": path}
    command = [str(shutil.which("make")), "--no-print-directory", "-C", str(cuda_build.NATIVE), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=110)


def tools(folder: Path, **scripts: str) -> str:
    """Return a PATH with the programs that the Makefile needs, and these scripts."""
    for name in ("sh", "tr", "sort", "cat"):
        (folder / name).symlink_to(str(shutil.which(name)))
    for name, text in scripts.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name.replace("_", "-")).chmod(0o755)
    return str(folder)


NO_GPU = "case $* in *native*) echo \"nvcc warning : Cannot find valid GPU for '-arch=native'\" >&2;; esac"
OLD = "case $* in *native*) exit 1;; esac"
NO_CUBLAS = 'case $* in *"-x cu -E -") exit 1;; esac'


@pytest.mark.parametrize(
    ("scripts", "says"),
    [
        ({}, "native: nvcc is not here (nvcc): install the CUDA toolkit, put its bin on the PATH, or give NVCC="),
        ({"nvcc": NO_GPU}, "native: no GPU is seen here to build for: give its architecture, as in make ARCH=sm_90."),
        ({"nvcc": OLD, "nvidia_smi": "echo '[N/A]'"}, "native: no GPU is seen here to build for"),
        ({"nvcc": NO_CUBLAS}, "native: cuBLAS is not here (cublas_v2.h and libcublas.so): install it"),
    ],
)
def test_make_says_what_is_missing(tmp_path: Path, scripts: dict[str, str], says: str) -> None:
    done = make("-B", "sgemm", path=tools(tmp_path, **scripts))
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("words", "scripts", "flags"),
    [
        ([], {"nvcc": "true"}, "-arch=native"),
        (["ARCH=sm_80"], {"nvcc": NO_GPU}, "-arch=sm_80"),
        (
            [],
            {"nvcc": NO_GPU, "nvidia_smi": "printf '9.0\\n8.6\\n9.0\\n'"},
            "-gencode arch=compute_86,code=sm_86 -gencode arch=compute_90,code=sm_90",
        ),
    ],
)
def test_make_builds_for_the_architecture_of_the_gpus_that_are_here(
    tmp_path: Path, words: list[str], scripts: dict[str, str], flags: str
) -> None:
    done = make("-B", "sgemm", *words, path=tools(tmp_path, **scripts))
    assert done.returncode == 0, done.stderr
    assert f"nvcc -std=c++17 -O3 {flags} -Xcompiler -Wall,-Wextra -o sgemm sgemm.cu -lcublas" in done.stderr


def test_make_takes_the_cublas_that_it_is_told_of(tmp_path: Path) -> None:
    home = tmp_path / "cu13"
    for name in ("include/cublas_v2.h", "lib/libcublas.so.13"):
        (home / name).parent.mkdir(parents=True)
        (home / name).touch()
    (tmp_path / "bin").mkdir()
    path = tools(tmp_path / "bin", nvcc="true")
    done = make("-B", "sgemm", "ARCH=sm_90", f"CUBLAS_HOME={home}", path=path)
    assert f"-I{home}/include -L{home}/lib -l:libcublas.so.13 -Xlinker -rpath={home}/lib" in done.stderr


@pytest.mark.full
def test_nvcc_compiles_what_the_other_tests_run(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not on the PATH")
    asked = subprocess.run([cuda_build.NATIVE / "detect.sh", "cublas"], capture_output=True, text=True, check=False)
    flags = asked.stdout.split()
    if asked.returncode != 0:  # the compiler alone is here: CUDA is real, and cuBLAS the fake one
        for name in ("cublas_v2.h", "fake_world.h"):
            shutil.copy(cuda_build.FAKE / name, tmp_path)
        flags = [f"-I{tmp_path}"]
    command = [nvcc, "-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", str(cuda_build.NATIVE / "sgemm.cu")]
    done = subprocess.run(
        [*command, *flags, "-o", str(tmp_path / "sgemm")], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr
