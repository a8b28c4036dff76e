"""What data sheets say of GPUs: dense operations a second at the highest clock, without sparsity.

From NVIDIA's product pages and architecture white papers. ``float32`` is without tensor cores, as PyTorch multiplies
matrices unless it is told to round them.
"""

from __future__ import annotations

TERA = 1e12

_HALF, _SINGLE, _DOUBLE = ("bfloat16", "float16"), ("float32",), ("float64",)
_PEAKS: dict[str, dict[tuple[str, ...], float]] = {
    "B200": {_HALF: 2250.0, _SINGLE: 75.0, _DOUBLE: 37.0},
    "H200 NVL": {_HALF: 835.5, _SINGLE: 60.0, _DOUBLE: 60.0},
    "H200": {_HALF: 989.4, _SINGLE: 66.9, _DOUBLE: 66.9},
    "H100 NVL": {_HALF: 835.5, _SINGLE: 60.0, _DOUBLE: 60.0},
    "H100 PCIe": {_HALF: 756.0, _SINGLE: 51.2, _DOUBLE: 51.2},
    "H100": {_HALF: 989.4, _SINGLE: 66.9, _DOUBLE: 66.9},
    "A100": {_HALF: 312.0, _SINGLE: 19.5, _DOUBLE: 19.5},
    "L40S": {_HALF: 362.0, _SINGLE: 91.6},
    "L4": {_HALF: 121.0, _SINGLE: 30.3},
    "A10": {_HALF: 125.0, _SINGLE: 31.2},
    "V100": {("float16",): 125.0, _SINGLE: 15.7, _DOUBLE: 7.8},
    "T4": {("float16",): 65.0, _SINGLE: 8.1},
}
"""TFLOP/s by a part of the GPU's name, the longer names first where one holds another."""


def peak_flop_per_s(name: str, dtype: str) -> float | None:
    """Return what one GPU of that name does at most in a precision; null where its data sheet is not known here."""
    words = name.replace("-", " ").split()
    for model, peaks in _PEAKS.items():
        if all(word in words for word in model.split()):
            return next((tera * TERA for dtypes, tera in peaks.items() if dtype in dtypes), None)
    return None
