"""The format of a request: path, fields, and prompts.

Fields that a server refuses are left out or replaced. Every prompt begins differently, so that none hits a prefix
cache.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, JsonValue

from assay._version import __version__
from assay.core.errors import BadInput, MachineCannot
from assay.core.values import Value
from assay.workloads.generation.models import error_chain, first_line

if TYPE_CHECKING:
    from assay.workloads.generation.params import Generation

CHAT, COMPLETIONS = "/chat/completions", "/completions"
_MAX_TOKENS, _MAX_COMPLETION_TOKENS = "max_tokens", "max_completion_tokens"
_LENGTHS = (_MAX_TOKENS, _MAX_COMPLETION_TOKENS, "max_new_tokens")
_RESERVED_FIELDS = {"model": "backend.model", "messages": "scenario.prompts", "prompt": "scenario.prompts"}
_SINGLE_FIELDS = ("n", "best_of")
_WHOLE_FIELDS = ("ignore_eos", "min_tokens")
_PROMPT_MARK = "a prompt stands here"

NO_CHAT_NOTE = "it offers no chat: prompts go to /completions as they are, without a chat template"
NO_USAGE_NOTE = "it refuses stream_options, so that it may not count its tokens"


class RequestFormat(Value):
    """A request without its prompt and length; ``whole`` are fields that make a server ignore end tokens."""

    model: str
    chat: bool = True
    length: str = _MAX_TOKENS
    whole: tuple[str, ...] = _WHOLE_FIELDS
    usage: bool = True
    settings: dict[str, JsonValue] = Field(default_factory=dict)

    @classmethod
    def of(
        cls, model: str, settings: dict[str, Any], output_tokens: int, reasoning: dict[str, Any] | None = None
    ) -> Self:
        """Return the initial format; ``reasoning`` goes to the chat template, except ``reasoning_effort``, a field.

        Refuse settings that contradict the scenario, or would change what is measured.
        """
        _check_settings(settings, output_tokens)
        dropped = {*_LENGTHS, *_SINGLE_FIELDS, "stream", "echo"}
        fields = {name: value for name, value in settings.items() if name not in dropped}
        template = dict(reasoning or {})
        if "reasoning_effort" in template:
            fields.setdefault("reasoning_effort", template.pop("reasoning_effort"))
        if template:
            fields.setdefault("chat_template_kwargs", template)
        whole = () if fields.get("ignore_eos") is False else _WHOLE_FIELDS
        return cls(model=model, settings=fields, whole=tuple(name for name in whole if name not in fields))

    @property
    def path(self) -> str:
        """The path below the server's URL."""
        return CHAT if self.chat else COMPLETIONS

    def body(self, prompt: str, tokens: int) -> dict[str, Any]:
        """Return the body of a request for this many tokens."""
        prompt_fields = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        body = {"model": self.model, **prompt_fields, "stream": True, self.length: tokens}
        if self.usage:
            body["stream_options"] = {"include_usage": True}
        extras = {"ignore_eos": True, "min_tokens": tokens}
        return {**body, **{name: extras[name] for name in self.whole}, **self.settings}

    def body_around_prompt(self, tokens: int) -> tuple[bytes, bytes]:
        """Return the bytes of a request's body before and after its prompt, which is JSON text."""
        before, _, after = json.dumps(self.body(_PROMPT_MARK, tokens)).partition(json.dumps(_PROMPT_MARK))
        return before.encode(), after.encode()

    def fallback(self, status: int, body: str) -> tuple[RequestFormat, str] | None:
        """Return the format to retry with after a refusal, and a note for the user; null: the refusal is final."""
        message = error_message(body).lower()
        if self.chat and "chat_template_kwargs" not in self.settings and _refuses_chat(status, message):
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
    """Refuse settings that contradict the scenario, or would change what is measured."""
    for name, where in _RESERVED_FIELDS.items():
        if name in settings:
            raise BadInput(f"generate_kwargs.{name} is not for you to set: it is {where}.")
    for name in _LENGTHS:
        if settings.get(name, output_tokens) != output_tokens:
            raise BadInput(
                f"generate_kwargs.{name} is {settings[name]}, but scenario.output_tokens is {output_tokens}."
            )
    if settings.get("stream", True) is not True or "stream_options" in settings:
        raise BadInput("generate_kwargs: answers are streamed, as the first token's time is not known otherwise.")
    for name in _SINGLE_FIELDS:
        if settings.get(name, 1) != 1:
            raise BadInput(f"generate_kwargs.{name} is {settings[name]}, but a request is for one answer.")
    if settings.get("echo"):
        raise BadInput("generate_kwargs.echo would have the prompt counted as output.")


