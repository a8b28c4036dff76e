"""Probes: programs run in a fresh process that print one line of JSON.

What they import is slow and may crash.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

QUERY_TIMEOUT_S = 120.0


def query_subprocess(
    module: str,
    request: JsonValue = None,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = QUERY_TIMEOUT_S,
) -> dict[str, Any]:
    """Return what a module answers to a wish, which it reads from its standard input; ``error``: why there is nothing.

    Args:
        module: Run as a program; the last line that it prints is its answer.
        request: Plain data.
        environment: Variables that it has besides ours.
        timeout_s: Who takes longer is ended.
    """
    try:
        result = subprocess.run(
            [sys.executable, "-P", "-m", module],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "PYTHONWARNINGS": "ignore", **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s"}
    lines = result.stdout.strip().splitlines()
    if result.returncode != 0 or not lines:
        last = result.stderr.strip().splitlines()
        return {"error": last[-1] if last else f"the process ended with {result.returncode}"}
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        return {"error": f"it answered {lines[-1][:80]!r}"}
    return answer
