"""GPU types: their names in Assay, at providers and in drivers, and which workloads they cannot run."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from pydantic import Field

from assay.core.errors import BadInput
from assay.core.values import Value
from assay.workloads.torch_device import FLASH_CAPABILITY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FLASH = "flash"
"""The implementation of a workload that consists of flash kernels only."""

_MAKERS = re.compile(r"\b(nvidia|tesla|geforce|quadro)\b", re.IGNORECASE)


class GpuType(Value):
    """One GPU type."""

    name: str
    family: str | None = Field(default=None, description="Name of this type's family; null: none.")
    memory_gib: int
    capability: tuple[int, int] = Field(description="Compute capability.")
    spellings: tuple[str, ...] = Field(default=(), description="Other names at providers, in drivers and in use.")


def _type(
    name: str, memory_gib: int, capability: tuple[int, int], *spellings: str, family: str | None = None
) -> GpuType:
    return GpuType(name=name, family=family, memory_gib=memory_gib, capability=capability, spellings=spellings)


TYPES = (
    _type("V100-16GB", 16, (7, 0), "V100-SXM2-16GB", "V100-PCIE-16GB", family="V100"),
    _type("V100-32GB", 32, (7, 0), "V100-SXM2-32GB", "V100-PCIE-32GB", "V100-SXM3-32GB", family="V100"),
    _type("T4", 16, (7, 5)),
    _type("A10", 24, (8, 6), "A10G"),
    _type("A40", 48, (8, 6)),
    _type("A5000", 24, (8, 6), "RTX A5000"),
    _type("A6000", 48, (8, 6), "RTX A6000"),
    _type("RTX-3090", 24, (8, 6), "3090"),
    _type("A100-40GB", 40, (8, 0), "A100-SXM4-40GB", "A100-PCIE-40GB", family="A100"),
    _type(
        "A100-80GB", 80, (8, 0), "A100-SXM4-80GB", "A100 80GB PCIe", "A100-PCIE-80GB", "A100 SXM 80GB", family="A100"
    ),
    _type("L4", 24, (8, 9)),
    _type("L40", 48, (8, 9)),
    _type("L40S", 48, (8, 9)),
    _type("RTX-4090", 24, (8, 9), "4090"),
    _type("RTX-6000-Ada", 48, (8, 9), "RTX 6000 Ada Generation", "6000 Ada"),
    _type("H100-SXM", 80, (9, 0), "H100 80GB HBM3", "H100 SXM5", "H100 80GB SXM5", family="H100"),
    _type("H100-PCIe", 80, (9, 0), "H100 80GB PCIe", family="H100"),
    _type("H100-NVL", 94, (9, 0), family="H100"),
    _type("GH200", 96, (9, 0), "GH200 480GB", "GH200 96GB", "GH200 120GB"),
    _type("H200", 141, (9, 0), "H200 SXM", "H200 141GB", "H200 141GB HBM3e"),
    _type("H200-NVL", 141, (9, 0)),
    _type("B200", 180, (10, 0), "B200 SXM6", "B200 180GB"),
    _type("RTX-5090", 32, (12, 0), "5090"),
)
"""The known GPU types, from older to newer generations."""


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", text).lower())


_BY_SPELLING = {_squeezed(text): gpu_type for gpu_type in TYPES for text in (gpu_type.name, *gpu_type.spellings)}
_BY_NAME = {gpu_type.name: gpu_type for gpu_type in TYPES}
FAMILIES: dict[str, tuple[str, ...]] = {
    family: tuple(gpu_type.name for gpu_type in TYPES if gpu_type.family == family)
    for family in dict.fromkeys(gpu_type.family for gpu_type in TYPES if gpu_type.family)
}
"""The types of each family, by the family's name."""


def parse_gpu_name(device: str) -> str:
    """Return the GPU type for a name from a driver or a provider, as Assay writes it.

    The family where the name says no more. An unknown GPU keeps its name, without the manufacturer's.
    """
    squeezed = _squeezed(device)
    if squeezed in _BY_SPELLING:
        return _BY_SPELLING[squeezed].name
    family = next((name for name in FAMILIES if _squeezed(name) == squeezed), None)
    return family or " ".join(_MAKERS.sub(" ", device).split())


def types_in(kind: str) -> tuple[str, ...]:
    """Return the types that a name stands for: itself, or those of a family."""
    name = parse_gpu_name(kind)
    return FAMILIES.get(name, (name,))


def satisfies(requested: str, actual: str) -> bool:
    """Return whether a GPU is certainly of the requested type.

    ``actual`` is its name from the driver or the provider. A GPU of which only the family is known satisfies the
    family, and none of its types.
    """
    accepted = {_squeezed(name) for name in types_in(requested)}
    return all(_squeezed(name) in accepted for name in types_in(actual))


def parse_gpu_type(text: str, offered: Mapping[str, Iterable[str]]) -> str:
    """Return the GPU type that a user means.

    ``offered`` maps hosts to their GPU types, for the message and for types that only a host knows.

    Raises:
        BadInput: The type is unknown; the message has the nearest names and who offers them.
    """
    name = parse_gpu_name(text)
    if name in _BY_NAME or name in FAMILIES:
        return name
    others = {_squeezed(kind): kind for kinds in offered.values() for kind in kinds}
    if _squeezed(name) and _squeezed(name) in others:
        return others[_squeezed(name)]
    raise BadInput(f"There is no GPU type {text!r}.{_suggestions(text, offered)}")


def _suggestions(text: str, offered: Mapping[str, Iterable[str]]) -> str:
    """Return the nearest types and who offers them; all that are offered where none is near."""
    kinds = list(dict.fromkeys(kind for names_at_host in offered.values() for kind in names_at_host))
    spelled = {name.upper(): name for name in (*kinds, *FAMILIES, *_BY_NAME)}
    near = [spelled[word] for word in difflib.get_close_matches(text.upper(), spelled, n=3, cutoff=0.5)]
    if not near:
        return f" Offered are {', '.join(kinds)}." if kinds else ""
    suggestions = []
    for name in near:
        hosts = [host for host, kinds in offered.items() if any(set(types_in(k)) & set(types_in(name)) for k in kinds)]
        by = ", ".join(hosts) or ("offered by nobody" if offered else "")
        suggestions.append(f"{name} ({by})" if by else name)
    return f" Did you mean {' or '.join(suggestions)}?"


def reason_unsupported(kind: str, subjects: Iterable[str]) -> str | None:
    """Return why some workloads cannot run on a GPU type, as a clause; null where no reason is known.

    ``subjects`` are workloads as written on the command line, such as ``sliding_attention@flash``.
    """
    flash = next((subject for subject in subjects if subject.partition("@")[2] == FLASH), None)
    types = [_BY_NAME[name] for name in types_in(kind) if name in _BY_NAME]
    if flash is None or not types or any(gpu_type.capability >= FLASH_CAPABILITY for gpu_type in types):
        return None
    capabilities = (FLASH_CAPABILITY, max(gpu_type.capability for gpu_type in types))
    least, highest = (".".join(map(str, capability)) for capability in capabilities)
    return (
        f"FlashAttention-2 does not support it: {flash} needs a GPU of compute capability {least} or later, "
        f"and a {kind} has {highest}"
    )
