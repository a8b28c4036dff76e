"""Who may have GPUs rented, by a comment, a label or inputs; and what the next jobs are told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli.main import main
from assay.github import request
from assay.github import request as events
from assay.github.request import BenchmarkRequest, NoRequest, WorkflowInputs, decide_request
from tests.github.serving import api_of, served
from tests.github.standin import REPOSITORY, TOKEN, GitHub, digest

if TYPE_CHECKING:
    from pathlib import Path

SHA = "0123456789" * 4
COMMENT = {"action": "created", "issue": {"number": 1, "pull_request": {}, "state": "open"}}


def comment(text: str, login: str = "writer", kind: str = "User", **changes: Any) -> dict[str, Any]:
    return {**COMMENT, "comment": {"body": text, "user": {"login": login, "type": kind}}, **changes}


def change(repository: str | None = REPOSITORY, **changes: Any) -> dict[str, Any]:
    repo = None if repository is None else {"full_name": repository}
    return {"number": 1, "state": "open", "head": {"sha": SHA, "ref": "feature", "repo": repo}, **changes}


def labelled(label: str = "needs-benchmark", sender: str = "writer", **changes: Any) -> dict[str, Any]:
    who = {"login": sender, "type": "User"}
    return {"action": "labeled", "label": {"name": label}, "sender": who, "pull_request": change(), **changes}


class World:
    """A workflow that runs for an event."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, url: str, github: GitHub) -> None:
        self.folder, self.patch, self.github = folder, monkeypatch, github
        for name, value in {
            "GITHUB_EVENT_PATH": folder / "event.json",
            "GITHUB_OUTPUT": folder / "output",
            "GITHUB_REPOSITORY": REPOSITORY,
            "GITHUB_TOKEN": TOKEN,
            "GITHUB_API_URL": url,
            "GITHUB_SHA": SHA,
            "GITHUB_REF": "refs/heads/main",
        }.items():
            monkeypatch.setenv(name, str(value))

    def request(self, name: str, content: Any, **environment: str) -> tuple[int, dict[str, str]]:
        """Run ``assay github request``; return its exit code and what the next jobs are told."""
        (self.folder / "event.json").write_text(json.dumps(content))
        (self.folder / "output").write_text("")
        self.patch.setenv("GITHUB_EVENT_NAME", name)
        for key in ("ASSAY_GPU_TYPE", "ASSAY_CREATE_PR", "ASSAY_DEFAULT_GPU"):
            self.patch.setenv(key, environment.get(key, ""))
        code = main(["github", "request"])
        lines = (self.folder / "output").read_text().splitlines()
        return code, dict(line.split("=", 1) for line in lines)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    github = GitHub()
    github.commit("main", {"configs/base.yaml": "a: 1\n"})
    github.commit("feature", {"configs/base.yaml": "a: 2\n"})
    github.add_pull("feature", "main")
    with served(github) as url:
        yield World(tmp_path, monkeypatch, url, github)


def test_a_comment_of_who_may_write_pins_the_commit_of_its_pull_request(world: World) -> None:
    code, told = world.request("issue_comment", comment("/benchmark L4,A100"))
    assert code == 0
    assert told == {
        "go": "true",
        "gpu_types": '["L4", "A100"]',
        "repository": REPOSITORY,
        "commit": world.github.refs["feature"],
        "branch": "feature",
        "pull_request": "1",
        "create_pr": "true",
    }
    assert world.request("issue_comment", comment("/benchmark"), ASSAY_DEFAULT_GPU="T4")[1]["gpu_types"] == '["T4"]'


def test_a_pull_request_of_a_fork_is_measured_but_gets_no_pull_request(world: World) -> None:
    world.github.pulls[0]["head"] = {"sha": digest("fork"), "ref": "main", "repo": {"full_name": "stranger/kernels"}}
    code, told = world.request("issue_comment", comment("/benchmark L4"))
    assert (code, told["go"], told["repository"], told["commit"]) == (0, "true", "stranger/kernels", digest("fork"))
    assert (told["branch"], told["create_pr"]) == ("", "false")


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("issue_comment", comment("/benchmark L4", "reader"), 3, "reader may not write to acme/kernels"),
        ("issue_comment", comment("/benchmark L4", "stranger"), 3, "stranger may not write"),
        (
            "issue_comment",
            comment("/benchmark L4", "app[bot]", "Bot"),
            3,
            "app[bot] is a program, and programs may not",
        ),
        ("issue_comment", comment("/benchmark L4", "a/../b"), 2, "does not say who requests it"),
        ("issue_comment", comment("/benchmark L4; curl x | sh"), 2, "not understood"),
        ("issue_comment", comment("/benchmark L44"), 2, "There is no GPU type L44. Did you mean"),
        ("issue_comment", comment("/benchmark L4", issue={"number": 1}), 2, "works under pull requests"),
        ("issue_comment", comment("/benchmark L4", issue={"number": 9, "pull_request": {}}), 3, "finds nothing there"),
        ("pull_request", labelled(sender="reader"), 3, "reader may not write"),
        ("pull_request", labelled(pull_request=change("stranger/kernels")), 3, "comes from a fork"),
        ("pull_request_target", labelled(pull_request=change("stranger/kernels")), 3, "comes from a fork"),
        ("pull_request", labelled(pull_request=change(state="closed")), 2, "is closed"),
        ("pull_request", labelled(pull_request={"number": 1, "head": {"sha": "main"}}), 2, "not told as GitHub"),
        ("workflow_dispatch", {"sender": {"login": "writer", "type": "User"}}, 2, "No GPU type is given"),
        ("issue_comment", ["no", "event"], 2, "holds no event"),
    ],
)
def test_what_may_not_be_measured_is_refused_in_a_sentence(
    world: World, capsys: pytest.CaptureFixture[str], name: str, content: Any, code: int, said: str
) -> None:
    found, told = world.request(name, content)
    assert (found, told["go"]) == (code, "false")
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert TOKEN not in error


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("issue_comment", comment("a remark about /benchmark L4", "stranger")),
        ("issue_comment", comment("/benchmark L4", action="edited")),
        ("pull_request", labelled("bug", "stranger")),
        ("pull_request", {**labelled(), "action": "unlabeled"}),
        ("push", {}),
    ],
)
def test_what_asks_for_nothing_is_no_fault_and_nobody_is_asked(world: World, name: str, content: Any) -> None:
    code, told = world.request(name, content)
    assert (code, told["go"]) == (0, "false")
    assert world.github.asked == []


