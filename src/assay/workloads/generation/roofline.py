"""What a model must at least read and compute for its tokens: pure arithmetic on its sizes.

A decoding step reads every weight that it uses once, however many sequences it has, and the keys and values of every
token before, of every sequence. An input embedding is a table of which only the rows of its tokens are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Size:
    """A model's sizes.

    Attributes:
        layers: Layers that keep keys and values.
        heads: Of queries.
        kv_heads: Of keys and values.
        head_dim: Elements of a head.
        hidden: Elements of a token's state.
        body: Parameters that every token goes through, without the first and last table.
        experts: Parameters of experts, of which a token uses a share.
        used: That share.
        table: Parameters of the input embedding.
        head: Parameters of the output projection, a table of its own or the input embedding again.
        element_bytes: Of one parameter.
        cached_bytes: Of one element of keys and values.
        windowed: How many of the layers look back no further than ``window`` tokens.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    body: int
    table: int
    head: int
    element_bytes: float
    cached_bytes: float
    experts: int = 0
    used: float = 1.0
    windowed: int = 0
    window: int = 0

    @property
    def kv_bytes(self) -> float:
        """Bytes of the keys and values of one token in one layer."""
        return 2.0 * self.kv_heads * self.head_dim * self.cached_bytes

    @property
    def per_token(self) -> float:
        """Parameters that a token is multiplied with, before the last table."""
        return self.body + self.experts * self.used

    def weights_read(self, tokens: float) -> float:
        """Return the least bytes of weights that one pass over so many tokens reads."""
        return (self.per_token + self.head + tokens * self.hidden) * self.element_bytes

    def seen(self, length: float) -> float:
        """Return how many tokens the last of so many looks at, all layers together."""
        return (self.layers - self.windowed) * length + self.windowed * min(length, self.window)

    def step_read_bytes(self, batch: int, length: float) -> float:
        """Return the least bytes that a decoding step reads, each sequence with so many tokens in the cache."""
        return self.weights_read(batch) + batch * self.seen(length) * self.kv_bytes

    def step_flop(self, batch: int, length: float) -> float:
        """Return the operations of a decoding step: products with weights, with keys, and of weights with values."""
        attention = 4.0 * self.heads * self.head_dim * self.seen(length)
        return batch * (2.0 * (self.per_token + self.head) + attention)

    def prefill_flop(self, batch: int, length: float) -> float:
        """Return the operations of reading prompts of a length; only the last token of each goes to the last table."""
        attention = 4.0 * self.heads * self.head_dim * self.seen((length + 1) / 2) * length
        return batch * (2.0 * self.per_token * length + 2.0 * self.head + attention)


def middle(input_tokens: float, output_tokens: int) -> float:
    """Return how many tokens a decoding step sees on average, its own among them."""
    return input_tokens + output_tokens / 2


def size_of(model: Any) -> Size | None:
    """Return the sizes of a model of transformers; null for one that is not made of layers of attention."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return None
    kinds, window = getattr(config, "layer_types", None) or (), getattr(config, "sliding_window", None) or 0
    table, last = model.get_input_embeddings().weight, model.get_output_embeddings()
    ends = table if last is None else last.weight
    weights = {name: weight for name, weight in model.named_parameters() if weight is not table and weight is not ends}
    experts = sum(weight.numel() for name, weight in weights.items() if ".experts." in name)
    return Size(
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        hidden=config.hidden_size,
        body=sum(weight.numel() for weight in weights.values()) - experts,
        table=table.numel(),
        head=0 if last is None else ends.numel(),
        element_bytes=float(table.element_size()),
        cached_bytes=float(table.element_size()),
        experts=experts,
        used=_share(config) if experts else 1.0,
        windowed=sum("sliding" in kind for kind in kinds) if window else 0,
        window=window,
    )


def _share(config: Any) -> float:
    """Return the share of its experts that a token uses."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((getattr(config, name) for name in names if getattr(config, name, None)), None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return min(1.0, chosen / count) if count and chosen else 1.0
