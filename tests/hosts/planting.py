"""Secrets that are planted everywhere a user has them, and a look for them everywhere they must not be."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIXES = {
    "MODAL_TOKEN_ID": "ak-",
    "MODAL_TOKEN_SECRET": "as-",
    "RUNPOD_API_KEY": "rpa_",
    "LAMBDA_API_KEY": "secret_",
    "GITHUB_TOKEN": "ghs_",
    "HF_TOKEN": "hf_",
    "AWS_SECRET_ACCESS_KEY": "",
}
"""The variables of every provider, and some that are nobody's business."""


def made_up() -> dict[str, str]:
    """Return a secret for each variable; no other test has the same ones."""
    return {name: f"{prefix}planted{secrets.token_hex(8)}" for name, prefix in PREFIXES.items()}


@dataclass
class Scan:
    """What was left, said, sent and started, and which secrets are in it."""

    planted: Mapping[str, str]
    texts: dict[str, bytes] = field(default_factory=dict)

    def text(self, where: str, what: str | bytes) -> None:
        """Take a text in."""
        self.texts[where] = what.encode() if isinstance(what, str) else what

    def folder(self, where: str, path: Path) -> None:
        """Take in every file below a folder, with its name."""
        for each in path.rglob("*"):
            if each.is_file() and not each.is_symlink():
                self.text(f"{where}: {each.relative_to(path)}", each.read_bytes())

    def processes(self, where: str) -> None:
        """Take in the command line of every process of this machine."""
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.text(f"{where}: {each}", each.read_bytes())
            except OSError:
                continue

    def found(self) -> list[str]:
        """Return where which secret is, plain or in a form that anybody can undo."""
        return sorted(
            f"{name} in {where}"
            for name, secret in self.planted.items()
            for where, text in self.texts.items()
            if any(form in text for form in _forms(secret))
        )


def _forms(secret: str) -> Iterator[bytes]:
    plain = secret.encode()
    yield plain
    yield plain[::-1]
    yield plain.hex().encode()
    yield quote(secret).encode()
    for shift in range(3):  # a secret may begin anywhere within a longer text
        inner = base64.b64encode(b"\0" * shift + plain)
        yield inner[4 if shift else 0 : len(plain) // 3 * 4 - 4]
