"""Find a workload by what the user wrote: ``softmax``, ``softmax@numpy``, ``file.py:function``, a plug-in's name."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

from assay.core.errors import BadInput, MachineCannot, nearest
from assay.core.plan import Subject
from assay.workloads.base import ChecksParams, KnowsRanks
from assay.workloads.function import FunctionWorkload, is_function_spec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from assay.core.values import Params, Scalar
    from assay.workloads.base import Workload

BUILT_IN = {
    "compressed_attention@flash": "assay.workloads.nsa.workloads:COMPRESSED_FLASH",
    "compressed_attention@masked": "assay.workloads.nsa.workloads:COMPRESSED_MASKED",
    "cpu_hog@python": "assay.workloads.cpu_hog_python:WORKLOAD",
    "dgemm@torch": "assay.workloads.square_gemm_torch:DGEMM",
    "dilated_attention@torch": "assay.workloads.dilated_attention_torch:WORKLOAD",
    "embedding@torch": "assay.workloads.embedding_torch:WORKLOAD",
    "flash_attention@numpy": "assay.workloads.flash_attention_numpy:WORKLOAD",
    "flash_attention@torch": "assay.workloads.flash_attention_torch:WORKLOAD",
    "flash_attention@triton": "assay.workloads.flash_attention_triton:WORKLOAD",
    "gemm@helion": "assay.workloads.gemm_helion:WORKLOAD",
    "gemm@numpy": "assay.workloads.gemm_numpy:WORKLOAD",
    "gemm@torch": "assay.workloads.gemm_torch:WORKLOAD",
    "gemm@triton": "assay.workloads.gemm_triton:WORKLOAD",
    "generate@openai": "assay.workloads.generate_openai:WORKLOAD",
    "generate@pytorch": "assay.workloads.generate_pytorch:WORKLOAD",
    "hgemm@torch": "assay.workloads.square_gemm_torch:HGEMM",
    "idle@python": "assay.workloads.idle_python:WORKLOAD",
    "layer_norm@torch": "assay.workloads.layer_norm_torch:WORKLOAD",
    "memory_hog@numpy": "assay.workloads.memory_hog_numpy:WORKLOAD",
    "memcpy@torch": "assay.workloads.memcpy_torch:WORKLOAD",
    "pcie_copy@torch": "assay.workloads.pcie_copy_torch:WORKLOAD",
    "resnet50@torch": "assay.workloads.resnet50_torch:WORKLOAD",
    "rms_norm@torch": "assay.workloads.rms_norm_torch:WORKLOAD",
    "rms_norm@triton": "assay.workloads.rms_norm_triton:WORKLOAD",
    "sgemm@numpy": "assay.workloads.square_gemm_numpy:WORKLOAD",
    "sgemm@torch": "assay.workloads.square_gemm_torch:SGEMM",
    "sliding_attention@flash": "assay.workloads.nsa.workloads:SLIDING_FLASH",
    "sliding_attention@masked": "assay.workloads.nsa.workloads:SLIDING_MASKED",
    "softmax@helion": "assay.workloads.softmax_helion:WORKLOAD",
    "softmax@numpy": "assay.workloads.softmax_numpy:WORKLOAD",
    "softmax@torch": "assay.workloads.softmax_torch:WORKLOAD",
    "softmax@triton": "assay.workloads.softmax_triton:WORKLOAD",
    "transformer_step@torch": "assay.workloads.transformer_step_torch:WORKLOAD",
    "triad@torch": "assay.workloads.triad_torch:WORKLOAD",
}

ALIASES = {"flash_attention_v2": "flash_attention", "gemm_benchmark": "gemm"}

PREFERRED = {"cuda": ("torch",), "cpu": ("torch", "numpy")}
"""Which implementation a device takes when none is named, best first; only installed ones count."""

ENTRY_POINTS = "assay.workloads"

LARGEST_SIZE = 2**48
"""No dimension is larger: a number beyond is a slip of the finger, and no memory holds it."""


@dataclass(frozen=True)
class Entry:
    """A workload that can be loaded: its key ``name@impl`` and where it lives."""

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
        """Import the workload; an ``ImportError`` says what is missing."""
        module, _, attribute = self.target.partition(":")
        workload: Workload | None = getattr(importlib.import_module(module), attribute, None)
        if workload is None:
            raise ImportError(f"{module} has no {attribute!r}")
        return workload


def known() -> dict[str, Entry]:
    """Return every registered workload by its key: built-in ones, and those of installed plug-ins."""
    plugins = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return {key: Entry(key, target) for key, target in sorted({**plugins, **BUILT_IN}.items())}


def find(name: str, impl: str) -> Workload:
    """Return a workload by name and implementation."""
    if is_function_spec(name):
        return FunctionWorkload(name)
    entries = known()
    key = f"{name}@{impl}"
    if key not in entries:
        raise BadInput(f"Unknown workload {key!r}.{nearest(key, entries)}")
    try:
        return entries[key].load()
    except ImportError as error:
        raise MachineCannot(f"The workload {key!r} cannot be loaded here: {error}.") from error


def subject(spec: str, *, device_kind: str, given: Mapping[str, str] | None = None, ranks: int = 1) -> Subject:
    """Return the subject that a user's words mean on a kind of device and so many ranks, its parameters complete."""
    name, _, impl = (spec, "", "") if is_function_spec(spec) else spec.partition("@")
    name = _meant(name)
    if is_function_spec(name):
        if impl not in {"", "python"}:
            raise BadInput(f"{name} is a function of yours and has no implementation {impl!r}.")
        params: Params = {k: plain(v) for k, v in (given or {}).items()}
        function = FunctionWorkload(name)
        function.make_sure(params)
        return Subject(workload=function.name, impl="python", params=params, digest=function.digest())
    chosen = impl or _implementation(name, device_kind)
    workload: Workload = find(name, chosen)
    if device_kind not in workload.device_kinds:
        kinds = " and ".join(sorted(workload.device_kinds))
        raise BadInput(f"{name}@{chosen} runs on {kinds}, not on {device_kind}.")
    params = complete(workload, given or {}, device_kind, ranks)
    configs = workload.configs(params)
    return Subject(workload=name, impl=chosen, params=params, config=configs[0] if configs else None)


