"""The usual settings of a generation: of which type they are, and within which bounds; known without transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Bounds:
    """Of a number: the least and the most it may be; ``above``: more than the least."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    whole: bool = False

    @property
    def words(self) -> str:
        """What it must be, in words."""
        kind = "a whole number" if self.whole else "a number"
        if math.isfinite(self.high):
            begin = f"above {self.low:g}, and at most" if self.above else f"from {self.low:g} to"
            return f"{kind} {begin} {self.high:g}"
        least = f" above {self.low:g}" if self.above else f" of at least {self.low:g}"
        return f"{kind}{least if math.isfinite(self.low) else ''}"

    def holds(self, value: Any) -> bool:
        """Return whether a value is one of them."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return math.isfinite(value) and self.low <= value <= self.high and not (self.above and value == self.low)


_COUNT, _SHARE = Bounds(0, whole=True), Bounds(0, 1)
NUMBERS: Mapping[str, Bounds] = {
    "temperature": Bounds(0),
    "top_k": _COUNT,
    "top_p": _SHARE,
    "min_p": _SHARE,
    "top_h": Bounds(0, 1, above=True),
    "typical_p": Bounds(0, 1, above=True),
    "epsilon_cutoff": _SHARE,
    "eta_cutoff": _SHARE,
    "repetition_penalty": Bounds(0, above=True),
    "encoder_repetition_penalty": Bounds(0, above=True),
    "no_repeat_ngram_size": _COUNT,
    "encoder_no_repeat_ngram_size": _COUNT,
    "length_penalty": Bounds(),
    "diversity_penalty": Bounds(),
    "guidance_scale": Bounds(),
    "pad_token_id": _COUNT,
    "bos_token_id": _COUNT,
    "num_beams": _COUNT,
    "num_return_sequences": _COUNT,
    "num_beam_groups": _COUNT,
}
SWITCHES = frozenset(
    {
        "do_sample", "use_cache", "renormalize_logits", "remove_invalid_values", "disable_compile", "low_memory",
        "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    }
)  # fmt: skip
OTHERS = frozenset(
    {"eos_token_id", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "early_stopping"}
)
"""Known by name; their values are the model's affair."""


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, whole numbers as fractions where transformers takes no others.

    Raises:
        BadInput: One cannot be what it says.
    """
    for name, value in settings.items():
        if value is None:
            continue
        if name in SWITCHES and not isinstance(value, bool):
            raise BadInput(f"generate_kwargs.{name} is true or false, not {value!r}.")
        if name in NUMBERS and not NUMBERS[name].holds(value):
            raise BadInput(f"generate_kwargs.{name} is {NUMBERS[name].words}, not {value!r}.")
    if settings.get("do_sample") is True and settings.get("temperature") == 0:
        raise BadInput(
            "generate_kwargs.temperature is 0, and tokens are drawn; the likeliest each are do_sample: false."
        )
    return {name: _as_taken(name, value) for name, value in settings.items()}


def _as_taken(name: str, value: Any) -> Any:
    return float(value) if name in NUMBERS and not NUMBERS[name].whole and value is not None else value


def unusual(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings that only transformers can tell of."""
    return tuple(name for name in settings if name not in {*NUMBERS, *SWITCHES, *OTHERS})
