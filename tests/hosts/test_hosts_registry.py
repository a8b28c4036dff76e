"""What may stand behind ``--on``."""

from __future__ import annotations

import pytest

from assay.core.errors import BadInput, MachineCannot
from assay.hosts import registry


def test_a_host_is_named_with_or_without_a_place() -> None:
    assert registry.parse_host("local") == ("local", None)
    assert registry.parse_host("slurm") == ("slurm", None)
    assert registry.parse_host("slurm:gpu,big") == ("slurm", "gpu,big")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slrm", "There is no host 'slrm'; --on takes "),
        ("slrm", "Did you mean slurm?"),
        ("", "There is no host ''"),
        ("slurm:", "--on slurm: names no place; write --on slurm."),
        ("ssh:", "--on ssh: names no place; write --on ssh:HOST."),
        ("auto:x", "auto takes no place"),
        ("local:here", "write --on local."),
    ],
)
def test_what_is_no_host_is_bad_input(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        registry.parse_host(text)
    assert said in str(caught.value)


def test_a_host_that_is_not_installed_here_is_what_the_machine_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        MachineCannot, match=r"--on slurm cannot be queried from here: Slurm's commands are not installed"
    ):
        registry.find_host("slurm")


def test_a_plug_in_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "known_hosts", lambda: {"moon": "no.such.module:HOST"})
    with pytest.raises(MachineCannot, match="The host moon cannot be loaded here: No module named 'no'"):
        registry.find_host("moon")
