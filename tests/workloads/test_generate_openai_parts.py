"""The parts that a load on a server is made of: HTTP, events, counting; on bytes and numbers alone."""

from __future__ import annotations

import json
import socket
import ssl
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.workloads.generation.server import protocol, streams
from assay.workloads.generation.server.load import too_many_failures
from assay.workloads.generation.server.protocol import RequestFormat, ServerEndpoint
from assay.workloads.generation.server.streams import (
    DONE,
    AnswerChunk,
    EventParser,
    LoadArrivals,
    StreamedAnswer,
    TokenScale,
    TokenUsage,
    parse_event,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
CUTS = st.lists(st.integers(0, 200), max_size=8)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=4), CUTS)
def test_an_answer_in_chunks_is_the_same_however_its_bytes_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    sent = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    reader = streams.HttpReader()
    assert b"".join(reader.feed(piece) for piece in pieces(sent, cuts)) == b"".join(parts)
    assert reader.done
    assert reader.keeps_open
    assert (reader.status, reader.headers["transfer-encoding"]) == (200, "chunked")


@given(st.binary(max_size=40), CUTS, st.sampled_from(["length", "close"]))
def test_an_answer_of_a_told_length_or_until_the_end_is_whole(body: bytes, cuts: list[int], how: str) -> None:
    length = b"Content-Length: %d\r\n" % len(body) if how == "length" else b""
    sent = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\n" + length + b"\r\n" + body
    reader = streams.HttpReader()
    assert b"".join(reader.feed(piece) for piece in pieces(sent, cuts)) == body
    assert reader.done == (how == "length")
    assert reader.closed()
    assert (reader.status, reader.keeps_open) == (503, how == "length")


def test_an_answer_that_breaks_off_is_not_whole() -> None:
    reader = streams.HttpReader()
    reader.feed(CHUNKED + b"5\r\nhel")
    assert not reader.closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"\x15\x03\x01",
        b"HTTP/1.1 abc\r\n\r\n",
        CHUNKED + b"xyz\r\n",
        CHUNKED + b"1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
    ],
)
def test_what_is_no_http_is_said(sent: bytes) -> None:
    with pytest.raises(streams.NotHttpError):
        streams.HttpReader().feed(sent)


def test_a_request_is_whole_and_has_its_length() -> None:
    at = ServerEndpoint("http://127.0.0.1:8000/v1", "K", "secret")
    sent = streams.make_request(streams.request_head(at, "/chat/completions"), b'{"a": 1}')
    head, _, body = sent.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    assert {"Host: 127.0.0.1:8000", "Authorization: Bearer secret", "Content-Length: 8"} <= set(lines)
    assert body == b'{"a": 1}'


@given(st.lists(st.sampled_from(["tok", "a b", "ß", "{}"]), max_size=6), CUTS, st.sampled_from(["\n", "\r\n"]))
def test_events_are_the_same_however_their_bytes_are_cut(texts: list[str], cuts: list[int], end: str) -> None:
    sent = "".join(f": ping{end}{end}event: x{end}data: {text}{end}{end}" for text in texts).encode()
    events = EventParser()
    found = [data.decode() for piece in pieces(sent, cuts) for data in events.feed(piece)]
    assert found == texts
    assert events.end() == []


