"""Several figures on one sheet of paper: drawn one by one as anywhere else, and laid side by side."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.image import imread, imsave

from assay.core.durable import replace_atomically
from assay.reports.figures import to_png

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from assay.core.page import Figure
    from assay.core.results import Origin

    Image = NDArray[np.float32]

MOST_COLUMNS = 2
MARGIN = 24


def save_panels(figures: Sequence[Figure], path: Path, *, origin: Origin = "real") -> None:
    """Write figures as one PNG, whole or not at all: in two columns, those of one row as high as the highest."""
    replace_atomically(path, to_panels(figures, origin=origin))


def to_panels(figures: Sequence[Figure], *, origin: Origin = "real") -> bytes:
    """Return figures as one PNG; each says where its numbers come from, if not from hardware."""
    if not figures:
        raise ValueError("a sheet has at least one figure")
    images: list[Image] = [
        imread(io.BytesIO(to_png(figure, noted=True, origin=origin)))[:, :, :3] for figure in figures
    ]
    columns = min(MOST_COLUMNS, len(images))
    wide = max(image.shape[1] for image in images)
    rows = [images[start : start + columns] for start in range(0, len(images), columns)]
    laid = np.concatenate([_row(row, wide, columns) for row in rows], axis=0)
    buffer = io.BytesIO()
    imsave(buffer, laid, format="png", metadata={"Software": None})  # type: ignore[dict-item]  # null: say nothing
    return buffer.getvalue()


def _row(images: Sequence[Image], wide: int, columns: int) -> Image:
    """Return images side by side on white, with room around each."""
    high = max(image.shape[0] for image in images)
    sheet = np.ones((high + 2 * MARGIN, columns * (wide + 2 * MARGIN), 3), dtype=np.float32)
    for number, image in enumerate(images):
        left = number * (wide + 2 * MARGIN) + MARGIN
        sheet[MARGIN : MARGIN + image.shape[0], left : left + image.shape[1]] = image
    return sheet
