from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.workloads import kernel_support, registry
from assay.workloads.kernel_support import TRITON_DTYPES, next_power_of_two
from assay.workloads.parameters import SoftmaxProblem
from tests.triton_process import TritonProcess, triton_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.core.values import Params

pytest.importorskip("triton", reason="Triton is not installed here")

NAMES = ("flash_attention", "gemm", "rms_norm", "softmax")


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A process in which Triton interprets its kernels."""
    with triton_process(tmp_path_factory.mktemp("triton"), TRITON_INTERPRET="1") as process:
        yield process


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A process in which Triton compiles its kernels."""
    with triton_process(tmp_path_factory.mktemp("triton"), TRITON_DEFAULT_FP_FUSION="1") as process:
        yield process


def params_of(name: str, **changed: Any) -> dict[str, Any]:
    return {**registry.find_workload(name, "triton").defaults("cpu"), **changed}


GEMM = {"block_m": 32, "block_n": 16, "block_k": 16}
ROWS = {"block_rows": 2, "block_cols": 64}
TILES = {"block_q": 32, "block_k": 16}

PROBLEMS: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    ("gemm", {"m": 70, "n": 37, "k": 50}, GEMM),
    ("gemm", {"m": 64, "n": 48, "k": 32}, GEMM),
    ("gemm", {"m": 300, "n": 5, "k": 3}, GEMM),
    ("gemm", {"m": 70, "n": 37, "k": 50}, None),
    ("gemm", {"m": 1, "n": 1, "k": 1}, None),
    ("softmax", {"rows": 5, "cols": 33}, None),
    ("softmax", {"rows": 5, "cols": 150}, ROWS),
    ("softmax", {"rows": 1, "cols": 1}, None),
    ("rms_norm", {"rows": 5, "cols": 33}, None),
    ("rms_norm", {"rows": 5, "cols": 150}, ROWS),
    ("rms_norm", {"rows": 1, "cols": 1}, None),
    *(
        ("flash_attention", {"heads": 3, "sequence": sequence, "dim": dim, "causal": causal}, config)
        for causal in (False, True)
        for sequence, dim, config in [
            (70, 24, TILES),
            (64, 32, TILES),
            (70, 16, {"block_q": 16, "block_k": 64}),
            (37, 24, None),
            (1, 1, None),
        ]
    ),
]


@pytest.mark.parametrize("dtype", TRITON_DTYPES)
@pytest.mark.parametrize(("name", "sizes", "config"), PROBLEMS)
def test_every_kernel_is_right_where_blocks_do_and_do_not_divide_the_problem(
    interpreter: TritonProcess, name: str, sizes: dict[str, Any], config: dict[str, Any] | None, dtype: str
) -> None:
    found = interpreter.check(name, params_of(name, **sizes, dtype=dtype), config)
    assert found["passed"], found


@pytest.mark.parametrize("name", NAMES)
def test_first_and_last_configurations_are_right(interpreter: TritonProcess, name: str) -> None:
    params = params_of(name)
    configs = registry.find_workload(name, "triton").configs(params)
    assert all(interpreter.check(name, params, config)["passed"] for config in (configs[0], configs[-1]))


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_that_writes_nothing_fails_its_check(interpreter: TritonProcess, name: str) -> None:
    assert interpreter.check(name, params_of(name), silent=True)["error"] == "infinite"


def test_tf32_is_judged_as_such(interpreter: TritonProcess) -> None:
    assert interpreter.check("gemm", params_of("gemm", tf32=True))["tolerance"] == 2e-3
    assert interpreter.check("gemm", params_of("gemm"))["tolerance"] == 1e-5


def test_the_interpreter_runs_on_a_cpu_and_has_no_kernels_to_show(interpreter: TritonProcess) -> None:
    found = interpreter.check("softmax", params_of("softmax"))
    assert found["kinds"] == ["cpu", "cuda"]
    assert not found["ran"]


ATTENTION = {"dim": 64, "block_d": 64, "causal": True, "precision": "ieee", "widen": False}
LAUNCHES: dict[str, dict[str, Any]] = {
    "gemm": {"numbers": ["m", "n", "k"], "constants": {"group_m": 8, "even_k": False, "widen": False}},
    "softmax": {"numbers": ["rows", "cols"], "constants": {"whole": False}},
    "rms_norm": {"numbers": ["rows", "cols"], "floats": ["eps"], "constants": {"whole": True}},
    "flash_attention": {"numbers": ["sequence"], "floats": ["scale"], "constants": ATTENTION},
}


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_compiles_for_a_hopper_and_fits_it(compiler: TritonProcess, name: str, dtype: str) -> None:
    launch = {"floats": [], **LAUNCHES[name]}
    workload = registry.find_workload(name, "triton")
    config = dict(workload.configs({**workload.defaults("cuda"), "dtype": dtype})[0])
    options = {option: config.pop(option) for option in ("num_warps", "num_stages")}
    if name == "gemm":
        config["precision"] = "ieee"
    request = {**launch, "constants": {**launch["constants"], **config}}
    made = compiler.ask({"do": "compile", "name": name, "dtype": dtype, "options": options, **request})
    assert made["shared_bytes"] <= 227 * 1024
    assert made["tensor_cores"] == (dtype == "bfloat16" and name in {"gemm", "flash_attention"})


