"""GitHub's REST API: the client, its errors, and its settings from a workflow's environment.

A read is repeated after a transient fault. A write is sent once: if no response came it may have been done all the
same (`NoResponse`), and the caller checks before it repeats it (`GitHubApi.make_once`).

401                              the token is wrong
403, 429 with a time to wait     too many requests
403                              the token, the organisation or a rule does not allow it
404                              does not exist, or is not visible to this token
409, 422                         a branch is protected, or the request is invalid

The token comes from ``GITHUB_TOKEN``, goes into one header of one host, and is in no message.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from assay._version import __version__
from assay.core.errors import BadInput, MachineCannot
from assay.github.request import LOGIN, parse_pull_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic import JsonValue

    from assay.github.request import PullRequestState


MIN_WAIT_S = 1.0
SECONDARY_WAIT_S = 60.0
"""Used when GitHub limits requests without saying for how long."""
_MAX_CHARACTERS = 300

NO_PULL_REQUESTS = "not permitted to create or approve pull requests"
PROTECTED = ("protected branch", "rule violations", "branch protection", "protected ref")


class NotFound(MachineCannot):
    """The requested object does not exist, or this token may not see it."""


class Conflict(MachineCannot):
    """GitHub understood the request, but the current state conflicts with it (422 or 409)."""


def rate_limit_wait_s(response: httpx.Response, now: float) -> float | None:
    """Return how long to wait before the request may be repeated; null where that would not help."""
    if response.status_code not in {403, 429}:
        return None
    retry_after = response.headers.get("retry-after", "")
    if re.fullmatch(r"\d{1,6}", retry_after):
        return max(MIN_WAIT_S, float(retry_after))
    if response.headers.get("x-ratelimit-remaining") == "0":
        reset = response.headers.get("x-ratelimit-reset", "")
        return max(MIN_WAIT_S, float(reset) - now) if re.fullmatch(r"\d{1,12}", reset) else SECONDARY_WAIT_S
    is_limited = response.status_code == 429 or "secondary rate limit" in error_message(response).lower()
    return SECONDARY_WAIT_S if is_limited else None


def error_message(response: httpx.Response) -> str:
    """Return GitHub's own message on one line: printable, and of limited length."""
    try:
        content = response.json()
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    details = content.get("errors")
    entries = details if isinstance(details, list) else []
    messages = [entry.get("message") for entry in entries if isinstance(entry, dict)]
    texts = [text for text in (content.get("message"), *messages) if isinstance(text, str)]
    line = " ".join("; ".join(texts).split())
    return "".join(c for c in line if c.isprintable())[:_MAX_CHARACTERS].rstrip(". ")


def describe_error(response: httpx.Response, what: str, repository: str, token: str) -> MachineCannot:
    """Return the error that explains why something was not done, and what to do."""
    message = error_message(response).replace(token, "…") if token else error_message(response)
    code, quoted = response.status_code, f" GitHub says: {message}." if message else ""
    if code == 401:
        return MachineCannot(f"GitHub does not accept GITHUB_TOKEN: it is wrong, has expired or was revoked.{quoted}")
    if code in {301, 302, 307, 308}:
        return MachineCannot(f"{repository} was moved or renamed; say its new name with --repository.")
    if any(word in message.lower() for word in PROTECTED):
        return MachineCannot(
            f"A rule of {repository} protects a branch, so that it could not {what}.{quoted} Let the rule pass "
            "branches that begin with assay/, or give the job a token that may pass it."
        )
    if code == 404:
        return NotFound(
            f"GitHub finds nothing there to {what} in {repository}: it does not exist, or the token may not see it."
        )
    if code == 403:
        return MachineCannot(_describe_forbidden(response, what, repository, message, quoted))
    kind = Conflict if code in {409, 422} else MachineCannot
    return kind(f"GitHub refused to {what} in {repository} ({code}).{quoted}")