def initial_format(generation: Generation) -> RequestFormat:
    """Return the initial format for a generation; refuse settings that are not valid or contradict it."""
    maps = {}
    for name in ("generate_kwargs", "reasoning"):
        text = getattr(generation, name)
        try:
            maps[name] = json.loads(text)
        except ValueError:
            maps[name] = None
        if not isinstance(maps[name], dict):
            raise BadInput(f"{name} is a map of settings, not {text}.")
    return RequestFormat.of(generation.model, maps["generate_kwargs"], generation.output_tokens, maps["reasoning"])


def _refuses_chat(status: int, message: str) -> bool:
    """Return whether a server does not support chat, in general or with this model.

    OpenAI's protocol has no error code for a model without a chat template: servers say so in the message only.
    """
    if status in {400, 404, 422} and ("chat template" in message or "not a chat model" in message):
        return True
    return status in {404, 405, 501} and "model" not in message


_COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name president team minute idea body information back parent "
    "face others level office door health person art war history party result change morning reason research girl guy "
    "moment air teacher force education"
)
WORDS = tuple(_COMMON.split())  # short and common words: one token each for most models
PREFIX_WORDS = 8  # words in the random prefix that makes each prompt unique: about 50 bits
PROMPT_POOL = 64  # texts that are generated beforehand, so that building a request takes no time under load


@dataclass(frozen=True)
class PromptSource:
    """Texts that requests take in turn, each after a unique prefix.

    Texts depend on the seed only. Prefixes depend on ``salt`` too, as a server may cache what an earlier process has
    sent.
    """

    texts: tuple[str, ...]
    seed: int
    salt: str
    prefix_words: int = PREFIX_WORDS

    def prompt(self, number: int) -> str:
        """Return the prompt of a request by its number."""
        text = self.texts[number % len(self.texts)]
        prefix = random_words(f"{self.salt} {self.seed} {number}", self.prefix_words)
        return f"{prefix} {text}" if text else prefix

    def as_json(self, number: int) -> bytes:
        """Return the prompt of a request as JSON bytes."""
        return json.dumps(self.prompt(number)).encode()

    @classmethod
    def of_words(cls, count: int, seed: int, salt: str) -> Self:
        """Return prompts of ``count`` random words, prefix included."""
        prefix = min(PREFIX_WORDS, count)
        texts = tuple(random_words(f"{seed} {number}", count - prefix) for number in range(PROMPT_POOL))
        return cls(texts, seed, salt, prefix)


def random_words(seed: str, count: int) -> str:
    """Return ``count`` random words."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))  # noqa: S311 - not used for security


@dataclass(frozen=True)
class LengthFit:
    """A linear fit of a prompt's tokens, as counted by the server: tokens per word, and an overhead."""

    per_word: float
    overhead: float

    @classmethod
    def from_points(cls, few: tuple[int, int], many: tuple[int, int]) -> LengthFit:
        """Return the line through two prompts, each given as (words, tokens)."""
        per_word = (many[1] - few[1]) / (many[0] - few[0])
        per_word = per_word if per_word > 0 else 1.0
        return cls(per_word, max(0.0, few[1] - few[0] * per_word))

    def words(self, tokens: int) -> int:
        """Return the number of words for about this many tokens; at least one."""
        return max(1, round((tokens - self.overhead) / self.per_word))


