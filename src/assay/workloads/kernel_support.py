"""Shared code of Triton workloads.

Supported devices, kernel launches, limits of a configuration, and row-wise configurations.

On a CPU they run only under Triton's interpreter (``TRITON_INTERPRET=1``): correct, slow, and not worth timing.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.base import one_line
from assay.workloads.numpy_support import DISTRIBUTIONS
from assay.workloads.parameters import RowsProblem, TensorProblem, complete_config, read_size
from assay.workloads.torch_device import import_torch, library_of_kernels, open_device, torch_device
from assay.workloads.torch_support import TensorOperator, empty_output, uses_tf32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from assay.core.results import Check
    from assay.core.values import Params
    from assay.workloads.base import PreparedWorkload
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_support import TensorWork

_Problem = TypeVar("_Problem", bound=TensorProblem)

TRITON_DTYPES = ("bfloat16", "float16", "float32")


MOST_SHARED_BYTES = 200 * 1024
"""Limit of a configuration's estimated shared memory: what fits a Hopper GPU; smaller GPUs refuse some."""

SMALLEST_DOT = 16  # smallest side of a tile that Triton's ``dot`` multiplies


@dataclass(frozen=True)
class TritonLaunch:
    """The launch of a kernel on existing data, in any configuration."""

    kernel: str  # the kernel's name
    args: tuple[Any, ...]  # positional arguments: tensors and numbers
    out: Tensor  # the output tensor
    fixed: Mapping[str, Any]  # settings shared by all configurations
    settings: Callable[[Params], dict[str, Any]]  # returns the settings of a configuration, except its warps and stages
    grid: Callable[[Mapping[str, Any]], tuple[int]]  # returns the number of programs from all settings

    def call(self, config: Params) -> Callable[[], Tensor]:
        """Return a call that launches the kernel in one configuration; its first call compiles it."""
        settings = {**self.fixed, **self.settings(config)}
        kernel = load_kernel(self.kernel)[self.grid(settings)]
        launch = partial(kernel, *self.args, **settings, **launch_options(config))

        def call() -> Tensor:
            launch()
            return self.out

        return call


@cache
def is_triton_installed() -> bool:
    """Return whether Triton can be imported here."""
    return find_spec("triton") is not None


def is_triton_interpreted() -> bool:
    """Return whether Triton interprets its kernels on the CPU instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def triton_device_kinds() -> frozenset[str]:
    """Return the kinds of device that Triton's kernels run on in this process."""
    return frozenset({"cpu", "cuda"}) if is_triton_interpreted() else frozenset({"cuda"})


def load_kernel(name: str, module: str = "triton_ops") -> Any:
    """Return one of our kernels, not yet compiled, from a module of `kernels`; raise if Triton is missing."""
    try:
        return getattr(importlib.import_module(f"assay.workloads.kernels.{module}"), name)
    except ImportError as error:
        raise MachineCannot(f"Triton cannot be imported here: {error}.") from error


def launch_options(config: Params) -> dict[str, int]:
    """Return a kernel's compile options: warps per program and pipeline stages of its loads."""
    return {name: read_size(config, name) for name in ("num_warps", "num_stages")}


def next_power_of_two(least: int, *, at_least: int = SMALLEST_DOT) -> int:
    """Return the smallest power of two that is at least both."""
    return 1 << (max(least, at_least) - 1).bit_length()


def tile_side(config: Params, name: str) -> int:
    """Return one side of a tile, which must be a power of two and not too small for Triton."""
    side = read_size(config, name)
    if side < SMALLEST_DOT or side != next_power_of_two(side):
        raise BadInput(f"{name} is a power of two of at least {SMALLEST_DOT}, not {side}.")
    return side


def multiply_unit(params: Params, dtype: str) -> str:
    """Return the unit that multiplies tiles: ``threads`` where float32 stays exact, otherwise ``tensor cores``."""
    return "threads" if dtype == "float32" and not uses_tf32(params, dtype) else "tensor cores"


def prepare_kernel_work(work: TensorWork, *, interpreted: bool, where: str, seed: int) -> PreparedWorkload:
    """Prepare a kernel's work to be timed; its check refuses a configuration that is too large for the GPU."""
    prepared = work.prepare(where=where, seed=seed)
    launched_kernels = None if interpreted else prepared.launched_kernels
    check = partial(check_within_limits, partial(work.check, seed))
    return replace(prepared, check=check, launched_kernels=launched_kernels)


def check_within_limits(check: Callable[[], Check]) -> Check:
    """Run a check; refuse a kernel that needs more resources than the GPU has."""
    try:
        return check()
    except Exception as error:
        if type(error).__name__ != "OutOfResources":
            raise
        raise MachineCannot(f"This configuration is too large for this GPU: {error}") from error


