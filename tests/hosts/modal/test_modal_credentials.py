"""What is missing before Modal can be asked is said without loading the SDK, and without showing a secret."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.hosts.providers import modal as modal_sdk

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TOKEN_ID", "TOKEN_SECRET", "PROFILE", "SERVER_URL", "OAUTH_REFRESH_TOKEN", "OAUTH_CLIENT_ID"):
        monkeypatch.delenv(f"MODAL_{name}", raising=False)
    path = tmp_path / "modal.toml"
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(path))
    return path


def test_without_the_sdk_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "modal" else found(name, *rest)
    )
    assert (
        modal_sdk.missing_credentials()
        == "the package modal is not installed; `pip install 'gpu-assay[modal]'` gets it"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["run", "softmax", "--on", "modal", "--gpu-type", "L4"]) == 3
    assert "modal is not installed; `pip install 'gpu-assay[modal]'` gets it" in capsys.readouterr().err


def test_a_token_with_strange_characters_is_not_used_and_not_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-planted")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-planted\nas-more")
    said = modal_sdk.missing_credentials() or ""
    assert "MODAL_TOKEN_SECRET has strange characters" in said
    assert "planted" not in said


def test_without_a_token_it_says_which_variables_and_which_command(file: Path) -> None:
    said = modal_sdk.missing_credentials()
    assert said is not None
    assert all(word in said for word in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "modal token new"))


def test_half_a_token_says_which_half_is_missing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-planted")
    said = modal_sdk.missing_credentials()
    assert said is not None
    assert said.startswith("there is a MODAL_TOKEN_SECRET but no MODAL_TOKEN_ID; ")
    assert "planted" not in said
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-planted")
    assert modal_sdk.missing_credentials() is None


def test_the_sdk_s_own_file_will_do(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('[work]\ntoken_id = "ak-1"\ntoken_secret = "as-1"\nactive = true\n[other]\ntoken_id = "ak-2"\n')
    assert modal_sdk.missing_credentials() is None
    monkeypatch.setenv("MODAL_PROFILE", "other")
    said = modal_sdk.missing_credentials()
    assert said is not None
    assert "no MODAL_TOKEN_SECRET" in said
    monkeypatch.setenv("MODAL_PROFILE", "nobody")
    assert modal_sdk.missing_credentials() is not None


def test_a_broken_file_is_named(file: Path) -> None:
    file.write_text("token_id = \n")
    said = modal_sdk.missing_credentials()
    assert said is not None
    assert str(file) in said


def test_a_token_does_not_travel_in_the_open(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-planted")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-planted")
    for url, fine in (("https://modal.example", True), ("http://127.0.0.1:80", True), ("http://10.0.0.1:80", False)):
        monkeypatch.setenv("MODAL_SERVER_URL", url)
        said = modal_sdk.missing_credentials()
        assert (said is None) is fine
        assert fine or f"MODAL_SERVER_URL={url} is not https" in str(said)
