"""The cosine transform of a series, by NumPy alone: a worker that need not import SciPy starts sooner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def cosine_transform(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients of the orthonormal cosines (DCT-II), the slowest first."""
    n = len(values)
    folded = np.concatenate([values[::2], values[1::2][::-1]])
    turned = np.fft.fft(folded) * np.exp(-0.5j * np.pi * np.arange(n) / n)
    scaled = np.asarray(turned.real * np.sqrt(2 / n), dtype=np.float64)
    scaled[0] /= np.sqrt(2)
    return scaled
