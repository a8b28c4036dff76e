"""Probe a server before anything is measured: is it up, does it have the model, which request format does it accept?

GET /models ─▶  a short request ─▶  a long one ─▶  one as under load
   known?       drops refused       tokens per     warm-up and
                fields              word           actual length
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from assay.core.errors import AssayError, BadInput, MachineCannot, suggest_nearest
from assay.core.format import format_list
from assay.core.results import Note
from assay.workloads.generation import prompts
from assay.workloads.generation.server import protocol
from assay.workloads.generation.server.protocol import PromptSource, RequestFormat, candidate_endpoints, initial_format
from assay.workloads.generation.server.streams import (
    DONE,
    EventParser,
    LoadArrivals,
    StreamedAnswer,
    TokenScale,
    parse_event,
)

if TYPE_CHECKING:
    import ssl

    import httpx

    from assay.core.values import Params
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.server.protocol import ServerEndpoint

MAX_ERROR_BYTES = 64 << 10
NOT_OPENAI_FAULT = "answers with what is no JSON, and does not speak OpenAI's protocol; is the address right?"


@dataclass(frozen=True)
class ServedModel:
    """A model that a server lists; its context length and its owner, where reported."""

    name: str
    context_tokens: int | None = None
    owner: str = ""


class ServerClient:
    """Sends requests to a server, directly and without a proxy; every error has a one-sentence message."""

    def __init__(self, endpoint: ServerEndpoint, timeout_s: float) -> None:
        import httpx

        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._http = httpx.Client(
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, protocol.CONNECT_WITHIN_S)),
            headers=endpoint.headers,
            verify=make_tls_context() if endpoint.tls else False,
            limits=httpx.Limits(max_keepalive_connections=0),  # a server may close one after its own failure
            follow_redirects=False,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def models(self) -> tuple[ServedModel, ...] | None:
        """Return the models that the server lists; none where it lists none, null where the path is unknown.

        Raises:
            MachineCannot: The server is not reachable, denies access, or uses another protocol.
        """
        response = self._get(f"{self.endpoint.url}/models")
        status, text, body = response.status_code, response.text[:MAX_ERROR_BYTES], _read_json(response)
        if status in {404, 405}:
            return None
        if status in {401, 403} or 300 <= status < 400:
            raise self.error(protocol.status_fault(status, text or response.headers.get("location", ""), self.endpoint))
        if protocol.is_web_page(text) or (status == 200 and body is None):
            raise self.error(NOT_OPENAI_FAULT)
        return _read_models(body) if status == 200 else ()

    def version(self) -> str:
        """Return the server's version; empty where it does not report it."""
        try:
            response = self._get(f"{protocol.API_VERSION.sub('', self.endpoint.url)}/version")
        except AssayError:
            return ""
        body = _read_json(response)
        version = body.get("version") if isinstance(body, dict) and response.status_code == 200 else None
        return version if isinstance(version, str) else ""

    def request(self, form: RequestFormat, prompt: str, tokens: int) -> StreamedAnswer | tuple[int, str]:
        """Request one answer and wait for its end; return it, or the status and the text of a refusal.

        Raises:
            MachineCannot: The server is not reachable, stalls, breaks off, or sends an invalid answer.
        """
        import httpx

        body = form.body(prompt, tokens)
        answer = StreamedAnswer(time.perf_counter_ns(), tokens, TokenScale())
        try:
            with self._http.stream("POST", f"{self.endpoint.url}{form.path}", json=body) as response:
                if response.status_code != 200:
                    return response.status_code, _error_text(response)
                self._check_streaming(response)
                ended = self._read_answer(response, answer)
        except httpx.ReadTimeout:
            raise self.error(f"{protocol.silence_fault(self.timeout_s)}; does it load a model?") from None
        except httpx.TransportError as error:
            raise self.error(protocol.connection_fault(error)) from None
        if answer.empty:
            raise self.error("answered without a token" if ended else "ended an answer before its first token")
        if not ended and answer.finish is None:
            raise self.error(protocol.CLOSED_EARLY)
        return answer

    def error(self, clause: str) -> MachineCannot:
        """Return an error about this server."""
        end = "" if clause.endswith("?") else "."
        return MachineCannot(f"The server at {self.endpoint.url} {self.endpoint.redact(clause)}{end}")

    def _check_streaming(self, response: httpx.Response) -> None:
        """Check that an answer is streamed."""
        kind = response.headers.get("content-type", "")
        if "html" in kind:
            raise self.error(NOT_OPENAI_FAULT)
        if "json" in kind:
            raise self.error(f"does not stream its answers: {protocol.error_message(_error_text(response))}")

    def _read_answer(self, response: httpx.Response, answer: StreamedAnswer) -> bool:
        """Read an answer; return whether it had an end marker."""
        events, into, late_s = EventParser(), LoadArrivals(), time.monotonic() + self.timeout_s
        for piece in response.iter_raw():
            if time.monotonic() > late_s:
                raise self.error(protocol.silence_fault(self.timeout_s))
            for data in events.feed(piece):
                late_s = time.monotonic() + self.timeout_s
                if data == DONE:
                    return True
                chunk = parse_event(data)
                if chunk.error is not None:
                    raise self.error(f"broke an answer off with {chunk.error!r}")
                answer.count_chunk(time.perf_counter_ns(), chunk, into)
        return False

    def _get(self, url: str) -> httpx.Response:
        import httpx

        try:
            return self._http.get(url)
        except httpx.ReadTimeout:
            raise self.error(f"did not answer within {self.timeout_s:g} s (backend.request_timeout_s)") from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise self.error(protocol.connection_fault(error)) from None


