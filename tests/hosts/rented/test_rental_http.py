"""What comes back from a provider is told apart, asked for at the right pace, and said without a secret."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.hosts.rented.http import ProviderApi
from assay.hosts.rented.provider import NoAnswer
from tests.hosts.standins.cloud import START, VirtualClock

SECRET = "-".join(("planted", "0123456789"))


class Far:
    """Answers as it was told, and keeps when it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: httpx.Response | Exception) -> None:
        monkeypatch.setenv("FAR_KEY", SECRET)
        self.clock = VirtualClock()
        self.answers = list(answers)
        self.asked: list[tuple[float, httpx.Request]] = []
        transport = httpx.MockTransport(self._handle)
        self.account = ProviderApi(
            "Far", "https://far.example/v1", "FAR_KEY", "FAR_URL", self.clock, apart_s=1.0, transport=transport
        )

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(((self.clock.now() - START).total_seconds(), request))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (httpx.ConnectError("no route"), NoAnswer, "did not answer GET /x: no route"),
        (httpx.ReadTimeout("timed out"), NoAnswer, "did not answer"),
        (httpx.RemoteProtocolError("cut"), NoAnswer, "cut"),
        (httpx.Response(503), NoAnswer, r"in trouble \(503\)"),
        (httpx.Response(200, content=b"<html>"), NoAnswer, "no JSON"),
        (httpx.Response(302, headers={"Location": "http://evil.example"}), MachineCannot, "the key is not sent there"),
        (httpx.Response(401, json={"detail": "bad"}), MachineCannot, "does not accept FAR_KEY: bad"),
        (httpx.ConnectError(f"sent Bearer {SECRET}"), NoAnswer, "sent Bearer …"),
    ],
)
def test_errors_are_told_apart_and_never_name_the_key(
    answer: httpx.Response | Exception, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far(monkeypatch, answer)
    with pytest.raises(kind, match=words) as caught:
        far.account.ask("GET", "/x")
    assert SECRET not in str(caught.value)
    assert len(far.asked) == 1, "nothing is asked again by itself"
    assert far.asked[0][1].headers["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in repr(far.account)
    assert SECRET not in far.account.identity


@pytest.mark.parametrize("inside", ["\n", "\r\n", " ", "\t", "\x07", "ö"])
def test_a_key_with_strange_characters_goes_nowhere_and_is_not_shown(
    inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Far(monkeypatch)
    monkeypatch.setenv("FAR_KEY", f"{SECRET}{inside}{SECRET}")
    with pytest.raises(BadInput, match="FAR_KEY has strange characters") as caught:
        far.account.ask("GET", "/x")
    assert SECRET not in str(caught.value)
    assert far.asked == []


def test_the_words_of_a_request_that_is_none_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far(monkeypatch, httpx.LocalProtocolError(f"Illegal header value b'Bearer x{SECRET}'"))
    with pytest.raises(BadInput) as caught:
        far.account.ask("GET", "/x")
    assert "Illegal" not in str(caught.value)


def test_a_provider_that_asks_for_patience_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = httpx.Response(429, headers={"Retry-After": "7"})
    later = "Tue, 01 Jan 2030 00:00:09 GMT"
    dated = httpx.Response(429, headers={"Retry-After": later, "Date": "Tue, 01 Jan 2030 00:00:00 GMT"})
    far = Far(monkeypatch, busy, dated, httpx.Response(200, json={"a": {"b": 1}}))
    answer = far.account.ask("GET", "/x")
    assert (answer.part("a", "b"), answer.part("a", "b", "c")) == (1, None)
    assert [round(at) for at, _ in far.asked] == [0, 7, 16], "a date is reckoned by the provider's clock, not by ours"


def test_a_provider_that_always_asks_for_patience_is_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far(monkeypatch, *[httpx.Response(429, headers={"Retry-After": "nonsense"}) for _ in range(6)])
    with pytest.raises(NoAnswer, match="again and again"):
        far.account.ask("GET", "/x")


def test_requests_and_launches_keep_their_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far(monkeypatch, *[httpx.Response(200, json={}) for _ in range(5)])
    for kind in ("", "launch", "launch", "", ""):
        far.account.ask("GET", "/x", kind=kind, apart_s=12.0)
    assert [round(at) for at, _ in far.asked] == [0, 1, 13, 14, 15]


def test_who_has_waited_for_a_turn_is_sent_at_once_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far(monkeypatch, *[httpx.Response(200, json={}) for _ in range(3)])
    far.account.ask("GET", "/x", kind="launch", apart_s=12.0)
    far.account.turn("launch", 12.0)
    assert round((far.clock.now() - START).total_seconds()) == 12
    for _ in range(2):
        far.account.ask("GET", "/x", kind="launch", apart_s=12.0)
    assert [round(at) for at, _ in far.asked] == [0, 12, 24]


def test_a_clock_that_is_set_back_does_not_stop_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far(monkeypatch, *[httpx.Response(200, json={}) for _ in range(2)])
    far.account.ask("GET", "/x")
    far.clock.at -= timedelta(days=1)
    far.account.ask("GET", "/x")
    assert far.clock.now() < START - timedelta(hours=23)


@pytest.mark.parametrize(
    ("url", "words"), [("http://far.example", "is not https"), ("https://me:pw@far.example", "a name or a password")]
)
def test_the_key_does_not_travel_in_the_open(url: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_URL", url)
    with pytest.raises(BadInput, match=words):
        Far(monkeypatch).account.ask("GET", "/x")


def test_without_a_key_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Far(monkeypatch)
    monkeypatch.delenv("FAR_KEY")
    with pytest.raises(MachineCannot, match="FAR_KEY is not set"):
        far.account.ask("GET", "/x")
