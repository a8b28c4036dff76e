"""GitHub as a stand-in: git, pull requests, comments, rights; every request and answer is held against OpenAPI."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from openapi_core import OpenAPI
from openapi_core.testing import MockRequest, MockResponse
from ruamel.yaml import YAML

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Files = dict[str, tuple[str, str]]

TOKEN = "ghs_planted0secret0token"  # noqa: S105 - planted
REPOSITORY = "acme/kernels"
SAID = {
    401: "Bad credentials",
    404: "Not Found",
    500: "Server Error",
    502: "Server Error",
    503: "Service Unavailable",
}


@cache
def description() -> OpenAPI:
    """The description of the calls that are used."""
    spec = YAML(typ="safe", pure=True).load(Path(__file__).with_name("openapi.yaml"))
    return OpenAPI.from_dict(spec)


@dataclass(frozen=True)
class Answer:
    """A status, a document and headers; null for a status: the line is cut."""

    status: int | None
    content: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """What happens instead of an answer, or after the work of it was done."""

    answer: Answer
    after: bool = False
    method: str = ".*"
    path: str = ".*"

    def fits(self, method: str, path: str) -> bool:
        """Whether it is for this request."""
        return re.fullmatch(self.method, method) is not None and re.search(self.path, path) is not None


class Refused(Exception):
    """An answer that is not what was asked for."""

    def __init__(self, status: int, said: str | None = None, **headers: str) -> None:
        super().__init__(said)
        content = {"message": said or SAID[status], "documentation_url": "https://docs.github.com/rest"}
        self.answer = Answer(status, content, headers)


def digest(*parts: str) -> str:
    return hashlib.sha1("\0".join(parts).encode(), usedforsecurity=False).hexdigest()


@dataclass
class GitHub:
    """One repository."""

    rights: dict[str, str] = field(default_factory=lambda: {"writer": "write", "reader": "read"})
    scopes: set[str] = field(default_factory=lambda: {"contents", "pull_requests", "issues"})
    protected: str | None = None
    faults: deque[Fault] = field(default_factory=deque)
    asked: list[tuple[str, str]] = field(default_factory=list)
    trees: dict[str, Files] = field(default_factory=dict)
    blobs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, Any]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    pulls: list[dict[str, Any]] = field(default_factory=list)
    comments: list[dict[str, Any]] = field(default_factory=list)
    workflows_may_open: bool = True

    def commit(self, branch: str, files: Mapping[str, str], message: str = "by hand") -> str:
        """Put files on a branch, as a person does."""
        parents = [self.refs[branch]] if branch in self.refs else []
        tree = self._tree({path: ("100644", text) for path, text in files.items()})
        self.refs[branch] = self._commit(message, tree, parents)
        return self.refs[branch]

    def text(self, branch: str, path: str) -> str:
        """Return a file at the tip of a branch."""
        return self.trees[self.commits[self.refs[branch]]["tree"]["sha"]][path][1]

    def remark(self, body: str, login: str, kind: str) -> None:
        """Write a comment as somebody."""
        number = len(self.comments) + 1
        url = f"https://github.example/{REPOSITORY}/pull/1#issuecomment-{number}"
        self.comments.append({"id": number, "body": body, "html_url": url, "user": {"login": login, "type": kind}})

    def handle(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer a request; request and answer are checked."""
        parts = urlsplit(target)
        self.asked.append((method, parts.path))
        request = _mock_request(method, parts.path, dict(parse_qsl(parts.query)), headers, body)
        description().validate_request(request)
        fault = next((each for each in self.faults if each.fits(method, parts.path)), None)
        if fault is not None:
            self.faults.remove(fault)
        if fault is not None and not fault.after:
            return fault.answer
        answer = self._answer(method, parts.path, dict(parse_qsl(parts.query)), headers, body)
        description().validate_response(request, _mock_response(answer))
        return fault.answer if fault is not None else answer

    def _answer(self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return Refused(401).answer
        if not path.startswith(f"/repos/{REPOSITORY}/"):
            return Refused(404).answer
        rest, content = path.removeprefix(f"/repos/{REPOSITORY}"), json.loads(body) if body else {}
        for verb, pattern, scope, do in self._calls():
            found = re.fullmatch(pattern, rest)
            if verb == method and found:
                try:
                    self._may(scope)
                    return do({**found.groupdict(), **query}, content)
                except Refused as refused:
                    return refused.answer
        raise AssertionError(f"{method} {path} is described, but not done here")

    def _calls(self) -> list[tuple[str, str, str, Callable[[dict[str, str], Any], Answer]]]:
        return [
            ("GET", r"/collaborators/(?P<who>[^/]+)/permission", "", self._permission),
            ("GET", r"/pulls/(?P<number>\d+)", "", lambda a, c: Answer(200, self._pull(a["number"]))),
            ("PATCH", r"/pulls/(?P<number>\d+)", "pull_requests", self._write_pull),
            ("GET", r"/pulls", "", self._list_pulls),
            ("POST", r"/pulls", "pull_requests", self._open_pull),
            ("GET", r"/issues/(?P<number>\d+)/comments", "", self._list_comments),
            ("POST", r"/issues/(?P<number>\d+)/comments", "issues", self._comment),
            ("PATCH", r"/issues/comments/(?P<id>\d+)", "issues", self._write_comment),
            ("GET", r"/git/ref/heads/(?P<branch>.+)", "", lambda a, c: Answer(200, self._ref(a["branch"]))),
            ("POST", r"/git/refs", "contents", self._make_ref),
            ("PATCH", r"/git/refs/heads/(?P<branch>.+)", "contents", self._move_ref),
            ("GET", r"/git/commits/(?P<sha>\w+)", "", lambda a, c: Answer(200, _found(self.commits, a["sha"]))),
            ("POST", r"/git/commits", "contents", self._make_commit),
            ("GET", r"/git/trees/(?P<sha>\w+)", "", lambda a, c: Answer(200, self._listing(a["sha"]))),
            ("POST", r"/git/trees", "contents", self._make_tree),
            ("GET", r"/git/blobs/(?P<sha>\w+)", "", lambda a, c: Answer(200, self._blob(a["sha"]))),
        ]

    def _may(self, scope: str) -> None:
        if scope and scope not in self.scopes:
            needs = {"x-accepted-github-permissions": f"{scope}=write"}
            raise Refused(403, "Resource not accessible by integration", **needs)

    def _permission(self, at: dict[str, str], _: Any) -> Answer:
        if at["who"] not in self.rights:
            raise Refused(404)
        right = self.rights[at["who"]]
        return Answer(200, {"permission": right, "role_name": right, "user": {"login": at["who"]}})

    def _pull(self, number: str) -> dict[str, Any]:
        for each in self.pulls:
            if each["number"] == int(number):
                return each
        raise Refused(404)

    def _list_pulls(self, at: dict[str, str], _: Any) -> Answer:
        owner, _, branch = at["head"].partition(":")
        assert owner == REPOSITORY.partition("/")[0]
        kept = [
            each
            for each in self.pulls
            if each["state"] == at["state"] and each["head"]["ref"] == branch and each["base"]["ref"] == at["base"]
        ]
        return Answer(200, kept)

    def add_pull(self, head: str, base: str, *, repository: str | None = REPOSITORY, **changes: Any) -> dict[str, Any]:
        """Add an open pull request."""
        number = len(self.pulls) + 1
        pull = {
            "number": number,
            "state": "open",
            "html_url": f"https://github.example/{REPOSITORY}/pull/{number}",
            "title": "a change",
            "body": None,
            "head": {
                "ref": head,
                "sha": self.refs.get(head, digest(head)),
                "repo": None if repository is None else {"full_name": repository},
            },
            "base": {"ref": base},
            **changes,
        }
        self.pulls.append(pull)
        return pull

    def _open_pull(self, at: dict[str, str], content: Any) -> Answer:
        if not self.workflows_may_open:
            raise Refused(403, "GitHub Actions is not permitted to create or approve pull requests.")
        listed = self._list_pulls({"state": "open", "head": f"acme:{content['head']}", "base": content["base"]}, None)
        if listed.content:
            raise Refused(422, "Validation Failed: A pull request already exists")
        if content["head"] not in self.refs or content["base"] not in self.refs:
            raise Refused(422, "Validation Failed")
        return Answer(
            201, self.add_pull(content["head"], content["base"], title=content["title"], body=content["body"])
        )

    def _write_pull(self, at: dict[str, str], content: Any) -> Answer:
        pull = self._pull(at["number"])
        pull.update(content)
        return Answer(200, pull)

    def _list_comments(self, at: dict[str, str], _: Any) -> Answer:
        first = (int(at["page"]) - 1) * int(at["per_page"])
        return Answer(200, self.comments[first : first + int(at["per_page"])])

    def _comment(self, at: dict[str, str], content: Any) -> Answer:
        self.remark(content["body"], "github-actions[bot]", "Bot")
        return Answer(201, self.comments[-1])

    def _write_comment(self, at: dict[str, str], content: Any) -> Answer:
        (found,) = [each for each in self.comments if each["id"] == int(at["id"])]
        found.update(content)
        return Answer(200, found)

    def _ref(self, branch: str) -> dict[str, Any]:
        name = unquote(branch)
        if name not in self.refs:
            raise Refused(404)
        return {"ref": f"refs/heads/{name}", "object": {"type": "commit", "sha": self.refs[name]}}

    def _make_ref(self, at: dict[str, str], content: Any) -> Answer:
        name = content["ref"].removeprefix("refs/heads/")
        self._check_rules(name)
        if name in self.refs:
            raise Refused(422, "Reference already exists")
        self.refs[name] = content["sha"]
        return Answer(201, self._ref(name))

    def _move_ref(self, at: dict[str, str], content: Any) -> Answer:
        name = unquote(at["branch"])
        self._check_rules(name)
        if name not in self.refs or content["sha"] not in self.commits:
            raise Refused(422, "Reference does not exist")
        self.refs[name] = content["sha"]
        return Answer(200, self._ref(name))

    def _check_rules(self, branch: str) -> None:
        if self.protected is not None and re.fullmatch(self.protected, branch):
            raise Refused(422, "Repository rule violations found: Cannot create ref due to creations being restricted.")

    def _make_commit(self, at: dict[str, str], content: Any) -> Answer:
        sha = self._commit(content["message"], content["tree"], content.get("parents", []))
        return Answer(201, self.commits[sha])

    def _commit(self, message: str, tree: str, parents: list[str]) -> str:
        sha = digest("commit", message, tree, *parents, str(len(self.commits)))
        linked = [{"sha": each} for each in parents]
        self.commits[sha] = {"sha": sha, "message": message, "tree": {"sha": tree}, "parents": linked}
        return sha

    def _make_tree(self, at: dict[str, str], content: Any) -> Answer:
        files = dict(_found(self.trees, content["base_tree"]))
        files |= {each["path"]: (each["mode"], each["content"]) for each in content["tree"]}
        return Answer(201, self._listing(self._tree(files)))

    def _tree(self, files: Files) -> str:
        sha = digest("tree", json.dumps(files, sort_keys=True))
        self.trees[sha] = dict(files)
        return sha

    def _listing(self, sha: str) -> dict[str, Any]:
        entries: dict[str, dict[str, str]] = {}
        files = _found(self.trees, sha)
        for path, (mode, text) in files.items():
            name, slash, _ = path.partition("/")
            if slash:
                inside = {p.partition("/")[2]: f for p, f in files.items() if p.startswith(f"{name}/")}
                entries[name] = {"path": name, "mode": "040000", "type": "tree", "sha": self._tree(inside)}
            else:
                blob = digest("blob", text)
                self.blobs[blob] = text
                entries[name] = {"path": name, "mode": mode, "type": "blob", "sha": blob}
        return {"sha": sha, "tree": list(entries.values()), "truncated": False}

    def _blob(self, sha: str) -> dict[str, Any]:
        data = _found(self.blobs, sha).encode()
        content = base64.encodebytes(data).decode()
        return {"sha": sha, "size": len(data), "encoding": "base64", "content": content}


def _found(things: Mapping[str, Any], sha: str) -> Any:
    if sha not in things:
        raise Refused(404)
    return things[sha]


def _mock_request(
    method: str, path: str, query: dict[str, str], headers: Mapping[str, str], body: bytes
) -> MockRequest:
    names = {"x-github-api-version": "X-GitHub-Api-Version", "user-agent": "User-Agent", "accept": "Accept"}
    known = {names.get(name.lower(), name.title()): value for name, value in headers.items()}
    ref = re.sub(r"(/git/refs?/)(heads/.+)$", lambda m: m[1] + m[2].replace("/", "%2F"), path)
    return MockRequest("http://127.0.0.1", method.lower(), ref, args=query, headers=known, data=body or None)


def _mock_response(answer: Answer) -> MockResponse:
    assert answer.status is not None
    return MockResponse(json.dumps(answer.content).encode(), answer.status)
