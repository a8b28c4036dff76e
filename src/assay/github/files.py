"""A file of a branch, and a commit that changes only it, of git's own parts: nothing is seen before all of it is."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import BadInput, MachineCannot
from assay.github.api import branch_path, told

if TYPE_CHECKING:
    from assay.github.api import Api

FILE_MODES = frozenset({"100644", "100755"})


@dataclass(frozen=True)
class File:
    """A file as it is at the tip of a branch."""

    path: str
    text: str
    mode: str
    commit: str
    tree: str


def tip(api: Api, branch: str) -> str | None:
    """Return the commit at the tip of a branch; null: there is no such branch."""
    reference = api.find(f"/git/ref/heads/{branch_path(branch)}", f"look at the branch {branch}")
    return None if reference is None else str(told(reference, "object", "sha"))


def read(api: Api, branch: str, path: str) -> File:
    """Return a file of a branch.

    Raises:
        BadInput: The branch or the file is not there, or it is no text.
    """
    commit = tip(api, branch)
    if commit is None:
        raise BadInput(f"{api.repository} has no branch {branch}, or the token may not see it.")
    what = f"read {path}"
    tree = str(told(api.get(f"/git/commits/{commit}", what), "tree", "sha"))
    node: dict[str, Any] = {"sha": tree, "type": "tree"}
    for part in path.split("/"):
        entries = told(api.get(f"/git/trees/{node['sha']}", what), "tree") if node["type"] == "tree" else []
        matching = [entry for entry in entries if told(entry, "path") == part]
        if not matching:
            raise BadInput(f"The branch {branch} of {api.repository} has no file {path}.")
        node = matching[0]
    if told(node, "type") != "blob" or told(node, "mode") not in FILE_MODES:
        raise BadInput(f"{path} is no plain file on the branch {branch} of {api.repository}.")
    blob = api.get(f"/git/blobs/{told(node, 'sha')}", what)
    return File(path, _text(blob, path), str(told(node, "mode")), commit, tree)


def _text(blob: Any, path: str) -> str:
    if told(blob, "encoding") != "base64":
        raise MachineCannot(f"GitHub gives {path} in an encoding that is not known.")
    try:
        return base64.b64decode(told(blob, "content")).decode()
    except (binascii.Error, TypeError, UnicodeDecodeError):
        raise BadInput(f"{path} is not UTF-8 text.") from None


def commit(api: Api, file: File, text: str, message: str) -> str:
    """Make a commit with another text of a file on top of the file's own; no branch leads to it yet."""
    what = f"write {file.path}"
    entry: dict[str, Any] = {"path": file.path, "mode": file.mode, "type": "blob", "content": text}
    tree = _made(api, "/git/trees", {"base_tree": file.tree, "tree": [entry]}, what)
    return _made(api, "/git/commits", {"message": message, "tree": tree, "parents": [file.commit]}, what)


def _made(api: Api, path: str, content: dict[str, Any], what: str) -> str:
    """Make a part that nothing leads to; one that was made twice harms nobody."""
    return api.surely(lambda: str(told(api.send("POST", path, content, what), "sha")), lambda: None)