class TritonOperator(TensorOperator[_Problem]):
    """An operator by one of our Triton kernels, in a choice of configurations."""

    impl = "triton"
    dtypes = TRITON_DTYPES
    choices: Mapping[str, tuple[str, ...]] = {"dtype": TRITON_DTYPES, "distribution": DISTRIBUTIONS}
    device_kinds = triton_device_kinds()

    @abstractmethod
    def launch_on(self, params: Params, inputs: tuple[Tensor, ...], out: Tensor) -> TritonLaunch:
        """Return the kernel's launch on these tensors; its first arguments are the inputs."""

    def launch(self, params: Params, *, device: str, seed: int) -> TritonLaunch:
        """Draw the inputs, allocate the output, and return the kernel's launch on them."""
        problem, where = self.read_problem(params), open_device(device)
        inputs = self.draw_inputs(params, problem, where=where, seed=seed)
        return self.launch_on(params, inputs, empty_output(inputs[0], problem.output_shape))

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Create the data; the first call compiles the kernel."""
        launch = self.launch(params, device=device, seed=seed)
        inputs = launch.args[: len(self.read_problem(params).input_shapes)]
        call = launch.call(complete_config(config, self.configs(params)[0]))
        work = self.describe_work(params, inputs, call, launch.out, lambda kernels: "triton" if kernels else None)
        return prepare_kernel_work(work, interpreted=is_triton_interpreted(), where=torch_device(device), seed=seed)


_Rows = TypeVar("_Rows", bound=RowsProblem)

BLOCK_ROWS = (1, 2, 4, 8)
LOOPED_COLS = (1024, 2048, 4096)
NUM_WARPS = (8, 4, 16, 2, 1)
LOOPED_STAGES = (2, 4)
MOST_PER_THREAD = 64  # most elements that one thread holds in registers at a time


def row_configs(problem: RowsProblem) -> list[Params]:
    """Return blocks of whole rows, then blocks that loop over the columns; at least one of them fits."""
    cols, configs = next_power_of_two(problem.cols), []
    for rows, warps in itertools.product(BLOCK_ROWS, NUM_WARPS):
        per_thread = rows * cols / (32 * warps)
        if rows <= problem.rows and per_thread <= MOST_PER_THREAD and (per_thread >= 2 or warps == 1):
            configs.append((rows, cols, warps, 1))
    looped = itertools.product((1,), LOOPED_COLS, (8, 4), LOOPED_STAGES)
    configs += [(rows, cols, warps, stages) for rows, cols, warps, stages in looped if cols < problem.cols]
    names = ("block_rows", "block_cols", "num_warps", "num_stages")
    return [dict(zip(names, config, strict=True)) for config in configs]


class TritonRowOperator(TritonOperator[_Rows]):
    """An operator on each row of a matrix by a Triton kernel of the operator's name."""

    name: str
    constants: tuple[float, ...] = ()
    """Last arguments of the kernel."""

    def configs(self, params: Params) -> Sequence[Params]:
        """Return blocks of rows and columns with warps and stages for each; 18 by default."""
        return row_configs(self.read_problem(params))

    def launch_on(self, params: Params, inputs: tuple[Tensor, ...], out: Tensor) -> TritonLaunch:
        """Return the launch: inputs, output, rows, columns and the constants of the kernel."""
        problem = self.read_problem(params)
        args = (*inputs, out, problem.rows, problem.cols, *self.constants)
        return TritonLaunch(self.name, args, out, {}, partial(row_settings, problem), partial(row_grid, problem))


