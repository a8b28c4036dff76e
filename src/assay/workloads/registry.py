"""Find a workload from the command line: ``softmax``, ``softmax@numpy``, ``file.py:function``, a plug-in's name."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot, suggest_nearest
from assay.core.values import Subject
from assay.workloads.base import ParamsChecker, RankAware
from assay.workloads.function import FunctionWorkload, is_function_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from assay.core.values import Params, Scalar
    from assay.workloads.base import Workload

_MODULES = {
    "dilated_attention.workload": ("dilated_attention@torch",),
    "generation.workloads": ("generate@openai", "generate@pytorch"),
    "nsa.workloads": (
        "compressed_attention@flash", "compressed_attention@masked", "sliding_attention@flash",
        "sliding_attention@masked",
    ),
    "ops.attention": ("flash_attention@numpy", "flash_attention@torch", "flash_attention@triton"),
    "ops.gemm": (
        "dgemm@torch", "gemm@helion", "gemm@numpy", "gemm@torch", "gemm@triton", "hgemm@torch", "sgemm@numpy",
        "sgemm@torch",
    ),
    "ops.host_load": ("cpu_hog@python", "idle@python", "memory_hog@numpy"),
    "ops.memory": ("embedding@torch", "memcpy@torch", "pcie_copy@torch", "triad@torch"),
    "ops.rows": (
        "layer_norm@torch", "rms_norm@torch", "rms_norm@triton", "softmax@helion", "softmax@numpy", "softmax@torch",
        "softmax@triton",
    ),
    "training.workloads": ("resnet50@torch", "transformer_step@torch"),
}  # fmt: skip
"""The built-in workloads by module: ``softmax@numpy`` is ``SOFTMAX_NUMPY``."""

BUILT_IN = {
    key: f"assay.workloads.{module}:{key.replace('@', '_').upper()}"
    for module, keys in _MODULES.items()
    for key in keys
}

ALIASES = {"flash_attention_v2": "flash_attention", "gemm_benchmark": "gemm"}

PREFERRED = {"cuda": ("torch",), "cpu": ("torch", "numpy")}
"""Default implementations by kind of device, best first; only installed ones count."""

ENTRY_POINTS = "assay.workloads"

LARGEST_SIZE = 2**48  # largest allowed dimension: a larger one is a typing error, as no memory can hold it


@dataclass(frozen=True)
class WorkloadEntry:
    """A registered workload: its key ``name@impl`` and its ``module:attribute``."""

    key: str
    target: str

    @property
    def name(self) -> str:
        """The part before the ``@``."""
        return self.key.partition("@")[0]

    @property
    def impl(self) -> str:
        """The part after the ``@``."""
        return self.key.partition("@")[2]

    def load(self) -> Workload:
        """Import the workload; raise an ``ImportError`` that names what is missing."""
        module, _, attribute = self.target.partition(":")
        workload: Workload | None = getattr(importlib.import_module(module), attribute, None)
        if workload is None:
            raise ImportError(f"{module} has no {attribute!r}")
        return workload


def registered_workloads() -> dict[str, WorkloadEntry]:
    """Return every registered workload by its key: built-in ones, and those of installed plug-ins."""
    plugins = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return {key: WorkloadEntry(key, target) for key, target in sorted({**plugins, **BUILT_IN}.items())}


def find_workload(name: str, impl: str) -> Workload:
    """Return a workload by name and implementation."""
    if is_function_spec(name):
        return FunctionWorkload(name)
    entries = registered_workloads()
    key = f"{name}@{impl}"
    if key not in entries:
        raise BadInput(f"Unknown workload {key!r}.{suggest_nearest(key, entries)}")
    try:
        return entries[key].load()
    except ImportError as error:
        raise MachineCannot(f"The workload {key!r} cannot be loaded here: {error}.") from error


def resolve_subject(
    spec: str, *, device_kind: str, explicit: Mapping[str, str] | None = None, ranks: int = 1
) -> Subject:
    """Return the subject of a spec on a kind of device and a number of ranks, with complete parameters."""
    name, _, impl = (spec, "", "") if is_function_spec(spec) else spec.partition("@")
    name = _canonical_name(name)
    if is_function_spec(name):
        if impl not in {"", "python"}:
            raise BadInput(f"{name} is a function of yours and has no implementation {impl!r}.")
        params: Params = {k: parse_scalar(v) for k, v in (explicit or {}).items()}
        function = FunctionWorkload(name)
        function.check_source(params)
        return Subject(workload=function.name, impl="python", params=params, digest=function.digest())
    chosen = impl or _default_impl(name, device_kind)
    workload: Workload = find_workload(name, chosen)
    if device_kind not in workload.device_kinds:
        kinds = " and ".join(sorted(workload.device_kinds))
        raise BadInput(f"{name}@{chosen} runs on {kinds}, not on {device_kind}.")
    params = complete_params(workload, explicit or {}, device_kind, ranks)
    configs = workload.configs(params)
    return Subject(workload=name, impl=chosen, params=params, config=configs[0] if configs else None)


def _canonical_name(name: str) -> str:
    """Return the registered name for an alias or a name with dashes."""
    normalized = name.replace("-", "_")
    if normalized in ALIASES:
        return ALIASES[normalized]
    return normalized if any(entry.name == normalized for entry in registered_workloads().values()) else name


def _default_impl(name: str, device_kind: str) -> str:
    offered = {entry.impl for entry in registered_workloads().values() if entry.name == name}
    if not offered:
        names = {entry.name for entry in registered_workloads().values()} | set(ALIASES)
        raise BadInput(
            f"Unknown workload {name!r}; `assay list` shows them, and file.py:function names one of yours."
            f"{suggest_nearest(name, names)}"
        )
    for impl in PREFERRED.get(device_kind, ()):
        if impl in offered and find_spec(impl) is not None:
            return impl
    return min(offered)


def complete_params(
    workload: Workload, explicit: Mapping[str, str], device_kind: str = "cpu", ranks: int = 1
) -> Params:
    """Return a workload's parameters: the device's defaults and the explicit ones, parsed as the default's type."""
    params = dict(workload.defaults(device_kind))
    for name, text in explicit.items():
        if name not in params:
            raise BadInput(
                f"{workload.name} has no parameter {name!r}; it has {', '.join(params)}.{suggest_nearest(name, params)}"
            )
        params[name] = parse_as(params[name], text, name)
    return check_params(workload, params, device_kind, ranks, explicit)