def _describe_forbidden(response: httpx.Response, what: str, repository: str, message: str, quoted: str) -> str:
    if NO_PULL_REQUESTS in message:
        return (
            f"{repository} lets no workflow open pull requests. Turn on “Allow GitHub Actions to create and approve "
            "pull requests” under Settings → Actions → General, or give the job a token of an app."
        )
    accepted = response.headers.get("x-accepted-github-permissions", "")
    needed = f"; it needs {accepted.replace('=', ': ')}" if re.fullmatch(r"[a-z_=,; ]{1,200}", accepted) else ""
    return f"The token may not {what} in {repository}{needed}. Give the job that under `permissions:`.{quoted}"


T = TypeVar("T")

PUBLIC_API_URL = "https://api.github.com"
API_VERSION = "2022-11-28"
TRIES = 4
BACK_OFF_S = 2.0
"""The pause before each further try is this, to the power of the number of tries so far."""

MAX_RATE_LIMIT_WAIT_S = 90.0
"""Longest rate limit that is waited for."""
TIMEOUT_S = 30.0
MAX_RESPONSE_BYTES = 32 * 2**20
PAGE_SIZE = 100
MAX_PAGES = 50


WRITE_PERMISSIONS = frozenset({"admin", "write"})
"""As GitHub reports them: maintainers are reported as write, people who triage as read."""


class NoResponse(MachineCannot):
    """No response, or a server error: the request may have been carried out all the same."""


@dataclass
class GitHubApi:
    """One repository, as one token may see and change it."""

    repository: str
    token: str = field(repr=False)
    url: str = PUBLIC_API_URL
    pause: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    transport: httpx.BaseTransport | None = None

    def __post_init__(self) -> None:
        check_repository(self.repository)
        self._client = httpx.Client(
            base_url=check_api_url(self.url),
            transport=self.transport,
            timeout=TIMEOUT_S,
            follow_redirects=False,
            headers={
                "Authorization": f"Bearer {self.token}",
                "Accept": "application/vnd.github+json",
                "X-GitHub-Api-Version": API_VERSION,
                "User-Agent": f"assay/{__version__}",
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, what: str, **params: str | int) -> Any:
        """Return what is at a path of the repository; ``what`` describes the action, for messages."""
        return self.make_once(lambda: self._request("GET", path, what, params=params))

    def find(self, path: str, what: str, **params: str | int) -> Any | None:
        """Return what is at a path of the repository, or null where there is nothing."""
        try:
            return self.get(path, what, **params)
        except NotFound:
            return None

    def pages(self, path: str, what: str, **params: str | int) -> Iterator[Any]:
        """Yield every item of a list, page by page."""
        for page in range(1, MAX_PAGES + 1):
            items = self.get(path, what, **params, per_page=PAGE_SIZE, page=page)
            if not isinstance(items, list):
                raise MachineCannot(f"GitHub answered with no list when asked to {what}.")
            yield from items
            if len(items) < PAGE_SIZE:
                return

    def send(self, method: str, path: str, content: Mapping[str, JsonValue], what: str) -> Any:
        """Change something, once.

        Raises:
            NoResponse: It may have been done or not.
            MachineCannot: It was not done; the message says why.
        """
        return self._request(method, path, what, content=content)

    def make_once(self, make: Callable[[], T], lookup: Callable[[], T | None] = lambda: None) -> T:
        """Create something exactly once: after a missing response, look it up before repeating the request."""
        for attempt in range(1, TRIES + 1):
            try:
                return make()
            except NoResponse:
                if attempt == TRIES:
                    raise
                self.pause(BACK_OFF_S**attempt)
                if (existing := lookup()) is not None:
                    return existing
        raise AssertionError("unreachable")

    def _request(
        self,
        method: str,
        path: str,
        what: str,
        *,
        params: Mapping[str, str | int] | None = None,
        content: Mapping[str, JsonValue] | None = None,
    ) -> Any:
        waited_s = 0.0
        while True:
            try:
                response = self._client.request(method, f"/repos/{self.repository}{path}", params=params, json=content)
            except httpx.ConnectError as error:
                raise NoResponse(f"GitHub cannot be reached to {what}: {type(error).__name__}.") from None
            except httpx.HTTPError as error:
                raise NoResponse(f"GitHub gave no answer when asked to {what}: {type(error).__name__}.") from None
            wait_s = rate_limit_wait_s(response, self.now())
            if wait_s is None:
                return self._decode(response, what)
            if waited_s + wait_s > MAX_RATE_LIMIT_WAIT_S:
                raise MachineCannot(
                    f"GitHub allows no more requests for {wait_s:.0f} s, so that it could not {what}; try again later."
                )
            self.pause(wait_s)
            waited_s += max(wait_s, 1.0)

    def _decode(self, response: httpx.Response, what: str) -> Any:
        if response.status_code >= 500:
            raise NoResponse(f"GitHub is in trouble ({response.status_code}) and could not {what}; try again later.")
        if not response.is_success:
            raise describe_error(response, what, self.repository, self.token)
        if len(response.content) > MAX_RESPONSE_BYTES:
            raise MachineCannot(f"GitHub's answer is too large to {what}.")
        try:
            return response.json()
        except (ValueError, RecursionError):
            raise MachineCannot(
                f"GitHub's answer is no JSON, so that it is not known whether it could {what}."
            ) from None

    def may_write(self, login: str) -> bool:
        """Return whether a person may write to the repository; unknown people and deleted accounts may not."""
        if re.fullmatch(LOGIN, login) is None:
            return False
        permission = self.find(f"/collaborators/{quote(login, safe='')}/permission", "ask who may write")
        return permission is not None and get_field(permission, "permission") in WRITE_PERMISSIONS

    def change(self, number: int) -> PullRequestState:
        """Return the current state of a pull request."""
        return parse_pull_request(self.get(f"/pulls/{number}", "look at the pull request"))


def get_field(data: object, *path: str | int) -> Any:
    """Return the value at a path of a response.

    Raises:
        MachineCannot: It is missing.
    """
    value: Any = data
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            raise MachineCannot(f"GitHub's answer lacks {'.'.join(map(str, path))}.") from None
    return value


def check_repository(text: str) -> str:
    """Return the name of a repository as OWNER/NAME.

    Raises:
        BadInput: It is not a repository name.
    """
    if re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,99})/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}", text) is None:
        raise BadInput("The repository is written OWNER/NAME, in --repository or GITHUB_REPOSITORY.")
    return text


