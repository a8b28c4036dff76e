"""One training step of ResNet-50 or of a GPT-2-like decoder by PyTorch.

ResNet-50 is the concurrent load of power studies. Its images are noise generated on the device, or those of a folder
with a subfolder for each class:

    folder/n01440764/a.JPEG          the images of a class, in any depth below its folder
    folder/n01443537/images/b.JPEG

Images are decoded once, into a few batches used in turn, so that the step is timed and not the disk.
"""

from __future__ import annotations

import importlib
import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.base import one_line
from assay.workloads.parameters import check_choice, read_flag, read_size
from assay.workloads.torch_device import Tensor, import_torch, open_device
from assay.workloads.torch_support import TorchWorkload
from assay.workloads.training.trainer import (
    CLASSES,
    PRECISIONS,
    SMALLEST_IMAGE,
    DecoderShape,
    Trainer,
    check_precision,
    prepare_step,
    resnet_flop,
    seeded_init,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.values import Params
    from assay.workloads.base import PreparedWorkload, Workload
    from assay.workloads.training.trainer import TrainingBatch

    ImageFeed = Callable[[], TrainingBatch]

DECODER_LEARNING_RATE, DECODER_BETAS, DECODER_WEIGHT_DECAY = 3e-4, (0.9, 0.95), 0.1
CHECKED_TOKENS = 256


class TransformerStepTorch(TorchWorkload):
    """``transformer_step@torch``: forward, cross entropy of the next token, backward, AdamW.

    Tokens are random and stay on the device, as the weights do. With ``dtype`` bfloat16 products are made in it by
    autocast, with tf32 they are rounded to TF32, and the weights are float32 always. Its operations are the products
    of forward and backward; its bytes are not stated, as they depend on what is kept between the two.
    """

    name = "transformer_step"
    choices: Mapping[str, tuple[str, ...]] = {"dtype": PRECISIONS}
    summary = "One training step of a decoder like GPT-2's on random tokens"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the shape and the precision: on a GPU those of GPT-2 in its smallest size, 124 million weights."""
        sizes: Params = {"layers": 2, "width": 64, "heads": 4, "sequence": 64, "batch": 2, "vocabulary": 512}
        if device_kind == "cuda":
            sizes = {"layers": 12, "width": 768, "heads": 12, "sequence": 1024, "batch": 8, "vocabulary": 50304}
        return {**sizes, "dtype": "bfloat16" if device_kind == "cuda" else "float32"}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse heads that do not divide the width, and a precision that the device does not support."""
        DecoderShape.of(params)
        check_precision(check_choice("dtype", params["dtype"], PRECISIONS), device_kind)

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Create the weights and the tokens."""
        where = open_device(device)
        self.check_params(params, where.partition(":")[0])
        shape, torch = DecoderShape.of(params), import_torch()
        from assay.workloads.training.models import GptLikeDecoder

        with seeded_init(seed, where):
            model = GptLikeDecoder(shape)
        on_gpu = where != "cpu"
        optimizer_of = partial(
            torch.optim.AdamW,
            lr=DECODER_LEARNING_RATE,
            betas=DECODER_BETAS,
            weight_decay=DECODER_WEIGHT_DECAY,
            fused=on_gpu,
            capturable=on_gpu,
        )

        def loss_of(logits: Tensor, following: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(logits, following.flatten())

        trainer = Trainer(model, optimizer_of, loss_of, str(params["dtype"]))
        drawn_tokens = np.random.default_rng([seed, 0]).integers(0, shape.vocabulary, (shape.batch, shape.sequence + 1))
        tokens = torch.from_numpy(drawn_tokens).to(where)
        inputs, following = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        count = min(CHECKED_TOKENS, shape.sequence)
        return prepare_step(
            trainer,
            lambda: (inputs, following),
            checked=lambda batch: (batch[0][:1, :count], batch[1][:1, :count]),
            what=f"{count} tokens",
            flop=shape.flop,
            where=where,
        )


IMAGE_BATCHES = 4  # number of batches of a folder, used in turn

IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp"})
PIXEL_MEAN = (123.675, 116.28, 103.53)
PIXEL_DEVIATION = (58.395, 57.12, 57.375)
"""Mean and standard deviation of ImageNet's red, green and blue, from 0 to 255, to normalize images."""


def synthetic_images(batch: int, pixels: int, seed: int, *, where: str, channels_last: bool) -> ImageFeed:
    """Return a feed of one batch of noise with random classes, which stays on the device."""
    torch = import_torch()
    images = torch.randn((batch, 3, pixels, pixels), device=where, generator=torch.Generator(where).manual_seed(seed))
    images = _arrange_images(images, channels_last=channels_last)
    classes = torch.from_numpy(np.random.default_rng([seed, 1]).integers(0, CLASSES, batch)).to(where)
    return lambda: (images, classes)


def folder_images(folder: Path, batch: int, pixels: int, seed: int, *, where: str, channels_last: bool) -> ImageFeed:
    """Return a feed that copies one batch after another to the device, from pinned memory for a GPU."""
    torch = import_torch()
    named = choose_images(folder, IMAGE_BATCHES * batch, seed)
    decoded = [_decode_images(named[i * batch : (i + 1) * batch], pixels) for i in range(IMAGE_BATCHES)]
    held = [(_arrange_images(images, channels_last=channels_last), classes) for images, classes in decoded]
    if where != "cpu":
        held = [(images.pin_memory(), classes.pin_memory()) for images, classes in held]
    turns = itertools.cycle(held)
    mean, deviation = (torch.tensor(values, device=where).view(3, 1, 1) for values in (PIXEL_MEAN, PIXEL_DEVIATION))

    def feed() -> TrainingBatch:
        images, classes = next(turns)
        there = images.to(where, non_blocking=True)
        return (there - mean) / deviation, classes.to(where, non_blocking=True)

    return feed


def choose_images(folder: Path, count: int, seed: int) -> list[tuple[Path, int]]:
    """Return ``count`` images with their class indices, spread over the classes; repeat images if there are too few."""
    classes = check_image_folder(folder)
    generator = np.random.default_rng(seed)
    some = generator.permutation(len(classes))[:count]
    per_class = -(-count // len(some))
    named: list[tuple[Path, int]] = []
    for number in some:
        images = [path for path in sorted(classes[number].rglob("*")) if path.suffix.lower() in IMAGE_SUFFIXES]
        named += [(images[i], int(number)) for i in generator.permutation(len(images))[:per_class]]
    if not named:
        raise BadInput(f"The subfolders of {folder} hold no image ({', '.join(sorted(IMAGE_SUFFIXES))}).")
    shuffled = [named[i] for i in generator.permutation(len(named))]
    return list(itertools.islice(itertools.cycle(shuffled), count))


def check_image_folder(folder: Path) -> list[Path]:
    """Return the class folders in order; refuse a folder that is not valid."""
    if not folder.is_dir():
        raise BadInput(f"folder is a folder of images with a subfolder for each class, and {folder} is none.")
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    if not 1 <= len(classes) <= CLASSES:
        raise BadInput(f"{folder} has {len(classes)} subfolders; it takes one for each class, at most {CLASSES}.")
    return classes


def _decode_images(named: list[tuple[Path, int]], pixels: int) -> tuple[Tensor, Tensor]:
    """Return images as bytes (image, channel, row, column), cropped to ``pixels`` squared, and their classes."""
    torch = import_torch()
    images = np.stack([_decode_image(path, pixels) for path, _ in named])
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor([number for _, number in named])


def _decode_image(path: Path, pixels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MachineCannot(f"Images are read by Pillow, which cannot be imported here ({error}).") from error
    try:
        with Image.open(path) as image:
            return np.asarray(ImageOps.fit(image.convert("RGB"), (pixels, pixels)))
    except (OSError, ValueError, SyntaxError) as error:
        raise BadInput(f"{path} cannot be read as an image: {one_line(error)}.") from error


def _arrange_images(images: Tensor, *, channels_last: bool) -> Tensor:
    torch = import_torch()
    return images.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


LABEL_SMOOTHING = 0.1
RESNET_LEARNING_RATE, RESNET_MOMENTUM, RESNET_WEIGHT_DECAY = 0.005, 0.9, 5e-5
"""Learning rate small enough that repeating one batch, without a warm-up of the rate, always stays finite."""

CHECKED_IMAGES = 4


class ResNet50Torch(TorchWorkload):
    """``resnet50@torch``: forward, cross entropy with label smoothing, backward, SGD with momentum.

    The weights stay on the device. Noise stays there too; images of a ``folder`` are decoded once, into batches in
    pinned memory that take turns, and each step copies one. With ``dtype`` bfloat16 products are made in it by
    autocast, with tf32 they are rounded to TF32, and the weights are float32 always. Its operations are the products
    of forward and backward; its bytes are not stated, as they depend on what is kept between the two.
    """

    name = "resnet50"
    choices: Mapping[str, tuple[str, ...]] = {"dtype": PRECISIONS, "model": ("own", "torchvision")}
    summary = "One training step of ResNet-50 v1.5 on noise or a folder of images"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the batch, the side of an image in pixels, and how it is computed."""
        sizes: Params = {"batch": 4, "size": 32, "dtype": "float32", "channels_last": False}
        if device_kind == "cuda":
            sizes = {"batch": 128, "size": 224, "dtype": "bfloat16", "channels_last": True}
        return {**sizes, "model": "own", "folder": ""}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse images that are too small, batches without variance, and an invalid folder."""
        batch, pixels = read_size(params, "batch"), read_size(params, "size")
        check_precision(check_choice("dtype", params["dtype"], PRECISIONS), device_kind)
        if pixels < SMALLEST_IMAGE:
            raise BadInput(f"size is at least {SMALLEST_IMAGE} pixels for ResNet-50, not {pixels}.")
        if batch == 1 and pixels <= SMALLEST_IMAGE:
            raise BadInput(f"One image of {pixels} pixels leaves batch normalisation one value: give 2 or more.")
        if params["folder"]:
            check_image_folder(Path(str(params["folder"])))

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> PreparedWorkload:
        """Create the weights and the images."""
        where = open_device(device)
        self.check_params(params, where.partition(":")[0])
        batch, pixels, last = read_size(params, "batch"), read_size(params, "size"), read_flag(params, "channels_last")
        folder, torch = str(params["folder"]), import_torch()
        if where != "cpu":
            torch.backends.cudnn.benchmark = True  # the first calls time cuDNN's algorithms, others use the fastest
        make = _resnet50_class(own=check_choice("model", params["model"], self.choices["model"]) == "own")
        with seeded_init(seed, where):
            model = make()
        if last:
            model = model.to(memory_format=torch.channels_last)
        optimizer_of = partial(
            torch.optim.SGD, lr=RESNET_LEARNING_RATE, momentum=RESNET_MOMENTUM, weight_decay=RESNET_WEIGHT_DECAY
        )
        loss_of = partial(torch.nn.functional.cross_entropy, label_smoothing=LABEL_SMOOTHING)
        images_of = partial(folder_images, Path(folder)) if folder else synthetic_images
        checked = min(CHECKED_IMAGES, batch)
        return prepare_step(
            Trainer(model.train(), optimizer_of, loss_of, str(params["dtype"])),
            images_of(batch, pixels, seed, where=where, channels_last=last),
            checked=lambda pair: (pair[0][:checked], pair[1][:checked]),
            what=f"{checked} images",
            flop=resnet_flop(batch, pixels),
            where=where,
        )


def _resnet50_class(*, own: bool) -> Callable[[], Any]:
    """Return a definition of ResNet-50, ours or torchvision's, loaded only when it is used."""
    if own:
        from assay.workloads.training.models import ResNet50

        return ResNet50
    try:
        models = importlib.import_module("torchvision.models")
    except ImportError as error:
        raise MachineCannot(f"torchvision cannot be imported here ({error}); model=own needs none.") from error
    return partial(models.resnet50, weights=None)


TRANSFORMER_STEP_TORCH: Workload = TransformerStepTorch()
RESNET50_TORCH: Workload = ResNet50Torch()
