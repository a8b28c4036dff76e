"""Why a GPU's clock is not higher, in words."""

from __future__ import annotations

REASONS = {
    0x001: "idle",
    0x002: "clocks set by the user",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "too hot (software)",
    0x040: "too hot (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability voltage",
}
"""NVML's bits, of `nvmlClocksEventReasons`; "hardware slowdown" comes with one of the others where that is known."""


def in_words(mask: int) -> tuple[str, ...]:
    """Return the reasons that a mask of NVML names, lowest bit first; a bit nobody has named yet by its number."""
    bits = [1 << index for index in range(mask.bit_length()) if mask >> index & 1]
    return tuple(REASONS.get(bit, f"reason {bit:#x}") for bit in bits)