def cut_text(text: str, tokens: int, has: int) -> str:
    """Truncate a text of ``has`` tokens to about ``tokens``, by words."""
    parts = text.split(" ")
    return " ".join(parts[: max(1, len(parts) * tokens // has)])


_API_PATHS = ("/chat/completions", "/completions", "/models")
API_VERSION = re.compile(r"/v\d\w*$")
_LOOPBACK_HOSTS = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class ServerEndpoint:
    """A candidate URL of a server, with the API version: ``http://127.0.0.1:8000/v1``."""

    url: str
    key_variable: str = ""
    key: str = field(default="", repr=False)

    @cached_property
    def parts(self) -> SplitResult:
        """The parts of the URL; its path is the one before ``/chat/completions``."""
        return urlsplit(self.url)

    @property
    def tls(self) -> bool:
        """Whether the connection uses TLS."""
        return self.parts.scheme == "https"

    @property
    def host(self) -> str:
        """The name or address of the machine."""
        return self.parts.hostname or ""

    @property
    def port(self) -> int:
        """The port, explicit or default."""
        return self.parts.port or (443 if self.tls else 80)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request, the API key among them."""
        headers = {"User-Agent": f"assay/{__version__}", "Accept-Encoding": "identity"}
        return {**headers, "Authorization": f"Bearer {self.key}"} if self.key else headers

    @property
    def sends_key_unencrypted(self) -> bool:
        """Whether the API key is sent unencrypted over a network."""
        return bool(self.key) and not self.tls and self.host not in _LOOPBACK_HOSTS

    def redact(self, text: str) -> str:
        """Return a server's text with the API key removed, in case it repeats it."""
        return text.replace(self.key, "…") if self.key else text


def candidate_urls(address: str) -> tuple[str, ...]:
    """Return the candidate URLs for an address with or without its version, the likeliest first.

    Refuse what is not a URL of a server, or has a password in it.
    """
    text = address.strip()
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or not text.isascii() or any(sign.isspace() for sign in text) or parts.query or parts.fragment:
        raise BadInput(f"backend.endpoint: {address!r} is no address of a server, as http://127.0.0.1:8000/v1 is one.")
    if parts.username is not None or parts.password is not None:
        raise BadInput("backend.endpoint has a name or a password in it; backend.api_key_env names where the key is.")
    text = text.rstrip("/")
    for path in _API_PATHS:
        text = text.removesuffix(path)
    return (text,) if API_VERSION.search(urlsplit(text).path) else (f"{text}/v1", text)


def candidate_endpoints(generation: Generation) -> tuple[ServerEndpoint, ...]:
    """Return the candidate endpoints of a generation's server, each with its API key; refuse an unusable key."""
    variable = generation.api_key_env
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise MachineCannot(f"The server cannot be asked: {variable}, which should hold its key, is not set.")
    if key and re.fullmatch(r"[!-~]+", key) is None:
        raise BadInput(f"The server cannot be asked: {variable} has characters that no key has.")
    return tuple(ServerEndpoint(url, variable, key) for url in candidate_urls(generation.endpoint))


CONNECT_WITHIN_S = 10.0
_NO_TLS_MARKS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING")


def connection_fault(error: BaseException) -> str:
    """Return why a connection failed or broke; works on the errors of sockets, TLS and httpx."""
    causes = list(error_chain(error))

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    tls = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    if tls is not None:
        return _tls_fault(tls)
    if has(ConnectionRefusedError):
        return "is not there: nobody listens on that port (connection refused); is it started, and the port right?"
    if has(socket.gaierror):
        return "is not known by that name; is the address right?"
    if has(TimeoutError) or any(type(cause).__name__ == "ConnectTimeout" for cause in causes):
        return f"did not accept a connection within {CONNECT_WITHIN_S:g} s"
    # httpx has one class for all faults of a server's protocol, of which only the message tells a closed connection
    if has(ConnectionError) or any("isconnected" in str(cause) for cause in causes):
        return CLOSED_EARLY
    return f"cannot be reached: {first_line(str(error)) or type(error).__name__}"


CLOSED_EARLY = "closed the connection in the middle of an answer"


def silence_fault(timeout_s: float) -> str:
    """Return that no part of an answer came within the timeout, though keep-alive lines may have."""
    return f"sent nothing of an answer for {timeout_s:g} s (backend.request_timeout_s)"


def status_fault(status: int, body: str, endpoint: ServerEndpoint) -> str:
    """Return the meaning of a status other than 200; ``body`` is the response's body."""
    reason = f"{status}: {error_message(body)}" if error_message(body) else str(status)
    if status in {401, 403}:
        hint = f"is the key in {endpoint.key_variable} right?" if endpoint.key_variable else "does it want a key?"
        fault = f"does not let us in ({reason}); {hint} backend.api_key_env names the variable of it"
    elif status >= 500:
        fault = f"is in trouble ({reason})"
    elif 300 <= status < 400:
        fault = f"points elsewhere ({reason}); give the address that it points to"
    else:
        fault = f"refuses the request ({reason})"
    return endpoint.redact(fault)


def error_message(body: str) -> str:
    """Return the first line of a server's error message: in OpenAI's format, another one, or plain text."""
    if is_web_page(body):
        return "a web page"
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return first_line(body)
    return first_line(message_in_error(parsed) or body)


def message_in_error(body: Any) -> str | None:
    """Return the message of an error object, or null where there is none."""
    if not isinstance(body, dict):
        return None
    error, detail = body.get("error", body if body.get("object") == "error" else None), body.get("detail")
    for text in (error, error.get("message") if isinstance(error, dict) else None, detail):
        if isinstance(text, str) and text:
            return text
    if error or detail:
        return json.dumps(error or detail)
    message = body.get("message")
    return message if isinstance(message, str) and "choices" not in body else None


def is_web_page(body: str) -> bool:
    """Return whether a response is an HTML page."""
    return body.lstrip()[:15].lower().startswith(("<!doctype", "<html"))


def _tls_fault(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted here: {first_line(error.verify_message)}"
    reason = getattr(error, "reason", None) or str(error)
    if any(sign in reason for sign in _NO_TLS_MARKS):
        return "does not speak TLS on that port; is its address http:// and not https://?"
    return f"could not agree on TLS with us: {first_line(reason)}"