def _error_text(response: httpx.Response) -> str:
    """Return the beginning of a response."""
    text = b""
    for piece in response.iter_raw():
        text += piece
        if len(text) > MAX_ERROR_BYTES:
            break
    return text.decode(errors="replace")


def make_tls_context() -> ssl.SSLContext:
    """Return a TLS context with the trusted certificates of the environment."""
    import httpx

    return httpx.create_ssl_context()


def _read_json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _read_models(body: Any) -> tuple[ServedModel, ...]:
    rows = body.get("data") if isinstance(body, dict) else None
    entries = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return tuple(
        ServedModel(
            row["id"],
            context if isinstance(context := row.get("max_model_len"), int) else None,
            owner if isinstance(owner := row.get("owned_by"), str) else "",
        )
        for row in entries
        if isinstance(row.get("id"), str)
    )


WARM_TOKENS = 8
SHORT_PROMPT_WORDS = protocol.PREFIX_WORDS
LONG_PROMPT_WORDS = (40, 256)
LENGTH_TOLERANCE = 0.02
NOTED_DEVIATION = 0.05
MAX_NAMES = 8

PREFIX_NOTE = Note(
    code="unique_prefix",
    message=f"every prompt begins with {protocol.PREFIX_WORDS} words of its own, so that none is answered from a cache",
    params={"words": protocol.PREFIX_WORDS},
)


@dataclass(frozen=True)
class ServerProbe:
    """A server that has answered: its request format, its prompts, and notes for the user."""

    endpoint: ServerEndpoint
    request_format: RequestFormat
    prompt_source: PromptSource
    scale: TokenScale
    notes: tuple[Note, ...]


def probe_server(generation: Generation, seed: int, salt: str) -> ServerProbe:
    """Send requests to a server until it has answered one as under load; raise if it cannot."""
    request_format = initial_format(generation)
    client, listed = _reach_server(generation)
    with client:
        limit = next((model.context_tokens for model in listed if model.name == generation.model), None)
        if limit is not None and generation.input_tokens + generation.output_tokens > limit:
            raise BadInput(
                f"{generation.input_tokens} tokens in and {generation.output_tokens} out are more than the {limit} "
                f"that the server takes with {generation.model}."
            )
        prober = _Prober(generation, client, listed, request_format, seed, salt)
        source = prober.file_prompts() if generation.prompts != prompts.RANDOM else prober.random_prompts()
        return ServerProbe(client.endpoint, prober.request_format, source, prober.scale, prober.all_notes())


def _reach_server(generation: Generation) -> tuple[ServerClient, tuple[ServedModel, ...]]:
    """Return a client for the URL that lists models, or for the likeliest where none does."""
    candidates = candidate_endpoints(generation)
    for endpoint in candidates:
        with ExitStack() as undo:
            client = undo.enter_context(ServerClient(endpoint, generation.request_timeout_s))
            listed = client.models()
            if listed is not None:
                undo.pop_all()
                return client, listed
    return ServerClient(candidates[0], generation.request_timeout_s), ()


