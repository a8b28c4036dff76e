"""The configuration of a model, wherever it is: known by name, in a folder, or on the hub; and why it is not there."""

from __future__ import annotations

import socket
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from assay.core.errors import BadInput
from assay.workloads.generation.models import Config, import_transformers, is_random, shape_of
from assay.workloads.generation.unreadable import not_read


def config_of(model: str, revision: str = "", *, trust_remote_code: bool = False) -> Config:
    """Return the configuration of a model; what is in the cache of the hub needs no network.

    Raises:
        BadInput: There is no such random model or folder, or the name is none.
        MachineCannot: The hub does not have it or cannot be reached, or its code is not trusted.
    """
    if is_random(model):
        return shape_of(model).config()
    folder = local_folder(model)
    transformers = import_transformers()
    try:
        return transformers.AutoConfig.from_pretrained(
            str(folder or model),
            revision=revision or None,
            trust_remote_code=trust_remote_code,
            local_files_only=folder is not None or is_offline(),
        )
    except Exception as error:
        raise not_read(model, revision, error) from error


def local_folder(model: str) -> Path | None:
    """Return the folder of a model, or null for a name of the hub.

    Raises:
        BadInput: It is a path, and there is no model.
    """
    path = Path(model).expanduser()
    looks_local = model.startswith((".", "/", "~")) or model.count("/") > 1 or path.is_dir()
    if not looks_local:
        return None
    if not path.exists():
        raise BadInput(f"The model's folder {model} does not exist.")
    if not path.is_dir():
        raise BadInput(f"{model} is a file; a model is a folder with a config.json and its weights.")
    if not (path / "config.json").is_file():
        raise BadInput(f"The folder {model} has no config.json, so that it is not a model's.")
    return path


def tokenizer_of(model: str, revision: str = "", *, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a model; null where it has none."""
    if is_random(model):
        return None
    transformers = import_transformers()
    folder = local_folder(model)
    try:
        return transformers.AutoTokenizer.from_pretrained(
            str(folder or model),
            revision=revision or None,
            trust_remote_code=trust_remote_code,
            local_files_only=folder is not None or is_offline(),
        )
    except (OSError, ValueError, KeyError, ImportError):
        return None


def is_offline() -> bool:
    """Return whether the hub is not to be asked, as the user said so or as there is no way to it."""
    from huggingface_hub import is_offline_mode

    return bool(is_offline_mode()) or _no_way()


@cache
def _no_way() -> bool:
    """Return whether the hub's name leads nowhere; it is then not asked, again and again, for half a minute."""
    from huggingface_hub.constants import ENDPOINT

    if getproxies():
        return False
    try:
        socket.getaddrinfo(urlsplit(ENDPOINT).hostname, None)
    except OSError:
        return True
    return False
