"""A server under a steady load: what arrives is counted, once, at its time; what goes wrong is one sentence."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import AssayError, TrialFailed
from assay.workloads.generation.server import load, streams
from assay.workloads.generation.workloads import GENERATE_OPENAI
from tests.needing import need
from tests.workloads.openai_server import AROUND, FakeServer, Talk, under_load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from assay.workloads.base import PreparedWorkload
    from tests.conftest import Eventually


@pytest.fixture
def begin(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PreparedWorkload]]:
    """Put the server under its load, in short slices; it ends with the test."""
    monkeypatch.setattr(load, "SLICE_S", 0.02)
    monkeypatch.setattr(streams, "MIN_SILENCE_S", 10.0)
    with under_load(server) as prepare:
        yield prepare


class Sums:
    """What calls have returned so far, added up."""

    def __init__(self, prepared: PreparedWorkload) -> None:
        self._prepared = prepared
        self.numbers: dict[str, float] = {}
        self.lists: dict[str, list[float]] = {}

    def call(self) -> Sums:
        told: Any = self._prepared.call()
        for name, value in told.items():
            if isinstance(value, list):
                self.lists.setdefault(name, []).extend(value)
            else:
                self.numbers[name] = self.numbers.get(name, 0.0) + value
        return self

    def until(self, requests: int) -> Sums:
        while self.numbers.get("requests", 0) < requests:
            self.call()
        return self


class Turnstile:
    """Lets the requests of a load through: the first on each connection at once, then as many as a test says."""

    def __init__(self, answer: Callable[[Talk], None] = Talk.whole) -> None:
        self._answer = answer
        self._free = threading.Semaphore(0)

    def __call__(self, talk: Talk) -> None:
        while talk.before and not self._free.acquire(timeout=0.01):
            talk.hold(None)
        self._answer(talk)

    def let(self, requests: int) -> None:
        self._free.release(requests)


def test_the_sum_over_slices_is_what_the_server_sent(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    turnstile = server.answer = Turnstile()
    found = Sums(begin(concurrency=3, output_tokens=6)).call()
    assert found.numbers["requests"] == 0
    sent_before = server.tokens
    turnstile.let(7)
    found.until(7).call()
    assert found.numbers["requests"] == 7
    assert found.numbers["output_tokens"] == server.tokens - sent_before == 7 * 6
    assert found.numbers["input_tokens"] == sum(talk.prompt_tokens for talk in server.requests[-10:-3])
    assert found.numbers["answer_tokens"] == 7 * 6
    assert {found.numbers[name] for name in ("errors", "short_requests", "long_requests", "uncounted_requests")} == {0}
    assert {name: len(several) for name, several in found.lists.items()} == {
        "first_token_us": 7,
        "gap_us": 7 * 5,
        "request_us": 7,
        "tpot_us": 7,
        "silence_us": 0,
    }
    assert all(several > 0 for several in found.lists["request_us"])


def test_streams_begin_with_answers_of_different_lengths_and_then_ask_for_all_tokens(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    Sums(begin(concurrency=4, output_tokens=8)).until(4)
    load = [talk for talk in server.requests if talk.of_load]
    assert sorted(talk.asked for talk in load if not talk.before) == [2, 4, 6, 8]
    assert {talk.asked for talk in load if talk.before} == {8}


def test_the_first_token_is_the_first_text_and_neither_headers_nor_a_role(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    gate, waiting = threading.Event(), threading.Event()

    def late(talk: Talk) -> None:
        if not talk.before:
            talk.whole()
            return
        talk.role()
        waiting.set()
        talk.hold(gate)
        talk.whole()

    server.answer = late
    found = Sums(begin())
    assert waiting.wait(20)
    found.call().call()
    assert "first_token_us" not in found.lists or not found.lists["first_token_us"]
    assert found.numbers["input_tokens"] == 0
    gate.set()
    assert min(found.until(1).lists["first_token_us"][:1]) > 20e3


def test_every_prompt_is_another_and_about_as_long_as_asked(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    server.per_word = 1.4
    found = Sums(begin(input_tokens=300)).until(3)
    prompts = [talk.prompt for talk in server.requests]
    assert len({" ".join(prompt.split()[:8]) for prompt in prompts}) == len(prompts)
    assert server.requests[-1].prompt_tokens == pytest.approx(300, rel=0.02)
    assert found.numbers["input_tokens"] / len(found.lists["first_token_us"]) == pytest.approx(300, rel=0.02)


def test_another_process_does_not_send_what_the_server_has_kept_of_one_before(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    begin().close()
    half = len(server.requests)
    begin().close()
    assert not {t.prompt for t in server.requests[:half]} & {t.prompt for t in server.requests[half:]}


@pytest.mark.parametrize("counts_first", [False, True])
def test_where_a_server_does_not_count_chunks_are_counted_whatever_it_did_before_the_load(
    server: FakeServer, begin: Callable[..., PreparedWorkload], counts_first: bool
) -> None:
    def no_usage(talk: Talk) -> None:
        if talk.of_load or not counts_first:
            del talk.body["stream_options"]
        talk.whole()

    server.answer = no_usage
    found = Sums(begin()).until(2)
    assert found.numbers["output_tokens"] >= 2 * 4
    assert ("input_tokens" in found.numbers) is counts_first
    assert found.numbers["uncounted_requests"] == found.numbers["requests"]


@pytest.mark.parametrize("count", [-5, 0, "many"])
def test_counts_that_cannot_be_are_as_if_there_were_none(
    server: FakeServer, begin: Callable[..., PreparedWorkload], count: object
) -> None:
    def miscounts(talk: Talk) -> None:
        for _ in range(talk.asked):
            talk.token()
        talk.finish()
        talk.event(choices=[], usage={"prompt_tokens": -9, "completion_tokens": count})
        talk.done()

    server.answer = miscounts
    found = Sums(begin()).until(2)
    assert found.numbers["answer_tokens"] == 4 * found.numbers["requests"]
    assert found.numbers["uncounted_requests"] == found.numbers["requests"]
    assert "input_tokens" not in found.numbers


def test_a_window_in_which_no_token_came_does_not_pass_for_one(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    turnstile = server.answer = Turnstile()
    prepared = begin()
    agree = prepared.agree_to_stop
    assert agree is not None
    prepared.call()
    assert not agree(False)
    with pytest.raises(TrialFailed, match=r"no token came within the window of .* make scenario.window_s longer"):
        agree(True)
    turnstile.let(1)
    Sums(prepared).until(1)
    assert not agree(False)
    assert agree(True)


def test_chunks_of_several_tokens_count_for_as_many(server: FakeServer, begin: Callable[..., PreparedWorkload]) -> None:
    def in_threes(talk: Talk) -> None:
        for start in range(0, talk.asked, 3):
            talk.token(tokens=min(3, talk.asked - start))
        talk.finish()
        talk.event(choices=[], **talk.usage)
        talk.done()

    turnstile = server.answer = Turnstile(in_threes)
    prepared = begin(output_tokens=10)
    before = server.tokens
    turnstile.let(5)
    found = Sums(prepared).until(5)
    assert found.numbers["output_tokens"] == pytest.approx(server.tokens - before)
    assert found.numbers["output_tokens"] == pytest.approx(50)
    assert len(found.lists["gap_us"]) == 5 * 3
    assert found.numbers["requests"] == 5
    assert prepared.measured is not None
    assert prepared.measured()["tokens_per_chunk"] == pytest.approx(10 / 4), "of the load, and not of the meeting"


def test_counts_that_come_with_every_chunk_are_taken_as_they_are(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    def counts_on(talk: Talk) -> None:
        while talk.tokens_sent < talk.asked:
            told = {"prompt_tokens": 5, "completion_tokens": talk.tokens_sent + 1}
            talk.token(usage=told)
        talk.finish()
        talk.done()

    server.answer = counts_on
    found = Sums(begin()).until(2)
    assert found.numbers["output_tokens"] >= 2 * 4


@pytest.mark.parametrize(("tokens", "name"), [(2, "short_requests"), (20, "long_requests")])
def test_answers_of_another_length_are_counted(
    server: FakeServer, begin: Callable[..., PreparedWorkload], tokens: int, name: str
) -> None:
    server.answer = lambda talk: talk.whole(tokens)
    found = Sums(begin(output_tokens=16)).until(3)
    assert found.numbers[name] == found.numbers["requests"]
    assert found.numbers["answer_tokens"] == tokens * found.numbers["requests"]


def test_reasoning_is_told_to_the_server_and_its_tokens_count(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    def thinks(talk: Talk) -> None:
        for _ in range(talk.asked):
            talk.tokens_sent += 1
            talk.event(choices=[{"delta": {"reasoning_content": "hm"}, "finish_reason": None}])
        talk.finish()
        talk.event(choices=[], **talk.usage)
        talk.done()

    server.answer = thinks
    found = Sums(begin(reasoning='{"enable_thinking": true, "reasoning_effort": "low"}')).until(2)
    assert found.numbers["output_tokens"] >= 2 * 4
    body = server.requests[-1].body
    assert (body["chat_template_kwargs"], body["reasoning_effort"]) == ({"enable_thinking": True}, "low")


def test_a_server_that_closes_after_each_answer_is_asked_over_new_connections(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    def closes(talk: Talk) -> None:
        talk.whole()
        talk.drop()

    server.answer = closes
    found = Sums(begin()).until(4)
    assert found.numbers["errors"] == 0
    assert server.connections > 4


def test_closing_ends_streams_in_the_middle_of_their_answers(
    server: FakeServer, begin: Callable[..., PreparedWorkload], eventually: Eventually
) -> None:
    gate = threading.Event()

    def stuck(talk: Talk) -> None:
        if not talk.before:
            talk.whole()
            return
        talk.token()
        talk.hold(gate)

    server.answer = stuck
    prepared = begin(concurrency=3)
    prepared.call()
    prepared.close()
    assert "assay-load" not in {thread.name for thread in threading.enumerate()}
    gate.set()
    eventually(lambda: server.open_connections == 0)


def test_an_idle_server_is_met_first_and_then_left_alone(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    prepared = begin(phase="idle")
    before = len(server.requests)
    assert before
    assert prepared.call() is None
    assert len(server.requests) == before
    assert any("serves tiny" in note.message for note in prepared.notes)


def test_the_load_speaks_tls_to_a_server_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need([] if shutil.which("openssl") else ["openssl"], "OpenSSL")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run([*made, "-keyout", key, "-out", cert, *subject], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    fake = FakeServer(context)
    try:
        params = fake.generation(concurrency=2).as_params()
        with pytest.raises(AssayError, match="has a certificate that is not trusted here"):
            GENERATE_OPENAI.prepare(params, None, device="cpu:0", seed=1)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        prepared = GENERATE_OPENAI.prepare(params, None, device="cpu:0", seed=1)
        assert Sums(prepared).until(2).numbers["output_tokens"] >= 2 * 4
        prepared.close()
    finally:
        fake.close()


def stalls(talk: Talk) -> None:
    talk.token()
    talk.hold(threading.Event())


def only_lives(talk: Talk) -> None:
    talk.token()
    while True:
        talk.hold(None)
        talk.line(": ping")
        talk.pause(0.02)


def drops(talk: Talk) -> None:
    talk.token()
    talk.drop()


def errs(talk: Talk) -> None:
    talk.token()
    talk.line('data: {"error": {"message": "the engine is dead", "code": 500}}')


def garbles(talk: Talk) -> None:
    talk.line('data: {"error": "a "quote" too many"}')


def ends_nowhere(talk: Talk) -> None:
    talk.token()
    talk.raw(b"0\r\n\r\n")


def says_nothing(talk: Talk) -> None:
    talk.role()
    talk.done()


def is_no_http(talk: Talk) -> None:
    talk.raw(b"SSH-2.0-OpenSSH\r\n\r\n")


def is_busy(talk: Talk) -> None:
    talk.refuse(503, {"error": {"message": "too many requests\nand more", "type": "x"}})


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (stalls, "sent nothing of an answer for 1 s"),
        (only_lives, "sent nothing of an answer for 1 s"),
        (drops, "closed the connection in the middle of an answer"),
        (errs, "broke an answer off with 'the engine is dead'"),
        (garbles, "broke an answer off with 'what is no JSON: "),
        (ends_nowhere, "ended an answer without saying that it was whole"),
        (says_nothing, "answered without a token"),
        (is_no_http, "does not speak HTTP/1.1"),
        (is_busy, r"is in trouble \(503: too many requests\)"),
    ],
)
def test_a_server_that_fails_midway_ends_the_stage_in_one_sentence(
    server: FakeServer, begin: Callable[..., PreparedWorkload], fault: Callable[[Talk], None], words: str
) -> None:
    broken = threading.Event()
    server.answer = lambda talk: fault(talk) if broken.is_set() else talk.whole()
    found = Sums(begin(concurrency=2, request_timeout_s=1.0 if "sent nothing" in words else 20.0)).until(2)
    broken.set()
    with pytest.raises(TrialFailed, match=rf"^The server at {server.url} {words}.*\(after \d+ whole answers\)\.$"):
        found.until(10**9)
    assert found.numbers["requests"] >= 2


def test_one_request_that_fails_among_many_is_counted_and_too_many_are_not_borne(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    fail = threading.Event()

    def sometimes(talk: Talk) -> None:
        if fail.is_set():
            fail.clear()
            drops(talk)
        talk.whole()

    turnstile = server.answer = Turnstile(sometimes)
    found = Sums(begin())
    fail.set()
    turnstile.let(6)
    assert found.until(5).numbers["errors"] == 1
    fail.set()
    turnstile.let(1)
    with pytest.raises(TrialFailed, match=r"closed the connection .*, 2 of \d+ requests failed"):
        found.until(1000)


def test_a_chat_template_counts_among_the_tokens_of_a_prompt(
    server: FakeServer, begin: Callable[..., PreparedWorkload]
) -> None:
    prepared = begin(input_tokens=AROUND)
    assert AROUND in [note.params["requested"] for note in prepared.notes if note.code == "prompt_length"]
    assert server.requests[-1].prompt_tokens == AROUND + 1
