"""How much a model is to reason, told by its chat template."""

from __future__ import annotations

from typing import Any

import pytest

from assay.core.errors import BadInput
from assay.workloads.generation.prompts import apply_chat_template


class Tokenizer:
    """Token ids are the characters' numbers."""

    chat_template: str | None = "a template"

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [1] * add_special_tokens + [ord(letter) for letter in text]}

    def apply_chat_template(self, messages: list[dict[str, str]], **given: Any) -> str:
        if given.get("reasoning_effort") == "endless":
            raise ValueError("low, medium or high")
        return f"{given.get('reasoning_effort', 'some')}|{messages[0]['content']}|"


def test_texts_go_as_they_are_where_nothing_is_told() -> None:
    assert apply_chat_template(["a", "b"], Tokenizer(), "m", {}) == ([[1, 97], [1, 98]], ())


def test_settings_are_told_to_the_template_and_marks_are_its_own() -> None:
    ((ids,), notes) = apply_chat_template(["a"], Tokenizer(), "m", {"reasoning_effort": "low"})
    assert "".join(map(chr, ids)) == "low|a|"
    assert notes == ()


def test_settings_that_change_nothing_are_told() -> None:
    (_, (note,)) = apply_chat_template(["a"], Tokenizer(), "m", {"enable_thinking": True})
    assert note.message == "the chat template of m ignores enable_thinking: prompts are the same without"


def test_without_a_template_or_against_it_reasoning_is_refused() -> None:
    plain = Tokenizer()
    plain.chat_template = None
    for tokenizer in (plain, None):
        with pytest.raises(BadInput, match=r"m has none: leave scenario\.reasoning"):
            apply_chat_template(["a"], tokenizer, "m", {"enable_thinking": True})
    with pytest.raises(BadInput, match=r"cannot write a prompt .*: low, medium or high\."):
        apply_chat_template(["a"], Tokenizer(), "m", {"reasoning_effort": "endless"})
