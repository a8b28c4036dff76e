"""Which model: one of the hub, of a folder, or ``random:NAME``, a known shape whose weights are random.

A random model computes and reads exactly what the real one would, and needs no network. ``random:llama-8b?layers=4``
is one with fewer layers.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from assay.core.errors import BadInput, MachineCannot, nearest
from assay.workloads.torch_device import import_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

Config: TypeAlias = Any
"""A ``transformers.PreTrainedConfig``: transformers need not be there for the type checker."""

RANDOM = "random:"
MOST_DIGITS = 9

_LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


_OF_FAMILY: Mapping[str, Mapping[str, object]] = {"Mistral": {"sliding_window": None}}
"""What a family's configuration class would say by itself, and the model as published does not."""


@dataclass(frozen=True)
class Shape:
    """What makes a random model: the sizes that a configuration of transformers has, under short names."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int
    family: str = "Llama"
    tied: bool = False
    eps: float = 1e-5
    rope: Mapping[str, object] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})

    def config(self) -> Config:
        """Return it as the configuration class of its family."""
        transformers = import_transformers()
        return getattr(transformers, f"{self.family}Config")(
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            intermediate_size=self.ffn,
            vocab_size=self.vocab,
            max_position_embeddings=self.context,
            tie_word_embeddings=self.tied,
            rms_norm_eps=self.eps,
            rope_parameters=dict(self.rope),
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
            **_OF_FAMILY.get(self.family, {}),
        )


_THETA_1M = {"rope_type": "default", "rope_theta": 1000000.0}
SHAPES: Mapping[str, Shape] = {
    "llama-tiny": Shape(2, 64, 4, 2, 128, 256, 2048),
    "llama-160m": Shape(12, 768, 12, 12, 3072, 32000, 2048, eps=1e-6),
    "llama-1b": Shape(16, 2048, 32, 8, 8192, 128256, 131072, tied=True, rope={**_LLAMA_3, "factor": 32.0}),
    "llama-3b": Shape(28, 3072, 24, 8, 8192, 128256, 131072, tied=True, rope={**_LLAMA_3, "factor": 32.0}),
    "llama-8b": Shape(32, 4096, 32, 8, 14336, 128256, 131072, rope=_LLAMA_3),
    "llama-70b": Shape(80, 8192, 64, 8, 28672, 128256, 131072, rope=_LLAMA_3),
    "mistral-7b": Shape(32, 4096, 32, 8, 14336, 32768, 32768, family="Mistral", rope=_THETA_1M),
    "qwen2-0.5b": Shape(24, 896, 14, 2, 4864, 151936, 32768, family="Qwen2", tied=True, eps=1e-6, rope=_THETA_1M),
    "qwen2-7b": Shape(28, 3584, 28, 4, 18944, 152064, 32768, family="Qwen2", eps=1e-6, rope=_THETA_1M),
}
"""Shapes as published: Llama 3.2 1B and 3B, Llama 3.1 8B and 70B, Mistral 7B v0.3, Qwen2.5 0.5B and 7B."""

CHANGED = {
    "layers": 1000, "hidden": 1 << 20, "heads": 1 << 16, "kv_heads": 1 << 16, "ffn": 1 << 22, "vocab": 1 << 24,
    "context": 1 << 24,
}  # fmt: skip
"""What may be changed behind a question mark, and up to which size."""


def import_transformers() -> Any:
    """Return the module ``transformers``, which keeps its bars and its advice to itself, or say that it is missing."""
    for name, value in (
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
        ("HF_HUB_DISABLE_TELEMETRY", "1"),
        ("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        os.environ.setdefault(name, value)
    import_torch()
    try:
        import accelerate  # noqa: F401
        import transformers
    except ImportError as error:
        raise MachineCannot(
            f"Models need transformers and accelerate, which cannot be imported here ({error}); "
            f"they come with gpu-assay[energy]."
        ) from error
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    for name in ("accelerate", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return transformers


def is_random(model: str) -> bool:
    """Return whether a model's weights are random."""
    return model.startswith(RANDOM)


def shape_of(model: str) -> Shape:
    """Return the shape of ``random:NAME`` or ``random:NAME?layers=4&context=4096``."""
    name, _, changes = model.removeprefix(RANDOM).partition("?")
    if name not in SHAPES:
        raise BadInput(f"There is no random model {name!r}.{nearest(name, SHAPES)} There are {', '.join(SHAPES)}.")
    changed: dict[str, Any] = dict(vars(SHAPES[name]))
    for change in filter(None, changes.split("&")):
        key, _, text = change.partition("=")
        if key not in CHANGED:
            raise BadInput(f"{model}: {key!r} of a random model cannot be changed.{nearest(key, CHANGED)}")
        if not text.isdecimal() or len(text) > MOST_DIGITS or not 1 <= int(text) <= CHANGED[key]:
            raise BadInput(f"{model}: {key} is a whole number from 1 to {CHANGED[key]}, not {text!r}.")
        changed[key] = int(text)
    shape = Shape(**changed)
    if shape.hidden % shape.heads or shape.heads % shape.kv_heads or (shape.hidden // shape.heads) % 2:
        raise BadInput(f"{model}: hidden is a multiple of heads, each of an even size, and heads is one of kv_heads.")
    return shape
