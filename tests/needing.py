"""Programs that a test needs: where they are missing it is skipped, and in CI it fails."""

from __future__ import annotations

import os
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