@pytest.mark.parametrize(("name", "fewest"), [("gemm", 40), ("flash_attention", 10), ("rms_norm", 10), ("softmax", 10)])
@pytest.mark.parametrize("dtype", TRITON_DTYPES)
def test_there_is_much_to_choose_from_and_nothing_twice(name: str, fewest: int, dtype: str) -> None:
    workload = registry.find_workload(name, "triton")
    configs = workload.configs({**workload.defaults("cuda"), "dtype": dtype})
    assert len(configs) >= fewest
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    assert len({tuple(config) for config in configs}) == 1


@pytest.mark.parametrize("dtype", TRITON_DTYPES)
@pytest.mark.parametrize("dim", [1, 24, 64, 128, 256])
@pytest.mark.parametrize("sequence", [1, 100, 5000])
def test_there_is_a_configuration_for_every_attention(dtype: str, dim: int, sequence: int) -> None:
    workload = registry.find_workload("flash_attention", "triton")
    assert workload.configs({**workload.defaults(), "dtype": dtype, "dim": dim, "sequence": sequence})


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 70_000), (3, 17), (8192, 8192)])
def test_there_is_a_configuration_for_every_matrix(rows: int, cols: int) -> None:
    problem = SoftmaxProblem(rows, cols, "float32")
    for config in kernel_support.row_configs(problem):
        settings = kernel_support.row_settings(problem, config)
        assert kernel_support.row_grid(problem, settings)[0] * settings["block_rows"] >= rows
        assert settings["whole"] == (settings["block_cols"] >= cols)


def test_exact_float32_is_given_smaller_tiles_than_tf32() -> None:
    workload = registry.find_workload("gemm", "triton")
    params: Params = {**workload.defaults("cuda"), "dtype": "float32"}
    exact, rounded = workload.configs(params)[0], workload.configs({**params, "tf32": True})[0]
    assert (exact["block_n"], rounded["block_n"]) == (128, 256)


@pytest.mark.parametrize(
    ("name", "changed", "config", "says"),
    [
        ("gemm", {"dtype": "float64"}, None, r"^dtype is one of bfloat16, float16, float32, not 'float64'"),
        ("gemm", {"tf32": True, "dtype": "float16"}, None, r"^tf32 is a way to multiply float32, not float16\.$"),
        ("gemm", {}, {"block_m": 48}, r"^block_m is a power of two of at least 16, not 48\.$"),
        ("gemm", {}, {"block_k": 8}, r"^block_k is a power of two of at least 16, not 8\.$"),
        ("gemm", {}, {"layout": "row"}, r"^'layout' is not a setting here; there are block_m, block_n, block_k, num_w"),
        ("softmax", {}, {"block_rows": 3}, r"^block_rows is a power of two, not 3\.$"),
        ("rms_norm", {}, {"num_warps": 0}, r"^num_warps is a whole number of at least 1, not 0\.$"),
        ("flash_attention", {"dim": 300}, None, r"^dim is at most 256 for flash_attention@triton, not 300\.$"),
    ],
)
def test_bad_parameters_and_configurations_are_refused_in_one_sentence(
    name: str, changed: Params, config: Params | None, says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        registry.find_workload(name, "triton").prepare(params_of(name, **changed), config, device="cpu:0", seed=0)


def test_a_configuration_too_large_for_the_gpu_is_refused() -> None:
    from triton.runtime.errors import OutOfResources

    def check() -> Any:
        raise OutOfResources(294912, 232448, "shared memory")

    with pytest.raises(MachineCannot, match=r"^This configuration is too large for this GPU: .*294912.*232448"):
        kernel_support.check_within_limits(check)


def test_without_the_interpreter_kernels_run_on_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert kernel_support.triton_device_kinds() == {"cuda"}
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernel_support.triton_device_kinds() == {"cpu", "cuda"}


@pytest.mark.parametrize(("least", "power"), [(1, 16), (16, 16), (17, 32), (64, 64), (65, 128)])
def test_powers_of_two_hold_what_they_must(least: int, power: int) -> None:
    assert next_power_of_two(least) == power
