"""A server is met before it is put under load: who it is, how it wants to be asked, what is wrong with it."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.errors import AssayError, BadInput, MachineCannot
from assay.workloads.generation.server.probe import probe_server
from assay.workloads.generation.workloads import GENERATE_OPENAI
from tests.workloads.openai_server import AROUND, FakeServer, Talk, lists

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from assay.workloads.generation.server.probe import ServerProbe

KEY = "sk-a-very-secret-key"


def met(server: FakeServer, **changes: Any) -> ServerProbe:
    return probe_server(server.generation(**changes), seed=1, salt="x")


def refuses(status: int, said: object, *names: str) -> Callable[[Talk], None]:
    """Answer, but refuse requests with fields of these names."""

    def answer(talk: Talk) -> None:
        if any(name in talk.body for name in names):
            talk.refuse(status, said)
        else:
            talk.whole()

    return answer


@pytest.mark.parametrize("given", ["{}/v1", "{}/v1/", "{}", "{}/", "{}/v1/chat/completions"])
def test_an_address_may_be_given_with_or_without_its_version(server: FakeServer, given: str) -> None:
    found = met(server, endpoint=given.format(server.url.removesuffix("/v1")))
    assert found.endpoint.url == server.url


@pytest.mark.parametrize("given", ["", "http://", "ftp://127.0.0.1", "http://a b", "http://h:99999", "http://h/v1?x=1"])
def test_what_is_no_address_is_refused_before_anything_is_asked(given: str) -> None:
    params = {**GENERATE_OPENAI.defaults(), "endpoint": given}
    with pytest.raises(BadInput, match=r"backend\.endpoint: .* is no address of a server"):
        GENERATE_OPENAI.check_params(params, "cpu")  # type: ignore[attr-defined]


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    params = {**GENERATE_OPENAI.defaults(), "endpoint": f"http://me:{KEY}@127.0.0.1/v1"}
    with pytest.raises(BadInput, match="has a name or a password in it") as caught:
        GENERATE_OPENAI.check_params(params, "cpu")  # type: ignore[attr-defined]
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("phase", ["prefill", "decode", "whole"])
def test_a_server_is_not_taken_apart(phase: str) -> None:
    with pytest.raises(BadInput, match=f"no phase '{phase}': a server is not taken apart"):
        GENERATE_OPENAI.prepare({**GENERATE_OPENAI.defaults(), "phase": phase}, None, device="cpu:0", seed=0)


def test_the_key_goes_into_a_header_and_nowhere_else(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", KEY)
    found = met(server, api_key_env="A_KEY")
    assert {talk.headers["authorization"] for talk in server.requests} == {f"Bearer {KEY}"}
    assert KEY not in repr(found)
    server.answer = lambda talk: talk.refuse(401, {"error": {"message": f"Incorrect API key: {KEY}"}})
    with pytest.raises(MachineCannot, match=r"does not let us in \(401: Incorrect API key: …\); is the key in A_KEY"):
        met(server, api_key_env="A_KEY")
    assert KEY not in json.dumps([talk.body for talk in server.requests])


@pytest.mark.parametrize(
    ("value", "words"), [("", "A_KEY, which should hold its key, is not set"), ("ä", "no key has")]
)
def test_a_key_that_cannot_be_sent_is_said(monkeypatch: pytest.MonkeyPatch, value: str, words: str) -> None:
    monkeypatch.setenv("A_KEY", value)
    with pytest.raises(AssayError, match=words):
        GENERATE_OPENAI.prepare({**GENERATE_OPENAI.defaults(), "api_key_env": "A_KEY"}, None, device="cpu:0", seed=0)


@pytest.mark.parametrize(
    ("status", "said", "left"),
    [
        (422, {"detail": "Unexpected fields in the request: {'ignore_eos', 'min_tokens'}"}, set()),
        (400, {"error": {"message": "Unrecognized request argument supplied: ignore_eos"}}, {"min_tokens"}),
        (422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "min_tokens"]}]}, {"ignore_eos"}),
    ],
)
def test_fields_that_a_server_refuses_are_left_out_and_that_is_noted(
    server: FakeServer, status: int, said: object, left: set[str]
) -> None:
    server.answer = refuses(status, said, *({"ignore_eos", "min_tokens"} - left))
    found = met(server)
    assert set(found.request_format.whole) == left == {"ignore_eos", "min_tokens"} & set(server.requests[-1].body)
    assert any("so that answers may end before their length" in note.message for note in found.notes)


def test_a_server_that_takes_the_newer_name_of_the_length_gets_it(server: FakeServer) -> None:
    said = {"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}}
    server.answer = refuses(400, said, "max_tokens")
    assert met(server).request_format.length == "max_completion_tokens"


def test_a_server_without_chat_is_asked_to_complete(server: FakeServer) -> None:
    server.answer = refuses(404, {"detail": "Not Found"}, "messages")
    found = met(server)
    assert (found.request_format.path, server.requests[-1].path) == ("/completions", "/v1/completions")
    assert any("without a chat template" in note.message for note in found.notes)


def test_a_server_that_wants_no_stream_options_may_count_all_the_same(server: FakeServer) -> None:
    server.answer = refuses(400, {"error": {"message": "unknown field stream_options"}}, "stream_options")
    found = met(server)
    assert not found.request_format.usage
    assert (found.scale.output, found.scale.input_tokens) == (0, None)


@pytest.mark.parametrize("refuses_it", [True, False])
def test_a_model_that_a_server_does_not_have_is_answered_with_those_it_has(
    server: FakeServer, refuses_it: bool
) -> None:
    server.models = lists("tiny-chat", "large")
    if refuses_it:
        server.answer = lambda talk: talk.refuse(404, {"error": {"message": "The model `tiny` does not exist."}})
    words = r"does not have the model 'tiny'; it has tiny-chat and large\. Did you mean tiny-chat\?"
    with pytest.raises(MachineCannot, match=words):
        met(server)


def test_a_model_that_is_loaded_when_it_is_asked_for_need_not_be_listed(server: FakeServer) -> None:
    server.models = lists("others")
    server.served = "{}@main".format
    assert any("serves tiny@main" in note.message for note in met(server).notes)


@pytest.mark.parametrize("models", [None, lambda talk: talk.refuse(500, "Internal Server Error", "text/plain")])
def test_a_server_that_lists_nothing_is_asked_all_the_same(
    server: FakeServer, models: Callable[[Talk], None] | None
) -> None:
    server.models = models
    assert met(server).endpoint.url == server.url


def test_lengths_beyond_the_context_are_refused_before_anything_is_asked(server: FakeServer) -> None:
    server.models = lists("tiny", max_model_len=100)
    with pytest.raises(BadInput, match="90 tokens in and 20 out are more than the 100 that the server takes"):
        met(server, input_tokens=90, output_tokens=20)
    assert not server.requests


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda talk: talk.refuse(500, "it broke\nTraceback", "text/plain"), r"is in trouble \(500: it broke\)"),
        (lambda talk: talk.refuse(400, {"error": "too long"}), r"refuses the request \(400: too long\)"),
        (lambda talk: talk.refuse(404, {"detail": "Not Found"}), "has neither /chat/completions nor /completions"),
        (lambda talk: talk.refuse(307, "", "text/plain"), r"points elsewhere \(307\)"),
        (lambda talk: talk.refuse(403, {"message": "no"}), r"\(403: no\); does it want a key\? backend\.api_key_env"),
        (lambda talk: talk.refuse(200, "<html>", "text/html"), "does not speak OpenAI's protocol"),
        (lambda talk: talk.refuse(200, {"choices": []}), "does not stream its answers"),
        (lambda talk: talk.refuse(200, "hello", "text/plain"), "ended an answer before its first token"),
        (lambda talk: talk.drop(), "closed the connection in the middle of an answer"),
        (lambda talk: talk.hold(threading.Event()), "sent nothing of an answer for 0.3 s"),
    ],
)
def test_what_is_wrong_with_a_server_is_one_sentence(
    server: FakeServer, answer: Callable[[Talk], None], words: str
) -> None:
    server.answer = answer
    with pytest.raises(MachineCannot, match=rf"^The server at {server.url} .*{words}.*[.?]$"):
        met(server, request_timeout_s=0.3)


def test_a_web_page_is_no_server_of_models(server: FakeServer) -> None:
    server.models = lambda talk: talk.refuse(200, "<!DOCTYPE html><html>", "text/html")
    with pytest.raises(MachineCannot, match="does not speak OpenAI's protocol; is the address right"):
        met(server)


def test_a_port_where_nobody_listens_and_one_without_tls_are_told_apart(server: FakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    with pytest.raises(MachineCannot, match=r"nobody listens on that port \(connection refused\); is it started"):
        met(server, endpoint=f"127.0.0.1:{nobody}")
    with pytest.raises(MachineCannot, match="does not speak TLS on that port; is its address http://"):
        met(server, endpoint=server.url.replace("http:", "https:"))


def test_prompts_of_a_file_are_sent_in_turn_behind_beginnings_of_their_own(server: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("what is a joule\nhow long is a day\n")
    found = met(server, prompts=str(file))
    assert [found.prompt_source.prompt(number).split(" ", 8)[8] for number in range(3)] == [
        "what is a joule",
        "how long is a day",
        "what is a joule",
    ]
    assert found.scale.input_tokens == AROUND + 8 + 5


def test_prompts_that_are_too_long_are_refused_or_cut(server: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [{"ask": "short"}, {"ask": "long " * 200}]
    file.write_text("\n".join(map(json.dumps, rows)))
    told = {"prompts": str(file), "text_column_name": "ask", "input_tokens": 50}
    with pytest.raises(BadInput, match=r"has about 200 tokens, more than the 50 of scenario\.input_tokens"):
        met(server, **told)
    found = met(server, **told, truncation=True)
    assert [len(text.split()) for text in found.prompt_source.texts] == [1, 50]
    assert any("1 of 2 prompts are cut to about 50 tokens" in note.message for note in found.notes)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stream": False}, "answers are streamed"),
        ({"stream_options": {}}, "answers are streamed"),
        ({"n": 2}, "a request is for one answer"),
        ({"max_tokens": 5}, r"generate_kwargs\.max_tokens is 5, but scenario\.output_tokens is 4"),
        ({"max_new_tokens": 9}, r"generate_kwargs\.max_new_tokens is 9"),
        ({"messages": []}, r"it is scenario\.prompts"),
        ({"echo": True}, "counted as output"),
        ([1], "generate_kwargs is a map of settings"),
    ],
)
def test_settings_that_contradict_the_scenario_are_refused(server: FakeServer, settings: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        met(server, generate_kwargs=json.dumps(settings))
    assert not server.requests


def test_other_settings_are_passed_on_as_they_are(server: FakeServer) -> None:
    given = {"temperature": 0.5, "n": 1, "max_new_tokens": 4, "logit_bias": {"1": 2}, "min_tokens": 2}
    met(server, generate_kwargs=json.dumps(given))
    body = server.requests[-1].body
    assert (body["temperature"], body["logit_bias"], body["min_tokens"]) == (0.5, {"1": 2}, 2)
    assert not {"n", "max_new_tokens"} & set(body)
    met(server, generate_kwargs='{"ignore_eos": false}')
    assert server.requests[-1].body["ignore_eos"] is False
    assert "min_tokens" not in server.requests[-1].body
