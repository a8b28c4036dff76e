"""Meet a server before anything is measured: is it there, has it the model, how does it want to be asked?

GET /models ─▶ a request of few words ─▶ one of many ─▶ one as they will all be
   known?        fields refused: without     tokens/word     warm, and how long it really is
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assay.core.errors import AssayError, BadInput, MachineCannot, nearest
from assay.workloads.generation import prompts
from assay.workloads.generation.server import faults, wording
from assay.workloads.generation.server.arrivals import Scale
from assay.workloads.generation.server.client import Client
from assay.workloads.generation.server.endpoint import endpoints
from assay.workloads.generation.server.form import Form, form_of

if TYPE_CHECKING:
    from assay.workloads.generation.params import Generation
    from assay.workloads.generation.server.arrivals import Answer
    from assay.workloads.generation.server.client import Model
    from assay.workloads.generation.server.endpoint import Endpoint
    from assay.workloads.generation.server.wording import Wording

WARM_TOKENS = 8
FEW_WORDS = wording.BEGINNING
MANY_WORDS = (40, 256)
NEAR_ENOUGH = 0.02
NOTED_FROM = 0.05
MOST_NAMES = 8

BEGINNINGS = f"every prompt begins with {wording.BEGINNING} words of its own, so that none is answered from a cache"


@dataclass(frozen=True)
class Met:
    """A server that has answered: how it is asked, with which prompts, and what its user should know."""

    endpoint: Endpoint
    form: Form
    wording: Wording
    scale: Scale
    notes: tuple[str, ...]


def meet(generation: Generation, seed: int, salt: str) -> Met:
    """Ask a server until it has answered as it will be asked under load.

    Raises:
        MachineCannot: It is not there, or cannot do this.
        BadInput: Prompts are longer than they may be, or there is none.
    """
    request_format = form_of(generation)
    client, listed = _reached(generation)
    with client:
        _fits(generation, listed)
        prober = _Meeting(generation, client, listed, request_format, salt)
        source = prober.of_file(seed) if generation.prompts != prompts.RANDOM else prober.of_words(seed)
        return Met(client.endpoint, prober.form, source, prober.scale, prober.told())


def _reached(generation: Generation) -> tuple[Client, tuple[Model, ...]]:
    """Return the server under the address where it lists its models, or the likeliest where it lists none."""
    candidates = endpoints(generation)
    for endpoint in candidates:
        client = Client(endpoint, generation.request_timeout_s)
        try:
            listed = client.models()
        except BaseException:
            client.close()
            raise
        if listed is not None:
            return client, listed
        client.close()
    return Client(candidates[0], generation.request_timeout_s), ()


def _fits(generation: Generation, listed: tuple[Model, ...]) -> None:
    """Refuse lengths that the server says it cannot do."""
    most = next((model.context_tokens for model in listed if model.name == generation.model), None)
    if most is not None and generation.input_tokens + generation.output_tokens > most:
        raise BadInput(
            f"{generation.input_tokens} tokens in and {generation.output_tokens} out are more than the {most} that "
            f"the server takes with {generation.model}."
        )


@dataclass
class _Meeting:
    """One conversation with a server; its form is as the server wants it once it has answered."""

    generation: Generation
    client: Client
    listed: tuple[Model, ...]
    form: Form
    salt: str
    scale: Scale = field(default_factory=Scale)
    notes: list[str] = field(default_factory=list)
    served: str | None = None

    def of_words(self, seed: int) -> Wording:
        """Return random prompts of about the length that is asked for."""
        target = self.generation.input_tokens
        few = self._input_tokens(wording.of_words(FEW_WORDS, seed, self.salt), -1)
        if few is None:
            source = wording.of_words(target, seed, self.salt)
            self._warm(source)
            return source
        lowest, highest = MANY_WORDS
        count = min(max(lowest, target // 2), highest)
        many = self._input_tokens(wording.of_words(count, seed, self.salt), -2) or few
        line = wording.Line.through((FEW_WORDS, few), (count, many))
        source = wording.of_words(line.words(target), seed, self.salt)
        has = self._warm(source) or target
        if abs(has - target) > NEAR_ENOUGH * target:
            better = max(1, line.words(target) + round((target - has) / line.per_word))
            source = wording.of_words(better, seed, self.salt)
            has = self._warm(source) or target
        if abs(has - target) > NOTED_FROM * target:
            self.notes.append(f"prompts have about {has} tokens, not {target}: the chat template is among them")
        self._expect(has)
        return source

    def of_file(self, seed: int) -> Wording:
        """Return the user's prompts; those that are too long are cut, where that is allowed."""
        generation = self.generation
        texts = prompts.read(generation.prompts, generation.text_column_name, generation.num_samples)
        around = self._input_tokens(wording.of_texts([""], seed, self.salt), -1)
        longest = max(texts, key=len)
        has = self._input_tokens(wording.of_texts([longest], seed, self.salt), -2)
        if around is not None and has is not None and has - around > self.generation.input_tokens:
            texts = self._cut(texts, (has - around) / max(1, len(longest)))
        source = wording.of_texts(texts, seed, self.salt)
        mean = self._warm(source)
        if mean is not None:
            self._expect(mean)
        return source

    def told(self) -> tuple[str, ...]:
        """Return what its user should know."""
        endpoint = self.client.endpoint
        open_key = [f"the key in {endpoint.key_variable} travels in the open"] if endpoint.in_the_open else []
        return (self._who(), BEGINNINGS, *dict.fromkeys(self.notes), *open_key)

    def _who(self) -> str:
        owner = next((model.owner for model in self.listed if model.name == self.generation.model), "")
        try:
            version = self.client.version()
        except AssayError:
            version = ""
        by = " ".join(word for word in (owner, version) if word)
        who = f"the server at {self.client.endpoint.url} serves {self.served or self.form.model}"
        return f"{who} ({by})" if by else who

    def _cut(self, texts: tuple[str, ...], per_character: float) -> tuple[str, ...]:
        limit = self.generation.input_tokens
        lengths = [max(1, round(len(text) * per_character)) for text in texts]
        if not self.generation.truncation:
            raise BadInput(
                f"A prompt of {self.generation.prompts} has about {max(lengths)} tokens, more than the {limit} of "
                "scenario.input_tokens; allow more, or cut prompts with scenario.truncation."
            )
        long = sum(has > limit for has in lengths)
        self.notes.append(f"{long} of {len(texts)} prompts are cut to about {limit} tokens")
        pairs = zip(texts, lengths, strict=True)
        return tuple(wording.cut(text, limit, has) if has > limit else text for text, has in pairs)

    def _input_tokens(self, words: Wording, number: int) -> int | None:
        """Ask for one token, and return how many the prompt had; null where the server does not tell."""
        answer = self._ask(words.prompt(number), 1)
        return answer.usage.input if answer.usage is not None else None

    def _warm(self, words: Wording) -> int | None:
        """Ask as it will be asked under load, for few tokens; return how many the prompt had."""
        answer = self._ask(words.prompt(-3), min(WARM_TOKENS, self.generation.output_tokens))
        self.scale.learn(answer.chunks, answer.usage)
        return answer.usage.input if answer.usage is not None else None

    def _expect(self, tokens: int) -> None:
        """Have prompts count for so many tokens until answers have told better."""
        self.scale.prompts, self.scale.input = 1, tokens

    def _ask(self, prompt: str, tokens: int) -> Answer:
        """Ask, and where some fields are refused ask without them; the server's last word is an error."""
        while True:
            reply = self.client.ask(self.form, prompt, tokens)
            if reply.answer is not None:
                self._is_the_model(reply.answer)
                return reply.answer
            other = self.form.instead(reply.status, reply.said)
            if other is None:
                raise self._refused(reply.status, reply.said)
            self.form, note = other
            self.notes.append(f"the server was asked again: {note}")

    def _is_the_model(self, answer: Answer) -> None:
        """Make sure that an unlisted model is really the one that answers: some servers answer to any name."""
        name = self.generation.model
        self.served = answer.model or self.served
        names = [model.name for model in self.listed]
        if names and name not in names and not (answer.model or "").startswith(f"{name}@"):
            raise self._no_model()

    def _refused(self, status: int, said: str) -> AssayError:
        words = faults.message(said)
        names = [model.name for model in self.listed]
        if (status == 404 and "model" in words.lower()) or (names and self.generation.model not in names):
            return self._no_model()
        if status == 404:
            return self.client.cannot(
                "has neither /chat/completions nor /completions (404); does it speak OpenAI's protocol, and is the "
                "address right?"
            )
        return self.client.cannot(faults.of_status(status, said, self.client.endpoint))

    def _no_model(self) -> MachineCannot:
        name, names = self.generation.model, [model.name for model in self.listed]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        has = f"; it has {', '.join(names[:MOST_NAMES])}{more}" if names else ""
        near = nearest(name, names)
        return MachineCannot(f"The server at {self.client.endpoint.url} does not have the model {name!r}{has}.{near}")
