"""How far apart two devices are: by their NVLinks, then by what they share on PCIe, then by their memory nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from assay.machine.model import LinkPath

if TYPE_CHECKING:
    from assay.machine.model import Machine

Distance = tuple[int, int]
"""Compares as distances do: the smaller the nearer."""

PATHS: tuple[LinkPath, ...] = get_args(LinkPath)
WORDS: dict[LinkPath, str] = {
    "board": "one board",
    "switch": "one PCIe switch",
    "switches": "PCIe switches",
    "bridge": "one host bridge",
    "node": "one memory node",
    "system": "across sockets",
}
ONE_CARD: Distance = (-1_000_000, 0)
"""Two instances of one GPU."""


def apart(machine: Machine, one: str, other: str) -> Distance:
    """Return how far two devices are apart; groups of cores are all equally far."""
    if not one.startswith("cuda"):
        return (0, 0)
    if _gpu(one) == _gpu(other):
        return ONE_CARD
    link, path = machine.link(_gpu(one), _gpu(other)), path_of(machine, one, other)
    return -(link.nvlinks if link else 0), len(PATHS) if path is None else PATHS.index(path)


def path_of(machine: Machine, one: str, other: str) -> LinkPath | None:
    """Return what two GPUs share on PCIe; where the driver does not say, what their memory nodes tell."""
    link = machine.link(_gpu(one), _gpu(other))
    if link is not None and link.path is not None:
        return link.path
    nodes = {gpu.index: gpu.node for gpu in machine.gpus}
    first, second = nodes.get(_gpu(one)), nodes.get(_gpu(other))
    if first is None or second is None:
        return None
    return "node" if first == second else "system"


def how_far(machine: Machine, one: str, other: str) -> str:
    """Say how far two devices are apart: "NVLink ×4, one memory node"; nothing where it is not known."""
    if not one.startswith("cuda"):
        return ""
    if _gpu(one) == _gpu(other):
        return "one GPU"
    link, path = machine.link(_gpu(one), _gpu(other)), path_of(machine, one, other)
    parts = [f"NVLink ×{link.nvlinks}"] if link is not None and link.nvlinks else []
    return ", ".join(parts + ([WORDS[path]] if path is not None else []))


def _gpu(device: str) -> int:
    """Return the number of the GPU that a device is, or is cut from."""
    return int(device.partition(":")[2].partition("/")[0])
