"""Images to train on: noise made in place, or those of a folder that has a subfolder for each class.

    folder/n01440764/a.JPEG          the images of a class, in any depth below its folder
    folder/n01443537/images/b.JPEG

What is read is decoded once, into a few batches that take turns, so that the step and not the disk is what is timed.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.torch_device import Tensor, import_torch
from assay.workloads.training.costs import CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from assay.workloads.training.work import Batch

BATCHES = 4
"""How many batches of a folder take turns."""

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp"})
MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)
"""Of ImageNet's red, green and blue, from 0 to 255; images are brought to mean 0 and deviation 1 by them."""


def synthetic(batch: int, pixels: int, seed: int, *, where: str, channels_last: bool) -> Callable[[], Batch]:
    """Return what gives one batch of noise with random classes, which stays on the device."""
    torch = import_torch()
    images = torch.randn((batch, 3, pixels, pixels), device=where, generator=torch.Generator(where).manual_seed(seed))
    images = _laid_out(images, channels_last=channels_last)
    classes = np.random.default_rng([seed, 1]).integers(0, CLASSES, batch)
    made = images, torch.from_numpy(classes).to(where)
    return lambda: made


def from_folder(
    folder: Path, batch: int, pixels: int, seed: int, *, where: str, channels_last: bool
) -> Callable[[], Batch]:
    """Return what copies one batch after another to the device, from pinned memory where that is a GPU."""
    torch = import_torch()
    named = choose(folder, BATCHES * batch, seed)
    decoded = [_decoded(named[i * batch : (i + 1) * batch], pixels) for i in range(BATCHES)]
    held = [(_laid_out(images, channels_last=channels_last), classes) for images, classes in decoded]
    if where != "cpu":
        held = [(images.pin_memory(), classes.pin_memory()) for images, classes in held]
    turns = itertools.cycle(held)
    mean, deviation = (torch.tensor(values, device=where).view(3, 1, 1) for values in (MEAN, DEVIATION))

    def feed() -> Batch:
        images, classes = next(turns)
        there = images.to(where, non_blocking=True)
        return (there - mean) / deviation, classes.to(where, non_blocking=True)

    return feed


def choose(folder: Path, count: int, seed: int) -> list[tuple[Path, int]]:
    """Return so many images with the numbers of their classes, spread over the classes; too few are taken again."""
    classes = check_folder(folder)
    generator = np.random.default_rng(seed)
    some = generator.permutation(len(classes))[:count]
    per_class = -(-count // len(some))
    named: list[tuple[Path, int]] = []
    for number in some:
        images = list(_images(classes[number]))
        named += [(images[i], int(number)) for i in generator.permutation(len(images))[:per_class]]
    if not named:
        raise BadInput(f"The subfolders of {folder} hold no image ({', '.join(sorted(SUFFIXES))}).")
    shuffled = [named[i] for i in generator.permutation(len(named))]
    return list(itertools.islice(itertools.cycle(shuffled), count))


def check_folder(folder: Path) -> list[Path]:
    """Return the folders of the classes in order, or say what is wrong with the folder that holds them."""
    if not folder.is_dir():
        raise BadInput(f"folder is a folder of images with a subfolder for each class, and {folder} is none.")
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    if not 1 <= len(classes) <= CLASSES:
        raise BadInput(f"{folder} has {len(classes)} subfolders; it takes one for each class, at most {CLASSES}.")
    return classes


def _images(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in SUFFIXES)


def _decoded(named: list[tuple[Path, int]], pixels: int) -> tuple[Tensor, Tensor]:
    """Return images as bytes (image, channel, row, column), cut to squares of so many pixels, and their classes."""
    torch = import_torch()
    images = np.stack([_pixels(path, pixels) for path, _ in named])
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor([number for _, number in named])


def _pixels(path: Path, pixels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MachineCannot(f"Images are read by Pillow, which cannot be imported here ({error}).") from error
    try:
        with Image.open(path) as image:
            return np.asarray(ImageOps.fit(image.convert("RGB"), (pixels, pixels)))
    except (OSError, ValueError, SyntaxError) as error:
        raise BadInput(f"{path} cannot be read as an image: {' '.join(str(error).split())}.") from error


def _laid_out(images: Tensor, *, channels_last: bool) -> Tensor:
    torch = import_torch()
    return images.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
