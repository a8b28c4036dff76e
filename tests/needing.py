"""Programs that a test needs: where they are missing it is skipped, and in CI it fails."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence


def need(absent: Sequence[str], what: str) -> None:
    """Go on only where nothing is absent."""
    if not absent:
        return
    why = f"{what} is not installed ({', '.join(absent)}): `make ci-setup` does that"
    if os.environ.get("ASSAY_CI"):
        pytest.fail(why)
    pytest.skip(why)


def need_modules(*names: str) -> None:
    """Collect the tests of a file only where these modules are installed, and leave their import to the tests."""
    absent = [name for name in names if find_spec(name) is None]
    if absent:
        pytest.skip(f"not installed here: {', '.join(absent)}", allow_module_level=True)
