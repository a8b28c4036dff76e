"""Where a server is asked, and the key that goes into one header and nowhere else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from assay._version import __version__
from assay.core.errors import BadInput, MachineCannot

if TYPE_CHECKING:
    from assay.workloads.generation.params import Generation

_PATHS = ("/chat/completions", "/completions", "/models")
_VERSION = re.compile(r"/v\d\w*$")
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class Endpoint:
    """One address under which a server may answer, its version included: ``http://127.0.0.1:8000/v1``."""

    url: str
    key_variable: str = ""
    key: str = field(default="", repr=False)

    @property
    def tls(self) -> bool:
        """Whether it is spoken to under TLS."""
        return self.url.startswith("https:")

    @property
    def host(self) -> str:
        """The name or number of the machine."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Its port, as given or as usual."""
        return urlsplit(self.url).port or (443 if self.tls else 80)

    @property
    def path(self) -> str:
        """What comes before ``/chat/completions`` on it."""
        return urlsplit(self.url).path

    @property
    def authority(self) -> str:
        """Host and port as the address gives them."""
        return urlsplit(self.url).netloc

    @property
    def root(self) -> str:
        """The address without its version."""
        return _VERSION.sub("", self.url)

    @property
    def headers(self) -> dict[str, str]:
        """What every request says of itself; the key among it."""
        headers = {"User-Agent": f"assay/{__version__}", "Accept-Encoding": "identity"}
        return {**headers, "Authorization": f"Bearer {self.key}"} if self.key else headers

    @property
    def in_the_open(self) -> bool:
        """Whether a key travels where others could read it."""
        return bool(self.key) and not self.tls and self.host not in _LOOPBACK

    def clean(self, text: str) -> str:
        """Return text of a server without the key, should it have been repeated."""
        return text.replace(self.key, "…") if self.key else text


def addresses(given: str) -> tuple[str, ...]:
    """Return where a server may answer that was given with or without its version, the likeliest first.

    Raises:
        BadInput: It is no address, or has a password in it.
    """
    text = given.strip()
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or not text.isascii() or any(sign.isspace() for sign in text) or parts.query or parts.fragment:
        raise BadInput(f"backend.endpoint: {given!r} is no address of a server, as http://127.0.0.1:8000/v1 is one.")
    if parts.username is not None or parts.password is not None:
        raise BadInput("backend.endpoint has a name or a password in it; backend.api_key_env names where the key is.")
    text = text.rstrip("/")
    for path in _PATHS:
        text = text.removesuffix(path)
    return (text,) if _VERSION.search(urlsplit(text).path) else (f"{text}/v1", text)


def endpoints(generation: Generation) -> tuple[Endpoint, ...]:
    """Return where the server of a generation may answer, each with its key.

    Raises:
        BadInput: The address is none, or the key has characters that no header has.
        MachineCannot: The key's variable is not set.
    """
    variable = generation.api_key_env
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise MachineCannot(f"The server cannot be asked: {variable}, which should hold its key, is not set.")
    if key and re.fullmatch(r"[!-~]+", key) is None:
        raise BadInput(f"The server cannot be asked: {variable} has characters that no key has.")
    return tuple(Endpoint(url, variable, key) for url in addresses(generation.endpoint))
