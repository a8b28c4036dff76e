"""What a server streams: lines of events, and what a chunk of an answer says."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from assay.workloads.generation.server.faults import in_error

DONE = b"[DONE]"
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
"""Where a delta has text: reasoning comes before the answer, and its tokens are made all the same."""


class Usage(NamedTuple):
    """Tokens by the server's own count, as far as it told."""

    input: int | None
    output: int
    cached: int = 0


class Chunk(NamedTuple):
    """One event: whether it brought text (a role alone is none), and what else it said."""

    text: bool = False
    usage: Usage | None = None
    finish: str | None = None
    model: str | None = None
    error: str | None = None


class Events:
    """Bytes as they come, cut into the data of events; comments and names of events are passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that are whole now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

    def end(self) -> list[bytes]:
        """Return what came last, where no end of line followed it."""
        return self.feed(b"\n")


def read(data: bytes) -> Chunk:
    """Return what an event says; an event that is not of an answer is an error."""
    try:
        event: Any = json.loads(data)
    except (ValueError, RecursionError):
        return Chunk(error=f"what is no JSON: {data[:80].decode(errors='replace')}")
    if not isinstance(event, dict):
        return Chunk(error=f"what is no answer: {data[:80].decode(errors='replace')}")
    choices = event.get("choices")
    if choices is None:
        message = in_error(event)
        if message is not None:
            return Chunk(error=message)
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    finish, model = choice.get("finish_reason"), event.get("model")
    return Chunk(
        text=_has_text(choice),
        usage=_usage(event.get("usage")),
        finish=finish if isinstance(finish, str) else None,
        model=model if isinstance(model, str) else None,
    )


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return bool(choice.get("text"))
    return any(delta.get(name) for name in _TEXTS) or bool(delta.get("tool_calls"))


def _usage(told: Any) -> Usage | None:
    """Return a server's counts; those that cannot be are as if it had not told them."""
    output = _count(told, "completion_tokens")
    if output is None:
        return None
    cached = _count(told.get("prompt_tokens_details"), "cached_tokens")
    return Usage(input=_count(told, "prompt_tokens") or None, output=output, cached=cached or 0)


def _count(told: Any, name: str) -> int | None:
    value = told.get(name) if isinstance(told, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