def _meant(name: str) -> str:
    """Return the registered name that a word means: older names, and dashes for underscores."""
    plainly = name.replace("-", "_")
    if plainly in ALIASES:
        return ALIASES[plainly]
    return plainly if any(entry.name == plainly for entry in known().values()) else name


def _implementation(name: str, device_kind: str) -> str:
    offered = {entry.impl for entry in known().values() if entry.name == name}
    if not offered:
        names = {entry.name for entry in known().values()} | set(ALIASES)
        raise BadInput(
            f"Unknown workload {name!r}; `assay list` shows them, and file.py:function names one of yours."
            f"{nearest(name, names)}"
        )
    for impl in PREFERRED.get(device_kind, ()):
        if impl in offered and find_spec(impl) is not None:
            return impl
    return min(offered)


def complete(workload: Workload, given: Mapping[str, str], device_kind: str = "cpu", ranks: int = 1) -> Params:
    """Return a workload's parameters: the device's defaults, with the given ones read as the default's type."""
    params = dict(workload.defaults(device_kind))
    for name, text in given.items():
        if name not in params:
            raise BadInput(
                f"{workload.name} has no parameter {name!r}; it has {', '.join(params)}.{nearest(name, params)}"
            )
        params[name] = read_as(params[name], text, name)
    return make_sense(workload, params, device_kind, ranks, given)


def make_sense(
    workload: Workload,
    params: Params,
    device_kind: str = "cpu",
    ranks: int = 1,
    given: Collection[str] | None = None,
) -> Params:
    """Look at the parameters before anything is started: sizes are positive, words known, the workload's rules kept.

    Returned are the parameters for so many ranks; those that were ``given``, all unless told, are as they were.
    """
    for name, value in params.items():
        if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= LARGEST_SIZE:
            raise BadInput(f"{workload.name}: {name} is a size of at least 1, and {value} cannot be meant.")
        allowed = getattr(workload, "choices", {}).get(name)
        if allowed is not None and value not in allowed:
            raise BadInput(
                f"{workload.name} has no {name} {value!r}; there are {', '.join(allowed)}."
                f"{nearest(str(value), allowed)}"
            )
    if isinstance(workload, KnowsRanks):
        params = workload.for_ranks(params, ranks, params if given is None else given)
    if isinstance(workload, ChecksParams):
        workload.check_params(params, device_kind)
    return params


def read_as(default: Scalar, text: str, name: str) -> Scalar:
    """Return text as the type of a default value, or say which type it must be."""
    if isinstance(default, bool):
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() in words:
            return words[text.lower()]
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


def plain(text: str) -> Scalar:
    """Return text as the plainest value it can be read as: a finite number, true or false, or itself."""
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if isinstance(value, int) or math.isfinite(value) else text
    return text
