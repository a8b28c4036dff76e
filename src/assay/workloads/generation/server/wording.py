"""Prompts for a server: every one begins differently, so that none is answered from what was kept of another."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name president team minute idea body information back parent "
    "face others level office door health person art war history party result change morning reason research girl guy "
    "moment air teacher force education"
)
WORDS = tuple(_COMMON.split())
"""Short and common: a token each for most models."""

BEGINNING = 8
"""Words that no two prompts begin with alike: about 50 bits of chance."""
POOL = 64
"""Texts that are made beforehand, so that a request costs no time when it is due."""


@dataclass(frozen=True)
class Wording:
    """Texts that requests take in turn, each behind a beginning of its own.

    A seed gives the same texts again. The beginnings hang on ``salt`` too, as a server keeps what an earlier process
    has sent it.
    """

    texts: tuple[str, ...]
    seed: int
    salt: str
    beginning: int = BEGINNING

    def prompt(self, number: int) -> str:
        """Return the prompt of a request by its number."""
        text = self.texts[number % len(self.texts)]
        begin = words(f"{self.salt} {self.seed} {number}", self.beginning)
        return f"{begin} {text}" if text else begin

    def as_json(self, number: int) -> bytes:
        """Return it as the bytes that stand in a request."""
        return json.dumps(self.prompt(number)).encode()


def words(seed: str, count: int) -> str:
    """Return so many random words."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))  # noqa: S311 - nothing is kept secret by it


def of_words(count: int, seed: int, salt: str) -> Wording:
    """Return prompts of so many random words in all."""
    begin = min(BEGINNING, count)
    texts = tuple(words(f"{seed} {number}", count - begin) for number in range(POOL))
    return Wording(texts, seed, salt, begin)


def of_texts(texts: Sequence[str], seed: int, salt: str) -> Wording:
    """Return prompts of a user's texts, in their order and again from the first."""
    return Wording(tuple(texts), seed, salt)


@dataclass(frozen=True)
class Line:
    """Tokens of a prompt as the server counts them: so many for a word, and so many around it."""

    per_word: float
    around: float

    @classmethod
    def through(cls, few: tuple[int, int], many: tuple[int, int]) -> Line:
        """Return the line through two prompts, each its words and its tokens."""
        per_word = (many[1] - few[1]) / (many[0] - few[0])
        per_word = per_word if per_word > 0 else 1.0
        return cls(per_word, max(0.0, few[1] - few[0] * per_word))

    def words(self, tokens: int) -> int:
        """Return how many words make about so many tokens; at least one."""
        return max(1, round((tokens - self.around) / self.per_word))


def cut(text: str, tokens: int, has: int) -> str:
    """Return the beginning of a text of so many tokens of the ``has`` that it has, by words."""
    parts = text.split(" ")
    return " ".join(parts[: max(1, len(parts) * tokens // has)])
