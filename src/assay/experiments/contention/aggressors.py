"""Aggressors by short names for the resource they load, or by any workload's name; and the default victims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from assay.core.errors import BadInput, MachineCannot, suggest_nearest
from assay.core.values import Subject, Value
from assay.workloads import registry
from assay.workloads.function import is_function_spec

if TYPE_CHECKING:
    from collections.abc import Sequence


AggressorLocation = Literal["host", "device"]


class Aggressor(Value):
    """A load under the name it is called by: on the host's cores, or on the victim's own device."""

    name: str
    subject: Subject
    location: AggressorLocation


class NamedAggressor(NamedTuple):
    """An aggressor that has a short name: what it runs, and where."""

    workload: str
    location: AggressorLocation


NAMED_AGGRESSORS: dict[str, NamedAggressor] = {
    "cpu": NamedAggressor("cpu_hog@python", "host"),
    "memory": NamedAggressor("memory_hog@numpy", "host"),
    "pcie": NamedAggressor("pcie_copy@torch", "device"),
    "sm": NamedAggressor("gemm@torch", "device"),
    "hbm": NamedAggressor("triad@torch", "device"),
}
"""What each presses on: the cores, the host's memory, the bus to the GPU, its multiprocessors, its own memory."""

LOAD_WORKLOADS = {"cpu_hog": "cpu", "memory_hog": "memory", "pcie_copy": "pcie"}
"""Workloads that are nothing but loads, under the name of what they press on."""


def resolve_aggressors(words: Sequence[str], kind: str) -> tuple[Aggressor, ...]:
    """Return the aggressors that are named, each once; without a name, all that fit the kind of device."""
    names = words or [name for name, named in NAMED_AGGRESSORS.items() if kind == "cuda" or named.location == "host"]
    return tuple(_named_aggressor(word, kind) for word in dict.fromkeys(map(_short_name, names)))


def _short_name(word: str) -> str:
    return LOAD_WORKLOADS.get(word.replace("-", "_").partition("@")[0], word)


def _named_aggressor(word: str, kind: str) -> Aggressor:
    named = NAMED_AGGRESSORS.get(word)
    if named is None:
        return _workload_aggressor(word, kind)
    if named.location == "device" and kind != "cuda":
        raise MachineCannot(f"The aggressor {word} needs a GPU, and the victims are not on one.")
    subject = registry.resolve_subject(named.workload, device_kind="cpu" if named.location == "host" else kind)
    return Aggressor(name=word, subject=subject, location=named.location)


def _workload_aggressor(word: str, kind: str) -> Aggressor:
    """Return any workload as an aggressor: on the GPU where it can, otherwise on the host's cores."""
    names = {*NAMED_AGGRESSORS, *registry.ALIASES, *(entry.name for entry in registry.registered_workloads().values())}
    if not is_function_spec(word) and word.partition("@")[0].replace("-", "_") not in names:
        short = ", ".join(NAMED_AGGRESSORS)
        raise BadInput(
            f"Unknown aggressor {word!r}; there are {short}, and every workload.{suggest_nearest(word, names)}"
        )
    if kind == "cuda" and not is_function_spec(word):
        name, _, impl = word.partition("@")
        if impl and "cuda" not in registry.find_workload(name, impl).device_kinds:
            return Aggressor(name=word, subject=registry.resolve_subject(word, device_kind="cpu"), location="host")
    subject = registry.resolve_subject(word, device_kind=kind)
    return Aggressor(name=word, subject=subject, location="device" if kind == "cuda" else "host")


SMALL_SHAPE = {"rows": "64", "cols": "64"}
DEFAULT_VICTIMS: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    "cuda": (("softmax@torch", SMALL_SHAPE), ("gemm@torch", {}), ("triad@torch", {})),
    "cpu": (("softmax@numpy", {}),),
}
"""Who is timed when nobody is named: on a GPU a kernel bound by its launch, one by arithmetic, one by memory."""


def default_victims(kind: str) -> tuple[Subject, ...]:
    """Return who is timed on a kind of device when nobody is named."""
    return tuple(
        registry.resolve_subject(spec, device_kind=kind, explicit=params) for spec, params in DEFAULT_VICTIMS[kind]
    )
