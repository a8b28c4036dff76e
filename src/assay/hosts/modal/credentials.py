"""Whether Modal can be asked from here: the SDK, and a token, without loading the one or showing the other."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

INSTALL = "the package modal is not installed; `pip install 'gpu-assay[modal]'` gets it"
GET_ONE = "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`, which writes them to the SDK's own file"
_PAIRS = (("TOKEN_ID", "TOKEN_SECRET"), ("OAUTH_REFRESH_TOKEN", "OAUTH_CLIENT_ID"))
_NAMES = (*(name for pair in _PAIRS for name in pair), "OAUTH_CLIENT_SECRET", "OAUTH_JWT_KEY")
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_TOKENS = re.compile(r"\ba[ks]-[A-Za-z0-9_-]{4,}")


def missing() -> str | None:
    """Return what is not here and how to get it, as a clause; null when all is."""
    if importlib.util.find_spec("modal") is None:
        return INSTALL
    try:
        has = _settings()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return f"Modal's own file {_file()} cannot be read: {error}"
    if strange := [name for pair in _PAIRS for name in pair if re.fullmatch(r"[!-~]*", has.get(name, "")) is None]:
        return f"MODAL_{strange[0]} has strange characters, such as a space or a line break"
    if any(has.keys() >= set(pair) for pair in _PAIRS):
        return _open_to_all()
    half = [name for name in ("TOKEN_ID", "TOKEN_SECRET") if name in has]
    if half:
        lacks = "TOKEN_SECRET" if half == ["TOKEN_ID"] else "TOKEN_ID"
        return f"there is a MODAL_{half[0]} but no MODAL_{lacks}; {GET_ONE}"
    return f"there are no credentials for Modal; {GET_ONE}"


def _open_to_all() -> str | None:
    """Return that the token would travel in the open, as a clause; null when it does not."""
    server_url = os.environ.get("MODAL_SERVER_URL") or ""
    for url in filter(None, server_url.split(",")):
        parts = urlsplit(url.strip())
        if parts.scheme not in {"https", "unix"} and parts.hostname not in _LOOPBACK:
            return f"MODAL_SERVER_URL={url} is not https, and over anything else the token could be read"
    return None


def at_a_stand_in() -> bool:
    """Return whether Modal's address is one of this machine: then it is not Modal that answers."""
    server_url = os.environ.get("MODAL_SERVER_URL") or ""
    return any(urlsplit(url.strip()).hostname in _LOOPBACK for url in server_url.split(","))


def account() -> str:
    """Return what tells the account that would be asked from another: a hash, from which no token can be had."""
    has = _settings()
    identifying = (os.environ.get("MODAL_SERVER_URL", ""), *(has.get(name, "") for name in _NAMES))
    return hashlib.sha256("\n".join(identifying).encode()).hexdigest()[:12]


def without_secrets(text: str) -> str:
    """Return a text without the credentials, and without anything that looks like a token of Modal's."""
    for value in _settings().values():
        text = text.replace(value, "…")
    return _TOKENS.sub("…", text)


def _settings() -> dict[str, str]:
    """Return the credentials by the name of their variable; the environment counts before the file."""
    profile = _profile()
    settings = {name: os.environ.get(f"MODAL_{name}") or profile.get(name.lower()) for name in _NAMES}
    return {name: str(value) for name, value in settings.items() if value}


def _file() -> Path:
    return Path(os.environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")


def _profile() -> dict[str, object]:
    """Return the settings of the profile that the SDK would take; nothing when there is no file."""
    if not _file().exists():
        return {}
    profiles = {name: values for name, values in tomllib.loads(_file().read_text()).items() if isinstance(values, dict)}
    active = next((name for name, values in profiles.items() if values.get("active") is True), "default")
    return profiles.get(os.environ.get("MODAL_PROFILE") or active, {})