def row_grid(problem: RowsProblem, settings: Mapping[str, Any]) -> tuple[int]:
    """Return the number of programs for all rows."""
    return (-(-problem.rows // settings["block_rows"]),)


def row_settings(problem: RowsProblem, config: Params) -> dict[str, int | bool]:
    """Return the kernel settings of a configuration."""
    rows, cols = (read_size(config, name) for name in ("block_rows", "block_cols"))
    for name, value in (("block_rows", rows), ("block_cols", cols)):
        if value & (value - 1):
            raise BadInput(f"{name} is a power of two, not {value}.")
    return {"block_rows": rows, "block_cols": cols, "whole": cols >= problem.cols}


HELION_DTYPES = ("bfloat16", "float16", "float32")


OLDEST_HELION = (1, 0)  # oldest supported version; written for Helion 1.0 to 1.5


@dataclass(frozen=True)
class HelionProblem:
    """A kernel's name, its arguments, and the settings that its arithmetic needs."""

    kernel: str
    args: tuple[Any, ...]
    settings: Mapping[str, Any]

    def bound(self, **settings: Any) -> Any:
        """Return the kernel newly bound to the data, with more settings; nothing is cached between calls."""
        helion = import_helion()
        decorated = getattr(importlib.import_module("assay.workloads.kernels.helion_ops"), self.kernel)
        return helion.kernel(decorated.fn, **self.settings, **settings).bind(self.args)

    def call(self, config: Params | None) -> Callable[[], Tensor]:
        """Return a call that launches the kernel in one configuration, by default Helion's own."""
        bound = self.bound()
        if is_helion_interpreted():
            _register_cpu_product()
        else:
            _set_config(bound, params_to_config(config) if config else bound.config_spec.default_config())
        return partial(bound, *self.args)


def is_helion_interpreted() -> bool:
    """Return whether Helion interprets its kernels instead of compiling them."""
    return os.environ.get("HELION_INTERPRET", "").strip().lower() in {"1", "true", "yes", "on"}


def helion_device_kinds() -> frozenset[str]:
    """Return the kinds of device that Helion's kernels run on in this process."""
    return frozenset({"cpu", "cuda"}) if is_helion_interpreted() else frozenset({"cuda"})


def helion_version() -> tuple[int, int]:
    """Return the version (major, minor) of the installed Helion, without importing it; refuse none or an old one."""
    try:
        text = version("helion")
    except PackageNotFoundError:
        raise MachineCannot("Helion is not installed here; it comes with gpu-assay[helion].") from None
    major, minor = (int(part) for part in text.split(".")[:2])
    if (major, minor) < OLDEST_HELION:
        raise MachineCannot(f"Helion {text} is too old; {'.'.join(map(str, OLDEST_HELION))} or later is needed.")
    return major, minor


def import_helion() -> Any:
    """Return the module ``helion``; refuse one that is missing, too old, or does not fit the installed PyTorch."""
    helion_version()
    try:
        return importlib.import_module("helion")
    except Exception as error:
        raise MachineCannot(f"Helion cannot be imported here: {one_line(error)} ({describe_versions()}).") from error


def describe_versions() -> str:
    """Return the installed versions of Helion and PyTorch, and which are compatible."""
    versions = f"Helion {version('helion')} with PyTorch {version('torch')}"
    return f"{versions}; Helion 1.0 fits PyTorch 2.11, later ones want later ones"


def config_to_params(config: Mapping[str, object]) -> Params:
    """Return a Helion configuration as plain values: each setting as JSON text."""
    return {name: json.dumps(value) for name, value in sorted(config.items())}


def params_to_config(params: Params) -> dict[str, Any]:
    """Return the Helion configuration of plain values."""
    config: dict[str, Any] = {}
    for name, value in params.items():
        try:
            config[name] = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            raise BadInput(f"{name} is a setting of Helion's as JSON text, such as [64, 32], not {value!r}.") from None
    return config


def _set_config(bound: Any, config: Any) -> None:
    """Compile a kernel in one configuration; refuse one that is not valid for this kernel."""
    helion = import_helion()
    try:
        bound.set_config(config)
    except (helion.exc.InvalidConfig, TypeError) as error:
        raise BadInput(f"{dict(config)} is not a configuration of this Helion kernel: {one_line(error)}") from error


@cache
def _register_cpu_product() -> None:
    """Register a CPU product into another dtype, which Helion's interpreter needs and PyTorch may lack."""
    torch, operator = import_torch(), "aten::mm.dtype"
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator, "CPU"):  # noqa: SLF001 - there is no public API for it
        return

    def product(a: Tensor, b: Tensor, out_dtype: Any) -> Tensor:
        return a.to(out_dtype) @ b.to(out_dtype)

    torch.library.impl(operator, "CPU", product)


class HelionOperator(TensorOperator[_Problem]):
    """An operator by the Helion kernel of its name.

    A configuration is a Helion configuration, each setting as JSON text; the default is Helion's.
    """

    name: str
    impl = "helion"
    dtypes = HELION_DTYPES
    choices: Mapping[str, tuple[str, ...]] = {"dtype": HELION_DTYPES, "distribution": DISTRIBUTIONS}
    device_kinds = helion_device_kinds()

    def settings(self, params: Params) -> dict[str, Any]:
        """Return the settings that the kernel's arithmetic needs."""
        return {"static_shapes": True}

    def helion_problem(self, params: Params, *, device: str, seed: int) -> HelionProblem:
        """Draw the inputs, and return the kernel with them; a call allocates the output."""
        problem, where = self.read_problem(params), open_device(device)
        inputs = self.draw_inputs(params, problem, where=where, seed=seed)
        return HelionProblem(self.name, inputs, self.settings(params))

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Create the data; the first call compiles the kernel."""
        kernel = self.helion_problem(params, device=device, seed=seed)

        def backend(kernels: tuple[str, ...]) -> str | None:
            return "helion" if any(name.startswith("_helion_") for name in kernels) else library_of_kernels(kernels)

        work = self.describe_work(params, kernel.args, kernel.call(config), None, backend)
        return prepare_kernel_work(work, interpreted=is_helion_interpreted(), where=torch_device(device), seed=seed)
