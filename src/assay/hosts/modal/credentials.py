"""Whether Modal can be asked from here: the SDK, and a token, without loading the one or showing the other."""

from __future__ import annotations

import importlib.util
import os
import tomllib
from pathlib import Path

from assay.hosts.modal.errors import CREDENTIALS

INSTALL = "the package modal is not installed; `pip install 'gpu-assay[modal]'` gets it"
_PAIRS = (("TOKEN_ID", "TOKEN_SECRET"), ("OAUTH_REFRESH_TOKEN", "OAUTH_CLIENT_ID"))


def missing() -> str | None:
    """Return what is not here and how to get it, as a clause; null when all is."""
    if importlib.util.find_spec("modal") is None:
        return INSTALL
    try:
        kept = _profile()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return f"Modal's own file {_file()} cannot be read: {error}"
    has = {name for pair in _PAIRS for name in pair if os.environ.get(f"MODAL_{name}") or kept.get(name.lower())}
    if any(has.issuperset(pair) for pair in _PAIRS):
        return None
    half = [name for name in ("TOKEN_ID", "TOKEN_SECRET") if name in has]
    if half:
        lacks = "TOKEN_SECRET" if half == ["TOKEN_ID"] else "TOKEN_ID"
        return f"there is a MODAL_{half[0]} but no MODAL_{lacks}; {CREDENTIALS}"
    return f"there are no credentials for Modal; {CREDENTIALS}"


def _file() -> Path:
    return Path(os.environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")


def _profile() -> dict[str, object]:
    """Return the settings of the profile that the SDK would take; nothing when there is no file."""
    if not _file().exists():
        return {}
    profiles = {name: values for name, values in tomllib.loads(_file().read_text()).items() if isinstance(values, dict)}
    active = next((name for name, values in profiles.items() if values.get("active") is True), "default")
    return profiles.get(os.environ.get("MODAL_PROFILE") or active, {})
