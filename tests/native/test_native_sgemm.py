"""The standalone programs in ``native/``, their own sources compiled against a fake CUDA on the host."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from assay.core.values import Command, Metric
from assay.workloads.command import run_command
from tests.fakes import cuda_build

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


class Native(Protocol):
    """Runs one of the programs to its end; what it is told of the fake CUDA goes by name."""

    def __call__(self, program: str, *words: object, **told: object) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture(scope="session")
def programs() -> Path:
    return cuda_build.build()


@pytest.fixture
def native(programs: Path, tmp_path: Path) -> Native:
    def run(program: str, *words: object, **told: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
        command = [str(programs / program), *map(str, words)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    return run


def lines(ran: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_products_are_right_and_every_kernel_has_a_line_of_its_own(native: Native) -> None:
    ran = native("sgemm", 65, 3, 0)
    assert ran.returncode == 0, ran.stderr
    header, *kernels, summary = lines(ran)
    assert (header["n"], header["repetitions"], header["flop"]) == (65, 3, 2 * 65**3)
    assert header["name"] == 'Fake "GPU" of the tests'
    assert header["uuid"] == "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe00"
    assert header["math"] == "CUBLAS_DEFAULT_MATH, TF32 off"
    assert [kernel["kernel"] for kernel in kernels] == [0, 1, 2]
    starts = [kernel["start_us"] for kernel in kernels]
    assert starts == sorted(starts)
    for kernel, following in zip(kernels, [*starts[1:], float("inf")], strict=True):
        assert 0 < kernel["duration_us"] <= following - kernel["start_us"] + 0.01
        assert kernel["gflops"] == pytest.approx(header["flop"] / kernel["duration_us"] / 1000, rel=0.01)
    assert summary["median_us"] == pytest.approx(sorted(kernel["duration_us"] for kernel in kernels)[1], rel=0.01)
    assert (summary["kernels"], summary["stopped"], summary["right"]) == (3, False, True)
    assert 0 < summary["check_error"] < 1e-6


@pytest.mark.parametrize("n", [1, 2, 17])
def test_the_smallest_products_are_right_too(native: Native, n: int) -> None:
    ran = native("sgemm", n, 1, 0)
    assert ran.returncode == 0, ran.stderr
    assert lines(ran)[-1]["check_entries"] == min(n, 16) ** 2
    assert lines(ran)[-1]["cv"] is None


def test_a_result_rounded_to_tf32_or_not_written_at_all_is_wrong(native: Native) -> None:
    ran = native("sgemm", 33, 1, 0, FAKE_CUBLAS_WRONG=1.0003)
    assert ran.returncode == 1
    assert "the result is wrong: its relative error against double is 0.0003" in ran.stderr
    assert lines(ran)[-1]["right"] is False
    assert native("sgemm", 33, 1, 0, FAKE_CUBLAS_WRONG="nan").returncode == 1


def test_a_file_of_gen_data_gives_what_is_made_in_place(native: Native, tmp_path: Path) -> None:
    wrote = native("gen_data", 21)
    assert wrote.returncode == 0, wrote.stderr
    assert lines(wrote) == [{"file": "sgemm_21.bin", "n": 21, "dtype": "float32", "bytes": 32 + 2 * 21 * 21 * 4}]
    assert [path.name for path in tmp_path.iterdir()] == ["sgemm_21.bin"]
    made, read = (native("sgemm", 21, 1, 0, *more) for more in ((), ("--data", "sgemm_21.bin")))
    assert read.returncode == 0, read.stderr
    assert lines(read)[0]["data"] == "sgemm_21.bin"
    assert lines(read)[-1]["check_error"] == lines(made)[-1]["check_error"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda b: b[:-4], "is truncated: it has 3556 bytes where n = 21 takes 3560"),
        (lambda b: b + b"\0", "is too long: it has 3561 bytes"),
        (lambda b: b[:20], "is not a file of gen_data"),
        (lambda b: b"", "is not a file of gen_data"),
        (lambda b: b"PNG" + b[3:], "is not a file of gen_data"),
        (lambda b: b[:12] + struct.pack("<I", 9) + b[16:], "is of another version or type: write it anew"),
        (lambda b: b[:16] + struct.pack("<Q", 2**40) + b[24:], "holds matrices of n = 1099511627776, not of 21"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused(native: Native, tmp_path: Path, spoil: Any, says: str) -> None:
    native("gen_data", 21, "good.bin")
    (tmp_path / "bad.bin").write_bytes(spoil((tmp_path / "good.bin").read_bytes()))
    ran = native("sgemm", 21, 1, 0, "--data", "bad.bin")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"sgemm: bad.bin {says}" in ran.stderr


def test_a_file_that_is_not_there_or_no_file_is_refused(native: Native) -> None:
    for path, says in (("none.bin", "cannot be opened: No such file"), (".", "is not a file")):
        ran = native("sgemm", 21, 1, 0, "--data", path)
        assert ran.returncode == 2
        assert says in ran.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "usage: sgemm N REPS GPU"),
        ((8, 1), "usage: sgemm N REPS GPU"),
        ((8, 1, 0, 0), "usage: sgemm N REPS GPU"),
        ((8, 1, 0, "--fast"), "usage: sgemm N REPS GPU"),
        ((8, 1, 0, "--data"), "usage: sgemm N REPS GPU"),
        ((0, 1, 0), "sgemm: N is a whole number from 1 to 1000000000, not '0'."),
        (("-8", 1, 0), "sgemm: N is a whole number"),
        (("8.5", 1, 0), "not '8.5'"),
        (("9" * 30, 1, 0), "sgemm: N is a whole number"),
        ((8, "ten", 0), "sgemm: REPS is a whole number from 1 to 10000000, not 'ten'."),
        ((8, 1, "cuda:0"), "sgemm: GPU is a whole number from 0 to 1023, not 'cuda:0'."),
        ((8, 1, 0, "--warmup", "0"), "sgemm: COUNT is a whole number"),
    ],
)
def test_words_that_make_no_sense_are_answered_in_one_sentence(native: Native, words: Any, says: str) -> None:
    ran = native("sgemm", *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert says in ran.stderr
    assert native("sgemm", "--help").returncode == 0


def test_gen_data_says_what_it_cannot_do(native: Native, tmp_path: Path) -> None:
    assert "usage: gen_data N" in native("gen_data").stderr
    assert "N is a whole number from 1 to 1000000000, not 'x'" in native("gen_data", "x").stderr
    huge = native("gen_data", 900_000_000)
    assert huge.returncode == 3
    assert "the matrices of n = 900000000 take 6034970283.5 GiB, and" in huge.stderr
    nowhere = native("gen_data", 3, "no/such/place.bin")
    assert nowhere.returncode == 2
    assert "no/such/ cannot be written to" in nowhere.stderr
    assert not list(tmp_path.iterdir())
    os.mkfifo(tmp_path / "pipe")
    odd = native("gen_data", 3, tmp_path / "pipe")
    assert odd.returncode == 2
    assert "is no plain file" in odd.stderr
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    "call",
    ["cudaGetDeviceCount", "cudaSetDevice", "cudaGetDeviceProperties", "cudaMemGetInfo", "cudaStreamCreate",
     "cudaMemset", "cudaLaunchKernel", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventCreate",
     "cudaEventRecord", "cudaEventSynchronize", "cudaEventElapsedTime", "cudaMemcpy", "cudaMemcpy2D", "cublasCreate",
     "cublasSetStream", "cublasSetMathMode", "cublasSgemm"],
)  # fmt: skip
def test_whichever_call_fails_is_named_with_the_reason(native: Native, call: str) -> None:
    ran = native("sgemm", 8, 2, 0, FAKE_CUDA_FAIL=f"{call}:1")
    assert ran.returncode == 3
    why = "CUBLAS_STATUS_EXECUTION_FAILED" if call.startswith("cublas") else "unknown error (cudaErrorUnknown)"
    assert ran.stderr.splitlines()[-1].startswith(f"sgemm: {call}(")
    assert ran.stderr.rstrip().endswith(f"failed: {why}.")
    assert all(lines(ran))


def test_memory_that_runs_out_all_the_same_and_a_kernel_that_fails_later_are_told(native: Native) -> None:
    ran = native("sgemm", 8, 1, 0, FAKE_CUDA_FAIL="cudaMalloc:2")
    assert ran.returncode == 3
    assert "failed: out of memory (cudaErrorMemoryAllocation)." in ran.stderr
    late = native("sgemm", 8, 9, 0, FAKE_CUDA_FAIL="cublasSgemm:6")
    assert late.returncode == 3
    assert [line.get("kernel") for line in lines(late)] == [None, 0, 1]


def test_a_gpu_that_is_not_there_is_told_with_how_many_there_are(native: Native) -> None:
    ran = native("sgemm", 8, 1, 4, FAKE_CUDA_DEVICES=2)
    assert (ran.returncode, ran.stderr) == (3, "sgemm: there is no GPU 4; CUDA sees 2.\n")
    assert lines(native("sgemm", 8, 1, 1, FAKE_CUDA_DEVICES=2))[0]["uuid"].endswith("01")


@pytest.mark.parametrize("n", [46341, 100_000, 1_000_000_000])
def test_sizes_are_right_where_32_bits_are_not_enough(native: Native, n: int) -> None:
    needed = 3 * 4 * n * n + 2**28
    (said,) = lines(native("probe", n, needed))
    assert (said["elements"], said["needed"], said["file"]) == (n * n, needed, 32 + 2 * 4 * n * n)
    assert said["flop"] == 2.0 * n**3
    assert said["largest"] == n
    assert lines(native("probe", n, needed - 1))[0]["largest"] == n - 1
    assert -1 <= said["last"] < 1
    assert said["last"] != said["wrapped"] or n * n < 2**32


@pytest.mark.parametrize("n", [46341, 100_000])
def test_what_does_not_fit_is_refused_before_it_is_taken(native: Native, n: int) -> None:
    free = 5 * GIB
    ran = native("sgemm", n, 1, 0, FAKE_CUDA_FREE=free)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert f"n = {n} needs {(12 * n * n + 2**28) / GIB:.1f} GiB ({12 * n * n + 2**28} bytes), and 5.0 GiB" in ran.stderr
    largest = int(((free - 2**28) / 12) ** 0.5)
    assert f"the largest n that fits is {largest}." in ran.stderr


def test_a_signal_ends_it_after_the_kernel_in_flight_with_whole_lines_and_a_checked_result(programs: Path) -> None:
    environment = {**os.environ, "FAKE_CUBLAS_MS": "5"}
    with subprocess.Popen(
        [programs / "sgemm", "4", "100000", "0"],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=60)
    found = [json.loads(line) for line in ("".join(first) + rest).splitlines()]
    summary = found[-1]
    assert process.returncode == 4
    assert (summary["stopped"], summary["right"], summary["asked"]) == (True, True, 100_000)
    assert summary["kernels"] == len(found) - 2
    assert f"stopped after {summary['kernels']} of 100000 kernels." in said


def test_assay_runs_it_as_a_command_and_reads_its_numbers(programs: Path) -> None:
    metric = Metric(name="median_us", pattern='"median_us": ([0-9.]+)')
    found = run_command(Command(argv=(str(programs / "sgemm"), "16", "3", "0"), metrics=(metric,)))
    assert found["median_us"] == found["kernel_us"]
    assert found["rate_gflops"] > 0
    assert found["kernel_min_us"] <= found["kernel_us"] <= found["kernel_max_us"]
