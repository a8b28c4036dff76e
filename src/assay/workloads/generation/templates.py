"""Prompts as a chat template writes them for a model that is told how much to reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def written(
    texts: Sequence[str], tokenizer: Any, model: str, reasoning: Mapping[str, Any]
) -> tuple[list[list[int]], tuple[str, ...]]:
    """Return texts as token ids, and what the user should know of it.

    Without settings texts go in as they are. With them each is a user's message in the model's chat template, which is
    given the settings by their names.

    Raises:
        BadInput: There are settings, and the model has no such template, or it refuses them.
    """
    if not reasoning:
        return [list(tokenizer(text)["input_ids"]) for text in texts], ()
    if getattr(tokenizer, "chat_template", None) is None:
        raise BadInput(
            f"Reasoning is told to a model by its chat template, and {model} has none: leave scenario.reasoning and "
            "reasoning_params out."
        )
    prompts = [_in_template(text, tokenizer, model, reasoning) for text in texts]
    unheeded = prompts[0] == _in_template(texts[0], tokenizer, model, {})
    names = " and ".join(reasoning)
    notes = (
        (f"the chat template of {model} makes nothing of {names}: prompts are the same without",) if unheeded else ()
    )
    return [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in prompts], notes


def _in_template(text: str, tokenizer: Any, model: str, reasoning: Mapping[str, Any]) -> str:
    message = [{"role": "user", "content": text}]
    try:
        return str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True, **reasoning))
    except Exception as error:  # a template is a program of the model's own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"The chat template of {model} cannot write a prompt with {dict(reasoning)}: {reason}."
        ) from error
