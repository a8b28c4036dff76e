"""What GitHub says when it does not do something, told apart and in words.

401                              the token is wrong
403, 429 with a time to wait     too many requests
403                              the token, the organisation or a rule does not allow it
404                              not there, or not visible to this token
409, 422                         a branch is protected, or the request makes no sense
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay.core.errors import MachineCannot

if TYPE_CHECKING:
    import httpx

LEAST_WAIT_S = 1.0
SECONDARY_WAIT_S = 60.0
"""Where GitHub says that requests come too fast, and not for how long to stop."""
_LONGEST = 300

MAY_NOT_OPEN = "not permitted to create or approve pull requests"
PROTECTED = ("protected branch", "rule violations", "branch protection", "protected ref")


class NotThere(MachineCannot):
    """What was asked for is not there, or this token may not see it."""


class Clash(MachineCannot):
    """GitHub understood, and what is there stands against it (422 or 409)."""


def wait_s(answer: httpx.Response, now: float) -> float | None:
    """Return how long to wait before the same may be asked again; null where that would not help."""
    if answer.status_code not in {403, 429}:
        return None
    after = answer.headers.get("retry-after", "")
    if re.fullmatch(r"\d{1,6}", after):
        return max(LEAST_WAIT_S, float(after))
    if answer.headers.get("x-ratelimit-remaining") == "0":
        reset = answer.headers.get("x-ratelimit-reset", "")
        return max(LEAST_WAIT_S, float(reset) - now) if re.fullmatch(r"\d{1,12}", reset) else SECONDARY_WAIT_S
    slow_down = answer.status_code == 429 or "secondary rate limit" in said(answer).lower()
    return SECONDARY_WAIT_S if slow_down else None


def said(answer: httpx.Response) -> str:
    """Return GitHub's own words on one line: printable, and not too many."""
    try:
        content = answer.json()
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    details = content.get("errors")
    more = (
        [detail.get("message") for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
    )
    words = [text for text in (content.get("message"), *more) if isinstance(text, str)]
    line = " ".join("; ".join(words).split())
    return "".join(c for c in line if c.isprintable())[:_LONGEST].rstrip(". ")


def refusal(answer: httpx.Response, what: str, repository: str, token: str) -> MachineCannot:
    """Return the error that tells why something was not done, and what to do."""
    words = said(answer).replace(token, "…") if token else said(answer)
    code, quoted = answer.status_code, f" GitHub says: {words}." if words else ""
    if code == 401:
        return MachineCannot(f"GitHub does not accept GITHUB_TOKEN: it is wrong, has expired or was revoked.{quoted}")
    if code in {301, 302, 307, 308}:
        return MachineCannot(f"{repository} was moved or renamed; say its new name with --repository.")
    if any(word in words.lower() for word in PROTECTED):
        return MachineCannot(
            f"A rule of {repository} protects a branch, so that it could not {what}.{quoted} Let the rule pass "
            "branches that begin with assay/, or give the job a token that may pass it."
        )
    if code == 404:
        return NotThere(
            f"GitHub finds nothing there to {what} in {repository}: it does not exist, or the token may not see it."
        )
    if code == 403:
        return MachineCannot(_forbidden(answer, what, repository, words, quoted))
    kind = Clash if code in {409, 422} else MachineCannot
    return kind(f"GitHub refused to {what} in {repository} ({code}).{quoted}")


def _forbidden(answer: httpx.Response, what: str, repository: str, words: str, quoted: str) -> str:
    if MAY_NOT_OPEN in words:
        return (
            f"{repository} lets no workflow open pull requests. Turn on “Allow GitHub Actions to create and approve "
            "pull requests” under Settings → Actions → General, or give the job a token of an app."
        )
    needs = answer.headers.get("x-accepted-github-permissions", "")
    needed = f"; it needs {needs.replace('=', ': ')}" if re.fullmatch(r"[a-z_=,; ]{1,200}", needs) else ""
    return f"The token may not {what} in {repository}{needed}. Give the job that under `permissions:`.{quoted}"
