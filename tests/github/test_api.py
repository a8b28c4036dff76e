"""GitHub's answers and silences told apart: asked again, waited for, looked for, or said in words."""

from __future__ import annotations

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.github import api, comment
from assay.github.api import NoResponse, check_api_url, get_field
from assay.github.comment import MARKER
from tests.github.serving import api_of
from tests.github.standin import Answer, Fault, GitHub

CUT = Answer(None)
TROUBLE = Answer(502, {"message": "Server Error"})


def pull_request(**changes: object) -> GitHub:
    github = GitHub(**changes)  # type: ignore[arg-type]
    github.commit("main", {"configs/base.yaml": "a: 1\n"})
    github.add_pull("feature", "main")
    return github


@pytest.mark.parametrize("fault", [CUT, TROUBLE])
def test_reading_is_asked_again_after_a_passing_fault(fault: Answer) -> None:
    github, pauses = pull_request(), list[float]()
    github.faults.extend([Fault(fault), Fault(fault)])
    assert api_of(github, pauses=pauses).get("/pulls/1", "look")["number"] == 1
    assert pauses == [2.0, 4.0]


def test_a_fault_that_does_not_pass_is_said() -> None:
    github = pull_request()
    github.faults.extend([Fault(TROUBLE)] * 4)
    with pytest.raises(NoResponse, match=r"in trouble \(502\) and could not look at it"):
        api_of(github).get("/pulls/1", "look at it")


@pytest.mark.parametrize("fault", [CUT, TROUBLE])
@pytest.mark.parametrize("after", [True, False])
def test_a_comment_whose_answer_never_came_is_written_once(fault: Answer, after: bool) -> None:
    github = pull_request()
    github.faults.append(Fault(fault, after=after, method="POST"))
    comment.write_comment(api_of(github), 1, f"{MARKER}\nhello")
    assert [each["body"] for each in github.comments] == [f"{MARKER}\nhello"]


@pytest.mark.parametrize(
    ("answer", "waits"),
    [
        (Answer(429, {"message": "slow down"}, {"retry-after": "7"}), 7.0),
        (Answer(403, {"message": "limit"}, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1030"}), 30.0),
        (Answer(403, {"message": "You have exceeded a secondary rate limit"}), 60.0),
    ],
)
def test_a_limit_on_requests_is_waited_for(answer: Answer, waits: float) -> None:
    github, pauses = pull_request(), list[float]()
    github.faults.append(Fault(answer))
    api_of(github, pauses=pauses, now=1000.0).get("/pulls/1", "look")
    assert pauses == [waits]


def test_a_limit_that_lasts_is_said_and_not_waited_for() -> None:
    github, pauses = pull_request(), list[float]()
    github.faults.append(Fault(Answer(429, {"message": "slow down"}, {"retry-after": "3600"})))
    with pytest.raises(MachineCannot, match="allows no more requests for 3600 s, so that it could not look"):
        api_of(github, pauses=pauses).get("/pulls/1", "look")
    assert pauses == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(404, {"message": "Not Found"}), "finds nothing there to look in acme/kernels: it does not exist, or"),
        (Answer(301, {"message": "Moved"}), "acme/kernels was moved or renamed"),
        (Answer(403, {"message": "Forbidden by\x1b[31m policy"}), r"may not look in acme/kernels.*Forbidden by\[31m"),
        (
            Answer(422, {"message": "Invalid", "errors": [{"message": "bad head"}]}),
            r"\(422\). GitHub says: Invalid; bad",
        ),
        (Answer(418, ["odd"]), r"refused to look in acme/kernels \(418\)"),
        (Answer(200, {}), "lacks number"),
    ],
)
def test_refusals_are_said_in_words(answer: Answer, said: str) -> None:
    github = pull_request()
    github.faults.append(Fault(answer))
    with pytest.raises(MachineCannot, match=said):
        get_field(api_of(github).get("/pulls/1", "look"), "number")


def test_a_wrong_token_is_said_and_never_shown() -> None:
    token = "ghp_somebodys0secret"  # noqa: S105 - planted
    with pytest.raises(
        MachineCannot, match="does not accept GITHUB_TOKEN: it is wrong, has expired or was revoked"
    ) as no:
        api_of(pull_request(), token=token).get("/pulls/1", "look")
    assert token not in str(no.value)
    github = pull_request()
    github.faults.append(Fault(Answer(403, {"message": f"{token} may not"})))
    with pytest.raises(MachineCannot) as echoed:
        api_of(github, token=token).get("/pulls/1", "look")
    assert token not in str(echoed.value)
    assert token not in repr(api_of(github, token=token))


@pytest.mark.parametrize(
    ("environment", "error", "said"),
    [
        ({}, MachineCannot, "GITHUB_TOKEN is not set"),
        ({"GITHUB_TOKEN": "se\ncret"}, BadInput, "characters that no token has"),
        ({"GITHUB_TOKEN": "x", "GITHUB_REPOSITORY": "acme/../x"}, BadInput, "written OWNER/NAME"),
        ({"GITHUB_TOKEN": "x", "GITHUB_REPOSITORY": "a/b", "GITHUB_API_URL": "http://evil.example"}, BadInput, "https"),
    ],
)
def test_what_the_environment_lacks_is_said(environment: dict[str, str], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as raised:
        api.api_from_environment(environment)
    assert "cret" not in str(raised.value)


def test_a_token_goes_over_https_or_to_this_machine_only() -> None:
    assert check_api_url("https://ghe.example/api/v3/") == "https://ghe.example/api/v3"
    assert check_api_url("http://127.0.0.1:8000") == "http://127.0.0.1:8000"
    for wrong in ("http://127.0.0.1.evil.example", "https://user@host", "ftp://x", "http://localhost.evil"):
        with pytest.raises(BadInput):
            check_api_url(wrong)


def test_somebody_elses_comment_with_our_marker_is_left_alone() -> None:
    github = pull_request()
    github.remark(f"{MARKER} mine now", "stranger", "User")
    comment.write_comment(api_of(github), 1, f"{MARKER}\nhello")
    comment.write_comment(api_of(github), 1, f"{MARKER}\nagain")
    assert [each["body"] for each in github.comments] == [f"{MARKER} mine now", f"{MARKER}\nagain"]


def test_our_comment_is_found_behind_a_hundred_others() -> None:
    github = pull_request()
    for number in range(150):
        github.remark(f"talk {number}", "stranger", "User")
    for text in ("one", "two"):
        comment.write_comment(api_of(github), 1, f"{MARKER}\n{text}")
    assert [each["body"] for each in github.comments[150:]] == [f"{MARKER}\ntwo"]
