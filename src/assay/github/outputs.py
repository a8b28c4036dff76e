"""What a step tells the next ones: lines ``name=value`` in the file that GitHub names.

A newline in a value would be a line of its own, and so another value. There are none here: a value with any control
character is a defect of ours, not a value.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from assay.core.durable import friendly_os_errors
from assay.github.request import Nothing, Request

if TYPE_CHECKING:
    from pathlib import Path


def of_request(found: Request | Nothing) -> dict[str, str]:
    """Return what the next jobs are told of a request; everything empty where there is none."""
    names = ("gpu_types", "repository", "commit", "branch", "pull_request", "create_pr")
    if isinstance(found, Nothing):
        return {"go": "false", **dict.fromkeys(names, "")}
    return {
        "go": "true",
        "gpu_types": json.dumps(found.gpu_types),
        "repository": found.repository,
        "commit": found.commit,
        "branch": found.branch or "",
        "pull_request": "" if found.pull_request is None else str(found.pull_request),
        "create_pr": "true" if found.create_pr else "false",
    }


def write(path: Path, values: dict[str, str]) -> None:
    """Append values to the file of a step's outputs.

    Raises:
        ValueError: A value could be read as something else.
    """
    for name, value in values.items():
        if re.fullmatch(r"[a-z_]+", name) is None or not (value.isprintable() or not value):
            raise ValueError(f"{name} cannot be told to the next step")
    with friendly_os_errors(path), path.open("a", encoding="utf-8", newline="\n") as file:
        file.write("".join(f"{name}={value}\n" for name, value in values.items()))
