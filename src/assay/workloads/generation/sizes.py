"""How much memory a model takes, told before it is loaded: from a copy of it that has shapes and no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from assay.core.values import Value
from assay.workloads.generation.dtypes import BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from assay.workloads.generation.models import Config


class Predicted(Value):
    """What a model will take, in bytes.

    Weights are exact, and so is the cache of keys and values where every layer keeps all tokens. What a call needs
    besides is an estimate: the widest layer's activations, the scores of a vocabulary in float32.
    """

    model: str
    dtype: str
    parameters: int = Field(description="Each tied one once.")
    weights_bytes: int
    parts_bytes: dict[str, int] = Field(description="Of weights, by layer and other parts that are never split.")
    layers: int
    kv_bytes_per_token: int = Field(description="Keys and values of one token of one sequence, over all layers.")
    hidden: int
    widest: int = Field(description="Numbers of one token inside a layer, at most.")
    context_tokens: int
    vocabulary: int

    def kv_bytes(self, batch: int, tokens: int) -> int:
        """Return what keys and values of so many sequences of so many tokens take."""
        return self.kv_bytes_per_token * batch * tokens

    def working_bytes(self, batch: int, input_tokens: int) -> int:
        """Return about what a call needs while prompts of so many tokens are read."""
        item_bytes = BYTES[self.dtype]
        activations = batch * input_tokens * (6 * self.hidden + 3 * self.widest) * item_bytes
        scores = 2 * batch * self.vocabulary * 4
        return activations + scores

    def needs_bytes(self, batch: int, input_tokens: int, output_tokens: int) -> int:
        """Return about what it takes on one device to answer a batch."""
        return (
            self.weights_bytes
            + self.kv_bytes(batch, input_tokens + output_tokens)
            + self.working_bytes(batch, input_tokens)
        )


def sizes_of(model: str, empty: Any, dtype: str) -> Predicted:
    """Return what a model takes whose parameters are not in memory."""
    config = empty.config.get_text_config()
    parts = {name: sum(map(_bytes, weights)) for name, weights in _weights_by_part(empty).items()}
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Predicted(
        model=model,
        dtype=dtype,
        parameters=sum(weight.numel() for weight in empty.parameters()),
        weights_bytes=sum(parts.values()),
        parts_bytes={name: size for name, size in parts.items() if size},
        layers=config.num_hidden_layers,
        kv_bytes_per_token=2 * config.num_hidden_layers * kv_heads * head * BYTES[dtype],
        hidden=config.hidden_size,
        widest=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        context_tokens=context_of(config),
        vocabulary=config.vocab_size,
    )


def context_of(config: Config) -> int:
    """Return the most tokens of a prompt and its answer together, as a configuration says."""
    text = config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        if isinstance(getattr(text, name, None), int):
            return int(getattr(text, name))
    return 2**31 - 1


def parts_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a model that are never split, from its inputs to its outputs: layers, embeddings, norms."""
    whole = set(getattr(model, "_no_split_modules", None) or ())
    yield from _parts("", model, whole)


def _parts(name: str, module: Any, whole: set[str]) -> Iterator[tuple[str, Any]]:
    children = list(module.named_children())
    if not children or type(module).__name__ in whole or list(module.named_parameters(recurse=False)):
        yield name, module
        return
    for child, part in children:
        yield from _parts(f"{name}.{child}" if name else child, part, whole)


def _weights_by_part(model: Any) -> dict[str, list[Any]]:
    """Return the weights of each part; those that are tied are of the first."""
    counted: set[int] = set()
    weights: dict[str, list[Any]] = {}
    for name, part in parts_of(model):
        new = [weight for weight in part.parameters() if id(weight) not in counted]
        counted.update(map(id, new))
        weights[name] = new
    return weights


def _bytes(weight: Any) -> int:
    return int(weight.numel()) * int(weight.element_size())
