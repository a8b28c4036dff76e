"""GitHub's REST API, one question at a time.

Reading is asked again after a passing fault. What changes something is asked once: where the answer never came it may
be done all the same (`Unanswered`), and whoever asked looks before asking again (`surely`).

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
from assay.github import refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic import JsonValue

T = TypeVar("T")

PUBLIC = "https://api.github.com"
VERSION = "2022-11-28"
TRIES = 4
PATIENCE_S = 90.0
"""How long a limit on requests is waited for."""
WITHIN_S = 30.0
LARGEST_BYTES = 32 * 2**20
PAGE = 100
PAGES = 50


class Unanswered(MachineCannot):
    """No answer came, or one that says that GitHub is in trouble: what was asked for may be done all the same."""


@dataclass
class Api:
    """One repository, as one token may see and change it."""

    repository: str
    token: str = field(repr=False)
    url: str = PUBLIC
    pause: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    transport: httpx.BaseTransport | None = None

    def __post_init__(self) -> None:
        checked_repository(self.repository)
        self._client = httpx.Client(
            base_url=safe_url(self.url),
            transport=self.transport,
            timeout=WITHIN_S,
            follow_redirects=False,
            headers={
                "Authorization": f"Bearer {self.token}",
                "Accept": "application/vnd.github+json",
                "X-GitHub-Api-Version": VERSION,
                "User-Agent": f"assay/{__version__}",
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, what: str, **params: str | int) -> Any:
        """Return what is at a path of the repository; ``what`` is what is being done, for messages."""
        return self._again(lambda: self._ask("GET", path, what, params=params))

    def find(self, path: str, what: str, **params: str | int) -> Any | None:
        """Return what is at a path of the repository, or null where there is nothing."""
        try:
            return self.get(path, what, **params)
        except refusals.NotThere:
            return None

    def pages(self, path: str, what: str, **params: str | int) -> Iterator[Any]:
        """Give every item of a list, page by page."""
        for page in range(1, PAGES + 1):
            items = self.get(path, what, **params, per_page=PAGE, page=page)
            if not isinstance(items, list):
                raise MachineCannot(f"GitHub answered with no list when asked to {what}.")
            yield from items
            if len(items) < PAGE:
                return

    def send(self, method: str, path: str, content: Mapping[str, JsonValue], what: str) -> Any:
        """Change something, once.

        Raises:
            Unanswered: It may be done or not.
            MachineCannot: It is not done, and the sentence says why.
        """
        return self._ask(method, path, what, content=content)

    def surely(self, make: Callable[[], T], look: Callable[[], T | None]) -> T:
        """Have something made exactly once: after an answer that never came, look for it before asking again."""
        for tried in range(1, TRIES + 1):
            try:
                return make()
            except Unanswered:
                if tried == TRIES:
                    raise
                self.pause(_back_off_s(tried))
                if (existing := look()) is not None:
                    return existing
        raise AssertionError("unreachable")

    def _again(self, ask: Callable[[], T]) -> T:
        for tried in range(1, TRIES + 1):
            try:
                return ask()
            except Unanswered:
                if tried == TRIES:
                    raise
                self.pause(_back_off_s(tried))
        raise AssertionError("unreachable")

    def _ask(
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
            answer = self._answer(method, path, what, params, content)
            wait_s = refusals.wait_s(answer, self.now())
            if wait_s is None:
                return self._content(answer, what)
            if waited_s + wait_s > PATIENCE_S:
                raise MachineCannot(
                    f"GitHub allows no more requests for {wait_s:.0f} s, so that it could not {what}; try again later."
                )
            self.pause(wait_s)
            waited_s += max(wait_s, 1.0)

    def _answer(
        self,
        method: str,
        path: str,
        what: str,
        params: Mapping[str, str | int] | None,
        content: Mapping[str, JsonValue] | None,
    ) -> httpx.Response:
        where = f"/repos/{self.repository}{path}"
        try:
            return self._client.request(method, where, params=params, json=content)
        except httpx.ConnectError as error:
            raise Unanswered(f"GitHub cannot be reached to {what}: {type(error).__name__}.") from None
        except httpx.HTTPError as error:
            raise Unanswered(f"GitHub gave no answer when asked to {what}: {type(error).__name__}.") from None

    def _content(self, answer: httpx.Response, what: str) -> Any:
        if answer.status_code >= 500:
            raise Unanswered(f"GitHub is in trouble ({answer.status_code}) and could not {what}; try again later.")
        if not answer.is_success:
            raise refusals.refusal(answer, what, self.repository, self.token)
        if len(answer.content) > LARGEST_BYTES:
            raise MachineCannot(f"GitHub's answer is too large to {what}.")
        try:
            return answer.json()
        except (ValueError, RecursionError):
            raise MachineCannot(
                f"GitHub's answer is no JSON, so that it is not known whether it could {what}."
            ) from None


def _back_off_s(tried: int) -> float:
    return 2.0**tried


def told(data: object, *way: str | int) -> Any:
    """Return what an answer holds at some place.

    Raises:
        MachineCannot: It is not there.
    """
    value: Any = data
    for step in way:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            raise MachineCannot(f"GitHub's answer lacks {'.'.join(map(str, way))}.") from None
    return value


def in_path(text: str) -> str:
    """Return a name fit for one part of an address."""
    return quote(text, safe="")


def branch_path(branch: str) -> str:
    """Return a branch fit for the end of an address; its slashes stay."""
    return quote(branch, safe="/")


def checked_repository(text: str) -> str:
    """Return the name of a repository as OWNER/NAME.

    Raises:
        BadInput: It is none.
    """
    if re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,99})/(?!\.{1,2}$)[A-Za-z0-9._-]{1,100}", text) is None:
        raise BadInput("The repository is written OWNER/NAME, in --repository or GITHUB_REPOSITORY.")
    return text


def safe_url(text: str) -> str:
    """Return the address of the API; a token goes over https, or to this very machine.

    Raises:
        BadInput: It is neither.
    """
    parts = urlsplit(text)
    if parts.scheme == "https" and parts.hostname and parts.username is None:
        return text.rstrip("/")
    if parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1"} and parts.username is None:
        return text.rstrip("/")
    raise BadInput("GITHUB_API_URL must begin with https://, as a token is sent there.")
