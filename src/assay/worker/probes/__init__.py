"""Probes: programs run in a fresh process that print one line of JSON.

Their imports are slow and may crash.
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
    """Return the reply of a module to a request on its standard input; ``error``: why there is none.

    Args:
        module: Run as a program; the last line that it prints is its reply.
        request: Plain data.
        environment: Variables to add to this process's environment.
        timeout_s: The process is killed after this time.
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
        reply: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        return {"error": f"it answered {lines[-1][:80]!r}"}
    return reply
