"""How a request is written: path, fields, and prompts.

Fields that a server refuses are left out or replaced. Every prompt begins differently, so that none is answered from a
prefix cache.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, JsonValue

from assay.core.errors import BadInput
from assay.core.values import Value
from assay.workloads.generation.server.endpoint import error_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.workloads.generation.params import Generation


CHAT, COMPLETIONS = "/chat/completions", "/completions"
_MAX_TOKENS, _MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
_LENGTHS = (_MAX_TOKENS, _MAX_COMPLETION_TOKENS, "max_new_tokens")
_RESERVED_FIELDS = {"model": "backend.model", "messages": "scenario.prompts", "prompt": "scenario.prompts"}
_SINGLE_FIELDS = ("n", "best_of")
_PROMPT_MARK = "a prompt stands here"

NO_CHAT_NOTE = "it offers no chat: prompts go to /completions as they are, without a chat template"
NO_USAGE_NOTE = "it refuses stream_options, so that it may not count its tokens"


class RequestFormat(Value):
    """A request but for its prompt and its length. ``whole`` are fields that make a server go on past an end token."""

    model: str
    chat: bool = True
    length: str = _MAX_TOKENS
    whole: tuple[str, ...] = ("ignore_eos", "min_tokens")
    usage: bool = True
    settings: dict[str, JsonValue] = Field(default_factory=dict)

    @classmethod
    def of(
        cls, model: str, settings: dict[str, Any], output_tokens: int, reasoning: dict[str, Any] | None = None
    ) -> Self:
        """Return how to ask at first; ``reasoning`` is for the chat template, but for an effort, which has its field.

        Raises:
            BadInput: A setting says something else than the scenario, or would change what is measured.
        """
        _check_settings(settings, output_tokens)
        fields = {
            name: value
            for name, value in settings.items()
            if name not in {*_LENGTHS, *_SINGLE_FIELDS, "stream", "echo"}
        }
        template = dict(reasoning or {})
        if "reasoning_effort" in template:
            fields.setdefault("reasoning_effort", template.pop("reasoning_effort"))
        if template:
            fields.setdefault("chat_template_kwargs", template)
        whole = () if fields.get("ignore_eos") is False else ("ignore_eos", "min_tokens")
        return cls(model=model, settings=fields, whole=tuple(name for name in whole if name not in fields))

    @property
    def path(self) -> str:
        """Behind the server's address."""
        return CHAT if self.chat else COMPLETIONS

    def body(self, prompt: str, tokens: int) -> dict[str, Any]:
        """Return a request for an answer of so many tokens."""
        prompt_fields = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        extras = {"ignore_eos": True, "min_tokens": tokens}
        return {
            "model": self.model,
            **prompt_fields,
            "stream": True,
            self.length: tokens,
            **({"stream_options": {"include_usage": True}} if self.usage else {}),
            **{name: extras[name] for name in self.whole},
            **self.settings,
        }

    def body_around_prompt(self, tokens: int) -> tuple[bytes, bytes]:
        """Return a request's bytes before and after its prompt, which stands between them as JSON text."""
        before, _, after = json.dumps(self.body(_PROMPT_MARK, tokens)).partition(json.dumps(_PROMPT_MARK))
        return before.encode(), after.encode()

    def fallback(self, status: int, body: str) -> tuple[RequestFormat, str] | None:
        """Return how to ask again a server that refused this form, and what its user should know; null: it is final."""
        words = error_message(body).lower()
        if self.chat and "chat_template_kwargs" not in self.settings and _refuses_chat(status, words):
            return self.model_copy(update={"chat": False}), NO_CHAT_NOTE
        if status not in {400, 422}:
            return None
        refused = [name for name in self.whole if name in body]
        if refused:
            note = f"it refuses {' and '.join(refused)}, so that answers may end before their length"
            return self.model_copy(update={"whole": tuple(n for n in self.whole if n not in refused)}), note
        if self.usage and ("stream_options" in body or "include_usage" in body):
            return self.model_copy(update={"usage": False}), NO_USAGE_NOTE
        if self.length == _MAX_TOKENS and _MAX_COMPLETION_TOKENS in body:
            return self.model_copy(update={"length": _MAX_COMPLETION_TOKENS}), f"it takes {_MAX_COMPLETION_TOKENS}"
        return None