def test_the_label_measures_the_default_gpu_at_the_labelled_commit(world: World) -> None:
    code, told = world.request("pull_request", labelled())
    assert (code, told["gpu_types"], told["commit"], told["branch"]) == (0, '["L4"]', SHA, "feature")


def test_inputs_of_a_run_by_hand_measure_the_branch_it_runs_on(world: World) -> None:
    by_hand = {"sender": {"login": "writer", "type": "User"}}
    code, told = world.request("workflow_dispatch", by_hand, ASSAY_GPU_TYPE="L4,H200", ASSAY_CREATE_PR="false")
    assert (code, told["gpu_types"], told["commit"]) == (0, '["L4", "H200"]', SHA)
    assert (told["branch"], told["create_pr"], told["pull_request"]) == ("main", "false", "")
    assert world.request("workflow_dispatch", by_hand, ASSAY_GPU_TYPE="L4 && id")[0] == 2
    assert world.request("workflow_dispatch", by_hand, ASSAY_GPU_TYPE="L4", ASSAY_CREATE_PR="yes; id")[0] == 2


def test_a_workflow_that_calls_ours_for_a_pull_request_is_held_to_the_same_rules(world: World) -> None:
    pushed = {"action": "synchronize", "sender": {"login": "writer", "type": "User"}, "pull_request": change()}
    code, told = world.request("pull_request", pushed, ASSAY_GPU_TYPE="L4", ASSAY_CREATE_PR="true")
    assert (code, told["commit"], told["pull_request"], told["create_pr"]) == (0, SHA, "1", "true")
    fork = {**pushed, "pull_request": change("stranger/kernels")}
    assert world.request("pull_request_target", fork, ASSAY_GPU_TYPE="L4")[0] == 3


def test_a_run_on_a_tag_opens_no_pull_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_REF", "refs/tags/v1")
    code, told = world.request("workflow_dispatch", {}, ASSAY_GPU_TYPE="L4")
    assert (code, told["branch"], told["create_pr"]) == (0, "", "false")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["action", "comment", "issue", "pull_request", "head", "repo", "user", "sender", "label",
                         "name", "sha", "ref", "full_name", "number", "body", "login", "type", "state"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None, derandomize=True)
@given(JSON, st.sampled_from(["issue_comment", "pull_request", "workflow_dispatch"]))
def test_no_event_whatever_its_content_is_a_defect_or_a_line_more(
    tmp_path_factory: pytest.TempPathFactory, content: Any, name: str
) -> None:
    from assay.core.errors import AssayError

    file = tmp_path_factory.getbasetemp() / "any-event.json"
    file.write_text(json.dumps(content))
    try:
        happened = events.read_event({"GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": str(file)})
        found = decide_request(happened, WorkflowInputs(), REPOSITORY, lambda: api_of(GitHub()))
    except AssayError:
        return
    assert isinstance(found, NoRequest)


def test_a_value_with_a_newline_is_never_told(tmp_path: Path) -> None:
    for value in ("a\nb=c", "a\rb", "a\x00", "a\u2028b"):
        with pytest.raises(ValueError, match="cannot be told"):
            request.write_outputs(tmp_path / "output", {"name": value})
    assert not (tmp_path / "output").exists()
    odd = BenchmarkRequest(
        gpu_types=("L4",),
        repository="a/b",
        commit=SHA,
        branch="x=y",
        pull_request=None,
        create_pr=True,
        requested_by=None,
    )
    request.write_outputs(tmp_path / "output", request.request_outputs(odd))
    assert "branch=x=y\n" in (tmp_path / "output").read_text()


@pytest.mark.parametrize("branch", ["a b", "a\nb", "-x", "a..b", "$(id)", "a`id`", "x;y", "a" * 300, "/a", "a/"])
def test_a_branch_of_an_unusual_name_is_none(branch: str) -> None:
    data = change()
    data["head"]["ref"] = branch
    assert events.parse_pull_request(data).branch is None
