"""A variable of the environment that is set for a while."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from assay.core.processes import temporary_variable


@pytest.mark.parametrize("before", [None, "", "theirs"])
def test_what_was_there_is_there_again_though_the_block_raised(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASSAY_TRIED", raising=False)
    if before is not None:
        monkeypatch.setenv("ASSAY_TRIED", before)
    with pytest.raises(KeyError), temporary_variable("ASSAY_TRIED", "ours"):  # noqa: PT012 - the block is what is tried
        assert os.environ["ASSAY_TRIED"] == "ours"
        raise KeyError
    assert os.environ.get("ASSAY_TRIED") == before


def test_libraries_in_c_and_processes_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSAY_TRIED", raising=False)
    ask = [sys.executable, "-c", "import os; print(os.environ.get('ASSAY_TRIED'))"]
    with temporary_variable("ASSAY_TRIED", "ours"):
        within = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    after = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    assert (within.strip(), after.strip()) == ("ours", "None")