def check_params(
    workload: Workload,
    params: Params,
    device_kind: str = "cpu",
    ranks: int = 1,
    explicit: Collection[str] | None = None,
) -> Params:
    """Check the parameters before anything is started: positive sizes, known choices, the workload's own rules.

    Return them adapted to the number of ranks; ``explicit`` ones, all where it is null, are unchanged.
    """
    for name, value in params.items():
        if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= LARGEST_SIZE:
            raise BadInput(f"{workload.name}: {name} is a size of at least 1, and {value} cannot be meant.")
        allowed = getattr(workload, "choices", {}).get(name)
        if allowed is not None and value not in allowed:
            raise BadInput(
                f"{workload.name} has no {name} {value!r}; there are {', '.join(allowed)}."
                f"{suggest_nearest(str(value), allowed)}"
            )
    if isinstance(workload, RankAware):
        params = workload.for_ranks(params, ranks, params if explicit is None else explicit)
    if isinstance(workload, ParamsChecker):
        workload.check_params(params, device_kind)
    return params


def parse_as(default: Scalar, text: str, name: str) -> Scalar:
    """Parse text as the type of a default value, or refuse it with the required type."""
    if isinstance(default, bool):
        booleans = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() in booleans:
            return booleans[text.lower()]
        raise BadInput(f"Parameter {name} must be true or false, not {text!r}.")
    if isinstance(default, int | float):
        try:
            value = type(default)(text)
        except ValueError:
            value = math.nan
        if isinstance(value, float) and not math.isfinite(value):
            kind = "a whole number" if isinstance(default, int) else "a number"
            raise BadInput(f"Parameter {name} must be {kind}, not {text!r}.")
        return value
    return text


def parse_scalar(text: str) -> Scalar:
    """Parse text as an integer, a finite number or a boolean; otherwise return it unchanged."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if isinstance(value, int) or math.isfinite(value) else text
    return text
