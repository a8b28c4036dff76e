"""How a server is asked: by which path, with which fields; and what to try where it refuses some of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, JsonValue

from assay.core.errors import BadInput
from assay.core.values import Value
from assay.workloads.generation.server.faults import message

if TYPE_CHECKING:
    from assay.workloads.generation.params import Generation

CHAT, PLAIN = "/chat/completions", "/completions"
_MAX_TOKENS, _MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
_LENGTHS = (_MAX_TOKENS, _MAX_COMPLETION_TOKENS, "max_new_tokens")
_OURS = {"model": "backend.model", "messages": "scenario.prompts", "prompt": "scenario.prompts"}
_ONE = ("n", "best_of")
_PLACE = "a prompt stands here"

NO_CHAT = "it offers no chat: prompts go to /completions as they are, without a chat template"
NO_USAGE = "it refuses stream_options, so that it may not count its tokens"


class Form(Value):
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
        _refuse(settings, output_tokens)
        fields = {name: value for name, value in settings.items() if name not in {*_LENGTHS, *_ONE, "stream", "echo"}}
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
        return CHAT if self.chat else PLAIN

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

    def around(self, tokens: int) -> tuple[bytes, bytes]:
        """Return a request's bytes before and after its prompt, which stands between them as JSON text."""
        before, _, after = json.dumps(self.body(_PLACE, tokens)).partition(json.dumps(_PLACE))
        return before.encode(), after.encode()

    def instead(self, status: int, said: str) -> tuple[Form, str] | None:
        """Return how to ask again a server that refused this form, and what its user should know; null: it is final."""
        words = message(said).lower()
        if self.chat and "chat_template_kwargs" not in self.settings and _no_chat(status, words):
            return self.model_copy(update={"chat": False}), NO_CHAT
        if status not in {400, 422}:
            return None
        refused = [name for name in self.whole if name in said]
        if refused:
            note = f"it refuses {' and '.join(refused)}, so that answers may end before their length"
            return self.model_copy(update={"whole": tuple(n for n in self.whole if n not in refused)}), note
        if self.usage and ("stream_options" in said or "include_usage" in said):
            return self.model_copy(update={"usage": False}), NO_USAGE
        if self.length == _MAX_TOKENS and _MAX_COMPLETION_TOKENS in said:
            return self.model_copy(update={"length": _MAX_COMPLETION_TOKENS}), f"it takes {_MAX_COMPLETION_TOKENS}"
        return None


def _refuse(settings: dict[str, Any], output_tokens: int) -> None:
    """Refuse settings that say something else than the scenario, or would change what is measured."""
    for name, where in _OURS.items():
        if name in settings:
            raise BadInput(f"generate_kwargs.{name} is not for you to set: it is {where}.")
    for name in _LENGTHS:
        if settings.get(name, output_tokens) != output_tokens:
            raise BadInput(
                f"generate_kwargs.{name} is {settings[name]}, but scenario.output_tokens says {output_tokens}."
            )
    if settings.get("stream", True) is not True or "stream_options" in settings:
        raise BadInput("generate_kwargs: answers are streamed, as the first token's time is not known otherwise.")
    for name in _ONE:
        if settings.get(name, 1) != 1:
            raise BadInput(f"generate_kwargs.{name} is {settings[name]}, but a request is for one answer.")
    if settings.get("echo"):
        raise BadInput("generate_kwargs.echo would have the prompt counted as output.")


def form_of(generation: Generation) -> Form:
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
    return Form.of(generation.model, maps[0], generation.output_tokens, maps[1])


def _no_chat(status: int, words: str) -> bool:
    """Return whether a server says that there is no chat here, or not with this model."""
    if status in {400, 404, 422} and ("chat template" in words or "not a chat model" in words):
        return True
    return status in {404, 405, 501} and "model" not in words