@dataclass
class _Prober:
    """The requests of one probe; ``request_format`` is the accepted one once the server has answered."""

    generation: Generation
    client: ServerClient
    listed: tuple[ServedModel, ...]
    request_format: RequestFormat
    seed: int
    salt: str
    scale: TokenScale = field(default_factory=TokenScale)
    notes: list[Note] = field(default_factory=list)
    served: str | None = None

    def random_prompts(self) -> PromptSource:
        """Return random prompts of about the requested length."""
        target = self.generation.input_tokens
        few = self._input_tokens(self._words(SHORT_PROMPT_WORDS), -1)
        if few is None:
            self._warm_up(source := self._words(target))
            return source
        lowest, highest = LONG_PROMPT_WORDS
        count = min(max(lowest, target // 2), highest)
        many = self._input_tokens(self._words(count), -2) or few
        line = protocol.LengthFit.from_points((SHORT_PROMPT_WORDS, few), (count, many))
        source = self._words(line.words(target))
        has = self._warm_up(source) or target
        if abs(has - target) > LENGTH_TOLERANCE * target:
            source = self._words(max(1, line.words(target) + round((target - has) / line.per_word)))
            has = self._warm_up(source) or target
        if abs(has - target) > NOTED_DEVIATION * target:
            message = f"prompts have about {has} tokens, not {target}: the chat template is among them"
            self.notes.append(Note(code="prompt_length", message=message, params={"tokens": has, "requested": target}))
        self._expect(has)
        return source

    def _words(self, count: int) -> PromptSource:
        return PromptSource.of_words(count, self.seed, self.salt)

    def file_prompts(self) -> PromptSource:
        """Return the user's prompts, with long ones truncated where that is allowed."""
        generation = self.generation
        texts = prompts.read_prompts(generation.prompts, generation.text_column_name, generation.num_samples)
        longest = max(texts, key=len)
        overhead, most = (
            self._input_tokens(PromptSource((text,), self.seed, self.salt), number)
            for text, number in (("", -1), (longest, -2))
        )
        if overhead is not None and most is not None and most - overhead > generation.input_tokens:
            texts = self._truncate(texts, (most - overhead) / max(1, len(longest)))
        source = PromptSource(texts, self.seed, self.salt)
        mean = self._warm_up(source)
        if mean is not None:
            self._expect(mean)
        return source

    def all_notes(self) -> tuple[Note, ...]:
        """Return what its user should know."""
        endpoint = self.client.endpoint
        owner = next((model.owner for model in self.listed if model.name == self.generation.model), "")
        by = " ".join(word for word in (owner, self.client.version()) if word)
        message = f"the server at {endpoint.url} serves {self.served or self.request_format.model}"
        notes = [Note(code="server", message=f"{message} ({by})" if by else message), PREFIX_NOTE]
        notes += {note.message: note for note in self.notes}.values()
        if endpoint.sends_key_unencrypted:
            message = f"the key in {endpoint.key_variable} is sent unencrypted"
            notes.append(Note(code="key_unencrypted", message=message))
        return tuple(notes)

    def _truncate(self, texts: tuple[str, ...], per_character: float) -> tuple[str, ...]:
        limit = self.generation.input_tokens
        lengths = [max(1, round(len(text) * per_character)) for text in texts]
        if not self.generation.truncation:
            raise BadInput(
                f"A prompt of {self.generation.prompts} has about {max(lengths)} tokens, more than the {limit} of "
                "scenario.input_tokens; allow more, or cut prompts with scenario.truncation."
            )
        long = sum(has > limit for has in lengths)
        message = f"{long} of {len(texts)} prompts are cut to about {limit} tokens"
        params: Params = {"cut": long, "prompts": len(texts), "tokens": limit}
        self.notes.append(Note(code="prompts_cut", message=message, params=params))
        pairs = zip(texts, lengths, strict=True)
        return tuple(protocol.cut_text(text, limit, has) if has > limit else text for text, has in pairs)

    def _input_tokens(self, source: PromptSource, number: int) -> int | None:
        """Request one token, and return the tokens of the prompt; null where the server does not count them."""
        answer = self._request(source.prompt(number), 1)
        return answer.usage.input if answer.usage is not None else None

    def _warm_up(self, source: PromptSource) -> int | None:
        """Send a request as under load, for few tokens; return the tokens of the prompt, null where not counted."""
        answer = self._request(source.prompt(-3), min(WARM_TOKENS, self.generation.output_tokens))
        self.scale.learn(answer.chunks, answer.usage)
        return answer.usage.input if answer.usage is not None else None

    def _expect(self, tokens: int) -> None:
        """Count prompts as this many tokens until answers report their own counts."""
        self.scale.prompts, self.scale.input = 1, tokens

    def _request(self, prompt: str, tokens: int) -> StreamedAnswer:
        """Send a request, and retry without refused fields; raise the server's final refusal."""
        while True:
            reply = self.client.request(self.request_format, prompt, tokens)
            if isinstance(reply, StreamedAnswer):
                self._check_model(reply)
                return reply
            other = self.request_format.fallback(*reply)
            if other is None:
                raise self._refusal(*reply)
            self.request_format, note = other
            self.notes.append(Note(code="request_changed", message=f"the server was asked again: {note}"))

    def _check_model(self, answer: StreamedAnswer) -> None:
        """Check that an unlisted model is the one that answers: some servers accept any name."""
        self.served = answer.model or self.served
        if self._is_unlisted and not (answer.model or "").startswith(f"{self.generation.model}@"):
            raise self._missing_model()

    @property
    def _is_unlisted(self) -> bool:
        return bool(self.listed) and self.generation.model not in {model.name for model in self.listed}

    def _refusal(self, status: int, body: str) -> AssayError:
        # a 404 of an unknown model and one of an unknown path differ in the message only
        if (status == 404 and "model" in protocol.error_message(body).lower()) or self._is_unlisted:
            return self._missing_model()
        if status == 404:
            return self.client.error(
                "has neither /chat/completions nor /completions (404); does it speak OpenAI's protocol, and is the "
                "address right?"
            )
        return self.client.error(protocol.status_fault(status, body, self.client.endpoint))

    def _missing_model(self) -> MachineCannot:
        name, names = self.generation.model, [model.name for model in self.listed]
        has = f"; it has {format_list(names, MAX_NAMES)}" if names else ""
        near = suggest_nearest(name, names)
        return MachineCannot(f"The server at {self.client.endpoint.url} does not have the model {name!r}{has}.{near}")
