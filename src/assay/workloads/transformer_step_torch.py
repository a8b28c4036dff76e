"""One training step of a decoder like GPT-2's by PyTorch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from assay.workloads.parameters import one_of
from assay.workloads.torch_common import TorchWorkload
from assay.workloads.torch_device import import_torch, open_device
from assay.workloads.training.costs import Decoder
from assay.workloads.training.trainer import PRECISIONS, Trainer, check_precision, drawn
from assay.workloads.training.work import prepared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.core.values import Params
    from assay.workloads.base import Prepared, Workload
    from assay.workloads.torch_device import Tensor
    from assay.workloads.training.work import Batch

LEARNING_RATE, BETAS, DECAY = 3e-4, (0.9, 0.95), 0.1
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
        """Refuse heads that do not divide the width, and a precision that the device has not."""
        Decoder.of(params)
        check_precision(one_of("dtype", params["dtype"], PRECISIONS), device_kind)

    def prepare(self, params: Params, config: Params | None, *, device: str, seed: int) -> Prepared:
        """Put the weights and the tokens in place."""
        where = open_device(device)
        self.check_params(params, where.partition(":")[0])
        shape, torch = Decoder.of(params), import_torch()
        from assay.workloads.training.decoder import GptLike

        with drawn(seed, where):
            model = GptLike(shape)
        on_gpu = where != "cpu"
        optimizer_of = partial(
            torch.optim.AdamW, lr=LEARNING_RATE, betas=BETAS, weight_decay=DECAY, fused=on_gpu, capturable=on_gpu
        )
        trainer = Trainer(model, optimizer_of, _loss, str(params["dtype"]))
        drawn_tokens = np.random.default_rng([seed, 0]).integers(0, shape.vocabulary, (shape.batch, shape.sequence + 1))
        tokens = torch.from_numpy(drawn_tokens).to(where)
        batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        checked = min(CHECKED_TOKENS, shape.sequence)
        return prepared(
            trainer,
            lambda: batch,
            checked=partial(_first, checked),
            what=f"{checked} tokens",
            flop=shape.flop,
            where=where,
        )


def _loss(said: Tensor, following: Tensor) -> Tensor:
    return import_torch().nn.functional.cross_entropy(said, following.flatten())


def _first(count: int, batch: Batch) -> Batch:
    tokens, following = batch
    return tokens[:1, :count], following[:1, :count]


WORKLOAD: Workload = TransformerStepTorch()
