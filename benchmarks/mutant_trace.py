"""For ``mutants.py trace``: a plugin of pytest that tells coverage which test runs, from its set-up to its tear-down.

What fixtures compute counts for the test that is the first to need it. How long each test takes is written to the file
that ``MUTANT_TRACE_TIMES`` names.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import coverage
import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

took_s: defaultdict[str, float] = defaultdict(float)
"""By test, with all its parameters together."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Label what is run, and time it."""
    name, begin = item.nodeid.partition("[")[0], time.monotonic()
    running = coverage.Coverage.current()
    if running is None:
        raise pytest.UsageError("this plugin labels what coverage sees: run pytest under it")
    running.switch_context(name)
    try:
        return (yield)
    finally:
        running.switch_context("")
        took_s[name] += time.monotonic() - begin


def pytest_sessionfinish() -> None:
    """Write down how long each test took."""
    Path(os.environ["MUTANT_TRACE_TIMES"]).write_text(json.dumps(took_s), encoding="utf-8")