def check_api_url(text: str) -> str:
    """Return the URL of the API; a token is sent only over https, or to this machine.

    Raises:
        BadInput: It is neither.
    """
    parts = urlsplit(text)
    is_loopback = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1"}
    if parts.username is None and (is_loopback or (parts.scheme == "https" and parts.hostname)):
        return text.rstrip("/")
    raise BadInput("GITHUB_API_URL must begin with https://, as a token is sent there.")


TOKEN_VARIABLE = "GITHUB_TOKEN"  # noqa: S105 - the name of a variable


def api_from_environment(environment: Mapping[str, str], repository: str | None = None) -> GitHubApi:
    """Return the API of a repository, with the token of the environment.

    Raises:
        MachineCannot: There is no token.
        BadInput: The token or the repository is invalid.
    """
    token = environment.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise MachineCannot(
            f"{TOKEN_VARIABLE} is not set. In a workflow write `env: {TOKEN_VARIABLE}: "
            f"${{{{ github.token }}}}` at the step; elsewhere "
            "make a fine-grained token on GitHub under Settings → Developer settings."
        )
    if re.fullmatch(r"[!-~]{1,1000}", token) is None:
        raise BadInput(f"{TOKEN_VARIABLE} holds characters that no token has.")
    return GitHubApi(
        repository_name(environment, repository), token, environment.get("GITHUB_API_URL") or PUBLIC_API_URL
    )


def repository_name(environment: Mapping[str, str], repository: str | None = None) -> str:
    """Return the name of the repository; bad input where none is given."""
    return check_repository(repository or environment.get("GITHUB_REPOSITORY", ""))


def workflow_run_url(environment: Mapping[str, str]) -> str | None:
    """Return the URL of the workflow's run; null outside of one."""
    server, run = environment.get("GITHUB_SERVER_URL", ""), environment.get("GITHUB_RUN_ID", "")
    if re.fullmatch(r"https://[A-Za-z0-9.-]{1,200}", server) is None or re.fullmatch(r"\d{1,20}", run) is None:
        return None
    return f"{server}/{repository_name(environment)}/actions/runs/{run}"
