"""One training step of ResNet-50 by PyTorch: the neighbour that a study of power puts beside what it measures."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot
from assay.workloads.parameters import flag, one_of, size
from assay.workloads.torch_common import TorchWorkload
from assay.workloads.torch_device import import_torch, open_device
from assay.workloads.training import images
from assay.workloads.training.costs import SMALLEST_IMAGE, resnet_flop
from assay.workloads.training.trainer import PRECISIONS, Trainer, check_precision, drawn
from assay.workloads.training.work import prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload
    from assay.workloads.training.work import Batch

MODELS = ("own", "torchvision")
LABEL_SMOOTHING = 0.1
LEARNING_RATE, MOMENTUM, DECAY = 0.005, 0.9, 5e-5
"""Small enough that the same batch again and again, without a warm-up of the rate, stays finite for good."""

CHECKED_IMAGES = 4


class ResNet50Torch(TorchWorkload):
    """``resnet50@torch``: forward, cross entropy with label smoothing, backward, SGD with momentum.

    The weights stay on the device. Noise stays there too; images of a ``folder`` are decoded once, into batches in
    pinned memory that take turns, and each step copies one. With ``dtype`` bfloat16 products are made in it by
    autocast, with tf32 they are rounded to TF32, and the weights are float32 always. Its operations are the products
    of forward and backward; its bytes are not stated, as they depend on what is kept between the two.
    """

    name = "resnet50"
    choices: Mapping[str, tuple[str, ...]] = {"dtype": PRECISIONS, "model": MODELS}
    summary = "One training step of ResNet-50 v1.5 on noise or a folder of images"

    def defaults(self, device_kind: str = "cpu") -> Params:
        """Return the batch, the side of an image in pixels, and how it is computed."""
        sizes: Params = {"batch": 4, "size": 32, "dtype": "float32", "channels_last": False}
        if device_kind == "cuda":
            sizes = {"batch": 128, "size": 224, "dtype": "bfloat16", "channels_last": True}
        return {**sizes, "model": "own", "folder": ""}

    def check_params(self, params: Params, device_kind: str) -> None:
        """Refuse images that nothing is left of, batches that have no variance, and a folder that is none."""
        batch, pixels = size(params, "batch"), size(params, "size")
        check_precision(one_of("dtype", params["dtype"], PRECISIONS), device_kind)
        if pixels < SMALLEST_IMAGE:
            raise BadInput(f"size is at least {SMALLEST_IMAGE} pixels for ResNet-50, not {pixels}.")
        if batch == 1 and pixels <= SMALLEST_IMAGE:
            raise BadInput(f"One image of {pixels} pixels leaves batch normalisation one value: give 2 or more.")
        if params["folder"]:
            images.check_folder(Path(str(params["folder"])))

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Put the weights and the images in place."""
        where = open_device(device)
        self.check_params(params, where.partition(":")[0])
        batch, pixels, last = size(params, "batch"), size(params, "size"), flag(params, "channels_last")
        make = MODEL_OF[one_of("model", params["model"], MODELS)]()
        torch = import_torch()
        if where != "cpu":
            torch.backends.cudnn.benchmark = True  # the first calls try cuDNN's ways, and all others take the fastest
        with drawn(seed, where):
            model = make()
        if last:
            model = model.to(memory_format=torch.channels_last)
        optimizer_of = partial(torch.optim.SGD, lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=DECAY)
        loss_of = partial(torch.nn.functional.cross_entropy, label_smoothing=LABEL_SMOOTHING)
        trainer = Trainer(model.train(), optimizer_of, loss_of, str(params["dtype"]))
        checked = min(CHECKED_IMAGES, batch)
        return prepared(
            trainer,
            _feed(str(params["folder"]), batch, pixels, seed, where=where, channels_last=last),
            checked=partial(_first, checked),
            what=f"{checked} images",
            flop=resnet_flop(batch, pixels),
            where=where,
        )


def _feed(folder: str, batch: int, pixels: int, seed: int, *, where: str, channels_last: bool) -> Callable[[], Batch]:
    if not folder:
        return images.synthetic(batch, pixels, seed, where=where, channels_last=channels_last)
    return images.from_folder(Path(folder), batch, pixels, seed, where=where, channels_last=channels_last)


def _first(count: int, batch: Batch) -> Batch:
    inputs, classes = batch
    return inputs[:count], classes[:count]


def _own() -> Callable[[], Any]:
    from assay.workloads.training.resnet import ResNet50

    return ResNet50


def _torchvision() -> Callable[[], Any]:
    try:
        models = importlib.import_module("torchvision.models")
    except ImportError as error:
        raise MachineCannot(f"torchvision cannot be imported here ({error}); model=own needs none.") from error
    return partial(models.resnet50, weights=None)


MODEL_OF: Mapping[str, Callable[[], Callable[[], Any]]] = {"own": _own, "torchvision": _torchvision}
"""Where each definition comes from; asked for only when it is wanted."""

WORKLOAD: Workload = ResNet50Torch()