def _check_settings(settings: dict[str, Any], output_tokens: int) -> None:
    """Refuse settings that say something else than the scenario, or would change what is measured."""
    for name, where in _RESERVED_FIELDS.items():
        if name in settings:
            raise BadInput(f"generate_kwargs.{name} is not for you to set: it is {where}.")
    for name in _LENGTHS:
        if settings.get(name, output_tokens) != output_tokens:
            raise BadInput(
                f"generate_kwargs.{name} is {settings[name]}, but scenario.output_tokens says {output_tokens}."
            )
    if settings.get("stream", True) is not True or "stream_options" in settings:
        raise BadInput("generate_kwargs: answers are streamed, as the first token's time is not known otherwise.")
    for name in _SINGLE_FIELDS:
        if settings.get(name, 1) != 1:
            raise BadInput(f"generate_kwargs.{name} is {settings[name]}, but a request is for one answer.")
    if settings.get("echo"):
        raise BadInput("generate_kwargs.echo would have the prompt counted as output.")


def initial_format(generation: Generation) -> RequestFormat:
    """Return how to ask for a generation at first.

    Raises:
        BadInput: Its settings cannot be read, or contradict it.
    """
    maps = []
    for name in ("generate_kwargs", "reasoning"):
        text = getattr(generation, name)
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise BadInput(f"{name} is a map of settings, not {text}.")
        maps.append(parsed)
    return RequestFormat.of(generation.model, maps[0], generation.output_tokens, maps[1])


def _refuses_chat(status: int, words: str) -> bool:
    """Return whether a server says that there is no chat here, or not with this model."""
    if status in {400, 404, 422} and ("chat template" in words or "not a chat model" in words):
        return True
    return status in {404, 405, 501} and "model" not in words


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

PREFIX_WORDS = 8
"""Words that no two prompts begin with alike: about 50 bits of chance."""
PROMPT_POOL = 64
"""Texts that are made beforehand, so that a request costs no time when it is due."""


@dataclass(frozen=True)
class PromptSource:
    """Texts that requests take in turn, each behind a beginning of its own.

    A seed gives the same texts again. The beginnings hang on ``salt`` too, as a server keeps what an earlier process
    has sent it.
    """

    texts: tuple[str, ...]
    seed: int
    salt: str
    prefix_words: int = PREFIX_WORDS

    def prompt(self, number: int) -> str:
        """Return the prompt of a request by its number."""
        text = self.texts[number % len(self.texts)]
        begin = random_words(f"{self.salt} {self.seed} {number}", self.prefix_words)
        return f"{begin} {text}" if text else begin

    def as_json(self, number: int) -> bytes:
        """Return it as the bytes that stand in a request."""
        return json.dumps(self.prompt(number)).encode()


def random_words(seed: str, count: int) -> str:
    """Return so many random words."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))  # noqa: S311 - nothing is kept secret by it


def prompts_of_words(count: int, seed: int, salt: str) -> PromptSource:
    """Return prompts of so many random words in all."""
    begin = min(PREFIX_WORDS, count)
    texts = tuple(random_words(f"{seed} {number}", count - begin) for number in range(PROMPT_POOL))
    return PromptSource(texts, seed, salt, begin)


def prompts_of_texts(texts: Sequence[str], seed: int, salt: str) -> PromptSource:
    """Return prompts of a user's texts, in their order and again from the first."""
    return PromptSource(tuple(texts), seed, salt)


@dataclass(frozen=True)
class LengthFit:
    """Tokens of a prompt as the server counts them: so many for a word, and so many around it."""

    per_word: float
    overhead: float

    @classmethod
    def from_points(cls, few: tuple[int, int], many: tuple[int, int]) -> LengthFit:
        """Return the line through two prompts, each its words and its tokens."""
        per_word = (many[1] - few[1]) / (many[0] - few[0])
        per_word = per_word if per_word > 0 else 1.0
        return cls(per_word, max(0.0, few[1] - few[0] * per_word))

    def words(self, tokens: int) -> int:
        """Return how many words make about so many tokens; at least one."""
        return max(1, round((tokens - self.overhead) / self.per_word))


def cut_text(text: str, tokens: int, has: int) -> str:
    """Return the beginning of a text of so many tokens of the ``has`` that it has, by words."""
    parts = text.split(" ")
    return " ".join(parts[: max(1, len(parts) * tokens // has)])
