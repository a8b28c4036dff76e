"""Aggressors by short names for what they press on, or by any workload's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from assay.core.errors import BadInput, MachineCannot, nearest
from assay.core.plan import Subject
from assay.core.values import Value
from assay.workloads import registry
from assay.workloads.function import is_function_spec

if TYPE_CHECKING:
    from collections.abc import Sequence


Place = Literal["host", "device"]


class Aggressor(Value):
    """A load under the name it is called by: on the host's cores, or on the victim's own device."""

    name: str
    subject: Subject
    place: Place


class Known(NamedTuple):
    """An aggressor that has a short name: what it runs, and where."""

    workload: str
    place: Place


NAMED: dict[str, Known] = {
    "cpu": Known("cpu_hog@python", "host"),
    "memory": Known("memory_hog@numpy", "host"),
    "pcie": Known("pcie_copy@torch", "device"),
    "sm": Known("gemm@torch", "device"),
    "hbm": Known("triad@torch", "device"),
}
"""What each presses on: the cores, the host's memory, the bus to the GPU, its multiprocessors, its own memory."""

LOADS = {"cpu_hog": "cpu", "memory_hog": "memory", "pcie_copy": "pcie"}
"""Workloads that are nothing but loads, under the name of what they press on."""


def aggressors_of(words: Sequence[str], kind: str) -> tuple[Aggressor, ...]:
    """Return the aggressors that are named, each once; without a name, all that fit the kind of device."""
    names = words or [name for name, named in NAMED.items() if kind == "cuda" or named.place == "host"]
    return tuple(_aggressor(word, kind) for word in dict.fromkeys(map(_short, names)))


def _short(word: str) -> str:
    return LOADS.get(word.replace("-", "_").partition("@")[0], word)


def _aggressor(word: str, kind: str) -> Aggressor:
    named = NAMED.get(word)
    if named is None:
        return _any(word, kind)
    if named.place == "device" and kind != "cuda":
        raise MachineCannot(f"The aggressor {word} needs a GPU, and the victims are not on one.")
    subject = registry.subject(named.workload, device_kind="cpu" if named.place == "host" else kind)
    return Aggressor(name=word, subject=subject, place=named.place)


def _any(word: str, kind: str) -> Aggressor:
    """Return any workload as an aggressor: on the GPU where it can, otherwise on the host's cores."""
    names = {*NAMED, *registry.ALIASES, *(entry.name for entry in registry.known().values())}
    if not is_function_spec(word) and word.partition("@")[0].replace("-", "_") not in names:
        short = ", ".join(NAMED)
        raise BadInput(f"Unknown aggressor {word!r}; there are {short}, and every workload.{nearest(word, names)}")
    if kind == "cuda" and not is_function_spec(word):
        name, _, impl = word.partition("@")
        if impl and "cuda" not in registry.find(name, impl).device_kinds:
            return Aggressor(name=word, subject=registry.subject(word, device_kind="cpu"), place="host")
    subject = registry.subject(word, device_kind=kind)
    return Aggressor(name=word, subject=subject, place="device" if kind == "cuda" else "host")
