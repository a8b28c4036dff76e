"""For ``mutants.py``: a process with all libraries imported that forks one to run tests for each line it is sent.

A line is JSON: the folder that Assay is imported from, the tests, and the longest they may take in s. The answer is a
line with pytest's exit code, or the negative number of the signal that ended it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
from typing import Any

LIBRARIES = (
    "click", "matplotlib.figure", "numpy", "pydantic", "pytest", "rich.console", "ruamel.yaml",
    "scipy.linalg", "scipy.optimize", "scipy.special", "scipy.stats", "sqlalchemy",
)  # fmt: skip
WORDS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly")


def run_tests(requests: dict[str, Any]) -> None:
    """Be a process that runs tests on a copy of the source; never come back."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.environ.update(CI="1", PYTHONPATH=requests["source"], PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    sys.path.insert(0, requests["source"])
    import pytest

    with tempfile.TemporaryDirectory() as scratch:
        code = pytest.main([*WORDS, f"--basetemp={scratch}/t", *requests["tests"]])
    os._exit(int(code))


def ended(child: int, limit_s: float) -> int:
    """Wait for a child, and end it with all that it started where it takes too long; return its exit code."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Serve until nobody asks any more."""
    for name in LIBRARIES:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        requests = json.loads(line)
        child = os.fork()
        if child == 0:
            run_tests(requests)
        answers.write(f"{ended(child, requests['limit_s'])}\n")


if __name__ == "__main__":
    main()
