"""Which files go along to a machine elsewhere, and the words as they are there."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

import pytest

from assay.cli.main import main
from assay.cli.shipping import UploadList, remote_words
from assay.core.errors import BadInput

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "project"
    for name, text in {
        "kernels/softmax.py": "import tools",
        "kernels/tools.py": "",
        "kernels/notes.txt": "",
        "bench.py": "",
        "cases.yaml": "cases:\n  - workload: bench.py:work\n    data: [kernels/notes.txt, nothing.txt]\n",
        "data/a.bin": "a",
        "data/__pycache__/a.pyc": "",
    }.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    (tmp_path / "above.yaml").write_text("n: 1\n")
    monkeypatch.chdir(here)
    return here


def sent(project: Path, *words: str) -> tuple[tuple[str, ...], set[str]]:
    luggage = UploadList(project)
    told = remote_words(words, luggage)
    return told, {each.remote_path for each in luggage.shipped()}


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("run", "softmax", "--device", "cpu"), set()),
        (("run", "kernels/softmax.py:f"), {"kernels/softmax.py", "kernels/tools.py"}),
        (("power", "characterize", "cases.yaml"), {"cases.yaml", "bench.py", "kernels/notes.txt"}),
        (("run", "x", "--options=cases.yaml"), {"cases.yaml", "bench.py", "kernels/notes.txt"}),
        (("run", "x", "--param", "path=data/a.bin"), {"data/a.bin"}),
        (("run", "x", "--options", "../above.yaml"), {"../above.yaml"}),
        (("run", "--", "python", "bench.py", "--data", "data/a.bin"), {"bench.py", "data/a.bin"}),
        (("run", "data"), set()),
    ],
)
def test_files_that_the_words_name_go_along_and_words_stay(
    project: Path, words: tuple[str, ...], files: set[str]
) -> None:
    assert sent(project, *words) == (words, files)


def test_a_path_from_the_root_becomes_one_from_here_but_in_a_command_it_means_the_machine_there(project: Path) -> None:
    told, files = sent(project, "run", f"{project}/bench.py:f", "--", f"{project}/bench.py", "/bin/sh")
    assert told == ("run", "bench.py:f", "--", f"{project}/bench.py", "/bin/sh")
    assert "bench.py" in files


def test_a_path_from_the_root_in_a_file_that_goes_along_is_refused(project: Path) -> None:
    (project / "bad.yaml").write_text(f"file: {project}/bench.py\n")
    with pytest.raises(BadInput, match="is named relative to where you start"):
        sent(project, "run", "x", "--options", "bad.yaml")


@pytest.mark.parametrize("named", ["../secret.txt", "link.txt"])
def test_a_file_that_somebody_wrote_does_not_take_along_what_lies_outside(project: Path, named: str) -> None:
    (project.parent / "secret.txt").write_text("of nobody else")
    (project / "link.txt").symlink_to(project.parent / "secret.txt")
    (project / "theirs.yaml").write_text(f"prompts: {named}\n")
    with pytest.raises(BadInput, match="outside the folder you start in; --ship"):
        sent(project, "threshold", "run", "theirs.yaml")
    luggage = UploadList(project)
    luggage.add(named)
    luggage.word("theirs.yaml")
    assert os.path.normpath(named) in {each.remote_path for each in luggage.shipped()}


def test_what_is_named_to_be_shipped_is_shipped_whole_without_caches(project: Path) -> None:
    luggage = UploadList(project)
    luggage.add("data")
    luggage.add("kernels/notes.txt")
    assert [each.remote_path for each in luggage.shipped()] == ["data/a.bin", "kernels/notes.txt"]
    with pytest.raises(BadInput, match="--ship nope: there is no such file or folder"):
        luggage.add("nope")


@pytest.mark.parametrize(
    "verb",
    [
        ("run", "softmax"), ("contention", "run"), ("contention", "matrix"), ("scaling", "run", "--nproc", "2"),
        ("power", "characterize"), ("power", "sweep", "gemm", "--sizes", "64,128"), ("threshold", "run"),
    ],
)  # fmt: skip
def test_every_measuring_verb_can_be_sent_and_keeps_here_what_is_done_here(
    verb: tuple[str, ...], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = ("--update-config", "--output", "o.json", "--unsure", "fail") if verb[0] == "threshold" else ()
    words = ("--on", "ssh:gpu1", "--device", "cpu", "--no-history", "--output-dir", "out", "--ship", "data", *after)
    assert main([*verb, *words, "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    told = shlex.split(shown[1])
    assert told[:-1] == ["assay", *verb, "--device", "cpu", "--output-dir"]
    assert told[-1].startswith("runs-")
    assert shown[-1] == f"The run would be downloaded to {project}/out."
