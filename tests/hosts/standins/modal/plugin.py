"""Modal's stand-in as a fixture, with the SDK talking to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.hosts.standins.modal.server import ModalStandIn


@pytest.fixture
def modal_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModalStandIn]:
    """A server of the test's own. The SDK is loaded by the first test that needs it, and not by the others."""
    import modal.client

    from tests.hosts.standins.modal.server import TOKEN_ID, TOKEN_SECRET, ModalStandIn

    server = ModalStandIn(tmp_path / "modal")
    monkeypatch.setenv("MODAL_SERVER_URL", server.url)
    monkeypatch.setenv("MODAL_DISABLE_API_PROXY", "1")
    monkeypatch.setenv("MODAL_TOKEN_ID", TOKEN_ID)
    monkeypatch.setenv("MODAL_TOKEN_SECRET", TOKEN_SECRET)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "modal.toml"))
    monkeypatch.setattr(modal.client._Client, "_client_from_env", None)  # the one of the test before
    yield server
    server.stop()
