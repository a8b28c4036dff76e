"""Results become one pull request for each device, or none; what a machine wrote is taken as far as it is sane."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli.main import main
from assay.core.errors import AssayError, BadInput
from assay.experiments.threshold.spec import load_thresholds
from assay.github import results as checking
from assay.github.comment import comment_body, pull_request_body, pull_request_title
from assay.github.pull_request import check_config_path, proposal_branch, propose_changes
from assay.github.results import collect_jobs
from tests.github.measured import CONFIG, THRESHOLDS, WRONG, journal, leave, results
from tests.github.serving import served
from tests.github.standin import REPOSITORY, TOKEN, Answer, Fault, GitHub

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NEW = CONFIG.replace("64  # a guess", "128  # Updated by benchmark; a guess")
BRANCH = proposal_branch("NVIDIA L4", "configs/base.yaml", "main")
SHA = "0123456789" * 4


class Place:
    """A job that publishes: a repository at GitHub, and a folder of what other jobs left."""

    def __init__(self, folder: Path, github: GitHub) -> None:
        self.folder, self.github = folder, github

    def run(self, verb: str, *words: str) -> int:
        """Run a verb over all results."""
        how = ("--thresholds", str(self.folder / "thresholds.yaml"), "--commit", SHA, "--base", "main")
        return main(["github", verb, str(self.folder / "results"), *how, *words])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    github = GitHub()
    github.commit("main", {"configs/base.yaml": CONFIG, "README.md": "hello\n"})
    (tmp_path / "thresholds.yaml").write_text(THRESHOLDS)
    with served(github) as url:
        for name, value in {
            "GITHUB_REPOSITORY": REPOSITORY,
            "GITHUB_TOKEN": TOKEN,
            "GITHUB_API_URL": url,
            "GITHUB_SERVER_URL": "https://github.example",
            "GITHUB_RUN_ID": "77",
        }.items():
            monkeypatch.setenv(name, value)
        yield Place(tmp_path, github)


def test_a_pull_request_has_old_and_new_values_with_intervals_the_points_and_the_cost(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(leave(place.folder / "results/results-L4", results()))
    assert place.run("pull-request") == 0
    assert "NVIDIA L4: pull request 1 is opened: https://github.example/acme/kernels/pull/1" in capsys.readouterr().out
    (pull,) = place.github.pulls
    assert (pull["head"]["ref"], pull["base"]["ref"]) == (BRANCH, "main")
    assert pull["title"] == "Thresholds of NVIDIA L4: sorting_min 64 → 128"
    print(pull["body"])
    for said in (
        "| `runtime.sorting_min` | `64` | **`128`** | 128 to 128 | 1.2× | passed |",
        "+  sorting_min: 128  # Updated by benchmark; a guess",
        "sorting: From 128 up to the largest size, 512",
        "<details><summary>",
        "Cost: `L4` at `modal`: quoted $0.027, billed $0.031.",
        f"commit `{SHA}`",
        "https://github.example/acme/kernels/actions/runs/77",
    ):
        assert said in pull["body"]
    assert place.github.text(BRANCH, "configs/base.yaml") == NEW
    assert place.github.text(BRANCH, "README.md") == "hello\n"
    assert place.github.text("main", "configs/base.yaml") == CONFIG


@pytest.mark.full
def test_an_open_pull_request_is_brought_up_to_date_and_not_doubled(place: Place) -> None:
    leave(place.folder / "results/results-L4", results())
    assert place.run("pull-request") == 0
    assert place.run("pull-request") == 0
    pushed = [path for method, path in place.github.asked if method != "GET" and "/git/" in path]
    assert len(pushed) == 3, "the same change on the same base is not pushed again"
    place.github.commit("main", {"configs/base.yaml": CONFIG.replace("7", "8")})
    (place.folder / "results/results-L4/results.json").write_text(json.dumps(results(crossing=200.0)))
    assert place.run("pull-request") == 0
    (pull,) = place.github.pulls
    assert "64 → 256" in pull["title"]
    assert "sorting_min: 256" in place.github.text(BRANCH, "configs/base.yaml")
    assert "other: 8" in place.github.text(BRANCH, "configs/base.yaml")


def test_each_device_has_a_pull_request_of_its_own(place: Place) -> None:
    leave(place.folder / "results/results-L4", results())
    leave(place.folder / "results/results-A100", results(device="NVIDIA A100-SXM4-80GB", crossing=200.0))
    leave(place.folder / "results/results-T4", None, code=3)
    assert place.run("pull-request") == 0
    assert [pull["head"]["ref"] for pull in place.github.pulls] == [
        proposal_branch("NVIDIA A100-SXM4-80GB", "configs/base.yaml", "main"),
        BRANCH,
    ]


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (results(crossing=40.0), 0, "configs/base.yaml has these values already"),
        (results(parity=WRONG), 1, "Parity failed for runtime.sorting_min"),
        (results(noise=3.0), 0, "cannot be told"),
    ],
    ids=["nothing changes", "parity failed", "unsure"],
)
def test_nothing_is_opened_where_there_is_nothing_to_propose(
    place: Place, capsys: pytest.CaptureFixture[str], content: Any, code: int, said: str
) -> None:
    leave(place.folder / "results/results-L4", content)
    assert place.run("pull-request") == code
    assert said in capsys.readouterr().out
    assert place.github.pulls == []
    assert list(place.github.refs) == ["main"]


def test_results_of_a_fake_driver_are_not_proposed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    content = results()
    content["device_info"]["driver_version"] = "580.0-fake"
    leave(place.folder / "results/results-L4", content)
    assert place.run("pull-request") == 0
    assert "calls itself a fake" in capsys.readouterr().out
    assert place.github.pulls == []


def test_what_is_decided_is_proposed_where_another_threshold_cannot_be_told(place: Place) -> None:
    both, unsure = results("sorting", "merging"), results("merging", noise=3.0)
    both["thresholds"] = [both["thresholds"][0], unsure["thresholds"][0]]
    both["results"] = [row for row in both["results"] if row["threshold"] == "sorting"] + unsure["results"]
    leave(place.folder / "results/results-L4", both)
    assert place.run("pull-request") == 0
    (pull,) = place.github.pulls
    assert "| `runtime.merging_min` | `16` | as it is | cannot be told" in pull["body"]
    assert "merging_min: 16\n" in place.github.text(BRANCH, "configs/base.yaml")


def without(*scopes: str) -> Callable[[GitHub], object]:
    return lambda github: github.scopes.difference_update(scopes)


@pytest.mark.full
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without("contents"), "may not write configs/base.yaml in acme/kernels; it needs contents: write"),
        (without("pull_requests"), "may not open a pull request in acme/kernels; it needs pull_requests: write"),
        (lambda g: setattr(g, "protected", "assay/.*"), "A rule of acme/kernels protects a branch"),
        (lambda g: setattr(g, "workflows_may_open", False), "Allow GitHub Actions to create and approve pull requests"),
        (lambda g: g.commit(BRANCH, {"configs/base.yaml": "mine: 1\n"}), "Somebody has committed to the branch"),
        (lambda g: g.refs.pop("main"), "acme/kernels has no branch main"),
        (lambda g: g.commit("main", {"README.md": ""}), "has no file configs/base.yaml"),
        (lambda g: g.commit("main", {"configs/base.yaml": "a: [1\n"}), "not valid YAML"),
        (lambda g: g.commit("main", {"configs/base.yaml": "runtime: {}\n"}), "sorting_min"),
    ],
)
def test_what_github_does_not_allow_is_said(
    place: Place, capsys: pytest.CaptureFixture[str], spoil: Callable[[GitHub], object], said: str
) -> None:
    leave(place.folder / "results/results-L4", results())
    spoil(place.github)
    assert place.run("pull-request") in {2, 3}
    error = capsys.readouterr().err
    assert said in error
    assert TOKEN not in error
    assert place.github.pulls == []


@pytest.mark.full
@pytest.mark.parametrize("path", ["/git/trees$", "/git/commits$", "/git/refs$", "/pulls$"])
@pytest.mark.parametrize("after", [True, False])
def test_an_answer_that_never_came_makes_nothing_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch, path: str, after: bool
) -> None:
    monkeypatch.setattr("assay.github.api.BACK_OFF_S", 0.0)
    leave(place.folder / "results/results-L4", results())
    place.github.faults.append(Fault(Answer(None), after=after, method="POST", path=path))
    assert place.run("pull-request") == 0
    assert len(place.github.pulls) == 1
    assert place.github.text(BRANCH, "configs/base.yaml") == NEW


def test_one_comment_tells_all_kinds_of_gpu_also_those_that_failed(place: Place) -> None:
    place.github.add_pull("feature", "main")
    journal(leave(place.folder / "results/results-L4", results()))
    leave(place.folder / "results/results-T4", None, code=3)
    leave(place.folder / "results/results-A100", {"schema": 1, "assay": "0"}, code=0)
    words = ("--pull-request", "1", "--gpu-types", '["L4", "T4", "A100", "H200"]')
    assert place.run("comment", *words) == 0
    (first,) = place.github.comments
    assert "These values are not proposed anywhere yet." in first["body"]
    assert place.run("pull-request") == 2
    assert place.run("comment", *words) == 0
    (said,) = place.github.comments
    print(said["body"])
    assert said["body"].startswith("<!-- assay: benchmark -->\n")
    assert "Proposed in #2." in said["body"]
    assert "No results: `nothing was measured: this account cannot have it measured: credentials" in said["body"]
    assert "its results fail their check: results.json is not what this version of Assay writes" in said["body"]
    assert "**`H200`**\n\nNo results: `its job left nothing`" in said["body"]
    assert "Cost: `L4` at `modal`: quoted $0.027, billed $0.031." in said["body"]


def test_a_comment_is_written_even_where_nothing_at_all_was_left(place: Place) -> None:
    place.github.add_pull("feature", "main")
    assert place.run("comment", "--pull-request", "1", "--gpu-types", "L4") == 0
    assert "No results" in place.github.comments[0]["body"]


def test_results_of_a_run_become_a_body_without_asking_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_TOKEN", "GITHUB_REPOSITORY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "thresholds.yaml").write_text(THRESHOLDS)
    (tmp_path / "results.json").write_text(json.dumps(results()))
    how = ["results.json", "--config", "config.yaml", "--thresholds", "thresholds.yaml", "--dry-run"]
    assert main(["github", "pull-request", *how]) == 0
    assert "# Thresholds of NVIDIA L4: sorting_min 64 → 128" in capsys.readouterr().out
    assert main(["github", "comment", *how, "--pull-request", "3"]) == 0
    assert "**`128`**" in capsys.readouterr().out
    assert main(["github", "pull-request", *how[:-1]]) == 2
    assert "--base is missing" in capsys.readouterr().err
    monkeypatch.setenv("GITHUB_REPOSITORY", REPOSITORY)
    assert main(["github", "pull-request", *how[:-1], "--base", "main"]) == 3
    assert "GITHUB_TOKEN is not set" in capsys.readouterr().err


HOSTILE = "](https://evil.example) @everyone <img src=x> `</details>` #1 | \u202e\u200b\n# heading\n```\n" + "x" * 3000


def test_what_a_machine_wrote_stands_in_code_and_nowhere_else(tmp_path: Path) -> None:
    content = results(device=HOSTILE)
    content["thresholds"][0]["name"] = HOSTILE
    for row in content["results"]:
        row["threshold"] = row["branch"] = HOSTILE
    for name in ("torch_version", "cuda_version", "driver_version"):
        content["device_info"][name] = HOSTILE
    content["measured_at"] = content["assay"] = HOSTILE
    file = tmp_path / "results.json"
    file.write_text(json.dumps(content))
    (tmp_path / "thresholds.yaml").write_text(THRESHOLDS)
    (job,) = collect_jobs([file], load_thresholds(tmp_path / "thresholds.yaml"))
    assert job.measured is not None
    found = propose_changes(job.measured, "configs/base.yaml", CONFIG)
    for text in (
        pull_request_body(found, (), commit=SHA, run_url=None),
        comment_body([(job, found, "done")], commit=SHA, run_url=None),
    ):
        outside = re.sub(r"`[^`\n]*`", "", re.sub(r"^```\w+\n.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
        for word in ("evil", "@everyone", "<img", "heading", "\u202e", "\u200b"):
            assert word not in outside
        assert "\u202e" not in text
        assert text.count("</details>") - text.count("'</details>'") >= 1
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert {line.count("|") for line in rows} <= {4, 7, 8, 9}
    assert not set(pull_request_title(found)) & set("@#`<>[]|\n")
    assert re.fullmatch(r"assay/thresholds-[a-z0-9-]+", proposal_branch(HOSTILE, "a.yaml", "main"))


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def spoilt(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    content = copy.deepcopy(results())
    change(content)
    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (spoilt(lambda c: c["thresholds"][0].update(key="runtime.other")), "not among those of the repository"),
        (spoilt(lambda c: c["thresholds"][0].update(never="rm -rf")), "another value for never"),
        (spoilt(lambda c: c["thresholds"][0].update(never=True)), "another value for never"),
        (spoilt(lambda c: c["results"][0].update(size=float("inf"))), "not a finite number"),
        (spoilt(lambda c: c["results"][0].update(size=-(10**400))), "too large a number"),
        (spoilt(lambda c: c.update(seed=10**400)), "too large a number"),
        (spoilt(lambda c: c.update(extra=nested(400))), "nested deeper"),
        (spoilt(lambda c: c["results"][0].update(size=-4)), "is no size"),
        (
            spoilt(lambda c: c["results"][-1]["times"]["call"].update(log_speedups=[[99.0]])),
            "cannot have been measured",
        ),
        (spoilt(lambda c: c["results"][-1]["times"]["call"].update(log_speedups=[])), "cannot have been measured"),
        (spoilt(lambda c: c["results"][-1]["times"]["call"].update(masked_ms=0)), "cannot have been measured"),
        (spoilt(lambda c: c["results"][0].update(extra=1)), "is not known"),
        (spoilt(lambda c: c["results"].clear()), "has no row"),
        (spoilt(lambda c: c.update(thresholds=c["thresholds"] * 2)), "two thresholds of one name"),
        (spoilt(lambda c: c["device_info"].update(device_name="x" * 5000)), "too long a text"),
        (spoilt(lambda c: c.update(schema=99)), "newer Assay"),
        (spoilt(lambda c: c.pop("schema")), "no row is of the branch"),
        ([1], "holds no results"),
    ],
)
def test_results_that_fail_their_check_are_refused_with_the_place(tmp_path: Path, content: Any, said: str) -> None:
    (tmp_path / "thresholds.yaml").write_text(THRESHOLDS)
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=said):
        checking.verify_results(tmp_path / "results.json", load_thresholds(tmp_path / "thresholds.yaml"))


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(found for key, part in inner for found in places(part, (*way, key)))]


GOOD = results()
PLACES = [way for way in places(GOOD) if way]


@pytest.mark.full
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(PLACES),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.just([])
    | st.just({})
    | st.just([[]]),
)
def test_no_spoilt_value_anywhere_is_a_defect(
    tmp_path_factory: pytest.TempPathFactory, way: tuple[Any, ...], value: Any
) -> None:
    content = copy.deepcopy(GOOD)
    inner = content
    for step in way[:-1]:
        inner = inner[step]
    inner[way[-1]] = value
    folder = tmp_path_factory.getbasetemp()
    (folder / "spoilt.json").write_text(json.dumps(content))
    (folder / "thresholds.yaml").write_text(THRESHOLDS)
    try:
        found = checking.verify_results(folder / "spoilt.json", load_thresholds(folder / "thresholds.yaml"))
        text = pull_request_body(propose_changes(found, "configs/base.yaml", CONFIG), (), commit=None, run_url=None)
    except AssayError:
        return
    assert len(text) < 65_536


@pytest.mark.parametrize(
    "path", ["../x.yaml", "/etc/x.yaml", ".github/workflows/x.yml", "a//b.yaml", "x.py", ".git/x.yml"]
)
def test_only_a_configuration_within_the_repository_is_written(path: str) -> None:
    with pytest.raises(BadInput):
        check_config_path(path)
