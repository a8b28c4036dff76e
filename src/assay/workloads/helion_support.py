"""Shared code of Helion workloads: version checks, configurations as plain values, and bound kernels.

On a CPU they run only under Helion's interpreter (``HELION_INTERPRET=1``): correct, slow, and not worth timing.
"""

from __future__ import annotations

import importlib
import json
import os
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.numpy_support import DISTRIBUTIONS
from assay.workloads.parameters import TensorProblem
from assay.workloads.torch_device import import_torch, library_of_kernels, open_device, torch_device
from assay.workloads.torch_support import TensorOperator
from assay.workloads.triton_support import check_within_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.results import Check
    from assay.core.values import Params
    from assay.workloads.base import PreparedWorkload
    from assay.workloads.torch_device import Tensor
    from assay.workloads.torch_support import TensorWork

_Problem = TypeVar("_Problem", bound=TensorProblem)

HELION_DTYPES = ("bfloat16", "float16", "float32")

HELION_CHOICES = {"dtype": HELION_DTYPES, "distribution": DISTRIBUTIONS}

OLDEST_HELION = (1, 0)
"""Oldest supported version; written for Helion 1.0 to 1.5."""

PRODUCT_OPERATOR = "aten::mm.dtype"
COMPATIBLE_VERSIONS = "Helion 1.0 fits PyTorch 2.11, later ones want later ones"


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
    """Return the major and minor version of the installed Helion, without importing it.

    Raises:
        MachineCannot: It is missing, or older than our kernels support.
    """
    try:
        text = version("helion")
    except PackageNotFoundError:
        raise MachineCannot("Helion is not installed here; it comes with gpu-assay[helion].") from None
    major, minor = (int(part) for part in text.split(".")[:2])
    if (major, minor) < OLDEST_HELION:
        raise MachineCannot(
            f"Helion {text} is too old; ours are made for {'.'.join(map(str, OLDEST_HELION))} and later."
        )
    return major, minor


def import_helion() -> Any:
    """Return the module ``helion``.

    Raises:
        MachineCannot: It is missing, too old, or incompatible with the installed PyTorch.
    """
    helion_version()
    try:
        return importlib.import_module("helion")
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise MachineCannot(f"Helion cannot be imported here: {text} ({describe_versions()}).") from error


def describe_versions() -> str:
    """Return the installed versions of Helion and PyTorch, and which are compatible."""
    return f"Helion {version('helion')} with PyTorch {version('torch')}; {COMPATIBLE_VERSIONS}"


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
        text = " ".join(str(error).split())[:200]
        raise BadInput(f"{dict(config)} is not a configuration of this Helion kernel: {text}") from error


@cache
def _register_cpu_product() -> None:
    """Register a CPU product into another dtype, which Helion's interpreter needs and PyTorch may lack."""
    torch = import_torch()
    if torch._C._dispatch_has_kernel_for_dispatch_key(PRODUCT_OPERATOR, "CPU"):  # noqa: SLF001 - there is no public API for it
        return

    def product(a: Tensor, b: Tensor, out_dtype: Any) -> Tensor:
        return a.to(out_dtype) @ b.to(out_dtype)

    torch.library.impl(PRODUCT_OPERATOR, "CPU", product)


def prepare_helion_work(work: TensorWork, *, where: str, seed: int) -> PreparedWorkload:
    """Prepare a kernel's work to be timed; its check refuses a configuration that is too large for the GPU."""
    prepared = work.prepare(where=where, seed=seed)

    def check() -> Check:
        return check_within_limits(partial(work.check, seed))

    launched_kernels = None if is_helion_interpreted() else prepared.launched_kernels
    return replace(prepared, check=check, launched_kernels=launched_kernels)


def helion_backend(kernels: tuple[str, ...]) -> str | None:
    """Return the library of the launched kernels; null where none were recorded."""
    return "helion" if any(name.startswith("_helion_") for name in kernels) else library_of_kernels(kernels)


class HelionOperator(TensorOperator[_Problem]):
    """An operator by the Helion kernel of its name.

    A configuration is a Helion configuration, each setting as JSON text; the default is Helion's.
    """

    name: str
    impl = "helion"
    dtypes = HELION_DTYPES
    choices = HELION_CHOICES
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
        work = self.describe_work(params, kernel.args, kernel.call(config), None, helion_backend)
        return prepare_helion_work(work, where=torch_device(device), seed=seed)