@pytest.mark.parametrize(
    ("said", "chunk"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, AnswerChunk()),
        ({"choices": [{"delta": {"content": "x"}}], "model": "m"}, AnswerChunk(text=True, model="m")),
        ({"choices": [{"delta": {"content": None, "reasoning_content": "x"}}]}, AnswerChunk(text=True)),
        ({"choices": [{"delta": {"tool_calls": [{}]}}]}, AnswerChunk(text=True)),
        ({"choices": [{"text": "x", "finish_reason": "stop"}]}, AnswerChunk(text=True, finish="stop")),
        ({"choices": [{"text": ""}]}, AnswerChunk()),
        ({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}, AnswerChunk(usage=TokenUsage(3, 4))),
        ({"choices": [], "usage": None}, AnswerChunk()),
        (
            {"usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}},
            AnswerChunk(usage=TokenUsage(3, 4, 2)),
        ),
        *(
            ({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": count}}, AnswerChunk())
            for count in (-5, "many", [1], True, None)
        ),
        *(
            (
                {"choices": [], "usage": {"prompt_tokens": count, "completion_tokens": 4}},
                AnswerChunk(usage=TokenUsage(None, 4)),
            )
            for count in (-3, 0, "many")
        ),
        ({"error": {"message": "dead"}}, AnswerChunk(error="dead")),
        ({"error": "dead"}, AnswerChunk(error="dead")),
        ({"object": "error", "message": "dead"}, AnswerChunk(error="dead")),
        ([1], AnswerChunk(error="what is no answer: [1]")),
    ],
)
def test_a_chunk_says_whether_it_brought_text_and_what_else(said: object, chunk: AnswerChunk) -> None:
    assert parse_event(json.dumps(said).encode()) == chunk


def test_the_end_of_a_stream_is_no_chunk() -> None:
    assert EventParser().feed(b"data: [DONE]\n") == [DONE]


def test_an_answer_is_timed_from_its_request_and_set_right_by_the_servers_count() -> None:
    scale, into = TokenScale(), LoadArrivals()
    scale.learn(2, TokenUsage(10, 4))
    answer = StreamedAnswer(1_000_000, 9, scale)
    answer.count_chunk(1_500_000, AnswerChunk(), into)
    answer.count_chunk(2_000_000, AnswerChunk(text=True), into)
    assert (into.first_token_us, into.output_tokens, into.input_tokens) == ([1000.0], 2.0, 10.0)
    answer.count_chunk(5_000_000, AnswerChunk(text=True), into)
    answer.count_chunk(8_000_000, AnswerChunk(text=True), into)
    assert (into.gap_us, into.output_tokens) == ([3000.0, 3000.0], 6.0)
    answer.count_chunk(8_000_000, AnswerChunk(usage=TokenUsage(12, 9), finish="length"), into)
    answer.end(8_500_000, into)
    assert (into.output_tokens, into.input_tokens, into.requests, into.short_requests) == (9.0, 12.0, 1, 0)
    assert (into.request_us, into.tpot_us) == ([7500.0], [1000.0])
    assert scale.tokens_per_chunk == (4 + 9) / (2 + 3)


def test_a_count_of_no_token_though_text_came_is_not_believed() -> None:
    scale, into = TokenScale(), LoadArrivals()
    answer = StreamedAnswer(0, 2, scale)
    answer.count_chunk(1, AnswerChunk(usage=TokenUsage(5, 0)), into)
    assert answer.empty
    for stamp in (2, 3):
        answer.count_chunk(stamp, AnswerChunk(text=True, usage=TokenUsage(5, 0)), into)
    assert into.output_tokens == 2.0
    answer.count_chunk(4, AnswerChunk(usage=TokenUsage(5, 0), finish="length"), into)
    answer.end(5, into)
    assert (into.output_tokens, into.answer_tokens, into.uncounted_requests, into.short_requests) == (2.0, 2.0, 1, 0)
    assert (answer.usage, scale.output) == (None, 0)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=9))
def test_over_whole_answers_the_counts_are_the_servers_own(answers: list[tuple[int, int]]) -> None:
    scale, into = TokenScale(), LoadArrivals()
    for chunks, tokens in answers:
        answer = StreamedAnswer(0, tokens, scale)
        for stamp in range(chunks):
            answer.count_chunk(stamp, AnswerChunk(text=True), into)
        answer.count_chunk(chunks, AnswerChunk(usage=TokenUsage(5, tokens)), into)
        answer.end(chunks, into)
    assert into.output_tokens == pytest.approx(sum(tokens for _, tokens in answers))
    assert into.input_tokens == pytest.approx(5 * len(answers))


def test_few_failures_among_many_are_borne() -> None:
    assert not too_many_failures(1, 1, 2)
    assert too_many_failures(2, 1, 39)
    assert not too_many_failures(2, 1, 40)
    assert too_many_failures(6, 1, 100)
    assert too_many_failures(3, 3, 1000)


@given(st.integers(1, 4000), st.floats(0.5, 3.0), st.integers(0, 50))
def test_prompts_are_as_long_as_the_servers_count_of_two_others_foretells(
    tokens: int, per_word: float, around: int
) -> None:
    line = protocol.LengthFit.from_points((8, round(8 * per_word) + around), (256, round(256 * per_word) + around))
    has = round(line.words(tokens) * per_word) + around
    assert abs(has - tokens) <= max(around + per_word + 1, 0.03 * tokens + per_word + 1)


def test_a_prompt_stands_in_a_request_as_json() -> None:
    form = RequestFormat.of("a model", {"temperature": 0}, 5)
    before, after = form.body_around_prompt(5)
    prompt = 'say "hi"\nand ß'
    assert json.loads(before + json.dumps(prompt).encode() + after) == form.body(prompt, 5)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(), "nobody listens"),
        (socket.gaierror(), "not known by that name"),
        (TimeoutError(), "did not accept a connection within 10 s"),
        (ConnectionResetError(), "closed the connection in the middle"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "does not speak TLS"),
        (ssl.SSLError(1, "no cipher"), "could not agree on TLS with us"),
        (OSError("odd\nthing"), "cannot be reached: odd"),
    ],
)
def test_why_no_connection_came_about_is_said_in_words(error: OSError, words: str) -> None:
    assert words in protocol.connection_fault(error)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ('{"error": {"message": "a\\nb"}}', "a"),
        ('{"error": "a."}', "a"),
        ('{"detail": "a"}', "a"),
        ('{"detail": [{"loc": ["x"]}]}', '[{"loc": ["x"]}]'),
        ('{"message": "a"}', "a"),
        ("\n  plain\ntext", "plain"),
        ("<html>", "a web page"),
        ("", ""),
    ],
)
def test_of_what_a_server_says_the_first_line_is_told(said: str, line: str) -> None:
    assert protocol.error_message(said) == line
