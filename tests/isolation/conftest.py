"""Tests about placing work mean the machines they describe, not what is hidden from CUDA here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the user's environment says to CUDA."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
