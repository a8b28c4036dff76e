"""Which token comes next, without asking the host: greedily, or drawn by temperature, top-k and top-p.

The same choice that ``generate`` makes, in operations that a CUDA graph can hold: ``torch.multinomial`` reads its
input on the host first, so that tokens are drawn by dividing probabilities by exponential noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from assay.core.errors import BadInput
from assay.workloads.torch_device import Tensor, import_torch

Choose = Callable[[Tensor], Tensor]
"""From logits of the last place, one row a sequence, to token ids, one column."""

OTHERS: Mapping[str, tuple[Any, ...]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": (),
    "dola_layers": (),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "exponential_decay_length_penalty": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1.0,),
    "min_p": (0.0,),
    "no_repeat_ngram_size": (0,),
    "penalty_alpha": (0.0,),
    "repetition_penalty": (1.0,),
    "sequence_bias": (),
    "suppress_tokens": (),
    "top_h": (),
    "typical_p": (1.0,),
    "watermarking_config": (),
}
"""Settings that change a choice in ways that a graph here does not know, and values with which they change nothing."""


@dataclass(frozen=True)
class Choice:
    """How tokens are chosen; ``barred`` never are, so that an answer has its full length."""

    sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    barred: tuple[int, ...] = ()

    def made(self, vocabulary: int, device: Any) -> Choose:
        """Return it as a function on a device."""
        torch = import_torch()
        bias = torch.zeros(vocabulary, dtype=torch.float32, device=device)
        bias[list(self.barred)] = -math.inf

        def greedy(logits: Tensor) -> Tensor:
            return (logits.float() + bias).argmax(-1, keepdim=True)

        def sampled(logits: Tensor) -> Tensor:
            scores = (logits.float() + bias) / self.temperature
            most = min(self.top_k, vocabulary) if self.top_k else vocabulary
            best, ids = scores.topk(most) if most < vocabulary else scores.sort(descending=True)
            chances = best.softmax(-1)
            if self.top_p < 1:
                before = chances.cumsum(-1) - chances
                chances = chances.masked_fill(before >= self.top_p, 0.0)
            noise = torch.empty_like(chances).exponential_()
            return ids.gather(-1, (chances / noise).argmax(-1, keepdim=True))

        return sampled if self.sample else greedy


def choice(defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> Choice:
    """Return the choice that a model's own settings and those given make together; a given one wins.

    Raises:
        BadInput: One of them asks for what a graph does not do.
    """
    merged = {**{name: value for name, value in defaults.items() if value is not None}, **settings}
    for name, neutral in OTHERS.items():
        value = merged.get(name)
        if value is not None and value not in neutral and value != []:
            whose = "generate_kwargs has" if name in settings else "the model's own generation settings have"
            raise BadInput(
                "In graphs tokens are chosen greedily or by temperature, top_k and top_p, "
                f"and {whose} {name} {value!r}."
            )
    ends = merged.get("eos_token_id")
    return Choice(
        sample=bool(merged.get("do_sample", False)),
        temperature=float(merged.get("temperature", 1.0)),
        top_k=int(merged.get("top_k", 50)),
        top_p=float(merged.get("top_p", 1.0)),
        barred=() if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (int(ends),),
    )
