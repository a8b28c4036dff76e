"""The kernels that Assay brings along assemble for every GPU it is meant for, and are those that it launches."""

from __future__ import annotations

import re
import subprocess
from importlib import resources
from pathlib import Path

import pytest

SOURCE = resources.files("assay.timing.cuda").joinpath("kernels.ptx").read_text(encoding="utf-8")
LAUNCHED = {"begin", "end", "spin", "wide", "gate"}


@pytest.fixture(scope="session")
def ptxas() -> Path:
    """NVIDIA's assembler, as Triton brings it along."""
    triton = pytest.importorskip("triton", reason="the assembler comes with Triton")
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    if not tool.exists():
        pytest.skip("this Triton brings no ptxas along")
    return tool


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_the_kernels_assemble(architecture: str, ptxas: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels.ptx").write_text(SOURCE)
    done = subprocess.run(
        [ptxas, f"-arch={architecture}", "-o", tmp_path / "out.cubin", tmp_path / "kernels.ptx"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.cubin").stat().st_size > 0


def test_every_kernel_that_is_launched_is_there() -> None:
    assert {f"assay_{name}" for name in LAUNCHED} <= set(re.findall(r"\.entry (\w+)", SOURCE))


def test_every_argument_is_64_bits_wide_as_the_launches_write_them() -> None:
    for kinds in re.findall(r"\.entry \w+\(([^)]*)\)", SOURCE):
        assert all(".u64" in argument for argument in kinds.split(",") if argument.strip())
