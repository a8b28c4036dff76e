"""The plain process that profilers are put around: it makes the calls, and says in a sentence what goes wrong."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from assay.worker.calls import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken away, as user code may read its own."""
    monkeypatch.setattr(sys, "argv", [*sys.argv])


def test_a_workload_is_called_as_often_as_told_after_the_first_and_the_warm_ones(workplace: Path) -> None:
    words = ["bad.py:notes_who", "--param", "who=x", "--calls", "4", "--warmup", "2"]
    assert main(words) == 0
    assert (workplace / "order.txt").read_text() == "x" * (1 + 2 + 4)
    assert sys.argv[1:] == []


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["bad.py:raises"], 4, "assay: bad.py:raises: ValueError: the moon is in the wrong phase"),
        (["bad.py:gone"], 2, "assay: bad.py defines no 'gone'"),
        (["bad.py:fine", "--param", "n"], 2, "assay: A parameter is written NAME=VALUE"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    words: list[str], code: int, sentence: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == code
    said = capsys.readouterr().err
    assert said.startswith(sentence)
    assert said.count("\n") == 1
